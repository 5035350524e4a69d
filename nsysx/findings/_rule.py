"""The names of a rule, and how the answer shows it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from nsysx.catalogue import StepLimit, StepPart


class Rule(NamedTuple):
    """The names of a rule. ``title`` says what it looks for.

    ``cost_as_recorded``: its cost is measured in the steps as recorded, not in the step without the profiler.
    ``cause``: the parts of the verdict that its cause takes, together the most it can save; empty where it takes no part.

    How the answer shows it. ``about``: the verdict code whose cause it is about, or "late rank" (a verdict that names one), "slow steps",
    "timing" (what a program without steps measures), "loop" (what runs between steps) or "capture" (nothing to change in it).
    ``whole``: its advice is for the whole program or the loader, whatever place costs most. ``picture``: the picture it asks for, see
    ``answer.bars``.
    ``leads``: of findings that cannot be told apart by what they save, it comes first: it names a cause, they a remedy for many.
    ``striking``: it says which line has most that could go and what is striking about it, and knows neither cause nor change for sure:
    it comes first where no cause explains as much.
    ``reading``: it is about what the program's own clocks read. ``same_time``: rules that report the same time, once is enough.

    ``direct``: how direct its evidence is of where the time goes. Of two findings about the same time the more direct one counts
    it: 3 a cause that was recorded (loader, allocator, checkpoint, rounds), 2 calls, kernels or lines, 1 what is left of a part.

    ``rests_on``: what shows its cause, as a sentence without its end, where that is not how long the GPU works or waits.

    ``tries``: the changes that ``nsysx try`` makes where it is found, by name: those that it advises, others like them, and bounds.
    """

    code: str
    slug: str
    title: str
    cost_as_recorded: bool = False
    cause: tuple[StepPart, ...] = ()
    about: StepLimit | Literal["", "late rank", "slow steps", "timing", "capture", "loop"] = ""
    whole: bool = False
    picture: Literal["", "loader", "flushes", "masks", "windows", "readings"] = ""
    leads: bool = False
    striking: bool = False
    reading: bool = False
    same_time: tuple[str, ...] = ()
    direct: int = 2
    rests_on: str = ""
    tries: tuple[str, ...] = ()

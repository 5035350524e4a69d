"""The records of the answer: what limits the step, what to do, what that is worth, how sure that is, and what else was found.

The room ``answer`` decides them once; every output words them. Standard library only. Texts may hold names from a report: an output
makes them harmless. All times are ns of one step, or of the whole window without steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from nsysx import units

Level = Literal["certain", "likely", "unknown"]


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that must hold for a change, tested on the capture.

    ``detail`` says what was seen, and where; ``mend`` how to make a violated one hold, "" where nothing short does, and
    ``saving_ns`` what that alone saves of the step, None where it is not known.
    """

    name: str
    state: Literal["holds", "violated", "unknown"]
    detail: str
    mend: str = ""
    saving_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Alternative:
    """A remedy that a finding advises, one of several that will do: its name, or names with commas between, and its words alone.

    ``name`` is what ``nsysx try --change`` takes, where a change of that name exists. ``refuted``: it was tried on this program and made
    it no faster, so the finding no longer advises it.
    """

    name: str
    text: str
    paste: str = ""
    condition: str = ""
    refuted: bool = False

    @property
    def parts(self) -> frozenset[str]:
        """The names of all that it changes."""
        return frozenset(self.name.split(","))


def in_words(alternatives: Sequence[Alternative]) -> Alternative:
    """Return several remedies as one advice: the words of all, and the code of the first that has any."""
    texts = [a.text for a in alternatives]
    lead = "".join(texts[0].partition(": ")[:2])
    if len(texts) == 1 or not lead.endswith(": ") or not all(text.startswith(lead) for text in texts):
        lead = ""
    shown = next((a for a in alternatives if a.paste), alternatives[0])
    rest = [texts[0].removeprefix(lead), *(units.uncapitalized(text.removeprefix(lead)) for text in texts[1:])]
    text = lead + (f"{', '.join(rest[:-1])}, or {rest[-1]}" if len(rest) > 1 else rest[0])
    return Alternative("", text, shown.paste, shown.condition)


@dataclass(frozen=True, slots=True)
class Action:
    """One change to make.

    ``code`` is the finding's, and ``finding`` its place in the Summary's findings; "" and None for advice about the capture itself.
    ``paste`` is code that makes the change, ``where`` its place (module, phase, file, line), ``condition`` what must hold for it in
    words, ``conditions`` the same as tested. ``saving_ns`` is what it saves of the step, None where that is not known.
    """

    text: str
    code: str = ""
    finding: int | None = None
    paste: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)
    condition: str = ""
    conditions: tuple[Condition, ...] = ()
    saving_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Sure:
    """How sure one half of the answer is (``about``), why, and the command that would settle it."""

    about: str
    level: Level
    reason: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class Certainty:
    """How sure the answer is: the level and the one reason of its less sure half; ``parts`` are both halves, cause and size."""

    level: Level
    reason: str
    parts: tuple[Sure, ...]


@dataclass(frozen=True, slots=True)
class Also:
    """Another finding in one line; ``saving_ns`` is None where no saving is known.

    ``overlaps``: the codes of findings named before it whose savings cannot be added to its own, see ``Finding.overlaps``.
    """

    code: str
    finding: int
    text: str
    saving_ns: int | None
    bound: bool
    overlaps: tuple[str, ...] = ()


#: What came of a change. ``changes_results``: it alters the results more than it should, however fast it is.
Verdict = Literal["faster", "slower", "same", "cannot_tell", "fails", "changes_results", "does_not_apply"]
#: What follows from a verdict, as the log of what was tried has it.
DECISIONS: Mapping[Verdict, str] = {
    "faster": "keep it",
    "slower": "leave it",
    "same": "leave it",
    "cannot_tell": "measure longer",
    "fails": "leave it",
    "changes_results": "leave it, unless these results are wanted",
    "does_not_apply": "leave it",
}


def verdict_of(measured: Verdict, *, other_results: bool) -> Verdict:
    """Return the one verdict on a change from what its times say and whether it alters the results more than it should."""
    return "changes_results" if other_results and measured in ("faster", "same", "cannot_tell") else measured


@dataclass(frozen=True, slots=True)
class Tried:
    """What ``nsysx try`` measured of one change on this program without a profiler: ``now_ns`` unchanged and ``then_ns`` with it.

    ``by``: the command that measured it, "try", or "compare" from two recordings. Of the verdicts fails and does_not_apply the times
    are None and ``reason`` says why, ``place`` where (file:line). ``low_ns`` to ``high_ns`` is the interval of ``then_ns``. ``codes``
    are those of the findings that advise the change. ``other_results``: it alters the results more than it should, or computes
    something else on purpose. ``does`` is the change as a phrase, ``paste`` the lines that make it, ``beware`` what else it alters.
    """

    change: str
    verdict: Verdict
    now_ns: int | None
    then_ns: int | None
    low_ns: int | None
    high_ns: int | None
    codes: tuple[str, ...]
    other_results: bool
    reason: str
    place: str
    does: str = ""
    paste: str = ""
    beware: str = ""
    by: Literal["try", "compare"] = "try"


@dataclass(frozen=True, slots=True)
class BarPart:
    """One part of a bar; ``kind`` is its color, ``idle`` parts are hatched."""

    label: str
    ns: float
    kind: str
    idle: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar; its parts sum to ``total_ns``. ``names``: its parts are named after kernels, whose names an output shortens."""

    label: str
    total_ns: float
    parts: tuple[BarPart, ...]
    names: Literal["", "kernel"] = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """The picture that shows the cause. ``kind`` says which: "step", "ranks", or the one that the finding's rule asks for."""

    kind: str
    title: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the capture says, decided once.

    ``limit`` is the code of what limits the step, ``do`` what to change, in order: one change, or a sequence. ``now_ns`` is the step,
    ``then_ns`` the likely step after all of ``do``, between ``then_low_ns`` and ``then_high_ns``; None where that is not known.
    ``best_ns`` is what no change of the kind can beat, None where that is the same or not known. ``bound``: nothing likely is known, and
    ``then_ns`` is the least that the step can be, and ``replayed_ns`` what the replay alone gives, without its error and what it cannot
    know; None where that is the same or not known. ``times`` are the least and the most factor of that, or of ``then_ns`` where that is
    no bound, with the error of the change and the bounds of the step in it; none where the step is as recorded. ``worth`` says the same
    in words. ``recorded_ns`` is the step under the profiler;
    ``real``: times are those without it, or it hardly changes them. ``alarms`` are the checks that make every number doubtful.
    ``ask_next`` are commands, in which REPORT stands for the reports.
    """

    limit: str
    do: tuple[Action, ...]
    now_ns: int | None
    then_ns: int | None
    then_low_ns: int | None
    then_high_ns: int | None
    bound: bool
    real: bool
    recorded_ns: int | None
    worth: str
    certainty: Certainty
    picture: Picture
    also: tuple[Also, ...]
    alarms: tuple[str, ...]
    ask_next: tuple[str, ...]
    replayed_ns: int | None = None
    times: tuple[float, ...] = ()
    best_ns: int | None = None


#: What stands in a Summary before its answer is decided.
UNDECIDED = Answer(
    "",
    (),
    now_ns=None,
    then_ns=None,
    then_low_ns=None,
    then_high_ns=None,
    bound=False,
    real=False,
    recorded_ns=None,
    worth="",
    certainty=Certainty("unknown", "", ()),
    picture=Picture("", "", ()),
    also=(),
    alarms=(),
    ask_next=(),
)

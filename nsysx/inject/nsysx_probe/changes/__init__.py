"""Remedies, and those of them that ``nsysx try`` makes in a running program: by subject, in this folder. Standard library only at import.

A file has ``CHANGES``, a tuple of `Change`, and may have ``UNTRIED``, a tuple of `Remedy` that no change can make yet. A finding names
remedies, and what was tried is joined to it by these names; the words for both stand here.

``NSYSX_CHANGE=name,name`` makes these changes in a process, right after torch was imported; ``NSYSX_CHANGES`` names a folder with more
files of the kind. A change does what its pasted lines would do, and no more. It tells its `Watch` when it took effect, or why it does
not apply, and, if it can be undone between two steps, how.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..sources import is_made_by_run

#: What a change may alter besides the time of a step.
ALTERS = ("speed", "numerics", "memory", "computation")

#: The files of this folder, in the order in which their changes are tried without a report: what is quick to try comes first.
FILES = (
    "optimizers", "tf32", "cuda", "loading", "host_copies", "garbage", "distributed", "attention", "threads", "compiling", "graphed",
    "mixed_precision", "reads", "batches", "skipped_update", "switches", "array_types", "nothing", "program_clocks", "like_work",
    "rank_work", "sharded_units", "sent_rows", "stages_and_splits", "costly", "costly_lines", "costly_work", "matrices",
    "random_draws", "made_again",
)  # fmt: skip


class Remedy:
    """One thing to do about a finding.

    ``advice`` says what to do and stands alone, ``example`` are lines of a program in which it is done, "" where none are short,
    ``condition`` a sentence on what must hold for it. ``label`` tells its lines from those of another one for the same. ``untried``:
    why no change can try it yet, "" for a `Change`. ``for_anything``: it makes launches or passes fewer for whatever kernels stand
    there, and is not about what they compute. ``may_lose``: it has work of its own, which may take longer than what it saves.
    ``rounds_sent``: ranks send each other rounded numbers, and the results are others.
    """

    def __init__(
        self, name: str, advice: str, example: str = "", condition: str = "", *, label: str = "", untried: str = "",
        for_anything: bool = False, may_lose: bool = False, rounds_sent: bool = False,
    ) -> None:  # fmt: skip
        self.name, self.advice, self.example, self.condition = name, advice, example, condition
        self.label, self.untried, self.for_anything = label, untried, for_anything
        self.may_lose, self.rounds_sent = may_lose, rounds_sent


class Change(Remedy):
    """A remedy that ``nsysx try`` can make.

    ``does``: a phrase that begins a sentence, ``paste``: the lines that make it and no more; they are the ``advice`` and the ``example``
    where these are not given. ``arm(torch, watch)`` makes it. ``alters``: "speed" only, "numerics" (results differ within rounding or
    by random numbers), "memory", or "computation": a bound, which says what a step would take without something; ``beware`` says more.
    ``needs``: what a program must have: cuda, optimizer or "". ``environment``: variables to set, each a function of the value before.
    ``start_s``: how long its first steps may take, if longer than others. Of one ``group`` only one is made.
    """

    def __init__(
        self, name: str, does: str, paste: str, arm: Callable[[Any, Watch], Any], *, alters: str = "speed", beware: str = "",
        needs: str = "", group: str = "", start_s: float = 0.0, environment: Mapping[str, Callable[[str], str]] | None = None,
        advice: str = "", example: str | None = None, condition: str = "", label: str = "", for_anything: bool = False,
    ) -> None:  # fmt: skip
        assert alters in ALTERS, alters
        super().__init__(
            name,
            advice or does,
            paste if example is None else example,
            condition,
            label=label,
            for_anything=for_anything,
        )
        self.does, self.paste, self.arm = does, paste, arm
        self.alters, self.beware, self.needs, self.group, self.start_s = alters, beware, needs, group or name, start_s
        self.environment = environment or {}


class Watch:
    """What one change reports while the program runs: how often it took effect, where first, or why it does not apply.

    A change that can be undone while the program runs says so by `can_turn`. What it wraps then asks ``on``, which is False in
    steps without it. ``places_before``: the place in its optimizer that a parameter had, by its id, if the change moved it.
    """

    def __init__(self) -> None:
        self.on = True
        self.turns: Callable[[bool], Any] | None = None
        self.count = 0
        self.where = ""
        self.why_not = ""
        self.note = ""
        self.places_before: dict[int, int] = {}
        self.at_step: dict[int, list[Callable[[], Any]]] = {}
        self.each_step: list[Callable[[], Any]] = []
        self.at_end: list[Callable[[], Any]] = []

    def can_turn(self, turns: Callable[[bool], Any] = bool) -> None:
        """Say that the change can be turned off and on between steps; ``turns(on)`` does what asking ``on`` does not."""
        self.turns = turns

    def turn(self, on: bool) -> None:
        """Turn the change off or on."""
        assert self.turns is not None
        self.on = on
        self.turns(on)

    def took(self, *, here: bool = True) -> None:
        """Note that the change took effect, ``here`` in the line of the program that is being run."""
        self.count += 1
        if here and not self.where:
            self.where = place()

    def record(self) -> dict[str, Any]:
        """Return ``took``, ``where``, ``why_not`` and ``note``."""
        return {"took": self.count, "where": self.where, "why_not": self.why_not, "note": self.note}


def is_library(file: str) -> bool:
    """Return whether code of this file is not the program's own: Python's library, a package, nsysx, or made without a file."""
    libraries = (os.path.dirname(os.__file__) + os.sep, str(Path(__file__).parents[1]) + os.sep)  # noqa: PTH120
    installed = "site-packages" in file or "dist-packages" in file
    return installed or file.startswith((*libraries, "<")) or is_made_by_run(file)


def place() -> str:
    """Return file:line of the innermost frame that is the program's own, "" if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_library(file):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def changes_by_name(environ: Mapping[str, str] = os.environ) -> dict[str, Change]:
    """Return every change by its name, in the order in which they are tried without a report."""
    changes: list[Change] = []
    for name in FILES:
        changes += importlib.import_module(f"{__name__}.{name}").CHANGES
    folder = environ.get("NSYSX_CHANGES")
    for file in sorted(Path(folder).glob("[a-z]*.py")) if folder else ():
        spec = importlib.util.spec_from_file_location(f"nsysx_changes_{file.stem}", file)
        if spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            vars(module)["Change"] = Change
            spec.loader.exec_module(module)
            changes += module.CHANGES
    return {change.name: change for change in changes}


def remedies() -> dict[str, Remedy]:
    """Return every remedy of this folder by its name: the changes, and what none of them can try yet."""
    every: list[Remedy] = [*changes_by_name({}).values()]
    for name in FILES:
        every += getattr(importlib.import_module(f"{__name__}.{name}"), "UNTRIED", ())
    assert len({remedy.name for remedy in every}) == len(every), "two remedies of one name"
    return {remedy.name: remedy for remedy in every}


def make(torch: Any, environ: Mapping[str, str]) -> dict[str, Watch]:
    """Make the changes that ``NSYSX_CHANGE`` names; return the watch of each."""
    names = [name for name in environ.get("NSYSX_CHANGE", "").split(",") if name]
    watches: dict[str, Watch] = {}
    every = changes_by_name(environ) if names else {}
    for name in names:
        watches[name] = Watch()
        every[name].arm(torch, watches[name])
    return watches

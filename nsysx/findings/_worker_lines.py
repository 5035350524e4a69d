"""What a worker of a DataLoader did for one batch, as the probe counted it inside: the line that takes longest, and work done again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

from nsysx import ids, units
from nsysx.analyses import lines
from nsysx.findings._case import Case, Fix
from nsysx.findings._finding_bounds import AGAIN_FOR_A_SAMPLE, MOST_SHARE, OWN_REMEDY_SHARE, WORKING_SHARE
from nsysx.records import whole_number


class WorkerLine(NamedTuple):
    """What one line of the program took of a worker's batch, with what it calls of libraries, and its text ("" where not recorded)."""

    file: str
    line: int
    function: str
    runs: int
    ns: int
    text: str


class Transform(NamedTuple):
    """One transform of a composition of a library: its class, how often and how long it was called in a worker's batch, and the line of the
    program that names it ("" and 0 where that is not known).
    """

    composition: int
    name: str
    runs: int
    ns: int
    file: str
    line: int

    @property
    def place(self) -> str:
        """Its name and place, for a sentence."""
        return f"{self.name} ({PurePath(self.file).name}:{self.line})" if self.file else self.name


class WorkerBatch(NamedTuple):
    """One batch of a worker. ``samples``: those handed out; ``batch_ns``: the batch, counting included; ``wall_ns``: what of that was
    counted, less where counting stopped within it; ``ns``: its line that takes longest.

    ``again``: how often the function of that line begins for each sample, 0 where that is once, or where it has not most of the time.
    ``busy``: share of the time that the worker was on a CPU. ``lines``: all that it ran, the longest first. ``began``: file and function
    of those that began for each sample, in the order in which they first did. ``read_bytes``: read from files, 0 where not known.
    """

    samples: int
    wall_ns: int
    busy: float
    file: str
    line: int
    function: str
    runs: int
    ns: int
    again: float
    lines: tuple[WorkerLine, ...] = ()
    began: tuple[tuple[str, str], ...] = ()
    read_bytes: int = 0
    transforms: tuple[Transform, ...] = ()
    batch_ns: int = 0

    @property
    def where(self) -> dict[str, object]:
        """The place of the line."""
        return {"file": self.file, "line": self.line}

    @property
    def place(self) -> str:
        """The place of the line, for a sentence."""
        return place_of(self)

    def sentence(self) -> str:
        """Return what was counted."""
        waits = (
            ""
            if self.busy >= WORKING_SHARE
            else f" The worker was on a CPU for {units.share(self.busy, 1)} of that: it waits, as for storage."
        )
        part = units.share(self.ns, self.wall_ns)
        longest = max(self.transforms, key=lambda each: each.ns, default=None)
        composed = (
            f" Of its transforms {longest.place} takes longest: {units.share(longest.ns, self.wall_ns)}."
            if longest and longest.ns >= OWN_REMEDY_SHARE * self.wall_ns
            else ""
        )
        return (
            f" One worker was followed for a batch of {units.several(self.samples, 'sample')}: {part} of its time is at {self.place}, "
            f"which runs {units.several(self.runs, 'time')}.{composed}{waits}"
        )


def place_of(line: WorkerBatch | WorkerLine) -> str:
    """Return the place of a line, for a sentence."""
    return f"{PurePath(line.file).name}:{line.line} {line.function}"


class WorkerFix(NamedTuple):
    """What is to be changed, and the line that it is about."""

    fix: Fix
    line: WorkerLine

    @property
    def where(self) -> dict[str, object]:
        """The place of the line."""
        return {"file": self.line.file, "line": self.line.line}


def share_of_batch(ns: float, followed: WorkerBatch) -> str:
    """Return the share of a batch that some of its time is, for a sentence."""
    return f"{units.share(ns, followed.wall_ns)} of a worker's time for a batch"


def handed_bytes(case: Case) -> float:
    """Return how many bytes go to the GPU in a step."""
    to_gpu = case.ops.filter((case.ops["op_kind"] == "memcpy") & (case.ops["name"] == "HtoD"))
    return int(to_gpu["bytes"].sum()) / max(case.steps, 1)


def worker_batch(case: Case) -> WorkerBatch | None:
    """Return what a worker of the shown process did for one batch, None where none was followed."""
    for record in ids.records_of(case.profile.trace.capture.probe, case.process):
        counted = record.get("worker")
        batch = _read(counted, lines.texts(case.profile)) if isinstance(counted, Mapping) else None
        if batch is not None:
            return batch
    return None


def _read(counted: Mapping[str, Any], texts: Mapping[str, Any]) -> WorkerBatch | None:
    samples, batch_ns, cpu_ns = (whole_number(counted.get(name)) for name in ("samples", "wall_ns", "cpu_ns"))
    wall_ns = whole_number(counted.get("counted_ns")) or batch_ns
    rows, calls = (_rows(counted.get(name), width, 0, 2) for name, width in (("lines", 5), ("calls", 4)))
    if not samples or not batch_ns or not wall_ns or not rows:
        return None
    of_function: dict[tuple[str, str], int] = {}
    for file, _, function, _, ns in rows:
        of_function[file, function] = of_function.get((file, function), 0) + ns
    longest = max(of_function, key=lambda key: of_function[key])
    file, line, function, runs, ns = max((row for row in rows if (row[0], row[2]) == longest), key=lambda row: row[4])
    took = (
        WorkerLine(file, line, function, runs, ns, lines.text_of(texts, file, line) or "")
        for file, line, function, runs, ns in rows
    )
    # Those that begin equally often stand in the order of their first begin.
    began = tuple((row[0], row[2]) for row in calls if row[3] == samples)
    often = sum(row[3] for row in calls if (row[0], row[2]) == longest) / samples
    much = of_function[longest] >= MOST_SHARE * wall_ns
    again = often if much and often >= AGAIN_FOR_A_SAMPLE else 0.0
    return WorkerBatch(
        samples,
        wall_ns,
        min((cpu_ns or 0) / batch_ns, 1.0),
        file,
        line,
        function,
        runs,
        ns,
        again,
        tuple(sorted(took, key=lambda each: -each.ns)),
        began,
        whole_number(counted.get("read_bytes")) or 0,
        tuple(Transform(*row) for row in _rows(counted.get("transforms"), len(Transform._fields), 1, 4)),
        batch_ns,
    )


def _rows(value: object, width: int, *texts: int) -> list[tuple[Any, ...]]:
    """Return rows with words at these columns and counts in the others; [] where a row is none."""
    rows = (
        [tuple(row) for row in value if isinstance(row, list) and len(row) == width] if isinstance(value, list) else []
    )
    sane = all(
        isinstance(cell, str) if i in texts else whole_number(cell) is not None
        for row in rows
        for i, cell in enumerate(row)
    )
    return rows if sane else []

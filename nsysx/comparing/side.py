"""One side of a comparison: each capture of it by blocks of steps, from Summaries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from nsysx.analyses import modules, step_parts
from nsysx.analyses.helpers.step_record import rows_of
from nsysx.catalogue import Cause, DeviceActivity, Trait
from nsysx.comparing import renamed_modules
from nsysx.errors import EXIT_EMPTY, EXIT_INPUT, NsysxError
from nsysx.model import Summary
from nsysx.ranks.rank_record import file_rank

I64 = npt.NDArray[np.int64]

#: The parts of step_parts.
PARTS = (
    "step", "ledger", "idle", "module_compute", "family_compute", "phase", "module", "family", "kernel", "api", "wait",
)  # fmt: skip


@dataclass(frozen=True)
class BlockSeries:
    """One name in every block of steps: ns and count, summed over the steps of the block; ``count`` is None if not counted."""

    ns: I64
    count: I64 | None
    steps: I64
    cls: str | None = None

    @property
    def mean_ns(self) -> float:
        """Time per step (ns)."""
        return int(self.ns.sum()) / int(self.steps.sum())

    @property
    def mean_count(self) -> float | None:
        """Count per step."""
        return None if self.count is None else int(self.count.sum()) / int(self.steps.sum())


@dataclass(frozen=True)
class Captured:
    """One capture. ``parts`` is part -> name -> series; of ranks of one job, their sum over ``ranks``.

    ``step_ns`` are the steady steps one by one, of the first rank. ``whole``: no steps were found, and the capture counts as
    one.
    """

    label: str
    summary: Summary
    parts: Mapping[str, Mapping[str | None, BlockSeries]]
    step_ns: tuple[int, ...]
    steps: int
    ranks: int = 1
    whole: bool = False

    def series(self, part: str) -> Mapping[str | None, BlockSeries]:
        """Return the series of a part."""
        return self.parts[part]


@dataclass(frozen=True)
class Side:
    """One or more captures of one program."""

    name: str
    captures: tuple[Captured, ...]
    notes: tuple[str, ...] = field(default=())


def _blocks(summary: Summary) -> dict[str, dict[str | None, BlockSeries]]:
    """Return the parts from the table `step_parts`."""
    rows = summary.typed_rows(step_parts.ROWS)
    steps = next((r["count"] for r in rows if r["part"] == "step"), None)
    if not steps:
        return {}
    counts = np.array(steps, np.int64)
    by_part: dict[str, dict[str | None, BlockSeries]] = {part: {} for part in PARTS}
    for row in rows:
        count = None if row["count"] is None or row["part"] == "step" else np.array(row["count"], np.int64)
        series = BlockSeries(np.array(row["ns"], np.int64), count, counts, row.get("cls"))
        by_part.setdefault(str(row["part"]), {})[row["name"]] = series
    return by_part


#: Work that no host delays, as a collective is that waits for the hosts of all ranks.
_HOST_FREE = (DeviceActivity.COMPUTE, DeviceActivity.COPY, DeviceActivity.MEMSET)
#: Causes of idle time that end when the GPU itself is ready: the host is not to blame.
GPU_CAUSES = tuple(cause.value for cause in Cause if Trait.GPUS_OWN in cause.trait)


def _work(parts: Mapping[str, Mapping[str | None, BlockSeries]]) -> dict[str | None, BlockSeries]:
    """Return "gpu_work", which does not depend on the host, and "rest", in which the device waits for host or other ranks.

    Together they are the step. Work is compute, copies, memsets and the gaps between queued kernels; communication belongs to
    the rest, because a collective waits for the hosts of all ranks.
    """
    step, ledger = parts["step"]["gpu"], parts["ledger"]
    chosen = [s for k, s in ledger.items() if k in _HOST_FREE]
    chosen += [s for k, s in parts["idle"].items() if k in GPU_CAUSES and len(s.ns) == len(step.ns)]
    work = sum((s.ns for s in chosen), np.zeros(len(step.ns), np.int64))
    return {"gpu_work": BlockSeries(work, None, step.steps), "rest": BlockSeries(step.ns - work, None, step.steps)}


def captured(summary: Summary, label: str, *, spans: bool = False) -> Captured:
    """Return one capture; with ``spans`` also one without steps, as a single step.

    Raises NsysxError, exit code 3 if its tables are damaged, 4 if nothing was measured.
    """
    try:
        parts, whole = _blocks(summary), summary.steps.whole
        rows = [r for r in rows_of(summary.steps) if r.get("steady") and r.get("gpu_ns") is not None]
        if not rows or not parts or (whole and not spans):
            hint = "Name the steps: nsysx run -- CMD does, or nsysx report FILE --step-range REGEX --json F"
            message = f"{label}: has no steady steps with GPU work, so nothing can be said per step"
            raise NsysxError(message, slug="no-steps", hint=hint, exit_code=EXIT_EMPTY)
        steps = tuple(int(ns) for r in rows if (ns := r["gpu_ns"]) is not None)
        parts["work"] = _work(parts)
        return Captured(label, summary, parts, steps, len(steps), whole=whole)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        message = f"{label}: the Summary is damaged ({type(error).__name__})"
        raise NsysxError(message, slug="bad-summary", exit_code=EXIT_INPUT) from error


def _window(c: Captured) -> tuple[int, int] | None:
    start, length = c.summary.capture.utc_epoch_ns, c.summary.capture.duration_ns
    return (start, start + length) if start is not None and length else None


def _rank_of(c: Captured) -> int | None:
    for probe in c.summary.capture.probe:
        if str(probe.get("rank") or "").isdecimal():
            return int(probe["rank"])
    return file_rank(c.label)


def _one_job(group: Sequence[Captured]) -> bool:
    """Return whether these captures ran at the same time as different ranks."""
    ranks = [_rank_of(c) for c in group]
    windows = [_window(c) for c in group]
    if None in ranks or len(set(ranks)) != len(group) or None in windows:
        return False
    recorded = [w for w in windows if w is not None]
    return max(a for a, _ in recorded) < min(b for _, b in recorded)


def _as_one_capture(group: Sequence[Captured]) -> Captured:
    """Return the ranks of one job as one capture: the mean rank. Their blocks match only if their step counts agree."""
    first = group[0]
    parts: dict[str, dict[str | None, BlockSeries]] = {}
    for part in [p for p in first.parts if all(p in c.parts for c in group)]:
        keys = dict.fromkeys(k for c in group for k in c.parts[part])
        parts[part] = {key: _mean(group, part, key) for key in keys}
    label = f"{first.label} and {len(group) - 1} more ranks"
    return Captured(
        label, first.summary, parts=parts, step_ns=first.step_ns, steps=first.steps, ranks=len(group), whole=first.whole
    )


def _mean(group: Sequence[Captured], part: str, key: str | None) -> BlockSeries:
    """Return the sum over ranks, over the steps of all ranks: per step, that is the mean rank."""
    some = next(s for c in group if (s := c.parts[part].get(key)) is not None)
    counted = some.count is not None
    all_steps = [next(iter(c.parts[part].values())).steps for c in group]
    aligned = all(len(s) == len(all_steps[0]) and (s == all_steps[0]).all() for s in all_steps)

    def series_at(c: Captured, steps: I64) -> tuple[I64, I64]:
        series = c.parts[part].get(key)
        zero = np.zeros(len(steps), np.int64)
        return (zero, zero) if series is None else (series.ns, zero if series.count is None else series.count)

    pairs = [series_at(c, s) for c, s in zip(group, all_steps, strict=True)]
    if aligned:
        ns, count = (np.sum([p[i] for p in pairs], axis=0) for i in (0, 1))
        return BlockSeries(ns, count if counted else None, np.sum(all_steps, axis=0), some.cls)
    ns, count = (np.array([int(sum(p[i].sum() for p in pairs))], np.int64) for i in (0, 1))
    return BlockSeries(ns, count if counted else None, np.array([int(sum(s.sum() for s in all_steps))]), some.cls)


def side(name: str, captures: Iterable[Captured]) -> Side:
    """Return a side; ranks of one job become one capture, and a note says so."""
    left, merged, notes = list(captures), [], []
    while left:
        group = [left.pop(0)]
        for other in list(left):
            if _one_job([*group, other]):
                group.append(other)
                left.remove(other)
        if len(group) > 1:
            notes.append(f"{name}: {len(group)} ranks of one job are one capture; figures are of the mean rank")
        merged.append(_as_one_capture(group) if len(group) > 1 else group[0])
    return Side(name, tuple(merged), tuple(notes))


def as_fine(sides: Sequence[Side]) -> tuple[list[Side], list[str]]:
    """Return the sides with modules only as deep as every capture knows their backward, and the modules that were folded.

    If the probe thinned its backward marks, or had none, a module's backward counts toward its parent.
    """
    has_backward: dict[str, list[bool]] = {}
    parent: dict[str, str] = {}
    for c in (c for s in sides for c in s.captures):
        for row in c.summary.typed_rows(modules.ROWS):
            path, above = row.get("path"), row.get("parent")
            if path and row.get("cls"):
                has_backward.setdefault(path, []).append(bool(row.get("backward_gpu_ns")))
                if above:
                    parent[path] = above
    folded = {p for p, seen in has_backward.items() if any(seen) and not all(seen) and p in parent}
    if not folded:
        return list(sides), []

    def up(path: str | None) -> str | None:
        seen = set()
        while path in folded and path not in seen:
            seen.add(path)
            path = parent[path]
        return path

    return [_with_modules(s, up) for s in sides], sorted(folded)


def renamed(chosen: Side, other: Side) -> tuple[Side, dict[str, str]]:
    """Return ``chosen`` with its modules named as in ``other`` if they are the same, and name in ``other`` -> name in ``chosen``."""
    have = renamed_modules.modules_of([dict(c.series("module") or c.series("module_compute")) for c in chosen.captures])
    want = renamed_modules.modules_of([dict(c.series("module") or c.series("module_compute")) for c in other.captures])
    new = renamed_modules.align(have, want)
    changed = {
        to: old for old, to in new.items() if old != to and renamed_modules.plain(old) != renamed_modules.plain(to)
    }
    return _with_modules(chosen, lambda path: new.get(path, path) if path else path), changed


def _with_modules(chosen: Side, called: Callable[[str | None], str | None]) -> Side:
    """Return a side with its modules under other names."""
    captures = []
    for c in chosen.captures:
        modules_in = {part: _merged(called, c.parts[part]) for part in ("module", "module_compute") if part in c.parts}
        captures.append(replace(c, parts={**c.parts, **modules_in}))
    return replace(chosen, captures=tuple(captures))


def _merged(
    called: Callable[[str | None], str | None], series: Mapping[str | None, BlockSeries]
) -> dict[str | None, BlockSeries]:
    """Return series under their new names; series that get the same name are added."""
    merged: dict[str | None, BlockSeries] = {}
    for key, s in series.items():
        to = called(key)
        if (old := merged.get(to)) is None:
            merged[to] = s
        else:
            count = None if old.count is None or s.count is None else old.count + s.count
            merged[to] = BlockSeries(old.ns + s.ns, count, s.steps, old.cls)
    return merged

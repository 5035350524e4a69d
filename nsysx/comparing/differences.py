"""Before, after and the difference per step of everything that both sides hold, with its uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nsysx.comparing import difference_intervals
from nsysx.comparing.comparing_bounds import ROW_FLOOR_SHARE, ROW_LEVEL, SAME_MEANS_SHARE
from nsysx.comparing.side import BlockSeries, Captured, Side
from nsysx.frames.statistics import block_length, mean_error, satterthwaite

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PartDifference:
    """One name of a part, per step on both sides. ``low_ns`` and ``high_ns`` bound the difference, None if unknown.

    They allow for ``drift_ns``, by which processes may differ: the verdict follows from the interval that is shown.
    ``status`` is both, added, removed or renamed (``now`` is then the name after); ``verdict`` is faster, slower, same or
    cannot_tell.
    """

    name: str | None
    cls: str | None
    before_ns: float
    after_ns: float
    low_ns: float | None
    high_ns: float | None
    drift_ns: float
    before_count: float | None
    after_count: float | None
    status: str
    verdict: str
    now: str | None = None

    @property
    def difference_ns(self) -> float:
        """After minus before."""
        return self.after_ns - self.before_ns


def _matrix(capture: Captured, part: str, keys: Sequence[str | None]) -> tuple[F64, int]:
    """Return the time per step of each key in each block, and the block length of this capture."""
    series = capture.series(part)
    some = next(iter(series.values()), None)
    if some is None:
        return np.zeros((len(keys), 0)), 1
    rows = np.zeros((len(keys), len(some.steps)))
    for i, key in enumerate(keys):
        if (s := series.get(key)) is not None:
            rows[i] = s.ns / s.steps
    step = capture.series("step").get("gpu")
    length = block_length(step.ns / step.steps) if step is not None else 1
    return rows, length


def _means(side: Side, part: str, keys: Sequence[str | None]) -> F64:
    """Return the mean per step of each key in each capture, shape (keys, captures)."""
    empty = BlockSeries(np.zeros(1, np.int64), None, np.ones(1, np.int64))
    return np.array([[c.series(part).get(k, empty).mean_ns for c in side.captures] for k in keys])


def _single_error(side: Side, part: str, keys: Sequence[str | None]) -> tuple[F64, float]:
    """Return the standard error of each key's mean from the steps of the side's only capture, and degrees of freedom."""
    rows, length = _matrix(side.captures[0], part, keys)
    return mean_error(rows, length)


def doubts(
    before: Side, after: Side, noise: Side | None, part: str, keys: Sequence[str | None]
) -> list[difference_intervals.Doubt]:
    """Return the doubt about the difference of each key, without drift."""
    a, b = _means(before, part, keys), _means(after, part, keys)
    n = _means(noise, part, keys) if noise is not None else np.zeros((len(keys), 0))
    measured = a.shape[1] > 1 or b.shape[1] > 1 or n.shape[1] > 1
    each = []
    if measured:
        scale = np.sqrt(1 / a.shape[1] + 1 / b.shape[1])
        for i in range(len(keys)):
            sd, df = difference_intervals.between([a[i], b[i], n[i]], (a[i].mean() + b[i].mean()) / 2)
            each.append(difference_intervals.Doubt(float(sd * scale), df, 0.0))
        return each
    (ea, da), (eb, db) = _single_error(before, part, keys), _single_error(after, part, keys)
    for x, y in zip(ea, eb, strict=True):
        error, df = satterthwaite((float(x), da), (float(y), db))
        each.append(difference_intervals.Doubt(error, df, 0.0))
    return each


def measured_between(before: Side, after: Side, noise: Side | None) -> bool:
    """Return whether the scatter between captures of one program is known."""
    return any(s is not None and len(s.captures) > 1 for s in (before, after, noise))


def _count(side: Side, part: str, key: str | None) -> float | None:
    counts = [s.mean_count for c in side.captures if (s := c.series(part).get(key)) is not None]
    recorded = [c for c in counts if c is not None]
    return sum(recorded) / len(side.captures) if recorded else None


def _cls(before: Side, after: Side, part: str, key: str | None) -> str | None:
    for side in (after, before):
        for c in side.captures:
            if (s := c.series(part).get(key)) is not None and s.cls:
                return s.cls
    return None


def table(
    before: Side,
    after: Side,
    noise: Side | None,
    part: str,
    *,
    step_ns: float,
    drift: float,
    now: dict[str, str] | None = None,
) -> list[PartDifference]:
    """Return one row per name of a part, the largest difference first.

    ``drift`` is the share by which processes may differ if that was not measured; ``now``: the new names of renamed rows;
    ``step_ns``: the step, of which a difference has to be ROW_FLOOR to count.
    """
    keys = list(dict.fromkeys(k for s in (before, after) for c in s.captures for k in c.series(part)))
    if not keys:
        return []
    unknown = 0.0 if measured_between(before, after, noise) else drift
    sure = doubts(before, after, noise, part, keys)
    a, b = _means(before, part, keys).mean(axis=1), _means(after, part, keys).mean(axis=1)
    present = [{k for c in s.captures for k in c.series(part)} for s in (before, after)]
    floor = ROW_FLOOR_SHARE * step_ns
    rows = []
    for i, key in enumerate(keys):
        old, new = float(a[i]), float(b[i])
        allowed = unknown * max(old, new)
        doubt = difference_intervals.Doubt(sure[i].error, sure[i].df, allowed)
        half = doubt.half(ROW_LEVEL) + allowed
        bounded = bool(np.isfinite(half))
        margin = max(SAME_MEANS_SHARE * old, floor)
        verdict = difference_intervals.judge(new - old, doubt, margin, ROW_LEVEL)
        if verdict in ("faster", "slower") and abs(new - old) < floor:
            verdict = "same"
        status = "both"
        if key not in present[0] or key not in present[1]:
            status = "removed" if key in present[0] else "added"
        elif now and key in now:
            status = "renamed"
        rows.append(
            PartDifference(
                name=key,
                cls=_cls(before, after, part, key),
                before_ns=old,
                after_ns=new,
                low_ns=new - old - half if bounded else None,
                high_ns=new - old + half if bounded else None,
                drift_ns=allowed,
                before_count=_count(before, part, key),
                after_count=_count(after, part, key),
                status=status,
                verdict=verdict,
                now=now.get(key) if now and key else None,
            )
        )
    return sorted(rows, key=lambda r: (-abs(r.difference_ns), r.name or ""))


def whole(values: Sequence[float], total: int) -> list[int]:
    """Return integers near ``values`` that sum to ``total`` exactly (largest remainder method)."""
    floors = [int(np.floor(v)) for v in values]
    left = total - sum(floors)
    order = sorted(range(len(values)), key=lambda i: (floors[i] - values[i], i))
    for n in range(abs(left)):
        floors[order[n % len(order)] if left > 0 else order[-1 - n % len(order)]] += 1 if left > 0 else -1
    return floors

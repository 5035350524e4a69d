"""Whether two runs compute the same: their parameters early on and at the end, and their losses.

Rounding in another order grows from step to step, and nobody can tell from weights that are far apart after many steps whether it
was that. After the first step it has not grown yet: then what the optimizer changed must agree to about half of its digits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from nsysx.trying.trial_bounds import (
    DIFFERENT_TIMES,
    DIVERGED_LOSS_TIMES,
    FLOAT64_SUMS_DIFFERENCE,
    LEAST_WEIGHT_DIFFERENCE,
    ROUNDING_TIMES,
)


@dataclass(frozen=True)
class RunDifference:
    """How far two runs are apart after the same steps, all relative; None where it is not known, infinite if not finite in one.

    ``weights``: of all parameters together after the last measured step; ``early_weights``: after ``early_steps``. ``first_update``
    and ``early_update``: in what the optimizer had changed until then, after its first step and after ``early_steps``; 1 is all of
    it. ``loss``: in the last step.
    """

    weights: float | None = None
    loss: float | None = None
    early_steps: int | None = None
    early_weights: float | None = None
    first_update: float | None = None
    early_update: float | None = None


def difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> RunDifference:
    """Return how far run ``b`` is from run ``a``, from their records; of one that was cut short only the early steps tell.

    So of one whose changes were turned off after the warm-up; nothing is compared with its results.
    """
    if a.get("turned_off"):
        return RunDifference()
    whole = a["steps"] == b["steps"] and not b.get("turned_off")
    loss = _loss(a, b) if whole else None
    old, new = _points(a), _points(b)
    *earlier, last = steps = list(old) or [0]
    if not old or not new or (steps if whole else earlier) != (list(new) if whole else list(new)[:-1]):
        return RunDifference(loss=loss)
    weights = _distance(old[last], new[last]) if whole else None
    if len(earlier) < 2:
        return RunDifference(weights, loss)
    begin, first, early = earlier[0], earlier[1], earlier[-1]
    updates = [_of_update(old, new, begin, steps) for steps in (first, early)]
    return RunDifference(weights, loss, early, _distance(old[early], new[early]), *updates)


def largest(every: Iterable[RunDifference]) -> RunDifference:
    """Return the largest of each difference."""
    every = list(every)
    values = ([getattr(d, f.name) for d in every if getattr(d, f.name) is not None] for f in fields(RunDifference))
    return RunDifference(*(max(v, default=None) for v in values))


def of_unchanged(records: Sequence[Mapping[str, Any]]) -> RunDifference:
    """Return the largest differences between two unchanged runs, one after the other, whichever of them is not finite."""
    pairs = [*itertools.pairwise(records), *itertools.pairwise(records[::-1])]
    return largest(difference(a, b) for a, b in pairs)


def unseeded(records: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether unchanged runs are further apart early on than rounding explains: no seed decides what they compute.

    What is the same early on and differs later is no lack of a seed: atomic sums round differently in each run.
    """
    apart = of_unchanged(records)
    epsilon = max((rounding(r, r)[0] for r in records), default=0.0)
    return bool(apart.early_update) and bool(beyond_rounding(apart, epsilon, RunDifference()))


def rounding(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[float, str]:
    """Return the relative spacing of the coarsest numbers that one of two runs computed with, and their name; (0, "") if unknown."""
    kinds = [(w["epsilon"], w["numbers"]) for r in (a, b) if (w := r.get("weights")) and w.get("epsilon")]
    return max(kinds, default=(0.0, ""))


def beyond_rounding(seen: RunDifference, epsilon: float, unchanged: RunDifference) -> bool | None:
    """Return whether runs are further apart than rounding and unchanged runs explain, None if that cannot be told.

    It is told by the first update, and by that after a few steps: what rounding does until then grows, so more of it is allowed.
    """
    if not epsilon or seen.first_update is None or seen.early_update is None:
        return None
    if seen.early_update == 0 and seen.weights is not None:
        return _weights_differ(seen.weights, unchanged)  # what was the same diverged later
    limits = (ROUNDING_TIMES * epsilon**0.5, ROUNDING_TIMES * epsilon**0.25)
    return any(
        share > max(limit, DIFFERENT_TIMES * (noise or 0.0))
        for share, limit, noise in zip(
            (seen.first_update, seen.early_update), limits, (unchanged.first_update, unchanged.early_update), strict=True
        )
    )  # fmt: skip


def computes_other(alters: str, seen: RunDifference, beyond: bool | None, unchanged: RunDifference) -> bool:
    """Return whether a change alters results more than it should. A bound computes something else on purpose.

    Of changes that alter rounding or random numbers nobody knows how much they should: see `diverged`.
    """
    if alters == "computation":
        return True
    if alters == "numerics":
        return False
    if beyond is None:
        return seen.weights is not None and _weights_differ(seen.weights, unchanged)
    return beyond


def _weights_differ(weights: float, unchanged: RunDifference) -> bool:
    return weights > max(DIFFERENT_TIMES * (unchanged.weights or 0.0), LEAST_WEIGHT_DIFFERENCE)


def diverged(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Return whether the loss of the last step of ``b`` is far above all losses that are known of ``a``."""
    unchanged = [v for which in ("first", "last") for v in (a.get("losses") or {}).get(which) or []]
    last = (b.get("losses") or {}).get("last") or []
    return bool(unchanged and last) and min(unchanged) > 0 and max(last) > DIVERGED_LOSS_TIMES * max(unchanged)


def broken(seen: RunDifference) -> bool:
    """Return whether a loss or a weight is not finite although it is without the change."""
    return any(d is not None and math.isinf(d) for d in (seen.weights, seen.loss, seen.early_weights))


def _points(record: Mapping[str, Any]) -> dict[int, Mapping[str, list[float]]]:
    return {point["steps"]: point for point in (record.get("weights") or {}).get("points", ())}


def _distance(old: Mapping[str, list[float]], new: Mapping[str, list[float]]) -> float | None:
    """Return how far the parameters are apart, over their norm."""
    if len(old["norms"]) != len(new["norms"]):
        return None
    if not all(map(math.isfinite, old["norms"])):
        return None
    if not all(map(math.isfinite, new["norms"])):
        return float("inf")
    norms = math.hypot(*old["norms"])
    norms_differ = math.dist(old["norms"], new["norms"])
    apart = max(norms_differ, _length(old, new))
    return apart / norms if apart > FLOAT64_SUMS_DIFFERENCE * norms else 0.0


def _of_update(old: Mapping[int, Any], new: Mapping[int, Any], begin: int, after: int) -> float | None:
    """Return how far the parameters are apart after some steps, over how far they are from where they began."""
    apart = _distance(old[after], new[after])
    if not apart or math.isinf(apart):
        return apart
    update = max(_length(runs[begin], runs[after]) for runs in (old, new))
    return _length(old[after], new[after]) / update if update else None


def _length(a: Mapping[str, list[float]], b: Mapping[str, list[float]]) -> float:
    """Return the norm of a difference of all parameters, from their projections."""
    if len(a["norms"]) != len(b["norms"]) or not a["norms"]:
        return math.nan
    return math.dist(a["projections"], b["projections"]) / math.sqrt(len(a["projections"]) / len(a["norms"]))


def _loss(a: Mapping[str, Any], b: Mapping[str, Any]) -> float | None:
    """Return the relative difference of the losses of the last step.

    None if unknown or not finite in ``a``; infinite if not finite in ``b`` only.
    """
    old, new = ((r.get("losses") or {}).get("last") or [] for r in (a, b))
    if not old or len(old) != len(new):
        return None
    if not all(map(math.isfinite, old)):
        return None
    if not all(map(math.isfinite, new)):
        return float("inf")
    scale = max(max(map(abs, old)), max(map(abs, new)))
    return max(abs(x - y) for x, y in zip(old, new, strict=True)) / scale if scale else 0.0

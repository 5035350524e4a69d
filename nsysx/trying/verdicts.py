"""What the pairs of runs allow to say about a change, and whether it computes the same."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nsysx.comparing.statistics import MARGIN, Doubt, judge

#: Confidence of an interval. It is looked at after each pair, so it is higher than that of one look.
LEVEL = 0.98
#: A change that should only alter speed, and weights that differ this much more than those of unchanged runs: it is not the same.
_FACTOR, _LEAST_DIFFERENCE = 10.0, 1e-4


class Gain(NamedTuple):
    """Changed over unchanged step: the estimate, its interval, and the verdict."""

    ratio: float
    low: float
    high: float
    verdict: str


def scatter(steps: Sequence[float]) -> float:
    """Return the relative standard deviation of unchanged runs, from their successive differences: a drift is not in it.

    von Neumann 1941: half the mean square of successive differences. NaN with less than three runs.
    """
    if len(steps) < 3:
        return float("nan")
    logs = [math.log(s) for s in steps]
    return math.sqrt(sum((b - a) ** 2 for a, b in itertools.pairwise(logs)) / (2 * (len(logs) - 1)))


def gain(pairs: Sequence[tuple[float, float]], unchanged: Sequence[float]) -> Gain:
    """Return the gain from pairs (unchanged, changed) of steps: the median of their ratios, with Student's interval of the logs.

    The error is at least that which the scatter of all ``unchanged`` runs gives: three pairs may agree by chance. Degrees of
    freedom are those of the pairs, and those of the unchanged runs as far as their scatter explains that of the pairs: if changed
    runs scatter more, it does not.
    """
    logs = [math.log(b / a) for a, b in pairs]
    n = len(logs)
    if n < 2:
        ratio = math.exp(statistics.median(logs)) if logs else float("nan")
        return Gain(ratio, 0.0, float("inf"), "cannot_tell")
    error, df = statistics.stdev(logs) / math.sqrt(n), float(n - 1)
    floor = scatter(unchanged) * math.sqrt(2 / n)
    if math.isfinite(floor):
        explained = 1.0 if floor >= error else (floor / error) ** 2
        error, df = max(error, floor), df + explained * (len(unchanged) - 1)
    middle = statistics.median(logs)
    doubt = Doubt(error, df, 0.0)
    half = doubt.half(LEVEL)
    return Gain(math.exp(middle), math.exp(middle - half), math.exp(middle + half), judge(middle, doubt, MARGIN, LEVEL))


def gain_of_blocks(pairs: Sequence[tuple[float, float]]) -> Gain:
    """Return the gain from pairs of blocks of one process: the median of their ratios, with the interval of the sign test.

    Its ends are two of the ratios themselves, so a block in which another program had the CPU widens nothing. Conover 1999,
    Practical Nonparametric Statistics, section 3.2.
    """
    logs = sorted(math.log(b / a) for a, b in pairs)
    n, out = len(logs), 0
    while 2 * sum(math.comb(n, k) for k in range(out + 1)) <= (1 - LEVEL) * 2**n:
        out += 1  # so many on each side are outside
    middle = statistics.median(logs) if logs else float("nan")
    if not out:
        return Gain(math.exp(middle), 0.0, float("inf"), "cannot_tell")
    low, high = logs[out - 1], logs[n - out]
    verdict = "faster" if high < 0 else "slower" if low > 0 else "cannot_tell"
    if low >= -MARGIN and high <= MARGIN:
        verdict = "same"
    return Gain(math.exp(middle), math.exp(low), math.exp(high), verdict)


def weights_difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> float | None:
    """Return the largest relative difference between parameters of two runs after the same steps; None if unknown.

    That of one parameter is the larger of the differences of its norm and its projection, divided by its norm. It is infinite
    if a number is not finite in ``b`` only, and not known if one is not finite in ``a``.
    """
    old, new = a.get("weights"), b.get("weights")
    if not old or not new or not old["norms"] or len(old["norms"]) != len(new["norms"]) or a["steps"] != b["steps"]:
        return None
    largest = 0.0
    for norm, norm_b, wave, wave_b in zip(
        old["norms"], new["norms"], old["projections"], new["projections"], strict=True
    ):
        if not math.isfinite(norm):
            return None
        if not math.isfinite(norm_b):
            return float("inf")
        scale = max(norm, norm_b)
        if scale:
            largest = max(largest, abs(norm - norm_b) / scale, abs(wave - wave_b) / scale)
    return largest


def loss_difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> float | None:
    """Return the relative difference of the losses of the last step.

    None if unknown or not finite in ``a``; infinite if not finite in ``b`` only.
    """
    old, new = ((r.get("losses") or {}).get("last") or [] for r in (a, b))
    if not old or len(old) != len(new) or a["steps"] != b["steps"]:
        return None
    if not all(map(math.isfinite, old)):
        return None
    if not all(map(math.isfinite, new)):
        return float("inf")
    scale = max(max(map(abs, old)), max(map(abs, new)))
    return max(abs(x - y) for x, y in zip(old, new, strict=True)) / scale if scale else 0.0


def broken(differences: Sequence[float | None]) -> bool:
    """Return whether a loss or a weight is not finite although it is without the change."""
    return any(d is not None and math.isinf(d) for d in differences)


def computes_other(alters: str, difference: float | None, unchanged: float | None) -> bool:
    """Return whether a change that should alter only speed or memory alters weights more than runs differ by themselves.

    A bound computes something else on purpose.
    """
    if alters == "computation":
        return True
    if alters == "numerics" or difference is None:
        return False
    return difference > max(_FACTOR * (unchanged or 0.0), _LEAST_DIFFERENCE)

"""What the pairs of runs and of blocks of steps allow to say about the time of a step."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from nsysx.comparing.comparing_bounds import SAME_MEANS_SHARE
from nsysx.comparing.difference_intervals import Doubt, judge
from nsysx.trying.trial_bounds import FEWEST_PAIRS, PAIRS_LEVEL, SAME_STEP_SHARE, START_SCATTER
from nsysx.units import several, share

#: An interval that is wider than this on a side (log of a ratio) says nothing: two runs give ends such as 1e32.
_NO_INTERVAL = math.log(11)


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


def gain(pairs: Sequence[tuple[float, float]], unchanged: Sequence[float], noise: float = 0.0) -> Gain:
    """Return the gain from pairs (unchanged, changed) of steps: the median of their ratios, with Student's interval of the logs.

    Fewer pairs than tell their own scatter have an assumed one; ``noise`` is what the steps within those runs add to it (log).

    The error is at least that which the scatter of all ``unchanged`` runs gives: three pairs may agree by chance. Degrees of
    freedom are those of the pairs, and those of the unchanged runs as far as their scatter explains that of the pairs: if changed
    runs scatter more, it does not.
    """
    logs = [math.log(b / a) for a, b in pairs]
    n = len(logs)
    if n < FEWEST_PAIRS:
        return _of_few(logs, noise)
    error, df = statistics.stdev(logs) / math.sqrt(n), float(n - 1)
    floor = scatter(unchanged) * math.sqrt(2 / n)
    if math.isfinite(floor):
        explained = 1.0 if floor >= error else (floor / error) ** 2
        error, df = max(error, floor), df + explained * (len(unchanged) - 1)
    middle = statistics.median(logs)
    doubt = Doubt(error, df, 0.0)
    half = doubt.half(PAIRS_LEVEL)
    if half > _NO_INTERVAL:
        return Gain(math.exp(middle), 0.0, float("inf"), "cannot_tell")
    verdict = judge(middle, doubt, SAME_MEANS_SHARE, PAIRS_LEVEL)
    if verdict == "cannot_tell" and _is_same(middle - half, middle + half):
        verdict = "same"
    return Gain(math.exp(middle), math.exp(middle - half), math.exp(middle + half), verdict)


def _of_few(logs: Sequence[float], noise: float) -> Gain:
    """Return the gain from one or two pairs (logs of ratios), whose runs differ as much as those of other programs do.

    Two that differ by more than that show that this program's differ more: then nothing is known.
    """
    middle = statistics.median(logs) if logs else float("nan")
    error = math.hypot(START_SCATTER, noise) * math.sqrt(2 / max(len(logs), 1))
    half = Doubt(error, float("inf"), 0.0).half(PAIRS_LEVEL)
    if not logs or not half < _NO_INTERVAL or max(abs(log - middle) for log in logs) > half:
        return Gain(math.exp(middle), 0.0, float("inf"), "cannot_tell")
    verdict = "faster" if middle + half < 0 else "slower" if middle - half > 0 else "cannot_tell"
    return Gain(math.exp(middle), math.exp(middle - half), math.exp(middle + half), verdict)


def basis_of_few(pairs: int) -> str:
    """Return what the interval of so few pairs of runs rests on."""
    return f"from {several(pairs, 'pair')} of runs: it is assumed that two starts differ by {share(START_SCATTER, 1)}"


def _is_same(low: float, high: float) -> bool:
    """Return whether an interval (logs of ratios) that holds no change holds no change that is worth a word either."""
    return -SAME_STEP_SHARE <= low <= 0 <= high <= SAME_STEP_SHARE


def gain_of_blocks(pairs: Sequence[tuple[float, float]]) -> Gain:
    """Return the gain from pairs of blocks of one process: the median of their ratios, with the interval of the sign test.

    Its ends are two of the ratios themselves, so a block in which another program had the CPU widens nothing. Conover 1999,
    Practical Nonparametric Statistics, section 3.2.
    """
    logs = sorted(math.log(b / a) for a, b in pairs)
    n, out = len(logs), 0
    while 2 * sum(math.comb(n, k) for k in range(out + 1)) <= (1 - PAIRS_LEVEL) * 2**n:
        out += 1  # so many on each side are outside
    middle = statistics.median(logs) if logs else float("nan")
    if not out:
        return Gain(math.exp(middle), 0.0, float("inf"), "cannot_tell")
    low, high = logs[out - 1], logs[n - out]
    verdict = "faster" if high < 0 else "slower" if low > 0 else "cannot_tell"
    if (low >= -SAME_MEANS_SHARE and high <= SAME_MEANS_SHARE) or _is_same(low, high):
        verdict = "same"
    return Gain(math.exp(middle), math.exp(low), math.exp(high), verdict)

"""Steps right behind a window that are slower than all that follow: nsys still writes what it has recorded, on the host of the program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nsysx.events.event_bounds import (
    FEWEST_SETTLED_SHARE,
    FEWEST_SETTLED_STEPS,
    FEWEST_UNSETTLED_STEPS,
    LEAST_SETTLED_SCORE,
    SETTLED_DECILES_SHARE,
    UNSETTLED_SHARE,
    UNSETTLED_SPREADS,
)


def unsettled(steps_ns: Sequence[int]) -> int:
    """Return how many of these steps (ns) stand before the rest has settled, 0 where the first are like the others.

    The border is where the ranks of the lengths before and behind it differ most (Mann and Whitney's U as a standard score: Pettitt,
    "A non-parametric approach to the change-point problem", 1979). Steps that come and go in length, by a period or because the host
    drifts, have no such border: most of those before it are longer than most of those behind it, by more than these spread.
    Those behind it must be steady in themselves: where they wander, too, that they are shorter on the whole is the host's drift.
    """
    count, ns = len(steps_ns), np.asarray(steps_ns, np.float64)
    fewest = max(FEWEST_SETTLED_STEPS, int(np.ceil(FEWEST_SETTLED_SHARE * count)))
    if count < FEWEST_UNSETTLED_STEPS + fewest:
        return 0
    ranks = np.empty(count)
    ranks[ns.argsort(kind="stable")] = np.arange(1, count + 1)
    first = np.arange(FEWEST_UNSETTLED_STEPS, count - fewest + 1)
    over = np.cumsum(ranks)[first - 1] - first * (first + 1) / 2
    scores = (over - first * (count - first) / 2) / np.sqrt(first * (count - first) * (count + 1) / 12)
    border = int(first[scores.argmax()])
    before, behind = ns[:border], ns[border:]
    low, usual, high = np.quantile(behind, (0.25, 0.5, 0.75))
    apart = float(np.subtract(*np.quantile(behind, (0.9, 0.1))))
    longer = float(np.median(before) - usual)
    clear = (
        scores.max() >= LEAST_SETTLED_SCORE
        and np.quantile(before, 0.25) > high
        and longer > max(UNSETTLED_SHARE * usual, UNSETTLED_SPREADS * (high - low), apart)
        and apart < SETTLED_DECILES_SHARE * usual
    )
    return border if clear else 0

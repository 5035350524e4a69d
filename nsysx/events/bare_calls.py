"""Bare steps of a program that only infers which were single calls of its networks: what repeats was not known yet when they ran.

The calls of several networks have to come three times before the probe knows the round that they make (`call_periods`). Until then each
call may have begun a step: a twentieth of what a sampler that calls its network twenty times for an image has later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nsysx.events.event_bounds import CALLS_ALONE_TIMES, FEWEST_CALLS_ALONE


def single_calls(record: Mapping[str, Any], steps_ns: Sequence[int]) -> int:
    """Return how many of the bare steps (ns) between the windows were single calls, which are the first of them.

    The probe has counted more ranges of steps than there were steps: so many calls, or up to twice as many where two make a step, began a
    range of their own. The border is where two means tell most of the lengths' logarithms; nearly all steps behind it are far longer.
    """
    surplus, ns = _surplus(record), np.asarray(steps_ns, np.float64)
    last = min(len(ns) - 1, 2 * surplus)
    if surplus < FEWEST_CALLS_ALONE or last < 1:
        return 0
    logs = np.log(ns)
    first = np.arange(1, last + 1)
    whole, upto = logs.sum(), np.cumsum(logs)[first - 1]
    told = upto**2 / first + (whole - upto) ** 2 / (len(ns) - first)
    border = int(first[told.argmax()])
    short, long = np.quantile(ns[:border], 0.9), np.quantile(ns[border:], 0.1)
    return border if long >= CALLS_ALONE_TIMES * short else 0


def _surplus(record: Mapping[str, Any]) -> int:
    """Return how many more ranges of steps than steps there were in a program that only infers, 0 where the probe does not say so."""
    noted = record.get("steps")
    if not isinstance(noted, Mapping) or not str(noted.get("rule")).startswith("forward/"):
        return 0
    ranges, count = noted.get("ranges"), noted.get("count")
    return ranges - count if isinstance(ranges, int) and isinstance(count, int) else 0

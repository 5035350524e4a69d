"""The steps of a run, from its record: how long one is, how sure that is, and the pairs of blocks with and without the changes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from nsysx.trying.trial_bounds import BLOCKS_OF_STEPS


def step_of(record: Mapping[str, Any]) -> float:
    """Return the length of a step (ns) from the measured ones of a record, NaN if there is none."""
    means = _block_means(record) or measured_steps(record)
    return float(statistics.median(means)) if means else float("nan")


def noise_of(record: Mapping[str, Any]) -> float:
    """Return the error that the scatter of a run's own steps gives `step_of` (log of a ratio), infinite for too few steps."""
    means = _block_means(record)
    if len(means) < BLOCKS_OF_STEPS or min(means) <= 0:
        return float("inf")
    # The error of a median of normal values is 1.25 times that of their mean.
    return 1.25 * statistics.stdev(map(math.log, means)) / math.sqrt(BLOCKS_OF_STEPS)


def _block_means(record: Mapping[str, Any]) -> list[float]:
    """Return the mean step (ns) of each of the blocks of a record's measured steps, [] for fewer steps than blocks."""
    lengths = measured_steps(record)
    size = len(lengths) // BLOCKS_OF_STEPS
    lengths = lengths[len(lengths) - size * BLOCKS_OF_STEPS :]
    return [sum(lengths[i : i + size]) / size for i in range(0, len(lengths), size)] if size else []


def measured_steps(record: Mapping[str, Any]) -> list[int]:
    """Return the length of each measured step (ns)."""
    first, end = record["warm"], record["steps"]
    return [ns for number, ns in record["steps_ns"].items() if first <= int(number) < end]


def pairs_of(record: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Return the mean step (ns) of each whole pair of blocks in a record: without the changes, with them."""
    lengths = record.get("steps_ns", {})
    means: list[tuple[bool, float]] = []
    for on, first, end in record.get("blocks", ()):
        steps = [lengths.get(str(number)) for number in range(first, end)]
        if None in steps or not steps or sum(steps) <= 0:
            break
        means.append((on, statistics.fmean(steps)))
    ordered = (sorted(pair) for pair in zip(means[::2], means[1::2], strict=False))
    return [(off, on) for (_, off), (_, on) in ordered]

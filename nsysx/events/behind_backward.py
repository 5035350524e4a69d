"""What is launched between a backward and the next forward: what is done with gradients and weights, not with activations."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.events.nvtx_ranges import Flags


def behind_backward(ops: pl.DataFrame, chosen: pl.DataFrame) -> Flags:
    """Return which of the ``chosen`` GPU ops were launched behind a backward and before the next forward of all ``ops`` of the process."""
    phase, start = ops["phase"].cast(pl.String), ops["call_start_ns"]
    last = []
    for name in ("forward", "backward"):
        times = np.sort(start.filter((phase == name).fill_null(value=False) & start.is_not_null()).to_numpy())
        launched_before = np.searchsorted(times, chosen["call_start_ns"].to_numpy())
        last.append(np.append(-1, times)[launched_before])
    return np.asarray(last[1] > last[0], np.bool_)

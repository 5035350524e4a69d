"""Passes over prompts among steps of which each is the pass over one token: every nth step, longer than the others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.events import bare, trend
from nsysx.events.cached_passes import cached_pass
from nsysx.findings._case import Case
from nsysx.findings._finding_bounds import SLOW_STEP_SHARE
from nsysx.findings._work_bounds import PROMPT_PASS_SHARE


class Prompts(NamedTuple):
    """A prompt writes ``rows`` into the cache, as an X-ray step shows whose work on the GPU takes ``gpu_ns``; it comes ``every`` so many
    steps.
    """

    rows: int
    every: int
    gpu_ns: int


def prompts_of(case: Case) -> Prompts | None:
    """Return how prompts come, None where no X-ray step is the pass over one, or the long steps are not as long as that."""
    cached, stretches = cached_pass(case.profile), bare.stretches(case.profile.trace.capture, case.process)
    ns = np.concatenate(stretches)
    if cached is None or not cached.prompt or not len(ns):
        return None
    usual = float(np.median(ns))
    rhythm = trend.period_of_parts(stretches, SLOW_STEP_SHARE * usual)
    start, end = cached.prompt_ns
    sent = pl.col("call_start_ns").is_between(start, end) & (pl.col("process") == case.process)
    work = case.profile.attributed.gpu_ops.filter(sent)
    gpu_ns = int((work["end_ns"] - work["start_ns"]).sum())
    if rhythm is None or abs(gpu_ns - usual - rhythm.excess_ns) > PROMPT_PASS_SHARE * gpu_ns:
        return None
    return Prompts(cached.prompt, rhythm.every, gpu_ns)

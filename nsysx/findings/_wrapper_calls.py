"""Calls of DDP's wrapper that train nothing: evaluations and rollouts between steps that call it as the steps do.

Its forward sends the module's buffers from rank 0 to all ranks before the network runs, so that ranks wait for each other there. With
gradients enabled, as in ``eval()`` without ``torch.no_grad()``, it does so in each call. Without them the first call behind a step that
trains does, and no further one: nothing of what the others cost is an exchange.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.catalogue import Call, DeviceActivity
from nsysx.events.recorded_settings import file_and_line, settings_of
from nsysx.findings._case import Case
from nsysx.findings._costly_jobs import ddp
from nsysx.findings._finding_bounds import EACH_ROUND_SHARE, POLICY_CALLS
from nsysx.frames.intervals import I64, interval_of, union
from nsysx.model import Row
from nsysx.reading import nccl_notes
from nsysx.records import whole_number


class WrapperCalls(NamedTuple):
    """``calls`` of a network in ``stretches`` recorded stretches between steps; in ``sending`` of them DDP sent its ``buffers`` in
    ``messages`` broadcasts all together, which take ``gpu_ns`` on the GPU, waiting for other ranks included, and the host ``host_ns``
    from the beginning of a call to the end of what it launches for them at most. ``share``: both together, of the recorded time there.
    """

    calls: int
    stretches: int
    sending: int
    messages: int
    buffers: int
    host_ns: int
    gpu_ns: int
    share: float
    line: Row

    @property
    def in_each(self) -> bool:
        """Whether nearly each call sends."""
        return self.calls >= POLICY_CALLS * self.stretches and self.sending >= EACH_ROUND_SHARE * self.calls

    def sentence(self) -> str:
        """Return what was seen."""
        each = f"{units.several(self.buffers, 'buffer')} of rank 0 in {units.several(round(self.messages / self.sending), 'message')}"
        if not self.in_each:
            return (
                f"The network is called through DDP's wrapper. Without gradients that sends {each} in the first call alone; in all of them "
                "the wrapper runs code of its own, which the bare module has not."
            )
        return (
            f"DDP's wrapper is called {units.count(round(self.calls / self.stretches))} times there with gradients enabled, and nothing is "
            f"trained: each call sends {each}, in which ranks wait for each other, and keeps what a backward would need. All together that "
            f"took {units.duration(self.host_ns)} of the host and {units.duration(self.gpu_ns)} of the GPU in "
            f"{units.several(self.calls, 'recorded call')}."
        )


def wrapper_calls(case: Case) -> WrapperCalls | None:
    """Return the calls of a DDP wrapper between the steps of the shown process, None where none is seen to send buffers there."""
    settings = settings_of(case.profile)
    wrapper = None if settings is None else ddp(settings)
    buffers = whole_number(wrapper.get("buffers")) if wrapper is not None else None
    if settings is None or wrapper is None or wrapper.get("broadcast_buffers") is not True or not buffers:
        return None
    profile = case.profile
    steps = profile.steps.cpu.filter(profile.steps.cpu["process"] == case.process)
    between = profile.steps.between.filter(pl.col("process") == case.process)
    if not steps.height or not between.height:
        return None
    thread = int(steps["thread"][0])
    begin, end = union(between["cpu_start_ns"].to_numpy(), between["cpu_end_ns"].to_numpy())
    spans = profile.attributed.phase_spans.filter(
        (pl.col("thread") == thread) & pl.col("phase").cast(pl.String).is_in(["forward", "evaluation"])
    ).sort("start_ns")
    spans = spans.filter(pl.Series(interval_of(spans["start_ns"].to_numpy(), begin, end) >= 0, dtype=pl.Boolean))
    start, until = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    ops = profile.attributed.gpu_ops.filter((pl.col("thread") == thread) & pl.col("call_start_ns").is_not_null())
    ops = ops.with_columns(pl.Series("span", interval_of(ops["call_start_ns"].to_numpy(), start, until))).filter(
        pl.col("span") >= 0
    )
    names = ops["name"].cast(pl.String).fill_null("").to_list()
    sends = (ops["cls"] == DeviceActivity.COMM.value).fill_null(value=False).to_numpy() & np.array(
        [nccl_notes.kind_of(name) == "broadcast" for name in names], np.bool_
    )
    sent = ops.filter(pl.Series(sends, dtype=pl.Boolean))
    sending = np.unique(sent["span"].to_numpy())
    if not len(sending) or sent.height > buffers * len(sending):
        return None  # more than the buffers: the network exchanges by itself
    gpu_ns = int((sent["end_ns"] - sent["start_ns"]).sum())
    host_ns = _host_ns(case, thread, (start, until), sent, buffers)
    rows = [row for row in settings.rows("evaluations") or () if row.get("calls")]
    line = file_and_line(rows[-1].get("place")) if rows else {}
    whole = int((end - begin).sum())
    return WrapperCalls(
        len(start),
        len(np.unique(interval_of(start, begin, end))),
        len(sending),
        sent.height,
        buffers,
        host_ns,
        gpu_ns,
        min((host_ns + gpu_ns) / max(whole, 1), 1.0),
        line,
    )


def _host_ns(case: Case, thread: int, spans: tuple[I64, I64], sent: pl.DataFrame, buffers: int) -> int:
    """Return the host's time (ns) from the beginning of each call that sends to the end of the last launch that this can need.

    Behind the last broadcast each buffer is copied out of its message, in a launch of its own at most.
    """
    start, until = spans
    calls = case.profile.attributed.api_calls.filter(
        (pl.col("thread") == thread)
        & pl.col("kind").cast(pl.String).is_in([*Call.LAUNCHES, Call.COPY])
        & (pl.col("gpu_ops") > 0)
    ).sort("start_ns")
    begun, ended = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    last = sent.group_by("span").agg(pl.col("call_start_ns").max())
    total = 0
    for span, sent_ns in last.iter_rows():
        behind = min(int(np.searchsorted(begun, sent_ns)) + buffers, len(ended) - 1)
        total += int(min(ended[behind], until[span]) - start[span])
    return total

"""NSX107 inflated-event: a torch.cuda.Event pair reads more than the kernels between its records took.

What it means
    elapsed_time is the time between two points of a stream, not the time of kernels. When the stream is empty at the first
    record, the window holds the CPU's launch time; copies inside it count; work of other streams can delay it.

In the trace
    Between the two records the stream is empty until the launch arrives ("launch wait"), or a copy runs.

Bad
    start.record(); y = F.linear(x.cuda(), w.cuda()); end.record()

Good
    x, w = x.cuda(), w.cuda()
    for _ in range(10): F.linear(x, w)                # first calls out of the way
    torch.cuda._sleep(1_000_000)                      # keeps the stream busy while the CPU launches
    start.record(); y = F.linear(x, w); end.record()
    # or: torch.utils.benchmark.Timer(...).blocked_autorange()

Harmless when
    The window is long against its idle parts, or the time of the whole sequence, launches included, is what is asked for.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx import units
from nsysx.findings._case import NO_SAVING, Case, Rule, in_module
from nsysx.model import Finding, Row

RULE = Rule("NSX107", "inflated-event", "Inflated cuda.Event windows")
_PARTS = {
    "copy_ns": "copies",
    "memset_ns": "memsets",
    "launch_wait_ns": "waiting for the CPU to launch",
    "other_streams_ns": "work of other streams",
    "idle_ns": "start latency and dependencies",
}
_SITES = 4
#: A reading is inflated from this much above the kernels on.
_OFF = 0.1


def _times_itself(case: Case) -> bool:
    """Return whether DistributedDataParallel reads the events: the main thread asks for none outside of its forward.

    elapsed_time shows as two cudaEventQuery; threads that watch over communication query events too, and time nothing.
    """
    calls = case.profile.attributed.api_calls
    main = case.profile.steps.cpu.filter(pl.col("process") == case.process)["thread"].unique()
    asks = calls["name"].is_in(["cudaEventQuery", "cudaEventSynchronize", "cudaEventElapsedTime"])
    read = calls.filter(asks & calls["thread"].is_in(main.implode()))
    if not read.height:
        return False
    spans = case.profile.ranges.ranges.filter(
        pl.col("cls").cast(pl.String).str.contains("DistributedDataParallel")
        | pl.col("label").cast(pl.String).str.contains("DistributedDataParallel")
    )
    within = np.zeros(read.height, np.bool_)
    thread, start = read["thread"].to_numpy(), read["start_ns"].to_numpy()
    for of, a, b in spans.select("thread", "start_ns", "end_ns").iter_rows():
        within |= (thread == of) & (start >= a) & (start < b)
    return bool(within.all())


def _usual(case: Case, row: Row) -> tuple[str, dict[str, int]]:
    """Return which windows of a place are usual, in words, and the sums of their parts: all but the first, which pays once."""
    parts = ("kernel_ns", *_PARTS)
    windows = (
        [] if case.missing("event_windows") else [w for w in case.rows("event_windows") if w["site"] == row["site"]]
    )
    if len(windows) != row["windows"] or len(windows) < 2:
        return "the readings", {k: row[k] for k in parts}
    later = sorted(windows, key=lambda w: int(w["start_ns"]))[1:]
    return "the readings after the first", {k: sum(w[k] for w in later) for k in parts}


def check(case: Case) -> list[Finding]:
    """Return a finding per place whose event pairs read 10 % or more above the kernels inside."""
    if missing := case.missing("events"):
        if case.profile.recorded("event"):
            return case.clear(RULE, "the program reads no pair of events")
        return case.cannot_tell(RULE, missing)
    found: list[Finding] = []
    if _times_itself(case):
        return case.clear(RULE, "only DistributedDataParallel reads events here, for its own statistics")
    for row in case.rows("events"):
        kernel = row["kernel_median_ns"]
        if row["verdict"] == "kernel" or not row["kernel_ns"] or len(found) == _SITES:
            continue
        # A sum can be off because of one window; what people read is the usual one.
        if row["median_ns"] < (1 + _OFF) * kernel:
            continue
        which, usual = _usual(case, row)
        rest = sorted(((usual[k], k) for k in _PARTS), reverse=True)
        whole = usual["kernel_ns"] + sum(ns for ns, _ in rest)
        said = ", ".join(f"{units.share(ns, whole)} {_PARTS[k]}" for ns, k in rest if ns * 20 >= whole)
        title = f"cuda.Event reads {units.duration(row['median_ns'])}, the kernels take {units.duration(kernel)}"
        first = "the first most" if row["first_ns"] == row["max_ns"] else f"the first {units.duration(row['first_ns'])}"
        detail = (
            f"With only the kernels in it a window reads about {units.duration(kernel)}; these {row['windows']}{in_module(row)} read "
            f"{units.duration(row['min_ns'])} to {units.duration(row['max_ns'])}, {first}."
        )
        because = f"Of {which}, {units.share(usual['kernel_ns'], whole)} are kernels, {said}."
        fix = "Move copies out of the window, warm up, and keep the stream busy while the CPU launches"
        evidence = (
            {"part": "kernels", "ns": usual["kernel_ns"]},
            *({"part": _PARTS[k], "ns": ns} for ns, k in rest if ns),
        )
        found.append(
            case.found(
                RULE,
                title,
                detail,
                worth=NO_SAVING,
                cost_ns=None,
                where=row,
                fix=fix,
                evidence=evidence,
                because=because,
            )
        )
    return found or case.clear(RULE, "every event pair reads within 10 % of the kernels inside")

"""Phases of a step: time on the driving thread, device time of the work they launched, device idle before that work."""

from __future__ import annotations

from typing import Annotated, TypedDict

import numpy as np
import polars as pl

from nsysx.events.ledger import windows_function
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import frame_columns
from nsysx.frames.intervals import I64, merged, nesting
from nsysx.frames.lookup import distinct, ordered, totals
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of

#: The name of time outside of phases that lies behind one step range and before the next.
BETWEEN = "(between steps)"
KEY = "phases"
TITLE = "Phases"


class PhaseRow(TypedDict):
    """One phase of the shown process."""

    name: Annotated[
        str | None, Of(f'phase; null outside every phase in a step, "{BETWEEN}" outside every phase and every step')
    ]
    cpu_ns: Annotated[
        int,
        Of(
            "time on the thread that drives the steps, from the first to the last steady step; sums to the window of the CPU breakdown",
            "ns",
            sums="scope",
        ),
    ]
    gpu_busy_ns: Annotated[
        int,
        Of(
            "busy time of the shown device in its GPU work, each instant in one phase; sums to GPU busy",
            "ns",
            sums="scope",
        ),
    ]
    gpu_idle_ns: Annotated[
        int, Of("idle time of the shown device before its GPU work; sums to GPU idle", "ns", sums="scope")
    ]


COLUMNS = columns_of(PhaseRow)
ROWS: TableOf[PhaseRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="shown device",
    place=30,
    group="where",
    intro=(
        "What the training loop was doing, by phase. GPU time counts for the phase whose code launched the work, even if "
        "the GPU ran it later; idle time for the phase whose work ended it."
    ),
    first=("name", "cpu_ns", "gpu_busy_ns", "gpu_idle_ns"),
    bar="gpu_busy_ns",
    unknown="(outside every phase)",
)


def _busy(s: I64, e: I64, phase: I64, size: int) -> I64:
    """Return the device time of each phase: where ops overlap, an instant belongs to the op that began last.

    ``s`` is sorted; of ops that begin at once, the last counts as begun last. Consecutive ops of one phase form a block. Until
    the next block begins, a block has what its own ops cover; after that it is one stretch up to its last end, and has what
    later stretches leave uncovered.
    """
    head = np.flatnonzero(np.diff(phase, prepend=-1))
    count = np.diff(head, append=len(s))
    last = np.maximum.reduceat(e, head)
    following = np.append(s[head[1:]], last[-1])
    # Cut at the next block, the running maximum of ends starts anew in each block.
    cut = np.minimum(e, np.repeat(following, count))
    begin = np.maximum(s, np.append(s[0], np.maximum.accumulate(cut)[:-1]))
    length = np.maximum(cut - begin, 0)
    busy = totals(phase, length, size)
    late = np.flatnonzero(last > following)
    if len(late):
        # By place among all borders, so that of stretches that begin at one instant the last one has it.
        borders = merged([np.sort(following[late]), np.sort(last[late])])
        n = len(late)
        top = nesting(
            np.searchsorted(borders, following[late]) * n + np.arange(n), np.searchsorted(borders, last[late]) * n
        ).top
        done = np.cumsum(length)
        t = borders[top.times // n]
        i = np.searchsorted(begin, t, side="right") - 1
        uncovered = np.diff(t - done[i] + np.maximum(cut[i] - t, 0))
        seen = top.labels >= 0
        busy += totals(phase[head[late[top.labels[seen]]]], uncovered[seen], size)
    return busy


def _gpu(profile: Profile) -> dict[str | None, list[int]]:
    """Return phase -> [busy, idle] over the steady window of the shown device."""
    if profile.device is None:
        return {}
    names, number = distinct(profile.attributed.gpu_ops["phase"])
    start, end = profile.window
    ops = profile.attributed.gpu_ops["process", "device", "start_ns", "end_ns", "op"].filter(
        (pl.col("process") == profile.process)
        & (pl.col("device") == profile.device)
        & (pl.col("end_ns") > pl.max_horizontal("start_ns", pl.lit(start)))
        & (pl.col("start_ns") < end)
    )
    ops = ordered(ops, "start_ns", ["end_ns", "op"], descending=[True, False])
    s, e, op = (ops[c].to_numpy() for c in ("start_ns", "end_ns", "op"))
    busy = np.zeros(len(names), np.int64)
    if len(s):
        busy = _busy(np.maximum(s, start), np.minimum(e, end), number[op], len(names))
    pieces = profile.shown_idle()
    # The last place is for idle time that no op ended.
    idle = totals(np.append(number, 0)[pieces["op"].to_numpy()], pieces["ns"].to_numpy(), len(names))
    return {name: [*both] for name, *both in zip(names, busy.tolist(), idle.tolist(), strict=True)}


def _stretches(profile: Profile) -> pl.DataFrame:
    """Return what the steps cut the shown process's window on the CPU into: thread, start_ns, end_ns, step (else between two).

    They tile the window, the same as the ledger's. What follows a step ran on its thread.
    """
    shown = pl.col("process") == profile.process
    steps = profile.steps.cpu.filter(shown & (pl.col("steady") | pl.lit(profile.steps.whole))).sort("start_ns")
    window = profile.steps.cpu_windows.filter(shown)
    if not steps.height or not window.height:
        return pl.DataFrame(schema={"thread": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "step": pl.Boolean})
    begin, until = (int(window[c].to_numpy()[0]) for c in ("start_ns", "end_ns"))
    thread, (start, end) = steps["thread"], (steps[c].to_numpy() for c in ("start_ns", "end_ns"))
    start, end = np.clip(start, begin, until), np.clip(end, begin, until)
    rest = np.append(begin, end), np.append(start, until)
    return pl.DataFrame(
        {
            "thread": pl.concat([thread, thread.head(1), thread]),
            "start_ns": np.concatenate((start, rest[0])),
            "end_ns": np.concatenate((end, np.maximum(rest[0], rest[1]))),
            "step": np.concatenate((np.ones(len(start), np.bool_), np.zeros(len(start) + 1, np.bool_))),
        }
    )


def _cpu(profile: Profile) -> dict[str | None, int]:
    """Return phase -> time on the driving thread; they sum to the window of the ledger."""
    ns_of: dict[str | None, int] = {}
    for (thread, inside), stretches in _stretches(profile).group_by("thread", "step", maintain_order=True):
        start, end = stretches["start_ns"].to_numpy(), stretches["end_ns"].to_numpy()
        spans = profile.attributed.phase_spans.filter(pl.col("thread").eq_missing(pl.lit(thread))).sort("start_ns")
        function = windows_function(
            spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy(), np.arange(spans.height, dtype=np.int64)
        )
        names = spans["phase"].to_numpy()
        inside_ns = 0
        for name in spans["phase"].unique().to_list():
            in_phase = (function.labels >= 0) & (names[np.maximum(function.labels, 0)] == name)
            ns = int(function.within(in_phase, start, end).sum())
            ns_of[name] = ns_of.get(name, 0) + ns
            inside_ns += ns
        outside = None if inside else BETWEEN
        ns_of[outside] = ns_of.get(outside, 0) + int((end - start).sum()) - inside_ns
    return ns_of


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per phase of the shown process, longest on the CPU first."""
    if not profile.attributed.phase_spans.height:
        raise NotRecorded(
            "no phase range was recorded: run under `nsysx run`, or mark forward, backward and optimizer", "-t nvtx"
        )
    cpu, gpu = _cpu(profile), _gpu(profile)
    rows = [(name, cpu.get(name, 0), *gpu.get(name, [0, 0])) for name in cpu.keys() | gpu.keys()]
    rows = [r for r in rows if any(r[1:])]
    return pl.DataFrame(
        rows,
        schema=frame_columns.schema(COLUMNS),
        orient="row",
    ).sort("cpu_ns", "gpu_busy_ns", "name", descending=[True, True, False])

"""What a process does between its steps, in parts that sum to the recorded time of that: its calls, copies with their size, host code.

Stretches that lie between two recorded steps are those of ``StepTable.between``. A window that ends while an evaluation runs has that
in its last step: from the beginning of the evaluation to the end of that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.catalogue import Call, DeviceActivity
from nsysx.events.profile import Profile
from nsysx.frames import lookup
from nsysx.frames.intervals import I64, StepFunction, interval_of, union
from nsysx.reading import nccl_notes, schema

HOST_CODE, WAITS, LAUNCHES, MEMORY, OTHER_CALLS = (
    "host code", "waits for the GPU", "launches", "allocations and frees", "other CUDA calls"
)  # fmt: skip
COPIES_OUT, COPIES_OUT_PAGEABLE = "copies to the host", "copies to pageable host memory"
COPIES_IN, COPIES_IN_PAGEABLE, OTHER_COPIES = "copies to the GPU", "copies from pageable host memory", "other copies"
_OF_KIND = {
    **dict.fromkeys(Call.LAUNCHES, LAUNCHES), **dict.fromkeys(Call.ALLOCATOR, MEMORY), Call.SYNC: WAITS, Call.COPY: OTHER_COPIES,
}  # fmt: skip


class BetweenPart(NamedTuple):
    """What the thread that drives the steps does, whether an evaluation's forward runs meanwhile, how long (ns), how often, and bytes."""

    what: str
    evaluates: bool
    ns: int
    calls: int
    bytes: int


class Collective(NamedTuple):
    """Collectives of one kind between the steps: how many, their time on the GPU (ns), and bytes of the messages, None if not noted."""

    kind: str
    calls: int
    ns: int
    bytes: int | None


class BetweenSteps(NamedTuple):
    """The recorded stretches between steps [start, end) (ns), what fills them, longest first, and the collectives launched in them.

    ``forwards``: calls of a network of which no gradient is taken, in ``evaluating`` of the stretches.
    """

    start_ns: I64
    end_ns: I64
    parts: tuple[BetweenPart, ...]
    collectives: tuple[Collective, ...]
    forwards: int = 0
    evaluating: int = 0

    @property
    def ns(self) -> int:
        """Their length; the parts sum to it."""
        return int((self.end_ns - self.start_ns).sum())

    def share(self, *names: str) -> float:
        """Return which share of it is in parts of these names."""
        return sum(part.ns for part in self.parts if part.what in names) / max(self.ns, 1)


def between_steps(profile: Profile) -> BetweenSteps | None:
    """Return what the shown process does between its steps; None where no stretch of that was recorded."""
    steps = profile.steps.cpu.filter(profile.steps.cpu["process"] == profile.process)
    if not steps.height:
        return None
    thread, spans = int(steps["thread"][0]), profile.attributed.phase_spans
    evaluating = spans.filter((pl.col("thread") == thread) & (pl.col("phase").cast(pl.String) == "evaluation"))
    made = profile.ledgers.threads.get(thread)
    start, end = _stretches(profile, steps, evaluating)
    if made is None or not len(start):
        return None
    held = interval_of(evaluating["start_ns"].to_numpy(), start, end)
    forwards, holding = int((held >= 0).sum()), len(np.unique(held[held >= 0]))
    parts = _parts(profile, made, evaluating, (start, end))
    return BetweenSteps(start, end, parts, _collectives(profile, thread, (start, end)), forwards, holding)


def _stretches(profile: Profile, steps: pl.DataFrame, evaluating: pl.DataFrame) -> tuple[I64, I64]:
    between = profile.steps.between.filter(pl.col("process") == profile.process)
    start, end = between["cpu_start_ns"].to_list(), between["cpu_end_ns"].to_list()
    last = steps.filter("cut").tail(1)
    behind = (
        evaluating.filter(pl.col("start_ns").is_between(*last["start_ns", "end_ns"].row(0)))["start_ns"]
        if last.height
        else None
    )
    if behind is not None and len(behind):
        start.append(behind.min())
        end.append(last["end_ns"][0])
    return union(np.array(start, np.int64), np.array(end, np.int64))


def _parts(
    profile: Profile, made: StepFunction, evaluating: pl.DataFrame, stretches: tuple[I64, I64]
) -> tuple[BetweenPart, ...]:
    calls = profile.attributed.api_calls
    forward = union(evaluating["start_ns"].to_numpy(), evaluating["end_ns"].to_numpy())
    times = np.unique(np.concatenate([made.times, *forward, *stretches]))
    middle, ns = times[:-1], np.diff(times)
    inside = interval_of(middle, *stretches) >= 0
    middle, ns = middle[inside], ns[inside]
    call = made.at(middle).astype(np.int64)
    what, evaluates = _names(profile, call), interval_of(middle, *forward) >= 0
    sizes = _bytes_of(profile, calls.height)
    pieces = pl.DataFrame({"what": what, "evaluates": evaluates, "ns": ns, "call": call})
    parts = []
    for (name, forwards), of_part in pieces.group_by("what", "evaluates"):
        rows = of_part.filter(of_part["call"] >= 0)["call"].unique().to_numpy()
        parts.append(
            BetweenPart(str(name), bool(forwards), int(of_part["ns"].sum()), len(rows), int(sizes[rows].sum()))
        )
    return tuple(sorted(parts, key=lambda part: (-part.ns, part)))


def _names(profile: Profile, call: I64) -> list[str]:
    """Return what each call is; of -1, which is none, that host code runs."""
    calls = profile.attributed.api_calls
    distinct, number = np.unique(call, return_inverse=True)
    rows = distinct[distinct >= 0]
    kinds = dict(zip(rows.tolist(), calls["kind"].cast(pl.String)[rows].to_list(), strict=True))
    copies = profile.attributed.gpu_ops.filter((pl.col("op_kind") == "memcpy") & pl.col("call").is_in(rows.tolist()))
    directions = {
        row["call"]: _direction(row["copy_kind"], row["src_kind"], row["dst_kind"])
        for row in copies["call", "copy_kind", "src_kind", "dst_kind"].iter_rows(named=True)
    }
    names = [
        HOST_CODE if row < 0 else directions.get(row) or _OF_KIND.get(kinds[row], OTHER_CALLS)
        for row in distinct.tolist()
    ]
    return [names[i] for i in number.tolist()]


def _direction(copy_kind: int | None, source: int | None, target: int | None) -> str:
    """Return what a copy is called by its direction and the memory at the host's end."""
    direction = schema.COPY_KINDS.get(copy_kind or 0)
    if direction == "DtoH":
        return (
            COPIES_OUT_PAGEABLE
            if schema.MEMORY_KINDS.get(-1 if target is None else target) == "pageable"
            else COPIES_OUT
        )
    if direction == "HtoD":
        return (
            COPIES_IN_PAGEABLE if schema.MEMORY_KINDS.get(-1 if source is None else source) == "pageable" else COPIES_IN
        )
    return OTHER_COPIES


def _bytes_of(profile: Profile, calls: int) -> I64:
    """Return how many bytes each call copies."""
    copies = profile.attributed.gpu_ops.filter((pl.col("op_kind") == "memcpy") & pl.col("call").is_not_null())
    return lookup.totals(copies["call"].to_numpy(), copies["bytes"].fill_null(0).to_numpy(), calls)


def _collectives(profile: Profile, thread: int, stretches: tuple[I64, I64]) -> tuple[Collective, ...]:
    ops = profile.attributed.gpu_ops
    ops = ops.filter((ops["cls"] == DeviceActivity.COMM.value) & (pl.col("thread") == thread)).filter(
        pl.col("call_start_ns").is_not_null()
    )
    ops = ops.filter(pl.Series(interval_of(ops["call_start_ns"].to_numpy(), *stretches) >= 0, dtype=pl.Boolean))
    members = nccl_notes.members(profile.trace).get(profile.process, {})
    sums: dict[str, Collective] = {}
    lasting = (ops["end_ns"] - ops["start_ns"]).to_list()
    for message, ns in zip(nccl_notes.messages(profile.trace, ops, members), lasting, strict=True):
        before = sums.get(message.kind, Collective(message.kind, 0, 0, 0))
        size = None if before.bytes is None or message.bytes is None else before.bytes + message.bytes
        sums[message.kind] = Collective(message.kind, before.calls + 1, before.ns + ns, size)
    return tuple(sorted(sums.values(), key=lambda of_kind: (-of_kind.ns, of_kind.kind)))

"""API calls x GPU ops: which call launched which work, each call once, each GPU op once.

    report rows                                   after
    RUNTIME  process 1, correlation 7  launch --> api_calls  call 0  gpu_ops 2
    KERNEL   process 1, correlation 7         --> gpu_ops    op 0    call 0      (a graph launch has many)
    KERNEL   process 1, correlation 7         --> gpu_ops    op 1    call 0
    KERNEL   process 2, correlation 7         --> gpu_ops    op 2    call null   (launched outside the trace)

The key is (process, correlation id): ids repeat between the ranks of one report.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysx import ids
from nsysx.catalogue import Call, DeviceActivity
from nsysx.events import families
from nsysx.frames import frame_columns, lookup
from nsysx.frames.intervals import I64, StepFunction, in_turn, merged, nesting
from nsysx.reading import schema
from nsysx.reading.reading_bounds import DENSE_LOOKUP_TIMES
from nsysx.reading.trace import LeftOut, Trace

_SUFFIX = re.compile(r"(_pts[zd])?(_v\d{4,5})?(_pts[zd])?$")

#: First match wins. Freeing host memory counts as free: it can synchronize the device like cudaFree.
_PATTERNS = (
    (Call.GRAPH_LAUNCH, re.compile(r"GraphLaunch")),
    (Call.LAUNCH, re.compile(r"^cu(da)?Launch(Kernel|CooperativeKernel|Grid|$)")),
    (Call.COPY, re.compile(r"Memcpy")),
    (Call.MEMSET, re.compile(r"Memset")),
    (Call.SYNC, re.compile(r"Synchronize")),
    (Call.HOST_ALLOC, re.compile(r"^cu(da)?(Mem)?(HostAlloc|MallocHost|AllocHost|HostRegister)")),
    (Call.FREE, re.compile(r"^cu(da)?(Mem)?(Free|HostUnregister|Unmap|Release|AddressFree)")),
    (Call.ALLOC, re.compile(r"^cu(da)?(Malloc|Mem(Alloc|Create|Map|AddressReserve|SetAccess))")),
    (Call.LOAD, re.compile(r"^cu(da)?((Module|Library)(?!GetLoadingMode)|KernelGetFunction)")),
    (Call.EVENT, re.compile(r"^cu(da)?(Event|StreamWaitEvent)")),
)


def plain_name(name: str) -> str:
    """Return an API name without what versions add: ``cudaLaunchKernel_ptsz_v7000`` -> ``cudaLaunchKernel``."""
    return _SUFFIX.sub("", name)


def api_kind(name: str) -> str:
    """Return the kind of an API function by its plain name."""
    return next((kind for kind, pattern in _PATTERNS if pattern.search(name)), Call.OTHER)


class Threads(Mapping[int, StepFunction]):
    """Labels each instant of a thread with the row of the innermost API call, -1 outside CUDA.

    Where a thread makes one call after another, that says no more than when they start and end: it is made when it is asked
    for, and not kept.
    """

    def __init__(self) -> None:
        self._of: dict[int, StepFunction | tuple[I64, I64, int]] = {}

    def add(self, thread: int, start: I64, end: I64, first: int) -> I64:
        """Add the calls of a thread, in order of start, which are the rows from ``first`` on; return their self time (ns)."""
        if in_turn(start, end):
            self._of[thread] = start, end, first
            return end - start
        nest = nesting(start, end, first)
        self._of[thread] = nest.top
        return nest.self_ns

    def __getitem__(self, thread: int) -> StepFunction:
        calls = self._of[thread]
        return calls if isinstance(calls, StepFunction) else nesting(*calls).top

    def __iter__(self) -> Iterator[int]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)


@dataclass(frozen=True)
class Correlated:
    """``api_calls`` and ``gpu_ops`` as ``schema`` declares them; ``call`` is the row number.

    ``left_out`` counts the rows that say a call a second time.
    """

    api_calls: pl.DataFrame
    gpu_ops: pl.DataFrame
    threads: Threads
    left_out: tuple[LeftOut, ...] = ()


def _one_row_per_call(runtime: pl.DataFrame) -> tuple[pl.DataFrame, tuple[LeftOut, ...]]:
    """Drop the second rows of calls that a report stores twice; ``plain`` is the name without its version.

    A backtrace copy goes where the call itself is there too. Of alias rows (``--cuda-trace-all-apis``: one call under a
    versioned and an unversioned name, one inside the other) the versioned one stays. Different functions under one id, such
    as a driver call inside a runtime call, are different calls, and so are calls at different times. Without an id every row
    is a call.
    """
    key = ["process", "correlation_id"]
    table, before = schema.SOURCES["runtime"].table, runtime.height
    if runtime["copied"].any():
        copied = pl.col("copied")
        only_copy = copied & ~(~copied).any().over(key) | (pl.col("correlation_id") == 0)
        runtime = runtime.filter(~copied | only_copy)
    copies, before = before - runtime.height, runtime.height
    if not _unique(runtime["process"], runtime["correlation_id"]):
        runtime = _without_aliases(runtime, [*key, "plain", "thread"])
    noted = (("the copy of a call for its backtrace", copies), ("the alias of a call", before - runtime.height))
    return runtime, tuple(LeftOut(table, reason, rows, "merged") for reason, rows in noted if rows)


def _without_aliases(runtime: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    """Return one row of those that share ``key`` and lie in each other; the versioned name stays."""
    several = (pl.len().over(key) > 1) & (pl.col("correlation_id") != 0)
    alike = runtime.filter(several).sort(*key, "start_ns", -pl.col("end_ns"))
    latest = pl.col("end_ns").cum_max().shift(1).over(key)
    apart = (pl.col("start_ns") > latest) | (pl.col("start_ns") == latest) & (pl.col("end_ns") > latest)
    call = apart.fill_null(True).cum_sum().over(key).alias("_call")
    unversioned = pl.col("name").cast(pl.String) == pl.col("plain").cast(pl.String)
    alike = alike.with_columns(call).sort(unversioned, "start_ns", -pl.col("end_ns"))
    alike = alike.unique([*key, "_call"], keep="first", maintain_order=True).drop("_call")
    return pl.concat([runtime.filter(~several), alike])


def _unique(process: pl.Series, ids: pl.Series) -> bool:
    """Return whether no id occurs twice in a process."""
    if ids.null_count() or process.null_count():
        return False
    keys, every = process.to_numpy(), ids.to_numpy()
    for key in lookup.present(process):
        of_process = keys == key
        numbers = every if of_process.all() else every[of_process]
        low, high = int(numbers.min()), int(numbers.max())
        if high - low > DENSE_LOOKUP_TIMES * len(numbers):
            if len(merged([np.sort(numbers)])) < len(numbers):
                return False
            continue
        there = np.zeros(high - low + 1, np.bool_)
        there[numbers - low] = True
        if np.count_nonzero(there) < len(numbers):
            return False
    return True


def _nestings(calls: pl.DataFrame) -> tuple[Threads, I64]:
    """Return what each thread called at each instant, and each call's self time (ns).

    ``calls`` is sorted by (thread, start). Nested calls of a thread belong to the inner one.
    """
    start, end, thread = (calls[c].to_numpy() for c in ("start_ns", "end_ns", "thread"))
    borders = (np.flatnonzero(thread[1:] != thread[:-1]) + 1).tolist()
    threads = Threads()
    self_ns = np.zeros(len(thread), np.int64)
    for a, b in zip([0, *borders], [*borders, len(thread)], strict=True):
        if b > a:
            self_ns[a:b] = threads.add(int(thread[a]), start[a:b], end[a:b], a)
    return threads, self_ns


def _api_calls(trace: Trace) -> tuple[pl.DataFrame, Threads, tuple[LeftOut, ...]]:
    runtime = trace.runtime
    if runtime["name"].null_count():
        runtime = runtime.with_columns(pl.col("name").fill_null(pl.lit("[unnamed]")))
    runtime = runtime.with_columns(lookup.changed(runtime["name"], plain_name).alias("plain"))
    runtime, merged_rows = _one_row_per_call(runtime)
    # The process is one value per thread: cheaper to derive again than to move along.
    kept = [c for c in runtime.columns if c not in ("name", "copied", "process")]
    calls = lookup.ordered(
        runtime[kept].rename({"plain": "name"}),
        "start_ns",
        ["end_ns", "correlation_id"],
        group="thread",
        descending=[True, False],
    )
    threads, self_ns = _nestings(calls)
    calls = calls.with_columns(
        pl.Series("call", np.arange(calls.height)),
        pl.Series("process", calls["thread"].to_numpy() >> ids.TID_BITS),
        lookup.changed(calls["name"], api_kind).alias("kind"),
        pl.Series("self_ns", self_ns, dtype=pl.Int64),
    )
    return calls, threads, merged_rows


def _ops_of(frame: pl.DataFrame, op_kind: str, name: pl.Expr, cls: DeviceActivity) -> pl.DataFrame:
    def column(key: str) -> pl.Expr:
        return pl.col(key) if key in frame.columns else pl.lit(None, dtype=pl.Int64).alias(key)

    return frame.select(
        "process",
        "device",
        column("context"),
        "stream",
        "start_ns",
        "end_ns",
        pl.lit(op_kind).cast(pl.Categorical).alias("op_kind"),
        pl.lit(cls.value).cast(pl.Categorical).alias("cls"),
        pl.lit(op_kind).cast(pl.Categorical).alias("family"),
        name.cast(pl.Categorical).alias("name"),
        "correlation_id",
        *(column(k) for k in ("bytes", "copy_kind", "src_kind", "dst_kind", "graph_node", "grid", "block")),
    )


def _gpu_rows(trace: Trace) -> pl.DataFrame:
    """Return kernels, copies, memsets and opaque graph launches as one frame, before the join."""
    kind = pl.col("copy_kind").replace_strict(schema.COPY_KINDS, default="unknown", return_dtype=pl.String)
    name = pl.coalesce("name", pl.lit("[unnamed]").cast(pl.Categorical))
    kernels = _ops_of(trace.kernel, "kernel", name, DeviceActivity.COMPUTE)
    others = (
        (trace.memcpy, "memcpy", kind, DeviceActivity.COPY),
        (trace.memset, "memset", pl.lit("memset"), DeviceActivity.MEMSET),
        (trace.graph, "graph", pl.lit("CUDA graph (opaque)"), DeviceActivity.COMPUTE),
    )
    family = lookup.changed(kernels["name"], families.family)
    cls = lookup.changed(
        family, lambda f: DeviceActivity.COMM.value if f == families.COMMUNICATION else DeviceActivity.COMPUTE.value
    )
    return pl.concat(
        [
            kernels.with_columns(family.alias("family"), cls.alias("cls")),
            *(_ops_of(*other) for other in others if other[0].height),
        ]
    )


def _compact(ids: I64, asked: I64) -> tuple[I64, I64]:
    """Return ids and asked ids renumbered from 0 without holes, -1 for an asked id that is not among ``ids``."""
    sorted_ids = merged([np.sort(ids)])
    nearest = np.minimum(np.searchsorted(sorted_ids, asked), len(sorted_ids) - 1)
    return np.searchsorted(sorted_ids, ids), np.where(sorted_ids[nearest] == asked, nearest, -1)


def _launching(calls: pl.DataFrame, ops: pl.DataFrame) -> I64:
    """Return the call that launched each op, -1 for none: the call of the process with the op's correlation id, 0 is not an id.

    Where a driver call is nested in a runtime call under the same id, the outer one launched; of calls at different times
    that share an id, the last that had begun.
    """
    result = np.full(ops.height, -1, np.int64)
    asked_process, asked_id = lookup.filled(ops["process"], -1), lookup.filled(ops["correlation_id"], 0)
    of_process, every_id = calls["process"].to_numpy(), calls["correlation_id"].to_numpy()
    for process in lookup.present(ops["process"]):
        with_id = (of_process == process) & (every_id != 0)
        if not with_id.any():
            continue
        whole = bool(with_id.all())
        call = np.arange(calls.height, dtype=np.int32) if whole else np.flatnonzero(with_id)
        ids = every_id if whole else every_id[call]
        rows = np.flatnonzero((asked_process == process) & (asked_id != 0))
        asked = asked_id[rows]
        if int(ids.max()) - int(ids.min()) > DENSE_LOOKUP_TIMES * (len(ids) + len(rows)):
            ids, asked = _compact(ids, asked)
        low, high = int(ids.min()), int(ids.max())
        table = np.full(high - low + 1, -1, np.int32 if calls.height < 1 << 31 else np.int64)
        table[ids - low] = call
        inside = (asked >= low) & (asked <= high)
        rows, asked = rows[inside], asked[inside]
        result[rows] = table[asked - low]
        if (table[ids - low] != call).any():
            start, end = (calls[c].to_numpy()[call] for c in ("start_ns", "end_ns"))
            shared = np.bincount(ids - low, minlength=high - low + 1) > 1
            asked_of, theirs = shared[ids - low], shared[asked - low]
            began = ops["start_ns"].to_numpy()[rows[theirs]]
            result[rows[theirs]] = _last_begun(
                ids[asked_of], start[asked_of], end[asked_of], call[asked_of], asked[theirs], began
            )
    return result


def _last_begun(ids: I64, start: I64, end: I64, call: I64, asked: I64, began: I64) -> I64:
    """Return, for each asked id, the outermost of its calls that had begun last at ``began``, else its first call."""
    order = np.lexsort((call, -end, start, ids))
    ids, start, end, call = ids[order], start[order], end[order], call[order]
    # A call that ends before an earlier one of its id does lies in that one: ids are numbered, so that ends count up by id.
    number = np.unique(ids, return_inverse=True)[1].astype(np.int64)
    frame = pl.DataFrame({"id": number, "end": end})
    latest = (
        frame.select(pl.col("end").cum_max().shift(1).over("id"))["end"].fill_null(np.iinfo(np.int64).min).to_numpy()
    )
    outer = end > latest
    outer[np.flatnonzero(np.diff(number, prepend=-1))] = True
    begins = pl.DataFrame({"id": ids[outer], "at": start[outer], "call": call[outer].astype(np.int64)}).sort("at")
    wanted = pl.DataFrame({"row": np.arange(len(asked)), "id": asked, "at": began}).sort("at")
    begun = wanted.join_asof(begins, on="at", by="id", strategy="backward", check_sortedness=False).sort("row")
    first = begins.group_by("id", maintain_order=True).agg(pl.col("call").first().alias("first"))
    chosen = begun.join(first, on="id", how="left", maintain_order="left")
    result: I64 = chosen.select(pl.coalesce("call", "first"))["call"].to_numpy()
    return result


def correlate(trace: Trace) -> Correlated:
    """Join GPU ops many-to-one to the API calls that launched them.

    Neither side loses a row: a call without GPU work has ``gpu_ops`` 0, a GPU op without a call has a null ``call``.
    """
    calls, threads, merged_rows = _api_calls(trace)
    order = ("end_ns", "process", "device", "stream", "correlation_id", "graph_node")
    rows = lookup.ordered(_gpu_rows(trace), "start_ns", order)
    call = _launching(calls, rows)
    if trace.window is not None:
        # What was launched after the part that was read is not part of it, what was launched before it is: ids count up.
        first = calls.group_by("process").agg(pl.col("correlation_id").min().alias("first"))
        first_id = rows.select("process").join(first, on="process", how="left", maintain_order="left")["first"]
        before = (rows["correlation_id"] < first_id).fill_null(True).to_numpy()
        kept = (call >= 0) | before
        rows, call = rows.filter(kept), call[kept]
    began, ended = (lookup.at(calls[c], call) for c in ("start_ns", "end_ns"))
    # Clock conversion can put a GPU op a few us before its call: clamped, never dropped. Null without a call.
    queue, latency = ((rows["start_ns"] - since).clip(lower_bound=0) for since in (ended, began))
    ops = rows.with_columns(
        pl.Series("op", np.arange(rows.height)),
        lookup.at(calls["call"], call).alias("call"),
        lookup.at(calls["thread"], call).alias("thread"),
        began.alias("call_start_ns"),
        ended.alias("call_end_ns"),
        queue.alias("queue_ns"),
        latency.alias("latency_ns"),
    )
    counts = np.bincount(call[call >= 0], minlength=calls.height)
    calls = calls.with_columns(pl.Series("gpu_ops", counts, dtype=pl.Int64))
    return Correlated(
        calls[[c.name for c in frame_columns.API_CALLS]],
        ops[[c.name for c in frame_columns.GPU_OPS]],
        threads,
        merged_rows,
    )

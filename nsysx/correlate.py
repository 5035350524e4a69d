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
from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysx import families, schema
from nsysx.intervals import nesting
from nsysx.load import Trace

_SUFFIX = re.compile(r"(_pts[zd])?(_v\d{4,5})?(_pts[zd])?$")

#: First match wins. Freeing host memory counts as free: it can synchronize the device like cudaFree.
_PATTERNS = (
    ("graph_launch", re.compile(r"GraphLaunch")),
    ("launch", re.compile(r"^cu(da)?Launch(Kernel|CooperativeKernel|Grid|$)")),
    ("copy", re.compile(r"Memcpy")),
    ("memset", re.compile(r"Memset")),
    ("sync", re.compile(r"Synchronize")),
    ("host_alloc", re.compile(r"^cu(da)?(Mem)?(HostAlloc|MallocHost|AllocHost|HostRegister)")),
    ("free", re.compile(r"^cu(da)?(Mem)?(Free|HostUnregister|Unmap|Release|AddressFree)")),
    ("alloc", re.compile(r"^cu(da)?(Malloc|Mem(Alloc|Create|Map|AddressReserve|SetAccess))")),
    ("load", re.compile(r"^cu(da)?((Module|Library)(?!GetLoadingMode)|KernelGetFunction)")),
    ("event", re.compile(r"^cu(da)?(Event|StreamWaitEvent)")),
)

KINDS = ("launch", "graph_launch", "copy", "memset", "sync", "alloc", "free", "host_alloc", "load", "event", "other")


def plain_name(name: str) -> str:
    """Return an API name without what versions add: ``cudaLaunchKernel_ptsz_v7000`` -> ``cudaLaunchKernel``."""
    return _SUFFIX.sub("", name)


def api_kind(name: str) -> str:
    """Return the kind of an API function by its plain name."""
    return next((kind for kind, pattern in _PATTERNS if pattern.search(name)), "other")


@dataclass(frozen=True)
class Correlated:
    """``api_calls`` and ``gpu_ops`` as ``schema`` declares them."""

    api_calls: pl.DataFrame
    gpu_ops: pl.DataFrame


def _mapped(frame: pl.DataFrame, column: str, new: str, change: dict[str, str]) -> pl.DataFrame:
    """Add ``new``: the value that ``change`` gives each distinct name of a categorical column."""
    table = pl.DataFrame(
        {"_key": list(change), "_value": list(change.values())}, schema={"_key": pl.String, "_value": pl.String}
    ).with_columns(pl.all().cast(pl.Categorical))
    joined = frame.join(table, left_on=column, right_on="_key", how="left", maintain_order="left")
    return joined.with_columns(pl.col("_value").alias(new)).drop("_value")


def _names(column: pl.Series) -> list[str]:
    return [n for n in column.unique().cast(pl.String).to_list() if n is not None]


def _one_row_per_call(runtime: pl.DataFrame) -> pl.DataFrame:
    """Drop the second rows of calls that a report stores twice; ``plain`` is the name without its version.

    A backtrace copy goes where the call itself is there too. Of alias rows (``--cuda-trace-all-apis``: one call under a
    versioned and an unversioned name) the versioned one stays. Different functions under one id, such as a driver call
    inside a runtime call, are different calls. Without an id every row is a call.
    """
    key = ["process", "correlation_id"]
    copied = (pl.col("event_class") == schema.BACKTRACE_CLASS).fill_null(False)
    if runtime.select(copied.any()).item():
        only_copy = copied & ~(~copied).any().over(key) | (pl.col("correlation_id") == 0)
        runtime = runtime.filter(~copied | only_copy)
    if runtime.select(pl.struct(*key).n_unique()).item() == runtime.height:
        return runtime
    order = [pl.col("name").cast(pl.String) == pl.col("plain").cast(pl.String), "start_ns", -pl.col("end_ns")]
    is_first = pl.int_range(pl.len()) == pl.int_range(pl.len()).sort_by(order).first().over(*key, "plain")
    return runtime.filter((pl.col("correlation_id") == 0) | is_first)


def _self_times(calls: pl.DataFrame) -> pl.DataFrame:
    """Add ``self_ns`` per call, sorted by (thread, start): nested calls of a thread belong to the inner one."""
    start, end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    thread = calls["thread"].to_numpy()
    borders = np.flatnonzero(np.diff(thread)) + 1
    pieces = zip([0, *borders], [*borders, len(thread)], strict=True)
    parts = [nesting(start[a:b], end[a:b]).self_ns for a, b in pieces if b > a]
    return calls.with_columns(pl.Series("self_ns", np.concatenate(parts) if parts else [], dtype=pl.Int64))


def _api_calls(trace: Trace) -> pl.DataFrame:
    runtime = trace.runtime.with_columns(pl.col("name").fill_null(pl.lit("[unnamed]")))
    plain = {n: plain_name(n) for n in _names(runtime["name"])}
    runtime = _mapped(runtime, "name", "plain", plain)
    # A row that ends before it begins cannot be placed; the check "bad times" counts them.
    runtime = _one_row_per_call(runtime.filter(pl.col("end_ns") >= pl.col("start_ns")))
    runtime = runtime.drop("name").rename({"plain": "name"})
    runtime = _mapped(runtime, "name", "kind", {n: api_kind(n) for n in _names(runtime["name"])})
    runtime = runtime.sort("thread", "start_ns", "end_ns", "correlation_id", descending=[False, False, True, False])
    calls = _self_times(runtime).with_row_index("call").with_columns(pl.col("call").cast(pl.Int64))
    return calls.select("call", "process", "thread", "start_ns", "end_ns", "name", "kind", "correlation_id", "self_ns")


def _ops_of(frame: pl.DataFrame, op_kind: str, name: pl.Expr) -> pl.DataFrame:
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
        name.cast(pl.Categorical).alias("name"),
        "correlation_id",
        *(column(k) for k in ("bytes", "copy_kind", "src_kind", "dst_kind", "graph_node")),
    )


def _gpu_rows(trace: Trace) -> pl.DataFrame:
    """Return kernels, copies, memsets and opaque graph launches as one frame, before the join."""
    kind = pl.col("copy_kind").replace_strict(schema.COPY_KINDS, default="unknown", return_dtype=pl.String)
    rows = pl.concat(
        [
            _ops_of(
                trace.kernel, "kernel", pl.coalesce("name", "short_name", pl.lit("[unnamed]").cast(pl.Categorical))
            ),
            _ops_of(trace.memcpy, "memcpy", kind),
            _ops_of(trace.memset, "memset", pl.lit("memset")),
            # Nsight writes 0 for both ends where a graph launch carries no timestamp.
            _ops_of(trace.graph.filter(pl.col("end_ns") > 0), "graph", pl.lit("CUDA graph (opaque)")),
        ]
    ).filter(pl.col("end_ns") >= pl.col("start_ns"))
    if rows["process"].null_count() == rows.height:
        processes = trace.runtime["process"].drop_nulls().unique()
        only = processes.item() if len(processes) == 1 else 0
        rows = rows.with_columns(pl.lit(only, dtype=pl.Int64).alias("process"))
    return rows


def correlate(trace: Trace) -> Correlated:
    """Join GPU ops many-to-one to the API calls that launched them.

    Neither side loses a row: a call without GPU work has ``gpu_ops`` 0, a GPU op without a call has a null ``call``.
    """
    calls = _api_calls(trace)
    rows = _gpu_rows(trace)
    # One launching row per id. Where a driver call is nested in a runtime call under the same id, the outer one launched.
    launching = (
        calls.filter(pl.col("correlation_id") != 0)
        .sort("start_ns", "end_ns", "call", descending=[False, True, False])
        .unique(["process", "correlation_id"], keep="first", maintain_order=True)
        .select(
            "process",
            "correlation_id",
            "call",
            "thread",
            pl.col("start_ns").alias("call_start_ns"),
            pl.col("end_ns").alias("call_end_ns"),
        )
    )
    ops = rows.join(launching, on=["process", "correlation_id"], how="left", validate="m:1")
    ops = ops.sort("start_ns", "end_ns", "process", "device", "stream", "correlation_id", "graph_node", nulls_last=True)
    kernels = _names(ops.filter(pl.col("op_kind") == "kernel")["name"])
    ops = _mapped(ops, "name", "family", {n: families.family(n) for n in kernels})
    is_kernel = pl.col("op_kind").cast(pl.String) == "kernel"
    family = pl.when(is_kernel).then(pl.col("family").cast(pl.String)).otherwise(pl.col("op_kind").cast(pl.String))
    cls = (
        pl.when(family == families.COMMUNICATION)
        .then(pl.lit("comm"))
        .when(pl.col("op_kind").cast(pl.String) == "memcpy")
        .then(pl.lit("copy"))
        .when(pl.col("op_kind").cast(pl.String) == "memset")
        .then(pl.lit("memset"))
        .otherwise(pl.lit("compute"))
    )
    zero = pl.lit(0, dtype=pl.Int64)
    ops = ops.with_row_index("op").with_columns(
        pl.col("op").cast(pl.Int64),
        family.cast(pl.Categorical).alias("family"),
        cls.cast(pl.Categorical).alias("cls"),
        # Clock conversion can put a GPU op a few us before its call: clamped, never dropped.
        pl.max_horizontal(zero, pl.col("start_ns") - pl.col("call_end_ns")).alias("queue_ns"),
        pl.max_horizontal(zero, pl.col("start_ns") - pl.col("call_start_ns")).alias("latency_ns"),
    )
    # max_horizontal skips nulls: without a call there is no queue time, not a queue time of zero.
    ops = ops.with_columns(
        pl.when(pl.col("call").is_not_null()).then(pl.col(c)).alias(c) for c in ("queue_ns", "latency_ns")
    )
    counts = ops.drop_nulls("call").group_by("call").agg(pl.len().cast(pl.Int64).alias("gpu_ops"))
    calls = calls.join(counts, on="call", how="left", maintain_order="left").with_columns(
        pl.col("gpu_ops").fill_null(0)
    )
    return Correlated(calls.select(c.name for c in schema.API_CALLS), ops.select(c.name for c in schema.GPU_OPS))

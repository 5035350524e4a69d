"""Stopwatch: what each way of timing an operation on the host reads, next to what the device did.

A clock around an operation reads a different time with a synchronize before it, after it, both, or none. Here an operation is
one kernel with its launch call, and the clock starts where the thread's previous GPU call (launch, copy, memset, synchronize)
returned. ``measured`` readings come from executions that had exactly these synchronize calls around them; ``composed`` ones are
sums of medians, for ways that the program did not use (with sync_return of other kernels, if none follows this one):

    both    host + api + latency + kernel + sync_return        a cold queue: the time of one call, alone
    before  host + api                                         how long the CPU takes to hand the work over
    after   host + api + queue + kernel + sync_return          includes other work in the queue
    none    host + api                                         the same, beside a busy device

A time from cuda.Event lies between the kernel alone (work is queued before the first record) and both - sync_return (an
idle device). ``torch.utils.benchmark`` repeats the operation and reads the slower of host + api and kernel.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, TypedDict

import numpy as np
import polars as pl

from nsysx.analyses.helpers import host_stopwatch
from nsysx.analyses.helpers.analysis_bounds import FEWEST_EXECUTIONS, MOST_STOPWATCH_ROWS
from nsysx.analyses.helpers.host_stopwatch import GpuCalls, Mask, backlog, gpu_calls, median, readings, total
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import frame_columns
from nsysx.frames.intervals import I64, Labels
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of, names

KEY = "stopwatch"
TITLE = "Stopwatch: four ways of timing"


class ReadingRow(TypedDict):
    """One kernel and what each way of timing reads."""

    name: Annotated[str, Of("kernel")]
    custom: Annotated[bool, Of("neither PyTorch's own nor from a CUDA library, judging by its name")]
    module: Annotated[str | None, Of("module that launches it most often")]
    calls: Annotated[int, Of("launches, one kernel each")]
    host_ns: Annotated[
        float | None,
        Of(
            "from the thread's previous GPU call to the launch call: Python and framework, median",
            "ns",
            label="host before",
        ),
    ]
    api_ns: Annotated[float, Of("launch call, median", "ns")]
    latency_ns: Annotated[
        float | None, Of("from the launch call to the kernel on an idle device, median; null if never idle", "ns")
    ]
    queue_ns: Annotated[
        float | None,
        Of("from the launch call to the kernel behind other work, median; null if never behind", "ns", label="queued"),
    ]
    kernel_ns: Annotated[float, Of("kernel, median", "ns")]
    sync_return_ns: Annotated[
        float | None, Of("from the end of the work to the return of the synchronize, median; null without one", "ns")
    ]
    both_ns: host_stopwatch.BothNs
    both_from: host_stopwatch.HowRead
    before_ns: host_stopwatch.BeforeNs
    before_from: host_stopwatch.HowRead
    after_ns: host_stopwatch.AfterNs
    after_from: host_stopwatch.HowRead
    none_ns: host_stopwatch.NoneNs
    none_from: host_stopwatch.HowRead
    event_idle_ns: Annotated[
        float | None, Of("cuda.Event around it on an idle device; null if unknown", "ns", label="cuda.Event, idle GPU")
    ]
    event_queued_ns: Annotated[
        float, Of("cuda.Event around it behind other work: the kernel", "ns", label="cuda.Event, queued")
    ]
    benchmark_ns: Annotated[
        float | None, Of("torch.utils.benchmark: the slower of host + api and kernel", "ns", label="torch benchmark")
    ]


class Way(NamedTuple):
    """What a way of timing reads (ns), None when it cannot be told, and how that is known: measured or composed."""

    ns: float | None
    how: str | None


def by_way(row: ReadingRow) -> dict[str, Way]:
    """Return the readings of a row by their way of timing, see `host_stopwatch.WAYS`."""
    ways = (
        Way(row["both_ns"], row["both_from"]),
        Way(row["before_ns"], row["before_from"]),
        Way(row["after_ns"], row["after_from"]),
        Way(row["none_ns"], row["none_from"]),
    )
    return dict(zip(host_stopwatch.WAYS, ways, strict=True))


COLUMNS = columns_of(ReadingRow)
ROWS: TableOf[ReadingRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="whole",
    place=200,
    matters=("NSX107", "NSX115"),
    intro=(
        "One operation, timed four ways: what a clock around it reads depends on where you synchronize, and only the kernel "
        "column is the work. A value with ≈ is the sum of its parts; the others were measured in this capture."
    ),
    first=(
        *names("name kernel_ns api_ns host_ns latency_ns queue_ns"),
        *host_stopwatch.READ,
        *names("sync_return_ns calls module custom"),
    ),
    hide=host_stopwatch.HIDDEN,
    depth=1,
)
_LIBRARY = r"at::|at_cuda|c10::|cub::|thrust|cublas|cudnn|cutlass|xmma|nvjet|nccl|cufft|cusparse|cusolver|splitKreduce|gemm|^void native::"


class _Around(NamedTuple):
    """What surrounds each launch, as arrays (ns, masks). The clock starts where the thread's previous GPU call returned."""

    host: I64  # from the start of the clock to the launch call
    api: I64
    late: I64  # from the launch call to the kernel
    kernel: I64
    back: I64  # from the end of the kernel to the return of the next call
    whole: I64  # from the start of the clock to that return
    known: Mask  # there is a call before
    before: Mask  # it is a synchronize, and leaves the device idle
    after: Mask  # the next call is a synchronize, and waits for the kernel
    waited: Mask  # the same, and it began before the kernel was done
    alone: Mask  # nothing was pending


def _around(calls: GpuCalls, row: Labels, begin: I64, end: I64, alone: Mask) -> _Around:
    api_start, api_end = calls.start(row), calls.end(row)
    previous, following = calls.previous(row), calls.following(row)
    has_previous = previous >= 0
    clock = np.where(has_previous, calls.end(previous), api_start)
    before, after, returned = calls.synced(previous, following, end)
    waited = after & (calls.start(following) < end)
    host, late = api_start - clock, np.maximum(begin - api_end, 0)
    back, whole = returned - end, returned - clock
    return _Around(
        host,
        api_end - api_start,
        late=late,
        kernel=end - begin,
        back=back,
        whole=whole,
        known=has_previous,
        before=before,
        after=after,
        waited=waited,
        alone=alone,
    )


def _line(around: _Around, usual_return: float | None) -> dict[str, object]:
    """Return the row of one kernel from what surrounds its launches. ``usual_return`` stands in if no synchronize follows it."""
    host_ns, api_ns, late = around.host, around.api, around.late
    has_previous, before, after, alone = around.known, around.before, around.after, around.alone
    host, api = median(host_ns, has_previous), median(api_ns)
    latency, queue = median(late, alone), median(late, ~alone)
    kernel = median(around.kernel)
    sync_return = median(around.back, around.waited)
    back = usual_return if sync_return is None else sync_return
    measured = {
        "both": median(around.whole, before & after),
        "before": median(host_ns + api_ns, before),
        "after": median(around.whole, has_previous & ~before & after),
        "none": median(host_ns + api_ns, has_previous & ~before),
    }
    handed = total(host, api)
    composed = {
        "both": total(host, api, latency, kernel, back),
        "before": handed,
        "after": total(host, api, queue, kernel, back),
        "none": handed,
    }
    return {
        "host_ns": host,
        "api_ns": api,
        "latency_ns": latency,
        "queue_ns": queue,
        "kernel_ns": kernel,
        "sync_return_ns": sync_return,
        **readings(measured, composed, handed=handed, work=kernel, alone=total(host, api, latency, kernel)),
    }


def require(profile: Profile) -> None:
    """Raise NotRecorded where there is no such table."""
    if not profile.recorded("runtime", "kernel"):
        raise NotRecorded("kernels and the calls that launch them were not both recorded", "-t cuda")


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per kernel, custom ones first, then by kernel time; kernels with fewer than three launches have none."""
    require(profile)
    ops, calls, alone = profile.ops, gpu_calls(profile), backlog(profile).alone
    call = ops["call"].fill_null(-1).to_numpy()
    rows = np.flatnonzero((ops["op_kind"] == "kernel").to_numpy() & (call >= 0))
    rows = rows[(profile.attributed.api_calls["gpu_ops"].to_numpy()[call[rows]] == 1) & (calls.row[call[rows]] >= 0)]
    start, end, op = (ops[c].to_numpy()[rows] for c in ("start_ns", "end_ns", "op"))
    order = (
        pl.DataFrame({"name": ops["name"].gather(rows), "ns": end - start, "launch": np.arange(len(rows))})
        .group_by("name")
        .agg(pl.len().cast(pl.Int64).alias("calls"), pl.col("ns").sum(), pl.col("launch"))
        .filter(pl.col("calls") >= FEWEST_EXECUTIONS)
        .with_columns(pl.col("name").cast(pl.String))
        .with_columns((~pl.col("name").str.contains(_LIBRARY)).alias("custom"))
        .sort("custom", "ns", "name", descending=[True, True, False])
        .head(MOST_STOPWATCH_ROWS)
    )
    row, alone = calls.row[call[rows]], alone[op]
    # Around the launches that a synchronize follows, and then around those of one kernel after another: less memory at once.
    synced = np.flatnonzero(calls.sync[calls.following(row)])
    waited = _around(calls, row[synced], start[synced], end[synced], alone[synced])
    usual_return = median(waited.back[waited.waited])
    module = ops["module"].gather(rows)
    modules_with_calls = module.drop_nulls().unique()
    modules = dict(
        zip(modules_with_calls.to_physical().to_list(), modules_with_calls.cast(pl.String).to_list(), strict=True)
    )
    code = module.to_physical().cast(pl.Int64).fill_null(-1).to_numpy()
    lines = []
    for line, rows_of in zip(order["name", "custom", "calls"].to_dicts(), order["launch"], strict=True):
        members = rows_of.to_numpy()
        counts = np.bincount(code[members] + 1)[1:]
        most = np.flatnonzero(counts == counts.max(initial=1)).tolist()
        module_name = min((modules[m] for m in most), default=None)
        around = _around(calls, row[members], start[members], end[members], alone[members])
        lines.append({**line, "module": module_name, **_line(around, usual_return)})
    return pl.DataFrame(lines, schema=frame_columns.schema(COLUMNS))

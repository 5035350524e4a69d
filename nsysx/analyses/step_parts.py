"""What the steady steps of the shown process are made of, block by block: the basis for comparing two captures.

Parts "ledger" sum to the step on the device timeline, to the nanosecond; "idle" sums to its idle time, "module_compute" and
"family_compute" to its compute time. The other parts are plain sums, in which work that runs at once counts twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx.analyses import api_calls
from nsysx.analyses.helpers.analysis_bounds import MOST_PART_NAMES, MOST_STEP_BLOCKS
from nsysx.catalogue import DeviceActivity
from nsysx.events import ledger
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import frame_columns, lookup
from nsysx.frames.intervals import I64
from nsysx.frames.lookup import distinct, totals
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of

I32 = npt.NDArray[np.int32]

KEY = "step_parts"
TITLE = "Parts of each step"


class PartRow(TypedDict):
    """One part and name, block by block."""

    part: Annotated[
        str, Of("step, ledger, idle, module_compute, family_compute, phase, module, family, kernel, api or wait")
    ]
    name: Annotated[str | None, Of("its name; null for work outside of modules or phases")]
    cls: Annotated[str | None, Of("class of a module, kind of an API function; null elsewhere", label="class")]
    place: Annotated[str | None, Of("module of a wait; null elsewhere")]
    count: Annotated[
        list[int] | None, Of("number of steps, GPU ops or calls in each block of steps; null where nothing is counted")
    ]
    ns: Annotated[list[int], Of("time in each block of steps, summed", "ns", label="time")]


COLUMNS = columns_of(PartRow)
ROWS: TableOf[PartRow] = TableOf(KEY)

SHOWN = TableSpec(covers="steady", place=900, unseen=True)

#: The name of the row that all names beyond the most of a part share, so that sums hold.
REST = "(the rest)"

_Row = tuple[str, str | None, str | None, str | None, list[int] | None, list[int]]


class _Blocks:
    """The steady steps that have a CPU range and, if the device worked, a GPU tile, in blocks of neighbors.

    If no steps were found, the capture is the only step.
    """

    def __init__(self, profile: Profile) -> None:
        table = profile.steps
        if (table.whole and table.source != "capture") or table.steady is None:
            raise NotRecorded("the report has no steady steps", "nsysx run -- CMD, or --step-range REGEX")
        cpu = table.cpu.filter((table.cpu["process"] == table.process) & table.cpu["steady"]).sort("start_ns")
        tiles = table.gpu.filter(table.gpu["process"] == table.process)
        self.device: int | None = None
        if tiles.height:
            busy = tiles.group_by("device").agg(pl.len(), (pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns"))
            self.device = _busiest(profile, busy["device"].sort().to_list())
            tiles = tiles.filter(tiles["device"] == self.device).sort("start_ns")
            cpu = cpu.join(tiles.select("index"), on="index", how="semi", maintain_order="left")
            tiles = tiles.join(cpu.select("index"), on="index", how="semi", maintain_order="left")
        if not cpu.height:
            raise NotRecorded("no steady step has GPU work", "capture more steps")
        self.process = table.process
        self.start, self.end = cpu["start_ns"].to_numpy(), cpu["end_ns"].to_numpy()
        self.gpu_start, self.gpu_end = tiles["start_ns"].to_numpy(), tiles["end_ns"].to_numpy()
        self.steps = cpu.height
        self.size = min(self.steps, MOST_STEP_BLOCKS)
        count = self.steps
        self.of = np.arange(count, dtype=np.int64) * self.size // count

    def sums(self, per_step: I64) -> list[int]:
        """Return values per step as sums per block."""
        return [int(v) for v in totals(self.of, np.asarray(per_step, np.int64), self.size)]

    def in_steps(self, rows: pl.DataFrame, instants: pl.Series) -> tuple[pl.DataFrame, I32]:
        """Return the rows whose instant lies in the CPU range of a step, and the step of each; null lies in none."""
        t = instants.fill_null(-1).to_numpy()
        step = np.searchsorted(self.start, t, side="right").astype(np.int32) - np.int32(1)
        inside = (step >= 0) & (t < self.end[step])
        return (rows, step) if inside.all() else (rows.filter(inside), step[inside])


def _busiest(profile: Profile, devices: list[int]) -> int:
    """Return the device on which the shown process works most in its steady windows; on a tie, the lowest number."""
    windows = profile.steps.windows.filter(pl.col("process") == profile.steps.process)
    busy = dict.fromkeys(devices, 0)
    for device, start, end in windows["device", "start_ns", "end_ns"].iter_rows():
        activity = profile.ledgers.activity[profile.steps.process, device]
        busy[device] = int(activity.within(activity.labels > 0, np.array([start]), np.array([end]))[0])
    return max(busy, key=lambda d: (busy[d], -d))


def _grouped(
    blocks: _Blocks,
    part: str,
    column: pl.Series,
    step: npt.NDArray[np.integer[Any]],
    ns: I64,
    cls: dict[str | None, str | None] | None = None,
    *,
    counted: bool = True,
) -> Iterator[_Row]:
    """Yield one row per name, longest first, and one for all beyond MOST_PART_NAMES. ``step``: the step of each row, never -1."""
    names, group = distinct(column)
    cell = group
    cell *= blocks.size
    cell += blocks.of[step]
    size = len(names) * blocks.size
    table = totals(cell, ns, size).reshape(-1, blocks.size)
    many = np.bincount(cell, minlength=size).reshape(-1, blocks.size)
    order = sorted(np.flatnonzero(many.any(axis=1)).tolist(), key=lambda i: (-int(table[i].sum()), names[i] or ""))
    for i in order[:MOST_PART_NAMES]:
        name = names[i]
        yield part, name, (cls or {}).get(name), None, many[i].tolist() if counted else None, table[i].tolist()
    if unlisted := order[MOST_PART_NAMES:]:
        count = many[unlisted].sum(axis=0).tolist() if counted else None
        yield part, REST, None, None, count, table[unlisted].sum(axis=0).tolist()


def _exclusive(blocks: _Blocks, ops: pl.DataFrame) -> tuple[I64, I32, I64]:
    """Return (row of ops, step, ns) of compute: each busy instant belongs to the running op that began first.

    ``ops`` are the compute ops of the device by start. The pieces are disjoint and cover the union, so their sum over a tile
    is its compute time. A piece that crosses a border of tiles is cut there.
    """
    start, end = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
    if not len(start):
        nothing = np.empty(0, np.int64)
        return nothing, np.empty(0, np.int32), nothing
    reach = np.maximum.accumulate(end)
    begin = np.maximum(start, np.concatenate((start[:1], reach[:-1])))
    rows = np.flatnonzero(end > begin)
    begin, finish = begin[rows], end[rows]
    first = np.searchsorted(blocks.gpu_end, begin, side="right").astype(np.int32)
    touched = np.maximum(np.searchsorted(blocks.gpu_start, finish, side="left").astype(np.int32) - first, 0)
    piece = np.repeat(np.arange(len(rows), dtype=np.int32), touched)
    step = np.arange(len(piece), dtype=np.int32)
    step += np.repeat(first - np.cumsum(touched, dtype=np.int32) + touched, touched)
    ns = np.minimum(finish[piece], blocks.gpu_end[step]) - np.maximum(begin[piece], blocks.gpu_start[step])
    return rows[piece], step, ns


def _device_parts(profile: Profile, blocks: _Blocks, classes: dict[str | None, str | None]) -> Iterator[_Row]:
    """Yield the exact parts of the steps on the device timeline."""
    assert blocks.device is not None
    device = (blocks.process, blocks.device)
    parts = ledger.gpu_parts(profile.ledgers.activity[device], blocks.gpu_start, blocks.gpu_end)
    ones = blocks.sums(np.ones(blocks.steps, np.int64))
    yield "step", "gpu", None, None, ones, blocks.sums(blocks.gpu_end - blocks.gpu_start)
    for activity in DeviceActivity:
        yield "ledger", activity.value, None, None, None, blocks.sums(parts[activity.column])
    for cause, ns in ledger.idle_parts(profile.ledgers.idle_of(*device), blocks.gpu_start, blocks.gpu_end).items():
        yield "idle", cause, None, None, None, blocks.sums(ns)
    inside = (
        (pl.col("process") == blocks.process)
        & (pl.col("device") == blocks.device)
        & (pl.col("cls") == DeviceActivity.COMPUTE.value)
        & (pl.col("end_ns") > blocks.gpu_start[0])
        & (pl.col("start_ns") < blocks.gpu_end[-1])
    )
    # Only the needed columns: with a million rows, this would otherwise take more memory than anything else.
    ops = profile.attributed.gpu_ops.lazy().filter(inside).select("start_ns", "end_ns", "module", "family").collect()
    ops = ops.sort("start_ns", "end_ns")
    row, step, ns = _exclusive(blocks, ops)
    yield from _grouped(blocks, "module_compute", ops["module"].gather(row), step, ns, classes, counted=False)
    yield from _grouped(blocks, "family_compute", ops["family"].gather(row), step, ns, counted=False)


def _work(profile: Profile, blocks: _Blocks, classes: dict[str | None, str | None]) -> Iterator[_Row]:
    """Yield the plain sums of GPU ops by the step that launched them."""
    needed = "process", "start_ns", "end_ns", "call_start_ns", "op_kind", "name", "module", "family"
    ops = lookup.having(profile.steady_ops.select(needed), process=blocks.process)
    ops, step = blocks.in_steps(ops.drop("process", "call_start_ns"), ops["call_start_ns"])
    ns = (ops["end_ns"] - ops["start_ns"]).to_numpy()
    yield from _grouped(blocks, "module", ops["module"], step, ns, classes)
    yield from _grouped(blocks, "family", ops["family"], step, ns)
    kernel = (ops["op_kind"] == "kernel").to_numpy()
    yield from _grouped(blocks, "kernel", ops["name"].filter(kernel), step[kernel], ns[kernel])


def _api(profile: Profile, blocks: _Blocks) -> Iterator[_Row]:
    """Yield the plain sums of API calls by the step in which they begin."""
    calls = profile.steady_calls["process", "start_ns", "name", "self_ns"]
    calls = lookup.having(calls, process=blocks.process)
    calls, step = blocks.in_steps(calls["name", "self_ns"], calls["start_ns"])
    kinds = dict(api_calls.functions(profile)["name", "kind"].cast(pl.String).iter_rows())
    yield from _grouped(blocks, "api", calls["name"], step, calls["self_ns"].to_numpy(), kinds)


def _phases(profile: Profile, blocks: _Blocks) -> Iterator[_Row]:
    """Yield the time of each phase on the thread that drives the steps, and outside of phases; together, the CPU steps."""
    yield (
        "step",
        "cpu",
        None,
        None,
        blocks.sums(np.ones(blocks.steps, np.int64)),
        blocks.sums(blocks.end - blocks.start),
    )
    threads = profile.steps.cpu.filter(profile.steps.cpu["process"] == blocks.process)["thread"].unique().to_list()
    spans = profile.attributed.phase_spans.filter(pl.col("thread").is_in(threads)).sort("start_ns")
    names, phase = distinct(spans["phase"].cast(pl.Categorical))
    left = blocks.end - blocks.start
    begin, end = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    first = np.searchsorted(blocks.end, begin, side="right")
    touched = np.maximum(np.searchsorted(blocks.start, end, side="left") - first, 0)
    piece = np.repeat(np.arange(len(begin)), touched)
    step = first[piece] + np.arange(len(piece)) - np.repeat(np.cumsum(touched) - touched, touched)
    ns = np.minimum(end[piece], blocks.end[step]) - np.maximum(begin[piece], blocks.start[step])
    for i, name in enumerate(names):
        of_phase = totals(step[phase[piece] == i], ns[phase[piece] == i], blocks.steps)
        if of_phase.any():
            left = left - of_phase
            yield "phase", name, None, None, None, blocks.sums(of_phase)
    if left.any():
        yield "phase", None, None, None, None, blocks.sums(left)


def _waits(profile: Profile, blocks: _Blocks) -> Iterator[_Row]:
    """Yield the blocking calls by site."""
    if not profile.recorded("runtime"):
        return
    sites = profile.wait_sites().filter(pl.col("process") == blocks.process)
    sites, step = blocks.in_steps(sites, sites["start_ns"])
    # Without the line number: lines move with every edit, and a moved line would look new.
    inside = pl.when(pl.col("module").is_not_null()).then(pl.format("in {}", "module"))
    phase = pl.when(pl.col("phase").is_not_null()).then(pl.format("({})", "phase"))
    site = pl.concat_str("api", inside, phase, separator=" ", ignore_nulls=True).cast(pl.Categorical)
    sites = sites.with_columns(site.alias("site"))
    modules = dict(sites.select(pl.col("site").cast(pl.String), "module").unique("site").iter_rows())
    ns = (sites["end_ns"] - sites["start_ns"]).to_numpy()
    for part, name, cls, _, count, spent in _grouped(blocks, "wait", sites["site"], step, ns):
        yield part, name, cls, modules.get(name), count, spent


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per part and name. Raises NotRecorded without steady steps."""
    blocks = _Blocks(profile)
    classes: dict[str | None, str | None] = dict(
        profile.attributed.modules.select(pl.col("module", "cls").cast(pl.String)).iter_rows()
    )
    rows: list[_Row] = [*_phases(profile, blocks)]
    if blocks.device is not None:
        rows += _device_parts(profile, blocks, classes)
    rows += _work(profile, blocks, classes)
    rows += _api(profile, blocks)
    rows += _waits(profile, blocks)
    return pl.DataFrame(rows, schema=frame_columns.schema(COLUMNS), orient="row")

"""GPU and CPU time by module, with forward and backward in one row, and rows for work outside of modules."""

from __future__ import annotations

from typing import Annotated, TypedDict

import numpy as np
import polars as pl

from nsysx.catalogue import Call
from nsysx.events import layers
from nsysx.events.attribute import GRADES
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import frame_columns
from nsysx.frames.intervals import I64
from nsysx.frames.lookup import at, distinct, totals
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of, names

KEY = "modules"
TITLE = "Modules"


class ModuleRow(TypedDict):
    """One module, or the work outside of modules."""

    path: Annotated[
        str | None, Of("qualified path; work outside of modules in parentheses; null if not attributed", label="module")
    ]
    cls: Annotated[str | None, Of("Python class of the module", label="class")]
    parent: Annotated[str | None, Of("module that calls it, null at a root", label="called by")]
    depth: Annotated[int, Of("distance from its root")]
    calls: Annotated[
        int | None,
        Of(
            "calls in the steady steps, of its forward, its range or its phase; null for rows that are not called",
            sums="scope",
        ),
    ]
    forward_gpu_ns: Annotated[int, Of("GPU op time of forward, children included", "ns", sums="scope")]
    backward_gpu_ns: Annotated[int, Of("GPU op time of backward, children and recompute included", "ns", sums="scope")]
    self_gpu_ns: Annotated[
        int, Of("GPU op time of the module itself, forward and backward; sums to all GPU work", "ns", sums="scope")
    ]
    kernels: Annotated[int, Of("kernels of the module itself", sums="scope")]
    copy_ns: Annotated[int, Of("part of self_gpu_ns in copies and memsets", "ns", sums="scope")]
    queue_ns: Annotated[
        int,
        Of(
            "time its own GPU ops waited in the queue after their launch, summed",
            "ns",
            sums="scope",
            label="queue, summed",
        ),
    ]
    launch_ns: Annotated[int, Of("self time of its own launch calls", "ns", sums="scope")]
    wait_ns: Annotated[
        int, Of("backlog that its own blocking calls waited for", "ns", sums="scope", label="backlog waited")
    ]
    sync_ns: Annotated[int, Of("self time of its own synchronize calls", "ns", sums="scope")]
    idle_blamed_ns: Annotated[
        int,
        Of(
            "idle time of the shown device that ended with one of its own GPU ops",
            "ns",
            sums="scope",
            label="GPU idle blamed",
        ),
    ]
    grade: Annotated[
        str | None, Of("weakest evidence behind 1 % or more of its GPU time: thread, seq, sequence, time, none")
    ]


COLUMNS = columns_of(ModuleRow)
ROWS: TableOf[ModuleRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="steady",
    place=60,
    group="module-tables",
    intro=(
        "GPU time by module of the model. Forward and backward of a parent include its children; self time does not, and adds "
        "up to all GPU work."
    ),
    first=names("path forward_gpu_ns backward_gpu_ns self_gpu_ns launch_ns wait_ns idle_blamed_ns calls grade cls"),
    bar="self_gpu_ns",
    unknown="(not attributed)",
    hide=("parent", "depth", "copy_ns", "queue_ns", "sync_ns"),
    tree=True,
)

_BUSY = names("forward_gpu_ns backward_gpu_ns self_gpu_ns launch_ns wait_ns sync_ns idle_blamed_ns calls")
#: What is summed per module; the grades hold GPU time.
_SUMS = (*_BUSY[:-1], "kernels", "copy_ns", "queue_ns", *GRADES)


def _add(by_module: dict[str | None, dict[str, int]], module: pl.Series, **parts: I64) -> None:
    """Add the sum of each part per module."""
    names, group = distinct(module)
    sums = {part: totals(group, values, len(names)).tolist() for part, values in parts.items()}
    for i, name in enumerate(names):
        row = by_module.setdefault(name, dict.fromkeys(_SUMS, 0))
        for part, values in sums.items():
            row[part] += values[i]


def _self_figures(profile: Profile) -> dict[str | None, dict[str, int]]:
    """Return per module what it did itself, children apart: _SUMS."""
    ops = profile.steady_ops
    ns = (ops["end_ns"] - ops["start_ns"]).to_numpy()
    op_kind, grade = ops["op_kind"], ops["grade"]
    backward = (ops["phase"] == "backward").fill_null(False).to_numpy()
    by_module: dict[str | None, dict[str, int]] = {}
    _add(
        by_module,
        ops["module"],
        forward_gpu_ns=np.where(backward, 0, ns),
        backward_gpu_ns=np.where(backward, ns, 0),
        self_gpu_ns=ns,
        kernels=(op_kind == "kernel").to_numpy().astype(np.int64),
        copy_ns=np.where(((op_kind == "memcpy") | (op_kind == "memset")).to_numpy(), ns, 0),
        queue_ns=ops["queue_ns"].fill_null(0).to_numpy(),
        **{g: np.where((grade == g).to_numpy(), ns, 0) for g in GRADES},
    )
    calls = profile.steady_calls["call", "module", "kind", "self_ns"]
    launches = calls.filter((calls["kind"] == Call.LAUNCH) | (calls["kind"] == Call.GRAPH_LAUNCH))
    _add(by_module, launches["module"], launch_ns=launches["self_ns"].to_numpy())
    syncs = calls.filter(calls["kind"] == Call.SYNC)
    _add(by_module, syncs["module"], sync_ns=syncs["self_ns"].to_numpy())
    waits = calls.join(profile.waits["call", "backlog_ns"], on="call", how="inner")
    _add(by_module, waits["module"], wait_ns=waits["backlog_ns"].to_numpy())
    pieces = profile.shown_idle()
    module = at(profile.attributed.gpu_ops["module"], pieces["op"].to_numpy())
    _add(by_module, module, idle_blamed_ns=pieces["ns"].to_numpy())
    return by_module


def _calls(profile: Profile) -> dict[str, int]:
    """Return calls in the steady steps by the names that work is attributed to; "(optimizer)" counts its phase."""
    rows = profile.ranges.ranges.filter(~pl.col("crossing"))
    windows = profile.steps.cpu_windows.filter(pl.col("process") == profile.process)
    in_steps = [
        (pl.col("process") == process) & (pl.col("start_ns") >= start) & (pl.col("start_ns") < end)
        for process, start, end in windows["process", "start_ns", "end_ns"].iter_rows()
    ]
    inside = ~pl.col("recompute") & pl.any_horizontal(pl.lit(False), *in_steps)
    name = pl.col("name").cast(pl.String)
    if rows.select(layers.BY_PROBE.any()).item():
        entered = rows.filter(pl.col("own") & (pl.col("kind") == "module"), inside).group_by("name", "cls").len()
        path = pl.when(name == "").then(pl.format(layers.PATHLESS, pl.col("cls").cast(pl.String))).otherwise(name)
        called = entered.select(path.alias("module"), "len")
    else:
        # Ranges that the probe did not push are named by what they are nested in.
        layer = layers.module_layer(profile.ranges)
        entered = layer.rows.with_columns(at(*layers.paths(layer)).alias("module"))
        called = entered.filter(inside).group_by("module").len().select(pl.col("module").cast(pl.String), "len")
    phases = rows.filter(pl.col("kind") == "phase", inside).group_by("name").len()
    called = pl.concat([called, phases.select(pl.format(layers.PATHLESS, name).alias("module"), "len")])
    sums = called.drop_nulls().group_by("module").agg(pl.col("len").sum().cast(pl.Int64))
    return dict(sums.iter_rows())


def _grade(module: str | None, row: dict[str, int]) -> str:
    """Return the weakest grade that 1 % or more of the module's GPU time has."""
    if not row["self_gpu_ns"]:
        return "none" if module is None else "thread"
    weak = next((g for g in reversed(GRADES[1:]) if row[g] * 100 >= row["self_gpu_ns"]), None)
    return weak or next((g for g in GRADES if row[g]), "none")


def _depths(parents: dict[str | None, str | None]) -> dict[str | None, int]:
    """Return how far each module lies below its root. Each is visited once; in a cycle, the first one seen is the root."""
    depth: dict[str | None, int] = {}
    for module in parents:
        path: list[str | None] = []
        on_path: set[str | None] = set()
        ancestor: str | None = module
        while ancestor is not None and ancestor in parents and ancestor not in depth and ancestor not in on_path:
            path.append(ancestor)
            on_path.add(ancestor)
            ancestor = parents[ancestor]
        start = (
            depth[ancestor] + 1 if ancestor in depth else 1 if ancestor is not None and ancestor not in on_path else 0
        )
        for below, passed in enumerate(reversed(path)):
            depth[passed] = start + below
    return depth


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per module, in order of first call, then the rows outside of modules, then work of unknown origin.

    ``self_gpu_ns`` over all rows is the GPU op time of the steady steps.
    """
    if not profile.recorded("nvtx") or not profile.ranges.ranges.height:
        raise NotRecorded(
            "no NVTX range was recorded: run under `nsysx run`, or with -t nvtx and ranges of your own", "-t nvtx"
        )
    self_figures, calls = _self_figures(profile), _calls(profile)
    columns = profile.attributed.modules["module", "cls", "parent", "first_ns"].iter_rows()
    tree: dict[str | None, tuple[str, str | None, int]] = {
        module: (cls, up, first) for module, cls, up, first in columns
    }
    lines = []
    depth = _depths({module: parent for module, (_, parent, _) in tree.items()})
    # Roll children up the tree, deepest first: a module's subtree is complete when its turn comes.
    rolled = {
        m: [self_figures[m][f"{way}_gpu_ns"] if m in self_figures else 0 for way in ("forward", "backward")]
        for m in tree
    }
    for module in sorted(tree, key=lambda m: -depth[m]):
        parent = tree[module][1]
        if parent in rolled and depth[parent] < depth[module]:
            for way in (0, 1):
                rolled[parent][way] += rolled[module][way]
    nothing = dict.fromkeys(_SUMS, 0)
    for module in {**tree, **self_figures}:
        row = {**self_figures.get(module, nothing), "calls": calls.get(module or "", 0)}
        cls, parent, first = tree.get(module, (None, None, None))
        if module in rolled:
            row["forward_gpu_ns"], row["backward_gpu_ns"] = rolled[module]
        if first is None and not any(row[busy] for busy in _BUSY):
            continue
        group = 0 if first is not None else 1 if module is not None else 2
        position = {
            "path": module,
            "cls": cls,
            "parent": parent,
            "depth": depth.get(module, 0),
            # Nothing calls what lies between modules and phases, or what is not attributed.
            "calls": row["calls"] if module in tree or module in calls else None,
            "grade": _grade(module, row),
        }
        lines.append(((group, first or 0, -row["self_gpu_ns"], module or ""), {**row, **position}))
    lines.sort(key=lambda entry: entry[0])
    return pl.DataFrame([row for _, row in lines], schema=frame_columns.schema(COLUMNS))

"""Tables of analyses against slow references over rows, written from what their columns promise, on random small frames."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest

from nsysx.analyses import (
    api_bill,
    copies,
    data_loader,
    gil_waits,
    gpu_metrics,
    kernel_families,
    kernels,
    launches,
    memory,
    operators,
    os_waits,
    phases,
    step_parts,
)
from nsysx.analyses.helpers import analysis_bounds, gpu_counters, one_time_cost, operator_work, report_totals
from nsysx.catalogue import Call, Cause, DeviceActivity
from nsysx.events.gil import gil_idle
from nsysx.events.os_calls import os_idle
from nsysx.events.profile import NotRecorded
from nsysx.frames.intervals import StepFunction, coverage
from nsysx.model import Row
from nsysx.reading import schema
from tests.random_tables import (
    Columns,
    always,
    asked,
    columns,
    covered,
    grouped,
    last_null,
    profile,
    rounds,
    rows,
    same,
)

PROCESS, OTHER = 7, 8


def work(of: Columns, kinds: Sequence[str] = ("kernel", "memcpy", "memset")) -> pl.DataFrame:
    """Return random GPU ops."""
    return (
        of.times()
        .add("op", iter(range(1_000)).__next__)
        .names("name", ("gemm", "add", "mul"))
        .names("family", ("gemm", "elementwise", None))
        .names("module", ("a.0", "a.1", "b", None))
        .names("phase", ("forward", "backward", None))
        .names("op_kind", kinds)
        .names("cls", [a.value for a in (DeviceActivity.COMPUTE, DeviceActivity.COPY)])
        .add("process", (PROCESS, PROCESS, OTHER))
        .add("device", (0, 0, 1))
        .add("call", (None, 0, 1, 2, 3))
        .add("call_start_ns", (None, *range(0, 60, 5)))
        .add("queue_ns", (None, 0, 3, 5))
        .frame()
    )


# --- launches -----------------------------------------------------------------------------------------------------------


def test_launches_are_summed_by_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Self = usual + first call + queue full + slow; slow are ten times the median of its function and more than 50 us."""
    for source in rounds():
        of = columns(source, 20).add("call", iter(range(100)).__next__).add("process", (PROCESS,))
        of.add("correlation_id", (1,)).add("start_ns", (5,)).add("end_ns", (9,)).add("gpu_ops", (0, 1, 3))
        of.names("name", ("launch", "graph", "copy")).names("kind", (Call.LAUNCH, Call.GRAPH_LAUNCH, Call.COPY))
        of.add("self_ns", (3_000, 4_000, 5_000, 45_000, 50_000, 50_001, 70_000, 900_000))
        of.add("full", (0, 0, 2_000, 10**6)).add("waiting", (0, 1, 7)).add("once", (None, None, 1_000, 60_000))
        frame, idle = of.frame(), {"launch": (30, 4)}
        by_call = {r["call"]: r for r in rows(frame)}
        once = pl.DataFrame(
            [
                (c, r["once"])
                for c, r in by_call.items()
                if (r["once"] or 10**9) <= r["self_ns"] - min(r["full"], r["self_ns"])
            ],
            schema={"call": pl.Int64, "one_time_ns": pl.Int64},
            orient="row",
        )
        launched = [r for r in by_call.values() if r["kind"] != Call.COPY]
        idle_columns = {"name": pl.String, "idle_launch_ns": pl.Int64, "idle_host_ns": pl.Int64}
        gaps = pl.DataFrame([(n, *v) for n, v in idle.items()], schema=idle_columns, orient="row")
        monkeypatch.setattr(launches, "queue_full", always(np.array([r["full"] for r in launched], np.int64)))
        monkeypatch.setattr(launches, "pending", always(np.array([r["waiting"] for r in launched], np.int64)))
        monkeypatch.setattr(one_time_cost, "costs", always(once))
        monkeypatch.setattr(launches, "_idle", always(gaps))
        steps = source.choice((0, 4))
        scope = type("S", (), {"steps": steps, "per_step": staticmethod(lambda v: v / 4)})
        device, window = source.choice(((None, (0, 0)), (0, (10, 110)), (0, (10, 10)), (0, (0, 5_000))))
        found = launches._launches(shown := profile(steady_calls=frame, scope=scope, device=device, window=window))
        first = dict(once.iter_rows())
        expected = [
            {"name": r["name"], "gpu_ops": r["gpu_ops"], "self_ns": r["self_ns"], "queue_full_ns": min(r["full"], r["self_ns"]),
             "pending": r["waiting"], "one_time_ns": first.get(r["call"])}
            for r in by_call.values() if r["kind"] in (Call.LAUNCH, Call.GRAPH_LAUNCH)
        ]  # fmt: skip
        for r in expected:
            r["own_ns"] = r["self_ns"] - r["queue_full_ns"] - (r["one_time_ns"] or 0)
        for r in expected:
            usual = statistics.median(o["own_ns"] for o in expected if o["name"] == r["name"])
            r["slow"] = r["own_ns"] > 10 * usual and r["own_ns"] > 50_000
        assert same(rows(found), expected)
        with monkeypatch.context() as patch:
            patch.setattr(launches, "_launches", always(found))
            table = rows(launches.table(shown).select(c.name for c in launches.COLUMNS))
        told = []
        for (name,), of_name in grouped(expected, "name").items():
            each = {c: sum(r[c] or 0 for r in of_name) for c in ("gpu_ops", "self_ns", "queue_full_ns", "one_time_ns")}
            late, host = idle.get(name, (0, 0)) if window[1] > window[0] and device is not None else (None, None)
            share = None if late is None else (late + host) / (window[1] - window[0])
            verdict = (
                "cannot_tell"
                if share is None
                else "critical"
                if share > 0.02
                else "queue_full"
                if each["queue_full_ns"] * 2 > each["self_ns"]
                else "free"
            )
            ordered = sorted(r["self_ns"] for r in of_name)
            told.append(
                {"name": name, "launches": len(of_name), "launches_per_step": len(of_name) / 4 if steps else None,
                    "gpu_ops": each["gpu_ops"],
                 "total_ns": each["self_ns"], "usual_ns": sum(r["own_ns"] for r in of_name if not r["slow"]),
                 "first_call_ns": each["one_time_ns"], "queue_full_ns": each["queue_full_ns"],
                 "slow_ns": sum(r["own_ns"] for r in of_name if r["slow"]), "median_ns": statistics.median(ordered),
                 "queue_full_calls": sum(r["queue_full_ns"] > 0 for r in of_name), "slow_calls": sum(r["slow"] for r in of_name),
                 "pending_median": statistics.median(r["pending"] for r in of_name), "idle_launch_ns": late, "idle_host_ns": host,
                 "idle_share": share, "verdict": verdict}
            )  # fmt: skip
            assert told[-1]["total_ns"] == sum(
                told[-1][c] for c in ("usual_ns", "first_call_ns", "queue_full_ns", "slow_ns")
            )
        told.sort(key=lambda r: (-r["total_ns"], r["name"]))
        for row in table:
            of_name = sorted(r["self_ns"] for r in expected if r["name"] == row["name"])
            p90 = row.pop("p90_ns")
            assert p90 in of_name and sum(v <= p90 for v in of_name) >= 0.9 * (len(of_name) - 1)
        assert same(table, told)


# --- sums of GPU work ---------------------------------------------------------------------------------------------------


def test_gpu_work_by_family() -> None:
    for source in rounds():
        ops = work(columns(source))
        if not ops.height:
            with pytest.raises(NotRecorded):
                kernel_families.table(profile(ops=ops, steady_ops=ops))
            continue
        part = ops.filter(pl.Series([source.random() < 0.8 for _ in range(ops.height)], dtype=pl.Boolean))
        whole = sum(r["end_ns"] - r["start_ns"] for r in rows(part))
        told = [
            {"family": family, "total_ns": (ns := sum(r["end_ns"] - r["start_ns"] for r in of)),
             "share": ns / whole if whole else None, "count": len(of)}
            for (family,), of in grouped(rows(part), "family").items()
        ]  # fmt: skip
        table = kernel_families.table(profile(ops=ops, steady_ops=part)).select(c.name for c in kernel_families.COLUMNS)
        assert same(
            rows(table), sorted(told, key=lambda r: (-r["total_ns"], r["family"] is not None, r["family"] or ""))
        )


def test_copies_by_direction_and_memory() -> None:
    codes = [None, *list(schema.MEMORY_KINDS)[:3], 99]
    for source in rounds():
        of = columns(source, 16)
        of.add("bytes", (0, 4, 4_096)).add("src_kind", codes).add("dst_kind", codes[:2])
        of.add("call_end_ns", (60, 70)).names("op_kind", ("memcpy", "memcpy", "kernel"))
        ops = work(of, ("memcpy", "memcpy", "kernel")).with_columns(
            call_start_ns=pl.Series([source.randrange(50) for _ in range(of.rows)], dtype=pl.Int64)
        )
        ops = ops.with_columns(call_start_ns=pl.when(pl.col("call").is_not_null()).then("call_start_ns"))
        calls = pl.DataFrame({"gpu_ops": [1, 2, 1, 0]})
        attributed = type("A", (), {"api_calls": calls})
        table = copies.table(profile(ops=ops, attributed=attributed)).select(c.name for c in copies.COLUMNS)
        told = []
        moved = [r | {"src": schema.MEMORY_KINDS.get(r["src_kind"], "unknown"), "dst": schema.MEMORY_KINDS.get(r["dst_kind"], "unknown")}
                 for r in rows(ops) if r["op_kind"] == "memcpy"]  # fmt: skip
        for (name, src, dst), of_pair in grouped(moved, "name", "src", "dst").items():
            ns, size = sum(r["end_ns"] - r["start_ns"] for r in of_pair), sum(r["bytes"] for r in of_pair)
            sole = [r for r in of_pair if r["call"] is not None and calls["gpu_ops"][r["call"]] == 1]
            told.append(
                {"direction": name, "src_kind": src, "dst_kind": dst, "count": len(of_pair), "bytes": size, "total_ns": ns,
                 "api_ns": sum(r["call_end_ns"] - r["call_start_ns"] for r in sole) if sole else None,
                 "bandwidth_bytes_per_s": size / ns * 1e9 if ns else None}
            )  # fmt: skip
        told.sort(key=lambda r: (-r["total_ns"], r["direction"], r["src_kind"], r["dst_kind"]))
        assert same(rows(table), [{c.name: r[c.name] for c in copies.COLUMNS} for r in told])


def test_time_in_calls_is_split_by_function() -> None:
    for source in rounds():
        of = columns(source).names("name", ("launch", "copy")).names("kind", ("launch",))
        parts = ("calls", "self_ns", "waiting_ns", "profiler_ns", "one_time_ns", "repeated_ns")
        for part in parts:
            of.add(part, (0, 1, 5))
        split, stepless = of.frame(), source.random() < 0.5
        steps = type("S", (), {"source": "capture" if stepless else "nsysx"})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(one_time_cost, "split", always(type("R", (), {"functions": split})))
            table = api_bill.table(profile(steps=steps))
        told = [
            {"name": n, "kind": k} | {p: sum(r[p] for r in of_name) for p in parts}
            for (n, k), of_name in grouped(rows(split), "name", "kind").items()
        ]
        whole, again = (sum(r[p] for r in told) for p in ("self_ns", "repeated_ns"))
        for r in told:
            if stepless:
                r["one_time_ns"] = r["repeated_ns"] = None
            r["share"] = r["self_ns"] / whole if whole else None
            r["repeated_share"] = r["repeated_ns"] / again if again and not stepless else None
        told.sort(key=lambda r: (-r["self_ns"], r["name"]))
        assert same(rows(table), told)


def test_kernels_by_name() -> None:
    for source in rounds():
        ops = work(columns(source, 16))
        calls = pl.DataFrame(
            {"gpu_ops": [1, 2, 1, 1], "self_ns": [10, 20, 30, None]}, schema={"gpu_ops": pl.Int64, "self_ns": pl.Int64}
        )
        family = {"gemm": "gemm", "add": "elementwise", "mul": "elementwise"}
        ops = ops.with_columns(
            family=pl.col("name").cast(pl.String).replace_strict(family, return_dtype=pl.String).cast(pl.Categorical)
        )
        shown = profile(ops=ops, attributed=type("A", (), {"api_calls": calls}))
        with pytest.MonkeyPatch.context() as patch:
            nothing = pl.DataFrame(schema={"name": pl.Categorical, "step_ns": pl.Float64})
            places = pl.DataFrame(
                schema={
                    "name": pl.Categorical,
                    "module": pl.String,
                    "operator": pl.String,
                    "file": pl.String,
                    "line": pl.Int64,
                }
            )
            patch.setattr(kernels, "_per_step", always(nothing))
            patch.setattr(kernels, "_places", always(places))
            table = rows(kernels.table(shown))
        of_kernels = [r | {"ns": r["end_ns"] - r["start_ns"]} for r in rows(ops) if r["op_kind"] == "kernel"]
        whole = sum(r["ns"] for r in of_kernels)
        told = []
        for (name,), of in grouped(of_kernels, "name").items():
            ns = sorted(r["ns"] for r in of)
            sole = [
                v
                for r in of
                if r["call"] is not None
                and calls["gpu_ops"][r["call"]] == 1
                and (v := calls["self_ns"][r["call"]]) is not None
            ]
            queued = [r["queue_ns"] for r in of if r["queue_ns"] is not None]
            told.append(
                {"name": name, "family": family[name], "count": len(of), "total_ns": sum(ns), "share": sum(ns) / whole if whole else None,
                 "mean_ns": sum(ns) / len(ns), "median_ns": statistics.median(ns), "min_ns": ns[0], "max_ns": ns[-1],
                 "api_self_ns": sum(sole) if sole else None, "queue_ns": sum(queued) if queued else None}
            )  # fmt: skip
        told.sort(key=lambda r: (-r["total_ns"], r["name"]))
        assert same(table, told)


#: The row of a step in which the counters were sampled.
SAMPLED_STEP = pl.DataFrame([{"by": "step", "total_ns": 1, "samples": 1}], schema=gpu_metrics._SCHEMA)


def test_counters_are_means_by_time() -> None:
    """A counter stands for a group where it was sampled for most of its time; samples are shared by time."""
    for source in rounds():
        of = columns(source, 16).add("grid", (1, 2)).add("block", (32,))
        ops = work(of)
        counters = [(n, g, 32, s, c) for n in ("gemm", "add") for g in (1, 2) if source.random() < 0.7
                    for s, c in [(source.randrange(1, 40), source.choice((None, 0.25, 0.5)))]]  # fmt: skip
        shares = pl.DataFrame(
            counters,
            schema={
                "name": pl.Categorical,
                "grid": pl.Int64,
                "block": pl.Int64,
                "samples": pl.Int64,
                "dram": pl.Float64,
            },
            orient="row",
        )
        rest = [c.name for c in gpu_metrics.COLUMNS if c.name not in ("by", "name", "total_ns", "samples", "dram")]
        shares = shares.with_columns(pl.lit(None, dtype=pl.Float64).alias(c) for c in rest)
        device = source.choice((None, 0))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpu_metrics.gpu_counters, "of_kernels", always(shares))
            patch.setattr(gpu_metrics, "_step", always(SAMPLED_STEP))
            table = rows(gpu_metrics.table(profile(steady_ops=ops, device=device)))[1:]
        known = {(n, g, b): (s, c) for n, g, b, s, c in counters}
        of_kernels = [r | {"ns": r["end_ns"] - r["start_ns"]} for r in rows(ops)
                      if r["op_kind"] == "kernel" and (device is None or r["device"] == device)]  # fmt: skip
        whole = {key: sum(r["ns"] for r in g) for key, g in grouped(of_kernels, "name", "grid", "block").items()}
        told = []
        for by, column in (("kernel", "name"), ("family", "family"), ("module", "module"), ("phase", "phase")):
            part = []
            for (name,), group in grouped(of_kernels, column).items():
                ns, sampled, weighted, samples = sum(r["ns"] for r in group), 0, 0.0, 0.0
                for r in group:
                    count, share = known.get((r["name"], r["grid"], r["block"]), (None, None))
                    if count is not None and whole[r["name"], r["grid"], r["block"]]:
                        samples += count * r["ns"] / whole[r["name"], r["grid"], r["block"]]
                    if share is not None:
                        sampled, weighted = sampled + r["ns"], weighted + share * r["ns"]
                mean = weighted / sampled if sampled >= 0.8 * ns and sampled else None
                part.append((by, name, ns, samples, mean))
            told += sorted(part, key=lambda r: (-r[2], last_null(r[1])))
        assert [(r["by"], r["name"], r["total_ns"]) for r in table] == [r[:3] for r in told]
        for row, (_, _, ns, samples, mean) in zip(table, told, strict=True):
            assert abs(row["samples"] - samples) <= 0.5 + 1e-9 or not ns
            assert row["dram"] == (None if mean is None else pytest.approx(mean)) or not ns


def test_only_so_many_names_have_counters() -> None:
    frame = pl.DataFrame({"name": [f"k{i:02}" for i in range(40)], "ns": range(40)})
    ops = frame.select(pl.col("name").cast(pl.Categorical), grid=1, block=1,
        family=pl.col("name").cast(pl.Categorical), module=pl.lit("m"), phase=pl.lit("p"),
                       start_ns=pl.lit(0), end_ns="ns", op_kind=pl.lit("kernel"), device=pl.lit(0))  # fmt: skip
    shares = pl.DataFrame(
        schema={
            "name": pl.Categorical,
            "grid": pl.Int32,
            "block": pl.Int32,
            **{c: t for c, t in gpu_metrics._SCHEMA.items() if c not in ("by", "name", "total_ns")},
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_counters, "of_kernels", always(shares))
        patch.setattr(gpu_metrics, "_step", always(SAMPLED_STEP))
        table = rows(gpu_metrics.table(profile(steady_ops=ops, device=0)))
    assert [r["name"] for r in table if r["by"] == "kernel"] == [f"k{i:02}" for i in range(39, 9, -1)]
    assert analysis_bounds.MOST_METRIC_ROWS == 30


# --- time of steps ------------------------------------------------------------------------------------------------------


def function_of(spans: Sequence[tuple[int, int]]) -> StepFunction:
    """Return the function that is 1 in the spans."""
    return coverage([(np.array([s for s, _ in spans], np.int64), np.array([e for _, e in spans], np.int64))])


def spans_of(frame: pl.DataFrame) -> list[tuple[int, int]]:
    return list(frame.select("start_ns", "end_ns").iter_rows())


def test_waits_for_batches_are_cut_by_what_ran_meanwhile() -> None:
    for source in rounds():
        border = sorted(source.sample(range(1, 60), source.choice((1, 2, 4))))
        start, end = np.array([0, *border], np.int64), np.array([*border, 60], np.int64)
        waits, busy = (spans_of(columns(source, 6).times().frame()) for _ in range(2))
        waits, busy = ([(s, e) for s, e in each if e > s] for each in (waits, busy))
        found = data_loader._waits_during(function_of(waits), function_of(busy), 1, start, end)
        both = covered(*waits) & covered(*busy)
        assert found.tolist() == [
            len(both & set(range(s, e))) for s, e in zip(start.tolist(), end.tolist(), strict=True)
        ]
        nothing = StepFunction(np.empty(0, np.int64), np.empty(0, np.int64))
        assert not data_loader._waits_during(nothing, function_of(busy), 1, start, end).any()
        assert not data_loader._waits_during(function_of(waits), nothing, 1, start, end).any()


def test_each_step_has_its_wait_for_a_batch() -> None:
    for source in rounds():
        border = sorted(source.sample(range(1, 60), 3))
        steps = pl.DataFrame({"process": [PROCESS] * 3 + [OTHER], "thread": [1, 1, 2, 1], "index": [0, 1, 2, 0],
                              "steady": [False, True, True, True], "start_ns": [0, border[0], border[1], 0],
                              "end_ns": [border[0], border[1], border[2], 50]})  # fmt: skip
        of = Columns(source, source.randrange(1, 6)).times().names("phase", ("data", "data", "forward"))
        loads = of.add("process", (PROCESS, PROCESS, OTHER)).add("thread", (1, 1, 2)).frame()
        mine = [r for r in rows(loads) if r["phase"] == "data" and r["process"] == PROCESS]
        busy, pinned, api = (
            [(s, e) for s, e in spans_of(columns(source, 5).times().frame()) if e > s] for _ in range(3)
        )
        idle = columns(source, 5).times().add("cause", (Cause.DATA_LOADER.number, Cause.HOST_CODE.number)).frame()
        dry = covered(*((r["start_ns"], r["end_ns"]) for r in rows(idle) if r["cause"] == Cause.DATA_LOADER.number))
        names = pl.DataFrame(
            {
                "process": [PROCESS, PROCESS, OTHER],
                "thread": [9, 1, 8],
                "name": ["pt_data_pin", "python", "pt_data_pin"],
            }
        )
        labelled = {
            t: StepFunction((f := function_of(spans)).times, f.labels - 1)
            for t, spans in ((9, pinned), (1, api), (8, busy))
        }
        ledgers = type("L", (), {
            "activity": {(PROCESS, 0): function_of(busy), (OTHER, 0): function_of(api)}, "threads": labelled,
            "idle_of": staticmethod(always(idle)),
        })  # fmt: skip
        shown = profile(
            attributed=type("A", (), {"phase_spans": loads}), steps=type("S", (), {"process": PROCESS, "cpu": steps}), ledgers=ledgers,
            trace=type("T", (), {"thread_name": names}), device=0, steps_of_capture=lambda: pl.col("index") + 100,
        )  # fmt: skip
        if not mine:
            with pytest.raises(NotRecorded):
                data_loader.table(shown)
            continue
        told = []
        for r in rows(steps)[:3]:
            inside = set(range(r["start_ns"], r["end_ns"]))
            wait = covered(*((w["start_ns"], w["end_ns"]) for w in mine if w["thread"] == r["thread"])) & inside
            late = len(wait & dry)
            told.append(
                {"index": r["index"] + 100, "steady": r["steady"], "step_ns": len(inside), "wait_ns": len(wait),
                 "api_ns": len(wait & covered(*api)) if r["thread"] == 1 else 0, "gpu_idle_ns": late,
                 "gpu_hidden_ns": len(wait & covered(*busy)) if busy else None,
                 "pin_thread_ns": len(wait & covered(*pinned)),
                 "verdict": "no_wait" if not wait else "starved" if late * 10 >= len(wait) else "hidden"}
            )  # fmt: skip
        assert same(rows(data_loader.table(shown)), told)


def ticks(blocks: list[tuple[int, int]], t: int) -> int | None:
    return next((i for i, (s, e) in enumerate(blocks) if s <= t < e), None)


def blocks_of(source: Any) -> tuple[Any, list[tuple[int, int]]]:
    """Return steps with gaps between them, as `step_parts` has them, of which two share a block."""
    border = sorted(source.sample(range(60), 8))
    steps = [(border[i], border[i + 1]) for i in range(0, 8, 2)]
    blocks = step_parts._Blocks.__new__(step_parts._Blocks)
    blocks.process, blocks.device, blocks.steps, blocks.size = PROCESS, 0, 4, 2
    blocks.start, blocks.end = (np.array(v, np.int64) for v in zip(*steps, strict=True))
    blocks.gpu_start, blocks.gpu_end = (np.array(v, np.int64) for v in (border[:4], border[1:5]))
    blocks.of = np.array([0, 0, 1, 1])
    return blocks, steps


def test_work_is_counted_in_the_step_that_launched_it() -> None:
    for source in rounds():
        blocks, steps = blocks_of(source)
        ops = work(columns(source, 16))
        part, step = blocks.in_steps(ops, ops["call_start_ns"])
        kept = [
            (r, s)
            for r in rows(ops)
            if r["call_start_ns"] is not None and (s := ticks(steps, r["call_start_ns"])) is not None
        ]
        assert same(rows(part), [r for r, _ in kept]) and step.tolist() == [s for _, s in kept]
        found = list(step_parts._work(profile(steady_ops=ops), blocks, {"b": "Block"}))
        told = []
        of_process = [(r, s // 2) for r, s in kept if r["process"] == PROCESS]
        for part_name, column in (("module", "module"), ("family", "family"), ("kernel", "name")):
            sums: dict[Any, list[list[int]]] = {}
            for r, block in of_process:
                if part_name == "kernel" and r["op_kind"] != "kernel":
                    continue
                count, ns = sums.setdefault(r[column], [[0, 0], [0, 0]])
                count[block] += 1
                ns[block] += r["end_ns"] - r["start_ns"]
            cls = {"b": "Block"} if part_name == "module" else {}
            told += [
                (part_name, name, cls.get(name), None, *sums[name])
                for name in sorted(sums, key=lambda n: (-sum(sums[n][1]), n or ""))
            ]
        assert found == told


def test_each_busy_instant_belongs_to_the_op_that_began_first() -> None:
    for source in rounds():
        blocks, _ = blocks_of(source)
        tiles = list(zip(blocks.gpu_start.tolist(), blocks.gpu_end.tolist(), strict=True))
        frame = (
            columns(source)
            .times()
            .frame()
            .filter((pl.col("end_ns") > tiles[0][0]) & (pl.col("start_ns") < tiles[-1][1]))
        )
        frame = frame.sort("start_ns", "end_ns")
        found: dict[tuple[int, int], int] = {}
        for row, step, ns in zip(*(v.tolist() for v in step_parts._exclusive(blocks, frame)), strict=True):
            found[row, step] = found.get((row, step), 0) + ns
        told: dict[tuple[int, int], int] = {}
        taken: set[int] = set()
        for row, (start, end) in enumerate(spans_of(frame)):
            for t in set(range(start, end)) - taken:
                if (tile := ticks(tiles, t)) is not None:
                    told[row, tile] = told.get((row, tile), 0) + 1
            taken |= set(range(start, end))
        assert {k: v for k, v in found.items() if v} == told


def test_names_beyond_those_listed_share_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_parts, "MOST_PART_NAMES", 2)
    blocks, _ = blocks_of(next(rounds()))
    names = pl.Series(["a", "b", "c", "d", "c"], dtype=pl.Categorical)
    step, ns = np.array([0, 1, 2, 3, 3]), np.array([5, 9, 1, 2, 1], np.int64)
    assert list(step_parts._grouped(blocks, "api", names, step, ns, {"a": "launch", "d": "x"})) == [
        ("api", "b", None, None, [1, 0], [9, 0]),
        ("api", "a", "launch", None, [1, 0], [5, 0]),
        ("api", step_parts.REST, None, None, [0, 3], [0, 4]),
    ]
    assert [r[4] for r in step_parts._grouped(blocks, "api", names, step, ns, counted=False)] == [None] * 3


def test_the_busiest_device_of_the_steady_windows_is_cut() -> None:
    for source in rounds():
        spans = {d: [(s, e) for s, e in spans_of(columns(source, 5).times().frame()) if e > s] for d in (0, 1, 2)}
        windows = pl.DataFrame(
            {"process": [PROCESS] * 3 + [OTHER], "device": [0, 1, 2, 2], "start_ns": [10] * 4, "end_ns": [40] * 4}
        )
        ledgers = type("L", (), {"activity": {(PROCESS, d): function_of(s) for d, s in spans.items()}})
        shown = profile(steps=type("S", (), {"process": PROCESS, "windows": windows}), ledgers=ledgers)
        busy = {d: len(covered(*s) & set(range(10, 40))) for d, s in spans.items()}
        assert step_parts._busiest(shown, [0, 1, 2]) == min(busy, key=lambda d: (-busy[d], d))


def test_an_instant_of_overlapping_ops_belongs_to_the_phase_that_began_last() -> None:
    for source in rounds(80):
        ops = work(Columns(source, source.randrange(1, 10)))
        ops = ops.filter(pl.col("end_ns") > pl.col("start_ns")).with_row_index("number")
        start, end = source.randrange(0, 20), source.randrange(40, 70)
        pieces = pl.DataFrame(
            [(source.randrange(-1, ops.height), source.randrange(5)) for _ in range(4)],
            schema={"op": pl.Int64, "ns": pl.Int64},
            orient="row",
        )
        ops = ops.with_columns(op=pl.col("number").cast(pl.Int64)).drop("number")
        shown = profile(
            device=0,
            process=PROCESS,
            window=(start, end),
            attributed=type("A", (), {"gpu_ops": ops}),
            shown_idle=lambda pieces=pieces: pieces,
        )
        found = phases._gpu(shown)
        mine = sorted(
            (r for r in rows(ops) if (r["process"], r["device"]) == (PROCESS, 0)),
            key=lambda r: (r["start_ns"], -r["end_ns"], r["op"]),
        )
        owner = {t: r["phase"] for r in mine for t in range(max(r["start_ns"], start), min(r["end_ns"], end))}
        told: dict[str | None, list[int]] = {}
        for phase in owner.values():
            told.setdefault(phase, [0, 0])[0] += 1
        for op, ns in pieces.iter_rows():
            told.setdefault(ops["phase"].cast(pl.String)[op] if op >= 0 else None, [0, 0])[1] += ns
        assert {k: v for k, v in found.items() if any(v)} == {k: v for k, v in told.items() if any(v)}
    assert phases._gpu(profile(device=None)) == {}


def test_the_driving_thread_is_in_a_phase_outside_of_all_or_between_steps() -> None:
    for source in rounds():
        border = sorted(source.sample(range(60), 6))
        steps = pl.DataFrame(
            [(PROCESS, 1, border[i], border[i + 1], source.random() < 0.8) for i in (0, 2, 4)] + [(OTHER, 1, 0, 60, True)],
            schema={"process": pl.Int64, "thread": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "steady": pl.Boolean}, orient="row",
        )  # fmt: skip
        begin, until = source.choice(((border[0], border[5]), (border[1], border[4])))
        windows = pl.DataFrame({"process": [PROCESS], "start_ns": [begin], "end_ns": [until]})
        inner = sorted(source.sample(range(60), 4))
        spans = pl.DataFrame(
            [(1, inner[0], inner[1], "forward"), (1, inner[2], inner[3], source.choice(("forward", "backward"))), (2, 0, 60, "data")],
            schema={"thread": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "phase": pl.String}, orient="row",
        )  # fmt: skip
        whole = source.random() < 0.3
        shown = profile(
            process=PROCESS,
            steps=type("S", (), {"cpu": steps, "cpu_windows": windows, "whole": whole}),
            attributed=type("A", (), {"phase_spans": spans}),
        )
        found = phases._cpu(shown)
        kept = [(r["start_ns"], r["end_ns"]) for r in rows(steps) if r["process"] == PROCESS and (r["steady"] or whole)]
        told: dict[str | None, int] = {}
        if kept:
            for t in range(begin, until):
                phase = next(
                    (r["phase"] for r in rows(spans) if r["thread"] == 1 and r["start_ns"] <= t < r["end_ns"]), None
                )
                inside = ticks(kept, t) is not None
                name = phase if phase is not None else None if inside else phases.BETWEEN
                told[name] = told.get(name, 0) + 1
            assert sum(found.values()) == until - begin
        assert {k: v for k, v in found.items() if v} == told


# --- idle time of the host ----------------------------------------------------------------------------------------------


def host_idle(of: Columns) -> Columns:
    return of.times().add("cause", (Cause.HOST_CODE.number, Cause.DATA_LOADER.number))


def idle_sums(of: Sequence[Row]) -> dict[str, int]:
    return {
        column: sum(r["end_ns"] - r["start_ns"] for r in of if r["cause"] == cause.number)
        for column, cause in (("idle_ns", Cause.HOST_CODE), ("loader_idle_ns", Cause.DATA_LOADER))
    }


def test_idle_time_by_call_of_the_operating_system() -> None:
    for source in rounds():
        of = host_idle(columns(source, 16)).names("module", ("a", None)).names("phase", ("forward", None))
        parts = (
            of.names("name", ("poll", "read", None)).names("kind", ("file", None)).add("span", (None, 1, 1, 2)).frame()
        )
        told = [
            {
                "name": n or os_waits.NO_CALL,
                "kind": k,
                "module": m,
                "phase": p,
                "calls": len({r["span"] for r in g} - {None}),
            }
            | idle_sums(g)
            for (n, k, m, p), g in grouped(rows(parts), "name", "kind", "module", "phase").items()
        ]
        key = ("idle_ns", "loader_idle_ns", "name", "kind", "module", "phase", "calls")
        found = rows(os_waits.table(profile(once=asked({os_idle: parts}))))
        assert sorted(tuple(map(str, (r[c] for c in key))) for r in found) == sorted(
            tuple(map(str, (r[c] for c in key))) for r in told
        )
        order = [
            (
                -r["idle_ns"],
                -r["loader_idle_ns"],
                last_null(None if r["name"] == os_waits.NO_CALL else r["name"]),
                last_null(r["module"]),
                last_null(r["phase"]),
            )
            for r in found
        ]
        assert order == sorted(order)


def test_idle_time_by_holder_of_the_lock() -> None:
    for source in rounds():
        of = host_idle(columns(source, 16)).add("waits", (True, True, False), pl.Boolean)
        parts = of.add("holder", (None, (1 << 24) + 5, (1 << 24) + 6)).frame()
        names = pl.DataFrame(
            {"thread": [(1 << 24) + 5] * 2, "name": ["worker"] * 2}, schema={"thread": pl.Int64, "name": pl.Categorical}
        )
        shown = profile(
            once=asked({gil_idle: parts}),
            ranges=type("R", (), {"gil": parts}),
            trace=type("T", (), {"thread_name": names}),
        )
        placed = [source.choice((None, None, 0, 1)) for _ in range(parts.height)]
        places = pl.DataFrame(
            {"file": ["a.py", "b.py"], "line": [3, 4], "function": ["f", "g"], "framework": [None, "torch"]}
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gil_waits, "lines_of", always(placed))
            patch.setattr(
                gil_waits, "known_lines", always(type("K", (), {"places": type("P", (), {"places": places})}))
            )
            found = rows(gil_waits.table(shown))
        held = []
        for r, place in zip(rows(parts), placed, strict=True):
            who = (
                gil_waits.FREE
                if not r["waits"]
                else gil_waits.UNKNOWN
                if r["holder"] is None
                else {5: "worker", 6: "thread 6"}[r["holder"] - (1 << 24)]
            )
            line = rows(places)[place] if place is not None else dict.fromkeys(places.columns)
            held.append(r | {"holder": who} | line)
        keys = ("holder", "file", "line", "function", "framework")
        told = [dict(zip(keys, key, strict=True)) | idle_sums(g) for key, g in grouped(held, *keys).items()]
        told.sort(key=lambda r: (-r["idle_ns"], -r["loader_idle_ns"], *(last_null(r[k]) for k in keys)))
        assert found == [{c.name: r[c.name] for c in gil_waits.COLUMNS} for r in told]


# --- memory, operators, totals ------------------------------------------------------------------------------------------


def test_memory_is_what_was_taken_and_not_given_back() -> None:
    for source in rounds():
        of = columns(source, 20).add("time_ns", range(0, 700, 3)).add("address", range(1_000)).add("freed", (0, 0, 1))
        of.add("bytes", (None, 4, -4, 16)).add("process", (PROCESS, OTHER)).add("device", (0, 1))
        kinds = list(schema.MEMORY_KINDS)[:2]
        frame = of.add("memory_kind", kinds).frame()
        found = memory.table(profile(trace=type("T", (), {"memory_usage": frame})))
        events = sorted(
            (r for r in rows(frame) if r["bytes"] is not None), key=lambda r: (r["time_ns"], r["address"], r["freed"])
        )
        told = []
        for (process, device, kind), part in grouped(events, "process", "device", "memory_kind").items():
            first, level = part[0]["time_ns"], 0
            width = max(1, -(-(part[-1]["time_ns"] - first + 1) // analysis_bounds.MEMORY_LINE_POINTS))
            points: dict[int, Row] = {}
            for r in part:
                size, back = abs(r["bytes"]), r["freed"] != 0
                level += -size if back else size
                at = first + (r["time_ns"] - first) // width * width
                point = points.setdefault(at, {"process": process, "device": device, "kind": schema.MEMORY_KINDS[kind],
                    "time_ns": at, "bytes": 0,
                    "peak_bytes": level, "allocations": 0, "frees": 0, "allocated_bytes": 0, "freed_bytes": 0})  # fmt: skip
                point["bytes"], point["peak_bytes"] = level, max(point["peak_bytes"], level)
                point["frees" if back else "allocations"] += 1
                point["freed_bytes" if back else "allocated_bytes"] += size
            told += points.values()
        assert same(rows(found), [{c.name: r[c.name] for c in memory.COLUMNS} for r in told])


def test_operators_have_the_gpu_time_and_the_waits_of_all_their_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "MOST_OPERATOR_ROWS", 3)
    for source in rounds():

        def placed(of: Columns) -> Columns:
            of.add("name", ("mm", "add", None), pl.String).add("shapes", ("[[8, 4], [], [4]]", None), pl.String)
            return (
                of.add("module", ("a", None), pl.String)
                .add("phase", ("forward",), pl.String)
                .add("caller", ("x", "y", None), pl.String)
            )

        done = (
            placed(columns(source))
            .add("counts", (True, False), pl.Boolean)
            .add("kernels", (1, 2))
            .add("gpu_ns", iter(source.sample(range(500), 60)).__next__)
        )
        done = (
            done.add("kernel", ("k1", "k2"), pl.String)
            .add("number_format", ("bf16", None), pl.String)
            .add("flops", (None, 10, 20))
        )
        done = (
            done.add("ideal_ns", (None, 1.0, 3.0), pl.Float64)
            .add("why_not", ("unknown sizes", None), pl.String)
            .frame()
        )
        host = placed(columns(source, 5))
        for figure in ("waits", "wait_ns", "allocations", "allocation_ns"):
            host.add(figure, (0, 1, 700))
        at_host = host.frame()
        monkeypatch.setattr(operator_work, "with_ideal", lambda _, frame: frame)
        found = operators.table(profile(once=asked({operator_work.executions: done, operator_work.host_side: at_host})))
        keys = ("name", "shapes", "module", "phase")
        gpu, cpu = grouped(rows(done), *keys), grouped(rows(at_host), *keys)

        def first(of: Sequence[Row], column: str) -> Any:
            return next((r[column] for r in of if r[column] is not None), None)

        def whole(of: Sequence[Row], column: str) -> Any:
            return sum(r[column] for r in of) if of and all(r[column] is not None for r in of) else None

        told = []
        for key in gpu.keys() | cpu.keys():
            g, h = gpu.get(key, []), cpu.get(key, [])
            ns = sum(r["gpu_ns"] for r in g)
            flops, ideal = whole(g, "flops"), whole(g, "ideal_ns")
            told.append(
                dict(zip(keys, key, strict=True))
                | {c: sum(r[c] for r in g) for c in ("kernels",)} | {"calls": sum(r["counts"] for r in g), "gpu_ns": ns}
                | {c: sum(r[c] for r in h) for c in ("waits", "wait_ns", "allocations", "allocation_ns")}
                | {"caller": first(g, "caller") or first(h, "caller"), "kernel": max(g, key=lambda r: r["gpu_ns"])["kernel"] if g else None,
                   "number_format": first(g, "number_format"), "why_not": first(g, "why_not"), "flops": flops,
                   "tflops": flops / ns / 1e3 if flops is not None and ns else None,
                    "peak_share": ideal / ns if ideal is not None and ns else None}
            )  # fmt: skip
        told.sort(
            key=lambda r: (-max(r["gpu_ns"], r["wait_ns"] + r["allocation_ns"]), *(last_null(r[k]) for k in keys))
        )
        for r in told:
            r["shapes"] = r["shapes"] and "8x4, 4"
        sums = ("calls", "kernels", "gpu_ns", "waits", "wait_ns", "allocations", "allocation_ns")
        if rest := told[3:]:
            name = {"name": f"({len(rest)} other operators and shapes)"}
            told[3:] = [dict.fromkeys(told[0]) | name | {c: sum(r[c] for r in rest) for c in sums}]
        shown = [c.name for c in operators.COLUMNS if not told or c.name in told[0]]
        assert same(rows(found.select(shown)), [{c: r[c] for c in shown} for r in told])


def test_totals_of_a_capture_of_which_parts_were_read_are_those_of_all_rows() -> None:
    counted = type(
        "C",
        (),
        {
            "work": {"kernel": (3, 50), "memset": (1, 2)},
            "calls": (
                ("cudaLaunchKernel_v7000", 4, 40),
                ("cuLaunchKernel", 2, 5),
                ("cudaMemcpyAsync_v3020", 1, 9),
                (None, 1, 3),
            ),
        },
    )
    shown = profile(trace=type("T", (), {"sampled": type("S", (), {"totals": counted})}))
    found = report_totals.totals(shown)
    work_of = {
        k: found[k]
        for k in (
            "kernels",
            "kernel_ns",
            "memcpys",
            "memcpy_ns",
            "memsets",
            "memset_ns",
            "opaque_graphs",
            "opaque_graph_ns",
        )
    }
    assert work_of == {
        "kernels": 3,
        "kernel_ns": 50,
        "memcpys": 0,
        "memcpy_ns": 0,
        "memsets": 1,
        "memset_ns": 2,
        "opaque_graphs": 0,
        "opaque_graph_ns": 0,
    }
    assert (found["api_calls"], found["api_ns"], found["gpu_ops_without_call"]) == (8, 57, None)
    assert found["api_by_kind"][Call.LAUNCH] == {"calls": 6, "ns": 45, "self_ns": None}
    assert found["api_by_kind"][Call.COPY] == {"calls": 1, "ns": 9, "self_ns": None}
    unrecorded = profile(trace=shown.trace, recorded=always(False))
    counted.work = {}
    found = report_totals.totals(unrecorded)
    assert found["kernels"] is found["api_calls"] is found["api_ns"] is found["api_by_kind"] is None

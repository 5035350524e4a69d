"""Modules, the launch queue and the calls of threads against slow references over rows, on random small frames."""

from __future__ import annotations

import random
import statistics
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from nsysx.analyses import modules, stacks
from nsysx.analyses.helpers import host_stopwatch, launch_queue
from nsysx.catalogue import Call
from nsysx.events.attribute import GRADES
from nsysx.model import Row
from nsysx.reading import schema
from tests.random_tables import always, asked, columns, covered, profile, rounds, rows

PROCESS, OTHER = 7, 8
KINDS = (Call.LAUNCH, Call.GRAPH_LAUNCH, Call.COPY, Call.MEMSET, Call.SYNC, Call.OTHER, Call.EVENT)


def test_what_each_module_did_itself() -> None:
    for source in rounds():
        of = (
            columns(source, 16)
            .times()
            .names("op_kind", ("kernel", "memcpy", "memset"))
            .names("grade", GRADES)
            .names("module", ("a", "b", None))
        )
        ops = of.names("phase", ("forward", "backward", None)).add("queue_ns", (None, 3, 4)).frame()
        of = (
            columns(source, 16)
            .add("call", iter(range(50)).__next__)
            .names("kind", KINDS)
            .names("module", ("a", "c", None))
        )
        calls = of.add("self_ns", range(9)).frame()
        waits = pl.DataFrame(
            [(c, source.randrange(9)) for c in range(20) if source.random() < 0.4],
            schema={"call": pl.Int64, "backlog_ns": pl.Int64},
            orient="row",
        )
        idle = (
            columns(source, 5)
            .add("op", (-1, *range(max(ops.height, 1))))
            .add("ns", range(9))
            .frame()
            .filter(pl.col("op") < ops.height)
        )
        shown = profile(
            steady_ops=ops,
            steady_calls=calls,
            waits=waits,
            shown_idle=always(idle),
            attributed=SimpleNamespace(gpu_ops=ops),
        )
        found = modules._self_figures(shown)
        blank: Row = dict.fromkeys(modules._SUMS, 0)
        told: dict[str | None, Row] = {}
        for r in rows(ops):
            row, ns = told.setdefault(r["module"], dict(blank)), r["end_ns"] - r["start_ns"]
            row["backward_gpu_ns" if r["phase"] == "backward" else "forward_gpu_ns"] += ns
            row["self_gpu_ns"] += ns
            row[r["grade"]] += ns
            row["kernels"] += r["op_kind"] == "kernel"
            row["copy_ns"] += ns if r["op_kind"] != "kernel" else 0
            row["queue_ns"] += r["queue_ns"] or 0
        backlog = dict(waits.iter_rows())
        for r in rows(calls):
            row = told.setdefault(r["module"], dict(blank))
            row["launch_ns"] += r["self_ns"] if r["kind"] in (Call.LAUNCH, Call.GRAPH_LAUNCH) else 0
            row["sync_ns"] += r["self_ns"] if r["kind"] == Call.SYNC else 0
            row["wait_ns"] += backlog.get(r["call"], 0)
        for op, ns in idle.iter_rows():
            told.setdefault(rows(ops)[op]["module"] if op >= 0 else None, dict(blank))["idle_blamed_ns"] += ns
        assert {m: r for m, r in found.items() if any(r.values())} == {m: r for m, r in told.items() if any(r.values())}


def test_calls_of_modules_in_the_steady_steps() -> None:
    for source in rounds():
        of = (
            columns(source, 24)
            .times()
            .add("process", (PROCESS, PROCESS, OTHER))
            .names("name", ("a", "b", "", "forward"))
        )
        of.names("cls", ("Net", "Block")).names("kind", ("module", "module", "phase")).add(
            "own", (True, True, False), pl.Boolean
        )
        ranges = (
            of.add("crossing", (False, False, True), pl.Boolean)
            .add("recompute", (False, False, True), pl.Boolean)
            .frame()
        )
        windows = pl.DataFrame({"process": [PROCESS, OTHER], "start_ns": [10, 0], "end_ns": [50, 60]})
        shown = profile(
            process=PROCESS, steps=SimpleNamespace(cpu_windows=windows), ranges=SimpleNamespace(ranges=ranges)
        )
        if not any(r["own"] and r["kind"] == "module" and not r["crossing"] for r in rows(ranges)):
            continue
        told: dict[str, int] = {}
        for r in rows(ranges):
            if r["crossing"] or r["recompute"] or r["process"] != PROCESS or not 10 <= r["start_ns"] < 50:
                continue
            if r["kind"] == "module" and r["own"]:
                name = r["name"] or f"({r['cls']})"
            elif r["kind"] == "phase":
                name = f"({r['name']})"
            else:
                continue
            told[name] = told.get(name, 0) + 1
        assert modules._calls(shown) == told


def test_the_weakest_grade_of_a_hundredth_of_the_time() -> None:
    for source in rounds(80):
        row = {g: source.choice((0, 1, 5, 99, 495)) for g in GRADES}
        row["self_gpu_ns"] = sum(row.values())
        notable = [g for g in GRADES if row[g] * 100 >= row["self_gpu_ns"] and row[g]]
        told = (notable[-1] if notable else "none") if row["self_gpu_ns"] else "thread"
        assert modules._grade("a", row) == told
    assert modules._grade(None, dict.fromkeys((*GRADES, "self_gpu_ns"), 0)) == "none"


def test_how_far_modules_lie_below_their_root() -> None:
    for source in rounds(60):
        names = "abcdef"
        parents: dict[str | None, str | None] = {
            n: source.choice((None, "outside", *names[:i])) for i, n in enumerate(names)
        }

        def depth(n: str | None, parents: dict[str | None, str | None] = parents) -> int:
            up = parents[n]
            return 0 if up is None else 1 + (depth(up, parents) if up in parents else 0) if up in parents else 1

        shuffled = dict(source.sample(list(parents.items()), len(parents)))
        found = modules._depths(shuffled)
        told = {n: depth(n) for n in parents}
        assert {n: found[n] for n in names} == {
            n: told[n] if parents[n] in parents or parents[n] is None else found[n] for n in names
        }
        for n in names:
            if parents[n] in parents:
                assert found[n] == found[parents[n]] + 1
    assert modules._depths({"a": "b", "b": "a"})["a"] in (0, 1)


# --- the launch queue ---------------------------------------------------------------------------------------------------


def queue_of(source: random.Random) -> pl.DataFrame:
    of = columns(source, 16).times().add("process", (PROCESS, PROCESS, OTHER)).add("call_start_ns", (None, *range(60)))
    return of.frame()


def test_work_that_is_launched_and_not_done() -> None:
    for source in rounds():
        ops, begin = queue_of(source), source.choice((None, 30))
        shown = profile(
            attributed=SimpleNamespace(gpu_ops=ops),
            trace=SimpleNamespace(window=None if begin is None else (begin, 99)),
        )
        shown.once = asked({launch_queue._borders: launch_queue._borders(shown)})
        at = [(source.choice((PROCESS, OTHER)), source.randrange(80)) for _ in range(8)]
        told = []
        for process, t in at:
            called = [
                (r, begin if r["call_start_ns"] is None else r["call_start_ns"])
                for r in rows(ops)
                if r["process"] == process
            ]
            told.append(sum(c is not None and c < t < max(r["end_ns"], c) for r, c in called))
        assert launch_queue.pending(shown, *(np.array(v, np.int64) for v in zip(*at, strict=True))).tolist() == told


def test_overhead_counts_inside_the_outer_call_of_its_id() -> None:
    for source in rounds(80):
        of = columns(source, 8).times(40).add("process", (PROCESS,)).add("correlation_id", (0, 1, 2, None))
        calls = of.frame().sort("start_ns")
        of = columns(source, 8).times(60).add("process", (PROCESS, PROCESS, OTHER)).add("correlation_id", (0, 1, 2))
        overhead = of.add("overhead_type", (schema.OVERHEAD_QUEUE_FULL, schema.OVERHEAD_QUEUE_FULL, 1)).frame()
        wanted = [r for r in rows(overhead) if r["overhead_type"] == schema.OVERHEAD_QUEUE_FULL and r["correlation_id"]]
        at, told = rows(calls), []
        for i, r in enumerate(at):
            same = [j for j, x in enumerate(at) if x["correlation_id"] == r["correlation_id"]]
            outer = min(same, key=lambda j: (at[j]["start_ns"], -at[j]["end_ns"], j)) if r["correlation_id"] else None
            mine = [
                (x["start_ns"], x["end_ns"])
                for x in wanted
                if x["correlation_id"] == r["correlation_id"] and x["process"] == PROCESS
            ]
            told.append(len(covered(*mine) & set(range(r["start_ns"], r["end_ns"]))) if outer == i else 0)
        if len({(r["start_ns"], r["end_ns"], r["correlation_id"]) for r in at}) == len(
            at
        ):  # else any of the equal ones may stand for all
            trace: Any = SimpleNamespace(cupti_overhead=overhead)
            assert launch_queue.overhead_inside(trace, calls, (schema.OVERHEAD_QUEUE_FULL,)).tolist() == told


def test_a_launch_blocks_where_many_wait_and_it_takes_far_longer_than_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without overhead rows: five times the median launch, with 900 operations pending; what exceeds the median is blocking."""
    for source in rounds():
        of = (
            columns(source, 16)
            .names("kind", KINDS)
            .add("self_ns", (0, 1, 2, 10, 11, 100))
            .add("process", (PROCESS,))
            .add("start_ns", (5,))
        )
        calls = of.add("waiting", (899, 900, 2_000)).frame()
        at = rows(calls)

        def waiting(_: Any, __: Any, ___: Any, at: list[Row] = at) -> Any:
            ns = [r["self_ns"] for r in at if r["kind"] in (Call.LAUNCH, Call.GRAPH_LAUNCH)]
            usual = int(statistics.median(ns))
            return np.array(
                [
                    r["waiting"]
                    for r in at
                    if r["kind"] in (Call.LAUNCH, Call.GRAPH_LAUNCH) and r["self_ns"] > 5 * max(usual, 1)
                ]
            )

        monkeypatch.setattr(launch_queue, "pending", waiting)
        launches = [r["self_ns"] for r in at if r["kind"] in (Call.LAUNCH, Call.GRAPH_LAUNCH)]
        trace = SimpleNamespace(
            cupti_overhead=pl.DataFrame(schema={"overhead_type": pl.Int64, "correlation_id": pl.Int64})
        )
        found = launch_queue.queue_full(
            profile(recorded=always(False), trace=trace), calls.with_columns(correlation_id=1)
        ).tolist()
        usual = int(statistics.median(launches)) if launches else 0
        assert found == [
            r["self_ns"] - usual
            if r["kind"] in (Call.LAUNCH, Call.GRAPH_LAUNCH)
            and r["self_ns"] > 5 * max(usual, 1)
            and r["waiting"] >= 900
            else 0
            for r in at
        ]


def test_gpu_calls_know_their_neighbours_on_their_thread() -> None:
    for source in rounds():
        made = [
            (PROCESS, thread, i * 10 + source.randrange(5), source.choice(KINDS))
            for thread in (1, 2, 3)
            for i in range(source.randrange(5))
        ]
        calls = pl.DataFrame(
            made,
            schema={"process": pl.Int64, "thread": pl.Int64, "start_ns": pl.Int64, "kind": pl.Categorical},
            orient="row",
        )
        calls = calls.with_columns(end_ns=pl.col("start_ns") + 3)
        left = SimpleNamespace(after=lambda _, time: (time % 2).astype(np.int64))
        shown = profile(attributed=SimpleNamespace(api_calls=calls), once=always(left))
        gpu = host_stopwatch.GpuCalls(shown)
        kept = [i for i, m in enumerate(made) if m[3] not in (Call.OTHER, Call.EVENT)]
        assert gpu.call.tolist() == kept
        assert gpu.row.tolist() == [kept.index(i) if i in kept else -1 for i in range(len(made))]
        every = np.arange(len(kept))
        same = [made[a][1] == made[b][1] for a, b in pairwise(kept)]
        assert gpu.previous(every).tolist() == [i - 1 if i and same[i - 1] else -1 for i in range(len(kept))]
        assert gpu.following(every).tolist() == [
            i + 1 if i + 1 < len(kept) and same[i] else -1 for i in range(len(kept))
        ]
        assert gpu.idle_after.tolist() == [made[i][3] == Call.SYNC and (made[i][2] + 3) % 2 == 0 for i in kept]
        for thread in (1, 2, 3, 4):
            at = np.arange(0, 60, 7)
            mine = [r for r, i in enumerate(kept) if made[i][1] == thread]
            told = [max((r for r in mine if made[kept[r]][2] < t), default=-1) for t in at.tolist()]
            assert gpu.at(thread, at).tolist() == told


@pytest.mark.parametrize(
    ("file", "shown"),
    [("/home/me/train.py", "train.py"), ("C:\\me\\train.py", "train.py"), ("train.py", "train.py"),
     ("/usr/lib/python3/site-packages/torch/nn/a.py", "torch/nn/a.py")],
)  # fmt: skip
def test_files_are_shown_without_their_folder(file: str, shown: str) -> None:
    assert stacks.last_of(file) == shown


# --- beside them --------------------------------------------------------------------------------------------------------

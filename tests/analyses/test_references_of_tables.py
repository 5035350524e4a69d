"""Tables of calls, copies, lines, launches and spreads, against slow references over rows, on random small frames."""

from __future__ import annotations

import itertools
import random
import statistics
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from nsysx import units
from nsysx.analyses import (
    api_calls,
    copy_sites,
    host_lines,
    kernel_spread,
    launches,
    lines,
    loader_lines,
    own_ranges,
    phases,
    roofline,
    settings,
    stopwatch,
)
from nsysx.analyses.helpers import host_stopwatch
from nsysx.analyses.helpers.analysis_bounds import (
    FEWEST_EXECUTIONS,
    FEWEST_SPREAD_EXECUTIONS,
    HIDDEN_COPIES_SHARE,
    MOST_ROOFLINE_ROWS,
    NO_LAUNCH_WAIT_SHARE,
    SLOW_FIRST_TIMES,
    SLOW_LAUNCH_NS,
    SLOW_LAUNCH_TIMES,
    SPREAD_RESOLUTION_NS,
    STEADY_SPREAD_SHARE,
)
from nsysx.catalogue import Call
from nsysx.frames.frame_bounds import LONG_AGO_NS
from nsysx.frames.intervals import coverage
from nsysx.model import Row
from nsysx.replay.replay_bounds import LARGE_COPY_BYTES
from tests.random_tables import always, columns, covered, grouped, last_null, profile, rounds, rows, same

PROCESS, OTHER = 7, 8


def calls_of(source: random.Random, most: int = 20) -> pl.DataFrame:
    """Return calls numbered by thread and time."""
    of = columns(source, most).names("name", ("a", "b", "c")).add("ns", range(1, 9)).add("self_ns", range(5))
    frame = of.names("kind", (Call.LAUNCH,)).frame()
    thread = sorted(source.choice((1, 2, 3)) for _ in range(frame.height))
    at = Counter[int]()
    start = []
    for t in thread:
        at[t] += source.choice((1, 10))
        start.append(at[t])
    made = frame.with_columns(thread=pl.Series(thread, dtype=pl.Int64), start_ns=pl.Series(start, dtype=pl.Int64))
    return made.with_columns(end_ns=pl.col("start_ns") + pl.col("ns")).with_row_index("call").cast({"call": pl.Int64})


# --- calls and launches ---------------------------------------------------------------------------------------------------


def test_functions_with_their_first_call() -> None:
    for source in rounds():
        calls = calls_of(source)
        found = {r["name"]: r for r in rows(api_calls._functions(profile(calls=calls)))}
        by_name = grouped(rows(calls), "name")
        assert set(found) == {name for (name,) in by_name}
        for (name,), of in by_name.items():
            first = min(of, key=lambda r: (r["start_ns"], r["thread"]))
            told = {"calls": len(of), "total_ns": sum(r["ns"] for r in of), "self_ns": sum(r["self_ns"] for r in of)}
            assert same([found[name]], [told | {"first_ns": first["ns"]}])
        medians = {r["name"]: r["steady_median_ns"] for r in rows(api_calls._medians(calls))}
        assert medians == {name: statistics.median(r["ns"] for r in of) for (name,), of in by_name.items()}


def test_time_of_functions_that_wait_is_split() -> None:
    for source in rounds():
        calls = calls_of(source)
        steady = calls.filter(pl.Series([source.random() < 0.6 for _ in range(calls.height)], dtype=pl.Boolean))
        waits = pl.DataFrame(
            [(c, 1, source.choice((0, 2))) for c in calls["call"] if source.random() < 0.4],
            schema={"call": pl.Int64, "backlog_ns": pl.Int64, "own_op_ns": pl.Int64},
            orient="row",
        )
        chosen = calls if source.random() < 0.5 else calls.head(5)
        shown = profile(
            calls=chosen,
            steady_calls=steady,
            attributed=SimpleNamespace(api_calls=calls),
            ledgers=SimpleNamespace(waits=waits),
            once=lambda make, chosen=chosen: make(profile(calls=chosen)),
        )
        told = []
        for (name,), of in grouped(rows(chosen), "name").items():
            mine = [w for w in rows(waits) if w["call"] in {r["call"] for r in of}]
            total = sum(r["ns"] for r in of)
            waited = sum(w["backlog_ns"] + w["own_op_ns"] for w in mine)
            of_steady = [r["ns"] for r in rows(steady) if r["name"] == name]
            told.append(
                {
                    "name": name,
                    "self_ns": sum(r["self_ns"] for r in of),
                    "backlog_ns": sum(w["backlog_ns"] for w in mine) if mine else None,
                    "host_ns": total - waited if mine else None,
                    "steady_median_ns": statistics.median(of_steady) if of_steady else None,
                }
            )
        told.sort(key=lambda r: (-r["self_ns"], r["name"]))
        assert same(rows(api_calls.table(shown)), told)


def test_launches_of_the_steady_steps_usual_and_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = 0
    for source in rounds(80):
        of = columns(source, 24).names("name", ("a", "b")).add("gpu_ops", (0, 1, 3))
        of.names("kind", (Call.LAUNCH, Call.LAUNCH, Call.GRAPH_LAUNCH, Call.COPY)).add("process", (PROCESS,))
        of.add("self_ns", (4_000, 5_000, 6_000, SLOW_LAUNCH_NS * 2)).add("start_ns", range(9)).add("end_ns", (10,)).add(
            "correlation_id", (1,)
        )
        calls = of.frame().with_row_index("call").cast({"call": pl.Int64})
        chosen = [r for r in rows(calls) if r["kind"] in Call.LAUNCHES]
        full = [source.choice((0, 0, 100, 7_000)) for _ in chosen]
        pending = [source.randrange(5) for _ in chosen]
        paid = {r["call"]: 1_000 for r in chosen if source.random() < 0.2}
        monkeypatch.setattr(launches, "queue_full", lambda *_, full=full: np.array(full, np.int64))
        monkeypatch.setattr(launches, "pending", lambda *_, pending=pending: np.array(pending, np.int64))
        once = pl.DataFrame(
            {"call": list(paid), "one_time_ns": list(paid.values())}, schema={"call": pl.Int64, "one_time_ns": pl.Int64}
        )
        monkeypatch.setattr(launches.one_time_cost, "costs", always(once))
        made = launches._launches(profile(steady_calls=calls))
        each: list[Row] = []
        for r, queued, before in zip(chosen, full, pending, strict=True):
            queue_ns = min(queued, r["self_ns"])
            own = r["self_ns"] - queue_ns - paid.get(r["call"], 0)
            each.append(
                r | {"queue_full_ns": queue_ns, "own_ns": own, "one_time_ns": paid.get(r["call"]), "pending": before}
            )
        for group in grouped(each, "name").values():
            usual = statistics.median(r["own_ns"] for r in group)
            for r in group:
                r["slow"] = r["own_ns"] > SLOW_LAUNCH_TIMES * usual and r["own_ns"] > SLOW_LAUNCH_NS
                seen += r["slow"]
        assert same(
            rows(made),
            [{k: r[k] for k in ("name", "self_ns", "queue_full_ns", "own_ns", "pending", "slow")} for r in each],
        )
        summed = {r["name"]: r for r in rows(launches._by_function(made))}
        for (name,), group in grouped(each, "name").items():
            told = {
                "launches": len(group),
                "gpu_ops": sum(r["gpu_ops"] for r in group),
                "total_ns": sum(r["self_ns"] for r in group),
                "usual_ns": sum(r["own_ns"] for r in group if not r["slow"]),
                "slow_ns": sum(r["own_ns"] for r in group if r["slow"]),
                "first_call_ns": sum(r["one_time_ns"] or 0 for r in group),
                "queue_full_calls": sum(r["queue_full_ns"] > 0 for r in group),
                "slow_calls": sum(r["slow"] for r in group),
                "pending_median": statistics.median(r["pending"] for r in group),
                "median_ns": statistics.median(r["self_ns"] for r in group),
            }
            assert same([summed[name]], [told])
            parts = sum(summed[name][k] for k in ("usual_ns", "slow_ns", "first_call_ns", "queue_full_ns"))
            assert parts == summed[name]["total_ns"]
    assert seen > 5


def test_what_launches_mean_for_the_gpu() -> None:
    for source in rounds():
        of = columns(source).add("idle_share", (None, 0.0, NO_LAUNCH_WAIT_SHARE, 0.3), pl.Float64)
        frame = of.add("queue_full_ns", (0, 5, 6)).add("total_ns", (10,)).frame()
        told = []
        for r in rows(frame):
            if r["idle_share"] is None:
                told.append("cannot_tell")
            elif r["idle_share"] > NO_LAUNCH_WAIT_SHARE:
                told.append("critical")
            else:
                told.append("queue_full" if r["queue_full_ns"] > r["total_ns"] / 2 else "free")
        assert frame.select(v=launches._verdict())["v"].to_list() == told


# --- copies ---------------------------------------------------------------------------------------------------------------


def test_the_synchronize_that_is_the_next_gpu_call_of_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    for source in rounds():
        calls = calls_of(source)
        which = sorted(source.sample(range(calls.height), source.randrange(calls.height + 1)))
        sync = [source.random() < 0.5 for _ in which]
        end = calls["end_ns"].to_numpy()
        gpu = SimpleNamespace(
            call=np.array(which, np.int64),
            sync=np.array(sync, np.bool_),
            end=lambda row, end=end, which=which: end[np.array(which, np.int64)[row]],
        )
        monkeypatch.setattr(copy_sites, "gpu_calls", always(gpu))
        asked_for = [source.choice((-1, *range(calls.height))) for _ in range(6)]
        thread = calls["thread"].to_list()
        told = []
        for c in asked_for:
            after = next(((w, s) for w, s in zip(which, sync, strict=True) if w > c), None) if c >= 0 else None
            near = after is not None and after[1] and thread[after[0]] == thread[c]
            told.append(int(end[after[0]]) if near and after is not None else LONG_AGO_NS)
        shown = profile(attributed=SimpleNamespace(api_calls=calls))
        assert copy_sites._followed_by_sync(shown, np.array(asked_for, np.int64)).tolist() == told


def test_how_fast_copies_could_be() -> None:
    large = LARGE_COPY_BYTES
    for source in rounds(80):
        of = (
            columns(source, 14).names("op_kind", ("memcpy", "memcpy", "kernel")).names("name", ("HtoD", "DtoH", "DtoD"))
        )
        of.add("bytes", (large - 1, large, 4 * large, None)).add("start_ns", (0,)).add("end_ns", (0, 1_000, 4_000))
        ops = of.add("src_kind", (0, 1, 2)).add("dst_kind", (0, 1, 2)).frame()
        memory = source.choice(((), (None,), (8e11, 6e11)))
        cards = [SimpleNamespace(memory_bandwidth=m) for m in memory]
        shown = profile(ops=ops, trace=SimpleNamespace(capture=SimpleNamespace(gpus=cards)))
        kinds = {0: "pageable", 1: "pinned", 2: "device"}
        seen = [r for r in rows(ops) if r["op_kind"] == "memcpy" and (r["bytes"] or 0) >= large and r["end_ns"] > 0]
        rates: dict[str, float] = {}
        for r in seen:
            if 1 in (r["src_kind"], r["dst_kind"]):
                rates[r["name"]] = max(rates.get(r["name"], 0), r["bytes"] / r["end_ns"] * 1e9)
        told = {}
        for r in seen:
            key = r["name"], kinds[r["src_kind"]], kinds[r["dst_kind"]]
            if r["name"] == "DtoD" and any(memory):
                told[key] = (3e11, "memory")
            elif r["name"] in rates:
                told[key] = (pytest.approx(rates[r["name"]]), "fastest pinned copy in this report")
        assert copy_sites._limits(shown) == told


def test_copies_by_place_with_what_exposes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    for source in rounds(80):
        of = columns(source, 16).times(200, 30).add("process", (PROCESS,)).add("device", (0,)).add("stream", (1, 2))
        of.names("op_kind", ("memcpy", "memcpy", "kernel")).names("name", ("HtoD", "DtoH")).add("bytes", (8, 64, None))
        of.add("src_kind", (0, 1, 2)).add("dst_kind", (1, 2)).add("call", (None, 0, 1, 2, 3))
        of.add("call_start_ns", (0,)).add("call_end_ns", (7,)).names("module", ("m", None)).names("phase", ("forward",))
        ops = of.frame()
        synced = [source.choice((LONG_AGO_NS, 300)) for _ in range(4)]
        kernels = [r for r in rows(ops) if r["op_kind"] == "kernel"]
        sets: list[Any] = [(np.empty(0, np.int64),) * 2 for _ in copy_sites.CLASSES]
        sets[copy_sites.CLASSES.index("compute")] = tuple(
            np.array([r[k] for r in kernels], np.int64) for k in ("start_ns", "end_ns")
        )
        calls = pl.DataFrame({"gpu_ops": [1, 1, 2, 1], "thread": [1, 1, 1, 1]})
        monkeypatch.setattr(
            copy_sites,
            "_followed_by_sync",
            lambda _, call, synced=synced: np.array([synced[c] if c >= 0 else LONG_AGO_NS for c in call], np.int64),
        )
        monkeypatch.setattr(copy_sites, "_limits", always({("HtoD", "pinned", "device"): (5.0, "memory")}))
        monkeypatch.setattr(copy_sites, "elsewhere", lambda *_: pl.lit(None, dtype=pl.String).alias("thread_role"))
        where = pl.DataFrame({"call": [0], "file": ["t.py"], "line": [4]})
        shown = profile(
            steady_ops=ops,
            attributed=SimpleNamespace(api_calls=calls, roles={}),
            lines=always(where),
            ledgers=SimpleNamespace(activity={(PROCESS, 0): coverage(sets, 0, 400)}),
        )
        busy = covered(*((r["start_ns"], r["end_ns"]) for r in kernels))
        kinds = {0: "pageable", 1: "pinned", 2: "device"}
        copies = []
        for r in rows(ops):
            if r["op_kind"] == "memcpy":
                ns = covered((r["start_ns"], r["end_ns"]))
                copies.append(
                    r
                    | {
                        "direction": r["name"],
                        "src_kind": kinds[r["src_kind"]],
                        "dst_kind": kinds[r["dst_kind"]],
                        "ns": len(ns),
                        "hidden": len(ns & busy),
                        "file": "t.py" if r["call"] == 0 else None,
                        "synced": r["call"] is not None and synced[r["call"]] >= r["end_ns"],
                        "same": r["stream"] in {k["stream"] for k in kernels},
                        "sole": r["call"] is not None and r["call"] != 2,
                    }
                )
        told = []
        for key, group in grouped(copies, "direction", "src_kind", "dst_kind", "module", "phase", "file").items():
            total, hidden = sum(r["ns"] for r in group), sum(r["hidden"] for r in group)
            sole = [r for r in group if r["sole"]]
            if hidden >= HIDDEN_COPIES_SHARE * total:
                obstacle = None
            elif "pageable" in key[1:3]:
                obstacle = "pageable"
            elif 2 * sum(r["ns"] for r in group if r["synced"]) > total:
                obstacle = "sync_after"
            elif 2 * sum(r["ns"] for r in group if r["same"]) > total:
                obstacle = "same_stream"
            else:
                obstacle = "nothing_beside"
            seen.add(obstacle)
            told.append(
                dict(zip(("direction", "src_kind", "dst_kind", "module", "phase", "file"), key, strict=True))
                | {
                    "count": len(group),
                    "bytes": sum(r["bytes"] or 0 for r in group),
                    "total_ns": total,
                    "hidden_ns": hidden,
                    "exposed_ns": total - hidden,
                    "obstacle": obstacle,
                    "api_ns": 7 * len(sole) if sole else None,
                    "largest_bytes": max((r["bytes"] for r in group if r["bytes"] is not None), default=None),
                    "limit_bytes_per_s": 5.0 if key[:3] == ("HtoD", "pinned", "device") else None,
                }
            )
        order = ("direction", "src_kind", "dst_kind", "module", "phase", "file")
        told.sort(key=lambda r: (-r["exposed_ns"], -r["total_ns"], *(last_null(r[c]) for c in order)))
        assert same(rows(copy_sites.table(shown)), told)
    assert len(seen) == 5


# --- spreads --------------------------------------------------------------------------------------------------------------


def test_the_slower_of_two_sorts_of_executions() -> None:
    for source in rounds(80):
        every = np.array([float(source.choice((10, 12, 30))) for _ in range(source.choice((6, 20, 30)))])
        slow = np.array([source.random() < 0.5 for _ in every], np.bool_)
        fast = np.array([not s and source.random() < 0.8 for s in slow], np.bool_)
        found = kernel_spread._slower_of_two(every, slow, fast, ("slow", "fast"))
        a, b = every[slow].tolist(), every[fast].tolist()
        if min(len(a), len(b)) < FEWEST_SPREAD_EXECUTIONS or statistics.median(a) <= statistics.median(b):
            assert found is None
            continue
        assert found is not None
        assert found[2] == (
            f"slow {units.duration(statistics.median(a))} ({len(a)}), fast {units.duration(statistics.median(b))} ({len(b)})"
        )
        assert 0 <= found[0] <= 1 and 0 <= found[1] <= 1


def test_modules_that_give_kernels_other_data() -> None:
    seen = 0
    for source in rounds(80):
        module = [source.choice((0, 0, 0, 1, 2, 3)) for _ in range(source.choice((8, 30)))]
        every = np.array([10.0 * m + source.randrange(3) for m in module])
        found = kernel_spread._by_module(np.array(module, np.int64), every)
        groups = {m: [float(e) for e, n in zip(every, module, strict=True) if n == m] for m in set(module)}
        groups = {m: g for m, g in groups.items() if len(g) >= FEWEST_SPREAD_EXECUTIONS}
        if not 2 <= len(groups) <= len(module) / FEWEST_SPREAD_EXECUTIONS:
            assert found is None
            continue
        seen += 1
        medians = [statistics.median(g) for g in groups.values()]
        assert found is not None and found[2] == (
            f"{len(groups)} modules, medians {units.duration(min(medians))} to {units.duration(max(medians))}"
        )
    assert seen > 10


def test_kernels_that_are_steady_or_slow_only_the_first_time() -> None:
    seen = Counter[str]()
    for source in rounds(120):
        count = source.choice((2, 3, 8, 25))
        later = [1_000 + source.choice((0, 20, 90)) for _ in range(count - 1)]
        first = source.choice((1_000, 1_200, 1_500, 9_000))
        features: Any = SimpleNamespace(
            duration=np.array([first, *later], np.int64), from_the_start=source.random() < 0.8
        )
        spread, verdict, detail = kernel_spread._verdict(features, np.arange(count), always(None))
        if count < 3:
            assert (spread, verdict) == (None, "cannot_tell")
            continue
        low, median, high = (float(np.quantile(later, q)) for q in (0.1, 0.5, 0.9))
        assert high - low <= max(STEADY_SPREAD_SHARE * median, SPREAD_RESOLUTION_NS)
        assert spread == (high - low) / median
        slow = (
            features.from_the_start and first > SLOW_FIRST_TIMES * median and first - median > 2 * SPREAD_RESOLUTION_NS
        )
        if not slow:
            told = "steady"
        elif count < 20:
            told = "cannot_tell"
        else:
            told = "first_call" if first > max(later) else "steady"
        assert verdict == told and (units.duration(first) in detail) == (told != "steady")
        seen[told] += 1
    assert len(seen) == 3


# --- lines ----------------------------------------------------------------------------------------------------------------


def test_what_each_stack_did_itself() -> None:
    for source in rounds():
        count = 4
        of = columns(source, 14).times().add("op", iter(range(99)).__next__).names("op_kind", ("kernel", "memcpy"))
        ops = of.add("bytes", (None, 8)).frame()
        calls = calls_of(source).with_columns(kind=pl.lit(None, dtype=pl.Categorical))
        kinds = [source.choice((Call.LAUNCH, Call.SYNC)) for _ in range(calls.height)]
        calls = calls.with_columns(kind=pl.Series(kinds, dtype=pl.Categorical))
        stack_of = [source.choice((-1, *range(count))) for _ in range(40)]
        lined: Any = SimpleNamespace(
            place=list(range(count)), call=np.array(stack_of, np.int64), op=np.array(stack_of[::-1], np.int64)
        )
        host = columns(source).add("stack", (-1, *range(count))).add("ns", range(9)).frame()
        idle = columns(source).add("stack", (-1, *range(count))).add("ns", range(9)).frame()
        waits = pl.DataFrame({"call": [c for c in range(40) if source.random() < 0.3]}, schema={"call": pl.Int64})
        shown = profile(
            once=always(SimpleNamespace(host=host, idle=idle)), steady_calls=calls, steady_ops=ops, waits=waits
        )
        told: dict[int, Counter[str]] = {}

        def add(stack: int, told: dict[int, Counter[str]] = told, **values: int) -> None:
            told.setdefault(stack, Counter()).update(values)

        for r in rows(host):
            add(r["stack"], host_self_ns=r["ns"])
        for r in rows(idle):
            add(r["stack"], idle_caused_ns=r["ns"])
        for r in rows(ops):
            at = stack_of[::-1][r["op"]]
            add(at, gpu_self_ns=r["end_ns"] - r["start_ns"])
            if r["op_kind"] == "memcpy":
                add(at, copies=1, copy_bytes=r["bytes"] or 0)
        for r in rows(calls):
            at = stack_of[r["call"]]
            add(at, launches=int(r["kind"] == Call.LAUNCH))
            if r["call"] in waits["call"]:
                add(at, waits=1, wait_ns=r["ns"])
        found = {r["stack"]: r for r in rows(lines.by_stack(shown, lined))}
        told = {stack: of_stack for stack, of_stack in told.items() if any(of_stack.values())}
        assert set(found) == set(told)
        for stack, of_stack in told.items():
            assert all(found[stack][c] == of_stack[c] for c in lines._SELF)


def test_stacks_count_once_for_each_place_in_them() -> None:
    """``parent`` is the frame that called; a place twice in a stack (recursion) is one."""
    for source in rounds():
        count = 6
        parent = [-1, *(source.choice((-1, *range(i))) for i in range(1, count))]
        place = [source.randrange(4) for _ in range(count)]
        own = list(range(count))
        lined: Any = SimpleNamespace(
            own=np.array(own, np.int64),
            parent=np.array(parent, np.int64),
            place=np.array(place, np.int64),
            places_of=lambda s, place=place: np.array(place, np.int64)[s],
        )
        stacks = source.sample(range(-1, count), 4)
        frame = pl.DataFrame(
            {
                "stack": stacks,
                "host_self_ns": [source.randrange(9) for _ in stacks],
                "gpu_self_ns": [source.randrange(9) for _ in stacks],
            }
        )
        told: dict[int, list[int]] = {}
        for r in rows(frame):
            at, places = r["stack"], set()
            while at >= 0:
                places.add(place[at])
                at = parent[at]
            for p in places:
                sums = told.setdefault(p, [0, 0])
                sums[0] += r["host_self_ns"]
                sums[1] += r["gpu_self_ns"]
        found = {r["place"]: [r["host_total_ns"], r["gpu_total_ns"]] for r in rows(lines._totals(lined, frame))}
        assert found == told


def test_idle_time_with_a_line_anywhere_in_the_stack() -> None:
    for source in rounds():
        seen = columns(source).add("stack", range(4)).add("cause", range(3)).add("ns", range(9)).frame()
        stacks = (
            columns(source, 16)
            .add("stack", range(4))
            .names("function", ("f", "g"))
            .names("file", ("a.py", None))
            .add("line", (1, 2))
            .frame()
        )
        cause = host_lines.CAUSES["idle_ns"]
        told: dict[Any, int] = {}
        frames = {(r["stack"], r["function"], r["file"], r["line"]) for r in rows(stacks)}
        for stack, *key in frames:
            mine = [r["ns"] for r in rows(seen) if r["stack"] == stack and r["cause"] == cause]
            if mine:
                told[tuple(key)] = told.get(tuple(key), 0) + sum(mine)
        shown = profile(trace=SimpleNamespace(stacks=stacks))
        found = rows(host_lines._totals(SimpleNamespace(seen=seen), shown))  # type: ignore[arg-type]
        assert {(r["function"], r["file"], r["line"]): r["total_ns"] for r in found} == told


def test_samples_of_loaders_have_the_time_until_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_lines, "nearest_for", lambda time, period: [period] * len(time))
    for source in rounds():
        of = (
            columns(source, 14)
            .add("thread", (1, 2))
            .add("time_ns", iter(sorted(source.sample(range(90), 40))).__next__)
            .add("stack", (0,))
        )
        samples = of.frame()
        windows = pl.DataFrame({"process": [OTHER, PROCESS], "start_ns": [0, 20], "end_ns": [5, 70]}).head(
            source.choice((1, 2))
        )
        shown = profile(
            steps=SimpleNamespace(cpu_windows=windows), process=PROCESS, trace=SimpleNamespace(samples=samples)
        )
        told = []
        for group in grouped(rows(samples), "thread").values():
            gaps = [b["time_ns"] - a["time_ns"] for a, b in itertools.pairwise(group)]
            period = max(int(statistics.median(gaps)), 1) if gaps else 1
            told += [
                (r["thread"], r["time_ns"], period) for r in group if windows.height > 1 and 20 <= r["time_ns"] < 70
            ]
        assert [(r["thread"], r["time_ns"], r["weight"]) for r in rows(loader_lines._in_steps(shown))] == told


# --- ranges, phases, limits, settings ---------------------------------------------------------------------------------------


def test_ranges_have_what_is_nested_in_them() -> None:
    for source in rounds():
        parents = [-1, *(source.choice((-1, *range(i))) for i in range(1, 7))]
        depths = []
        for p in parents:
            depths.append(0 if p < 0 else depths[p] + 1)
        values = [source.randrange(9) for _ in parents]
        layer: Any = SimpleNamespace(parents=always(np.array(parents)), depths=always(np.array(depths)))

        def whole(i: int, parents: list[int] = parents, values: list[int] = values) -> int:
            return values[i] + sum(whole(j, parents, values) for j, p in enumerate(parents) if p == i)

        found = own_ranges._with_nested(layer, np.array(values, np.int64))
        assert found.tolist() == [whole(i) for i in range(len(parents))]


def test_stretches_of_steps_and_between_them_tile_the_window() -> None:
    for source in rounds(80):
        spans, at = [], source.choice((0, 10))
        for _ in range(source.randrange(5)):
            length = source.choice((10, 30))
            spans.append((at, at + length))
            at += length + source.choice((0, 0, 7))
        made = [(PROCESS, 1, s, e, source.random() < 0.7) for s, e in spans] + [(OTHER, 5, 0, 99, True)]
        cpu = pl.DataFrame(
            made,
            schema={
                "process": pl.Int64,
                "thread": pl.Int64,
                "start_ns": pl.Int64,
                "end_ns": pl.Int64,
                "steady": pl.Boolean,
            },
            orient="row",
        ).sample(len(made), shuffle=True, seed=len(made))
        whole = source.random() < 0.3
        mine = sorted((s, e) for p, _, s, e, steady in made if p == PROCESS and (steady or whole))
        begin, until = source.choice((0, 12)), max((e for _, e in mine), default=20) - source.choice((0, 3))
        windows = pl.DataFrame({"process": [PROCESS], "start_ns": [begin], "end_ns": [until]})
        shown = profile(process=PROCESS, steps=SimpleNamespace(cpu=cpu, cpu_windows=windows, whole=whole))
        found = rows(phases._stretches(shown))
        if not mine:
            assert found == []
            continue
        inside = {t for s, e in mine for t in range(max(s, begin), min(e, until))}
        assert covered(*((r["start_ns"], r["end_ns"]) for r in found if r["step"])) == inside
        between = covered(*((r["start_ns"], r["end_ns"]) for r in found if not r["step"]))
        assert between == set(range(begin, until)) - inside
        assert sum(r["end_ns"] - r["start_ns"] for r in found) == max(until - begin, 0)
        assert {r["thread"] for r in found} == {1}


def test_work_and_its_limits_by_name() -> None:
    for source in rounds(80):
        of = columns(source, 16).add("name", ("a", "b", None), pl.String).add("gpu_ns", (0, 5, 9))
        of.add("limit_ns", (None, 1.0, 4.0), pl.Float64).add("backward", (True, False), pl.Boolean)
        of.add("by_counters", (True, False), pl.Boolean).add("flops", (0.0, 8.0), pl.Float64).add("kernels", (1, 2))
        of.add("counted_ns", (0, 3))
        of.add("moved_bytes", (2.0, 3.0), pl.Float64).add("kernel", ("k1", "k2", None), pl.String)
        of.add("number_format", ("fp32", None), pl.String).add("why_not", (None, "x"), pl.String).add(
            "roof", ("r", "s"), pl.String
        )
        done = of.frame()
        told = []
        for (name,), group in grouped(rows(done), "name").items():
            limited = [r for r in group if r["limit_ns"] is not None]
            known = sum(r["gpu_ns"] for r in limited)
            limit = round(sum(r["limit_ns"] for r in limited)) if limited else None
            most = {}
            for column, weight in (("kernel", "gpu_ns"), ("roof", "limit_ns"), ("why_not", "gpu_ns")):
                sums: dict[str, float] = {}
                for r in group:
                    if r[column] is not None:
                        sums[r[column]] = sums.get(r[column], 0) + (r[weight] or 0)
                most[column] = min(sums, key=lambda v: (-sums[v], v)) if sums else None
            told.append(
                {
                    "name": name,
                    "gpu_ns": sum(r["gpu_ns"] for r in group),
                    "limit_ns": limit,
                    "kernels": sum(r["kernels"] for r in group),
                    "unknown_ns": sum(r["gpu_ns"] for r in group if r["limit_ns"] is None),
                    "backward_ns": sum(r["gpu_ns"] for r in group if r["backward"]),
                    "counters_ns": sum(r["gpu_ns"] for r in limited if r["by_counters"]),
                    "could_go_ns": known - limit if limit is not None else None,
                    "limit_share": limit / known if limit is not None and known else None,
                    "flops": sum(r["flops"] for r in limited) if limited else None,
                    **most,
                }
            )
        told.sort(key=lambda r: (-((r["could_go_ns"] or 0) + r["unknown_ns"]), -r["gpu_ns"], last_null(r["name"])))
        assert same(rows(roofline._summed(done, "operator")), told)


def test_names_beyond_those_listed_are_one() -> None:
    count = MOST_ROOFLINE_ROWS + 3
    names = [f"n{i:02}" for i in range(count)]
    done = pl.DataFrame({"name": [*names, None], "gpu_ns": [*range(count), 999]})
    fewer = roofline._fewer(done)
    listed = sorted(range(count), reverse=True)[: MOST_ROOFLINE_ROWS - 1]
    rest = count - len(listed)
    assert fewer["name"].to_list() == [*(n if i in listed else f"({rest} others)" for i, n in enumerate(names)), None]


def test_settings_below_settings_have_names() -> None:
    def told(name: str, value: Any) -> list[Any]:
        if isinstance(value, dict) and value:
            return [x for k, v in value.items() for x in told(f"{name}.{k}" if name else k, v)]
        if isinstance(value, list) and value and all(isinstance(v, dict) for v in value):
            return [x for i, v in enumerate(value) for x in told(f"{name}[{i}]", v)]
        text = {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else value
        return [(name, None if value is None else text if isinstance(text, str) else str(text).replace("'", '"'))]

    for source in rounds():

        def value(depth: int = 0, source: random.Random = source) -> Any:
            kinds: list[Any] = [None, True, "x", 3, [1, 2], {}, []]
            if depth < 3:
                kinds += [{k: value(depth + 1) for k in source.sample("abc", 2)}, [{"d": value(depth + 1)}, {}]]
            return source.choice(kinds)

        made = value()
        assert list(settings._flattened("s", made)) == told("s", made)


def test_what_a_clock_around_each_launch_reads() -> None:
    seen = Counter[str]()
    for source in rounds(80):
        count = source.choice((2, 3, 8))

        def times(count: int = count, source: random.Random = source) -> Any:
            return np.array([source.randrange(1, 90) for _ in range(count)], np.int64)

        def mask(count: int = count, source: random.Random = source) -> Any:
            return np.array([source.random() < 0.6 for _ in range(count)], np.bool_)

        around = stopwatch._Around(*(times() for _ in range(6)), *(mask() for _ in range(5)))  # type: ignore[arg-type]
        usual = source.choice((None, 5.0))
        given: dict[str, Any] = {}
        found = stopwatch._line(around, usual)

        def middle(values: Any, chosen: Any = None) -> float | None:
            kept = [int(v) for i, v in enumerate(values) if chosen is None or chosen[i]]
            return statistics.median(kept) if len(kept) >= FEWEST_EXECUTIONS else None

        both = around.before & around.after
        given["host_ns"], given["api_ns"] = middle(around.host, around.known), middle(around.api)
        given["latency_ns"], given["queue_ns"] = middle(around.late, around.alone), middle(around.late, ~around.alone)
        given["kernel_ns"], given["sync_return_ns"] = middle(around.kernel), middle(around.back, around.waited)
        assert all(found[k] == v for k, v in given.items())
        back = usual if given["sync_return_ns"] is None else given["sync_return_ns"]
        measured = middle(around.whole, both)
        parts = [given[k] for k in ("host_ns", "api_ns", "latency_ns", "kernel_ns")] + [back]
        if measured is not None:
            assert (found["both_ns"], found["both_from"]) == (measured, "measured")
        elif None not in parts:
            assert (found["both_ns"], found["both_from"]) == (sum(x for x in parts if x is not None), "composed")
        else:
            assert found["both_ns"] is None
        seen[str(found["both_from"])] += 1
        assert host_stopwatch.total(*parts) == (None if None in parts else sum(x for x in parts if x is not None))
    assert len(seen) == 3

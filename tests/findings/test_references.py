"""Joins and groups inside findings against slow references over rows, on random small frames."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from nsysx.catalogue import Call
from nsysx.findings import _held, _names, _needs, _requests, _unread, nsx114_host_stall, nsx126_round_trips
from nsysx.findings._finding_bounds import (
    FEWEST_ROUNDS,
    HELD_ANYWHERE_NS,
    HELD_ANYWHERE_TIMES,
    SAVED_BYTES,
    SAVED_TIMES,
    SIZES_ASKED_SHARE,
    STALL_MADE_BYTES,
)
from nsysx.judging import waiting
from nsysx.model import Row
from tests.random_tables import always, asked, columns, grouped, profile, rounds, rows

PROCESS = 7
KINDS = (Call.LAUNCH, Call.GRAPH_LAUNCH, Call.COPY, Call.OTHER, Call.EVENT, Call.SYNC)


def made_calls(source: random.Random, most: int = 16) -> pl.DataFrame:
    """Return calls of two threads, numbered by thread and time; some lie inside another."""
    made, number = [], 0
    for thread in (1, 2):
        at = 0
        for _ in range(source.randrange(most // 2)):
            at += source.choice((0, 3, 10, 400_000))
            length = source.choice((1, 5, 20))
            made.append((number, PROCESS, thread, at, at + length, source.choice(KINDS), source.choice(("a", "b.1", "b.2", None)),
                         source.choice(("forward", "backward", "optimizer", None))))  # fmt: skip
            at += source.choice((0, length))
            number += 1
    names = {"call": pl.Int64, "process": pl.Int64, "thread": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64,
             "kind": pl.Categorical, "module": pl.Categorical, "phase": pl.Categorical}  # fmt: skip
    return pl.DataFrame(made, schema=names, orient="row")


def pauses_of(calls: pl.DataFrame) -> list[Row]:
    """Return each call with the time since the call before on its thread, where there is some."""
    told = []
    for of_thread in grouped(rows(calls), "thread").values():
        reached = None
        for call in sorted(of_thread, key=lambda r: r["start_ns"]):
            if reached is not None and call["start_ns"] > reached:
                told.append(call | {"start_ns": reached, "end_ns": call["start_ns"], "ns": call["start_ns"] - reached})
            reached = max(reached or 0, call["end_ns"])
    return told


def _made(shown: Any, make: Any) -> Any:
    return make(shown)


def test_host_code_before_calls() -> None:
    for source in rounds():
        calls = made_calls(source)
        told = pauses_of(calls)
        gaps = _held.pauses(profile(steady_calls=calls))
        found = rows(gaps)
        assert sorted((r["call"], r["start_ns"], r["end_ns"]) for r in found) == sorted(
            (r["call"], r["start_ns"], r["end_ns"]) for r in told
        )
        launches = [r["ns"] for r in told if r["kind"] in Call.LAUNCHES]
        usual = statistics.median(launches) if launches else 0
        shown = profile(steady_calls=calls, code=always(None))
        shown.once = partial(_made, shown)
        assert _held._usual_ns(shown, gaps) == usual
        assert _held.held(shown) == {
            r["call"] for r in told if r["ns"] >= max(HELD_ANYWHERE_NS, HELD_ANYWHERE_TIMES * usual)
        }


def test_the_usual_pause_is_that_before_launches_of_one_thread() -> None:
    for source in rounds():
        calls = made_calls(source)
        of = rows(calls)
        told = [
            b["start_ns"] - a["end_ns"]
            for a, b in pairwise(of)
            if a["thread"] == b["thread"] and b["kind"] in Call.LAUNCHES
        ]
        assert nsx114_host_stall._usual_pause(calls) == (statistics.median(told) if told else None)


def test_small_calls_before_a_launch_belong_to_it() -> None:
    for source in rounds():
        calls = made_calls(source)
        if not calls.height:
            continue
        of, chosen = rows(calls), sorted(source.sample(range(calls.height), min(3, calls.height)))
        steady = set(source.sample(range(calls.height), calls.height // 2))
        case = SimpleNamespace(
            profile=profile(attributed=SimpleNamespace(api_calls=calls)),
            is_call=lambda s, steady=steady: s.is_in(list(steady)),
        )
        told: set[int] = set()
        for call in chosen:
            told.add(call)
            for before in range(call - 1, -1, -1):
                if (
                    of[before]["kind"] not in (Call.OTHER, Call.EVENT, Call.LOAD)
                    or of[before]["thread"] != of[call]["thread"]
                ):
                    break
                told.add(before)
        every, small = nsx114_host_stall._with_small_calls(case, chosen)
        assert every == told
        assert small == {c for c in told if of[c]["kind"] in (Call.OTHER, Call.EVENT, Call.LOAD) and c in steady}


def test_pauses_beside_the_copies_of_a_checkpoint_are_its_own(monkeypatch: Any) -> None:
    """Steps save that copy 1 MB and ten times what the usual step does; a piece borders a copy that ends it or before it."""
    seen = 0
    for source in rounds(120):
        of = (
            columns(source, 14)
            .times()
            .names("op_kind", ("memcpy", "memcpy", "kernel"))
            .names("name", ("DtoH", "DtoH", "HtoD", None))
        )
        of.add("bytes", (None, 1_000, 90_000, SAVED_BYTES, 8 * SAVED_BYTES)).add("device", (0, 0, 1)).add(
            "call", (None, *range(6))
        )
        ops = of.frame().with_row_index("op").with_columns(pl.col("op").cast(pl.Int64))
        steps = [(10 * i, 10 * i + 10) for i in range(source.randrange(1, 5))]
        begins = [source.randrange(0, 10 * len(steps)) for _ in range(6)]
        calls = pl.DataFrame({"start_ns": begins})
        monkeypatch.setattr(nsx114_host_stall, "step_of", lambda _, t: np.clip(np.asarray(t) // 10 + 1, 0, None))
        monkeypatch.setattr(nsx114_host_stall, "steady_steps", always(pl.DataFrame({"x": range(len(steps))})))
        case = SimpleNamespace(ops=ops, device=0, profile=profile(attributed=SimpleNamespace(api_calls=calls)))
        gaps = columns(source, 6).times().add("op", (-1, *range(14))).frame()
        copies = [r for r in rows(ops) if r["op_kind"] == "memcpy" and r["name"] == "DtoH" and r["device"] == 0]
        step = {r["op"]: begins[r["call"] or 0] // 10 for r in copies}
        moved = [sum(r["bytes"] or 0 for r in copies if step[r["op"]] == s) for s in range(len(steps))]
        least = max(SAVED_BYTES, SAVED_TIMES * statistics.median(moved))
        saved = {r["op"] for r in copies if moved[step[r["op"]]] >= least}
        on_device = [r for r in rows(ops) if r["device"] == 0]
        told = []
        for gap in rows(gaps):
            before = [r for r in on_device if r["end_ns"] <= gap["start_ns"]]
            last = max(before, key=lambda r: (r["end_ns"], r["op"]))["op"] if before else None
            told.append(gap["op"] in saved or last in saved)
        seen += any(told)
        assert nsx114_host_stall._of_a_checkpoint(case, gaps).tolist() == told
    assert seen > 10
    case.device = None
    assert not nsx114_host_stall._of_a_checkpoint(case, gaps).any()


def test_copies_of_much_data_from_pageable_memory() -> None:
    for source in rounds():
        of = (
            columns(source, 16)
            .names("op_kind", ("memcpy", "kernel"))
            .add("copy_kind", (1, 1, 2, None))
            .add("src_kind", (0, 0, 1, None))
        )
        ops = of.add("bytes", (STALL_MADE_BYTES - 1, STALL_MADE_BYTES, None)).frame()
        told = [
            r["op_kind"] == "memcpy"
            and r["copy_kind"] == 1
            and r["src_kind"] == 0
            and (r["bytes"] or 0) >= STALL_MADE_BYTES
            for r in rows(ops)
        ]
        assert ops.select(m=nsx114_host_stall._is_pageable_upload())["m"].to_list() == told


def test_loops_in_modules_wait_again_and_again_in_most_steps(monkeypatch: Any) -> None:
    """Four times a step or more, in half of the steps or more; modules of one path but for its numbers are one loop.

    What one run of an operator waits for, here calls 2n and 2n + 1, it asks once.
    """
    monkeypatch.setattr(nsx126_round_trips, "called", lambda _, name: name)
    monkeypatch.setattr(nsx126_round_trips, "_asking", lambda _, calls: calls // 2)
    monkeypatch.setattr(nsx126_round_trips, "calls_of_rounds", always(frozenset()))
    seen = 0

    def questions(waits: list[Row]) -> int:
        return len({(wait["index"], wait["call"] // 2) for wait in waits})

    for source in rounds(120):
        steps = source.choice((1, 2, 3))
        of = columns(source, 40).add("call", iter(source.sample(range(60), 60)).__next__)
        waits = (
            of.add("asks", (waiting.VALUE, waiting.SIZE, waiting.NOTHING), pl.String).add("index", range(steps)).frame()
        )
        places = [
            (source.choice(("r.1", "r.2", "all", None)), source.choice(("forward", "forward", "forward", "backward")))
            for _ in range(60)
        ]
        calls = pl.DataFrame(places, schema={"module": pl.Categorical, "phase": pl.Categorical}, orient="row")
        shown = profile(
            attributed=SimpleNamespace(api_calls=calls, without_path={"all"}),
            once=asked({waiting.waits: SimpleNamespace(calls=waits)}),
        )
        constant = waits.select("call").filter(
            pl.Series([source.random() < 0.1 for _ in range(waits.height)], dtype=pl.Boolean)
        )
        monkeypatch.setattr(nsx126_round_trips, "calls_for_constants", always({"Net": constant}))
        of_module: dict[str, list[Row]] = {}
        for wait in rows(waits):
            module, phase = places[wait["call"]]
            asks_anew = wait["asks"] != waiting.NOTHING and wait["call"] not in constant["call"]
            if phase == "forward" and asks_anew and module not in (None, "all"):
                of_module.setdefault(module, []).append(wait)
        often = {
            m: w
            for m, w in of_module.items()
            if questions(w) >= FEWEST_ROUNDS * steps and 2 * len({x["index"] for x in w}) >= steps
        }
        found = nsx126_round_trips._loops(SimpleNamespace(profile=shown, steps=steps))
        if not often:
            assert found == []
            continue
        seen += 1
        (loop,) = found
        modules = sorted(often)
        kinds = [x["asks"] for x in often[modules[0]]]
        most = min(set(kinds), key=lambda k: (-kinds.count(k), k))
        if kinds.count(waiting.SIZE) >= SIZES_ASKED_SHARE * len(kinds):
            most = waiting.SIZE
        assert (loop.modules, loop.name, loop.asks) == (tuple(modules), "r.*", most)
        assert loop.each == sum(map(questions, often.values())) / steps / len(modules)
        assert sorted(loop.calls) == sorted(x["call"] for m in modules for x in often[m])
    assert seen > 10


# --- what places are called ---------------------------------------------------------------------------------------------


def _nearest(of: int, others: Iterable[int], chosen: list[bool], thread: list[int]) -> int:
    """Return the first of the others that is chosen, -1 where that is on another thread."""
    found = next((other for other in others if chosen[other]), -1)
    return found if found >= 0 and thread[found] == thread[of] else -1


def test_the_nearest_chosen_calls_of_the_thread() -> None:
    for source in rounds():
        calls = made_calls(source)
        thread = calls["thread"].to_list()
        chosen = [source.random() < 0.4 for _ in thread]
        at = [i for i in range(len(thread)) if not chosen[i]]
        before, behind = _names._nearest_calls(
            np.array(chosen, np.bool_), calls["thread"].to_numpy(), np.array(at, np.int64)
        )

        assert before.tolist() == [_nearest(i, range(i - 1, -1, -1), chosen, thread) for i in at]
        assert behind.tolist() == [_nearest(i, range(i + 1, len(thread)), chosen, thread) for i in at]


def test_most_of_the_time_of_kernels_is_in_a_module_or_else_in_a_kernel(monkeypatch: Any) -> None:
    monkeypatch.setattr(_names, "called", lambda _, name: name)
    for source in rounds():
        modules = source.choice((("a.1", "a.2", "b", None), (None, _names.IN_STEP)))
        of = columns(source).names("name", ("k1", "k2")).names("module", modules).add("ns", range(5))
        kernels = of.frame()
        inside = [
            r | {"path": r["module"].replace("1", "*").replace("2", "*")}
            for r in rows(kernels)
            if r["module"] not in (None, _names.IN_STEP)
        ]

        def most(groups: dict[tuple[Any, ...], list[Row]]) -> Any:
            return min(groups, key=lambda k: (-sum(r["ns"] for r in groups[k]), k))[0]

        told = {}
        if inside:
            told = {"module": most(grouped(inside, "path"))}
        elif kernels.height:
            told = {"near": f"the kernel {most(grouped(rows(kernels), 'name'))}"}
        assert _names.mostly(profile(), kernels) == told


def test_calls_that_mostly_copy_one_way_are_called_by_their_copies() -> None:
    for source in rounds():
        of = columns(source).names("op_kind", ("memcpy", "memcpy", "kernel")).add("bytes", (1 << 20, 2 << 20, None))
        ops = (
            of.names("name", ("HtoD",) if source.random() < 0.6 else ("HtoD", "DtoH", "DtoD"))
            .add("call", (None, *range(5)))
            .frame()
        )
        asked_for = [source.randrange(6) for _ in range(source.randrange(1, 6))]
        copies = [r for r in rows(ops) if r["op_kind"] == "memcpy" and r["call"] in asked_for]
        ways = {r["name"] for r in copies}
        words = ""
        if len(ways) == 1 and ways <= {"HtoD", "DtoH"} and 2 * len({r["call"] for r in copies}) >= len(set(asked_for)):
            sizes = [r["bytes"] for r in copies if r["bytes"] is not None]
            size = "" if not sizes else f" of {statistics.median(sizes) / (1 << 20):.1f} MiB"
            words = f"a copy{size} to the {'GPU' if ways == {'HtoD'} else 'host'}"
        assert _names._moved(profile(attributed=SimpleNamespace(gpu_ops=ops)), np.array(asked_for)) == words


def test_the_kernel_that_is_launched_last_before_calls() -> None:
    for source in rounds():
        calls = made_calls(source)
        if not calls.height:
            continue
        ops = (
            columns(source)
            .names("op_kind", ("kernel", "kernel", "memset"))
            .names("name", ("k1", "k2"))
            .add("call", (None, *range(calls.height)))
            .add("bytes", (1,))
            .frame()
        )
        at = [i for i in range(calls.height) if rows(calls)[i]["kind"] not in Call.LAUNCHES]
        before = set()
        for i in at:
            row = next((j for j in range(i - 1, -1, -1) if rows(calls)[j]["kind"] in Call.LAUNCHES), None)
            if row is not None and rows(calls)[row]["thread"] == rows(calls)[i]["thread"]:
                before.add(row)
        names = [r["name"] for r in rows(ops) if r["op_kind"] == "kernel" and r["call"] in before]
        told = f"after the kernel {min(set(names), key=lambda n: (-names.count(n), n))}" if names else ""
        assert (
            _names._kernel_before(
                profile(attributed=SimpleNamespace(api_calls=calls, gpu_ops=ops)), np.array(at, np.int64)
            )
            == told
        )


def test_what_a_batch_of_inputs_gives() -> None:
    """Eight inputs in one step: its launches stay, the GPU's work grows with them."""
    for step, works in ((1_000, 0), (1_000, 100), (1_000, 1_000)):
        case: Any = SimpleNamespace(step_ns=step, taken_by=lambda parts, works=works: works if list(parts) else 0)
        least = _requests.BATCHED_INPUTS * step / (step + (_requests.BATCHED_INPUTS - 1) * works)
        assert f"gives about {least:.1f}x the inputs a second" in str(_requests.batched(case))
    assert _needs.waits is not None


def test_kernels_of_backwards_whose_gradients_nothing_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = 0
    for source in rounds(80):
        lost = {"Net": source.choice(([0], [1], [0, 1], [])), "Other": [0]}
        monkeypatch.setattr(_unread, "settings_of", always(SimpleNamespace(record={"unread": lost})))
        monkeypatch.setattr(_unread, "network_names", always({"net": ("Net",), "net.a": ("Net",), "b": ("Other",)}))
        steps = pl.DataFrame({"process": [PROCESS] * 3, "start_ns": [0, 100, 200]})
        spans = [(s + 10, s + 40) for s in (0, 100, 200)] + [(s + 50, s + 80) for s in (0, 200)]
        others = [
            (PROCESS, False, "backward", 5, 6),
            (PROCESS + 1, True, "backward", 7, 8),
            (PROCESS, True, "forward", 101, 104),
        ]
        ranges = pl.DataFrame(
            [*((PROCESS, True, "backward", *s) for s in spans), *others],
            schema={
                "process": pl.Int64,
                "own": pl.Boolean,
                "name": pl.Categorical,
                "start_ns": pl.Int64,
                "end_ns": pl.Int64,
            },
            orient="row",
        )
        of = (
            columns(source, 24)
            .times(300)
            .names("op_kind", ("kernel", "kernel", "memcpy"))
            .names("phase", ("backward", "backward", "forward"))
        )
        ops = (
            of.names("module", ("net", "net.a", "b", None))
            .add("call_start_ns", (None, *range(300)))
            .add("op", iter(range(99)).__next__)
            .frame()
        )
        shown = profile(process=PROCESS, ranges=SimpleNamespace(ranges=ranges), steps=SimpleNamespace(cpu=steps))
        shown.once = lambda find, shown=shown: find(shown)
        case: Any = SimpleNamespace(
            profile=shown,
            process=PROCESS,
            ops=ops,
            kernels=ops.select("op", ns=pl.lit(0)),
        )
        told = []
        for r in rows(ops):
            cls = {"net": "Net", "net.a": "Net", "b": "Other"}.get(r["module"])
            at = r["call_start_ns"]
            if r["op_kind"] != "kernel" or r["phase"] != "backward" or at is None or cls is None:
                continue
            inside = next((s for s in spans if s[0] <= at < s[1]), None)
            if inside is not None and (0 if inside[0] % 100 == 10 else 1) in lost[cls]:
                told.append((r["op"], r["end_ns"] - r["start_ns"]))
        seen += bool(told)
        assert list(_unread._work(case).iter_rows()) == told
    assert seen > 10


def test_products_of_networks_whose_weights_no_optimizer_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    for source in rounds():
        lost = {"Net": [source.randrange(1, 5), 10], "Other": [3, source.randrange(4, 9)]}
        told_of = {k: v for k, v in lost.items() if source.random() < 0.7}
        monkeypatch.setattr(
            _unread, "settings_of", always(SimpleNamespace(record={"unheld": told_of | {"Odd": [0, 5], "Bad": "x"}}))
        )
        monkeypatch.setattr(_unread, "network_names", always({"net": ("Net",), "net.a": ("Net",), "b": ("Other",)}))
        of = (
            columns(source, 24)
            .times(300)
            .names("family", ("gemm", "convolution", "reduce"))
            .names("phase", ("backward", "backward", "forward"))
        )
        ops = of.names("module", ("net", "net.a", "b", None)).add("op", iter(range(99)).__next__).frame()
        work, share = _unread._weights_alone(SimpleNamespace(profile=profile(), ops=ops))
        cls = {"net": "Net", "net.a": "Net", "b": "Other"}
        assert list(work.iter_rows()) == [
            (r["op"], r["end_ns"] - r["start_ns"]) for r in rows(ops)
            if r["family"] != "reduce" and r["phase"] == "backward" and cls.get(r["module"]) in told_of
        ]  # fmt: skip
        whole = sum(b for _, b in told_of.values())
        assert share == (sum(a for a, _ in told_of.values()) / whole if whole else 0)

"""What rules count, choose and share among findings, against slow references over rows, on random small frames."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from nsysx import units
from nsysx.catalogue import Call, Cause, StepPart
from nsysx.events.operator_flops import sizes
from nsysx.findings import (
    _anomaly,
    _grown_inputs,
    _held,
    _instead,
    _line_work,
    _lines,
    _links,
    _meetings,
    _once,
    _rare_steps,
    _slow_causes,
    nsx107_inflated_event,
    nsx109_slow_steps,
    nsx112_fusion,
    nsx115_wrong_timing,
    nsx132_models_in_turn,
)
from nsysx.findings._finding_bounds import (
    ALIKE_PLACES_SHARE,
    ANOMALY_OPERATOR_BEGINS_NS,
    BELOW_ONE_LINE_SHARE,
    FOR_A_LAUNCH_NS,
    HELD_ANYWHERE_NS,
    HELD_ANYWHERE_TIMES,
    HELD_BY_LINE_NS,
    HELD_BY_LINE_TIMES,
    LARGE_MESSAGE_BYTES,
    MOST_SHARE,
    OF_ONE_LINE_SHARE,
    OVERLAP_SHARE,
    SAVED_BYTES,
    SAVED_TIMES,
    SLOW_NVLINK_SHARE,
    SLOWER_GROUP_TIMES,
    WRONG_READING_TIMES,
)
from nsysx.findings._once import Claim, Takes
from nsysx.findings._work_bounds import (
    FEWEST_CALLS_IN_TURN,
    FEWEST_CHAIN_KERNELS,
    GROWN_CALLS,
    GROWN_SHORTEST_TOKENS,
    LINES_APART,
)
from nsysx.model import Row
from nsysx.saving import Saving
from tests.random_tables import always, columns, covered, profile, rounds, rows

PROCESS, OTHER = 7, 8


# --- time is given to one finding -----------------------------------------------------------------------------------------


def test_the_steps_in_pieces_each_instant_that_of_the_op_that_began_first() -> None:
    for source in rounds():
        of = columns(source, 12).times().add("device", (0, 0, 1)).add("op", iter(source.sample(range(99), 50)).__next__)
        ops = of.frame()
        idle = columns(source, 5).add("real_ns", range(9)).frame()
        found = _once.pieces(idle, ops, 0)
        taken: set[int] = set()
        alone = []
        for r in sorted((r for r in rows(ops) if r["device"] == 0), key=lambda r: (r["start_ns"], r["op"])):
            mine = covered((r["start_ns"], r["end_ns"])) - taken
            taken |= mine
            alone.append((r["op"], len(mine)))
        assert found.op.tolist() == [op for op, _ in alone]
        assert found.ns.tolist() == [*idle["real_ns"].to_list(), *(ns for _, ns in alone)]
        assert found.idle == idle.height and not len(_once.pieces(idle, ops, None).op)


def test_idle_pieces_by_part_and_by_the_call_in_which_they_began() -> None:
    causes = list(Cause)
    for source in rounds():
        idle = columns(source).add("cause", range(len(causes))).add("began_in", (None, 1, 2, 3)).frame()
        parts, calls = source.sample(list(StepPart), 4), frozenset(source.sample(range(5), 2))
        assert _once.of_parts(idle, parts).tolist() == [causes[r["cause"]].part in parts for r in rows(idle)]
        assert _once.began_in(idle, calls).tolist() == [r["began_in"] in calls for r in rows(idle)]


def claim(source: random.Random, idle: int, ops: list[int]) -> Claim:
    share = source.choice((None, np.array([source.choice((0.0, 0.0, 0.5, 1.0)) for _ in range(idle)])))
    takes = Takes(frozenset(source.sample(ops, source.randrange(len(ops) + 1))), share)
    return Claim(
        source.choice(("NSX101", "NSX102", "NSX113")),
        "",
        "found",
        "",
        "",
        cost_ns_per_step=source.choice((None, 50, 400, 9_000)),
        saving=Saving(source.choice((None, 40, 900))),
        takes=takes,
        direct=source.choice((1, 2, 3)),
    )


def test_each_piece_counts_with_one_claim_the_most_direct_and_most_particular_first() -> None:
    seen = 0
    for source in rounds(120):
        idle, ops = source.randrange(1, 5), list(range(source.randrange(1, 5)))
        ns = [float(source.choice((0, 10, 100, 300))) for _ in range(idle + len(ops))]
        time = _once.Pieces(np.array(ns), idle, np.array(ops, np.int64))
        claims = [claim(source, idle, ops) for _ in range(source.randrange(1, 5))]
        step, steps = 1_000, 2
        scale = step / max(sum(ns), 1.0)
        wanted, about = [], []
        for c in claims:
            of_idle = [0.0] * idle if c.takes.idle is None else [float(x) for x in c.takes.idle]
            share = of_idle + [1.0 if op in c.takes.ops else 0.0 for op in ops]
            whole = sum(s * n for s, n in zip(share, ns, strict=True)) * scale
            part = min(1.0, (c.cost_ns_per_step or 0) / whole) if whole else 1.0
            wanted.append([s * part for s in share])
            about.append(sum(s * n for s, n in zip(wanted[-1], ns, strict=True)) * scale)
        left, told = [1.0] * len(ns), [0.0] * len(claims)
        for i in sorted(range(len(claims)), key=lambda i: (-claims[i].direct, about[i], claims[i].code, i)):
            got = [min(w, x) for w, x in zip(wanted[i], left, strict=True)]
            left = [x - g for x, g in zip(left, got, strict=True)]
            told[i] = sum(g * n for g, n in zip(got, ns, strict=True)) * scale
        found = _once.give(time, claims, step, steps)
        assert [f.own_ns for f in found] == [pytest.approx(t, abs=1.5) for t in told]
        assert sum(f.own_ns for f in found) <= step
        for i, j in itertools.permutations(range(len(claims)), 2):
            shared = sum(min(a, b) * n for a, b, n in zip(wanted[i], wanted[j], ns, strict=True)) * scale
            saved = sum(claims[k].saving.likely_ns or 0 for k in (i, j))
            both = min(shared, about[i], about[j]) >= OVERLAP_SHARE * step
            overlap = both or saved > about[i] + about[j] - shared + OVERLAP_SHARE * step
            assert (j in found[i].overlaps) == overlap
            seen += overlap
    assert seen > 20


# --- host code ------------------------------------------------------------------------------------------------------------


def test_tracebacks_take_the_time_until_something_begins_inside_an_operator() -> None:
    seen = 0
    for source in rounds(80):
        of = (
            columns(source, 14)
            .add("thread", (1, 2))
            .add("start_ns", range(0, 90_000, 3_000))
            .add("ns", (4_000, 20_000, 60_000))
        )
        of.add("process", (PROCESS, PROCESS, OTHER)).add("kind", ("op", "op", "module"), pl.String).add(
            "repeated", (False, False, True), pl.Boolean
        )
        ranges = of.add("number", (-1, 3)).names("name", ("aten::mm", "aten::mm", "mine")).frame()
        ranges = ranges.with_columns(end_ns=pl.col("start_ns") + pl.col("ns"))
        steps = pl.DataFrame(
            {"process": [PROCESS, PROCESS, OTHER], "start_ns": [0, 45_000, 0], "end_ns": [45_000, 90_000, 9]}
        )
        calls = columns(source, 8).add("thread", (1, 2)).add("start_ns", range(500, 90_000, 1_000)).frame()
        shown = profile(
            ranges=SimpleNamespace(ranges=ranges),
            process=PROCESS,
            steps=SimpleNamespace(cpu=steps),
            attributed=SimpleNamespace(api_calls=calls),
        )
        ops = [r for r in rows(ranges) if r["kind"] == "op" and not r["repeated"] and r["process"] == PROCESS]
        count = sum(any(a <= r["start_ns"] < a + 45_000 for r in ops) for a in (0, 45_000))
        makes = [r for r in ops if r["number"] >= 0 and r["name"].startswith("aten::")]
        if not count or not makes:
            assert _anomaly.tracebacks_ns(shown) is None
            continue
        seen += 1
        total = 0
        for r in makes:
            begins = [
                o["start_ns"]
                for o in [*ops, *rows(calls)]
                if o["thread"] == r["thread"] and o["start_ns"] > r["start_ns"]
            ]
            inner = min([*begins, r["end_ns"]])
            total += max(0, min(inner, r["end_ns"]) - r["start_ns"] - ANOMALY_OPERATOR_BEGINS_NS)
        assert _anomaly.tracebacks_ns(shown) == pytest.approx(total / count)
    assert seen > 20


def test_sequences_that_grow_by_one_token_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Counter[bool]()
    for source in rounds(80):
        tables = {}
        for n in range(source.randrange(3)):
            start = source.choice((2, GROWN_SHORTEST_TOKENS - 3, 40))
            step = source.choice((1, 1, 2))
            lengths = [start + i * step for i in range(source.randrange(8))]
            for _ in range(source.choice((0, 1, 4))):
                lengths.insert(source.randrange(len(lengths) + 1), 5)
            tables[f"t{n}"] = lengths
        monkeypatch.setattr(_grown_inputs, "_lengths", always(tables))
        told = None
        for lengths in tables.values():
            grown = [b for a, b in itertools.pairwise(lengths) if b - a == 1 and b >= GROWN_SHORTEST_TOKENS]
            if len(grown) >= GROWN_CALLS - 1 and len(grown) >= MOST_SHARE * (len(lengths) - 1):
                told = (grown[0] - 1, grown[-1], len(lengths))
                break
        assert _grown_inputs._growth(profile()) == told
        seen[told is None] += 1
    assert min(seen.values()) > 5


def test_host_code_before_calls_that_fewer_launches_do_not_remove(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than that before launches anywhere, or mostly at a line with much host code of its own."""
    seen = 0
    for source in rounds(80):
        of = columns(source, 10).add("thread", (1,)).add("start_ns", (0,)).add("call", iter(range(50)).__next__)
        gaps = of.add("end_ns", (1_000, HELD_BY_LINE_NS, 100_000, HELD_ANYWHERE_NS, 900_000)).frame()
        usual = source.choice((0, 20_000, 40_000))
        split = {
            i: source.choice((0, r["end_ns"] // 2, r["end_ns"] // 2 + 1, r["end_ns"])) for i, r in enumerate(rows(gaps))
        }
        parts = pl.DataFrame(
            [(i, s, n) for i, ns in split.items() for s, n in ((0, ns), (1, rows(gaps)[i]["end_ns"] - ns))],
            schema={"group": pl.Int64, "stack": pl.Int64, "ns": pl.Int64},
            orient="row",
        )
        monkeypatch.setattr(
            _held,
            "divided",
            lambda _, __, pieces, parts=parts: parts.filter(pl.col("group").is_in(pieces["group"].implode())),
        )
        lined = source.choice((None, SimpleNamespace(places_of=lambda s: s)))
        told = set()
        for i, r in enumerate(rows(gaps)):
            ns = r["end_ns"]
            anywhere = ns >= max(HELD_ANYWHERE_NS, HELD_ANYWHERE_TIMES * usual)
            of_line = lined is not None and ns >= max(HELD_BY_LINE_NS, HELD_BY_LINE_TIMES * usual) and split[i] > ns / 2
            if anywhere or of_line:
                told.add(r["call"])
                seen += of_line and not anywhere
        stays = _held._stays(profile(code=always(lined)), gaps, usual, np.array([0]))
        assert set(gaps["call"].filter(pl.Series(stays, dtype=pl.Boolean))) == told
    assert seen > 10


# --- slow steps -----------------------------------------------------------------------------------------------------------


def tiles_of(source: random.Random) -> pl.DataFrame:
    begin = [100 * i + 10 for i in range(source.randrange(3, 7))]
    return pl.DataFrame({"start_ns": begin, "end_ns": [b + source.choice((60, 100)) for b in begin]})


def slow_of(source: random.Random, count: int) -> Any:
    slow = [source.random() < 0.4 for _ in range(count)]
    slow[0], slow[-1] = True, False
    return np.array(slow, np.bool_)


def test_sums_by_step_and_what_slow_ones_have_more_of() -> None:
    for source in rounds():
        tiles = tiles_of(source)
        step = np.array([source.randrange(-1, tiles.height) for _ in range(9)], np.int64)
        values = np.array([source.randrange(50) for _ in step], np.int64)
        sums = [sum(int(v) for v, s in zip(values, step, strict=True) if s == i) for i in range(tiles.height)]
        assert _slow_causes._by_step(values, step, tiles).tolist() == sums
        slow = slow_of(source, tiles.height)
        late = [x for x, s in zip(sums, slow, strict=True) if s]
        usual = [x for x, s in zip(sums, slow, strict=True) if not s]
        more = _slow_causes._more_in_slow(np.array(sums, np.int64), slow)
        assert more == pytest.approx(statistics.fmean(late) - statistics.median(usual))


def test_stretches_reach_to_the_work_beside_the_gaps() -> None:
    for source in rounds():
        ops = columns(source, 8).times(500, 40).add("device", (0, 0, 1)).frame()
        first, last = sorted(source.sample(range(500), 2))
        on_device = [r for r in rows(ops) if r["device"] == 0]
        if not on_device:
            continue
        before = [r for r in on_device if r["start_ns"] < first]
        behind = [r["start_ns"] for r in on_device if r["start_ns"] >= last]
        earlier = min(max(r["end_ns"] for r in before), first) if before else first
        case: Any = SimpleNamespace(ops=ops, device=0)
        a, b = _slow_causes._with_gaps(case, np.array([first]), np.array([last]))
        assert (a.tolist(), b.tolist()) == ([earlier], [min(behind, default=last)])


def test_the_line_that_most_pauses_are_about_and_the_line_that_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    for source in rounds():
        of = columns(source).add("file", ("/x/torch/a.py", "external_utils.py", "b.py", "c.py", None), pl.String)
        pauses = of.add("line", (1, 2)).frame()
        places = Counter((r["file"], r["line"]) for r in rows(pauses) if r["file"] in ("b.py", "c.py"))
        told = min(places, key=lambda p: (-places[p], p)) if places else None
        found = _slow_causes._line_of(pauses)
        assert (found and (found["file"], found["line"])) == told
        saves = [
            {"place": source.choice(("t.py:3", "t.py:x", "", None)), "ns": source.choice((None, 4, 9))}
            for _ in range(3)
        ]
        kept = source.choice((None, saves))
        monkeypatch.setattr(_slow_causes, "settings_of", always(SimpleNamespace(rows=always(kept))))
        timed = [r for r in kept or () if isinstance(r["ns"], int)]
        longest = max(timed, key=lambda r: int(str(r["ns"])), default={"place": ""})
        line = {"file": "t.py", "line": 3} if longest["place"] == "t.py:3" else None
        case: Any = SimpleNamespace(profile=None)
        assert _slow_causes._saving_line(case) == line


def test_copies_out_that_slow_steps_alone_make(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_slow_causes, "_saving_line", always(None))
    monkeypatch.setattr(_slow_causes, "_copying_line", always(None))
    monkeypatch.setattr(_slow_causes, "line_of_long_steps", always(None))
    monkeypatch.setattr(_slow_causes, "_with_gaps", lambda _, first, last: (first - 3, last + 4))
    seen = 0
    for source in rounds(120):
        tiles = tiles_of(source)
        slow = slow_of(source, tiles.height)
        of = (
            columns(source, 14)
            .times(700, 30)
            .names("op_kind", ("memcpy", "memcpy", "kernel"))
            .names("name", ("DtoH", "DtoH", "HtoD"))
        )
        ops = (
            of.add("device", (0, 0, 1))
            .add("bytes", (None, 8, SAVED_BYTES, 8 * SAVED_BYTES))
            .add("call", (None, *range(9)))
            .frame()
        )
        monkeypatch.setattr(_slow_causes.ledger, "gpu_parts", lambda _, a, b: {"compute_ns": np.full(len(a), 2)})
        case: Any = SimpleNamespace(
            ops=ops,
            device=0,
            process=PROCESS,
            profile=SimpleNamespace(ledgers=SimpleNamespace(activity={(PROCESS, 0): None})),
        )
        spans = list(zip(tiles["start_ns"], tiles["end_ns"], strict=True))
        copies = [r for r in rows(ops) if r["op_kind"] == "memcpy" and r["name"] == "DtoH" and r["device"] == 0]
        of_step = [[r for r in copies if a <= r["start_ns"] < b] for a, b in spans]
        moved = [sum(r["bytes"] or 0 for r in mine) for mine in of_step]
        usual = statistics.median(m for m, s in zip(moved, slow, strict=True) if not s)
        saves = [i for i, m in enumerate(moved) if slow[i] and m >= max(SAVED_BYTES, SAVED_TIMES * usual)]
        found = _slow_causes.copied_out(case, tiles, slow)
        if not saves:
            assert found == []
            continue
        seen += 1
        took = []
        for i in saves:
            first = max(min(r["start_ns"] for r in of_step[i]) - 3, spans[i][0])
            last = min(max(r["end_ns"] for r in of_step[i]) + 4, spans[i][1])
            took.append(last - first - 2)
        assert found[0].ns == pytest.approx(sum(took) / int(slow.sum()))
        assert Counter(found[0].calls) == Counter(r["call"] for i in saves for r in of_step[i] if r["call"] is not None)
        assert units.duration(float(statistics.fmean(took))) in found[0].detail
        assert found[0].detail.startswith(
            "Each of them copies" if len(saves) == slow.sum() else f"{len(saves)} of them"
        )
    assert seen > 10


def test_calls_that_end_the_longest_gaps_of_slow_steps_and_all_that_lies_in_them() -> None:
    for source in rounds():
        tiles = tiles_of(source)
        slow = slow_of(source, tiles.height)
        idle = columns(source).add("start_ns", range(600)).add("op", (None, 0, 1, 2, 3)).add("ns", (1, 5, 20)).frame()
        ops = columns(source).add("start_ns", range(600)).add("op", iter(range(40)).__next__).frame()
        calls = [source.choice((None, 7, 8, 9)) for _ in range(4)]
        case: Any = SimpleNamespace(
            idle=idle,
            ops=ops,
            profile=profile(
                attributed=SimpleNamespace(gpu_ops=pl.DataFrame({"call": calls}, schema={"call": pl.Int64}))
            ),
        )

        def in_slow(t: int, tiles: pl.DataFrame = tiles, slow: Any = slow) -> bool:
            at = sum(t >= b for b in tiles["start_ns"]) - 1
            return at >= 0 and bool(slow[at])

        gaps: Counter[int] = Counter()
        for r in rows(idle):
            if r["op"] is not None and in_slow(r["start_ns"]):
                gaps[r["op"]] += r["ns"]
        longest = max(gaps.values(), default=0)
        told = sorted(c for op, ns in gaps.items() if 2 * ns >= longest and (c := calls[op]) is not None)
        assert list(nsx109_slow_steps._ends_of_gaps(case, tiles, slow)) == told
        takes = nsx109_slow_steps._of_steps(case, tiles, slow)
        assert takes.ops == {r["op"] for r in rows(ops) if in_slow(r["start_ns"])}
        assert takes.idle is not None and takes.idle.tolist() == [in_slow(r["start_ns"]) for r in rows(idle)]


# --- lines ----------------------------------------------------------------------------------------------------------------


class Stacks:
    """Random stacks of lines: ``parent`` is the frame that called, all lines are the program's own."""

    def __init__(self, source: random.Random, count: int = 8) -> None:
        self.parent = [-1, *(source.choice((-1, *range(i), i - 1)) for i in range(1, count))]
        self.place = [source.randrange(5) for _ in range(count)]
        self.op = np.array([source.choice((-1, *range(count))) for _ in range(40)], np.int64)
        self.names = ["main", "forward", "loss", "step", "Net.forward"]
        self.places = pl.DataFrame(
            {"file": ["/p/t.py"] * 4 + ["/x/site-packages/torch/n.py"], "line": range(5), "function": self.names}
        )

    def places_of(self, stack: Any) -> Any:
        return np.append(self.place, -1)[stack]

    def chain(self, stack: int) -> list[int]:
        told: list[int] = []
        while stack >= 0:
            told.append(self.place[stack])
            stack = self.parent[stack]
        return told[::-1]


def test_the_line_outside_of_modules_that_calls_what_launches_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lines.stacks_room, "is_library", lambda file: "site-packages" in file)
    seen = Counter[bool]()
    for source in rounds(150):
        code = Stacks(source)
        ops = columns(source, 12).times().add("op", iter(range(40)).__next__).frame()
        takes = Takes(frozenset(op for op in range(12) if source.random() < 0.8))
        shown = profile(code=always(code), steady_ops=ops)
        work: Counter[int] = Counter()
        for r in rows(ops):
            if r["op"] in takes.ops and code.op[r["op"]] >= 0:
                work[int(code.op[r["op"]])] += r["end_ns"] - r["start_ns"]
        whole, by_line = sum(work.values()), Counter[int]()
        for stack, ns in work.items():
            by_line[code.place[stack]] += ns
        found = _lines.calling_line(shown, takes)
        most = max(by_line.values(), default=0)
        if not most or most >= OF_ONE_LINE_SHARE * whole:
            assert found == {}
            continue
        path: list[int] = []
        while True:
            below: Counter[int] = Counter()
            for stack, ns in sorted(work.items()):
                chain = code.chain(stack)
                if chain[: len(path)] == path and len(chain) > len(path):
                    below[chain[len(path)]] += ns
            if not below or max(below.values()) < BELOW_ONE_LINE_SHARE * whole:
                break
            path.append(max(below, key=lambda p: below[p]))
        lines = [p for p in path if p in (0, 2, 3)]
        assert found == ({"file": "/p/t.py", "line": lines[-1]} if lines else {})
        seen[bool(lines)] += 1
    assert min(seen.values()) > 10


def test_the_line_with_most_of_the_time() -> None:
    for source in rounds():
        code: Any = Stacks(source)
        line = np.array([source.randrange(-1, 5) for _ in range(7)], np.int64)
        ns = np.array([source.randrange(5) for _ in line], np.int64)
        sums = [sum(int(n) for n, p in zip(ns, line, strict=True) if p == i) for i in range(5)]
        found = _lines._line_with_most(code, line, ns)
        assert found == (code.places.row(sums.index(max(sums)), named=True) if any(sums) else {})


def test_lines_that_lie_close_together_are_one_block() -> None:
    for source in rounds():
        numbers = sorted(source.sample(range(60), source.randrange(9)))
        blocks = _line_work._blocks(numbers)
        assert [n for b in blocks for n in b] == numbers
        for a, b in itertools.pairwise(numbers):
            together = any(a in block and b in block for block in blocks)
            assert together == (b - a <= LINES_APART)


def test_kernels_that_move_memory_of_lines_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for source in rounds():
        code = Stacks(source)
        of = (
            columns(source, 14)
            .times()
            .add("op", iter(range(40)).__next__)
            .names("op_kind", ("kernel", "kernel", "memcpy"))
            .names("name", ("vectorized_elementwise_kernel", "cunn_SoftMaxForward", "triton_poi_fused_add_0"))
        )
        of.names("family", ("copy", "gemm", "norm", None)).names("phase", ("forward", "optimizer", None)).add(
            "call", (None, 0, 1)
        )
        ops = of.frame()
        inside = [source.random() < 0.5 for _ in range(ops.height)]
        monkeypatch.setattr(_line_work, "of_networks", lambda *_, inside=inside: np.array(inside, np.bool_))
        calls = pl.DataFrame({"kind": [Call.GRAPH_LAUNCH, Call.LAUNCH]}, schema={"kind": pl.Categorical})
        case: Any = SimpleNamespace(ops=ops, profile=profile(attributed=SimpleNamespace(api_calls=calls)))
        told = [
            (
                r["op"],
                r["end_ns"] - r["start_ns"],
                r["family"],
                code.place[int(code.op[r["op"]])],
                within,
                r["call"] == 0,
            )
            for r, within in zip(rows(ops), inside, strict=True)
            if r["op_kind"] == "kernel"
            and r["family"] in ("copy", "norm")
            and r["phase"] != "optimizer"
            and not r["name"].startswith("triton_poi_fused")
            and code.op[r["op"]] >= 0
        ]
        found = _line_work._moving(case, code)  # type: ignore[arg-type]
        assert [tuple(r[k] for k in ("op", "ns", "family", "line", "inside", "graph")) for r in rows(found)] == told


# --- fusion ---------------------------------------------------------------------------------------------------------------


def test_chains_of_neighbours_on_a_stream_that_can_be_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one phase, of sizes alike; random numbers begin a chain, a kernel of another kind ends it. The longest stays.

    Tensors that are put together one after the other have nothing in common.
    """
    seen = together = 0
    for source in rounds(240):
        count = source.randrange(14)
        of = columns(source, 2)
        of.rows = count
        of.names("family", ("elementwise", "norm", "random", "gemm")).names("op_kind", ("kernel",) * 8 + ("graph",))
        of.add("stream", (1, 1, 2)).add("device", (0,)).names("phase", ("forward", "forward", None)).names(
            "module", ("m",)
        )
        cat = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<...>"
        of.add("grid", (1,)).add("block", (1,)).names("name", ("k", "k", cat)).add("op", iter(range(count)).__next__)
        start = sorted(source.sample(range(200), count))
        ops = of.frame().with_columns(start_ns=pl.Series(start, dtype=pl.Int64))
        ops = ops.with_columns(
            end_ns=pl.col("start_ns") + pl.Series([source.randrange(1, 4) for _ in start], dtype=pl.Int64)
        )
        chosen = [source.random() < 0.9 for _ in range(count)]
        other = [source.random() < 0.1 for _ in range(count)]
        kept = [r for r in rows(ops) if r["op_kind"] != "graph"]
        order = sorted(kept, key=lambda r: r["stream"])
        monkeypatch.setattr(
            nsx112_fusion,
            "_other_size",
            lambda frame, order=order, other=other: np.array([other[r["op"]] for r in order], np.bool_),
        )
        chains: list[list[Row]] = []
        last: Row | None = None
        for r in order:
            fusible = r["family"] in ("elementwise", "norm", "random") and chosen[r["op"]]
            if not fusible:
                last = None
                continue
            alike = last is not None and (last["stream"], last["phase"]) == (r["stream"], r["phase"])
            both = last is not None and last["name"] == r["name"] == cat
            together += bool(alike and both)
            if alike and r["family"] != "random" and not other[r["op"]] and not both:
                chains[-1].append(r)
            else:
                chains.append([r])
            last = r
        told = []
        for chain in chains:
            if len(chain) >= FEWEST_CHAIN_KERNELS:
                most = max(r["end_ns"] - r["start_ns"] for r in chain)
                longest = next(r["op"] for r in chain if r["end_ns"] - r["start_ns"] == most)
                told += [(r["op"], r["end_ns"] - r["start_ns"], r["op"] == longest) for r in chain]
                seen += 1
        found = nsx112_fusion.chains_among(profile(steady_ops=ops), np.array(chosen, np.bool_))
        assert [(r["op"], r["ns"], r["longest"]) for r in rows(found)] == told
        assert found["run"].n_unique() == sum(len(c) >= FEWEST_CHAIN_KERNELS for c in chains)
    assert seen > 30 and together > 5


def test_the_outermost_module_of_each_and_what_belongs_to_one() -> None:
    for source in rounds():
        names = [f"m{i}" for i in range(6)]
        tree = [(n, source.choice(("A", "B", None)), source.choice((None, *names[:i]))) for i, n in enumerate(names)]
        frame = pl.DataFrame(tree, schema=dict.fromkeys(("module", "cls", "parent"), pl.Categorical), orient="row")
        shown = profile(attributed=SimpleNamespace(modules=frame))
        told: dict[str, Any] = {}
        for module, cls, parent in tree:
            told[module] = (module, cls) if parent is None else told[parent]
        assert nsx112_fusion.outermost(shown) == told
        of = columns(source).names("module", ("m", nsx112_fusion.IN_STEP, None, "optimizer", "(optimizer)"))
        ops = of.names("phase", ("forward", "optimizer", "loss", None)).frame()
        belongs = []
        for r in rows(ops):
            named = r["module"] not in (None, nsx112_fusion.IN_STEP)
            own = r["module"].strip("()") != r["phase"] if named else False
            belongs.append(named and (r["phase"] is None or (own and r["phase"] != "optimizer")))
        assert nsx112_fusion.of_modules(ops).tolist() == belongs


# --- clocks of the program ------------------------------------------------------------------------------------------------


def test_the_usual_readings_of_a_place_are_those_in_the_middle() -> None:
    parts = ("kernel_ns", "copy_ns", "memset_ns", "launch_wait_ns", "other_streams_ns", "idle_ns")
    for source in rounds():
        windows = [
            {"site": source.choice((1, 1, 2)), "start_ns": 0, **{p: source.randrange(9) for p in parts}}
            for _ in range(source.randrange(7))
        ]
        for w in windows:
            w["reading_ns"] = sum(w[p] for p in parts)
        mine = [w for w in windows if w["site"] == 1]
        row: Any = {"site": 1, "windows": len(mine) + source.choice((0, 0, 1)), **dict.fromkeys(parts, 100)}
        missing = source.random() < 0.2
        case: Any = SimpleNamespace(missing=always("not here" if missing else ""), typed_rows=always(windows))
        which, usual = nsx107_inflated_event._usual_readings(case, row)
        if missing or row["windows"] != len(mine) or len(mine) < 2:
            assert which == "event time" and all(usual[p] == 100 for p in usual)
            continue
        ordered = sorted(mine, key=lambda w: w["reading_ns"])
        middle = {(len(mine) - 1) // 2, len(mine) // 2}
        assert which == "median event time"
        assert usual == {p: sum(ordered[i][p] for i in middle) // len(middle) for p in usual}


def test_places_that_a_loop_times_in_turn() -> None:
    for source in rounds(80):
        table = [
            {
                "loop": source.choice((1, 1, None)),
                "turns": 3,
                "turn": n,
                "kernel_median_ns": source.choice((100, 104, 106)),
                "site": n,
            }
            for n in source.sample((1, 2, 3, None), source.choice((2, 3, 4)))
        ]
        row: Any = {**table[0], "turns": source.choice((None, 2, 3))}
        case: Any = SimpleNamespace(typed_rows=always(table))
        mine = [r for r in table if row["turns"] and r["loop"] == row["loop"]]
        kernels = [int(str(r["kernel_median_ns"])) for r in mine]
        alike = len(mine) == row["turns"] and max(kernels) <= (1 + ALIKE_PLACES_SHARE) * min(kernels)
        told = sorted(mine, key=lambda r: int(str(r["turn"] or 0))) if alike else []
        assert nsx107_inflated_event._in_turn(case, row) == told


def test_ways_of_timing_that_read_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Counter[int]()
    for source in rounds(200):
        ways = {
            w: SimpleNamespace(
                ns=source.choice((None, 90.0, 100.0, 160.0, 400.0)),
                how=source.choice(("measured", "measured", "composed")),
            )
            for w in ("both", "before", "after", "none")
        }
        monkeypatch.setattr(nsx115_wrong_timing, "by_way", always(ways))
        custom, stepless = source.random() < 0.5, source.random() < 0.5
        case: Any = SimpleNamespace(stepless=stepless)
        found = nsx115_wrong_timing._misreading(case, {"custom": custom}, 100.0)  # type: ignore[typeddict-item]
        read = {w: x.ns for w, x in ways.items() if x.how == "measured" and x.ns is not None}
        fenced = {w for w in read if w != "none"}
        if any(read[w] < 100 for w in ("both", "after") if w in read):
            told: set[str] = set()
        elif not custom and (not stepless or "both" not in fenced or len(fenced) < 2):
            told = set()
        else:
            told = {"after", "both"} if "both" in read else {"after", "before"}
            if not custom and "after" not in fenced:
                told.discard("both")
        wrong = {
            w: read[w]
            for w in told
            if w in read and not 100 / WRONG_READING_TIMES <= read[w] <= 100 * WRONG_READING_TIMES
        }
        assert found == wrong
        seen[len(wrong)] += 1
    assert len(seen) == 3


# --- models, exchanges, what comes instead --------------------------------------------------------------------------------


def test_classes_of_several_models_and_what_stands_between_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    for source in rounds(80):
        roots = {f"m{i}": (f"r{source.randrange(9)}", source.choice(("A", "A", "B", None))) for i in range(14)}
        monkeypatch.setattr(nsx132_models_in_turn, "outermost", always(roots))
        case: Any = SimpleNamespace(profile=None)
        told = {}
        for cls in ("A", "B"):
            models = {r for r, c in roots.values() if c == cls}
            if len(models) >= FEWEST_CALLS_IN_TURN:
                told[cls] = (len(models), frozenset(m for m, (_, c) in roots.items() if c == cls))
        assert {t.cls: (t.times, t.modules) for t in nsx132_models_in_turn._models(case)} == told
        of = (
            columns(source, 20)
            .add("start_ns", range(100))
            .add("thread", (1, 1, 2))
            .names("phase", ("forward", "forward", "forward", None))
        )
        calls = of.frame()
        if source.random() < 0.2:
            calls = calls.with_columns(phase=pl.lit("backward").cast(pl.Categorical))
        calls = calls.with_row_index("_")
        calls = calls.with_columns(call=pl.col("_").cast(pl.Int64))
        ops = (
            columns(source, 20)
            .names("op_kind", ("memcpy", "memcpy", "kernel"))
            .names("name", ("HtoD", "DtoH"))
            .add("call", (None, *range(20)))
            .frame()
        )
        made = [
            SimpleNamespace(start_ns=0, end_ns=20, thread=1),
            SimpleNamespace(start_ns=50, end_ns=60, thread=1),
            SimpleNamespace(start_ns=80, end_ns=90, thread=1),
        ]
        case = SimpleNamespace(profile=profile(attributed=SimpleNamespace(api_calls=calls, gpu_ops=ops)))
        between = [r for r in rows(calls) if 20 <= r["start_ns"] < 80 and r["thread"] == 1]
        ids = {r["call"] for r in between}
        ways = Counter(r["name"] for r in rows(ops) if r["op_kind"] == "memcpy" and r["call"] in ids)
        needs = any(r["phase"] == "backward" for r in between) or min(ways["HtoD"], ways["DtoH"]) >= 1
        assert nsx132_models_in_turn._needs_rest(case, made) == needs  # type: ignore[arg-type]


def test_large_messages_that_are_far_slower_than_the_links() -> None:
    """Than a tenth of NVLink of the cards, where all have it; else than a third of another group's of ranks on the same host."""
    seen, enough = Counter[str](), SLOW_NVLINK_SHARE * 450e9
    for source in rounds(200):
        table: list[Row] = []
        for rank in range(2):
            each = [
                {
                    "kind": "all-reduce",
                    "communicator": source.choice((None, 0, 0, 1, 1)),
                    "bus_bytes_per_s": source.choice((None, 10e9, 10e9, 29e9, enough, enough)),
                    "bytes": source.choice((None, 12, *[LARGE_MESSAGE_BYTES * 3] * 4)),
                    "calls": source.choice((3, 3, 3, 4)),
                }
                for _ in range(source.choice((0, 1, 2, 2)))
            ]
            table.append(
                {
                    "rank": rank,
                    "host": source.choice((*[0] * 8, 1)),
                    "gpu": source.choice(("NVIDIA H100 80GB HBM3",) * 4 + ("NVIDIA H100 PCIe", "RTX 4090")),
                    "by_collective": each or None,
                }
            )
        fastest: dict[int | None, float] = {}
        for e in (e for r in table for e in r["by_collective"] or ()):
            if e["bus_bytes_per_s"] and e["bytes"] and e["bytes"] / e["calls"] >= LARGE_MESSAGE_BYTES:
                group = e["communicator"]
                fastest[group] = max(fastest.get(group, 0), e["bus_bytes_per_s"])
        linked = all("HBM3" in r["gpu"] for r in table)
        groups = [rate for group, rate in fastest.items() if group is not None]
        told = "nothing"
        if fastest and len({r["host"] for r in table}) == 1:
            if linked and max(fastest.values()) < enough:
                told = f"{units.bandwidth(max(fastest.values()))} at most"
            elif groups and max(groups) >= SLOWER_GROUP_TIMES * min(groups):
                told = f"it moves at {units.bandwidth(min(groups))}"
        words = _links.slowest(table)
        assert (words is None) == (told == "nothing")
        assert words is None or told in words
        seen[told[:4]] += 1
    assert len(seen) > 3 and min(seen.values()) >= 2, seen


def test_how_many_numbers_the_largest_tensor_has() -> None:
    for source in rounds(80):
        shapes = [[source.choice((1, 1, 3, 4)) for _ in range(source.randrange(4))] for _ in range(source.randrange(4))]
        numbers, tensors = _instead._largest(str(shapes))
        kept = [s for s in shapes if s]
        assert tensors == kept == [s for s in sizes(str(shapes)) or [] if s]
        rank = max(map(len, kept), default=0)
        dims = [[1] * (rank - len(s)) + s for s in kept]
        result = 1
        for of in zip(*dims, strict=True):
            wide = {n for n in of if n != 1}
            result *= 0 if len(wide) > 1 else max(of)
        assert numbers == max([result if kept else 0, *(math.prod(s) for s in kept)])


def test_kernels_work_on_another_size_than_the_one_before_beyond_a_factor_of_four(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        nsx112_fusion.kernel_shapes,
        "unpacked",
        lambda column, _: [column.to_numpy()] + [np.ones(len(column), np.int64)] * 2,
    )
    for source in rounds():
        of = columns(source).names("name", ("vectorized_elementwise_kernel", "vectorized_elementwise_kernel", "cat"))
        ops = of.add("grid", (None, 1, 4, 5, 16, 17)).add("block", (None, 1, 1, 4)).frame()

        def size(r: Row) -> int | None:
            known = "elementwise" in r["name"] and None not in (r["grid"], r["block"])
            return r["grid"] * r["block"] if known else None

        told = [False] * min(1, ops.height)
        for a, b in itertools.pairwise(map(size, rows(ops))):
            told.append(a is not None and b is not None and (b > 4 * a or a > 4 * b))
        assert nsx112_fusion._other_size(ops).tolist() == told


def test_most_communication_is_that_of_layers_that_normalize_over_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_meetings._synchronized_norms, "without", lambda case, settings: None)
    for source in rounds(80):
        comm = (
            columns(source)
            .add("op", iter(range(40)).__next__)
            .names("module", ("bn", "fc", None))
            .add("ns", range(5))
            .frame()
        )
        tree = pl.DataFrame(
            {
                "module": ["bn", "fc"],
                "cls": [source.choice(("SyncBatchNorm", "torch.nn.SyncBatchNorm", "BatchNorm")), "Linear"],
            },
            schema=dict.fromkeys(("module", "cls"), pl.String),
        )
        case: Any = SimpleNamespace(profile=profile(attributed=SimpleNamespace(modules=tree), once=lambda _: False))
        found = _meetings._of_layers(case, comm)
        theirs = [r for r in rows(comm) if r["module"] == "bn"]
        much = 2 * sum(r["ns"] for r in theirs) >= sum(r["ns"] for r in rows(comm))
        assert (found is not None) == ("Sync" in tree["cls"][0] and much)


def test_idle_time_at_a_line_is_a_share_of_each_piece() -> None:
    number = Cause.HOST_CODE.number
    for source in rounds():
        idle = columns(source, 6).add("cause", (number, number, 0)).add("ns", (0, 10, 40)).frame()
        at = (
            columns(source)
            .add("piece", (-1, *range(idle.height)))
            .add("place", (1, 2))
            .add("host", (True, True, False), pl.Boolean)
            .add("ns", range(9))
            .frame()
        )
        shown = profile()
        shown.once = partial(_of, idle, at)
        host = [r["cause"] == number for r in rows(idle)]
        whole = sum(r["ns"] for r, h in zip(rows(idle), host, strict=True) if h)
        mine = [r for r in rows(at) if r["place"] == 1 and r["host"]]
        several = sum(r["ns"] for r in mine if r["piece"] == -1) / max(whole, 1)
        told = [
            min(1.0, sum(r["ns"] for r in mine if r["piece"] == i) / max(piece["ns"], 1) + h * several)
            for i, (piece, h) in enumerate(zip(rows(idle), host, strict=True))
        ]
        assert _lines.share_of(shown, 1).tolist() == pytest.approx(told)


def _of(idle: pl.DataFrame, at: pl.DataFrame, make: Any) -> pl.DataFrame:
    return idle if make is _lines.idle_of else at


def test_the_kernels_between_the_events_of_a_place() -> None:
    for source in rounds():
        ops = columns(source, 14).add("op", iter(range(40)).__next__).add("start_ns", range(60)).frame()
        kernels = ops.filter(pl.Series([source.random() < 0.7 for _ in range(ops.height)], dtype=pl.Boolean))
        windows = [
            {"site": source.choice((1, 2)), "start_ns": source.randrange(50), "reading_ns": source.randrange(20)}
            for _ in range(4)
        ]
        case: Any = SimpleNamespace(missing=always(""), typed_rows=always(windows), kernels=kernels, ops=ops)
        spans = [(w["start_ns"], w["start_ns"] + w["reading_ns"]) for w in windows if w["site"] == 1]
        told = [r["op"] for r in rows(kernels) if any(a <= r["start_ns"] <= b for a, b in spans)]
        assert nsx107_inflated_event._kernels_between_events(case, {"site": 1})["op"].to_list() == told  # type: ignore[typeddict-item]


def test_idle_time_without_tracing_is_a_share_of_each_piece() -> None:
    for source in rounds():
        idle = columns(source).add("ns", (0, 5, 20)).add("real_ns", (0, 3, 9)).frame()
        case: Any = SimpleNamespace(idle=idle)
        assert _slow_causes._real_share(case).tolist() == [r["real_ns"] / max(r["ns"], 1) for r in rows(idle)]


def test_lines_whose_own_code_is_more_than_their_launches_take(monkeypatch: pytest.MonkeyPatch) -> None:
    for source in rounds(80):
        usual = source.choice((0, FOR_A_LAUNCH_NS, 10 * FOR_A_LAUNCH_NS))
        least = max(FOR_A_LAUNCH_NS, HELD_BY_LINE_TIMES * usual)
        parts = columns(source).add("stack", (-1, 0, 1, 2)).add("ns", (0, least, least - 1, 3 * least)).frame()
        calls = columns(source).add("call", range(9)).names("kind", (Call.LAUNCH, Call.SYNC)).frame()
        of_call = [source.choice((-1, 0, 1, 2)) for _ in range(9)]
        monkeypatch.setattr(_held, "divided", always(parts))
        lined = SimpleNamespace(
            places=pl.DataFrame({"x": range(3)}), places_of=lambda s: s, call=np.array(of_call, np.int64)
        )
        gaps = pl.DataFrame(
            {"thread": [], "start_ns": [], "end_ns": []},
            schema=dict.fromkeys(("thread", "start_ns", "end_ns"), pl.Int64),
        )
        told = []
        for line in range(3):
            host = sum(r["ns"] for r in rows(parts) if r["stack"] == line)
            often = sum(of_call[r["call"]] == line for r in rows(calls) if r["kind"] == Call.LAUNCH)
            told += [line] * (host > 0 and host >= least * often)
        shown = profile(code=always(lined), steady_calls=calls)
        assert _held._guilty(shown, gaps, usual).tolist() == told


def test_ops_of_rare_long_steps_stand_beside_those_of_the_steady_ones() -> None:
    for source in rounds():
        every = columns(source, 14).add("op", iter(range(40)).__next__).add("start_ns", range(60)).frame()
        steady = every.head(3)
        more = source.choice((None, pl.DataFrame({"start_ns": [10, 40], "end_ns": [20, 55]})))
        beside = object.__new__(_rare_steps._Beside)
        object.__setattr__(beside, "profile", profile(attributed=SimpleNamespace(gpu_ops=every), steady_ops=steady))
        object.__setattr__(beside, "more", more)
        inside = [
            r["op"] for r in rows(every) if more is not None and (10 <= r["start_ns"] < 20 or 40 <= r["start_ns"] < 55)
        ]
        assert beside.ops["op"].to_list() == [*steady["op"].to_list(), *inside]

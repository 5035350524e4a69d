"""How ranks are matched, numbered, compared and priced, against slow references on random small jobs."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from nsysx import ids
from nsysx.catalogue import Cause, DeviceActivity, Late
from nsysx.errors import NsysxError
from nsysx.frames.intervals import coverage
from nsysx.model import Row
from nsysx.ranks import (
    chosen_work,
    collect,
    collective_costs,
    job_ledger,
    job_whatif,
    match,
    one_job,
    own_time,
    process_groups,
    rank_checks,
    rank_record,
    rank_table,
    straggler,
)
from nsysx.ranks.collective_costs import MOVES, UNMATCHED, WAITS, Stretches
from nsysx.ranks.job_compared import Takers
from nsysx.ranks.match import Aligned, SeriesKey
from nsysx.ranks.process_groups import ProcessGroup
from nsysx.ranks.rank_bounds import (
    COLLECTIVES_TOGETHER_SHARE,
    MOST_COMPARED_KERNELS,
    MOST_FOREIGN_REPORTS,
    MOST_LEDGER_RANKS,
    NAMED_RANKS,
    STRAGGLER_SHARE,
)
from nsysx.ranks.rank_record import LEDGER, Rank
from nsysx.reading import nccl_notes
from nsysx.reading.nccl_notes import CommunicatorMember
from nsysx.replay.changes import JobChanges
from tests.random_tables import always, columns, covered, grouped, profile, rounds, rows
from tests.ranks.test_one_job import SECOND, rank
from tests.ranks.test_references import whole_numbers

PROCESS = 9 << 24
COMM, COMPUTE = DeviceActivity.COMM.value, DeviceActivity.COMPUTE.value


# --- what is collected of a rank ------------------------------------------------------------------------------------------


def test_the_longest_kernels_of_the_window_by_name_and_shape() -> None:
    for source in rounds():
        of = (
            columns(source, 30).times().names("name", ("a", "b", "c")).add("grid", (None, 1, 2)).add("block", (None, 3))
        )
        ops = of.frame()
        start, end = source.randrange(20), source.randrange(30, 60)
        told = {}
        for (name, grid, block), group in grouped(rows(ops), "name", "grid", "block").items():
            inside = [r for r in group if start <= r["start_ns"] < end]
            if inside:
                told[name, grid or 0, block or 0] = (len(inside), sum(r["end_ns"] - r["start_ns"] for r in inside))
        found = collect._kernels(ops, start, end)
        assert found == told and len(found) <= MOST_COMPARED_KERNELS
        lengths = [ns for _, ns in found.values()]
        assert lengths == sorted(lengths, reverse=True)
    many = pl.DataFrame(
        {"name": [f"k{i}" for i in range(90)], "grid": 1, "block": 1, "start_ns": 5, "end_ns": range(10, 100)},
        schema_overrides={"name": pl.Categorical, "end_ns": pl.Int64, "start_ns": pl.Int64},
    )
    assert [name for name, *_ in collect._kernels(many, 0, 9)] == [
        f"k{i}" for i in range(89, 89 - MOST_COMPARED_KERNELS, -1)
    ]


def test_which_rank_a_process_is() -> None:
    for source in rounds(80):
        probe = source.choice((None, "2", "x", "12345678901", 3, ""))
        probes = [] if probe is None else [{"pid": ids.pid_of(PROCESS), "rank": probe}]
        members = {
            f"c{i}": CommunicatorMember(source.choice((None, 1, 2, 4)), source.choice((None, 0, 1)))
            for i in range(source.randrange(4))
        }
        trace: Any = SimpleNamespace(capture=SimpleNamespace(probe=probes))
        sized = [m for m in members.values() if m.size is not None and m.rank is not None]
        most = max((m.size or 0 for m in sized), default=0)
        numbers = {m.rank for m in sized if m.size == most}
        told = numbers.pop() if len(numbers) == 1 and most > 1 else None
        assert collect._number(trace, PROCESS, members) == (2 if probe == "2" else told)


def test_communication_that_no_compute_hides_in_the_steps() -> None:
    for source in rounds():
        ops = rows(columns(source, 12).times().add("cls", (COMM, COMPUTE), pl.String).frame())
        sets: list[Any] = []
        for name in collect.ledger.CLASSES:
            mine = [r for r in ops if r["cls"] == name]
            sets.append(tuple(whole_numbers([r[k] for r in mine]) for k in ("start_ns", "end_ns")))
        begins = [0, 30]
        tiles = SimpleNamespace(start_ns=whole_numbers(begins), end_ns=whole_numbers([20, 50]))
        inside = source.choice((None, tiles))
        start, end = collect._exposed(coverage(sets, 0, 90), inside)  # type: ignore[arg-type]
        of = {n: covered(*((r["start_ns"], r["end_ns"]) for r in ops if r["cls"] == n)) for n in (COMM, COMPUTE)}
        told = of[COMM] - of[COMPUTE]
        if inside is not None:
            told &= covered((0, 20), (30, 50))
        assert covered(*zip(start.tolist(), end.tolist(), strict=True)) == told
        assert int((end - start).sum()) == len(told)


def test_ranks_are_in_the_order_of_their_numbers_or_of_their_files() -> None:
    for source in rounds(80):
        ranks = []
        for i in range(3):
            file = f"job.rank{source.choice((i, i + 9, 1))}.sqlite" if source.random() < 0.7 else f"r{i}.sqlite"
            ranks.append(rank(i, number=source.choice((None, i, 2 - i, 1)), file=file))
        found = rank_record.numbered(ranks)
        own = [r.number for r in ranks]
        named = [int(r.file[8:].partition(".")[0]) if r.file.startswith("job") else None for r in ranks]
        order = next((n for n in (own, named) if None not in n and len(set(n)) == 3), None)
        if order is None:
            assert [(r.file, r.number) for r in found] == [(r.file, None) for r in ranks]
        else:
            both = sorted(zip(order, [r.file for r in ranks], strict=True), key=lambda x: x[0] or 0)
            assert [(r.number, r.file) for r in found] == both


def test_collectives_of_a_rank_by_series(monkeypatch: pytest.MonkeyPatch) -> None:
    for source in rounds():
        of = columns(source).times().add("stream", (7, 3)).names("name", ("ncclAllReduce", "ncclSend"))
        ops = of.frame()
        noted = [
            nccl_notes.Message(
                source.choice(("", "world")),
                source.choice(("allreduce", "")),
                source.choice((None, 8)),
                source.choice(((), (0, 1))),
            )
            for _ in range(ops.height)
        ]
        monkeypatch.setattr(nccl_notes, "messages", always(noted))
        series, belongs, start, end, sizes = collect._collectives(profile(trace=None), ops, {})
        streams = list(dict.fromkeys(ops["stream"].to_list()))
        told = [
            (streams.index(r["stream"]), m.communicator, nccl_notes.kind_of(r["name"]), m.kind, m.pair)
            for r, m in zip(rows(ops), noted, strict=True)
        ]
        assert [tuple(series[i]) for i in belongs.tolist()] == told
        assert len(series) == len(set(told)) and start.tolist() == ops["start_ns"].to_list()
        assert sizes.tolist() == [-1 if m.bytes is None else m.bytes for m in noted]
        assert end.tolist() == ops["end_ns"].to_list()


# --- matching -------------------------------------------------------------------------------------------------------------


def test_the_shift_that_brings_ends_closest_together() -> None:
    for source in rounds(80):
        common_ends = sorted(source.sample(range(0, 900, 7), 12))
        a, b = common_ends[source.randrange(3) :], common_ends[: 12 - source.randrange(4)]
        b = [end + source.randrange(3) for end in b]
        found = match._shift(whole_numbers(a), whole_numbers(b))
        if len(a) == len(b):
            assert found == 0
            continue
        apart = {}
        for shift in range(min(0, len(b) - len(a)), max(0, len(b) - len(a)) + 1):
            i, j = max(0, -shift), max(0, shift)
            pairs = list(zip(a[i:], b[j:], strict=False))
            apart[shift] = statistics.median(abs(x - y) for x, y in pairs)
        assert found == min(apart, key=lambda s: (apart[s], s))
        i, j = match._pairs(whole_numbers(a), whole_numbers(b))
        assert (j - i).tolist() == [found] * len(i) and len(i) == min(len(a) - max(0, -found), len(b) - max(0, found))


def test_a_rank_joins_the_group_whose_kernels_run_at_the_same_time() -> None:
    seen = Counter()
    for source in rounds(120):
        count = source.choice((3, 5))
        start = [[100 * i + source.choice((0, 5, 30)) for i in range(count)] for _ in range(2)]
        end = [[s + source.choice((4, 20, 60)) for s in row] for row in start]
        offset = [0, source.choice((0, 10, -20))]
        ranks = [rank(r, start_ns=whole_numbers(start[r]), end_ns=whole_numbers(end[r])) for r in range(2)]
        aligned = Aligned(ranks, offset, [None, None])
        groups = [{0: whole_numbers(list(range(count)))}]
        taken = source.choice((count, count - 1))
        mine, sure = whole_numbers(list(range(taken))), source.choice((True, False))
        least = source.choice((COLLECTIVES_TOGETHER_SHARE, 0.5))
        match._join_group(aligned, groups, 1, mine, sure=sure, least=least)
        i, j = match._pairs(whole_numbers(end[0]), whole_numbers(end[1][:taken]) + offset[1])
        together = [
            start[0][x] < end[1][y] + offset[1] and start[1][y] + offset[1] < end[0][x]
            for x, y in zip(i.tolist(), j.tolist(), strict=True)
        ]
        same = (sure and taken == count) or sum(together) >= least * len(together)
        seen[same] += 1
        if same:
            assert [(r, g.tolist()) for r, g in groups[0].items()] == [(0, i.tolist()), (1, j.tolist())]
            assert len(groups) == 1
        else:
            assert [list(g) for g in groups] == [[0], [1]] and groups[1][1].tolist() == mine.tolist()
    assert min(seen[True], seen[False]) > 10


def test_series_are_known_by_communicator_or_else_by_stream() -> None:
    for source in rounds():
        series = tuple(
            rank_record.CollectiveSeries(source.randrange(2), source.choice(("", "w")), "k", "allreduce", ())
            for _ in range(4)
        )
        belongs = [source.randrange(4) for _ in range(9)]
        named = source.choice((True, False))
        found = match._rows(rank(0, series=series, belongs=whole_numbers(belongs)), named=named)
        told: dict[Any, list[int]] = {}
        for row, s in enumerate(belongs):
            by_name = named and series[s].communicator
            key = SeriesKey("w", (), 0, "allreduce") if by_name else SeriesKey("", (), series[s].stream, "k")
            told.setdefault(key, []).append(row)
        assert {key: of.tolist() for key, of in found.items() if len(of)} == told


# --- replayed together ----------------------------------------------------------------------------------------------------


def own_times_of(step_ns: Any, **changes: Any) -> own_time.OwnTimes:
    known = {
        "gpu_ns": step_ns,
        "code": step_ns[:, 0],
        "loading": step_ns[:, 0],
        "work": step_ns[:, 0],
        "step": 100.0,
        "measured": None,
        "error": 0.01,
        "members": (),
        "transfer": {},
    }
    return own_time.OwnTimes(step_ns, **(known | changes))


def test_the_usual_peer_is_the_median_of_the_others_the_longer_of_two() -> None:
    for source in rounds():
        count = source.choice((2, 3, 4, 5))
        step_ns = np.array([[source.randrange(5, 9) for _ in range(3)] for _ in range(count)], np.float64)
        times = own_times_of(step_ns)
        mean = step_ns.mean(axis=1).tolist()
        for r in range(count):
            others = sorted((i for i in range(count) if i != r), key=lambda i: (mean[i], i))
            assert times.usual(r) == others[len(others) // 2]


def test_savings_of_a_job_are_of_the_measured_step_where_that_is_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    for source in rounds():
        measured = source.choice((None, 50.0, 100.0, 150.0))
        members = tuple(SimpleNamespace(left=("a", "b")[:k], unheld={}, changed=lambda name: name) for k in (1, 2))
        times = own_times_of(np.ones((2, 3)), measured=measured, members=members, transfer={1: 40, 2: 60})
        then = source.choice((None, 30.0, 100.0, 120.0))
        asked: list[Any] = []
        monkeypatch.setattr(
            own_time, "_job_step", lambda m, t, then=then, asked=asked: asked.append((list(m), dict(t))) or then
        )
        scale = min(measured or 100.0, 100.0) / 100
        told = 0.0 if then is None else max(0.0, 100.0 - then) * scale
        assert times.transferred_ns(0.5) == told and asked[-1] == (list(members), {1: 20, 2: 30})
        assert times.price_ns(0) == told and asked[-1][0] == [members[1], members[1]]
        assert times.changed_ns() == {"a": told, "b": told}


def test_hosts_that_are_slower_in_the_measured_steps_are_so_in_their_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_time, "_job_step", lambda *_: 80.0)
    for measured, saved in ((None, 20.0), (50.0, 10.0), (150.0, 30.0)):
        members = (SimpleNamespace(unheld={}, left=("foreach-parameters", "a"), changed=lambda name: name),)
        times = own_times_of(np.ones((1, 3)), measured=measured, members=members)
        assert times.changed_ns() == {"foreach-parameters": saved, "a": min(saved, 20.0)}


def test_collectives_of_a_group_have_one_number_and_the_shortest_transfer() -> None:
    for source in rounds():
        lengths = [[source.randrange(1, 9) for _ in range(4)] for _ in range(3)]
        ranks = [rank(r, start_ns=whole_numbers([0] * 4), end_ns=whole_numbers(lengths[r])) for r in range(3)]
        taken = [source.choice(((0, 1, 2), (0, 1), (1, 2), (0, 2))) for _ in range(2)]
        held = [sorted(source.sample(range(4), 2)), sorted(source.sample(range(4), 1))]
        aligned = Aligned(
            ranks,
            [0] * 3,
            [None] * 3,
            [(SeriesKey("", (), n, "k"), {r: whole_numbers(held[n]) for r in taken[n]}) for n in range(2)],
        )
        group = source.choice(((0, 1, 2), (0, 1)))
        number, transfer, shared = own_time._collectives(aligned, group)
        at, both, told = 0, set(), {}
        of = {r: [-1] * 4 for r in group}
        for n in range(2):
            for row in held[n]:
                told[at] = min(lengths[r][row] for r in taken[n])
                for r in set(taken[n]) & set(group):
                    of[r][row] = at
                if len(set(taken[n]) & set(group)) > 1:
                    both.add(at)
                at += 1
        assert transfer == told and shared == both
        # A row that two series hold has the number of the later one.
        assert {r: n.tolist() for r, n in number.items()} == of


def test_the_cause_of_an_excess_is_the_largest_one() -> None:
    for source in rounds(80):
        parts = ["compute", "copy", *(f"idle: {c.value}" for c in list(Cause)[:9])]
        more = {p: float(source.choice((-5, 0, 3, 9))) for p in source.sample(parts, 4)}
        sums = {cause: sum(max(0.0, more.get(k, 0.0)) for k in of) for cause, of in straggler.CAUSES.items()}
        told = Late.UNKNOWN if max(sums.values()) <= 0 else next(c for c in sums if sums[c] == max(sums.values()))
        assert straggler.cause_of(more) == told


def test_the_excess_of_a_rank_in_replay() -> None:
    for source in rounds(80):
        figures = {
            name: np.array([float(source.choice((0, 10, 20, 80))) for _ in range(3)])
            for name in ("code", "loading", "work")
        }
        times: Any = SimpleNamespace(**figures, step=100.0, price_ns=lambda r: 7.4 + r, error=0.02)
        for r in range(3):
            found = straggler._replayed(times, r)
            more = {
                n: figures[n][r] - statistics.median(x for i, x in enumerate(figures[n]) if i != r) for n in figures
            }
            most = max(more.values())
            named = {"code": Late.HOST, "loading": Late.INPUT, "work": Late.COMPUTE}
            assert found.cause == (next(named[n] for n in more if more[n] == most) if most > 0 else Late.UNKNOWN)
            usual = statistics.median(x for i, x in enumerate(figures["code"]) if i != r)
            assert found.drift == pytest.approx(min(max(more["code"], 0), straggler.PROCESS_DRIFT * usual))
            assert (found.step, found.price, found.error) == (100.0, round(7.4 + r), 0.02)


def test_no_rank_of_an_ideal_job_takes_longer_than_the_median_of_its_peers() -> None:
    for source in rounds():
        step_ns = np.array([[float(source.randrange(9)) for _ in range(4)] for _ in range(3)])
        ideal = straggler._ideal(step_ns)
        for r in range(3):
            for s in range(4):
                others = statistics.median(float(step_ns[i, s]) for i in range(3) if i != r)
                assert ideal[r, s] == min(step_ns[r, s], others)


# --- what each row of a job says ------------------------------------------------------------------------------------------


def of_ledger(source: random.Random, number: int) -> Rank:
    parts = {k: source.choice((0, 40, 200)) for k in LEDGER}
    parts |= {"window_ns": 4_000}
    idle = {c: source.choice((0, 30, 90)) for c in ("host_code", "data_loader")}
    parts["idle_ns"] = sum(idle.values()) + source.choice((0, 5))
    return rank(number, parts=parts, idle_causes={k: v for k, v in idle.items() if v}, steps=source.choice((0, 2, 4)))


def test_by_how_much_each_rank_exceeds_the_others_from_a_hundredth_of_the_step_on() -> None:
    for source in rounds():
        ranks = [of_ledger(source, i) for i in range(3)]
        found = rank_table._late_because(ranks, None)
        steps = [straggler.per_step(r) for r in ranks]
        for i, r in enumerate(ranks):
            told = {}
            for key in {k for s in steps for k in s}:
                others = statistics.median(s.get(key, 0.0) for j, s in enumerate(steps) if j != i)
                more = steps[i].get(key, 0.0) - others
                if more >= STRAGGLER_SHARE * 4_000 / max(r.steps, 1):
                    told[key] = int(more)
            assert found[i] == told and list(found[i].values()) == sorted(told.values(), reverse=True)


def test_parts_of_a_ranks_steps_sum_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transfers and waits by group, waits by the rank that comes last and by cause; what idles by cause, and the rest of it."""
    monkeypatch.setattr(
        job_ledger,
        "why",
        lambda late, waiting, ns: [job_ledger.Why("host", "l", ns - ns // 3), job_ledger.Why("turn", None, ns // 3)],
    )
    for source in rounds(80):
        ranks = [of_ledger(source, i) for i in range(3)]
        count = source.randrange(8)
        state = [source.choice((WAITS, MOVES, UNMATCHED)) for _ in range(count)]
        row = [source.randrange(3) for _ in range(count)]
        late = [source.choice((1, 2, 0, -1)) if s == WAITS else -1 for s in state]
        ns = [source.randrange(1, 40) for _ in range(count)]
        takers = {(0, n): Takers(words) for n, words in enumerate(("data", None, "model"))}
        stretches = Stretches(*(whole_numbers(x) for x in (ns, state, row, late)))
        compared: Any = SimpleNamespace(ranks=ranks, takers=takers, on_host=None, takers_on_host={})
        monkeypatch.setattr(job_ledger, "number", lambda _, r: r)
        made = job_ledger._parts(compared, 0, stretches)
        groups = ("data", None, "model")

        def total(part: str, made: list[Row] = made, **about: Any) -> int:
            return sum(
                int(r["time_ns"]) for r in made if r["part"] == part and all(r[k] == v for k, v in about.items())
            )

        of = ranks[0]
        assert total("computes") == of.parts["compute_ns"]
        assert total("copies") == of.parts["copy_ns"] + of.parts["memset_ns"]
        assert total("idles") == of.parts["idle_ns"]
        assert all(total("idles", cause=cause) == of_cause for cause, of_cause in of.idle_causes.items())
        each = list(zip(ns, state, row, late, strict=True))
        assert total("communicates unmatched") == sum(n for n, s, *_ in each if s == UNMATCHED)
        for i, group in enumerate(groups):
            assert total("transfers", group=group) == sum(n for n, s, x, _ in each if s == MOVES and x == i)
        for other in (1, 2):
            mine = [(n, x) for n, s, x, who in each if s == WAITS and who == other]
            whole = sum(n for n, _ in mine)
            assert total("waits", waits_for=other, cause="host", detail="l") == whole - whole // 3
            assert total("waits", waits_for=other, cause="turn", detail=None) == whole // 3
            for i, group in enumerate(groups):
                assert abs(total("waits", waits_for=other, group=group) - sum(n for n, x in mine if x == i)) <= 2
        assert total("waits", waits_for=None) == sum(n for n, s, _, who in each if s == WAITS and who in (0, -1))
        assert all(r["time_ns"] for r in made)


def test_a_bubble_is_waiting_in_messages_between_two_and_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective_costs, "exposed_in", lambda _, __, chosen: 100 * sum(chosen) + 1)
    for source in rounds():
        among = [SimpleNamespace(between_two=source.random() < 0.5, inside=source.choice((0, 2))) for _ in range(4)]
        pairs = [i for i, a in enumerate(among) if a.between_two and a.inside]
        of = of_ledger(source, 0)
        told = 100 * sum(pairs) + 1 + of.parts["idle_ns"] if pairs else None
        assert rank_table._bubble(of, SimpleNamespace(among=among)) == told  # type: ignore[arg-type]


def test_collectives_are_listed_by_kind_longest_first() -> None:
    for source in rounds():
        tallies = {}
        for n in range(source.randrange(4)):
            key = SeriesKey(source.choice(("w", "", "v")), source.choice(((), (0, 1))), n, source.choice(("a", "b")))
            tallies[key] = collective_costs.Tally(
                calls=n,
                transfer_ns=source.choice((1, 5)),
                wait_ns=source.choice((1, 5)),
                sized=source.choice((0, 2)),
                bytes=7,
            )
        of = rank(0, members={"w": CommunicatorMember(4, 0)})
        numbers = {("w", ()): 0, ("v", ()): 1, ("w", (0, 1)): 2}
        found = rank_table._by_collective(of, SimpleNamespace(tallies=tallies), numbers)  # type: ignore[arg-type]
        order = sorted(tallies, key=lambda k: (-tallies[k].wait_ns - tallies[k].transfer_ns, k))
        told = [
            (
                numbers.get((k.communicator, k.pair)),
                2 if k.pair else 4 if k.communicator == "w" else None,
                k.kind,
                tallies[k].calls,
                7 if tallies[k].sized else None,
            )
            for k in order
        ]
        assert [(r["communicator"], r["ranks"], r["kind"], r["calls"], r["bytes"]) for r in found] == told


def test_of_many_ranks_those_that_wait_least_and_longest_stand_in_order() -> None:
    for source in rounds():
        count = source.choice((2, MOST_LEDGER_RANKS, MOST_LEDGER_RANKS + 7))
        waits = [source.randrange(6) for _ in range(count)]
        found = job_ledger.chosen([rank(i) for i in range(count)], waits)
        by_wait = sorted(range(count), key=lambda r: (waits[r], r))
        half = MOST_LEDGER_RANKS // 2
        told = range(count) if count <= MOST_LEDGER_RANKS else sorted({*by_wait[:half], *by_wait[-half:]})
        assert found == list(told)


# --- what-ifs, groups, checks ---------------------------------------------------------------------------------------------


def test_prices_of_changes_to_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_whatif, "number", lambda _, r: r + 3)
    for source in rounds(120):
        saves = {
            name: float(source.choice((0, 0.5, 1, 30, 300))) for name in ("0", "1", "even", "fast", "hide", "a", "b")
        }
        times: Any = SimpleNamespace(
            price_ns=lambda i, s=saves: s[str(i)],
            even_ns=lambda s=saves: s["even"],
            error=0.1,
            step=100.0,
            transferred_ns=lambda f, s=saves: s["fast"] * f,
            hidden_ns=lambda s=saves: s["hide"],
            changed_ns=lambda s=saves: {"a": s["a"], "b": s["b"]},
            measured=source.choice((None, 80.0)),
        )
        known = source.random() < 0.9
        by_work, peers = source.random() < 0.5, source.choice(((0, 1), (0, 2)))
        of_work = SimpleNamespace(
            by_work=by_work, even_ns=source.choice((None, 17)), peers=peers, place=source.choice((0, 1)), price_ns=23
        )
        late = source.choice((None, of_work))
        monkeypatch.setattr(job_whatif, "compare", always(SimpleNamespace(ranks=None, late=late)))
        monkeypatch.setattr(job_whatif, "_replayed", always(((0, 1), times) if known else None))
        asked = JobChanges(
            usual_rank=source.choice((None, None, 3, 4, 9)),
            equal_ranks=source.random() < 0.3,
            faster_links=source.choice((None, None, 4)),
            hide_transfer=source.random() < 0.3,
            on_all_ranks=source.choice(("", "", "a", "c")),
        )
        if source.random() < 0.3:
            asked = JobChanges()
        every = asked == JobChanges()
        refused = None
        if not known:
            refused = None if every else "whatif-no-job"
        elif asked.usual_rank == 9:
            refused = "rank-range"
        elif asked.on_all_ranks == "c":
            refused = "whatif-no-change"
        try:
            found = job_whatif.prices([], asked)
        except NsysxError as error:
            assert error.slug == refused
            continue
        assert refused is None
        if not known:
            assert found is None
            continue
        step = times.measured or 100.0
        named = -1 if late is None or not late.by_work or late.peers != (0, 1) else late.place
        like_peers = {i: 23.0 if i == named else saves[str(i)] for i in (0, 1)}
        told = [(f"--usual-rank {i + 3}", ns) for i, ns in like_peers.items() if every or asked.usual_rank == i + 3]
        of_page = late is not None and late.even_ns is not None and late.peers == (0, 1)
        even = float(late.even_ns) if late is not None and of_page else saves["even"]
        told += [("--equal-ranks", even)] * (every or asked.equal_ranks)
        by = asked.faster_links or job_whatif.FASTER_LINKS_TIMES
        told += [(f"--faster-links {by}", saves["fast"] / by)] * bool(every or asked.faster_links)
        told += [("--hide-transfer", saves["hide"])] * (every or asked.hide_transfer)
        told += [(f"--on-all-ranks {n}", saves[n]) for n in "ab" if every or asked.on_all_ranks == n]
        if every:
            told = sorted((x for x in told if x[1] >= STRAGGLER_SHARE * step), key=lambda x: -x[1])
        assert found is not None and found.step_ns == step
        assert list(found.savings) == [(n, min(ns, step)) for n, ns in told]


def test_the_name_of_a_group_by_its_ranks() -> None:
    for source in rounds(120):
        groups = [
            ProcessGroup(
                source.choice(("", "data", "model")),
                source.choice(((0, 1), (0, 1, 2, 3), (2, 3))),
                source.choice((None, 0, 5)),
            )
            for _ in range(source.randrange(5))
        ]
        members, size = source.choice(((0, 1), (0,), (2, 3))), source.choice((None, 2, 4))
        count = len(members) if size is None else size
        fits = [g for g in groups if len(g.ranks) == count and all(m in g.ranks for m in members)]
        used = [g for g in fits if g.collectives is None or g.collectives > 0] or fits
        names = {g.name for g in used}
        told = names.pop() or None if len(names) == 1 else None
        assert process_groups.name_of(groups, members, size) == told


def test_ranks_that_are_missing_are_told() -> None:
    for source in rounds(80):
        size = source.choice((None, 2, 4, 12))
        ranks = [
            rank(
                i,
                number=source.choice((None, i)),
                host=source.choice((None, "a", "b")),
                members={"w": CommunicatorMember(size, i)},
            )
            for i in range(source.choice((2, 3)))
        ]
        checks = {c.check: c.detail for c in rank_checks._presence_checks(ranks)}
        of = max(size or 0, 1 + max((r.number for r in ranks if r.number is not None), default=-1))
        missing = [n for n in range(of) if n not in {r.number for r in ranks}]
        assert ("rank count" in checks) == (of > len(ranks))
        if of > len(ranks):
            assert checks["rank count"].startswith(f"{len(ranks)} of {of} ranks are here")
            listed = ", ".join(map(str, missing[:NAMED_RANKS]))
            assert (f"missing: {listed}" in checks["rank count"]) == (len(missing) == of - len(ranks))
        hosts = {r.host for r in ranks} - {None}
        assert ("rank hosts" in checks) == (len(hosts) > 1)


def test_reports_of_one_job_and_which_are_foreign_to_it() -> None:
    """Two that are the same, one after the other, of other commands or GPUs; a report that fits to few others is named."""
    seen: Counter[str] = Counter()
    for source in rounds(200):
        facts: list[Row] = [
            {
                "content_id": source.choice((str(i),) * 12 + ("same",)),
                "utc_epoch_ns": source.choice((0,) * 8 + (20 * SECOND, None)),
                "command": source.choice(("c",) * 8 + ("d", None)),
                "gpu": source.choice(("H200",) * 8 + ("A100",)),
                "number": source.choice((None, i, i, i, 0)),
                "host": source.choice(("a", "a", "b", None)),
                "members": source.choice(({}, {"w": CommunicatorMember(4, i)})) if source.random() < 0.3 else {},
            }
            for i in range(source.choice((2, 3, 5)))
        ]
        ranks = [rank(i, **of) for i, of in enumerate(facts)]
        problems: dict[tuple[int, int], str] = {}
        for i, a in enumerate(facts):
            for j in range(i):
                b = facts[j]
                joined = bool(set(a["members"]) & set(b["members"]))
                clocks = None not in (a["utc_epoch_ns"], b["utc_epoch_ns"])
                other_host = None not in (a["host"], b["host"]) and a["host"] != b["host"]
                if a["content_id"] == b["content_id"]:
                    problems[i, j] = "same-report"
                elif (
                    (clocks and not other_host and a["utc_epoch_ns"] != b["utc_epoch_ns"] and not joined)
                    or (None not in (a["command"], b["command"]) and a["command"] != b["command"])
                    or (a["gpu"] != b["gpu"] and not joined)
                ):
                    problems[i, j] = "not-one-job"
                elif a["number"] is not None and a["number"] == b["number"]:
                    problems[i, j] = "same-rank"
        try:
            one_job.require(ranks)
            slug, words = "", ""
        except NsysxError as error:
            slug, words = error.slug, str(error)
        seen[slug] += 1
        if not problems:
            assert slug == ""
            continue
        count = len(facts)
        foreign = [
            i
            for i in range(count)
            if 2 * sum(i in pair and why == "not-one-job" for pair, why in problems.items()) > count - 1
        ]
        if foreign and 2 * len(foreign) < count:
            assert slug == "not-one-job" and words.startswith(
                f"not of one job with the other {count - len(foreign)} reports: {ranks[foreign[0]].file}"
            )
            assert len(foreign) <= MOST_FOREIGN_REPORTS and all(ranks[i].file in words for i in foreign)
            continue
        j, i = min((j, i) for i, j in problems)
        assert slug == problems[i, j] and words.startswith(f"{ranks[j].file} and {ranks[i].file}")
    assert len(seen) == 4


def test_the_chosen_rank_and_device_have_their_processes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for source in rounds():
        gpus = [SimpleNamespace(process=p, device=d) for p, d in ((1, 0), (2, 1), (2, 0), (3, 2))]
        frames = {
            "calls": columns(source).add("process", (1, 2, 3)).add("x", range(9)).frame(),
            "names": pl.DataFrame({"y": [1, 2]}),
        }
        probe = ({"pid": 5},)
        trace: Any = _Trace(frames, _Capture(gpus, probe))
        monkeypatch.setattr(collect, "processes", always({0: 1, 4: 3}))
        rank_, device = source.choice((None, 0, 4, 9)), source.choice((None, 0, 2, 7))
        working = {0: 1, 4: 3}
        try:
            found = chosen_work.chosen_work(trace, device, rank_)
        except NsysxError as error:
            assert error.slug == ("rank-range" if rank_ == 9 else "device-range") and (rank_ == 9 or device == 7)
            continue
        kept = {1, 2, 3} if rank_ is None else {working[rank_]}
        if device is not None:
            kept &= {g.process for g in gpus if g.device == device}
        assert rows(found.frames["calls"]) == [r for r in rows(frames["calls"]) if r["process"] in kept]
        assert found.frames["names"].height == 2


@dataclass(frozen=True)
class _Capture:
    gpus: list[Any]
    probe: tuple[Row, ...]


@dataclass(frozen=True)
class _Trace:
    frames: dict[str, pl.DataFrame]
    capture: _Capture


def test_even_work_saves_what_the_longest_rank_takes_beyond_the_mean() -> None:
    for source in rounds():
        step_ns = np.array([[float(source.randrange(5, 50)) for _ in range(4)] for _ in range(3)])
        longest = [max(step_ns[r][s] for r in range(3)) for s in range(4)]
        told = round(statistics.fmean(longest) - statistics.fmean(float(x) for row in step_ns for x in row))
        assert straggler._even_ns(step_ns, None, more_data=True) == pytest.approx(told, abs=1)
        times: Any = SimpleNamespace(even_ns=always(7.6), step=100.0, real=50.0)
        assert straggler._even_ns(step_ns, times, more_data=False) == 8
        # With more data its host does more, too: at least the same share of the real step goes as of the recorded one.
        shared = statistics.fmean(longest) - statistics.fmean(float(x) for row in step_ns for x in row)
        assert straggler._even_ns(step_ns, times, more_data=True) == round(max(7.6, shared / 2))

"""What ranks cost one another, against slow references that look at each nanosecond, on random small jobs."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from nsysx.catalogue import DeviceActivity
from nsysx.events.other_ranks import Modelled
from nsysx.ranks import (
    behind,
    collective_costs,
    communication_places,
    lone_work,
    match,
    other_lanes,
    other_reports,
    straggler,
    uneven,
)
from nsysx.ranks.collective_costs import MOVES, UNMATCHED, WAITS
from nsysx.ranks.job_compared import Takers
from nsysx.ranks.match import Aligned, SeriesKey
from nsysx.ranks.rank_places import HostLine, Place
from nsysx.ranks.rank_record import CollectiveSeries, LedgerTiles, Rank
from nsysx.reading import nccl_notes
from nsysx.reading.nccl_notes import CommunicatorMember
from tests.random_tables import covered, rounds
from tests.ranks.test_one_job import rank

LAST = 80
NOTHING_ELSE = {a.column: 0 for a in DeviceActivity if a is not DeviceActivity.COMPUTE}
KINDS = ("allreduce", "broadcast", nccl_notes.SEND_RECEIVE, "barrier")


def whole_numbers(values: Sequence[int]) -> Any:
    return np.array(values, np.int64)


def key_of(number: int, kind: str) -> SeriesKey:
    return SeriesKey("world" if number % 2 else "", (), number, kind)


class Job:
    """Three ranks with collectives of two series each and one that is alone; its rows as plain lists beside ``aligned``."""

    def __init__(self, source: random.Random) -> None:
        self.source, self.offset = source, [0, source.randrange(-4, 5), source.randrange(-4, 5)]
        self.series = [(key_of(n, source.choice(KINDS)), source.choice(((0, 1, 2), (0, 1), (1, 2)))) for n in range(2)]
        self.windows = [(source.randrange(20), source.randrange(50, LAST)) for _ in range(3)]
        self.calls: list[list[tuple[int, int, int, int]]] = [[] for _ in range(3)]  # start, end, series, message bytes
        counts = [source.randrange(4) for _ in self.series]
        for n, (_, members) in enumerate(self.series):
            for _ in range(counts[n]):
                size = source.choice((-1, 8, 16))
                for r in members:
                    start = source.randrange(LAST - 12)
                    self.calls[r].append((start, start + source.randrange(1, 12), n, size))
        for r in range(3):
            start = source.randrange(LAST - 12)
            self.calls[r].append((start, start + source.randrange(12), -1, -1))
            self.calls[r].sort()
        self.shown = [self._spans(4) for _ in range(3)]
        self.places = [Place(), Place("forward", "blocks.0", "/a.py", 3), Place("forward", "blocks.1", "/a.py", 3)]
        self.placed = [[source.randrange(3) for _ in calls] for calls in self.calls]
        self.rows = [[[i for i, c in enumerate(self.calls[r]) if c[2] == n] for r in range(3)] for n in range(2)]
        self.aligned = Aligned(
            [self._rank(r) for r in range(3)],
            list(self.offset),
            [None] * 3,
            [
                (key, {r: whole_numbers(self.rows[n][r]) for r in members})
                for n, (key, members) in enumerate(self.series)
            ],
        )

    def _spans(self, most: int) -> list[tuple[int, int]]:
        starts = [self.source.randrange(LAST) for _ in range(self.source.randrange(most))]
        return [(s, s + self.source.randrange(1, 30)) for s in starts]

    def _rank(self, r: int) -> Rank:
        start, end, series, size = (whole_numbers([c[i] for c in self.calls[r]]) for i in range(4))
        return rank(
            r,
            start_ns=start,
            end_ns=end,
            message_bytes=size,
            belongs=np.where(series < 0, 2, series),
            series=tuple(CollectiveSeries(n, "", k, k) for n, k in enumerate([*(key.kind for key, _ in self.series), "alone"])),
            window=self.windows[r],
            exposed=tuple(whole_numbers(v) for v in zip(*self.shown[r], strict=True)) if self.shown[r] else (whole_numbers([]),) * 2,
            members={"world": CommunicatorMember(4, r)},
            places=tuple(self.places),
            placed=whole_numbers(self.placed[r]),
        )  # fmt: skip

    def matched(self, r: int) -> list[dict[str, Any]]:
        """Return each matched collective of a rank: where it waits and moves, and who is last to it."""
        found = []
        for n, (key, members) in enumerate(self.series):
            if r not in members:
                continue
            for i, row in enumerate(self.rows[n][r]):
                each = {m: self.calls[m][self.rows[n][m][i]] for m in members}
                transfer = min(c[1] - c[0] for c in each.values())
                late = max(members, key=lambda m: (each[m][0] + self.offset[m], -m))
                start, end = each[r][:2]
                found.append(
                    {"row": row, "key": key, "n": n, "start": start, "end": end, "transfer": transfer, "wait": end - start - transfer,
                     "bytes": each[r][3], "late": late, "members": members, "inside": self.windows[r][0] <= start < self.windows[r][1]}
                )  # fmt: skip
        return found

    def instants(self, r: int) -> list[int]:
        """Return each nanosecond of the window of a rank with communication that no compute hides."""
        return sorted(covered(*self.shown[r]) & set(range(*self.windows[r])))


@pytest.fixture(scope="module")
def jobs() -> list[tuple[Job, list[collective_costs.CollectiveCosts]]]:
    made = [Job(source) for source in rounds(60)]
    return [(job, collective_costs.costs_of(job.aligned)) for job in made]


Jobs = list[tuple[Job, list[collective_costs.CollectiveCosts]]]


def test_what_collectives_cost_a_rank(jobs: Jobs) -> None:
    for job, costs in jobs:
        for r, found in enumerate(costs):
            own = [c for c in job.matched(r) if c["inside"]]
            together = [c for c in own if c["key"].kind != nccl_notes.SEND_RECEIVE]
            assert found.collectives == len(together)
            assert found.last == sum(c["late"] == r for c in together)
            others = [
                c
                for x in range(3)
                if x != r
                for c in job.matched(x)
                if c["inside"] and c["key"].kind != nccl_notes.SEND_RECEIVE
            ]
            assert found.delay_ns == sum(c["wait"] for c in others if c["late"] == r)
            assert found.tallies.keys() == {c["key"] for c in own}
            for key, tally in found.tallies.items():
                of = [c for c in own if c["key"] == key]
                sized = [c for c in of if c["bytes"] >= 0]
                assert (tally.calls, tally.transfer_ns, tally.wait_ns) == (
                    len(of),
                    sum(c["transfer"] for c in of),
                    sum(c["wait"] for c in of),
                )
                assert (tally.sized, tally.bytes) == (len(sized), sum(c["bytes"] for c in sized))
                series = [c for c in job.matched(r) if c["key"] == key]
                usual = {
                    size: int(statistics.median(c["transfer"] for c in series if c["bytes"] == size))
                    for size in {c["bytes"] for c in of}
                }
                assert tally.usual_ns == sum(usual[c["bytes"]] for c in of)
                carried = {
                    "broadcast": 1.0,
                    nccl_notes.SEND_RECEIVE: 1.0,
                    "allreduce": 1.5 if key.communicator else None,
                }.get(key.kind)
                assert tally.bus_bytes == (carried or 0) * tally.bytes
                assert tally.bus_ns == (sum(c["transfer"] for c in sized) if carried else 0)
            whole = found.whole()
            assert whole.calls == len(own) and whole.wait_ns == sum(c["wait"] for c in own)


def state_at(of: Sequence[dict[str, Any]], t: int) -> int:
    """Return what a rank does at an instant: where one collective transfers and another waits, it is transfer."""
    if any(c["end"] - c["transfer"] <= t < c["end"] for c in of):
        return MOVES
    return WAITS if any(c["start"] <= t < c["end"] - c["transfer"] for c in of) else UNMATCHED


def test_communication_that_no_compute_hides_waits_transfers_or_is_unmatched(jobs: Jobs) -> None:
    for job, costs in jobs:
        for r, found in enumerate(costs):
            own, ranked = job.matched(r), job.aligned.ranks[r]
            states = [state_at(own, t) for t in job.instants(r)]
            told = tuple(states.count(s) for s in (WAITS, MOVES, UNMATCHED))
            assert collective_costs.exposed(ranked, found) == told
            parts = collective_costs.stretches(ranked, found)
            assert tuple(int(parts.ns[parts.state == s].sum()) for s in (WAITS, MOVES, UNMATCHED)) == told
            chosen = [i for i, a in enumerate(found.among) if a.ranks == (0, 1, 2)]
            some = [c for c in own if c["members"] == (0, 1, 2)]
            assert collective_costs.exposed_in(ranked, found, chosen) == sum(
                state_at(some, t) == WAITS for t in job.instants(r)
            )


def test_waiting_is_due_to_the_rank_that_came_last_to_the_collective_that_began_last(jobs: Jobs) -> None:
    for job, costs in jobs:
        for r, found in enumerate(costs):
            late: dict[int | None, int] = {}
            ambiguous = False
            for t in job.instants(r):
                if state_at(job.matched(r), t) != WAITS:
                    continue
                here = [c for c in job.matched(r) if c["start"] <= t < c["end"] - c["transfer"]]
                newest = [c for c in here if c["start"] == max(x["start"] for x in here)]
                ambiguous |= len({c["late"] for c in newest}) > 1
                who = None if newest[0]["late"] == r else newest[0]["late"]
                late[who] = late.get(who, 0) + 1
            if not ambiguous:
                assert collective_costs.exposed_by(collective_costs.stretches(job.aligned.ranks[r], found), r) == late


def test_no_more_ranks_are_named_for_waiting_than_are_worth_it() -> None:
    late = whole_numbers([*range(1, 10), 0, -1])
    ns = whole_numbers([5, 9, 9, 1, 2, 3, 4, 8, 7, 6, 10])
    parts = collective_costs.Stretches(ns, np.full(11, WAITS), whole_numbers([0] * 11), late)
    told = collective_costs.exposed_by(parts, 0)
    assert list(told.items()) == [(2, 9), (3, 9), (8, 8), (9, 7), (1, 5), (7, 4), (None, 1 + 2 + 3 + 6 + 10)]


def test_waiting_in_each_step(jobs: Jobs) -> None:
    for job, costs in jobs:
        for r, found in enumerate(costs):
            begin, end = job.windows[r]
            border = sorted({begin, end, *job.source.sample(range(begin + 1, end), 2)})
            tiles = LedgerTiles(whole_numbers(border[:-1]), whole_numbers(border[1:]), {}, {})
            stepped = rank(
                r,
                **{f: getattr(job.aligned.ranks[r], f) for f in ("start_ns", "end_ns", "window", "exposed")},
                tiles=tiles,
            )
            chosen = list(range(len(found.waiting)))
            told = [
                sum(state_at(job.matched(r), t) == WAITS for t in job.instants(r) if a <= t < b)
                for a, b in pairwise(border)
            ]
            assert collective_costs.waiting_per_step(stepped, found, chosen).tolist() == told


def test_groups_of_peers_have_collectives_together_and_hand_no_messages(jobs: Jobs) -> None:
    for job, costs in jobs:
        inside = [(c["key"], c["members"]) for r in range(3) for c in job.matched(r) if c["inside"]]
        peers = {m for key, m in inside if key.kind != nccl_notes.SEND_RECEIVE}
        handed = [set(m) for key, m in inside if key.kind == nccl_notes.SEND_RECEIVE and not key.communicator]
        told = [m for m in peers if not any(pair <= set(m) for pair in handed)]
        assert straggler.groups(costs) == sorted(told, key=lambda m: (-len(m), m))


def test_exposed_communication_by_place(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(communication_places, "MOST_COMMUNICATION_PLACES", 3)
    for job, costs in jobs:
        for r, found in enumerate(costs):
            parts, ranked = collective_costs.stretches(job.aligned.ranks[r], found), job.aligned.ranks[r]
            takers = {(r, row): Takers(None, (0, 1)) for row in range(len(ranked.start_ns)) if row % 2}
            rows_ = communication_places._rows(job.aligned.ranks, r, parts, takers)
            sums: dict[Any, list[int]] = {}
            seen: dict[Any, set[int]] = {}
            for ns, state, row in zip(parts.ns.tolist(), parts.state.tolist(), parts.row.tolist(), strict=True):
                place = job.places[job.placed[r][row]] if row >= 0 else Place()
                kind = ranked.series[ranked.belongs[row]].kind if row >= 0 else None
                key = (
                    kind,
                    None,
                    (0, 1) if (r, row) in takers else None,
                    place.phase,
                    place.module and "blocks.*",
                    place.file,
                    place.line,
                )
                sums.setdefault(key, [0, 0, 0])[(WAITS, MOVES, UNMATCHED).index(state)] += ns
                seen.setdefault(key, set()).update({row} - {-1})
            order = sorted(sums, key=lambda k: (-sum(sums[k]), str(k)))
            told = [(*k, len(seen[k]), *sums[k]) for k in order]
            if len(order) > 3:
                rest = [sum(v) for v in zip(*(t[7:] for t in told[2:]), strict=True)]
                told[2:] = [(*(None,) * 7, *rest)]
            columns = (
                "collective",
                "group",
                "members",
                "phase",
                "module",
                "file",
                "line",
                "calls",
                "wait_ns",
                "transfer_ns",
                "unmatched_ns",
            )
            assert [tuple(row[c] for c in columns) for row in rows_] == told
            assert sum(row["exposed_ns"] for row in rows_) == len(job.instants(r))
            assert all(row["exposed_ns"] == row["wait_ns"] + row["transfer_ns"] + row["unmatched_ns"] for row in rows_)


def test_evaluations_for_which_others_wait() -> None:
    """A rank has evaluated for half as long as another one waits for it, which is a quarter of a step or more, and that one has not."""
    seen = 0
    for source in rounds(150):
        job = Job(source)
        spans = [sorted(source.sample(range(LAST), 4)) if source.random() < 0.6 else [] for _ in range(3)]
        step_ns = source.choice((None, 8, 20))
        facts = ("start_ns", "end_ns", "places", "placed", "window")
        ranks = [
            rank(r, step_ns=step_ns, evaluations=(whole_numbers(s[::2]), whole_numbers(s[1::2])),
                **{f: getattr(job.aligned.ranks[r], f) for f in facts})
            for r, s in enumerate(spans)
        ]  # fmt: skip
        aligned = Aligned(ranks, job.offset, [None] * 3, job.aligned.groups)
        told: dict[int, list[Any]] = {}
        for n, (key, members) in enumerate(job.series):
            for i in range(len(job.rows[n][members[0]])) if key.kind != nccl_notes.SEND_RECEIVE else ():
                each = {
                    m: (c := job.calls[m][job.rows[n][m][i]], c[0] + job.offset[m], c[1] + job.offset[m])[1:]
                    for m in members
                }
                least = min(e - s for s, e in each.values())
                wait = {m: e - s - least for m, (s, e) in each.items()}
                first = max(members, key=lambda m: (wait[m], -m))
                late = max(members, key=lambda m: (each[m][0], -m))
                if not wait[first] or first == late:
                    continue
                begin, finish = each[first][0], each[first][0] + wait[first]
                # Since the two last met, or for as long before as the wait lasts: the one that waits may have computed meanwhile.
                before = [
                    e
                    for m, (_, among) in enumerate(job.series)
                    if first in among and late in among
                    for row in job.rows[m][first]
                    if (e := job.calls[first][row][1] + job.offset[first]) <= begin
                ]
                met = max(before, default=begin - wait[first])
                here = [
                    t
                    for a, b in zip(spans[late][::2], spans[late][1::2], strict=True)
                    for t in range(a + job.offset[late], b + job.offset[late])
                    if met <= t < finish
                ]
                if wait[first] < 0.25 * (step_ns or 0) or not here or here[-1] + 1 - here[0] < 0.5 * wait[first]:
                    continue
                evaluated = [
                    sum(
                        met <= t < finish
                        for a, b in zip(spans[r][::2], spans[r][1::2], strict=True)
                        for t in range(a + job.offset[r], b + job.offset[r])
                    )
                    for r in (first, late)
                ]
                if evaluated[0] >= 0.2 * evaluated[1]:
                    continue
                place = job.places[job.placed[late][job.rows[n][late][i]]]
                told.setdefault(late, []).append(
                    {"start_ns": begin - job.offset[late], "ns": wait[first], "ranks": sum(w > 0.5 * wait[first] for w in wait.values()),
                     "collective": key.kind, "file": place.file, "line": place.line}
                )  # fmt: skip
        seen += len(told)
        assert lone_work.of_each(aligned) == {
            r: sorted(rows_, key=lambda row: row["start_ns"]) for r, rows_ in told.items()
        }
    assert seen > 10


# --- who is behind ------------------------------------------------------------------------------------------------------


def test_the_median_of_all_others() -> None:
    for source in rounds():
        values = [float(source.randrange(6)) for _ in range(source.randrange(6))]
        told = [statistics.median(values[:i] + values[i + 1 :]) if len(values) > 1 else 0.0 for i in range(len(values))]
        assert behind.median_of_others(np.array(values)).tolist() == told


def test_what_a_rank_costs_synchronous_steps() -> None:
    for source in rounds():
        ranks, steps = source.randrange(2, 5), source.randrange(1, 5)
        own = [[float(source.randrange(10, 20)) for _ in range(steps)] for _ in range(ranks)]
        r = source.randrange(ranks)
        ideal = [
            [min(own[x][s], statistics.median(own[y][s] for y in range(ranks) if y != x)) for s in range(steps)]
            for x in range(ranks)
        ]

        def mean(rows_: Sequence[Sequence[float]]) -> float:
            return statistics.fmean(max(column) for column in zip(*rows_, strict=True))

        whole = mean(own) - mean(ideal)
        without = mean(own) - mean([ideal[x] if x == r else own[x] for x in range(ranks)])
        alone = mean([own[x] if x == r else ideal[x] for x in range(ranks)]) - mean(ideal)
        found = straggler._shares(np.array(own), r)
        if whole <= 0:
            assert found == (0, 0.0, 0.0)
            continue
        assert found[0] == round(without)
        assert found[1:] == (pytest.approx(without / whole), pytest.approx(alone / whole))


def test_by_how_much_each_rank_exceeds_its_peers_by_cause() -> None:
    for source in rounds():
        ranks = [
            rank(r, steps=source.choice((0, 1, 4)), parts={c: source.randrange(9) for c in ("compute_ns", "copy_ns",
                "memset_ns", "communication_ns", "idle_ns")},
                 idle_causes={c: source.randrange(9) for c in ("host_code", "sync") if source.random() < 0.7})
            for r in range(3)
        ]  # fmt: skip
        each = [straggler.per_step(x) for x in ranks]
        for one, x in zip(each, ranks, strict=True):
            steps = max(x.steps, 1)
            assert sum(one.values()) == pytest.approx(
                (
                    sum(one_ns for one_ns in x.idle_causes.values())
                    + sum(v for k, v in x.parts.items() if k in ("compute_ns", "copy_ns", "memset_ns"))
                )
                / steps
            )
        for r, more in straggler.excesses(ranks, range(3)).items():
            told = {
                k: each[r].get(k, 0.0) - statistics.median(each[x].get(k, 0.0) for x in range(3) if x != r)
                for k in {k for e in each for k in e}
            }
            assert more == pytest.approx(told)
            assert list(more.values()) == sorted(more.values(), reverse=True)


def kernels_of(source: random.Random, steps: int) -> dict[tuple[str, int, int], tuple[int, int]]:
    keys = [(name, grid, 1) for name in ("a", "b<1>", "b<2>", "c", "d") for grid in (1, 2) if source.random() < 0.6]
    return {key: ((count := source.choice((1, 1, 2)) * steps), count * source.choice((10, 20, 30))) for key in keys}


def test_kernels_that_the_peers_do_not_run_alike() -> None:
    for source in rounds(80):
        steps = [source.choice((1, 2)) for _ in range(3)]
        ranks = [rank(r, steps=n, kernels=kernels_of(source, n)) for r, n in enumerate(steps)]
        one, others = ranks[0], ranks[1:]
        whole = sum(ns for _, ns in one.kernels.values())
        unlike = sum(
            ns for key, (count, ns) in one.kernels.items()
            if not all(key in x.kernels and x.kernels[key][0] / x.steps == count / one.steps for x in others)
        )  # fmt: skip
        share = unlike / whole if whole else 0.0
        assert uneven.unlike(one, others) == share and uneven.is_uneven(one, others) == (share >= 0.5)

        def by_name(x: Rank) -> dict[str, tuple[float, float, set[tuple[int, int]]]]:
            names = {key[0].partition("<")[0] for key in x.kernels}
            of = {n: [(k, v) for k, v in x.kernels.items() if k[0].partition("<")[0] == n] for n in names}
            return {
                n: (
                    sum(v[0] for _, v in rows_) / x.steps,
                    sum(v[1] for _, v in rows_) / x.steps,
                    {k[1:] for k, _ in rows_},
                )
                for n, rows_ in of.items()
            }

        here, there = by_name(one), [by_name(x) for x in others]
        told = []
        for name, (times, ns, grids) in here.items():
            theirs = sorted((x.get(name, (0.0, 0.0, set())) for x in there), key=lambda x: (x[1], x[0]))[1]
            if ns <= theirs[1]:
                continue
            alike = all(grids == x.get(name, (0.0, 0.0, set()))[2] for x in there)
            how = (
                uneven.OTHER
                if not theirs[0]
                else uneven.MORE
                if times > theirs[0]
                else uneven.LONGER
                if alike
                else uneven.LARGER
            )
            told.append((name, how, times, theirs[0], ns, theirs[1]))
        told.sort(key=lambda d: (d[5] - d[4], d[0]))
        assert [(d.kernel, *d[2:]) for d in uneven.differences(one, others)] == [pytest.approx(d) for d in told[:5]]


def test_a_slower_clock_slows_nearly_all_kernels_alike() -> None:
    for source in rounds(80):
        slower = source.choice((1.0, 1.005, 1.02, 1.3))
        common = {(f"k{i}", 1, 1): (2, source.randrange(500, 2_000)) for i in range(source.randrange(2, 7))}
        others = [rank(r, steps=2, kernels=common) for r in (1, 2)]
        own = {key: (n, round(ns * slower)) for key, (n, ns) in common.items()}
        alike_ns = sum(ns for _, ns in own.values())
        extra_ns = round(source.choice((0, 0.04, 0.07, 9)) * alike_ns)
        compute = alike_ns + extra_ns
        extra = {("own", 1, 1): (2, extra_ns)}
        one = rank(0, steps=2, kernels=own | extra, parts={DeviceActivity.COMPUTE.column: compute, **NOTHING_ELSE})
        by_clock = compute / 2 * (1 - 1 / slower)
        late = source.choice((1.0, 1.5, 3.0)) * by_clock
        found = straggler._slower(one, others, late)
        if len(common) < 3 or slower <= 1.005 or extra_ns > 0.05 * compute or late > 2.5 * by_clock:
            assert found == 0.0
        else:
            assert found == pytest.approx(slower - 1, abs=2e-3)


def test_late_before_the_window() -> None:
    line = HostLine("/a.py", 3, "")
    for source in rounds(80):
        count, seam = source.randrange(30), source.choice((None, 400, 150))
        late = source.choice((0, 1))
        starts = [
            [20 * i + (8 if (source.random() < 0.85) == (late == r) else 0) for i in range(count)] for r in range(2)
        ]
        noted = source.random() < 0.5
        ranks = [
            rank(r, start_ns=whole_numbers(starts[r]), seams=() if seam is None else (seam,),
                host_lines={line: 3} if noted or r == 0 else {})
            for r in range(2)
        ]  # fmt: skip
        aligned = Aligned(
            ranks, [0, 3], [None] * 2, [(key_of(1, "allreduce"), {r: np.arange(count) for r in range(2)})]
        )
        before = [i for i in range(count) if seam is not None and starts[late][i] < seam]
        settled = before[len(before) // 2 :]
        last = sum(max(range(2), key=lambda r: (starts[r][i] + (0, 3)[r], -r)) == late for i in settled)
        told = last >= 0.75 * len(settled) if len(settled) >= 8 else not noted
        assert straggler._late_before(aligned, (0, 1), late) == told


# --- pictures of other ranks --------------------------------------------------------------------------------------------


def test_reports_on_one_clock_are_connected_by_collectives_or_a_host() -> None:
    for source in rounds(80):
        hosts = [source.choice(("a", "b", None)) for _ in range(5)]
        clocks = [source.choice((None, 5)) for _ in range(5)]
        ranks = [rank(r, host=hosts[r], utc_epoch_ns=clocks[r]) for r in range(5)]
        links = [tuple(source.sample(range(5), 2)) for _ in range(source.randrange(3))]
        groups = [(key_of(1, "allreduce"), {r: whole_numbers([]) for r in pair}) for pair in links]
        reached = {0} | (
            {r for r in range(5) if hosts[r] == hosts[0] and clocks[r] is not None}
            if hosts[0] is not None and clocks[0] is not None
            else set()
        )
        for _ in range(5):
            reached |= {r for pair in links if reached & set(pair) for r in pair}
        assert other_lanes._on_one_clock(Aligned(ranks, [0] * 5, [None] * 5, groups), 0) == reached


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([], ""),
        ([3], "Rank 3: w."),
        ([4, 2, 3], "Ranks 2 to 4: w."),
        ([0, 2, 3, 5, 7], "Ranks 0, 2 to 3, 5, 7: w."),
        ([0, 2, 4, 6, 8], "Ranks 0, 2, 4, 6 and others: w."),
    ],
)
def test_ranks_in_a_row_are_named_together(numbers: list[int], words: str) -> None:
    assert other_lanes._ranks_sentence(numbers, "w") == words


def test_clocks_are_corrected_by_the_collectives_that_end_together() -> None:
    key = match.SeriesKey("", (), 0, "allreduce")
    for source in rounds(80):
        count, shift = source.randrange(1, 8), source.choice((0, 3, 10, 400))
        start = [20 * i + source.randrange(5) for i in range(count)]
        end = [s + source.randrange(5, 12) for s in start]
        late = [(s + shift + source.randrange(-2, 3), e + shift) for s, e in zip(start, end, strict=True)]
        late_start, late_end = (np.array(v) for v in zip(*late, strict=True))
        ranks = [rank(0, start_ns=np.array(start), end_ns=np.array(end)), rank(1, start_ns=late_start, end_ns=late_end)]
        aligned = match.Aligned(ranks, [0, 5], [None] * 2)
        both = [{key: np.arange(count)}, {key: np.arange(count)}]
        apart = [e + 5 - f for (_, e), f in zip(late, end, strict=True)]
        correction = int(statistics.median(apart))
        together = [a < f + 5 and s + 5 < b for a, b, (s, f) in zip(start, end, late, strict=True)]
        assert match._correction(aligned, both, 0, 1, True) == (correction if sum(together) >= 0.8 * count else None)
        assert match._correction(aligned, both, 0, 1, False) == correction
        assert match._correction(aligned, [both[0], {}], 0, 1, False) is None


def test_collectives_take_what_the_last_to_come_takes() -> None:
    for source in rounds():
        count = source.randrange(1, 5)
        length = [[source.randrange(1, 9) for _ in range(count + 1)] for _ in range(3)]
        ranks = [rank(r, start_ns=np.zeros(count + 1, np.int64), end_ns=np.array(length[r])) for r in range(3)]
        groups = [(match.SeriesKey("", (), 0, "allreduce"), {r: np.arange(count) for r in range(2)})]
        found = other_reports._working(match.Aligned(ranks, [0] * 3, [None] * 3, groups))
        shared = [min(length[0][i], length[1][i]) for i in range(count)]
        assert [f.tolist() for f in found] == [[*shared, length[0][count]], [*shared, length[1][count]], length[2]]


def test_ranks_are_compared_over_the_steps_that_all_of_them_have() -> None:
    """A step is common if its middle, on the clock of all, lies in the steady time of every rank."""
    seen = 0
    for source in rounds(80):
        offset = [0, source.randrange(-30, 31)]
        tiles, ranks = [], []
        for r in range(2):
            border = [source.randrange(40) + 20 * i + 5 * r for i in range(1)]
            for _ in range(source.randrange(1, 6)):
                border.append(border[-1] + source.randrange(5, 25))
            tiles.append(list(pairwise(border)))
            start, end = (whole_numbers(v) for v in zip(*tiles[-1], strict=True))
            of_step = LedgerTiles(start, end, {"window_ns": end - start}, {})
            ranks.append(rank(r, tiles=of_step, **of_step.figures()))
        low = max(t[0][0] + o for t, o in zip(tiles, offset, strict=True))
        high = min(t[-1][1] + o for t, o in zip(tiles, offset, strict=True))
        first = min(t[0][0] + o for t, o in zip(tiles, offset, strict=True))
        shortest = min((t[-1][1] - t[0][0]) // len(t) for t in tiles)
        kept = [
            [s for s in t if low <= s[0] + (s[1] - s[0]) // 2 + o < high] for t, o in zip(tiles, offset, strict=True)
        ]
        if (len(tiles[0]) == len(tiles[1]) and low - first < shortest) or not all(kept):
            kept = tiles
        seen += kept != tiles
        found = match.common(Aligned(ranks, offset, [None] * 2))
        assert [(r.steps, r.window, r.parts["window_ns"]) for r in found] == [
            (len(t), (t[0][0], t[-1][1]), t[-1][1] - t[0][0]) for t in kept
        ]
    assert seen > 10


def test_a_rank_that_never_waits_has_the_step_of_its_part_of_communication() -> None:
    for source in rounds():
        count = source.randrange(1, 6)
        start = [10 * i for i in range(count)]
        length = [source.randrange(1, 9) for _ in start]
        working = [source.randrange(0, n + 1) for n in length]
        window = (source.randrange(15), source.randrange(20, 60))
        parts = ((0.0, Modelled(100, 90, 110)), (0.5, Modelled(150, 130, 170)), (1.0, Modelled(300, 280, 320)))
        one = rank(
            0,
            start_ns=whole_numbers(start),
            end_ns=whole_numbers([s + n for s, n in zip(start, length, strict=True)]),
            window=window,
            by_communication=parts,
        )
        inside = [i for i, s in enumerate(start) if window[0] <= s < window[1]]
        whole = sum(length[i] for i in inside)
        part = sum(working[i] for i in inside) / whole if whole else 1.0

        def between(values: Sequence[int], part: float = part) -> int:
            a, b, left = (values[0], values[1], part * 2) if part <= 0.5 else (values[1], values[2], part * 2 - 1)
            return round(a + (b - a) * left)

        found = other_reports._never_waiting(one, whole_numbers(working))
        assert (found.step_ns, found.low_ns, found.high_ns) == (
            between((100, 150, 300)),
            between((90, 130, 280)),
            between((110, 170, 320)),
        )

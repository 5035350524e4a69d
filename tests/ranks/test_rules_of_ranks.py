"""Each condition and bound of the comparison of ranks where it alone decides, on either side of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nsysx.catalogue import DeviceActivity
from nsysx.model import Row
from nsysx.ranks import job_compared, job_ledger, late_lines, rank_checks, rank_waits, uneven
from nsysx.ranks.rank_places import HostLine
from nsysx.ranks.rank_record import Rank
from nsysx.reading.nccl_notes import CommunicatorMember
from tests.ranks.test_one_job import rank

LINE, OTHER, COMMON = (
    HostLine("/job/train.py", number, text) for number, text in ((3, "sleep()"), (5, ""), (9, "step()"))
)


def worked(report: int, compute: int = 0, steps: int = 10, **facts: Any) -> Rank:
    """Return a rank that computes for so many ns in all of its steps."""
    parts = {a.column: 0 for a in DeviceActivity} | {DeviceActivity.COMPUTE.column: compute}
    return rank(report, steps=steps, parts=parts, **facts)


# --- where the time of the job goes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "weights", "parts"),
    [(10, [1, 1], [5, 5]), (10, [1, 1, 1], [4, 3, 3]), (11, [1, 1, 1], [4, 4, 3]), (5, [3, 1], [4, 1]), (0, [1, 2], [0, 0]), (7, [2], [7])],
)  # fmt: skip
def test_a_total_is_shared_in_whole_parts(total: int, weights: list[float], parts: list[int]) -> None:
    assert job_ledger._shared(total, weights) == parts and sum(parts) == total


@pytest.mark.parametrize(
    ("ns", "told"),
    [
        (60, [("compute", "kernels on larger inputs", 60)]),
        (100, [("compute", "kernels on larger inputs", 100)]),
        (130, [("compute", "kernels on larger inputs", 100), ("in turn", None, 30)]),
    ],
)
def test_waiting_is_due_to_what_the_late_rank_spends_more_on(ns: int, told: list[tuple[str, str | None, int]]) -> None:
    """It computes 10 ns a step longer, all of it in a kernel of twice the grid; what exceeds ten steps of that is in turn."""
    late = worked(0, 300, kernels={("gemm", 16, 128): (10, 200)})
    waiting = worked(1, 200, kernels={("gemm", 8, 128): (10, 100)})
    assert [(w.cause, w.detail, w.ns) for w in job_ledger.why(late, waiting, ns)] == told


def test_causes_of_waiting_stand_with_the_longest_first_and_what_no_detail_holds_apart() -> None:
    """20 ns a step of host code, 12 of them at a line of its own, and 30 of computing without kernels to compare."""
    late = worked(0, 400, idle_causes={"host_code": 300, "sync": 900}, host_lines={LINE: 12, COMMON: 90})
    waiting = worked(1, 100, idle_causes={"host_code": 100, "sync": 900}, host_lines={COMMON: 80})
    told = [(w.cause, w.detail, w.ns) for w in job_ledger.why(late, waiting, 500)]
    assert told == [("compute", None, 300), ("host", "train.py:3", 120), ("host", None, 80)]
    assert job_ledger.why(waiting, late, 50) == [job_ledger.Why(job_ledger.IN_TURN, None, 50)]
    assert job_ledger.why(late, waiting, 0) == []


def part(rank_: int, name: str, ns: int, waits_for: int | None = None) -> Row:
    return {**dict.fromkeys(job_ledger._ROW_KEY), "part": name, "waits_for": waits_for, "time_ns": ns}


def test_sums_over_all_ranks_begin_with_the_part_that_takes_most() -> None:
    rows = [
        part(0, "computes", 5),
        part(0, "waits", 1, 1),
        part(1, "computes", 6),
        part(1, "idles", 9),
        part(1, "waits", 4, 0),
        part(1, "waits", 2, 1),
    ]
    told = [(r["part"], r["waits_for"], r["time_ns"]) for r in job_ledger._of_all(rows)]
    assert told == [("computes", None, 11), ("idles", None, 9), ("waits", 0, 4), ("waits", 1, 3)]


def test_of_many_ranks_those_that_wait_least_and_longest_have_rows() -> None:
    assert job_ledger.chosen([rank(0)] * 16, range(16)) == list(range(16))
    assert job_ledger.chosen([rank(0)] * 18, range(18)) == [*range(8), *range(10, 18)]
    assert job_ledger.chosen([rank(0)] * 17, [0] * 17) == [*range(8), *range(9, 17)]
    assert (job_ledger._share(1, 3), job_ledger._share(1, 0)) == (0.333333, 0.0)


# --- lines and kernels ----------------------------------------------------------------------------------------------------


def test_lines_at_which_a_rank_is_longer_than_the_median_of_its_peers() -> None:
    late = rank(0, host_lines={LINE: 20, OTHER: 15, COMMON: 50})
    peers = [rank(1, host_lines={LINE: 10, COMMON: 50}), rank(2, host_lines={LINE: 10, OTHER: 9, COMMON: 60})]
    rows = late_lines.longer(late, peers)
    assert [(r.line, r.ns, r.ns_there, r.more, r.own) for r in rows] == [
        (OTHER, 15, 4.5, 10.5, True), (LINE, 20, 10, 10, True),
    ]  # fmt: skip
    assert late_lines.own(rows) == 20.5
    (shorter,) = late_lines.longer(rank(0, host_lines={LINE: 19}), [rank(1, host_lines={LINE: 10})])
    assert not shorter.own and late_lines.own([shorter]) == 0
    assert late_lines.rows_per_step(rows)[0] == {
        "file": "/job/train.py",
        "line": 5,
        "text": None,
        "function": None,
        "ns": 15,
        "others_ns": 4,
    }
    assert len(late_lines.rows_per_step(rows * 3)) == 5
    assert late_lines.longer(late, []) == () and late_lines.longer(late, [peers[0], rank(2)]) == ()
    assert late_lines.longer(rank(0), peers) == ()


@pytest.mark.parametrize(
    ("kernels", "share"),
    [
        ({("a", 1, 1): (10, 60), ("b", 1, 1): (20, 40)}, 0.0),
        ({("a", 1, 1): (11, 60), ("b", 1, 1): (20, 40)}, 0.6),
        ({("a", 2, 1): (10, 60), ("b", 1, 1): (20, 40)}, 0.6),
        ({("c", 1, 1): (10, 60), ("a", 1, 1): (10, 40)}, 0.6),
        ({}, 0.0),
    ],
)
def test_work_that_peers_do_not_run_alike(kernels: dict[Any, Any], share: float) -> None:
    """Ten steps here, five there: as often in a step is as often."""
    peers = [rank(r, steps=5, kernels={("a", 1, 1): (5, 9), ("b", 1, 1): (10, 9)}) for r in (1, 2)]
    assert uneven.unlike(rank(0, steps=10, kernels=kernels), peers) == pytest.approx(share)
    assert uneven.unlike(rank(0, steps=0, kernels=kernels), peers) == 0.0 == uneven.unlike(rank(0, kernels=kernels), [])
    differs = uneven.unlike(rank(0, steps=10, kernels={("a", 1, 1): (10, 9)}), [*peers, rank(3, steps=5, kernels={})])
    assert differs == 1.0, "each peer has to run it"


def test_a_rank_is_uneven_and_bound_from_a_share_on() -> None:
    peers = [rank(1, steps=1, kernels={("a", 1, 1): (1, 9)})]
    for mine, is_uneven in ((50, True), (49, False)):
        kernels = {("a", 1, 1): (1, 100 - mine), ("mine", 1, 1): (1, mine)}
        assert uneven.is_uneven(rank(0, steps=1, kernels=kernels), peers) == is_uneven
    assert uneven.is_bound(90, 100) and not uneven.is_bound(89.9, 100)


def test_the_kernels_that_differ_most_are_listed_with_the_median_of_the_peers() -> None:
    here = rank(0, steps=1, kernels={(name, 1, 1): (1, 100 + i) for i, name in enumerate("abcdefg")})
    peers = [
        rank(r, steps=1, kernels={(name, 1, 1): (1, 10 * r) for name in "abcdef"} | {("g", 1, 1): (1, 106)})
        for r in (1, 2, 3)
    ]
    told = uneven.differences(here, peers)
    assert [(d.kernel, d.ns, d.ns_there, d.how) for d in told] == [
        (name, 100 + i, 20, uneven.LONGER) for i, name in reversed(list(enumerate("abcdef")))
    ][:5]  # fmt: skip
    assert uneven.differences(here, []) == ()
    assert [r["kernel"] for r in uneven.rows(told)] == list("fedcb")


# --- waiting by step, and how well the ranks fit together -----------------------------------------------------------------


def test_waiting_by_step_keeps_its_longest() -> None:
    row = rank_waits._row(3, np.array([5, 90, 1], np.int64))
    assert row == {"rank": 3, "steps": 3, "wait_ns": 96, "longest_ns": 90, "longest_step": 1, "by_step_ns": [5, 90, 1]}
    many = rank_waits._row(3, np.arange(120, dtype=np.int64))
    assert len(many["by_step_ns"]) == 60 and many["by_step_ns"][:2] == [0, 2]


def fits(*ranks: Rank, **changes: Any) -> dict[str, tuple[str, str]]:
    """Return the checks on ranks that all share three collectives, by name: status and detail."""
    rows = [
        {"rank": i, "collectives": 3, "steps": r.steps, "clock_correction_ns": 0, **changes}
        for i, r in enumerate(ranks)
    ]
    return {c.check: (c.status, c.detail) for c in rank_checks.checks(ranks, rows)}


def member(size: int | None) -> dict[str, Any]:
    return {"members": {"w": CommunicatorMember(size, None)}}


STARTED = {"start_ns": np.zeros(3, np.int64), "noted": "all"}


@pytest.mark.parametrize(
    ("ranks", "check", "status", "words"),
    [
        ([rank(0), rank(1)], "collectives", "ok", "matched over 2 ranks"),
        ([rank(0), rank(1)], "rank count", None, ""),
        ([rank(0, number=0, **member(4)), rank(1, number=2)], "rank count", "warn", "2 of 4 ranks are here; missing: 1, 3."),
        ([rank(0, **member(4)), rank(1)], "rank count", "warn", "2 of 4 ranks are here. Time"),
        ([rank(0, number=0), rank(1, number=2)], "rank count", "warn", "2 of 3 ranks are here; missing: 1."),
        ([rank(0, number=0), rank(1, number=1)], "rank count", None, ""),
        ([rank(0), rank(1, host="b")], "rank hosts", "ok", "on 2 machines"),
        ([rank(0), rank(1, host=None)], "rank hosts", None, ""),
        ([rank(0, steps=3), rank(1, steps=5)], "rank steps", "warn", "hold 3 to 5 steady steps"),
        ([rank(0, **STARTED), rank(1)], "rank lengths", "warn", "0 to 3 collectives"),
        ([rank(0, **STARTED), rank(1, **STARTED)], "rank lengths", None, ""),
        ([rank(0), rank(1, utc_epoch_ns=None)], "rank clocks", "warn", "does not say when"),
        ([rank(0), rank(0, utc_epoch_ns=None)], "rank clocks", None, ""),
        ([rank(0), rank(1)], "nccl messages", None, ""),
        ([rank(0, **STARTED), rank(1, **STARTED)], "nccl messages", "ok", "are noted by NCCL"),
        ([rank(0, **{**STARTED, "noted": "ranges"}), rank(1, **STARTED)], "nccl messages", "missing", "rank 0: the export lacks"),
        ([rank(0, **{**STARTED, "noted": "nothing"}), rank(1)], "nccl messages", "missing", "rank 0: no NVTX ranges of NCCL"),
    ],
)  # fmt: skip
def test_how_well_ranks_fit_together(ranks: list[Rank], check: str, status: str | None, words: str) -> None:
    told = fits(*ranks).get(check, (None, ""))
    assert told[0] == status and words in told[1]


@pytest.mark.parametrize(("clock_ns", "told"), [(1_000_000, False), (-1_000_001, True), (None, False)])
def test_clocks_that_differ_by_more_than_a_millisecond_are_told(clock_ns: int | None, told: bool) -> None:
    assert ("rank clocks" in fits(rank(0), rank(1), clock_correction_ns=clock_ns)) == told


@pytest.mark.parametrize(
    ("shared", "status", "words"),
    [([3, 3], "ok", "matched over 2 ranks"), ([3, 0], "warn", "rank 1 shares no"), ([0, None], "missing", "no collective is matched")],
)  # fmt: skip
def test_ranks_without_shared_collectives_are_told(shared: list[int | None], status: str, words: str) -> None:
    rows = [{"rank": i, "collectives": n, "steps": 1, "clock_correction_ns": 0} for i, n in enumerate(shared)]
    (check,) = (c for c in rank_checks.checks([rank(0), rank(1)], rows) if c.check == "collectives")
    assert check.status == status and words in check.detail
    assert rank_checks.checks([rank(0)], rows[:1]) == []


def test_steps_compared_and_long_lists() -> None:
    assert fits(rank(0, steps=9), rank(1, steps=9), steps=7)["rank steps"] == (
        "ok", "compared over the 7 steps that are steady on all ranks; alone, ranks have up to 9",
    )  # fmt: skip
    assert rank_checks._listed(range(8)) == "0, 1, 2, 3, 4, 5, 6, 7"
    assert rank_checks._listed(range(9)) == "0, 1, 2, 3, 4, 5, 6, 7 and 1 more"


@pytest.mark.parametrize(("size", "words"), [(None, "one rank; "), (1, "one rank; "), (2, "one rank of 2; ")])
def test_a_rank_alone_is_not_compared(size: int | None, words: str) -> None:
    alone = [rank(0, **member(size))]
    assert words in job_compared.reason(alone) and job_compared.compare(alone) is None
    assert rank_checks.job_size([*alone, rank(1)]) == (size or 0)


def test_a_report_that_holds_other_ranks_does_not_ask_for_their_reports() -> None:
    """Two processes work on GPUs, and steps were found in one of them alone."""
    assert job_compared.reason([rank(0)], 2).startswith("steps were found in 1 of 2 processes with GPU work")
    assert "give the reports of all ranks" in job_compared.reason([rank(0)], 1)


@pytest.mark.parametrize("sized", [True, False])
def test_a_communicator_whose_size_nccl_did_not_note_is_told(sized: bool) -> None:
    series: Any = (SimpleNamespace(communicator="w"), SimpleNamespace(communicator=""))
    ranks = [rank(r, **STARTED, series=series, **member(2 if sized else None)) for r in (0, 1)]
    assert ("not how many ranks" in fits(*ranks)["nccl messages"][1]) != sized

"""Stages of a pipeline that are not equally long, and those that are."""

from __future__ import annotations

from typing import Any

import pytest

from nsysx.judging import rank_verdict
from nsysx.judging.uneven_stages import uneven_stages
from nsysx.model import Row, Scope, Table, Verdict

MS = 1_000_000


def stage(rank: int, compute_ms: int, **more: Any) -> Row:
    usual = {
        "straggler": False,
        "bubble_ns": 5 * MS,
        "steps": 2,
        "window_ns": 200 * MS,
        "process": rank,
        "exposed_wait_ns": 0,
    }
    return {"rank": rank, "compute_ns": 2 * compute_ms * MS, **usual, **more}


def test_the_rank_with_most_work_sets_the_pace() -> None:
    """Eight micro-batches: the long stage and one micro-batch of the short one; even, nine of the halves."""
    stages = uneven_stages([stage(0, 80), stage(1, 8)])
    assert stages is not None and (stages.longest["rank"], stages.shortest["rank"]) == (0, 1)
    assert stages.step_ns(8) == 81 * MS
    assert stages.even_step_ns(8) == 44 * MS * 9 / 8


@pytest.mark.parametrize(
    "rows",
    [
        [stage(0, 44), stage(1, 40)],
        [stage(0, 80, bubble_ns=None), stage(1, 8, bubble_ns=None)],  # they hand each other no messages
        [stage(0, 80, straggler=True), stage(1, 8)],
        [stage(0, 80)],
        [stage(0, 0), stage(1, 0)],
    ],
)
def test_even_stages_and_ranks_that_are_none(rows: list[Row]) -> None:
    assert uneven_stages(rows) is None


@pytest.mark.parametrize(
    ("code", "compute_ms", "told"), [("comm_bound", 80, True), ("comm_bound", 9, False), ("launch_bound", 80, False)]
)
def test_the_verdict_names_the_long_stage_where_the_shown_rank_waits(code: str, compute_ms: int, told: bool) -> None:
    verdict = Verdict(code=code, sentence="x", step_ns=110 * MS, scope=Scope("steady", (1,)))
    table = Table(
        "ranks", "Ranks", (), (stage(0, compute_ms), stage(1, 8, exposed_wait_ns=180 * MS, exposed_transfer_ns=0))
    )
    said = rank_verdict.of_ranks(verdict, table).sentence
    assert ("rank 0 80.00 ms of GPU work, rank 1 8.00 ms" in said) is told
    assert ("The others wait for rank 0" in said) is told


def test_layers_come_with_their_launches() -> None:
    """The longest stage launches 80 ms of work in 80; the other one, 65 ms for 40 of work, has 85 for 60 then: as long as before."""
    rows = [stage(0, 40), stage(1, 80)]
    stages = uneven_stages(rows, hosts_ns={0: 65 * MS, 1: 80 * MS})
    assert stages is not None and stages.hosts_ns == (65 * MS, 80 * MS)
    assert stages.step_ns(8) == 85 * MS and stages.even_step_ns(8) == 85 * MS
    assert stages.held_by_hosts(8) and stages.bound_by_hosts(8)
    # As long as the longest stage computes for longer than any host launches, that stage sets the pace, whatever an even cut gains.
    waiting = uneven_stages(rows, hosts_ns={0: 65 * MS, 1: 78 * MS})
    assert waiting is not None and waiting.held_by_hosts(8) and not waiting.bound_by_hosts(8)


@pytest.mark.parametrize("hosts", [{}, {0: 60 * MS}, {0: 20 * MS, 1: 40 * MS}], ids=["unknown", "one", "fast"])
def test_hosts_that_are_fast_or_not_known_hold_nothing_up(hosts: dict[int, int]) -> None:
    stages = uneven_stages([stage(0, 40), stage(1, 80)], hosts_ns=hosts)
    assert stages is not None and not stages.held_by_hosts(8)
    assert stages.step_ns(8) == 85 * MS and stages.even_step_ns(8) == 60 * MS * 9 / 8


def test_a_host_that_takes_longer_than_all_stages_is_a_step() -> None:
    stages = uneven_stages([stage(0, 40), stage(1, 80)], hosts_ns={0: 60 * MS, 1: 100 * MS})
    assert stages is not None and stages.step_ns(8) == 100 * MS


@pytest.mark.parametrize(
    ("work", "hosts", "told"),
    [
        ((54, 84), {0: 109 * MS, 1: 121 * MS}, "first less host work, then an even cut"),
        ((64, 66), {0: 90 * MS, 1: 50 * MS}, "The stages wait for hosts"),
        ((54, 84), {0: 30 * MS, 1: 40 * MS}, "2 equal ones with 8 micro-batches"),
        ((64, 66), {0: 30 * MS, 1: 40 * MS}, "2 equal stages with 8 micro-batches"),
        ((64, 66), {}, "2 equal stages with 8 micro-batches"),
    ],
)
def test_the_verdict_says_where_hosts_set_the_pace(work: tuple[int, int], hosts: dict[int, int], told: str) -> None:
    verdict = Verdict(code="gpu_bound", sentence="x", step_ns=121 * MS, scope=Scope("steady", (1,)))
    table = Table("ranks", "Ranks", (), tuple(stage(rank, ms) for rank, ms in enumerate(work)))
    said = rank_verdict.of_ranks(verdict, table, None, 8, hosts).sentence
    assert told in said
    assert ("but hosts take" in said) is ("to launch it" in said)


@pytest.mark.parametrize(("slow", "told"), [(False, "The others wait for rank 1"), (True, "but hosts take")])
def test_uneven_stages_are_not_all_that_is_told_where_hosts_set_the_pace(slow: bool, told: str) -> None:
    verdict = Verdict(code="comm_bound", sentence="x", step_ns=121 * MS, scope=Scope("steady", (1,)))
    hosts = {0: 109 * MS, 1: 121 * MS} if slow else {0: 30 * MS, 1: 40 * MS}
    table = Table("ranks", "Ranks", (), (stage(0, 40), stage(1, 90)))
    assert told in rank_verdict.of_ranks(verdict, table, None, 8, hosts).sentence


@pytest.mark.parametrize(
    ("waits", "told"),
    [
        ({"exposed_wait_ns": 60 * MS, "waits_for": [{"rank": 1, "ns": 55 * MS}]}, "the exposed communication is waiting for rank 1"),
        ({"exposed_wait_ns": 60 * MS, "waits_for": [{"rank": 1, "ns": 30 * MS}]}, "is waiting for other stages"),
        ({"exposed_wait_ns": 40 * MS, "waits_for": [{"rank": 1, "ns": 40 * MS}], "exposed_transfer_ns": 60 * MS}, ""),
    ],
)  # fmt: skip
def test_of_equal_stages_it_is_said_how_much_of_their_communication_is_waiting(waits: Row, told: str) -> None:
    verdict = Verdict(code="comm_bound", sentence="x", step_ns=121 * MS, scope=Scope("steady", (0,)))
    rows = (stage(0, 64, **{"exposed_transfer_ns": 40 * MS, **waits}), stage(1, 66))
    said = rank_verdict.of_ranks(verdict, Table("ranks", "Ranks", (), rows), None, 8, {}).sentence
    assert (told in said) if told else ("is waiting" not in said)
    assert said.endswith("of a step by their schedule alone.")

"""The sentence of several ranks: who waits, for whom, why, and whether the network is to blame."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsysx.judging import rank_verdict, rank_waiting
from nsysx.model import Scope, Table, Verdict

MS = 1_000_000


def ranks(*rows):
    usual = {"exposed_transfer_ns": 0, "straggler": False, "late_ns": None, "late_cause": None, "late_because": {}}
    whole = [
        {**usual, "rank": i, "process": 100 + i, "steps": 10, "window_ns": 720 * MS, "exposed_wait_ns": 0, **row}
        for i, row in enumerate(rows)
    ]
    return Table("ranks", "Ranks", (), tuple(whole))


def verdict(process=100, **more):
    parts = {"work": 41 * MS, "comm": 31 * MS}
    return Verdict("comm_bound", "x", (), Scope("steady", (process,), steps=10), 72 * MS, parts, **more)


LATE = {"straggler": True, "late_ns": 30 * MS, "late_cause": "compute", "late_because": {"compute": 31 * MS}}


def test_the_late_rank_is_named_with_what_it_does_longer():
    said = rank_verdict.of_ranks(verdict(), ranks({"exposed_wait_ns": 309 * MS}, LATE)).sentence
    assert said == (
        "Straggler: rank 0 waits 30.9 of 72.0 ms for rank 1, which computes 31.0 ms longer. The network is not the problem."
    )


def test_from_the_late_rank_itself_the_wait_of_the_others_is_named():
    said = rank_verdict.of_ranks(verdict(101), ranks({"exposed_wait_ns": 309 * MS}, LATE), 1).sentence
    assert said.startswith("Straggler: rank 0 waits 30.9 of 72.0 ms for rank 1, which computes 31.0 ms longer.")


@pytest.mark.parametrize(
    ("late", "words"),
    [
        ({"late_cause": "input", "late_because": {"idle_data_loader": 31 * MS}}, "loads data 30.0 ms longer"),
        ({"late_cause": "clocks"}, "takes 30.0 ms longer for the same kernels"),
        ({"late_cause": "unknown"}, "which takes 30.0 ms longer"),
    ],
)
def test_each_cause_has_its_words(late, words):
    assert words in rank_verdict.of_ranks(verdict(), ranks({"exposed_wait_ns": 309 * MS}, LATE | late)).sentence


@pytest.mark.parametrize(
    ("idle", "hosts"), [({"host_code": 200 * MS}, True), ({"host_code": 50 * MS, "sync": 300 * MS}, False)]
)
def test_stages_wait_for_hosts_where_these_idle_for_their_own_launches(idle, hosts):
    first = {"exposed_wait_ns": 300 * MS, "bubble_ns": 300 * MS, "idle_causes": {}}
    stages = ranks(first, {"bubble_ns": 0, "idle_causes": idle})
    assert rank_verdict.stages_wait_for_hosts(stages.rows) is hosts
    no_stages = ranks({**first, "bubble_ns": None}, {"bubble_ns": None, "idle_causes": idle})
    assert not rank_verdict.stages_wait_for_hosts(no_stages.rows)


def test_the_network_is_cleared_only_where_it_takes_next_to_nothing():
    slow = {"exposed_wait_ns": 200 * MS, "exposed_transfer_ns": 109 * MS}
    assert "network" not in rank_verdict.of_ranks(verdict(), ranks(slow, LATE)).sentence


HOST = {"idle: host_code": 9 * MS, "compute": MS}


@pytest.mark.parametrize(
    ("late_ms", "other_ms", "why", "hosts"),
    [
        (60, 40, HOST, True),
        (40, 60, HOST, False),
        (60, 40, {"compute": 9 * MS, "idle: host_code": MS}, False),
    ],
)
def test_ranks_wait_for_hosts_where_those_make_most_of_the_waiting(late_ms, other_ms, why, hosts):
    """A rank that idles for its launches longer than its peers makes them wait for its host."""
    waits = {"exposed_wait_ns": 50 * MS}
    rows = ({"delay_ns": other_ms * MS, **waits}, {"delay_ns": late_ms * MS, "late_because": why})
    assert rank_verdict.wait_for_hosts(ranks(*rows).rows or ()) == hosts


@pytest.mark.parametrize(
    ("late_ms", "idle", "data"),
    [(60, {"data_loader": 40 * MS}, [1]), (60, {"host_code": 40 * MS}, []), (30, {"data_loader": 40 * MS}, [])],
)
def test_ranks_wait_for_data_where_the_latest_idles_for_its_own(late_ms, idle, data):
    rows = ({"delay_ns": 40 * MS, "exposed_wait_ns": 50 * MS}, {"delay_ns": late_ms * MS, "idle_causes": idle})
    table = ranks(*rows)
    assert [row["rank"] for row in rank_verdict.wait_for_data(table.rows or ())] == data
    assert not data or not rank_verdict.wait_for_hosts(table.rows or ())
    said = rank_verdict.of_ranks(verdict(), table).sentence
    assert ("waiting for the input data of rank 1" in said) == bool(data)


@pytest.mark.parametrize(("idle_ms", "hosts"), [(26, True), (24, False)])
def test_ranks_that_are_late_in_turn_idle_for_their_launches_as_long_as_their_peers_wait(idle_ms, hosts):
    idle = {"launch_latency": 10 * MS, "host_code": (idle_ms - 10) * MS, "sync": 90 * MS}
    row = {"delay_ns": 50 * MS, "exposed_wait_ns": 50 * MS, "idle_causes": idle}
    assert rank_verdict.wait_for_hosts(ranks(row, row).rows or ()) == hosts


@pytest.mark.parametrize("more", [{"straggler": True}, {"bubble_ns": 5 * MS}])
def test_a_late_rank_and_a_pipeline_are_no_hosts_in_turn(more):
    late = {"delay_ns": 60 * MS, "late_because": HOST, **more}
    assert not rank_verdict.wait_for_hosts(ranks({}, late).rows or ())


@pytest.mark.parametrize(("wait_ms", "transfer_ms", "told"), [(60, 40, True), (40, 60, False)])
def test_communication_that_is_mostly_a_wait_for_hosts_is_told_so(wait_ms, transfer_ms, told):
    waiting = {"exposed_wait_ns": wait_ms * MS, "exposed_transfer_ns": transfer_ms * MS}
    said = rank_verdict.of_ranks(verdict(), ranks(waiting, {"delay_ns": 60 * MS, "late_because": HOST})).sentence
    assert said == f"x{' 60 % of the exposed communication is waiting for ranks whose host launches later.' * told}"
    table = ranks(waiting, {"delay_ns": 60 * MS, "late_because": HOST})
    at_line = rank_verdict.of_ranks(verdict(), table, held_at=": at a.py:3").sentence
    assert at_line.endswith("launches later: at a.py:3.") == told


@pytest.mark.parametrize(("wait_ms", "host_bound"), [(70, True), (65, False)])
def test_a_step_that_mostly_waits_for_hosts_in_turn_is_bound_by_them(wait_ms: int, *, host_bound: bool) -> None:
    """Transfers are the smaller part of what is exposed: no link is too slow, and the sentence begins with what is."""
    waiting = {"exposed_wait_ns": wait_ms * MS, "exposed_transfer_ns": (100 - wait_ms) * MS}
    table = ranks(waiting, {"delay_ns": 60 * MS, "late_because": HOST})
    known = replace(verdict(), step_ns=200 * MS, parts={"comm": 50 * MS, "host": 10 * MS, "sync": 20 * MS})
    said = rank_verdict.of_ranks(
        known, table, held_at=": the GPU of one that is late idles 9.00 ms of a step for a.py:3"
    )
    assert said.code == known.code
    if host_bound:
        assert said.sentence == (
            "Host-bound: the GPU waits 35.0 of 200.0 ms in collectives for ranks whose host launches later (the GPU of one that is late "
            "idles 9.00 ms of a step for a.py:3), and 30.0 ms for its own host. Transfers that nothing hides take 15.0 ms."
        )
    else:
        assert said.sentence.startswith("x 65 % of the exposed communication")
    working = replace(
        known, parts={"comm": 50 * MS, "work": 140 * MS, "host": 10 * MS}
    )  # mostly GPU work: that stays said first
    said = rank_verdict.of_ranks(working, table)
    assert said.sentence.startswith(f"x {wait_ms} % of the exposed communication")


@pytest.mark.parametrize(
    ("bubbles_ns", "micro_batches", "told"),
    [
        ((MS, MS), 2, " 2 equal stages with 2 micro-batches each idle 33 % of a step by their schedule alone."),
        ((MS, MS, MS), 8, " 3 equal stages with 8 micro-batches each idle 20 % of a step by their schedule alone."),
        ((MS, MS), 1, ""),
        ((MS, MS), None, ""),
        ((MS, None), 2, ""),  # only one of them hands messages to another
        ((None, None), 2, ""),
    ],
)
def test_what_the_schedule_of_a_pipeline_leaves_idle_is_told(bubbles_ns, micro_batches, told):
    rows = ({"bubble_ns": ns, "compute_ns": MS} for ns in bubbles_ns)
    assert rank_verdict.of_ranks(verdict(), ranks(*rows), None, micro_batches).sentence == f"x{told}"


@pytest.mark.parametrize("rows", [({"exposed_wait_ns": 309 * MS}, {}), ({"exposed_wait_ns": 70 * MS}, LATE)])
def test_without_a_late_rank_or_a_long_wait_the_verdict_stays(rows):
    assert rank_verdict.of_ranks(verdict(), ranks(*rows)) == verdict()


def test_waits_are_named_as_recorded_where_the_step_is_not():
    said = rank_verdict.of_ranks(verdict(recorded_ns=80 * MS), ranks({"exposed_wait_ns": 309 * MS}, LATE)).sentence
    assert "of 72.0 ms (as recorded) for rank 1" in said


def last_in(share, delay_ms):
    """Return two ranks of which the second comes last in a share of the collectives and causes a wait (ns)."""
    usual = {"straggler": False, "bubble_ns": None, "steps": 10, "window_ns": 700 * MS}
    return [
        {**usual, "rank": 0, "delay_ns": 20 * MS, "last_share": 1 - share, "exposed_wait_ns": 70 * MS},
        {**usual, "rank": 1, "delay_ns": delay_ms * MS, "last_share": share, "exposed_wait_ns": 20 * MS},
    ]


@pytest.mark.parametrize(
    ("share", "delay_ms", "named"), [(0.8, 80, True), (0.76, 61, True), (0.74, 80, False), (0.8, 59, False)]
)
def test_a_rank_is_waited_for_if_it_mostly_comes_last_and_causes_most_of_the_waiting(share, delay_ms, named):
    late = rank_waiting.waited_for(last_in(share, delay_ms))
    assert (late and late["rank"]) == (1 if named else None)


@pytest.mark.parametrize(("steps", "compared"), [(1, False), (2, False), (3, True)])
def test_ranks_of_few_steps_are_not_said_to_be_alike(steps: int, *, compared: bool) -> None:
    """Rank 1 comes last in all collectives: with two steps nothing was tested, and the reason is told."""
    given = {"steps": steps, "window_ns": steps * 100 * MS, "bubble_ns": None, "straggler": False}
    rows = [
        {"rank": 0, "exposed_wait_ns": steps * 40 * MS, "delay_ns": 0, "last_share": 0.0, **given},
        {"rank": 1, "exposed_wait_ns": 0, "delay_ns": steps * 40 * MS, "last_share": 1.0, **given},
    ]
    said = rank_waiting.sentence(rows)
    assert ("two healthy processes differ" in said) is compared
    assert ("was not tested" in said) is not compared
    probes = [{"capture_steps": None}, {"capture_steps": [58, 86], "steps": {"count": 58 + steps}}]
    why = rank_waiting.why_not_compared(rows, probes)
    if compared:
        assert why == ""
    else:
        assert f"the program ended at step {58 + steps}, and its window of 28 steps began at step 58" in why
    assert rank_waiting.why_not_compared(rows[:1], probes) == ""

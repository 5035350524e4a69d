"""Work that is spread evenly over ranks: what it saves is where one of them has more, not where all have as much."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nsysx.ranks import even_work
from nsysx.ranks.own_time import OwnTimes
from nsysx.replay.held_lines import Unheld
from nsysx.replay.together import ReplayedRank
from tests.ranks.test_uneven import MS, one_kernel

STEPS = 3
#: Of each step: GPU work (ms), or "x" for a collective of all ranks.
Step = tuple[float | str, ...]


def member(*steps: Step) -> ReplayedRank:
    """A rank with these steps, one call for each kernel; collectives have the numbers of their order."""
    ops = [op for step in steps for op in step]
    count, ones = len(ops), np.ones(len(ops), np.int64)
    meets = np.array([op == "x" for op in ops])
    cols = one_kernel(1).cols
    each = {name: column[:1].repeat(count) for name, column in vars(cols).items() if isinstance(column, np.ndarray)}
    each |= {"call": np.arange(count), "op_item": np.arange(count), "first_op": np.arange(count + 1)}
    each["op_duration"] = np.array([0 if op == "x" else round(op * MS) for op in ops], np.int64)  # type: ignore[operator]
    borders = np.cumsum([0, *map(len, steps)])[:-1]
    return ReplayedRank(replace(cols, **each), np.where(meets, np.cumsum(meets) - 1, -ones), tuple(borders.tolist()))


def even_ns(*ranks: ReplayedRank, step_ms: float) -> float:
    zero = np.zeros((len(ranks), STEPS))
    transfer = dict.fromkeys(range(100), 0)
    flat = zero[:, 0]
    return OwnTimes(zero, zero, flat, flat, flat, step_ms * MS, None, 0.0, ranks, transfer).even_ns()


def work_ns(*ranks: ReplayedRank) -> float:
    return float(sum(each.own_work_ns.sum() for each in ranks))


def test_what_all_ranks_do_alike_stays_and_the_rest_is_shared() -> None:
    """Of 18 ms the late rank has 12 in lookups and its peer 2: they take 7 each, and the 6 ms that both compute stay 6."""
    late, other = member(*[(6, "x", 12, "x")] * STEPS), member(*[(6, "x", 2, "x")] * STEPS)
    assert even_ns(late, other, step_ms=18) == pytest.approx(5 * MS, rel=0.01)
    factor = even_work.factors((late, other))
    assert factor is not None and {round(f, 6) for f in factor[0]} == {1.0, round(7 / 12, 6)}


def test_ranks_with_as_much_work_save_nothing() -> None:
    assert even_ns(*[member(*[(6, "x", 4, "x")] * STEPS)] * 2, step_ms=10) == 0


def test_of_more_data_all_kinds_are_shared() -> None:
    late, other = member(*[(8, "x", 4, "x")] * STEPS), member(*[(4, "x", 2, "x")] * STEPS)
    assert even_ns(late, other, step_ms=12) == pytest.approx(3 * MS, rel=0.01)


def test_host_code_that_goes_on_one_rank_is_awaited_no_more_by_the_other() -> None:
    """Before its only kernel of a step one rank builds for 30 ms: the other waits for it in their collective."""
    slow, other = member(*[(2, "x")] * STEPS), member(*[(2, "x")] * STEPS)
    builds = np.tile([True, False], STEPS)
    cols = replace(slow.cols, gap=np.where(builds, 30 * MS, slow.cols.gap))
    slow = replace(slow, cols=cols, unheld={"built": Unheld.of_calls(builds)})
    assert slow.changed("other") is slow and other.changed("built") is other
    zero = np.zeros((2, STEPS))
    times = OwnTimes(zero, zero, *[zero[:, 0]] * 3, 32 * MS, None, 0.0, (slow, other), dict.fromkeys(range(100), 0))
    assert times.changed_ns()["built"] == pytest.approx(30 * MS, rel=0.05)


def test_what_a_line_sends_goes_with_the_host_code_for_it() -> None:
    """Both ranks pickle for 30 ms before a kernel of 2 ms that is part of the same change."""
    ranks = [member(*[(2, "x")] * STEPS), member(*[(2, "x")] * STEPS)]
    builds = np.tile([True, False], STEPS)
    changed = []
    for each in ranks:
        cols = replace(each.cols, gap=np.where(builds, 30 * MS, each.cols.gap))
        left = np.where(each.own, 0.0, 1.0)
        changed.append(replace(each, cols=cols, unheld={"sent": Unheld.of_calls(builds)}, left={"sent": left}))
    zero = np.zeros((2, STEPS))
    times = OwnTimes(zero, zero, *[zero[:, 0]] * 3, 32 * MS, None, 0.0, tuple(changed), dict.fromkeys(range(100), 0))
    assert times.changed_ns()["sent"] == pytest.approx(32 * MS, rel=0.05)
    assert times.changed_ns(lambda name: name != "sent") == {}


@pytest.mark.parametrize(
    ("late", "other"),
    [
        ([(6, "x", 12, "x")] * 3, [(6, "x", 2, "x")] * 3),
        ([(6, "x", 12, "x", 1)] * 3, [(6, "x", "x", 3)] * 3),  # what only one rank has counts to what follows
        ([(6, "x", 12, "x")] * 3, [(6, "x", "x")] * 3),  # or to what is before
        ([(6, "x", 12), (1, "x", 5), (6, "x", 12, "x")], [(6, "x", 2), (3, "x", 1), (6, "x", 4, "x")]),
    ],
)
def test_shared_work_is_all_of_it_and_as_much_on_each_rank(late: list[Step], other: list[Step]) -> None:
    ranks = member(*late), member(*other)
    factor = even_work.factors(ranks)
    assert factor is not None
    then = [each.lengthened(of_op) for each, of_op in zip(ranks, factor, strict=True)]
    assert work_ns(*then) == pytest.approx(work_ns(*ranks), rel=1e-6)
    assert work_ns(then[0]) == pytest.approx(work_ns(then[1]), rel=1e-6)


@pytest.mark.parametrize(
    ("joint", "other"),
    [
        ([0, 1, 2, 3, 4, 5], [("x", "x")] * 3),  # one rank computes nothing
        ([1, 0, 2, 3, 4, 5], [(6, "x", 2, "x")] * 3),  # in another order
    ],
)
def test_stretches_that_ranks_do_not_share_are_evened_as_a_whole(joint: list[int], other: list[Step]) -> None:
    late, there = member(*[(6, "x", 12, "x")] * 3), member(*other)
    changed = there.joint.copy()
    changed[there.joint >= 0] = joint
    assert even_work.factors((late, replace(there, joint=changed))) is None


def test_ranks_without_a_common_collective_are_evened_step_by_step_as_one() -> None:
    ranks = member(*[(6.0,)] * 3), member(*[(2.0,)] * 3)
    factor = even_work.factors(ranks)
    assert factor is not None and [set(each.tolist()) for each in factor] == [{4 / 6}, {2.0}]


@pytest.mark.parametrize(
    ("peer_ms", "saved_ms"),
    [
        ((1, 1, 1), (30 - 1) / 2 / STEPS),  # a refresh in one step of three is shared out in it
        ((1, 31, 1), 0),  # ranks that have much in turn: on average they have as much
    ],
)
def test_what_one_rank_has_at_times_is_shared_in_these_steps(peer_ms: tuple[float, ...], saved_ms: float) -> None:
    late = member(*[(6, "x", ms, "x") for ms in (1, 1, 30)])
    other = member(*[(6, "x", ms, "x") for ms in peer_ms])
    assert even_ns(late, other, step_ms=50 / 3) == pytest.approx(saved_ms * MS, rel=0.02, abs=0.4 * MS)

"""A rank that has more GPU work than its peers, where tracing slows the hosts so much that recorded steps do not show it."""

from __future__ import annotations

import numpy as np
import pytest

from nsysx.catalogue import DeviceActivity
from nsysx.judging import rank_waiting
from nsysx.ranks import straggler, uneven
from nsysx.ranks.own_time import OwnTimes
from nsysx.replay.chain_columns import Columns
from nsysx.replay.together import ReplayedRank
from tests.ranks.test_one_job import rank

US, MS = 1_000, 1_000_000
#: Five steps of two ranks: kernels of the late one have twice the grid and take twice as long.
EVEN = {("gemm", 8, 128): (50, 90 * MS), ("norm", 4, 64): (100, 10 * MS)}
LARGE = {("gemm", 16, 128): (50, 180 * MS), ("norm", 8, 64): (100, 20 * MS)}


def one_kernel(ns: int) -> ReplayedRank:
    """Return a rank of three steps, each one kernel of this length, whose host takes 2 us."""
    steps = 3
    ones, none = np.ones(steps, np.int64), np.zeros(steps, np.int64)
    known = {
        "kind": none, "call": np.arange(steps), "gap": ones * 2 * US, "loading": none, "cost": ones * US, "waits": none > 0,
        "first_op": np.arange(steps + 1), "op_item": np.arange(steps), "op_duration": ones * ns, "op_stream": none,
        "op_latency": ones, "op_pause": none, "op_offset": none, "streams": 1, "limit": 1_000,
        "tail": none, "target": -ones, "stream": none,
    }  # fmt: skip
    return ReplayedRank(Columns(**known), -ones, tuple(range(steps)))


def times(gpu_ms: tuple[float, float], measured_ms: float | None) -> OwnTimes:
    """Return two ranks whose traced hosts seem to take 39 ms for every step."""
    rows = np.array([[gpu * MS + 1_000 * ((i + r) % 3) for i in range(6)] for r, gpu in enumerate(gpu_ms)], np.float64)
    flat = np.full(2, 39.0 * MS)

    class Times(OwnTimes):
        def even_ns(self, *, without_host: bool = False) -> float:
            return (float(self.gpu_ns.mean(axis=1).max()) - float(self.gpu_ns.mean())) if without_host else 0.0

    measured = None if measured_ms is None else measured_ms * MS
    return Times(np.maximum(rows, 39 * MS), rows, flat, flat * 0, flat, 39.0 * MS, measured, 0.01, (), {})


def found(gpu_ms: tuple[float, float], measured_ms: float | None, late: dict[tuple[str, int, int], tuple[int, int]]):
    ranks = [rank(0, steps=5, kernels=EVEN), rank(1, steps=5, kernels=late)]
    return straggler._by_work(ranks, (0, 1), times(gpu_ms, measured_ms))


def test_a_rank_whose_work_is_as_long_as_the_step_is_late() -> None:
    late = found((18.0, 35.0), 35.2, LARGE)
    assert late is not None and late.named and late.by_work
    assert (late.place, late.cause) == (1, "compute")
    assert late.late_ns == pytest.approx(17 * MS, rel=0.01)
    assert late.even_ns == late.price_ns == pytest.approx(8.5 * MS, rel=0.01)


def test_a_gpu_that_was_slower_where_it_was_recorded_saves_no_more_than_its_peers_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As recorded rank 1 works for 40 ms and rank 0 for 10; a step was measured at 36: like rank 0 at that speed it would take 9."""
    monkeypatch.setattr(straggler, "_of_its_gpu", lambda *_: straggler.Late.HELD_CLOCK)
    late = found((10.0, 40.0), 36.0, EVEN)
    assert late is not None and late.by_work and late.even_ns is None and late.cause == "held_clock"
    assert late.price_ns == pytest.approx(27 * MS, rel=0.01)


@pytest.mark.parametrize(
    ("gpu_ms", "measured_ms", "late"),
    [
        ((18.0, 35.0), None, LARGE),  # how long a step takes without tracing is not known
        ((18.0, 25.0), 35.2, LARGE),  # its GPU has time left: the hosts are what a step waits for
        (
            (18.0, 35.0),
            35.2,
            {k: (n, 2 * ns) for k, (n, ns) in EVEN.items()},
        ),  # the same kernels, beside something else
        ((35.0, 35.0), 35.2, LARGE),
    ],
)
def test_no_rank_is_late_by_its_work(gpu_ms: tuple[float, float], measured_ms: float | None, late: dict) -> None:
    assert found(gpu_ms, measured_ms, late) is None


def test_kernels_say_in_what_they_differ() -> None:
    here = {**LARGE, ("extra", 1, 32): (5, MS), ("slow", 2, 32): (5, 3 * MS), ("often", 2, 32): (20, 4 * MS)}
    there = {**EVEN, ("slow", 2, 32): (5, 2 * MS), ("often", 2, 32): (5, MS), ("less", 2, 32): (5, 9 * MS)}
    told = uneven.differences(rank(0, steps=5, kernels=here), [rank(1, steps=5, kernels=there)])
    assert {d.kernel: d.how for d in told} == {
        "gemm": uneven.LARGER, "norm": uneven.LARGER, "often": uneven.MORE, "slow": uneven.LONGER, "extra": uneven.OTHER
    }  # fmt: skip
    assert told[0].kernel == "gemm" and told[0].ns == 36 * MS and told[0].ns_there == 18 * MS


def test_kernels_that_run_alike_are_not_uneven_whatever_the_number_of_steps() -> None:
    twice = {k: (2 * n, 2 * ns) for k, (n, ns) in EVEN.items()}
    assert uneven.unlike(rank(0, steps=10, kernels=twice), [rank(1, steps=5, kernels=EVEN)]) == 0
    # Of seven recorded steps six are common to all ranks: kernels are counted over the seven.
    of_seven = {k: (7 * n // 5, 7 * ns // 5) for k, (n, ns) in EVEN.items()}
    fewer = rank(0, steps=6, kernel_steps=7, kernels=of_seven)
    assert uneven.unlike(fewer, [rank(1, steps=5, kernels=EVEN)]) == 0
    assert uneven.differences(fewer, [rank(1, steps=5, kernels=EVEN)]) == ()
    assert uneven.unlike(rank(0, steps=5, kernels=LARGE), [rank(1, steps=5, kernels=EVEN)]) == 1
    assert uneven.unlike(rank(0, steps=5), [rank(1, steps=5, kernels=EVEN)]) == 0


def test_work_that_is_spread_evenly_takes_its_mean() -> None:
    members = tuple(one_kernel(ms * MS) for ms in (20, 40))
    zero = np.zeros((2, 3))
    own = OwnTimes(zero, zero, zero[:, 0], zero[:, 0], zero[:, 0], 40.0 * MS, None, 0.0, members, {})
    assert own.even_ns() == pytest.approx(10 * MS, rel=0.01)
    shorter = OwnTimes(zero, zero, zero[:, 0], zero[:, 0], zero[:, 0], 40.0 * MS, 36.0 * MS, 0.0, members, {})
    assert shorter.even_ns(without_host=True) == pytest.approx(9 * MS, rel=0.01)


def test_the_sentence_says_that_tracing_hides_it() -> None:
    row = {
        "rank": 1,
        "straggler": True,
        "late_by_work": True,
        "bubble_ns": None,
        "steps": 5,
        "exposed_wait_ns": 0,
        "window_ns": 1,
    }
    assert "without the profiler" in rank_waiting.sentence([row])


#: Matrix products that run as many blocks as there are SMs, whatever the matrices are; five steps.
PRODUCTS = {(f"gemm{n}", 132, 384): (50, 200 * MS) for n in range(3)}
SMALL = {("gelu", 64, 256): (50, 40 * MS), ("norm", 32, 128): (50, 20 * MS)}
CLOCK = 1.12


@pytest.mark.parametrize(
    ("here", "late_ms", "clock"),
    [
        ({**PRODUCTS, **SMALL}, 14.1, True),
        ({**PRODUCTS, **SMALL}, 45, False),  # a clock explains a third of that
        ({**PRODUCTS, ("gelu", 96, 256): (50, 40 * MS), ("norm", 48, 128): (50, 20 * MS)}, 14.1, False),  # more rows
        ({**PRODUCTS, ("gelu", 64, 256): (75, 40 * MS), ("norm", 32, 128): (75, 20 * MS)}, 14.1, False),  # more calls
        ({**PRODUCTS, **SMALL, ("bias", 8, 128): (50, 20 * MS)}, 14.1, True),  # a small thing of its own
    ],
)
def test_products_of_as_many_blocks_are_the_same_work_where_all_else_is(
    here: dict[tuple[str, int, int], tuple[int, int]], late_ms: float, clock: bool
) -> None:
    longer = {key: (n, round(CLOCK * ns)) for key, (n, ns) in here.items()}
    parts = {a.column: 0 for a in DeviceActivity} | {
        DeviceActivity.COMPUTE.column: sum(ns for _, ns in longer.values())
    }
    found = straggler._slower(
        rank(0, steps=5, kernels=longer, parts=parts),
        [rank(1, steps=5, kernels={**PRODUCTS, **SMALL})],
        late_ms * MS,
    )
    assert found == pytest.approx(CLOCK - 1 if clock else 0, abs=1e-3)

"""The least and the most factor of a change: what it saves of idle time grows with the step, what it saves of the GPU's work does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsysx.answer import factors
from nsysx.answer.timed_steps import TimedWorth, timed_worth
from nsysx.catalogue import StepLimit, StepPart
from nsysx.model import Finding, Summary, Unprofiled
from nsysx.render import answer_words as answers
from nsysx.saving import Saving
from tests.render import factory

MS = 1_000_000


def job(low_ms: float = 10, high_ms: float = 30, *, comm_ms: float = 0) -> Summary:
    """Return a capture whose step takes 20 ms, perhaps 10 to 30, of which the GPU works 8."""
    real = Unprofiled(
        20 * MS, round(low_ms * MS), round(high_ms * MS), "assumed", 0, 30 * MS, 1, 0, 4, 0.4, 8 * MS, 12 * MS, {}, {},
        round(comm_ms * MS),
    )  # fmt: skip
    summary: Summary = factory.summary()
    verdict = replace(
        summary.verdict, code=StepLimit.LAUNCH.value, step_ns=20 * MS, recorded_ns=30 * MS, late_rank=None
    )
    return replace(summary, verdict=verdict, unprofiled=real)


def finding(code: str, saving_ms: float, *, bound: bool = True, error_ms: float = 0) -> Finding:
    saving = round(saving_ms * MS)
    return Finding(code, "", "found", code, "", saving=Saving(saving, bound=bound, error_ns=round(error_ms * MS)))


def test_idle_time_that_a_change_removes_grows_with_the_step() -> None:
    """12 of 20 ms are idle: of a step of 10 ms 2 are, and of one of 30 ms 22. What is left is the GPU's work."""
    assert factors.factor_bounds(job(), finding("NSX102", 12), 12 * MS) == pytest.approx((10 / 8, 30 / 8))


def test_work_that_a_change_removes_stays_as_it_is() -> None:
    assert factors.factor_bounds(job(), finding("NSX105", 6), 6 * MS) == pytest.approx((30 / 24, 20 / 14), abs=1e-3)


def test_a_saving_longer_than_the_shortest_step_is_no_larger_a_share_of_it() -> None:
    """16 of 20 ms: a step of 10 ms is five times as fast, too, and one of 30 ms less."""
    assert factors.factor_bounds(job(), finding("NSX116", 16), 16 * MS) == pytest.approx((30 / 14, 5), abs=1e-3)


def test_slow_steps_may_come_more_or_less_often_and_leave_the_usual_step() -> None:
    """16 of 20 ms are those of slow steps: 4 ms are left of a mean of 10 ms and of one of 30 ms, and no step becomes slower."""
    assert factors.factor_bounds(job(), finding("NSX109", 16), 16 * MS) == pytest.approx((10 / 4, 30 / 4))
    assert factors.factor_bounds(job(), finding("NSX109", 1), 1 * MS) == pytest.approx((1, 30 / 19), abs=1e-3)


def test_communication_is_a_wait_for_a_host_elsewhere() -> None:
    """6 of the 8 ms that the GPU works it only communicates: without that, 2 ms are left of a step of any length."""
    assert factors.factor_bounds(job(comm_ms=6), finding("NSX110", 18), 18 * MS) == pytest.approx((5, 15))


def test_the_error_of_an_exact_change_widens_it_and_that_of_a_bound_does_not() -> None:
    narrow = job(20, 20)
    assert factors.factor_bounds(narrow, finding("NSX101", 10, bound=False, error_ms=2), 10 * MS) == pytest.approx(
        (20 / 12, 20 / 8), abs=1e-3
    )
    assert factors.factor_bounds(narrow, finding("NSX101", 10, error_ms=2), 10 * MS) == pytest.approx((2, 2))


def test_a_step_as_recorded_leaves_nothing_open() -> None:
    assert factors.factor_bounds(replace(job(), unprofiled=None), finding("NSX102", 12), 12 * MS) == ()
    assert factors.factor_bounds(job(), finding("NSX102", 0), 0) == ()
    assert factors.factor_bounds(job(), None, None) == ()


@pytest.mark.parametrize(
    ("most", "said", "factor"),
    [
        (2.28, "", "up to 2.5x faster"),
        (2.31, "How much depends on the unprofiled step time.", "up to 2.0x to 2.3x faster"),
    ],
)
def test_a_bound_whose_factor_the_step_leaves_open_says_so(most: float, said: str, factor: str) -> None:
    """From a seventh on: the least factor is 2. Beside its ends there is no other number of the same thing."""
    told = replace(
        factory.summary().answer, now_ns=20 * MS, then_ns=8 * MS, bound=True, replayed_ns=None, times=(2.0, most)
    )
    assert (answers._replayed(told), answers.factor(told)) == (said, factor)
    alone = replace(told, replayed_ns=10 * MS)
    assert answers._replayed(alone).startswith("Replay: 10.00 ms (2.0x, 2.0 to 2.3)")


def timed(code: str, saving_ms: float, timed_ms: float | None, *, bound: bool = False) -> TimedWorth | None:
    """Return what a change is worth where 20 ms were recorded, of which the GPU works 8, communicates 4 and waits 8."""
    summary = replace(job(), unprofiled=None)
    parts = {StepPart.WORK.value: 8 * MS, StepPart.COMM.value: 4 * MS, StepPart.HOST.value: 8 * MS}
    length = None if timed_ms is None else round(timed_ms * MS)
    verdict = replace(summary.verdict, parts=parts, step_ns=20 * MS, recorded_ns=None, timed_ns=length)
    chosen = finding(code, saving_ms, bound=bound)
    return timed_worth(replace(summary, verdict=verdict, findings=(chosen,)), chosen)


def test_of_a_step_that_was_timed_alone_what_waits_is_shorter_and_the_work_is_not() -> None:
    """14 of 20 ms were timed: 6 of 12 waited, so of 8 ms that go 4 do, and of all that waits nothing is left."""
    worth = timed("NSX123", 8, 14)
    assert worth is not None and (worth.now_ns, worth.then_ns) == (14 * MS, 10 * MS)
    assert worth.times[0] < 1.4 < worth.times[1] <= round(14 / 8, 3)
    most = timed("NSX110", 12, 14, bound=True)
    assert most is not None and (most.then_ns, most.times) == (8 * MS, (1.0, 1.75)) and most.bound
    assert most.words == "14.00 ms → 8.00 ms a step unprofiled, at best"


@pytest.mark.parametrize(("code", "timed_ms"), [("NSX123", None), ("NSX123", 21), ("NSX123", 8), ("NSX116", 14)])
def test_a_timed_step_says_nothing_where_it_is_longer_or_all_work_or_the_change_is_for_the_work(
    code: str, timed_ms: float | None
) -> None:
    assert timed(code, 6, timed_ms) is None

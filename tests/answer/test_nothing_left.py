"""A bound that leaves nothing of the step is no answer: what the replay gives stands in its place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsysx import answer as answers
from nsysx.answer import unnamed
from nsysx.catalogue import StepLimit
from nsysx.judging.limit_words import pair
from tests.render import factory
from tests.samples import Samples

MS = 1_000_000


@pytest.mark.parametrize(
    ("then", "alone", "bound", "led"),
    [(0, 40, True, True), (9.9, 40, True, True), (10, 40, True, False), (0, None, True, False), (0, 40, False, False)],
)
def test_the_replay_leads_where_the_bound_leaves_nothing(
    recorded: Samples, then: float, alone: int | None, bound: bool, led: bool
) -> None:
    given = replace(
        recorded.summary("copies").answer,
        now_ns=100 * MS,
        then_ns=int(then * MS),
        bound=bound,
        replayed_ns=None if alone is None else alone * MS,
        times=(2.0, 2.5),
    )
    got = answers._led_by_replay(given, whole=True)
    if not led:
        assert got == given
        return
    assert (got.then_ns, got.then_low_ns, got.then_high_ns, got.times) == (40 * MS, None, None, ())
    assert (got.bound, got.replayed_ns, got.worth) == (True, None, "at best"), "what the bound leaves out, too"


@pytest.mark.parametrize(
    ("whole", "times", "likely"), [(False, (4.0, 19.0), True), (True, (4.0, 19.0), False), (False, (), False)]
)
def test_a_time_that_was_added_up_is_likely_and_the_bound_its_most(
    recorded: Samples, whole: bool, times: tuple[float, ...], likely: bool
) -> None:
    answer = recorded.summary("copies").answer
    given = replace(
        answer, now_ns=100 * MS, then_ns=5 * MS, bound=True, replayed_ns=14 * MS, times=times, best_ns=None
    )  # fmt: skip
    got = answers._led_by_replay(given, whole=whole)
    assert (got.then_ns, got.bound, got.best_ns) == (14 * MS, not likely, 5 * MS if likely else None)
    assert got.times == (times if likely else ())


def test_a_step_in_which_the_gpu_mostly_idles_is_not_left_to_its_work() -> None:
    full = factory.summary()

    def told(parts: dict[str, int]) -> str:
        return unnamed.to_record(replace(full, verdict=replace(full.verdict, parts=parts)))

    assert "What is left is GPU work" in told({"work": 51, "host": 49})
    idle = told({"work": 49, "host": 51})
    assert "For most of the step the GPU idles" in idle and "is GPU work" not in idle


@pytest.mark.parametrize(("alone_share", "paced"), [(None, False), (0.84, False), (0.86, True), (1.2, True)])
def test_a_step_that_its_host_sets_the_pace_of_is_not_left_to_gpu_work(alone_share: float | None, paced: bool) -> None:
    full = factory.summary()
    step = full.step.shown_ns
    assert step is not None
    alone = None if alone_share is None else round(alone_share * step)
    verdict = replace(full.verdict, parts={"work": 90, "host": 10})
    told = unnamed.to_record(replace(full, verdict=verdict, replay={"trusted": True, "without_gpu_ns": alone}))
    assert ("The host sets the pace" in told) == paced and ("What is left is GPU work" in told) != paced
    if alone is not None and paced:
        part, whole = pair(min(alone, step), step)
        assert f"would still take {part} of {whole}." in told


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (StepLimit.COMM, "What is left is communication: only fewer bytes"),
        (StepLimit.COPY, "What is left are copies"),
        (StepLimit.GPU, "What is left is GPU work"),
    ],
)
def test_what_is_left_of_a_step_is_what_limits_it(limit: StepLimit, words: str) -> None:
    full = factory.summary()
    verdict = replace(full.verdict, code=limit, parts={"work": 60, "comm": 40})
    assert words in unnamed.to_record(replace(full, verdict=verdict))

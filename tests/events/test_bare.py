"""Bare steps: which are long, and what these add to the mean."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from nsysx.events import bare
from nsysx.model import Capture
from nsysx.replay import tracing_costs

MS = 1_000_000


@pytest.mark.parametrize(("every", "excess"), [(20, 48.5), (0, 0.0)])
def test_what_rare_long_steps_add_to_the_mean(every: int, excess: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every 20th step takes a second: 970 ms more than the usual 30, or 48.5 a step."""
    lengths = [1_000 if every and i % every == every - 1 else 30 + i % 3 for i in range(80)]
    monkeypatch.setattr(bare, "of_process", lambda capture, process: lengths)
    assert bare.excess_ns(SimpleNamespace(), 1) == pytest.approx(excess, abs=0.1)  # type: ignore[arg-type]


def test_a_spread_is_no_long_step() -> None:
    assert not bare.long_steps(np.array([10, 14, 18, 22, 12, 16])).any()
    assert bare.long_steps(np.array([10, 10, 11, 10, 30])).tolist() == [False] * 4 + [True]


CAPTURE = Capture((), None, None, (), (), 0, (), cupti_left=(None,))


def _noted(stock: int, every: int, count: int = 90, later: int = 0) -> dict[str, object]:
    """Return a probe's record: steps of 20 ms; those behind the first ``stock`` wait 100 ms for each ``every``-th batch, and of
    those after the second window all behind so many.
    """

    def fetches(first: int, steps: int) -> list[int]:
        return [100 * MS if every and i >= first and (i - first) % every == 0 else MS // 10 for i in range(steps)]

    between, after = fetches(stock, count), fetches(later or stock, count if later else 0)
    return {
        "unrecorded_steps": {
            "lengths_ns": [20 * MS + ns for ns in between],
            "fetch_ns": between,
            "loop_ns": [21 * MS + ns for ns in between],
            "after_ns": [20 * MS + ns for ns in after],
            "after_fetch_ns": after,
            "after_loop_ns": [],
            "detached": True,
        }
    }


def test_steps_that_lived_on_a_full_queue_do_not_count() -> None:
    """32 batches made during the pause last for 50 steps; from then on a batch of eight is waited for: 12.5 ms a step, not 5.6."""
    record = _noted(stock=50, every=8)
    lengths = bare.lengths(record)
    assert bare.loader_sets_pace(record) and len(lengths) == 32
    assert sum(lengths) / len(lengths) == pytest.approx(20 * MS + 100 * MS / 8, rel=0.01)
    assert [ns for ns, _ in bare.batches(record, CAPTURE)] == lengths
    assert bare.loop(record, CAPTURE) == ([], [])


@pytest.mark.parametrize(
    ("stock", "every", "counted"),
    [(50, 0, 90), (8, 8, 80), (30, 24, 126), (88, 8, 90), (0, 1, 90), (40, 30, 90)],
    ids=["always ready", "waits from the first", "once an epoch", "one wait", "each step waits", "two waits"],
)
def test_steps_count_where_no_queue_was_used_up(stock: int, every: int, counted: int) -> None:
    record = _noted(stock, every, 126 if counted == 126 else 90)
    assert not bare.loader_sets_pace(record)
    assert len(bare.lengths(record)) == counted == len(bare.loop(record, CAPTURE)[0])


def test_a_stretch_of_waits_counts_in_whole_rounds() -> None:
    """The first wait is of what workers began before it: 12.5 ms of waiting a step, as in the rounds behind it, and not 16."""
    record = _noted(stock=0, every=8, count=41)
    fetches = record["unrecorded_steps"]["fetch_ns"]  # type: ignore[index]
    fetches[0], fetches[1] = 200 * MS, 60 * MS  # two late workers are one round
    record["unrecorded_steps"]["lengths_ns"] = [20 * MS + ns for ns in fetches]  # type: ignore[index]
    lengths = bare.lengths(record)
    assert len(lengths) == 39 and lengths[0] < 21 * MS < 120 * MS == lengths[-1]
    assert [ns for ns, _ in bare.batches(record, CAPTURE)] == lengths
    assert len(bare.loop(record, CAPTURE)[0]) == 39


def test_a_stretch_that_never_came_to_wait_tells_nothing_where_the_other_one_did() -> None:
    record = _noted(stock=50, every=8, later=200)
    assert len(bare.lengths(record)) == 32 and bare.after(record, CAPTURE) == []
    turned = _noted(stock=50, every=0, later=0)
    turned["unrecorded_steps"] |= {  # type: ignore[operator]
        name: record["unrecorded_steps"][other]  # type: ignore[index]
        for name, other in (("after_ns", "lengths_ns"), ("after_fetch_ns", "fetch_ns"))
    }
    assert bare.lengths(turned) == bare.lengths(record)
    both = _noted(stock=50, every=8, later=60)
    assert len(bare.after(both, CAPTURE)) == 24


def test_the_lead_of_the_host_stands_in_the_first_block() -> None:
    """The host launches 7 steps in 126 ms whose work takes 27.6 ms each: 67 ms of it are still to come, and a step more at the end."""
    assert bare.lead_ns([(7, 126 * MS), (4, 110 * MS), (4, 110 * MS)]) == pytest.approx((27.5 * 7 - 126 + 27.5) * MS)
    assert bare.lead_ns([(7, 210 * MS), (4, 110 * MS), (4, 110 * MS)]) == pytest.approx(27.5 * MS)
    assert bare.lead_ns([]) == 0


@pytest.mark.parametrize(
    ("blocks", "mean_ms"),
    [
        (
            [[7, 126 * MS], [4, 110 * MS], [4, 110 * MS]],
            None,
        ),  # 23.1 ms a step on the host's clock, whose device is 100 ms behind
        ([[7, 140 * MS], [4, 80 * MS], [4, 80 * MS]], 20),  # really faster: it lost nothing in its first block
        ([[7, 210 * MS], [4, 120 * MS], [4, 120 * MS]], 30),  # slower
    ],
)
def test_a_mean_that_the_lead_of_the_host_explains_is_not_told(blocks: list[list[int]], mean_ms: float | None) -> None:
    record = _noted(stock=50, every=0) | {"pid": 7, "rest": {"blocks": blocks}}
    record["unrecorded_steps"] = {"lengths_ns": [27_500_000] * 30, "detached": True}
    steps = SimpleNamespace(process=7, timed=1, in_rounds=True)
    trace = SimpleNamespace(run={"probe": [record]}, capture=CAPTURE)
    measured = tracing_costs.beside(SimpleNamespace(steps=steps, trace=trace))  # type: ignore[arg-type]
    assert (measured["rest_ns"], measured["rest_steps"]) == ((None, 0) if mean_ms is None else (mean_ms * MS, 15))

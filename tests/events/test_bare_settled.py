"""Steps behind a window that are slower than all that follow are left out of the bare ones; steps that only differ are not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from nsysx.events import bare
from nsysx.events.bare_settled import unsettled
from tests.events.test_bare import CAPTURE

MS = 1_000_000
#: Behind a window of 10,000 launches a step, on a host that keeps up with the GPU only just (measured, ms; the program takes 34.3).
SLOW_AT_FIRST = [
    45.7,
    35.5,
    34.3,
    38.6,
    45.2,
    42.7,
    46.7,
    45.8,
    36.2,
    39.6,
    45.0,
    46.3,
    36.6,
    45.7,
    44.5,
    48.3,
    45.7,
    42.1,
    44.5,
    47.2,
]
SETTLED = [34.3, 34.4, 34.3, 34.3, 37.0, 34.4, 34.3, 34.3] * 8


def noted(
    between: list[float], *, loop: list[float] | None = None, after: list[float] | None = None
) -> dict[str, object]:
    """Return a probe's record of bare steps and of the loop that they are of (ms), whose loader is always ready."""
    ns = {
        "lengths_ns": between,
        "fetch_ns": [0.0] * len(between),
        "loop_ns": loop or [],
        "after_ns": after or [],
        "after_fetch_ns": [0.0] * len(after or []),
        "after_loop_ns": [],
    }
    return {"unrecorded_steps": {**{key: [round(t * MS) for t in ts] for key, ts in ns.items()}, "detached": True}}


def test_steps_while_nsys_still_writes_do_not_count() -> None:
    record = noted(SLOW_AT_FIRST + SETTLED, after=SETTLED)
    assert bare.slower_at_first(record) == [round(t * MS) for t in SLOW_AT_FIRST]
    assert np.mean(bare.lengths(record)) == pytest.approx(np.mean(SETTLED) * MS, rel=1e-6)
    assert bare.after(record, CAPTURE) == [round(t * MS) for t in SETTLED]


def test_the_loop_is_cut_where_its_steps_are() -> None:
    """Steps with an evaluation have no length of their own, so the loop holds one more for each fourth of them."""
    slow, settled = (
        [t for i in range(0, len(ts), 4) for t in (*ts[i : i + 4], 90.0)] for ts in (SLOW_AT_FIRST, SETTLED)
    )
    loop, _ = bare.loop(noted(SLOW_AT_FIRST + SETTLED, loop=slow + settled), CAPTURE)
    assert loop == [round(t * MS) for t in settled]


#: All that a program of 217 ms noted between two windows, on a host whose speed wanders (measured, ms).
WANDERING = [
    230.0,
    231.0,
    242.0,
    211.0,
    250.0,
    255.0,
    226.0,
    232.0,
    228.0,
    188.0,
    191.0,
    194.0,
    226.0,
    221.0,
    181.0,
    173.0,
    192.0,
    192.0,
]


def test_steps_that_get_shorter_as_the_host_drifts_all_count() -> None:
    assert bare.lengths(noted(WANDERING)) == [round(t * MS) for t in WANDERING]
    steady = [*WANDERING[:9], *(191.0 + 0.5 * (i % 3) for i in range(9))]
    assert bare.slower_at_first(noted(steady)) == [round(t * MS) for t in steady[:9]]


def periodic(count: int) -> list[float]:
    return [219.0 if i % 5 == 0 else 12.4 + 0.01 * (i % 3) for i in range(count)]


def drifting(count: int) -> list[float]:
    """Return steps of a host whose speed wanders: each lies between the one before and a new one."""
    steps, random = [50.0], np.random.default_rng(4)
    while len(steps) < count:
        steps.append(0.8 * steps[-1] + 0.2 * (50 + 15 * float(random.standard_normal())))
    return steps


@pytest.mark.parametrize(
    "steps",
    [
        lambda: periodic(60),
        lambda: drifting(60),
        lambda: list(np.random.default_rng(1).gamma(2, 5, 80)),
        lambda: [34.3] * 40 + SLOW_AT_FIRST,
        lambda: SLOW_AT_FIRST * 3 + [34.3] * 6,
        lambda: [40.0, *SETTLED],
        lambda: [34.6] * 20 + [34.3] * 40,
        lambda: [45.0] * 6 + [34.3] * 5,
        list,
    ],
    ids=["a period", "a host that drifts", "by chance", "slower later", "mostly slow", "one", "by one percent", "too few", "none"],
)  # fmt: skip
def test_steps_that_only_differ_count(steps: Callable[[], list[float]]) -> None:
    assert unsettled([round(t * MS) for t in steps()]) == 0

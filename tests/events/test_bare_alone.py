"""Single bare steps of many times the usual length are beside the step, and what a program does now and then is in it."""

from __future__ import annotations

from typing import Any

import pytest

from nsysx.events import bare
from nsysx.events.bare_alone import few_longer
from nsysx.model import Capture

MS = 1_000_000
CAPTURE = Capture((), None, None, (), (), 0, (), cupti_left=(None,))
USUAL, OTHER = (["train.py", 12, "step", 20, seen] for seen in (True, False))


def record(
    *, long: tuple[int, ...] = (11,), count: int = 33, after: int = 0, times: int = 9, **noted: Any
) -> dict[str, Any]:
    """Return what a probe notes of steps of 20 ms of which some take many times that; ``after``: how many follow the second window."""
    ns = [20 * MS * (times if i in long else 1) for i in range(count + after)]
    return {
        "unrecorded_steps": {
            "lengths_ns": ns[:count],
            "fetch_ns": [0] * count,
            "loop_ns": [each + MS for each in ns[:count]],
            "after_ns": ns[count:],
            "after_fetch_ns": [0] * after,
            "after_loop_ns": [],
            "detached": True,
        },
        **noted,
    }


def looked(*places: list[Any], steps: int = 1) -> dict[str, Any]:
    """Return what it saw where long steps were: file, line, function, samples, and whether other steps run the line."""
    return {"steps": steps, "samples": sum(place[3] for place in places), "places": list(places), "entries": []}


@pytest.mark.parametrize(
    "noted",
    [
        {},
        {"long_steps": looked(USUAL)},
        {"long_steps": looked(USUAL, [*OTHER[:3], 5, False])},
        {"long": (11, 200), "count": 150, "after": 150},
    ],
    ids=["not looked", "a usual line", "mostly", "two of hundreds"],
)
def test_a_step_alone_with_its_length_is_beside_the_step(noted: dict[str, Any]) -> None:
    given = record(**noted)
    assert set(bare.lengths(given)) == {20 * MS} and set(bare.after(given, CAPTURE)) <= {20 * MS}
    assert bare.left_alone(given, CAPTURE) == [180 * MS] * len(noted.get("long", (11,)))
    assert set(bare.loop(given, CAPTURE)[0]) == {21 * MS}, "the loop has none of it, either"


@pytest.mark.parametrize(
    "noted",
    [
        {"long": (10, 20, 30)},
        {"long": (11, 25)},
        {"long_steps": looked(OTHER)},
        {"long_steps": looked(USUAL, steps=4)},
        {"times": 2},
        {"count": 12},
        {"rank": 1},
    ],
    ids=["regular", "two of dozens", "an evaluation", "more behind them", "twice as long", "few steps", "may wait for a rank"],
)  # fmt: skip
def test_what_comes_back_is_a_part_of_the_mean(noted: dict[str, Any]) -> None:
    given = record(**noted)
    assert bare.left_alone(given, CAPTURE) == []
    assert len(bare.lengths(given)) == noted.get("count", 33) and max(bare.lengths(given)) > 20 * MS


def test_a_new_pass_of_a_loader_is_a_wait_for_its_batch() -> None:
    given = record()
    given["unrecorded_steps"]["fetch_ns"][11] = 150 * MS
    assert max(bare.lengths(given)) == 180 * MS and bare.left_alone(given, CAPTURE) == []


@pytest.mark.parametrize(
    ("long", "count", "told"),
    [
        ((200,), 50, [200]),
        ((200, 150), 50, [150, 200]),
        ((119,), 50, []),
        ((200,), 19, []),
        ((200,), 150, []),
        ((200,) * 3, 53, []),
    ],
    ids=["one of 50", "two", "not twice", "of few steps", "a mean that hardly moves", "more than a few"],
)
def test_a_few_longer_steps_that_stay_in_the_mean_are_known(long: tuple[int, ...], count: int, told: list[int]) -> None:
    lengths = [*[60 * MS] * (count - len(long)), *(each * MS for each in long)]
    assert few_longer(lengths) == [each * MS for each in told]

"""Bare steps that were single calls are left out; requests of which later ones take longer are not."""

from __future__ import annotations

import pytest

from nsysx.events import bare
from nsysx.events.bare_calls import single_calls

MS = 1_000_000
#: A sampler that calls its network twenty times for an image, on a host that drifts (measured, ms).
CALLS, IMAGES = [11, 11, 12, 11, 11, 13, 11, 30, 11, 10] * 2, [220, 239, 316, 224, 233, 210, 257, 197, 197, 202]


def noted(between: list[int], *, ranges: int, count: int = 60, rule: str = "forward/forward") -> dict[str, object]:
    """Return what a probe wrote of bare steps (ms)."""
    ns = [ms * MS for ms in between]
    steps = {"rule": rule, "ranges": ranges, "count": count}
    return {"steps": steps, "unrecorded_steps": {"lengths_ns": ns, "fetch_ns": [0] * len(ns), "loop_ns": ns}}


@pytest.mark.parametrize(
    ("calls", "images"), [(CALLS, IMAGES), (CALLS[:1], IMAGES), (CALLS, IMAGES[:2]), ([4] * 30, [8] * 40)]
)
def test_single_calls_are_no_steps(calls: list[int], images: list[int]) -> None:
    record = noted(calls + images, ranges=60 + 2 * len(calls))
    assert single_calls(record, [ms * MS for ms in calls + images]) == len(calls)
    assert bare.lengths(record) == bare.noted_lengths(record)[0] == [ms * MS for ms in images]


@pytest.mark.parametrize(
    "record",
    [
        noted(CALLS + IMAGES, ranges=60),
        noted(CALLS + IMAGES, ranges=60 + 4),
        noted(CALLS + IMAGES, ranges=118, rule="optimizer/forward"),
        noted(IMAGES * 3, ranges=118),
        noted(IMAGES + CALLS, ranges=118),
        noted([200, 330] * 12, ranges=118),
        noted(CALLS[:1], ranges=118),
    ],
)
def test_steps_that_only_differ_stay(record: dict[str, object]) -> None:
    lengths_ns = record["unrecorded_steps"]["lengths_ns"]  # type: ignore[index]
    assert single_calls(record, lengths_ns) == 0


def test_without_a_count_of_steps() -> None:
    assert single_calls({}, [MS, 100 * MS, 100 * MS]) == 0

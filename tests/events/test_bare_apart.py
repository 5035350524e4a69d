"""What ran between bare steps, told apart from them, and what is no such thing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from nsysx.events import bare, bare_apart
from nsysx.model import Capture
from nsysx.pipeline import ReadingOptions, gather_job, summarize
from tests.findings.test_made_between import MS, US, rolling

#: A step, and a stretch of 16 calls behind every fourth one, as the recorded ones are.
USUAL, STRETCH = 2 * MS, 1600 * US


def noted(count: int = 80, *, every: int = 4, more_ns: int = STRETCH, **changed: Any) -> dict[str, Any]:
    """Return what the probe noted of so many bare steps between the windows and after them, of which every fourth is longer."""
    lengths = [USUAL + more_ns * (i % every == every - 1) for i in range(count)]
    half = count // 2
    return {
        "count": half, "median_ns": USUAL, "low_ns": USUAL, "high_ns": USUAL + more_ns, "clock": "gpu", "where": "between the windows",
        "lengths_ns": lengths[:half], "fetch_ns": [0] * half, "loop_ns": [],
        "after_ns": lengths[half:], "after_fetch_ns": [0] * half, "after_loop_ns": [], "detached": True, **changed,
    }  # fmt: skip


@pytest.fixture
def told(tmp_path: Path) -> Callable[..., tuple[Capture, Path]]:
    """Return the capture as it is told, and its file."""

    def told(steps: dict[str, Any] | None, **changed: Any) -> tuple[Capture, Path]:
        record = {"pid": 100, "backend": "nvtx", "ranges": {}, "ranges_pushed": 1, "unrecorded_steps": steps}
        record |= {"window_pauses_ns": [MS, MS], "settings": {"evaluations": []}}
        path = rolling(**changed).write(tmp_path / "r.sqlite")
        (tmp_path / "r.run.json").write_text(json.dumps({"probe": [record]}))
        return gather_job([path], ReadingOptions()).profile.trace.capture, path

    return told


def test_long_steps_that_come_like_what_was_recorded_between_steps_are_left_out(told: Callable[..., Any]) -> None:
    capture, _ = told(noted())
    (record,) = capture.probe
    assert bare.noted_lengths(record) == ([USUAL] * 30, [USUAL] * 30)
    assert sum(record["unrecorded_steps"]["loop_ns"]) == 40 * USUAL + 10 * STRETCH
    assert sum(record["unrecorded_steps"]["after_loop_ns"]) == 40 * USUAL + 10 * STRETCH
    assert (record["unrecorded_steps"]["count"], record["unrecorded_steps"]["high_ns"]) == (30, USUAL)
    assert len(record["unrecorded_steps"]["fetch_ns"]) == 30


def test_the_same_time_is_told_once(told: Callable[..., Any]) -> None:
    """The loop has it, and no step does."""
    _, path = told(noted())
    summary = summarize([path], every_table=False)
    real = summary.step.estimate
    assert real is not None and real.loop_ns is not None
    assert real.loop_ns - real.step_ns == pytest.approx(STRETCH / 4, rel=0.05)
    found = {f.code: f for f in summary.findings or () if f.verdict == "found"}
    assert "NSX109" not in found and "Between steps" in found["NSX130"].title


def test_a_stretch_of_many_launches_takes_longer_while_it_is_traced(told: Callable[..., Any]) -> None:
    (record,) = told(noted(more_ns=600 * US))[0].probe  # a third of it is what tracing adds to 96 launches
    assert record["unrecorded_steps"]["loop_ns"]


def test_a_stretch_of_few_launches_is_as_long_without_tracing() -> None:
    between = pl.DataFrame({"process": [1], "cpu_start_ns": [0], "cpu_end_ns": [100 * MS]})
    for count, longest in ((10, False), (9_000, True)):
        calls = pl.DataFrame({"process": 1, "kind": "launch", "start_ns": [i * 10 * US for i in range(count)]})
        assert bare_apart.last_as_long(40 * MS, between, calls) is longest


def test_the_loop_as_the_probe_timed_it_stays(told: Callable[..., Any]) -> None:
    loop = [USUAL, USUAL + 3 * STRETCH] * 20
    (record,) = told(noted(loop_ns=loop))[0].probe
    assert record["unrecorded_steps"]["loop_ns"] == loop


@pytest.mark.parametrize(
    ("steps", "recorded"),
    [
        (noted(every=5), {}),  # another rhythm
        (noted(more_ns=500 * US), {}),  # a longer step, as where a log is written
        (noted(more_ns=8 * MS), {}),  # something else, of which nothing was recorded
        (noted(more_ns=0), {}),
        (noted(), {"every": (9,)}),  # one stretch has no rhythm
        (noted(), {"every": (2, 7, 9, 16)}),
        (noted(), {"every": ()}),
        (noted(lengths_ns=[], after_ns=[]), {}),
        (None, {}),
    ],
)
def test_other_long_steps_stay(
    told: Callable[..., Any], steps: dict[str, Any] | None, recorded: dict[str, Any]
) -> None:
    (record,) = told(steps, **recorded)[0].probe
    assert record["unrecorded_steps"] == steps


def test_steps_that_wait_for_a_loader_stay(told: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bare, "loader_sets_pace", lambda _: True)
    (record,) = told(noted())[0].probe
    assert record["unrecorded_steps"] == noted()

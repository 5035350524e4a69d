"""Windows of a loop that times several places in turn are told apart, held against what the programs printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nsysx.render import answer_words
from tests.analyses import rows
from tests.analyses.test_events import read
from tests.builder import Report
from tests.samples import SAMPLES, Samples

_MADE = json.loads((SAMPLES / "make_samples.json").read_text(encoding="utf-8"))["programs"]["event_linear"]["captured"]


def test_the_three_places_of_a_program_read_what_it_printed(recorded: Samples) -> None:
    """The program prints the median of each way of timing, in us, in the order in which its loop times them."""
    summary = recorded.summary("event_linear")
    printed = [_MADE["median_us"][way] for way in ("cpu_inputs", "gpu_inputs", "l2_flush")]
    places = sorted(summary.rows("events"), key=lambda r: r["turn"])
    assert [r["turn"] for r in places] == [1, 2, 3]
    assert [r["windows"] for r in places] == [len(way["us"]) for way in _MADE["ways"]]
    assert [r["median_ns"] / 1e3 for r in places] == pytest.approx(printed, rel=0.025)
    # Why: only the first copies its inputs inside of the window; the third has no wait for a launch.
    assert places[0]["copy_ns"] > 0 and places[1]["copy_ns"] == places[2]["copy_ns"] == 0
    said = answer_words.build(summary)
    assert "506 us, 54.9 us and 36.5 us in turn" in said.sentence and "copies" in said.sentence
    assert [round(b.total_ns) for b in said.bars] == [round(r["median_ns"]) for r in places]
    assert [p.label for p in said.bars[0].parts] == ["kernels", "copies", "waiting for the CPU to launch", "other"]


def test_one_place_in_a_loop_is_one_place(tmp_path: Path) -> None:
    """Ten windows with the same inside and nothing between them are one place, however many there are."""
    report = Report()
    main = report.process(100).thread(100)
    for i in range(10):
        _window(main, i, at=100_000 * i)
    (place,) = rows(report, tmp_path, "events")
    assert (place["windows"], place["turn"], place["turns"]) == (10, None, None)


def test_what_runs_before_a_window_tells_its_place(tmp_path: Path) -> None:
    """Two windows of a round hold the same kernel; before every second one the program copies."""
    report = Report()
    main = report.process(100).thread(100)
    for i in range(12):
        if i % 2:
            main.memcpy(at=100_000 * i - 30_000, dur=2_000, bytes=4096, gpu_start=100_000 * i - 25_000, gpu_dur=5_000)
        _window(main, i, at=100_000 * i)
    places = rows(report, tmp_path, "events")
    assert sorted((p["turn"], p["turns"], p["windows"]) for p in places) == [(1, 2, 6), (2, 2, 6)]


def _window(main: object, i: int, *, at: int) -> None:
    main.event_record(2 * i + 1, at=at)  # type: ignore[attr-defined]
    main.launch(at=at + 3_000, dur=1_000, gpu_start=at + 5_000, gpu_dur=2_000)  # type: ignore[attr-defined]
    main.event_record(2 * i + 2, at=at + 10_000)  # type: ignore[attr-defined]
    read(main, 2 * i + 1, 2 * i + 2, at=at + 40_000)  # type: ignore[arg-type]

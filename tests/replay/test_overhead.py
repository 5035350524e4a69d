"""What tracing adds to calls, and calls inside of calls: no time is counted twice."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from nsysx.replay import overhead
from nsysx.replay.chain import chain
from nsysx.replay.chain_columns import columns
from tests.builder import Report
from tests.replay.test_engine import US, replayed, training


def test_a_flush_delays_the_call_it_lies_in_or_else_the_next_one() -> None:
    calls = pl.DataFrame({"thread": [7, 7, 7], "start_ns": [100, 300, 500], "end_ns": [200, 400, 600]})
    window = SimpleNamespace(calls=calls, start_ns=0, end_ns=1_000)
    flushes = [(50, 60), (320, 340), (410, 440), (610, 650), (980, 1_080)]  # the last one ends outside
    rows = pl.DataFrame(
        {"thread": [7] * 5, "start_ns": [a for a, _ in flushes], "end_ns": [b for _, b in flushes]}
    ).vstack(pl.DataFrame({"thread": [8], "start_ns": [150], "end_ns": [160]}))
    profile = SimpleNamespace(trace=SimpleNamespace(overhead=rows))
    before, inside = np.zeros(4), np.zeros(4)
    assert overhead._flushes(profile, window, before, inside) == 100  # type: ignore[arg-type]
    assert before.tolist() == [10, 0, 30, 40]
    assert inside.tolist() == [0, 20, 0, 0]


def collective(number: int, kernel_us: int = 2) -> Report:
    """Steps of 20 operators (10 us of code, a launch of 5 us) and ``number`` collectives: each a launch, and eight events' calls of
    0.6 us with 0.2 us of code before each and 12 us before the first.
    """
    report = Report()
    process = report.process(100)
    process.context()
    main = process.thread(100, "python")
    at = 0
    for step in range(12):
        begin = at
        for k in range(20 + number):
            at += 10 * US if k < 20 else 12 * US
            for _ in range(8 if k >= 20 else 0):
                main.event_record(k, at=at, dur=600, stream=7)
                at += 800
            name = "ncclDevKernel_AllReduce" if k >= 20 else "work"
            main.launch(at, 5 * US, kernel=name, gpu_start=at + 7 * US, gpu_dur=kernel_us * US)
            at += 5 * US
        main.add_range(f"step {step}", begin, at, domain="nsysx")
    return report


@pytest.mark.traced
def test_events_take_no_more_than_their_calls_can_hold(tmp_path: Path) -> None:
    """The table of costs takes 4.5 us for each event: more than there is, which is no more of the host's time there than elsewhere."""
    given, replay = replayed(collective(10), tmp_path)
    profile, window = given, replay.window
    added = overhead.added(profile, window)
    events = (window.calls["kind"] == "event").to_numpy()
    assert events.sum() == 80 * replay.steps
    assert (added.inside[events] + added.before[events] > 2_000).all()
    assert (added.most_inside[events] <= 600).all() and (added.most_before[events] <= 200).all()
    recorded, real = columns(chain(profile, window, added)), replay._columns
    left = [(cols.gap + cols.cost) for cols in (recorded, real)]
    ours = np.isin(recorded.call, window.calls.filter(events)["call"].to_numpy())
    share = left[1].sum() / left[0].sum()
    assert 0.5 < share < 0.95
    of_events = left[1][ours].sum() / left[0][ours].sum()
    assert of_events == pytest.approx(share, rel=0.2)


def test_a_call_inside_of_another_one_is_no_item_of_its_own(tmp_path: Path) -> None:
    def made(name: str, *, nested: bool) -> tuple[int, int]:
        report = training(malloc=1_000)
        main = report.processes[0].thread(100, "python")
        for row in report.rows["CUPTI_ACTIVITY_KIND_RUNTIME"].copy():
            if nested and row["end"] - row["start"] == 1_000 * US:
                main.call("cudaEventQuery_v3020", row["start"] + 100 * US, 20 * US)
        (tmp_path / name).mkdir()
        given, replay = replayed(report, tmp_path / name)
        assert given.calls.filter(pl.col("name").cast(pl.String).str.starts_with("cudaEventQuery")).height == 6 * nested
        return replay.items, replay.recorded_ns

    assert made("nested", nested=True) == made("plain", nested=False)

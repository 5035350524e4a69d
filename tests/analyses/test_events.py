"""cuda.Event windows: which pairs the program reads, and what the device did between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.analyses import reason, rows, summary
from tests.builder import Report, Thread

PARTS = ("kernel_ns", "copy_ns", "memset_ns", "launch_wait_ns", "other_streams_ns", "idle_ns")


def read(thread: Thread, start: int, end: int, at: int) -> None:
    """Ask both events whether they are done, as elapsed_time does."""
    thread.sync("cudaEventQuery_v3020", at=at, dur=400, event=start)
    thread.sync("cudaEventQuery_v3020", at=at + 900, dur=400, event=end)


def windows(report: Report, folder: Path) -> list[dict[str, Any]]:
    found = rows(report, folder, "event_windows")
    for row in found:
        assert sum(row[p] for p in PARTS) == row["reading_ns"]
        assert row["low_ns"] <= row["reading_ns"]
        assert row["high_ns"] is None or row["reading_ns"] <= row["high_ns"]
    return found


def test_an_idle_device_counts_the_host_in(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    main.event_record(1, at=1_000, dur=2_000)
    main.memcpy(at=50_000, dur=30_000, bytes=4096, gpu_start=60_000, gpu_dur=15_000, pageable=True)
    main.launch(at=100_000, dur=5_000, gpu_start=106_000, gpu_dur=30_000)
    main.event_record(2, at=110_000, dur=2_000)
    read(main, 1, 2, at=500_000)
    (row,) = windows(report, tmp_path)
    # The first record is reached when its call returns (3,000), the second behind the kernel (136,000).
    assert (row["start_ns"], row["reading_ns"]) == (3_000, 133_000)
    # The stream was empty from 3,000 to 60,000, while the copy call ran, and from 75,000 to the end of the launch call.
    assert {p: row[p] for p in PARTS} == {
        "kernel_ns": 30_000, "copy_ns": 15_000, "memset_ns": 0, "launch_wait_ns": 57_000 + 30_000, "other_streams_ns": 0,
        "idle_ns": 1_000,
    }  # fmt: skip
    # Not before its call begins: 1,000; not after the copy began: 60,000.
    assert (row["low_ns"], row["high_ns"]) == (133_000, None)


def test_behind_queued_work_the_reading_is_the_kernel(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    main.launch(at=0, dur=1_000, kernel="flush", gpu_start=2_000, gpu_dur=100_000)
    main.event_record(1, at=5_000)
    main.launch(at=10_000, dur=5_000, gpu_start=103_000, gpu_dur=30_000)
    main.event_record(2, at=20_000)
    main.launch(at=30_000, dur=5_000, kernel="next", gpu_start=134_000, gpu_dur=10_000)
    read(main, 1, 2, at=500_000)
    (row,) = windows(report, tmp_path)
    assert (row["start_ns"], row["reading_ns"], row["kernel_ns"], row["idle_ns"]) == (102_000, 31_000, 30_000, 1_000)
    # From the start of the kernel at the latest, to the start of the next one at the latest.
    assert (row["low_ns"], row["high_ns"]) == (31_000, 32_000)
    (site,) = rows(report, tmp_path, "events")
    assert (site["verdict"], site["paired_by"], site["windows"]) == ("kernel", "read", 1)


def test_pairs_are_those_that_were_read(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    for i, event in enumerate((1, 2, 3)):  # start, middle, end
        main.event_record(event, at=10_000 * i)
        main.launch(at=10_000 * i + 3_000, dur=1_000, gpu_start=10_000 * i + 5_000, gpu_dur=2_000)
    read(main, 1, 3, at=100_000)
    read(main, 2, 3, at=110_000)
    found = windows(report, tmp_path)
    assert [(r["start_event"], r["end_event"]) for r in found] == [(1, 3), (2, 3)]


def test_an_event_that_is_recorded_again_counts_as_last_recorded(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    for at in (0, 100_000):
        main.event_record(1, at=at)
        main.launch(at=at + 10_000, dur=1_000, gpu_start=at + 12_000, gpu_dur=at // 10 + 5_000)
        main.event_record(2, at=at + 15_000)
        read(main, 1, 2, at=at + 60_000)
    assert [r["kernel_ns"] for r in windows(report, tmp_path)] == [5_000, 15_000]


def test_caches_that_poll_and_streams_that_wait_are_no_timing(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    for i, event in enumerate((1, 2, 3, 4)):
        main.event_record(event, at=10_000 * i)
        main.launch(at=10_000 * i + 3_000, dur=1_000, gpu_start=10_000 * i + 5_000, gpu_dur=2_000)
    main.sync("cudaEventQuery_v3020", at=50_000, dur=400, event=1, returned=600)  # not ready yet: somebody polls
    read(main, 1, 2, at=60_000)
    main.wait_event(4, at=70_000, stream=13)
    read(main, 3, 4, at=80_000)
    assert "no two are read as a pair" in reason(report, tmp_path, "events")


def test_without_readings_records_pair_by_order(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    for i, event in enumerate((1, 2, 3, 4)):
        main.event_record(event, at=10_000 * i)
        main.launch(at=10_000 * i + 3_000, dur=1_000, gpu_start=10_000 * i + 5_000, gpu_dur=2_000)
    main.event_record(9, at=5_000, stream=13)  # alone on its stream
    found = windows(report, tmp_path)
    assert [(r["start_event"], r["end_event"]) for r in found] == [(1, 2), (3, 4)]
    assert {r["paired_by"] for r in rows(report, tmp_path, "events")} == {"order"}


def test_events_in_turns_of_three_pair_inside_a_turn(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    for i in range(6):
        main.event_record(1 + i % 3, at=10_000 * i)
        main.launch(at=10_000 * i + 3_000, dur=1_000, gpu_start=10_000 * i + 5_000, gpu_dur=2_000)
    found = windows(report, tmp_path)
    assert [(r["start_event"], r["end_event"]) for r in found] == [(1, 2), (2, 3), (1, 2), (2, 3)]


def test_a_stream_that_waits_for_another_reaches_its_record_later(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    main.launch(at=0, dur=1_000, kernel="other", gpu_start=2_000, gpu_dur=80_000, stream=13)
    main.event_record(5, at=3_000, stream=13)
    main.event_record(1, at=10_000)
    main.wait_event(5, at=15_000)
    main.event_record(2, at=20_000)
    read(main, 1, 2, at=200_000)
    (row,) = windows(report, tmp_path)
    # From the return of the first record to the end of the other stream's kernel; until 20,002 no work was there to run.
    assert (row["start_ns"], row["reading_ns"]) == (10_002, 82_000 - 10_002)
    assert (row["launch_wait_ns"], row["other_streams_ns"], row["kernel_ns"]) == (10_000, 82_000 - 20_002, 0)


def test_device_stamps_win(tmp_path: Path) -> None:
    report = Report("3.25.0")
    main = report.process(100).thread(100)
    main.event_record(1, at=1_000)
    main.launch(at=10_000, dur=5_000, gpu_start=16_000, gpu_dur=30_000)
    main.event_record(2, at=20_000)
    for row, stamp in zip(report.rows["CUPTI_ACTIVITY_KIND_CUDA_EVENT"], (1_700, 46_900), strict=True):
        row["timestamp"] = stamp
    read(main, 1, 2, at=100_000)
    (row,) = windows(report, tmp_path)
    assert (row["reading_ns"], row["low_ns"], row["high_ns"], row["kernel_ns"]) == (45_200, 45_200, 45_200, 30_000)
    assert rows(report, tmp_path, "events")[0]["device_stamps"]


def test_two_devices_of_one_process_share_stream_numbers(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    main.launch(at=0, dur=1_000, gpu_start=2_000, gpu_dur=500_000, device=1)
    main.event_record(1, at=5_000)
    main.launch(at=10_000, dur=5_000, gpu_start=16_000, gpu_dur=30_000)
    main.event_record(2, at=20_000)
    read(main, 1, 2, at=600_000)
    (row,) = windows(report, tmp_path)
    assert (row["start_ns"], row["reading_ns"], row["other_streams_ns"]) == (5_002, 46_000 - 5_002, 0)


def test_parts_of_a_place_are_sums_over_its_windows(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    for i in range(5):
        at = 100_000 * i
        main.event_record(2 * i, at=at)
        main.launch(at=at + 10_000 + 1_000 * i, dur=1_000, gpu_start=at + 20_000, gpu_dur=30_000)
        main.event_record(2 * i + 1, at=at + 25_000)
        read(main, 2 * i, 2 * i + 1, at=at + 60_000)
    found = summary(report, tmp_path)
    (site,) = found.rows("events")
    each = found.rows("event_windows")
    assert site["windows"] == len(each) == 5
    for part in PARTS:
        assert site[part] == sum(r[part] for r in each)
    assert site["total_ns"] == sum(site[p] for p in PARTS)
    assert (site["first_ns"], site["median_ns"]) == (49_998, 49_998)


@pytest.mark.parametrize(
    ("name", "maker"),
    [
        ("aten::cudnn_convolution", "torch"),
        ("torch.nn.functional.conv2d", "torch"),
        ("conv", "program"),
        (None, "program"),
    ],
)
def test_events_inside_an_operator_are_those_of_its_search_for_the_fastest_kernel(
    tmp_path: Path, name: str | None, maker: str
) -> None:
    """Not so the events that a program records around it, whose first one the device reaches while the operator runs."""
    report = Report()
    main = report.process(100).thread(100)
    main.launch(at=0, dur=1_000, kernel="before", gpu_start=2_000, gpu_dur=10_000)
    main.event_record(8, at=5_000)
    if name:
        main.add_range(name, 10_000, 300_000)
    for i in range(3):
        at = 20_000 + 50_000 * i
        main.event_record(2 * i, at=at)
        main.launch(at=at + 10_000, dur=1_000, gpu_start=at + 12_000, gpu_dur=20_000)
        main.event_record(2 * i + 1, at=at + 15_000)
        read(main, 2 * i, 2 * i + 1, at=at + 40_000)
    main.event_record(9, at=310_000)
    read(main, 8, 9, at=330_000)
    found = sorted(summary(report, tmp_path).rows("events"), key=lambda row: row["windows"])
    assert [(row["windows"], row["made_by"]) for row in found] == [(1, "program"), (3, maker)]


def test_without_records_it_says_so(tmp_path: Path) -> None:
    report = Report()
    report.process(100).thread(100).launch(at=0, gpu_start=100)
    assert "no CUDA event record" in reason(report, tmp_path, "events")
    assert "no CUDA event record" in reason(report, tmp_path, "event_windows")


@pytest.mark.parametrize("shift", [-5_000_000, 7_000_000_000])
def test_moving_everything_changes_nothing_but_the_start(tmp_path: Path, shift: int) -> None:
    def build() -> Report:
        report = Report()
        main = report.process(100).thread(100)
        main.event_record(1, at=1_000)
        main.launch(at=10_000, dur=5_000, gpu_start=16_000, gpu_dur=30_000)
        main.event_record(2, at=20_000)
        read(main, 1, 2, at=100_000)
        return report

    moved = build()
    moved.shift(shift)
    (before,), (after,) = windows(build(), tmp_path), windows(moved, tmp_path)
    assert after == {**before, "start_ns": before["start_ns"] + shift}


def test_events_that_order_streams_are_no_clock_unless_their_thread_waits(tmp_path: Path) -> None:
    """A runtime such as XLA's records one pool of events again and again, and lets its streams wait for others."""
    for waits in (False, True):
        report = Report()
        main = report.process(100).thread(100)
        for i in range(6):
            at = 100_000 * i
            main.event_record(1, at=at)
            main.launch(at=at + 3_000, dur=1_000, gpu_start=at + 5_000, gpu_dur=2_000)
            main.event_record(2, at=at + 6_000)
            if waits:
                main.sync("cudaEventSynchronize_v3020", at=at + 9_000, dur=500, event=2)
            main.event_record(3, at=at + 11_000)
            main.wait_event(3, at=at + 14_000, stream=9)
        table = summary(report, tmp_path).tables["events"]
        # The last pair may be read at the end, the others not: their events are recorded again.
        assert (table.rows or []) == [] if not waits else [r["windows"] for r in table.rows or []] == [6]

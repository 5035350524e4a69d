"""Who kept a device waiting: hand-offs between threads, the clocks, several devices, and how long a call is to blame."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from nsysx.catalogue import CAUSES
from nsysx.events import attribute, correlate, ledger, nvtx_ranges
from nsysx.events.ledger import Ledgers
from nsysx.reading.load import load
from tests.builder import Report

US, MS = 1_000, 1_000_000


def built(report: Report, folder: Path) -> tuple[Ledgers, pl.DataFrame]:
    trace = load(report.write(folder / "r.sqlite"))
    named = nvtx_ranges.read(trace)
    attributed = attribute.attribute(trace, correlate.correlate(trace), named)
    return ledger.build(trace, attributed, named), attributed.api_calls


def causes(ledgers: Ledgers, device: int = 0) -> dict[str, int]:
    ns = (pl.col("end_ns") - pl.col("start_ns")).sum()
    rows = ledgers.idle.filter((pl.col("device") == device) & (pl.col("cause") < len(CAUSES) - 1))
    return {CAUSES[c]: int(v) for c, v in rows.group_by("cause").agg(ns).iter_rows()}


def training(count: int, *, wait: bool, backward_on: int) -> Report:
    """Forward of 4 ms, a wait for it, 2 ms of Python, backward of 4 ms on thread ``backward_on``, an update of 0.3 ms."""
    report = Report()
    process = report.process(100)
    main, autograd = process.thread(100, "python"), process.thread(101, "pt_autograd_0")
    thread = {100: main, 101: autograd}[backward_on]
    for i in range(count):
        t = i * 11 * MS
        for k in range(4):
            main.launch(t + k * 20 * US, 5 * US, kernel="fwd", gpu_start=t + 20 * US + k * MS, gpu_dur=MS)
        done = t + 20 * US + 4 * MS
        if wait:
            main.sync(at=t + 200 * US, dur=done + 5 * US - (t + 200 * US))
        b = done + 5 * US + 2 * MS
        for k in range(4):
            thread.launch(b + k * 20 * US, 5 * US, kernel="bwd", gpu_start=b + 20 * US + k * MS, gpu_dur=MS)
        end = b + 20 * US + 4 * MS
        main.launch(b + 320 * US, 5 * US, kernel="adam", gpu_start=end, gpu_dur=300 * US)
    return report


def test_a_launch_that_is_noted_behind_the_start_of_its_kernel_adds_nothing_to_the_gap(tmp_path: Path) -> None:
    """Another thread launched before it, and the gap ends when the kernel starts."""
    report = Report()
    process = report.process(100)
    main, other = process.thread(100, "python"), process.thread(101, "pt_autograd_0")
    other.launch(0, 1 * US, kernel="first", gpu_start=2 * US, gpu_dur=1 * US)
    other.launch(1 * US, 1 * US, kernel="third", gpu_start=9 * US, gpu_dur=5 * US)
    main.launch(6 * US, 1 * US, kernel="second", gpu_start=5 * US, gpu_dur=4 * US)
    ledgers, _ = built(report, tmp_path)
    gaps = ledgers.idle.filter(pl.col("cause") < len(CAUSES) - 1)
    assert gaps["end_ns"].max() <= 5 * US and sum(causes(ledgers).values()) == 4 * US, gaps


@pytest.mark.parametrize("backward_on", [100, 101])
def test_blame_follows_the_hand_off_to_autograd(tmp_path: Path, backward_on: int) -> None:
    """The wait is to blame for the 2 ms before the backward, whatever thread launches it."""
    ledgers, calls = built(training(1, wait=True, backward_on=backward_on), tmp_path)
    assert causes(ledgers) == {"sync": 5 * US, "host_code": 2 * MS, "launch_latency": 40 * US}
    wait = ledgers.waits.join(calls.select("call", "kind"), on="call").filter(pl.col("kind").cast(pl.String) == "sync")
    assert wait["idle_caused_ns"].to_list() == [2 * MS + 25 * US]


def test_a_thread_that_went_on_by_itself_keeps_the_blame(tmp_path: Path) -> None:
    """The other thread launched last, but this one has made a call since: it was not waiting for anybody."""
    report = Report()
    process = report.process(100)
    one, other = process.thread(100), process.thread(101)
    other.launch(0, 5 * US, gpu_start=10 * US, gpu_dur=100 * US)
    other.call("cudaMalloc_v3020", 100 * US, 300 * US)
    one.call("cudaEventQuery_v3020", 50 * US, 2 * US)
    one.launch(500 * US, 5 * US, gpu_start=510 * US, gpu_dur=100 * US)
    assert causes(built(report, tmp_path)[0]) == {"host_code": 390 * US, "launch_latency": 20 * US}


@pytest.mark.parametrize("returns", [5 * US, 0, -3 * US, -19 * US])
def test_a_wait_that_seems_to_return_early_is_to_blame_all_the_same(tmp_path: Path, returns: int) -> None:
    report = Report()
    main = report.process(100).thread(100)
    main.launch(0, 5 * US, gpu_start=10 * US, gpu_dur=5 * MS)
    end = 10 * US + 5 * MS
    main.sync(at=20 * US, dur=end + returns - 20 * US)
    main.launch(end + MS, 5 * US, gpu_start=end + MS + 10 * US, gpu_dur=MS)
    ledgers, _ = built(report, tmp_path)
    assert ledgers.waits["idle_caused_ns"].to_list() == [MS + 10 * US]


def test_a_call_is_charged_with_no_more_idle_time_than_it_lasts(tmp_path: Path) -> None:
    """4 s of start-up follow a synchronize of 12 us: had it not been made, they would have begun 12 us earlier."""
    report = Report()
    main = report.process(100).thread(100)
    main.launch(0, 5 * US, gpu_start=10 * US, gpu_dur=10 * US)
    main.sync(at=10 * US, dur=12 * US)
    main.launch(4000 * MS, 5 * US, gpu_start=4000 * MS + 10 * US, gpu_dur=MS)
    ledgers, _ = built(report, tmp_path)
    assert ledgers.waits["idle_caused_ns"].to_list() == [12 * US]
    assert causes(ledgers)["host_code"] == 4000 * MS - 22 * US


@pytest.mark.parametrize("lag", [5 * MS, 25 * MS])
def test_a_device_that_waits_for_another(tmp_path: Path, lag: int) -> None:
    """Layers on two GPUs in turn: each is busy half of the time and waits for the other, however far the CPU is ahead."""
    report = Report()
    process = report.process(100)
    main = process.thread(100)
    for i in range(10):
        t = i * 10 * MS
        for k in range(5):
            main.launch(t + k * 10 * US, 4 * US, gpu_start=t + lag + k * MS, gpu_dur=MS, device=0)
        main.memcpy(t + 60 * US, 4 * US, kind="PtoP", gpu_start=t + lag + 5 * MS, gpu_dur=20 * US, device=0)
        main.event_record(i + 1, at=t + 65 * US, device=0)
        main.wait_event(i + 1, at=t + 70 * US, device=1)
        for k in range(5):
            start = t + lag + 5 * MS + 30 * US + k * 990 * US
            main.launch(t + 80 * US + k * 10 * US, 4 * US, gpu_start=start, gpu_dur=990 * US, device=1)
    ledgers, _ = built(report, tmp_path)
    found = causes(ledgers, device=1)
    assert found["dependency"] > 9 * (10 * MS - 5 * 990 * US - 100 * US)
    assert sum(found.values()) - found["dependency"] < 10 * 100 * US + 10 * 20 * US
    long = ledgers.idle.filter(
        (pl.col("device") == 1) & (pl.col("end_ns") - pl.col("start_ns") > MS) & pl.col("waited_device").is_not_null()
    )
    assert set(long.select("waited_device", "waited_stream").rows()) == {(0, 7)}


@pytest.mark.parametrize("count", [5, 30])
def test_usual_latency_is_the_median_of_many(tmp_path: Path, count: int) -> None:
    """Launches take 60 us here. With many one knows that, with few it is noticeably more than a launch takes."""
    report = Report()
    main = report.process(100).thread(100)
    for i in range(count):
        main.launch(i * MS, 5 * US, gpu_start=i * MS + 60 * US, gpu_dur=100 * US)
    found = causes(built(report, tmp_path)[0])
    assert found["launch_latency"] == count * (60 * US if count >= 20 else 20 * US)
    assert found.get("dependency", 0) == (0 if count >= 20 else count * 40 * US)


def test_the_pauses_inside_a_graph_are_no_launch_latency(tmp_path: Path) -> None:
    """Its launch was over when its first node began: however soon the second follows the call, it waited for something else."""
    report = Report()
    report.process(100).thread(100).graph_launch(0, 5 * US, nodes=[("a", 6 * US, 2 * US), ("b", 60 * US, 2 * US)])
    assert causes(built(report, tmp_path)[0]) == {
        "launch_latency": 6 * US,
        "kernel_gap": 5 * US,
        "dependency": 47 * US,
    }

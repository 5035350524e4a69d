"""What a blocking call waited for: allocators, nested calls, the legacy default stream, and what belongs together."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from nsysx.events import attribute, correlate, ledger, nvtx_ranges
from nsysx.reading.load import load
from tests.builder import Report

US, MS = 1_000, 1_000_000


def waits(report: Report, folder: Path) -> pl.DataFrame:
    trace = load(report.write(folder / "r.sqlite"))
    named = nvtx_ranges.read(trace)
    attributed = attribute.attribute(trace, correlate.correlate(trace), named)
    calls = attributed.api_calls.select("call", pl.col("name").cast(pl.String), "start_ns", "end_ns")
    found = ledger.build(trace, attributed, named).waits.join(calls, on="call", maintain_order="left")
    parts = pl.col("backlog_ns") + pl.col("own_op_ns") + pl.col("host_ns")
    assert found.select((parts == pl.col("end_ns") - pl.col("start_ns")).all()).item()
    return found


@pytest.mark.parametrize(("after", "backlog"), [(120 * US, 20 * MS), (740 * US, 20 * MS)])
def test_a_free_waits_for_the_device_though_it_goes_on_after_it(tmp_path: Path, after: int, backlog: int) -> None:
    """A free takes 0.4 ms here when nothing is queued; this one ends 0.12 or 0.74 ms after 20 ms of queued work."""
    report = Report()
    main = report.process(100).thread(100)
    for i in range(5):
        main.call("cudaFree_v3020", i * MS, 400 * US)
    main.launch(10 * MS, 5 * US, gpu_start=10 * MS + 20 * US, gpu_dur=20 * MS)
    begin, drained = 10 * MS + 20 * US, 30 * MS + 20 * US
    main.call("cudaFree_v3020", begin, drained + after - begin)
    assert waits(report, tmp_path)["backlog_ns"].to_list() == [0] * 5 + [backlog]


def test_an_allocation_that_takes_as_long_as_ever_waited_for_nothing(tmp_path: Path) -> None:
    """CudaHostAlloc takes 20 ms whatever the GPU does; that work ended meanwhile is chance."""
    report = Report()
    main = report.process(100).thread(100)
    for i in range(4):
        main.call("cudaHostAlloc_v3020", i * 30 * MS, 20 * MS)
    main.launch(200 * MS, 5 * US, gpu_start=200 * MS + 10 * US, gpu_dur=15 * MS)
    main.call("cudaHostAlloc_v3020", 200 * MS + 10 * US, 20 * MS)
    assert waits(report, tmp_path)["backlog_ns"].to_list() == [0] * 5


def test_of_nested_calls_the_outer_one_waits(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    main.launch(0, 5 * US, gpu_start=10 * US, gpu_dur=5 * MS)
    outer = main.sync("cudaDeviceSynchronize_v3020", at=10 * US, dur=5 * MS + 5 * US)
    main.call("cuCtxSynchronize", 11 * US, 5 * MS + 2 * US, correlation=outer.correlation)
    found = waits(report, tmp_path)
    assert found.select("name", "backlog_ns").rows() == [("cudaDeviceSynchronize", 5 * MS)]


@pytest.mark.parametrize(("flag", "backlog"), [(1, 77 * MS), (2, 0)])
def test_the_legacy_default_stream_waits_for_blocking_streams(tmp_path: Path, flag: int, backlog: int) -> None:
    """An event on the default stream stands behind the work of four streams, unless those are non-blocking."""
    report = Report()
    process = report.process(100)
    main = process.thread(100)
    for i, stream in enumerate((13, 14, 15, 16)):
        process.stream(stream, flag=flag)
        main.launch(i * 5 * US, 4 * US, gpu_start=30 * US + i * MS, gpu_dur=74 * MS, stream=stream)
    main.event_record(1, at=30 * US, stream=7)
    main.sync("cudaEventSynchronize_v3020", at=30 * US + 2 * US, dur=77 * MS + 50 * US, event=1)
    found = waits(report, tmp_path)
    assert found["backlog_ns"].to_list() == [backlog - 2 * US if backlog else 0]


def test_a_copy_and_the_wait_for_it_are_one_site(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    pageable = main.memcpy(0, 100 * US, kind="DtoH", gpu_start=50 * US, gpu_dur=5 * US, pageable=True)
    main.sync(at=101 * US, dur=4 * US)
    main.memcpy(200 * US, 5 * US, kind="DtoH", gpu_start=300 * US, gpu_dur=5 * US)
    main.sync(at=206 * US, dur=110 * US)
    main.sync(at=400 * US, dur=4 * US)  # by itself
    assert pageable.start == 0
    found = waits(report, tmp_path)
    # Calls are numbered in order: 0 copy, 1 its wait; 2 a copy that does not block, 3 its wait; 4.
    assert found.select("call", "site").rows() == [(0, 0), (1, 0), (3, 2), (4, 4)]

"""Copies by place: hidden or exposed, and what stops the overlap."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analyses import rows
from tests.builder import Report

MIB = 1 << 20


def test_hidden_and_exposed_add_up(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    main.launch(at=0, dur=1_000, gpu_start=10_000, gpu_dur=50_000)
    main.memcpy(at=2_000, dur=1_000, bytes=8 * MIB, gpu_start=40_000, gpu_dur=40_000, stream=13)
    (row,) = rows(report, tmp_path, "copy_sites")
    assert (row["total_ns"], row["hidden_ns"], row["exposed_ns"]) == (40_000, 20_000, 20_000)
    assert row["obstacle"] == "nothing_beside"
    assert row["bandwidth_bytes_per_s"] == pytest.approx(8 * MIB / 40e-6)
    assert (row["limit_bytes_per_s"], row["limit_from"]) == (
        pytest.approx(8 * MIB / 40e-6),
        "fastest pinned copy in this report",
    )


def test_what_stops_the_overlap(tmp_path: Path) -> None:
    report = Report()
    report.gpu(pids=[(100, 0)])
    main = report.process(100).thread(100)
    main.launch(at=0, dur=1_000, gpu_start=10_000, gpu_dur=50_000)
    main.memcpy(at=70_000, dur=30_000, bytes=MIB, gpu_start=75_000, gpu_dur=20_000, pageable=True)
    main.memcpy(at=110_000, dur=2_000, bytes=2 * MIB, gpu_start=115_000, gpu_dur=20_000)
    main.memcpy(at=140_000, dur=2_000, kind="DtoH", gpu_start=145_000, gpu_dur=2_000)
    main.sync(at=143_000, dur=6_000)
    main.memcpy(at=160_000, dur=2_000, kind="DtoD", bytes=4 * MIB, gpu_start=165_000, gpu_dur=10_000)
    found = {(r["direction"], r["src_kind"]): r for r in rows(report, tmp_path, "copy_sites")}
    assert found["HtoD", "pageable"]["obstacle"] == "pageable"
    assert found["HtoD", "pinned"]["obstacle"] == "same_stream"
    assert found["DtoH", "device"]["obstacle"] == "sync_after"
    # A copy inside the device reads and writes; a four byte copy shows nothing about a link.
    assert found["DtoD", "device"]["limit_bytes_per_s"] == 4_814_304_000_000 / 2
    assert found["DtoH", "device"]["limit_bytes_per_s"] is None
    # The link carries what the fastest pinned copy showed.
    assert found["HtoD", "pageable"]["limit_bytes_per_s"] == pytest.approx(2 * MIB / 20e-6)


def test_a_hidden_copy_has_no_obstacle(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    main.launch(at=0, dur=1_000, gpu_start=10_000, gpu_dur=500_000)
    main.memcpy(at=2_000, dur=1_000, bytes=8 * MIB, gpu_start=40_000, gpu_dur=40_000, stream=13)
    (row,) = rows(report, tmp_path, "copy_sites")
    assert (row["hidden_ns"], row["exposed_ns"], row["obstacle"]) == (40_000, 0, None)

"""The same capture written otherwise gives the same answers: other row order, other ids, another time zero, other versions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.analyses import summary
from tests.builder import Report

KEYS = (
    "first_calls", "api_bill", "launches", "kernel_spread", "stopwatch", "module_stopwatch", "events", "event_windows",
    "copy_sites", "allocator", "alloc_flushes", "memory", "data_loader",
)  # fmt: skip
#: Instants, which a shift moves.
INSTANTS = {"alloc_flushes": ("start_ns",), "memory": ("time_ns",), "event_windows": ("start_ns",)}


def training(schema: str = "3.20.3") -> Report:
    """Six steps with everything that the analyses look at, and a second process with the same ids."""
    report = Report(schema)
    report.gpu(pids=[(100, 0), (200, 0)])
    for pid in (100, 200):
        process = report.process(pid)
        main, other = process.thread(pid), process.thread(pid + 1)
        main.call("cudaMalloc_v3020", at=1_000, dur=9_000)
        main.call("cuLibraryLoadData", at=12_000, dur=80_000)
        for step in range(8):
            at = 1_000_000 * (step + 1) + pid
            main.add_range(f"step {step}", at, at + 950_000)
            main.add_range("dataloader", at + 100, at + 40_000)
            main.memcpy(at=at + 41_000, dur=20_000, bytes=1 << 20, gpu_start=at + 45_000, gpu_dur=14_000, pageable=True)
            main.event_record(2 * step + 1, at=at + 62_000)
            main.add_range("block:Block", at + 64_000, at + 120_000)
            for k in range(4):
                name = "mine" if k % 2 else "void at::native::add"
                launch = at + 65_000 + 12_000 * k
                dur = 30_000 if step == 0 else 4_000
                main.launch(
                    at=launch, dur=dur if k == 0 else 4_000, kernel=name, gpu_start=launch + 35_000, gpu_dur=9_000 + k
                )
            main.event_record(2 * step + 2, at=at + 130_000)
            other.launch(at=at + 140_000, dur=4_000, kernel="nccl", gpu_start=at + 150_000, gpu_dur=40_000, stream=13)
            main.sync("cudaDeviceSynchronize_v3020", at=at + 150_000, dur=60_000)
            main.sync("cudaEventQuery_v3020", at=at + 220_000, dur=300, event=2 * step + 1)
            main.sync("cudaEventQuery_v3020", at=at + 221_000, dur=300, event=2 * step + 2)
            if step == 5:
                free = main.call("cudaFree_v3020", at=at + 300_000, dur=30_000)
                again = main.call("cudaMalloc_v3020", at=at + 331_000, dur=50_000)
                process.memory(at + 300_000, 1 << 21, free=True, address=1, correlation=free.correlation)
                process.memory(at + 331_000, 1 << 22, address=2, correlation=again.correlation)
    return report


def answers(report: Report, folder: Path, shift: int = 0) -> dict[str, Any]:
    found = summary(report, folder)
    out = {}
    for key in KEYS:
        rows = found.tables[key].rows
        assert rows, (key, found.tables[key].reason)
        out[key] = [
            {
                k: v - shift if k in INSTANTS.get(key, ()) else v
                for k, v in row.items()
                if k not in {"start_event", "end_event"}
            }
            for row in rows
        ]
    return out


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The answers of the capture as it is."""
    return answers(training(), tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize(
    ("change", "shift"),
    [
        (lambda r: r.shuffle(3), 0),
        (lambda r: r.renumber(3), 0),
        (lambda r: r.shift(123_456_789), 123_456_789),
        (lambda r: r.shift(-3_000_000), -3_000_000),
    ],
    ids=["shuffled", "renumbered", "later", "earlier"],
)
def test_written_otherwise(tmp_path: Path, plain: dict[str, Any], change: Callable[[Report], None], shift: int) -> None:
    changed = training()
    change(changed)
    assert answers(changed, tmp_path, shift) == plain


@pytest.mark.parametrize("schema", ["3.0.0", "3.7.2", "3.25.0"])
def test_other_versions(tmp_path: Path, schema: str) -> None:
    want, got = answers(training(), tmp_path), answers(training(schema), tmp_path)
    for row in got["first_calls"]:
        row["loading_ns"] = None  # newer versions say 0 where no loading was noted
    assert got == want


def test_both_processes_count(tmp_path: Path) -> None:
    found = summary(training(), tmp_path)
    assert sum(r["windows"] for r in found.rows("events")) == 16
    assert len(found.rows("alloc_flushes")) == 2
    assert len({r["process"] for r in found.rows("memory")}) == 2

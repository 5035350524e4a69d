"""The synthetic reports of scripts/bench are what they claim to be: reports that the package reads whole."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sqlite3
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import pytest

from nsysx.pipeline import summarize

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("nsysx_bench", str(SCRIPT))
    spec = importlib.util.spec_from_loader("nsysx_bench", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.modules["nsysx_bench"] = module
    loader.exec_module(module)
    return module


def test_a_synthetic_report_is_read_whole(bench: ModuleType, tmp_path: Path) -> None:
    (path,) = bench.make([tmp_path / "s.sqlite"], 1_000, layers=2)
    summary = summarize([path])
    counts = bench.events(path)
    assert summary.totals["kernels"] == counts["CUPTI_ACTIVITY_KIND_KERNEL"] >= 900
    assert summary.totals["api_calls"] == counts["CUPTI_ACTIVITY_KIND_RUNTIME"]
    assert summary.totals["gpu_ops_without_call"] == 0
    assert summary.steps.source == "nsysx"
    (ledger,) = summary.rows("gpu_ledger")
    assert ledger["window_ns"] == ledger["busy_ns"] + ledger["idle_ns"]
    assert sum(ledger["idle_causes"].values()) == ledger["idle_ns"]
    assert ledger["idle_causes"]["data_loader"] > 500_000_000  # the stall that was put in
    modules = {row["path"]: row for row in summary.rows("modules")}
    deepest = modules["decoder.layers.1.attn.core.heads.score.softmax"]
    assert deepest["depth"] == 7
    assert deepest["backward_gpu_ns"] > 0
    assert sum(row["self_gpu_ns"] for row in modules.values()) == sum(
        row["total_ns"] for row in summary.rows("kernel_families")
    )
    assert {c.check: c.status for c in summary.quality}["gpu ops without call"] == "ok"


def test_every_table_is_sorted_by_start_as_nsys_writes_it(bench: ModuleType, tmp_path: Path) -> None:
    (path,) = bench.make([tmp_path / "s.sqlite"], 500, layers=2)
    base = sqlite3.connect(path)
    for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
        starts = [s for (s,) in base.execute(f"SELECT start FROM {table} WHERE start > 0 ORDER BY rowid")]
        assert starts == sorted(starts), table
    base.close()


def test_the_slow_rank_of_a_synthetic_job_is_found(bench: ModuleType, tmp_path: Path) -> None:
    paths = bench.make([tmp_path / f"{i}.sqlite" for i in range(3)], 2_000, layers=4, slow=[1.0, 1.0, 6.0])
    rows = summarize(paths, workers=1).rows("ranks")
    assert [r["straggler"] for r in rows] == [False, False, True]
    assert next(iter(rows[2]["late_because"])) == "compute"


def test_compare_prints_every_row(bench: ModuleType, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "compare", "--kernels", "500", "--repeat", "1", "--no-nsys", "--markdown", str(tmp_path / "t.md")],
        capture_output=True, text=True, timeout=300, check=True, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert "nsysx report --json" in done.stdout
    assert "failed" not in done.stdout
    assert (tmp_path / "t.md").read_text() in done.stdout
    assert "left out" in done.stderr


def test_a_failing_command_is_said(bench: ModuleType) -> None:
    run = bench.Runs("x")
    bench.timed([sys.executable, "-c", "raise SystemExit('no such thing')"], run)
    assert run.problem == "no such thing"
    assert not run.seconds


def test_a_slower_or_larger_report_than_recorded_is_said(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = bench.CHECKED
    assert bench.recorded(kernels, f"...\n{bench.said_of(kernels, 17.26, 288_400_000)}\n") == (17.3, 288_000_000)
    assert bench.recorded(kernels, bench.said_of(10 * kernels, 17.26, 288_400_000)) is None

    def runs(*_: object) -> list[object]:
        scan = bench.Runs(bench.SCAN_NAME, cpu_seconds=[0.1])
        ours = bench.Runs(bench.OURS_NAME, cpu_seconds=[2.4, 2.0, 1.0], peak_bytes=300_000_000)
        return [scan, ours]

    monkeypatch.setattr(bench, "RECORD", tmp_path / "bench.md")
    monkeypatch.setattr(bench, "measure", runs)
    monkeypatch.setattr(bench, "make", lambda paths, _: paths)
    bench.RECORD.write_text(bench.said_of(kernels, 16.0, 290_000_000))
    bench.check(Namespace(folder=tmp_path, repeat=3))
    assert capsys.readouterr().out.splitlines()[1:] == [
        "bench: CPU time in scans +25% since it was recorded, MORE THAN 15%",
        "bench: peak memory +3% since it was recorded",
    ]

"""The builder writes what nsys writes: checked on the file, and with NVIDIA's own reader where it is installed."""

from __future__ import annotations

import csv
import io
import shutil
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import oracle
from tests.builder import CASES, NO_STREAM, Report, case_a, case_equal_ids, layout

SCHEMAS = ("", "2.7.0", "2.9.1", "3.0.0", "3.7.2", "3.11.1", "3.20.3", "3.24.14", "3.25.0")


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    base = sqlite3.connect(path)
    base.text_factory = bytes
    try:
        return base.execute(sql).fetchall()
    finally:
        base.close()


def columns(path: Path, table: str) -> list[str]:
    return [row[1].decode() for row in query(path, f"PRAGMA table_info({table})")]


def simple(schema: str = "3.20.3") -> Report:
    report = Report(schema)
    main = report.process(100).thread(name="python")
    with main.range("forward"):
        main.launch(1000, 5, kernel="gemm", gpu_start=2000, gpu_dur=200)
    main.graph_node(1001, 1)
    main.overhead(main.call("cudaMalloc_v3020", 3000, 50), 3010, 20)
    main.profiler_overhead(10, 5)
    report.diagnostic("Not all CUDA events might have been collected.")
    return report


@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_schema_version_holds_the_same_truth(schema: str, tmp_path: Path) -> None:
    data = oracle.read(simple(schema).write(tmp_path / "r.sqlite"))
    totals = oracle.totals(data)
    assert (totals["kernels"], totals["kernel_ns"], totals["api_calls"], totals["api_ns"]) == (1, 200, 2, 55)
    assert [r.name for r in data.ranges] == ["forward"]


def test_schema_versions_differ_as_nsys_does(tmp_path: Path) -> None:
    old, middle, new, newest = (layout(v) for v in ("2.9.1", "3.7.2", "3.20.3", "3.25.0"))
    assert "EXPORT_META_DATA" in old and "META_DATA_EXPORT" not in old
    assert "META_DATA_EXPORT" in middle and "EXPORT_META_DATA" not in middle
    assert "graphNodeId" in middle["CUDA_GRAPH_EVENTS"] and "graphNodeId" not in new["CUDA_GRAPH_EVENTS"]
    assert "CUPTI_ACTIVITY_KIND_GRAPH_TRACE" not in middle and "CUPTI_ACTIVITY_KIND_GRAPH_TRACE" in new
    assert "greenContextId" not in old["CUPTI_ACTIVITY_KIND_KERNEL"]
    assert "returnValue" in new["PROFILER_OVERHEAD"] and "overheadType" in newest["PROFILER_OVERHEAD"]
    assert "CUPTI_ACTIVITY_KIND_OVERHEAD" in newest and "CUPTI_ACTIVITY_KIND_OVERHEAD" not in new
    path = simple("2.9.1").write(tmp_path / "r.sqlite")
    assert (b"EXPORT_SCHEMA_VERSION", b"2.9.1") in query(path, "SELECT name, value FROM EXPORT_META_DATA")


def test_only_tables_with_rows_are_written(tmp_path: Path) -> None:
    report = simple()
    tables = "SELECT name FROM sqlite_master"
    assert (b"CUPTI_ACTIVITY_KIND_MEMCPY",) not in query(report.write(tmp_path / "a.sqlite"), tables)
    report.keep_empty("CUPTI_ACTIVITY_KIND_MEMCPY")
    assert (b"CUPTI_ACTIVITY_KIND_MEMCPY",) in query(report.write(tmp_path / "b.sqlite"), tables)


def test_tables_and_columns_can_be_left_out_or_empty(tmp_path: Path) -> None:
    report = simple()
    report.drop("NVTX_EVENTS")
    report.drop("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid")
    report.null("CUPTI_ACTIVITY_KIND_RUNTIME", "correlationId")
    path = report.write(tmp_path / "r.sqlite")
    assert columns(path, "NVTX_EVENTS") == []
    assert "globalPid" not in columns(path, "CUPTI_ACTIVITY_KIND_KERNEL")
    assert query(path, "SELECT DISTINCT correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME") == [(None,)]
    assert oracle.totals(oracle.read(path))["gpu_ops_without_call"] == 1


def test_shuffle_moves_rows_and_keeps_them(tmp_path: Path) -> None:
    sql = "SELECT start FROM CUPTI_ACTIVITY_KIND_KERNEL"
    report = case_a()
    before = query(report.write(tmp_path / "a.sqlite"), sql)
    report.shuffle(1)
    after = query(report.write(tmp_path / "b.sqlite"), sql)
    assert before != after and sorted(before) == sorted(after)


def test_shift_and_renumber(tmp_path: Path) -> None:
    report = case_equal_ids()
    sql = "SELECT start, end, correlationId, demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY globalPid, start"
    before = query(report.write(tmp_path / "a.sqlite"), sql)
    report.shift(-500)
    report.renumber(3)
    path = report.write(tmp_path / "b.sqlite")
    after = query(path, sql)
    assert [(s - 500, e - 500) for s, e, *_ in before] == [(s, e) for s, e, *_ in after]
    assert all(a[2] != b[2] and a[3] != b[3] for a, b in zip(before, after, strict=True))
    assert {op.name for op in oracle.read(path).ops} == {"alpha", "beta"}
    assert oracle.totals(oracle.read(path))["gpu_ops_without_call"] == 0


def test_ranks_share_correlation_ids(tmp_path: Path) -> None:
    path = case_equal_ids().write(tmp_path / "r.sqlite")
    rows = query(path, "SELECT correlationId, COUNT(DISTINCT globalPid) FROM CUPTI_ACTIVITY_KIND_KERNEL GROUP BY 1")
    assert rows == [(1, 2), (2, 2), (3, 2)]


def test_global_ids_are_built_as_nsys_does() -> None:
    thread = Report().process(1960).thread()
    assert (thread.process.global_pid, thread.global_tid) == (281507860054016, 281507860055976)


def test_invalid_utf8_gets_into_the_file(tmp_path: Path) -> None:
    report = Report()
    main = report.process(1).thread()
    main.add_range(b"\xff\xfe", 0, 10)
    main.launch(1, 1, kernel=b"k\xe9", gpu_start=5)
    path = report.write(tmp_path / "r.sqlite")
    assert query(path, "SELECT text, typeof(text) FROM NVTX_EVENTS") == [(b"\xff\xfe", b"text")]
    assert (b"k\xe9",) in query(path, "SELECT value FROM StringIds")


def test_synchronize_rows_name_no_device(tmp_path: Path) -> None:
    """As on real multi-GPU reports: deviceId is 0 for every device, only the context tells."""
    report = Report()
    main = report.process(1).thread()
    main.sync(at=0, dur=5, stream=13, device=1)
    main.sync("cudaDeviceSynchronize_v3020", at=10, dur=5, device=1)
    rows = query(
        report.write(tmp_path / "r.sqlite"),
        "SELECT deviceId, contextId, streamId FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION ORDER BY start",
    )
    assert rows == [(0, 2, 13), (0, 2, NO_STREAM)]


def test_domains_belong_to_a_process(tmp_path: Path) -> None:
    report = Report()
    for pid, domain in ((1, "NCCL"), (2, "nsysx")):
        report.process(pid).thread().add_range("r", 0, 10, domain=domain)
    ranges = oracle.read(report.write(tmp_path / "r.sqlite")).ranges
    assert {(r.process & 0xFFFFFF, r.domain) for r in ranges} == {(1, "NCCL"), (2, "nsysx")}


@pytest.mark.parametrize("case", CASES)
def test_every_case_can_be_written(case: str, tmp_path: Path) -> None:
    path = CASES[case]().write(tmp_path / "r.sqlite")
    assert query(path, "PRAGMA integrity_check") == [(b"ok",)]
    assert oracle.read(path).calls


@pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed")
def test_nsys_reads_it(tmp_path: Path) -> None:
    path = case_a().write(tmp_path / "r.sqlite")
    command = ["nsys", "stats", "-q", "--format", "csv", "-r", "cuda_gpu_kern_sum", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    text = done.stdout[done.stdout.find("Time (%)") :]
    rows = {row["Name"]: int(row["Total Time (ns)"]) for row in csv.DictReader(io.StringIO(text)) if row.get("Name")}
    assert rows == {"fwd_gemm": 20_000_000, "bwd_gemm": 40_000_000, "adam": 500_000}, done.stdout + done.stderr

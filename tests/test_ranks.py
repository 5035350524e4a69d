"""Many ranks: what each waits for is known here to the nanosecond, because the reports are built from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nsysx import nccl
from nsysx.pipeline import summarize
from nsysx.render import json_text
from tests.builder import Process, Report

PERIOD, TRANSFER, STEPS = 1_000_000, 50_000, 12
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
EPOCH = 1_795_228_332_660_273_255


def steps(
    process: Process, compute: int, slowest: int, *, device: int = 0, phase: int = 0, first: int = 0, hidden: int = 0
) -> None:
    """Add training steps: ``compute`` ns of work, then an all-reduce that ends TRANSFER after the slowest rank came.

    ``hidden`` ns of other work run while the all-reduce waits; ``phase`` shifts everything, ``first`` leaves early steps out.
    """
    thread = process.thread(process.pid, "python3")
    for i in range(first, STEPS):
        t = phase + 1_000_000 + i * PERIOD
        thread.add_range(f"step {i}", t, t + PERIOD - 100, domain="nsysx")
        thread.launch(t + 1_000, kernel="gemm", gpu_start=t + 10_000, gpu_dur=compute, device=device)
        came, done = t + 10_000 + compute, t + 10_000 + slowest + TRANSFER
        thread.launch(t + 2_000, kernel=ALL_REDUCE, gpu_start=came, gpu_dur=done - came, stream=20, device=device)
        if hidden:
            thread.launch(t + 3_000, kernel="add", gpu_start=came, gpu_dur=hidden, device=device)
        thread.sync("cudaDeviceSynchronize_v3020", at=t + 5_000, dur=done - t)


def one_report(path: Path, compute: Sequence[int], **options: Any) -> Path:
    """Write a report of several processes whose correlation ids are the same."""
    report = Report()
    for i, ns in enumerate(compute):
        process = report.process(100 + i)
        steps(process, ns, max(compute), device=i, **options)
        report.gpu(i, pids=[(100 + i, i)])
    return report.write(path)


def reports(folder: Path, compute: Sequence[int], *, starts: Sequence[int], clocks: Sequence[int]) -> list[Path]:
    """Write one report per rank. ``starts``: when each session began; ``clocks``: how wrong each host's clock is."""
    written = []
    for i, (ns, start, wrong) in enumerate(zip(compute, starts, clocks, strict=True)):
        report = Report(utc_epoch_ns=EPOCH + start + wrong)
        steps(report.process(100), ns, max(compute))
        report.gpu(pids=[(100, 0)])
        report.shift(-start)
        written.append(report.write(folder / f"rank{i}.sqlite"))
    return written


def table(*paths: Path, **options: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in summarize(paths, **options).rows("ranks")]


def checks(*paths: Path) -> dict[str, Any]:
    return {c.check: c for c in summarize(paths).quality}


def test_straggler_of_one_report(tmp_path: Path) -> None:
    path = one_report(tmp_path / "job.sqlite", [300_000, 300_000, 500_000])
    rows = table(path)
    assert [r["straggler"] for r in rows] == [False, False, True]
    n = rows[0]["steps"]
    assert n >= STEPS // 2
    for r in rows:
        assert r["collectives"] == n
        assert r["transfer_ns"] == TRANSFER * n
        assert r["exposed_wait_ns"] == r["wait_ns"]
        assert r["exposed_transfer_ns"] == r["transfer_ns"]
        assert r["comm_ns"] == r["exposed_wait_ns"] + r["exposed_transfer_ns"]
        assert r["window_ns"] == sum(r[f"{k}_ns"] for k in ("compute", "comm", "copy", "memset", "idle"))
        assert sum(r["idle_causes"].values()) == r["idle_ns"]
        assert r["clock_correction_ns"] == 0
    assert [r["wait_ns"] for r in rows] == [200_000 * n, 200_000 * n, 0]
    assert [r["delay_ns"] for r in rows] == [0, 0, 400_000 * n]
    assert [r["last_share"] for r in rows] == [0, 0, 1]
    assert rows[2]["late_because"] == {"compute": 200_000}
    said = summarize([path]).verdict.evidence[-1]
    assert said.startswith("rank 2 arrives last at 100%")
    assert "200 us more per step in compute" in said


def test_waiting_behind_compute_is_not_exposed(tmp_path: Path) -> None:
    path = one_report(tmp_path / "job.sqlite", [300_000, 500_000], hidden=40_000)
    fast, slow = table(path)
    n = fast["steps"]
    assert fast["wait_ns"] == 200_000 * n
    assert fast["exposed_wait_ns"] == 160_000 * n
    assert slow["exposed_transfer_ns"] == (TRANSFER - 40_000) * n
    assert fast["hidden_comm_ns"] == slow["hidden_comm_ns"] == 40_000 * n


def test_equal_ranks_have_no_straggler(tmp_path: Path) -> None:
    rows = table(one_report(tmp_path / "job.sqlite", [300_000, 300_000]))
    assert not any(r["straggler"] for r in rows)
    assert all(r["wait_ns"] == 0 and r["late_because"] == {} for r in rows)


@pytest.mark.parametrize("wrong", [0, 3_000_000, -40_000])
def test_sessions_and_clocks_are_aligned(tmp_path: Path, wrong: int) -> None:
    paths = reports(tmp_path, [300_000, 500_000], starts=[0, 700_000], clocks=[0, wrong])
    rows = table(*paths)
    assert [r["report"] for r in rows] == ["rank0.sqlite", "rank1.sqlite"]
    assert rows[1]["clock_correction_ns"] == -wrong
    assert [r["straggler"] for r in rows] == [False, True]
    assert rows[0]["wait_ns"] == 200_000 * rows[0]["collectives"]
    assert ("rank clocks" in checks(*paths)) == (abs(wrong) > 1_000_000)


def test_a_report_without_session_start(tmp_path: Path) -> None:
    paths = []
    for i, ns in enumerate([300_000, 500_000]):
        report = Report(utc_epoch_ns=None if i else EPOCH)
        steps(report.process(100), ns, 500_000)
        report.shift(i * 123_456_789)
        paths.append(report.write(tmp_path / f"{i}.sqlite"))
    rows = table(*paths)
    assert [r["straggler"] for r in rows] == [False, True]
    assert rows[0]["wait_ns"] == 200_000 * rows[0]["collectives"]
    assert "does not say when" in checks(*paths)["rank clocks"].detail


def test_a_capture_that_began_later(tmp_path: Path) -> None:
    """Three steps are missing in one report: the n-th collective there is the n+3rd here."""
    paths = []
    for i, (ns, first) in enumerate([(300_000, 0), (500_000, 3)]):
        report = Report()
        steps(report.process(100), ns, 500_000, first=first)
        paths.append(report.write(tmp_path / f"{i}.sqlite"))
    rows = table(*paths)
    assert rows[0]["wait_ns"] == 200_000 * rows[0]["collectives"] > 0
    assert rows[1]["wait_ns"] == 0
    assert "9 to 12 collectives" in checks(*paths)["rank lengths"].detail


def test_groups_that_do_not_run_together_are_not_mixed(tmp_path: Path) -> None:
    """Two pairs of ranks, each with its own all-reduce, half a period apart."""
    report = Report()
    for i, (ns, slowest, phase) in enumerate(
        [(100_000, 100_000, 0), (200_000, 300_000, 500_000), (60_000, 100_000, 0), (300_000, 300_000, 500_000)]
    ):
        steps(report.process(100 + i), ns, slowest, device=i, phase=phase)
    rows = table(report.write(tmp_path / "job.sqlite"))
    n = rows[0]["collectives"]
    assert [r["wait_ns"] for r in rows] == [0, 100_000 * n, 40_000 * n, 0]
    assert rows[3]["straggler"]


def test_without_collectives_nothing_is_claimed(tmp_path: Path) -> None:
    report = Report()
    for i in range(2):
        thread = report.process(100 + i).thread(100 + i)
        for k in range(8):
            thread.add_range(f"step {k}", k * 10_000, k * 10_000 + 9_000, domain="nsysx")
            thread.launch(k * 10_000 + 100, kernel="gemm", gpu_start=k * 10_000 + 2_000, gpu_dur=3_000, device=i)
    path = report.write(tmp_path / "job.sqlite")
    for row in table(path):
        for key in ("wait_ns", "transfer_ns", "exposed_wait_ns", "last_share", "delay_ns", "clock_correction_ns"):
            assert row[key] is None
        assert row["straggler"] is False
    assert checks(path)["collectives"].status == "missing"


def test_one_rank_is_not_compared(tmp_path: Path) -> None:
    summary = summarize([one_report(tmp_path / "one.sqlite", [300_000])])
    assert summary.tables["ranks"].rows is None
    assert "one rank" in summary.tables["ranks"].reason
    assert not any(c.check in {"collectives", "rank lengths"} for c in summary.quality)


def test_the_shown_rank(tmp_path: Path) -> None:
    paths = reports(tmp_path, [300_000, 500_000], starts=[0, 0], clocks=[0, 0])
    first, second = summarize(paths), summarize(paths, rank=1)
    assert first.capture.files == second.capture.files == ("rank0.sqlite", "rank1.sqlite")
    assert [dict(r) for r in first.rows("ranks")] == [dict(r) for r in second.rows("ranks")]
    compute = [s.rows("gpu_ledger")[0]["compute_ns"] for s in (first, second)]
    assert compute[1] * 3 == compute[0] * 5


def test_pool_and_serial_agree_to_the_byte(tmp_path: Path) -> None:
    paths = reports(tmp_path, [300_000, 400_000, 500_000], starts=[0, 5, 9], clocks=[0, 0, 0])
    alone = json_text.render(summarize(paths, workers=1))
    assert json_text.render(summarize(paths, workers=2)) == alone


def test_cluster_and_serial_agree_to_the_byte(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    paths = reports(tmp_path, [300_000, 500_000], starts=[0, 5], clocks=[0, 0])
    alone = json_text.render(summarize(paths, workers=1))
    assert json_text.render(summarize(paths, cluster="local")) == alone


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        (ALL_REDUCE, "allreduce"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_float", "reducescatter"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
        ("ncclDevKernel_SendRecv(ncclDevComm*)", "sendrecv"),
        ("my_comm_kernel<float>(int)", "my_comm_kernel"),
    ],
)
def test_kind_of(kernel: str, kind: str) -> None:
    assert nccl.kind_of(kernel) == kind

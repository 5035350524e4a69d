"""NSX127: local steps whose hook reduces the gradients of each step over all ranks, and hooks and averages with which that is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.builder import Report, Thread
from tests.findings import findings_alone
from tests.findings.test_job_messages import DDP, found, probes
from tests.findings.test_nsx127_costly_settings import CLEAN, changed
from tests.ranks.test_rank_table import KERNELS, member, noted

US, MS = 1_000, 1_000_000
STEPS, EVERY, REDUCES, AVERAGES = 12, 4, 300 * US, 400 * US
BYTES, WORLD, GROUP = 400 << 20, 5, 6


def reduce(thread: Thread, rank: int, at: int, start: int, ns: int, comm: int, size: int = BYTES) -> None:
    noted(thread, "ncclAllReduce", at, at + 8 * US, comm=comm, size=size)
    thread.launch(at + US, kernel=KERNELS["ncclAllReduce"], gpu_start=start, gpu_dur=ns, stream=20, device=rank)


def job(folder: Path, kind: str) -> Finding | None:
    """Return what is found of two ranks: 300 us of each reduction of gradients are exposed, and each fourth step averages parameters."""
    report = Report()
    for rank in range(2):
        thread = report.process(100 + rank).thread(100 + rank, "python3")
        report.gpu(rank, pids=[(100 + rank, rank)])
        member(thread, WORLD, 4 if kind == "two hosts" else 2, rank)
        noted(thread, "ncclCommSplit", 200, 210, comm=GROUP, of=2, Rank=rank)
        noted(thread, "ncclCommInitRankConfig", 210, 220, comm=GROUP, of=2, Rank=rank)
        t = MS
        for i in range(STEPS):
            averages = i % EVERY == 0 and kind != "warm-up"
            begin, gpu = t, t + 20 * US

            thread.add_range("forward", t, t + 20 * US, domain="nsysx")
            thread.launch(t + 5 * US, kernel="gemm", gpu_start=gpu, gpu_dur=MS, device=rank)
            thread.add_range("backward", t + 30 * US, t + 80 * US, domain="nsysx")
            gpu += MS
            if not (kind == "reduces rarely" and i % 2):
                reduce(thread, rank, t + 40 * US, gpu, REDUCES, GROUP)
                gpu += REDUCES
            thread.launch(t + 100 * US, kernel="adam", gpu_start=gpu, gpu_dur=100 * US, device=rank)
            gpu += 100 * US
            if averages:
                reduce(thread, rank, t + 120 * US, gpu, AVERAGES, WORLD, 64 if kind == "a metric" else BYTES)
                gpu += AVERAGES
            t = gpu + 20 * US
            thread.add_range(f"step {i}", begin, t - 100, domain="nsysx")
    wrapper = {**DDP, "hook": "bf16_compress_hook" if kind == "another hook" else "post_localSGD_hook"}
    probes(folder / "r.run.json", changed(CLEAN, {"wrappers": [wrapper]}), (100, 101))
    return found(findings_alone("NSX127", report.write(folder / "r.sqlite")), "local steps reduced")


def test_gradients_that_are_reduced_over_all_ranks_between_averages(tmp_path: Path) -> None:
    finding = job(tmp_path, "")
    assert finding is not None and [way.name for way in finding.remedies] == ["local-steps"]
    assert finding.saving.bound and finding.saving_ns_per_step == pytest.approx(REDUCES, rel=0.1)
    assert "post_local_gradient_allreduce=False" in finding.paste and "2 of 10 steps average" in finding.detail


@pytest.mark.parametrize("kind", ["warm-up", "a metric", "two hosts", "reduces rarely", "another hook"])
def test_reductions_that_local_steps_need(kind: str, tmp_path: Path) -> None:
    assert job(tmp_path, kind) is None

"""NSX110: a rank that trains and one that does not, which wait for each other in turn, and ranks that work at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.builder import Report
from tests.findings import said_of

SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
MS, STEPS = 1_000_000, 12


def job(
    folder: Path, *, learner_ms: int, actor_ms: int, ahead: bool = False, both_train: bool = False
) -> list[Finding]:
    """A learner that trains on what an actor has made and sends it its weights; ``ahead``: both work on what was made a round before."""
    period = max(learner_ms, actor_ms) + 1 if ahead else learner_ms + actor_ms + 1
    report = Report()
    for rank, own_ms in enumerate((learner_ms, actor_ms)):
        process = report.process(100 + rank)
        thread = process.thread(process.pid, "python3")
        for i in range(STEPS):
            t = MS + i * period * MS
            begins = t if ahead or rank == 0 else t + learner_ms * MS
            thread.add_range(f"step {i}", t, t + period * MS - 100, domain="nsysx")
            thread.add_range(
                "backward" if rank == 0 or both_train else "evaluation", t + 500, t + 3_000, domain="nsysx"
            )
            thread.launch(t + 1_000, kernel="gemm", gpu_start=begins, gpu_dur=own_ms * MS, device=rank)
            # What is not work is waiting in a message.
            for start, end in ((t, begins), (begins + own_ms * MS, t + period * MS)):
                if end > start:
                    thread.launch(
                        t + 4_000 + start % 7, kernel=SEND, gpu_start=start, gpu_dur=end - start, stream=20, device=rank
                    )
            thread.sync("cudaDeviceSynchronize_v3020", at=t + 100_000, dur=period * MS - 200_000, device=rank)
        report.gpu(rank, pids=[(100 + rank, rank)])
    return [f for f in said_of(report.write(folder / "r.sqlite")) if f.verdict == "found"]


def pausing(folder: Path, learner_us: int, kernels: int, every_us: int, kernel_us: int = 10) -> Finding:
    """Return what is told of an actor whose host launches each of its kernels so long after the one before."""
    report, us = Report(), 1_000
    period = (learner_us + kernels * every_us + 100) * us
    for rank in (0, 1):
        process = report.process(100 + rank)
        thread = process.thread(process.pid, "python3")
        for i in range(STEPS):
            t = MS + i * period
            own, other = (t, t + learner_us * us), (t + learner_us * us, t + period - 2 * us)
            thread.add_range(f"step {i}", t, t + period - 100, domain="nsysx")
            thread.add_range(("backward", "evaluation")[rank], t + 500, t + period - 200, domain="nsysx")
            if rank == 0:
                thread.launch(t + 600, kernel="gemm", gpu_start=own[0], gpu_dur=own[1] - own[0])
            start, end = other if rank == 0 else own
            thread.launch(t + 6_000, kernel=SEND, gpu_start=start, gpu_dur=end - start - 2 * us, stream=20, device=rank)
            thread.sync("cudaDeviceSynchronize_v3020", at=t + 12_000, dur=end - t - 20_000, device=rank)
            for k in range(kernels * rank):
                start = other[0] + k * every_us * us
                thread.launch(start - 3_000, kernel="gemm", gpu_start=start, gpu_dur=kernel_us * us, device=1)
        report.gpu(rank, pids=[(100 + rank, rank)])
    (found,) = told([f for f in said_of(report.write(folder / "r.sqlite")) if f.verdict == "found"])
    return found


def told(findings: list[Finding]) -> list[Finding]:
    return [f for f in findings if "roles-at-once" in [way.name for way in f.remedies]]


@pytest.mark.parametrize(("learner_ms", "actor_ms"), [(10, 8), (6, 12)])
def test_ranks_that_take_turns_can_work_at_once(learner_ms: int, actor_ms: int, tmp_path: Path) -> None:
    findings = job(tmp_path, learner_ms=learner_ms, actor_ms=actor_ms)
    (found,) = told(findings)
    assert found.code == "NSX110" and found.saving.bound
    assert found.saving_ns_per_step == pytest.approx(min(learner_ms, actor_ms) * MS, rel=0.1)
    # None of them is late: each has work of its own kind.
    assert "NSX111" not in [f.code for f in findings] and "micro-batches" not in found.fix


@pytest.mark.parametrize("how", [{"ahead": True}, {"both_train": True}, {"actor_ms": 1}], ids=str)
def test_ranks_that_work_at_once_or_alike_are_left_alone(how: dict[str, int], tmp_path: Path) -> None:
    assert not told(job(tmp_path, **{"learner_ms": 10, "actor_ms": 8, **how}))  # type: ignore[arg-type]


@pytest.mark.traced
@pytest.mark.parametrize(("kernels", "kernel_us", "saved_ms"), [(150, 10, 3.8), (1, 4_400, 3.0)])
def test_what_tracing_adds_to_the_longer_work_is_no_work(
    kernels: int, kernel_us: int, saved_ms: float, tmp_path: Path
) -> None:
    """An actor works for 4.5 ms: where most of that is its host between kernels, it may be no longer than the learner's 3 ms without
    tracing, and a step half as long; where its GPU works, what is saved is the shorter work.
    """
    found = pausing(tmp_path, 3_000, kernels, 4_500 // kernels, kernel_us)
    assert found.saving.bound and found.saving_ns_per_step == pytest.approx(saved_ms * MS, rel=0.03)

"""Waits of the launching thread for its next batch are a cause of their own, with or without ranges that mark loading."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Summary
from nsysx.pipeline import summarize
from tests.builder import Report

MS, US = 1_000_000, 1_000


def fed(call: str = "sem_timedwait", *, copies: bool = True, waits_ms: int = 30, marked: bool = False) -> Report:
    """Return a training whose thread waits for a batch in each step, copies it, computes for 10 ms, and reads the loss."""
    report = Report()
    main = report.process(100).thread(100, name="python3")
    at = MS
    for i in range(12):
        begin = at
        main.osrt(call, at, waits_ms * MS)
        if marked:
            main.add_range("data", at, at + waits_ms * MS)
        at += waits_ms * MS + 100 * US
        if copies:
            main.memcpy(at=at, dur=10 * US, bytes=1 << 20, kind="HtoD", gpu_start=at + 12 * US, gpu_dur=80 * US)
        for k in range(10):
            start = at + 200 * US + k * 1_000_100
            main.launch(at=at + (20 + 10 * k) * US, dur=5 * US, kernel=f"gemm_{k}", gpu_start=start, gpu_dur=MS)
        done = at + 200 * US + 10 * 1_000_100
        main.memcpy(at=at + 200 * US, dur=done - at - 180 * US, bytes=4, kind="DtoH", gpu_start=done, gpu_dur=2 * US)
        at = done + 300 * US
        main.add_range(f"step {i}", begin, at)
    return report


def summed(tmp_path: Path, report: Report) -> Summary:
    return summarize([report.write(tmp_path / "r.sqlite")], every_table=False)


@pytest.mark.parametrize("call", ["sem_timedwait", "pthread_cond_timedwait", "poll", "futex"])
def test_a_wait_for_the_batch_leads(tmp_path: Path, call: str) -> None:
    summary = summed(tmp_path, fed(call))
    assert summary.verdict.code == "input_bound"
    assert summary.answer is not None
    (do,) = summary.answer.do
    assert do.code == "NSX106"
    assert "without a DataLoader" not in str(summary.findings)
    row = next(r for r in summary.rows("gpu_ledger"))
    assert row["idle_causes"]["data_loader"] == pytest.approx(11 * 30 * MS, rel=0.12)


@pytest.mark.parametrize(
    ("report", "why"),
    [
        (fed(copies=False), "what it waits for is not copied to the GPU"),
        (fed("ioctl"), "a call that waits for no other thread"),
        (fed("nanosleep"), "it sleeps"),
    ],
)
def test_other_waits_are_no_loading(tmp_path: Path, report: Report, why: str) -> None:
    causes = next(r for r in summed(tmp_path, report).rows("gpu_ledger"))["idle_causes"]
    assert "data_loader" not in causes, why


def test_a_range_that_marks_loading_says_it_better(tmp_path: Path) -> None:
    """The wait is in the range already, and counts once."""
    marked, inferred = (
        next(r for r in summed(tmp_path, fed(marked=m)).rows("gpu_ledger"))["idle_causes"]["data_loader"]
        for m in (True, False)
    )
    assert marked == pytest.approx(inferred, rel=0.01)

"""Two processes on one GPU, and one process on two: each part waits for the other, and the report says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nsysx.judging.other_work import other_gpus, others_of_gpu, working_share
from nsysx.model import Check
from nsysx.pipeline import summarize
from tests.builder import Report
from tests.reports import gather

US = 1000
STEPS, STEP = 8, 1000 * US


def two_processes(*, gpus: tuple[int, int] | None, other_us: int = 400) -> Report:
    """Process 100 works 500 us of each ms, process 200 ``other_us`` after that; ``gpus`` are their GPUs, None: not recorded."""
    report = Report()
    for gpu in sorted(set(gpus or ())):
        report.gpu(gpu, pids=[(pid, 0) for pid, of in zip((100, 200), gpus or (), strict=True) if of == gpu])
    for pid, begin, length in ((100, 0, 500), (200, 550, other_us)):
        process = report.process(pid)
        process.context()
        thread = process.thread(pid, "python")
        for number in range(STEPS):
            at = number * STEP
            start = at + (begin + 10) * US
            thread.launch(at + begin * US, 5 * US, kernel="work", gpu_start=start, gpu_dur=length * US)
            if pid == 100:
                thread.add_range(f"step {number}", at, at + STEP - US, domain="nsysx")
    return report


def told(path: Path, *, gpus: tuple[int, int] | None, other_us: int = 400) -> list[Check]:
    summary = summarize([two_processes(gpus=gpus, other_us=other_us).write(path / "r.sqlite")], every_table=False)
    return [c for c in summary.quality if c.check == "shared gpu"]


def test_the_work_of_the_other_is_told_by_its_share(tmp_path: Path) -> None:
    (check,) = told(tmp_path, gpus=(3, 3))
    assert check.status == "warn"
    assert check.detail.startswith("process 200 works on the same GPU for 40 % of the steps, 40 % while")


@pytest.mark.parametrize(("gpus", "other_us"), [((0, 1), 400), (None, 400), ((3, 3), 5)])
def test_a_gpu_of_its_own_an_unknown_one_or_next_to_no_work(
    tmp_path: Path, gpus: tuple[int, int] | None, other_us: int
) -> None:
    assert told(tmp_path, gpus=gpus, other_us=other_us) == []


def test_the_share_of_some_time_in_which_the_other_works(tmp_path: Path) -> None:
    """It works 400 us of the 450 us behind the work of this one, and not meanwhile."""
    profile = gather(two_processes(gpus=(3, 3)), tmp_path)
    others = others_of_gpu(profile)
    start = np.arange(1, STEPS - 1) * STEP + 10 * US
    share = [
        working_share(profile, others, start + begin * US, start + end * US) for begin, end in ((500, 950), (0, 500))
    ]
    assert share == [pytest.approx(400 / 450), 0] and working_share(profile, others, start[:0], start[:0]) == 0


def test_the_other_gpus_of_the_process_are_no_gpus_of_others(tmp_path: Path) -> None:
    """Of each ms GPU 0 works 500 us and then GPU 1 200 us; what another process does on a third is no work of this one."""
    report = Report()
    for pid, works in ((100, ((0, 0, 500), (1, 550, 200))), (200, ((2, 0, 900),))):
        process = report.process(pid)
        thread = process.thread(pid, "python")
        for number in range(STEPS):
            at = number * STEP
            for device, begin, length in works:
                start = at + (begin + 10) * US
                thread.launch(
                    at + begin * US, 5 * US, kernel="work", gpu_start=start, gpu_dur=length * US, device=device
                )
            if pid == 100:
                thread.add_range(f"step {number}", at, at + STEP - US, domain="nsysx")
    profile = gather(report, tmp_path)
    assert profile.device == 0
    other = other_gpus(profile)
    assert other.devices == (1,)
    assert other.busy_ns == other.meanwhile_ns == profile.scope.steps * 200 * US

"""What to do first where a report has no steps: the work that stands there, and how this program's steps can be marked."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Summary
from nsysx.pipeline import summarize
from tests.builder import Report
from tests.reports import US


def unlike(folder: Path, program: str, *, kernel: str, busy_us: int, ranges: tuple[str, ...] = ()) -> Summary:
    """Return the Summary of 20 kernels, each of another name, so that nothing repeats; one comes every 100 us."""
    report = Report()
    main = report.process(1, name=program).thread(1, program)
    for i in range(20):
        at = 10 * US + i * 100 * US
        main.launch(at, 5 * US, kernel=kernel.format(i), gpu_start=at + 8 * US, gpu_dur=busy_us * US)
    for depth, name in enumerate(ranges):
        main.add_range(name, depth, 2_100 * US - depth)
    return summarize([report.write(folder / "r.sqlite")], every_table=False)


@pytest.mark.parametrize(
    ("program", "kernel", "how"),
    [
        ("python", "at::native::add_{}", "nsysx run -- CMD"),
        ("python", "fusion_{}", "nsysx run -- CMD if PyTorch makes them, else NVTX ranges around each, and --step-range"),
        ("solver", "spmv_{}", "NVTX ranges around each, and --step-range"),
    ],
)  # fmt: skip
def test_steps_are_marked_by_what_this_program_can(tmp_path: Path, program: str, kernel: str, how: str) -> None:
    """`nsysx run` marks steps of PyTorch alone: it is no advice for others."""
    found = unlike(tmp_path, program, kernel=kernel, busy_us=20)
    assert found.answer is not None
    assert found.answer.do[0].text == f"Mark the steps, to separate start-up from steady work: {how}"


def test_work_of_the_gpu_itself_is_looked_at_before_steps_are_marked(tmp_path: Path) -> None:
    """One kernel that takes most of a capture needs no steps to be the next thing to look at."""
    report = Report()
    main = report.process(1, name="solver").thread(1)
    main.launch(0, 5 * US, kernel="setup", gpu_start=8 * US, gpu_dur=10 * US)
    main.launch(10 * US, 5 * US, kernel="solve", gpu_start=20 * US, gpu_dur=5_000 * US)
    found = summarize([report.write(tmp_path / "r.sqlite")], every_table=False)
    assert found.verdict.code == "gpu_bound" and found.answer is not None
    text = found.answer.do[0].text
    assert (
        text.startswith("Look at the GPU work itself. The kernel solve takes 100 % of the GPU time")
        and "nsysx ncu" in text
    )


def test_kernels_that_run_at_once_are_shares_of_the_work_and_not_of_the_time(tmp_path: Path) -> None:
    """Two streams work for 5 ms of 5 each: one kernel is half of the work."""
    report = Report()
    main = report.process(1, name="solver").thread(1)
    for stream, kernel in ((7, "solve"), (8, "smooth"), (9, "solve")):
        main.launch(10 * US * stream, 5 * US, kernel=kernel, gpu_start=100 * US, gpu_dur=5_000 * US, stream=stream)
    found = summarize([report.write(tmp_path / "r.sqlite")], every_table=False)
    assert "The kernel solve takes 67 % of the GPU time" in found.answer.do[0].text


@pytest.mark.parametrize(
    ("kernels", "busy_us", "wait_ms", "little"),
    [(19, 5, 10, True), (20, 5, 10, False), (98, 1, 10, True), (99, 1, 10, False), (20, 3, 1, False)],
)
def test_of_a_capture_in_which_the_gpu_does_next_to_nothing_more_is_recorded(
    tmp_path: Path, kernels: int, busy_us: int, wait_ms: int, little: bool
) -> None:
    """Below a hundredth of the capture and 100 operations; one of them is a copy. What stands still meanwhile is start-up."""
    report = Report()
    main = report.process(1, name="solver").thread(1)
    main.memcpy(0, 5 * US, kind="HtoD", bytes=1 << 20, gpu_start=6 * US, gpu_dur=1 * US)
    for i in range(kernels):
        main.launch((20 + 9 * i) * US, 1 * US, kernel=f"k{i}", gpu_start=(22 + 9 * i) * US, gpu_dur=busy_us * US)
    main.call("cudaFree_v3020", wait_ms * 1_000 * US, 1 * US)
    found = summarize([report.write(tmp_path / "r.sqlite")], every_table=False)
    text = found.answer.do[0].text
    assert text.startswith("Record more of the work: in the 10.00 ms of this capture the GPU works") == little
    if little:
        what = "1 kernel" if kernels == 1 else f"{kernels} kernels"
        assert f"works {1 + kernels * busy_us} us ({what}, 1 copy)" in text.replace(".0 us", " us")


def test_a_cause_that_needs_no_steps_is_told_without_them(tmp_path: Path) -> None:
    """One product whose program takes memory again between copy and kernel; kernels of a library that keep the GPU at work."""
    report = Report()
    main = report.process(1, name="python").thread(1)
    main.call("cudaHostAlloc_v3020", 0, 6_000 * US)
    main.memcpy(6_010 * US, 5 * US, gpu_start=6_020 * US, gpu_dur=100 * US, bytes=1 << 20)
    main.call("cudaHostAlloc_v3020", 6_120 * US, 5_000 * US)
    main.launch(11_200 * US, 5 * US, kernel="sgemm", gpu_start=11_210 * US, gpu_dur=500 * US)
    found = summarize([report.write(tmp_path / "r.sqlite")], every_table=False)
    assert found.verdict.code == "alloc_bound" and found.answer is not None
    assert found.answer.do[0].text.startswith("Allocate before the work on the GPU begins, and keep the memory")
    busy = unlike(tmp_path, "python", kernel="sm80_xmma_fprop_{}", busy_us=100)
    assert busy.verdict.code == "gpu_bound" and busy.answer is not None
    assert busy.answer.do[0].text.startswith("Look at the GPU work itself: nsysx ncu REPORT")


def test_ranges_inside_ranges_of_their_own_name_are_one_place(tmp_path: Path) -> None:
    """Recursion, or a range that nobody closes, is no path of its own."""
    found = unlike(tmp_path, "solver", kernel="spmv_{}", busy_us=20, ranges=("solve", "descend", "descend", "descend"))
    assert found.answer is not None
    assert found.answer.do[0].where["module"] == "solve / descend"


@pytest.mark.parametrize(
    ("small_us", "blocks", "text"),
    [
        (400, 16, "Give these kernels more blocks: a launch of more blocks, in a kernel that"),
        (200, 16, "Look at the GPU work itself"),
        (400, 100, "Look at the GPU work itself"),
    ],
)
def test_of_kernels_those_lead_that_cost_a_twentieth_of_the_capture(
    tmp_path: Path, small_us: int, blocks: int, text: str
) -> None:
    """Sixteen blocks on 132 SMs leave 88 % of 400 us unused in 6 ms; what takes less is told behind the kernel that takes most."""
    report = Report()
    report.gpu(pids=[(1, 0)])
    main = report.process(1, name="solver").thread(1)
    main.launch(0, 5 * US, kernel="few", gpu_start=8 * US, gpu_dur=small_us * US)
    report.rows["CUPTI_ACTIVITY_KIND_KERNEL"][-1] |= {"gridX": blocks, "blockX": 256}
    main.launch(10 * US, 5 * US, kernel="solve", gpu_start=(10 + small_us) * US, gpu_dur=5_500 * US)
    report.rows["CUPTI_ACTIVITY_KIND_KERNEL"][-1] |= {"gridX": 2000, "blockX": 256}
    found = summarize([report.write(tmp_path / "r.sqlite")], every_table=False)
    assert found.answer.do[0].text.startswith(text)


def test_of_causes_the_costliest_leads(tmp_path: Path) -> None:
    """Two kinds of copies, 1 and 3 ms of 5: the second is the first to do."""
    report = Report()
    main = report.process(1, name="solver").thread(1)
    main.memcpy(0, 5 * US, kind="HtoD", bytes=1 << 20, gpu_start=8 * US, gpu_dur=1_000 * US)
    main.launch(10 * US, 5 * US, kernel="solve", gpu_start=1_010 * US, gpu_dur=990 * US)
    main.memcpy(20 * US, 5 * US, kind="DtoH", bytes=1 << 20, gpu_start=2_010 * US, gpu_dur=3_000 * US)
    found = summarize([report.write(tmp_path / "r.sqlite")], every_table=False)
    assert found.verdict.code == "copy_bound" and "to the host" in found.answer.do[0].where["near"]

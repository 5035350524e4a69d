"""What limits the step: every code reached by a small program, and silence where the capture does not hold it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nsysx.events import ledger
from nsysx.judging import verdict
from nsysx.model import Verdict
from nsysx.pipeline import summarize
from tests import builder
from tests.builder import Report, Thread
from tests.reports import PERIOD, US, gather

#: Every step is 1 ms; ``body(main, t)`` fills one that begins at ``t``.
Body = Callable[[Thread, int], None]


def loop(body: Body, count: int = 8, *, marked: bool = True) -> Report:
    report = Report()
    main = report.process(1).thread(1, "python")
    for i in range(count):
        t = i * PERIOD
        body(main, t)
        if marked:
            main.add_range(f"step {i}", t, t + 990 * US)
    return report


def judged(report: Report, folder: Path, **options: str) -> Verdict:
    return summarize([report.write(folder / "r.sqlite")], **options).verdict  # type: ignore[arg-type]


def kernel(main: Thread, t: int, at: int, begin: int, dur: int, name: str = "gemm") -> None:
    stream = 13 if "nccl" in name else 7
    main.launch(t + at * US, 5 * US, kernel=name, gpu_start=t + begin * US, gpu_dur=dur * US, stream=stream)


def gpu_bound(main: Thread, t: int) -> None:
    """One kernel of 950 us; the CPU sits in a synchronize meanwhile."""
    kernel(main, t, 10, 20, 950)
    main.sync(at=t + 20 * US, dur=952 * US)


def launch_bound(main: Thread, t: int) -> None:
    """A kernel of 20 us every 95 us."""
    for k in range(10):
        kernel(main, t, 10 + 95 * k, 18 + 95 * k, 20)


def slow_launches(main: Thread, t: int) -> None:
    """The same, but it is the launches themselves that take the time."""
    for k in range(10):
        main.launch(t + (10 + 95 * k) * US, 70 * US, kernel="k", gpu_start=t + (81 + 95 * k) * US, gpu_dur=20 * US)


def input_bound(main: Thread, t: int) -> None:
    main.add_range("data DataLoader", t, t + 700 * US)
    kernel(main, t, 710, 720, 250)


def sync_bound(main: Thread, t: int) -> None:
    """Each kernel is waited for, and what the CPU does afterwards the GPU waits for."""
    for k in range(2):
        kernel(main, t, 10 + 480 * k, 20 + 480 * k, 150)
        main.sync(at=t + (20 + 480 * k) * US, dur=170 * US)


def copy_bound(main: Thread, t: int) -> None:
    main.memcpy(t + 10 * US, 5 * US, kind="HtoD", gpu_start=t + 20 * US, gpu_dur=600 * US)
    kernel(main, t, 20, 620, 370)


def comm_bound(main: Thread, t: int) -> None:
    kernel(main, t, 10, 20, 370)
    kernel(main, t, 20, 390, 600, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")


def alloc_bound(main: Thread, t: int) -> None:
    main.call("cudaMalloc_v3020", t + 5 * US, 600 * US)
    kernel(main, t, 610, 620, 370)


def warmup(main: Thread, t: int) -> None:
    main.call("cuLibraryLoadData", t + 5 * US, 600 * US)
    kernel(main, t, 610, 620, 370)


CODES = {
    "gpu_bound": gpu_bound,
    "launch_bound": launch_bound,
    "input_bound": input_bound,
    "sync_bound": sync_bound,
    "copy_bound": copy_bound,
    "comm_bound": comm_bound,
    "alloc_bound": alloc_bound,
    "warmup": warmup,
}


@pytest.mark.parametrize("code", CODES)
def test_each_code(tmp_path: Path, code: str) -> None:
    found = judged(loop(CODES[code]), tmp_path)
    assert found.code == code, found
    assert found.sentence.endswith(".")
    assert "{" not in found.sentence
    assert found.evidence[0].startswith("GPU 0 busy ")
    assert "7 steady steps" in found.evidence[0]


def test_the_share_in_the_sentence_is_the_ledgers(tmp_path: Path) -> None:
    """Copies run 600 us of each step of 1 ms."""
    assert judged(loop(copy_bound), tmp_path).sentence == "Copies that no kernel hides take 60 % of the step."
    assert judged(loop(comm_bound), tmp_path).sentence == "Communication that no compute hides takes 60 % of the step."


def test_a_gpu_bound_step_whose_cpu_waits_says_that_it_costs_nothing(tmp_path: Path) -> None:
    found = judged(loop(gpu_bound), tmp_path)
    assert "busy 95 % of the step" in found.sentence
    assert "costs the GPU almost nothing" in found.sentence


def test_the_long_waits_of_a_gpu_bound_capture(tmp_path: Path) -> None:
    """Case A: waits of 19 and 39 ms that are worth nothing."""
    assert judged(builder.case_a(), tmp_path).code == "gpu_bound"


def test_an_exposed_copy_behind_a_kernel_is_none(tmp_path: Path) -> None:
    def hidden(main: Thread, t: int) -> None:
        main.memcpy(t + 10 * US, 5 * US, kind="HtoD", gpu_start=t + 20 * US, gpu_dur=600 * US, stream=13)
        kernel(main, t, 20, 20, 950)

    assert judged(loop(hidden), tmp_path).code == "gpu_bound"


def test_launch_bound_says_what_profiling_itself_costs(tmp_path: Path) -> None:
    found = judged(loop(launch_bound), tmp_path)
    assert "Python and framework code" in found.sentence
    assert any("Profiling slows launches" in e for e in found.evidence)


def test_launch_bound_by_the_launches_themselves(tmp_path: Path) -> None:
    found = judged(loop(slow_launches), tmp_path)
    assert found.code == "launch_bound"
    assert "in the launches themselves" in found.sentence


def test_the_module_before_whose_work_the_gpu_idles(tmp_path: Path) -> None:
    def named(main: Thread, t: int) -> None:
        main.add_range("head:Linear", t, t + 980 * US, domain="nsysx")
        launch_bound(main, t)

    assert any("module 'head'" in e for e in judged(loop(named), tmp_path).evidence)


def test_idle_by_who_could_remove_it_sums_to_the_idle_time(tmp_path: Path) -> None:
    for code, body in CODES.items():
        given = gather(loop(body), tmp_path)
        (row,) = given.steps.windows.iter_rows(named=True)
        where = (row["process"], row["device"], row["start_ns"], row["end_ns"])
        causes = ledger.idle_in(given.ledgers.idle, *where)
        assert sum(verdict.idle_groups(given, *where[:2]).values()) == sum(causes.values()), code


# --- what cannot be told --------------------------------------------------------------------------------------------------


def unknown(report: Report, folder: Path, words: str) -> None:
    found = judged(report, folder)
    assert found.code == "unknown", found
    assert found.sentence.startswith("Cannot tell")
    assert words in found.sentence


def test_without_gpu_work(tmp_path: Path) -> None:
    def calls_only(main: Thread, t: int) -> None:
        main.call("cudaFree_v3020", t, 10)

    unknown(loop(calls_only), tmp_path, "no GPU work")


def test_when_most_work_was_launched_outside_the_trace(tmp_path: Path) -> None:
    def untraced(main: Thread, t: int) -> None:
        main.process.kernel("k", t + 700 * US, 100 * US)
        main.launch(t, 5, kernel="traced", gpu_start=t + 20, gpu_dur=5)

    unknown(loop(untraced), tmp_path, "outside the trace")


def test_when_the_profiler_is_in_the_way(tmp_path: Path) -> None:
    def flushing(main: Thread, t: int) -> None:
        main.profiler_overhead(t + 10 * US, 400 * US)
        kernel(main, t, 600, 610, 350)

    unknown(loop(flushing), tmp_path, "profiler")


def test_without_steps_and_without_one_cause(tmp_path: Path) -> None:
    report = Report()
    main = report.process(1).thread(1)
    for i in range(20):  # all kernels differ: no repeated sequence
        kernel(main, i * 100 * US, 0, 10, 70, f"k{i}")
    unknown(report, tmp_path, "no steps were found")


def test_without_steps_what_is_paid_once_is_start_up(tmp_path: Path) -> None:
    report = Report()
    main = report.process(1).thread(1)
    for i in range(10):
        main.call("cuLibraryLoadData", i * PERIOD, 800 * US)
        kernel(main, i * PERIOD, 810, 820, 150, f"k{i}")
    found = judged(report, tmp_path)
    assert found.code == "warmup"
    assert found.sentence.startswith("This is start-up, not steady work")
    assert any("--step-range" in e for e in found.evidence)


def test_work_without_length(tmp_path: Path) -> None:
    report = Report()
    report.process(1).thread(1).launch(0, 5, gpu_start=10, gpu_dur=0)
    assert judged(report, tmp_path).code == "unknown"


def test_the_busiest_device_is_judged(tmp_path: Path) -> None:
    def two(main: Thread, t: int) -> None:
        gpu_bound(main, t)
        main.launch(t + 500 * US, US, kernel="small", gpu_start=t + 510 * US, gpu_dur=US, device=1)

    found = judged(loop(two), tmp_path)
    assert found.code == "gpu_bound"
    assert found.evidence[0].startswith("GPU 0 busy 95 %")

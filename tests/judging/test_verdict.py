"""What limits the step: every code reached by a small program, and silence where the capture does not hold it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from nsysx.events import ledger
from nsysx.judging import limit_words
from nsysx.judging.idle_parts import idle_parts
from nsysx.judging.limits import limits_of
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
    return summarize([report.write(folder / "r.sqlite")], every_table=False, **options).verdict  # type: ignore[arg-type]


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
        kernel(main, t, 10 + 490 * k, 20 + 490 * k, 300)
        main.sync(at=t + (20 + 490 * k) * US, dur=302 * US)


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


def test_the_sentence_has_two_numbers_and_the_cause(tmp_path: Path) -> None:
    """Copies run 600 us of each step of 1 ms, kernels 370."""
    said = judged(loop(copy_bound), tmp_path).sentence
    assert said == "Copy-bound: exposed copies from the host to the GPU take 0.60 of 1.00 ms."
    said = judged(loop(comm_bound), tmp_path).sentence
    assert said == "Communication-bound: exposed communication (all-reduce) takes 0.60 of 1.00 ms."
    said = judged(loop(launch_bound), tmp_path).sentence
    assert said == "Host-bound: the GPU idles 0.80 of 1.00 ms waiting for kernel launches (10 a step)."
    said = judged(loop(input_bound), tmp_path).sentence
    assert said == "Input-bound: the GPU idles 0.75 of 1.00 ms, 0.70 ms of it waiting for input data."
    said = judged(loop(alloc_bound), tmp_path).sentence
    assert "0.60 ms of it while memory is allocated and freed (cudaMalloc)" in said
    said = judged(loop(sync_bound), tmp_path).sentence
    assert "after host syncs in cudaStreamSynchronize" in said


def mostly_work(main: Thread, t: int) -> None:
    kernel(main, t, 10, 20, 700)
    kernel(main, t, 20, 720, 250, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")


def test_a_step_that_is_mostly_compute_is_not_called_communication_bound(tmp_path: Path) -> None:
    found = judged(loop(mostly_work), tmp_path)
    assert found.code == "comm_bound"
    said = (
        "Mostly GPU work (70 %), partly communication-bound: exposed communication (all-reduce) takes 0.25 of 1.00 ms."
    )
    assert found.sentence == said


def test_what_the_gpu_works_on_is_said_where_it_is_the_limit(tmp_path: Path) -> None:
    found = judged(loop(gpu_bound), tmp_path)
    assert found.sentence.startswith("GPU-bound: GPU busy 95 % of 1.00 ms")
    assert found.sentence.endswith("100 % of GPU time is GEMM.")


def test_a_program_without_python_is_not_told_about_python(tmp_path: Path) -> None:
    report = Report()
    main = report.process(1, name="lammps").thread(1, "lammps")
    for i in range(8):
        launch_bound(main, i * PERIOD)
        main.add_range(f"step {i}", i * PERIOD, i * PERIOD + 990 * US)
    found = judged(report, tmp_path)
    assert "idles 0.80 of 1.00 ms waiting for kernel launches" in found.sentence
    assert "Python" not in " ".join([found.sentence, *found.evidence])


def test_the_long_waits_of_a_gpu_bound_capture(tmp_path: Path) -> None:
    """Case A: waits of 19 and 39 ms that are worth nothing."""
    assert judged(builder.case_a(), tmp_path).code == "gpu_bound"


def test_an_exposed_copy_behind_a_kernel_is_none(tmp_path: Path) -> None:
    def hidden(main: Thread, t: int) -> None:
        main.memcpy(t + 10 * US, 5 * US, kind="HtoD", gpu_start=t + 20 * US, gpu_dur=600 * US, stream=13)
        kernel(main, t, 20, 20, 950)

    assert judged(loop(hidden), tmp_path).code == "gpu_bound"


def test_launch_bound_says_what_profiling_itself_costs(tmp_path: Path) -> None:
    """Where the step without it is not known, and only there."""
    known = judged(loop(launch_bound), tmp_path)
    assert not any("profil" in e.lower() for e in known.evidence)
    all_of_it = judged(loop(launch_bound), tmp_path, steps="all")  # nothing is replayed
    assert any("profil" in e.lower() for e in all_of_it.evidence)


def test_launch_bound_by_the_launches_themselves(tmp_path: Path) -> None:
    found = judged(loop(slow_launches), tmp_path)
    assert found.code == "launch_bound"
    assert "in kernel launch latency (10 launches a step)" in found.sentence


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
        causes = ledger.idle_in(given.ledgers.idle_of(*where[:2]), *where[2:])
        assert sum(idle_parts(given, *where[:2]).values()) == sum(causes.values()), code


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("code", CODES)
def test_the_parts_sum_to_the_window(tmp_path: Path, code: str, marked: bool) -> None:
    given = gather(loop(CODES[code], marked=marked), tmp_path)
    found = limits_of(given)
    assert sum(found.parts.values()) == found.window_ns
    assert all(ns >= 0 for ns in found.parts.values())


# --- mixed limits, and causes that hide one another ------------------------------------------------------------------------


def test_a_graph_of_tiny_kernels_is_not_called_busy(tmp_path: Path) -> None:
    """One graph launch a step; 400 kernels of 1.2 us with pauses of 1.2 us between them."""

    def tiny(main: Thread, t: int) -> None:
        nodes = [("tiny", t + PERIOD + 2_400 * k, 1_200) for k in range(400)]
        main.graph_launch(t + 10 * US, 20 * US, nodes=nodes)

    report = loop(tiny)
    warm = report.processes[0].thread(2, "python")
    for k in range(10):  # what a launch usually takes is known
        warm.launch(40 * k * US, 5 * US, gpu_start=(40 * k + 8) * US, gpu_dur=US)
    found = judged(report, tmp_path)
    assert found.code == "gpu_bound"
    assert "inter-kernel gaps take 0.48 ms: 400 short kernels of 1.2 us" in found.sentence


def test_four_small_causes_do_not_make_a_launch_bound_step(tmp_path: Path) -> None:
    def mixed(main: Thread, t: int) -> None:
        kernel(main, t, 0, 10, 400)
        kernel(main, t, 5, 410, 60, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
        main.memcpy(t + 11 * US, 5 * US, kind="HtoD", gpu_start=t + 470 * US, gpu_dur=60 * US)
        main.sync(at=t + 20 * US, dur=515 * US)
        kernel(main, t, 575, 585, 405)

    found = judged(loop(mixed), tmp_path)
    assert found.code == "gpu_bound"
    assert "the rest: " in found.sentence
    assert "communication" in found.sentence and "copies" in found.sentence


def test_a_short_wait_does_not_hide_the_host_code_after_it(tmp_path: Path) -> None:
    """Decoding: each token is read back after 17 us, and then Python takes 800 us to the next one."""

    def token(main: Thread, t: int) -> None:
        kernel(main, t, 10, 20, 100)
        main.sync(at=t + 105 * US, dur=17 * US)

    found = judged(loop(token), tmp_path)
    assert found.code == "launch_bound"
    assert "waiting for kernel launches" in found.sentence


def test_profiler_time_is_a_part_of_its_own(tmp_path: Path) -> None:
    """Of 1 ms nsys takes 300 us; of the 700 us that are left, the host takes 330."""

    def flushing(main: Thread, t: int) -> None:
        main.profiler_overhead(t + 10 * US, 300 * US)
        kernel(main, t, 610, 620, 360)

    found = judged(loop(flushing), tmp_path)
    assert found.code == "launch_bound"
    assert found.sentence.startswith("Host-bound: the GPU idles 340 of 700 us ")
    assert found.recorded_ns == 1_000_000, "the step as recorded is not for the headline"
    assert "profiler" not in found.parts and all(found.parts.values()), (
        "what nsys takes is no part of the step without it"
    )
    assert sum(found.parts.values()) == found.step_ns == 700_000


def test_pages_that_move_by_themselves_are_work_of_their_own_kind(tmp_path: Path) -> None:
    """Unified memory: the kernel waits while pages move, which no call asked for. The capture is not cut."""

    def migrating(main: Thread, t: int) -> None:
        for k in range(4):
            main.process.copy("UVM_HtoD", t + (20 + 100 * k) * US, 100 * US, correlation=0)
        kernel(main, t, 10, 420, 550)

    path = loop(migrating).write(tmp_path / "r.sqlite")
    summary = summarize([path], every_table=False)
    assert summary.verdict.code == "copy_bound"
    # 50 us between the last kernel and the first page are the driver's, who handles the fault.
    assert "exposed page migration takes 0.45 of 1.00 ms" in summary.verdict.sentence
    said = {c.check: c for c in summary.quality}
    assert said["gpu ops without call"].status == "ok"


# --- what cannot be told --------------------------------------------------------------------------------------------------


def unknown(report: Report, folder: Path, words: str) -> None:
    found = judged(report, folder)
    assert found.code == "unknown", found
    assert words.lower() in found.sentence.lower()


def test_without_gpu_work(tmp_path: Path) -> None:
    def calls_only(main: Thread, t: int) -> None:
        main.call("cudaFree_v3020", t, 10)

    def copies(main: Thread, t: int) -> None:
        main.call("cudaMemcpyAsync_v3020", t, 10)

    unknown(loop(calls_only), tmp_path, "the program gave the GPU no work: 8 CUDA calls")
    unknown(loop(copies), tmp_path, "the capture holds no GPU work")


def test_without_gpu_work_in_the_steps(tmp_path: Path) -> None:
    """What lies outside of the steps is no reason to record on a machine with a GPU."""
    report = loop(lambda main, t: kernel(main, t, 600, 610, 350))
    for row in report.rows["CUPTI_ACTIVITY_KIND_KERNEL"]:
        row |= {"correlationId": 0, "start": row["start"] + 10**11, "end": row["end"] + 10**11}
    unknown(report, tmp_path, "the steps hold no GPU work; ")
    assert "--steps all" in judged(report, tmp_path).evidence[0]


def test_when_most_work_was_launched_outside_the_trace(tmp_path: Path) -> None:
    def untraced(main: Thread, t: int) -> None:
        main.process.kernel("k", t + 700 * US, 100 * US)
        main.launch(t, 5, kernel="traced", gpu_start=t + 20, gpu_dur=5)

    unknown(loop(untraced), tmp_path, "whose launch is not in the capture")


def test_copies_alone_are_no_limit(tmp_path: Path) -> None:
    def copies_only(main: Thread, t: int) -> None:
        main.memcpy(t + 10 * US, 5 * US, kind="HtoD", gpu_start=t + 20 * US, gpu_dur=900 * US)

    unknown(loop(copies_only), tmp_path, "no kernel was recorded")


def test_when_the_profiler_is_in_the_way(tmp_path: Path) -> None:
    def flushing(main: Thread, t: int) -> None:
        main.profiler_overhead(t + 10 * US, 400 * US)
        kernel(main, t, 600, 610, 350)

    unknown(loop(flushing, marked=False), tmp_path, "profiler")


@pytest.mark.parametrize(
    ("kernel_us", "copy_us", "words"),
    [
        # The GPU's own work takes more than half: that is the limit, as in steps; one cause beside it is called by its name alone.
        (70, 0, "GPU busy 71 % of the 1.97 ms from its first to its last work; the rest: host code between launches "),
        (60, 30, "GPU busy 90 % of the 1.99 ms from its first to its last work; the rest: exposed copies 600 us, kernel launch latency"),
        (60, 40, "GPU busy 100 % of the 2.00 ms from its first to its last work; the rest: exposed copies 800 us."),
        (45, 25, "without steps: GPU busy 71 % of the 1.97 ms from its first to its last work; of it: exposed copies 500 us; idle"),
        (45, 0, "Host-bound: "),
    ],
)  # fmt: skip
def test_without_steps_one_cause_or_the_work_of_the_gpu_takes_half(
    tmp_path: Path, kernel_us: int, copy_us: int, words: str
) -> None:
    report = Report()
    main = report.process(1).thread(1)
    for i in range(20):  # all kernels differ: no repeated sequence
        t = i * 100 * US
        kernel(main, t, 0, 10, kernel_us, f"k{i}")
        if copy_us:
            main.memcpy(t + 6 * US, 2 * US, gpu_start=t + (10 + kernel_us) * US, gpu_dur=copy_us * US, bytes=i + 1)
    found = judged(report, tmp_path)
    assert words in found.sentence
    assert not found.sentence.removesuffix(".").endswith((":", " "))


def test_a_long_session_is_judged_where_the_gpu_was_used(tmp_path: Path) -> None:
    """Somebody types: three bursts of work, a minute apart. What lies between them is not the GPU waiting for launches."""
    report = Report()
    main = report.process(1).thread(1, "python")
    for minute in range(3):
        for k in range(50 + minute):
            at = minute * 60_000_000 * US + k * 100 * US
            main.launch(at, 5 * US, kernel=f"k{minute}.{k % 7 * minute}", gpu_start=at + 8 * US, gpu_dur=90 * US)
    found = judged(report, tmp_path)
    assert found.code == "gpu_bound"
    assert "in which the program uses it" in found.sentence
    assert any("long pauses in which the program does something else 120.0 s" in e for e in found.evidence)


def test_a_part_is_never_rounded_to_nothing() -> None:
    assert limit_words.pair(260 * US, 3_700_000 * US) == ("260 us", "3.70 s")
    assert limit_words.pair(90_000 * US, 3_700_000 * US) == ("0.09", "3.70 s")
    assert limit_words.pair(1, 5_000) == ("0.001", "5.00 us")
    assert limit_words.pair(0, 3_700_000 * US) == ("0.00", "3.70 s")


def test_start_up_is_no_more_than_its_part_of_the_span(tmp_path: Path) -> None:
    """A bill of seconds that was paid before the GPU's first work is no part of a short span of launches."""
    report = Report()
    main = report.process(1).thread(1, "python")
    main.call("cuLibraryLoadData", 0, 5_000_000 * US)
    for k in range(40):
        at = (5_000_010 + 100 * k) * US
        main.launch(at, 5 * US, kernel=f"k{k}", gpu_start=at + 8 * US, gpu_dur=10 * US)
    found = judged(report, tmp_path)
    assert found.code == "launch_bound"
    assert "start-up" not in found.sentence


def test_without_steps_what_is_paid_once_is_start_up(tmp_path: Path) -> None:
    report = Report()
    main = report.process(1).thread(1)
    for i in range(10):
        main.call("cuLibraryLoadData", i * PERIOD, 800 * US)
        kernel(main, i * PERIOD, 810, 820, 150, f"k{i}")
    found = judged(report, tmp_path)
    assert found.code == "warmup"
    assert found.sentence.startswith("Start-up, not steady work: the GPU idles 7.65 of the 9.15 ms")
    assert any("--step-range" in e for e in found.evidence)
    assert not any(
        float(share) > 100 for share in re.findall(r"([\d.]+) %", " ".join([found.sentence, *found.evidence]))
    )


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


@pytest.mark.parametrize(
    ("process", "thread", "probed", "host"),
    [
        ("python3.11", "main", False, "Python"),
        ("trainer", "pt_main_thread", False, "Python"),  # a thread alone
        ("trainer", "main", True, "Python"),  # the probe alone
        ("trainer", "main", False, "the host code"),
    ],
)
def test_one_sign_of_python_is_enough(tmp_path: Path, process: str, thread: str, probed: bool, host: str) -> None:
    report = Report()
    main = report.process(1, name=process).thread(1, thread)
    for i in range(8):
        launch_bound(main, i * PERIOD)
        main.add_range(f"step {i}", i * PERIOD, i * PERIOD + 990 * US, domain="nsysx" if probed else "")
    assert judged(report, tmp_path).host == host

"""NSX103, 107, 108, 109, 115, 190: numbers that are read wrongly, steps that stand out, captures that lack something."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from nsysx.model import Finding, Row
from tests.analyses.test_events import read
from tests.analyses.test_kernel_spread import MIB, Line
from tests.analyses.test_stopwatch import body
from tests.builder import Report
from tests.findings import Program, empty, findings_alone, healthy, only_finding, stepless
from tests.ranks.test_rank_table import ALL_REDUCE

MS = 1_000_000


def of(report: Report, folder: Path, code: str) -> Finding:
    """Return the only finding of one rule."""
    return only_finding(code, report.write(folder / "r.sqlite"))


def warming(program: Program, number: int) -> None:
    """A healthy step; the first also loads code for 50 ms."""
    if number == 0:
        program.call("cuLibraryLoadData", 50_000)
    healthy(program, number)


def test_what_is_paid_before_the_steady_steps_is_clear_and_named(tmp_path: Path) -> None:
    finding = Program().steps(warming).finding(tmp_path, "NSX103")
    assert finding.verdict == "clear"
    assert "50." in finding.detail
    assert "a clock over the first 7 steps would read 11.14 ms" in finding.detail


def test_a_window_with_the_first_step_holds_what_is_paid_once(tmp_path: Path) -> None:
    finding = Program().steps(warming).finding(tmp_path, "NSX103", steps="all")
    assert finding.verdict == "found"
    assert finding.saving_ns_per_step is None
    assert finding.evidence[0]["name"] == "cuLibraryLoadData"


def test_loading_in_steady_steps_is_found(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        program.call("cuLibraryLoadData", 600)
        healthy(program, number)

    finding = Program().steps(body).finding(tmp_path, "NSX103")
    assert finding.verdict == "found"
    assert finding.cost_ns_per_step == pytest.approx(600_000, rel=0.02)
    assert empty().finding(tmp_path, "NSX103").verdict == "cannot_tell"


def timed(gpu_start: int) -> Report:
    """Events around a kernel of 30 us that starts late, behind an idle stream, or at once."""
    report = Report()
    main = report.process(100).thread(100)
    for i in range(4):
        at = 1_000_000 * i
        main.launch(at=at, dur=1_000, kernel="flush", gpu_start=at + 2_000, gpu_dur=98_000)
        main.event_record(1, at=at + 5_000)
        main.launch(at=at + gpu_start - 90_000, dur=5_000, gpu_start=at + gpu_start, gpu_dur=30_000)
        main.event_record(2, at=at + gpu_start - 70_000)
        read(main, 1, 2, at=at + 500_000)
    return report


def test_an_event_window_that_counts_the_host_in_is_inflated(tmp_path: Path) -> None:
    finding = of(timed(300_000), tmp_path, "NSX107")
    assert finding.verdict == "found"
    assert finding.saving_ns_per_step is None
    assert "the kernels take 30.0 us" in finding.title
    assert of(timed(100_000), tmp_path, "NSX107").verdict == "clear"
    assert Program().steps(healthy).finding(tmp_path, "NSX107").verdict == "cannot_tell"


def test_a_cold_cache_is_named(tmp_path: Path) -> None:
    line = Line()
    for i in range(30):
        if i % 2:
            line.copy(200 * MIB, 50_000)
        line.run("k", round((60_000 if i % 2 else 40_000) * (1 + 0.01 * random.Random(i).uniform(-1, 1))))
    finding = of(line.report, tmp_path, "NSX108")
    assert finding.verdict == "found"
    assert "cold L2" in finding.title
    assert finding.saving_ns_per_step is None


def test_ten_runs_from_the_cache_and_thirty_without_it(tmp_path: Path) -> None:
    """A benchmark without steps: what it times is a small part of what runs, and its times are of two kinds."""
    line = Line()
    for i in range(40):
        if i >= 10:
            line.copy(400 * MIB, 170_000)
        line.run("k", round((24_000 if i < 10 else 29_000) * (1 + 0.005 * random.Random(i).uniform(-1, 1))))
    for i in range(10):  # other work, which would hide a pair as small as this
        line.run(f"other{i}", 3_000_000)
    finding = of(line.report, tmp_path, "NSX108")
    assert finding.verdict == "found"
    assert "cold L2" in finding.title
    assert "29.0 us" in finding.detail and "24.0 us" in finding.detail


def test_what_reads_true_in_the_median_is_not_inflated(tmp_path: Path) -> None:
    """One window of ten holds a pause: the mean is off, what people read is not."""
    report = Report()
    main = report.process(100).thread(100)
    for i in range(10):
        at, late = 3_000_000 * i, 900_000 if i == 4 else 0
        main.launch(at=at, dur=1_000, kernel="flush", gpu_start=at + 2_000, gpu_dur=98_000)
        main.event_record(1, at=at + 5_000)
        main.launch(at=at + 10_000 + late, dur=5_000, gpu_start=at + 100_000 + late, gpu_dur=300_000)
        main.event_record(2, at=at + 20_000 + late)
        read(main, 1, 2, at=at + 2_500_000)
    assert of(report, tmp_path, "NSX107").verdict == "clear"


def test_events_that_ddp_reads_for_itself_are_nobodys_clock(tmp_path: Path) -> None:
    report = timed(300_000)
    main = report.processes[0].thread(100)
    assert of(report, tmp_path, "NSX107").verdict == "found"
    for i in range(4):
        main.add_range(":DistributedDataParallel", 1_000_000 * i + 450_000, 1_000_000 * i + 900_000, domain="nsysx")
    assert of(report, tmp_path, "NSX107").verdict == "clear"


def _rank(folder: Path, module: str) -> Finding:
    """Return NSX107 of a rank whose event pairs lie in a module."""
    report = timed(300_000)
    main = report.processes[0].thread(100)
    for i in range(4):
        at = 1_000_000 * i
        main.add_range(f"step {i}", at, at + 950_000, domain="nsysx")
        main.add_range(module, at + 1_000, at + 900_000, domain="nsysx")
        main.launch(at=at + 905_000, dur=2_000, kernel=ALL_REDUCE, gpu_start=at + 908_000, gpu_dur=20_000, stream=20)
    folder.mkdir()
    return of(report, folder, "NSX107")


def test_events_of_the_wrapper_of_a_rank_are_no_clocks_of_the_program(tmp_path: Path) -> None:
    assert _rank(tmp_path / "a", ":Net").verdict == "found"
    for name in (":DistributedDataParallel", "net:DistributedDataParallel", ":FullyShardedDataParallel"):
        assert _rank(tmp_path / name.strip(":"), name).verdict == "clear"


@pytest.mark.parametrize(
    ("numbers", "verdict"), [((4, 5, 6, 7), "clear"), ((9, 99, 199, 299), "clear"), ((9, 10, 11, 12), "found")]
)
def test_passes_in_which_the_wrapper_times_itself_are_told_by_their_numbers(
    tmp_path: Path, numbers: tuple[int, ...], verdict: str
) -> None:
    """Where modules are marked in few steps the wrapper's forward has no name in the others. It times ten passes and every hundredth."""
    report = timed(300_000)
    main = report.processes[0].thread(100)
    for i, number in enumerate((*numbers, 300)):
        at = 1_000_000 * i
        main.add_range(f"step {number}", at, at + 950_000, domain="nsysx")
        main.launch(at=at + 905_000, dur=2_000, kernel=ALL_REDUCE, gpu_start=at + 908_000, gpu_dur=20_000, stream=20)
    main.add_range(":DistributedDataParallel", 4_001_000, 4_900_000, domain="nsysx")
    assert of(report, tmp_path, "NSX107").verdict == verdict


def test_equal_kernels_are_clear_and_few_cannot_be_told(tmp_path: Path) -> None:
    assert Program().steps(healthy).finding(tmp_path, "NSX108").verdict == "clear"
    assert empty().finding(tmp_path, "NSX108").verdict == "cannot_tell"


def test_what_makes_a_step_slow_is_named(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        healthy(program, number)
        program.sync()
        if number == 6:
            program.host(8_000)

    finding = Program().steps(body, 10).finding(tmp_path, "NSX109")
    assert finding.verdict == "found"
    assert finding.title.startswith("Step 6 takes 12.01 ms: GPU idle, host code")
    assert finding.evidence[0]["more in slow steps_ns"] == pytest.approx(8_000_000, rel=0.02)


def paused(kind: str, us: float, **facts: object) -> Callable[[Program], None]:
    """Return what stops a program for ``us`` in a pause that the probe notes."""

    def stop(program: Program) -> None:
        program.host(us)
        said = {"ago_ns": 0, "ns": int(us * 1_000), "thread": 100, **facts}
        program.main.mark(f"{kind} {json.dumps(said)}", at=program.t, domain="nsysx")

    return stop


def every(n: int, stop: Callable[[Program], None]) -> Callable[[Program, int], None]:
    """Return steps that the GPU limits, with a wait, and every n-th of them with a pause between two launches."""

    def body(program: Program, number: int) -> None:
        healthy(program, number)
        program.sync()
        program.launch(20)
        if number % n == n - 1:
            stop(program)
        program.launch(20)

    return body


def test_garbage_collections_that_make_steps_slow_are_named_with_their_period(tmp_path: Path) -> None:
    stop = paused("gc", 8_000, generation=2, collected=5)
    found = Program().steps(every(5, stop), 26)
    finding = found.finding(tmp_path, "NSX109")
    assert finding.verdict == "found"
    assert finding.title == "Every 5th step takes 12.04 ms: garbage collection"
    assert "5 garbage collections (5 of them full)" in finding.detail
    assert "Look for what happens" not in finding.detail
    assert "gc.freeze()" in finding.fix
    row = next(r for r in finding.evidence if r["part"] == "garbage collection")
    assert row["more in slow steps_ns"] == pytest.approx(8_000_000, rel=0.01)
    (stall,) = found.findings(tmp_path, "NSX114")
    assert stall.title.endswith(": garbage collection")
    assert "100 % of that is garbage collection" in stall.detail


def test_a_recompilation_is_named_with_its_reason(tmp_path: Path) -> None:
    stop = paused("compile", 9_000, id="0/1", function="forward", reason="0/0: len(x) == 4")
    finding = Program().steps(every(4, stop), 14).finding(tmp_path, "NSX109")
    assert "Every 4th step takes 13.04 ms: recompilation by torch.compile" in finding.title
    assert "len(x) == 4" in finding.detail


@pytest.mark.parametrize(
    ("file", "where"),
    [
        ("model.py", {"file": "model.py", "line": 12}),
        ("/env/lib/torch/_dynamo/external_utils.py", {"near": "between calls of net"}),
    ],
)
def test_a_recompilation_has_a_place(tmp_path: Path, file: str, where: dict[str, object]) -> None:
    """The line of the function that was compiled; where that is PyTorch's own wrapper, the part of the program that waited for it."""
    stop = paused("compile", 9_000, id="0/1", function="forward", file=file, line=12, reason="0/0: len(x) == 4")
    finding = Program().steps(every(4, stop), 14).finding(tmp_path, "NSX109")
    assert "recompilation" in finding.title
    assert finding.where == where


def test_a_pause_that_nothing_explains_is_between_two_parts_of_the_program(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        healthy(program, number)
        if number == 6:
            program.sync()
            program.host(9_000)
        with program.range("optimizer AdamW"):
            program.launch(50)

    finding = Program().steps(body, 12).finding(tmp_path, "NSX109")
    assert finding.where == {"near": "between net and the next AdamW.step"}


def test_a_recompilation_that_does_not_come_back_is_in_no_steady_step(tmp_path: Path) -> None:
    stop = paused("compile", 9_000, id="0/1", function="forward", reason="0/0: len(x) == 4")
    finding = Program().steps(every(9, stop), 12).finding(tmp_path, "NSX109")
    assert finding.verdict == "clear"


def test_a_named_cause_saves_what_the_mean_step_loses_to_it(tmp_path: Path) -> None:
    """Every third step compiles for 90 ms: 30 ms of the mean step, more than the usual step has."""
    stop = paused("compile", 90_000, id="0/1", function="forward", reason="0/0: len(x) == 4")
    finding = Program().steps(every(3, stop), 26).finding(tmp_path, "NSX109")
    assert "Every 3rd step takes 94.04 ms: recompilation by torch.compile" in finding.title
    assert finding.saving_ns_per_step == pytest.approx(30_000_000, rel=0.07)
    assert finding.cost_ns_per_step is not None
    assert finding.cost_ns_per_step == pytest.approx(30_000_000, rel=0.07)
    assert not finding.saving.bound


def saving(every: int, megabytes: int) -> Callable[[Program, int], None]:
    """Return steps of which every n-th reads so much back, tensor by tensor, and writes it for 40 ms."""

    def body(program: Program, number: int) -> None:
        healthy(program, number)
        program.sync()
        program.launch(20)
        if number % every == every - 1:
            for _ in range(4):
                program.host(10_000)
                program.main.memcpy(
                    program.t, 900_000, kind="DtoH", bytes=megabytes << 18, gpu_start=program.t + 10_000, gpu_dur=800_000
                )  # fmt: skip
                program.t += 900_000
        program.launch(20)

    return body


def test_a_checkpoint_is_told_by_what_it_copies_to_the_host(tmp_path: Path) -> None:
    finding = Program().steps(saving(10, 256), 32).finding(tmp_path, "NSX109")
    assert "Every 10th step takes 47.64 ms: a checkpoint or another large read-back" in finding.title
    assert "copies 256.0 MiB to the host, the others 0 B" in finding.detail
    assert finding.saving.bound
    assert finding.saving_ns_per_step == pytest.approx(4_360_000, rel=0.05)


@pytest.mark.parametrize(
    ("settings", "usual", "told", "line"),
    [
        ({"saves": []}, False, ": a large read-back", 30),
        ({"saves": []}, True, ": a checkpoint or another large read-back", None),  # the line runs in usual steps, too
        ({}, False, ": a checkpoint or another large read-back", 30),  # whether it saves is not known
        ({"saves": [{"place": "/job/run.py:9", "ns": 5}]}, False, ": a checkpoint or another large read-back", 9),
    ],
)
def test_a_read_back_is_at_the_line_that_was_seen_in_long_steps(
    settings: Row, usual: bool, told: str, line: int | None, tmp_path: Path
) -> None:
    long = {"steps": 3, "samples": 10, "places": [["/job/run.py", 30, "record", 9, usual]], "entries": []}
    record = {"pid": 100, "backend": "nvtx", "ranges": {}, "long_steps": long, "settings": settings}
    (tmp_path / "r.run.json").write_text(json.dumps({"probe": [record]}))
    finding = Program().steps(saving(10, 256), 32).finding(tmp_path, "NSX109")
    assert finding.title.endswith(told) and finding.where.get("line") == line
    assert finding.fix.startswith("Compute on the GPU") is told.endswith(": a large read-back")


def test_a_checkpoint_is_told_beside_a_step_that_is_slow_for_another_reason(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        saving(16, 256)(program, number)
        program.host(12_000 if number == 5 else 0)

    finding = Program().steps(body, 32).finding(tmp_path, "NSX109")
    assert "a checkpoint or another large read-back" in finding.title
    assert "1 of them copies 256.0 MiB to the host" in finding.detail  # the last step is no steady one
    assert finding.saving_ns_per_step == pytest.approx(43_600_000 / 31, rel=0.05)


@pytest.mark.parametrize("slow_ms", [0, 94])
def test_slow_steps_cost_what_they_take_without_the_profiler(tmp_path: Path, slow_ms: int) -> None:
    """Bare, every fifth step takes 94 ms longer than the others' 4: that is 18.8 of 22.8 ms a step, whatever the window holds."""
    usual = 4 * MS
    lengths = [usual + slow_ms * MS * (i % 5 == 4) for i in range(60)]
    timed = {"lengths_ns": lengths, "after_ns": [], "clock": "gpu", "where": "between the windows", "detached": False}
    record = {"probe": [{"pid": 100, "unrecorded_steps": timed, "window_pauses_ns": [MS, MS]}]}
    (tmp_path / "r.run.json").write_text(json.dumps(record))
    finding = Program().steps(saving(10, 256), 32).finding(tmp_path, "NSX109")
    recorded = pytest.approx(4 * MS, rel=0.2)  # at most what the shown step has beyond the usual one
    assert finding.saving_ns_per_step == (pytest.approx(18.8 * MS, rel=0.02) if slow_ms else recorded)


def test_what_every_nth_step_does_costs_its_share_of_the_average_step_without_a_line(tmp_path: Path) -> None:
    """40 ms of host code in every 8th step are 5 ms a step; steps that are long now and then have no such figure."""

    def longer(at: Callable[[int], bool]) -> Callable[[Program, int], None]:
        def body(program: Program, number: int) -> None:
            healthy(program, number)
            program.sync()
            program.host(40_000 if at(number) else 10)

        return body

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    finding = Program().steps(longer(lambda n: n % 8 == 7), 32).finding(tmp_path / "a", "NSX109")
    assert finding.title.startswith("Every 8th step takes") and "each 8th step" in finding.fix
    assert finding.saving.bound and 3.5 * MS < (finding.saving.likely_ns or 0) < 5.5 * MS
    finding = Program().steps(longer(lambda n: n in (5, 6, 20)), 32).finding(tmp_path / "b", "NSX109")
    assert "Every" not in finding.title and finding.saving.likely_ns is None


def test_a_small_read_back_explains_no_slow_step(tmp_path: Path) -> None:
    finding = Program().steps(saving(10, 1), 32).finding(tmp_path, "NSX109")
    assert "a checkpoint" in finding.title  # a MiB is the least
    body = saving(10, 0)
    finding = Program().steps(body, 32).finding(tmp_path, "NSX109")
    assert "GPU idle, host code" in finding.title
    assert finding.unexplained and finding.saving.bound


def test_a_collection_behind_which_the_gpu_works_explains_nothing(tmp_path: Path) -> None:
    """The step is slow for another reason: the collection costs no GPU time."""
    stop = paused("gc", 1_000, generation=2)

    def body(program: Program, number: int) -> None:
        healthy(program, number)
        if number == 6:
            stop(program)
        program.sync()
        if number == 6:
            program.host(8_000)

    finding = Program().steps(body, 10).finding(tmp_path, "NSX109")
    assert "GPU idle, host code" in finding.title
    assert "garbage" not in finding.title + finding.detail


def test_a_probe_that_heard_of_no_collection_sends_nobody_to_look_for_one(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        healthy(program, number)
        program.launch(20)
        program.sync()
        program.launch(20)
        if number == 6:
            program.host(8_000)
        program.launch(20)

    found = Program().steps(body, 10)
    assert "garbage collection" in found.finding(tmp_path, "NSX109").fix
    assert "garbage collection" in found.finding(tmp_path, "NSX114").detail
    found.main.mark('info {"pauses": true}', at=0, domain="nsysx")
    assert "garbage" not in found.finding(tmp_path, "NSX109").fix
    assert "garbage" not in found.finding(tmp_path, "NSX114").detail


def test_a_slow_clock_is_named_where_it_was_sampled(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        for _ in range(20):
            program.launch(2_000 if number in (6, 7) else 1_000)
        program.sync()

    program = Program().steps(body, 12)
    epoch = 1_795_228_332_660_273_255
    times = range(0, program.t, 1_000_000)
    windows = [(r["start"], r["end"]) for r in program.report.rows["NVTX_EVENTS"] if r["text"] in ("step 6", "step 7")]
    slow = [any(a <= t < b for a, b in windows) for t in times]
    samples = {"utc_ns": [epoch + t for t in times], "sm_mhz": [990 if s else 1980 for s in slow]}
    (tmp_path / "r.run.json").write_text(json.dumps({"clocks": {"devices": [samples]}}))
    finding = program.finding(tmp_path, "NSX109")
    assert "Steps 6 and 7 take 40.01 ms: a lower GPU clock" in finding.title
    assert "990 MHz in them and 1980 MHz in the others" in finding.detail
    samples["sm_mhz"] = [1980 for _ in times]
    (tmp_path / "r.run.json").write_text(json.dumps({"clocks": {"devices": [samples]}}))
    assert "Steps 6 and 7 take 40.01 ms: more compute" in program.finding(tmp_path, "NSX109").title


def test_equal_steps_are_clear_and_few_cannot_be_told(tmp_path: Path) -> None:
    assert Program().steps(healthy).finding(tmp_path, "NSX109").verdict == "clear"
    assert Program().steps(healthy, 3).finding(tmp_path, "NSX109").verdict == "cannot_tell"
    assert stepless(healthy).finding(tmp_path, "NSX109").verdict == "cannot_tell"


def test_a_clock_that_reads_the_work_of_others_is_wrong(tmp_path: Path) -> None:
    report = Report()
    body(report, "after")
    finding = of(report, tmp_path, "NSX115")
    assert finding.verdict == "found"
    assert "a synchronize after only 123 us" in finding.detail
    assert finding.title == "Clocks around mine read 11.0 us to 123 us, the kernel takes 17.0 us"


def test_a_clock_between_two_synchronizes_reads_a_long_kernel_right_and_a_short_one_wrong(tmp_path: Path) -> None:
    report = Report()
    body(report, "both", kernel=70_000)
    assert of(report, tmp_path, "NSX115").verdict == "clear"
    report = Report()
    body(report, "both")  # 33 us for a kernel of 17
    finding = of(report, tmp_path, "NSX115")
    assert finding.verdict == "found"
    assert "Even with both, 16.0 us of the reading is the launch" in finding.detail
    report = Report()
    body(report, "both", kernel=3_600)
    finding = of(report, tmp_path, "NSX115")
    assert "the kernel takes 3.6 us" in finding.title
    assert finding.fix.startswith("A kernel shorter than its launch")


def test_synchronize_around_nothing_recorded_cannot_be_told(tmp_path: Path) -> None:
    assert empty().finding(tmp_path, "NSX115").verdict == "cannot_tell"


def test_a_capture_that_lacks_something_says_what_to_do(tmp_path: Path) -> None:
    program = Program().steps(healthy)
    program.report.diagnostic("Some events were lost")
    finding = program.finding(tmp_path, "NSX190")
    assert finding.verdict == "found"
    assert any("Some events were lost" in row["detail"] for row in finding.evidence)


def test_a_good_capture_is_clear(tmp_path: Path) -> None:
    (tmp_path / "r.run.json").write_text('{"nsysx": "recorded"}')
    assert Program().steps(healthy).finding(tmp_path, "NSX190").verdict == "clear"


def test_a_fence_around_other_work_than_the_usual_reads_nothing_of_it(tmp_path: Path) -> None:
    """A clock that waits for a kernel cannot read less than it: here the fenced launches are of short work alone."""
    for short in (False, True):
        report = Report()
        main = report.process(100).thread(100)
        for i in range(24):
            at = 1_000_000 * i
            fenced = i % 3 == 0
            took = 10_000 if short and fenced else 100_000
            if fenced:
                main.sync("cudaDeviceSynchronize_v3020", at=at - 20_000, dur=2_000)
            main.launch(at=at, dur=5_000, kernel="relu_kernel", gpu_start=at + 8_000, gpu_dur=took)
            if fenced:
                main.sync("cudaDeviceSynchronize_v3020", at=at + 6_000, dur=took + 9_000)
        found = findings_alone("NSX115", report.write(tmp_path / f"{short}.sqlite"))
        assert (found[0].verdict == "found") is not short


@pytest.mark.parametrize(
    ("waits_each", "program", "fix"),
    [(1, "python", "A kernel shorter"), (1, "solver", "Synchronize before"), (40, "solver", None)],
)
def test_a_loop_that_waits_now_and_then_times_nothing(
    tmp_path: Path, waits_each: int, program: str, fix: str | None
) -> None:
    """A solver asks after many kernels whether it is done. What it asks after each of them is a clock, told in words of its language."""
    report = Report()
    main = report.process(100, name=program).thread(100, program)
    free = 0
    for i in range(160):
        at = 200_000 * i
        free = max(free, at + 8_000) + 100_000 + 150_000 * (i % waits_each != 0)
        main.launch(at=at, dur=5_000, kernel=f"sweep_kernel_{i % 2}", gpu_start=free - 100_000, gpu_dur=40_000)
        if i % waits_each == waits_each - 1:
            main.sync("cudaDeviceSynchronize_v3020", at=at + 6_000, dur=free - at)
    found = findings_alone("NSX115", report.write(tmp_path / "r.sqlite"))
    assert (found[0].verdict == "found") is (fix is not None)
    assert fix is None or str(found[0].fix).startswith(fix)


@pytest.mark.parametrize(("other_us", "verdict"), [(1_000, "found"), (100_000, "clear")])
def test_who_measures_measures_most_of_the_gpus_work(tmp_path: Path, other_us: int, verdict: str) -> None:
    """A program that waits for small kernels amid much larger work times none of them."""
    report = Report()
    body(report, "after")
    report.process(100).thread(100).launch(
        at=10**9, dur=5_000, kernel="scan", gpu_start=10**9 + 9_000, gpu_dur=other_us * 1000
    )
    assert of(report, tmp_path, "NSX115").verdict == verdict

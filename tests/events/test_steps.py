"""Where steps come from, which of them are steady, and how they tile the timeline of each device."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings

from nsysx import ids
from nsysx.errors import EXIT_EMPTY, EXIT_USAGE, NsysxError
from nsysx.events import attribute, correlate, nvtx_ranges, steps
from nsysx.events.steps import StepTable
from nsysx.reading.load import load
from tests import strategies
from tests.builder import Report, Thread
from tests.examples import examples

US = 1000
PERIOD = 1000 * US


def read(report: Report, folder: Path, **options: str) -> StepTable:
    trace = load(report.write(folder / "r.sqlite"))
    named = nvtx_ranges.read(trace)
    return steps.find(named, attribute.attribute(trace, correlate.correlate(trace), named), **options)


def spans(table: StepTable) -> list[tuple[int, int]]:
    return [tuple(r) for r in table.cpu.sort("start_ns").select("start_ns", "end_ns").rows()]


def work(main: Thread, at: int, *, kernels: int = 10, gpu_at: int | None = None, names: str = "abcdefghij") -> None:
    """Launch kernels of 50 us, one every 60; by default they run 10 us after their launch."""
    for k in range(kernels):
        t = at + k * 60 * US
        begin = t + 10 * US if gpu_at is None else gpu_at + k * 60 * US
        main.launch(t, 5 * US, kernel=names[k % len(names)], gpu_start=begin, gpu_dur=50 * US)


def loop(count: int, mark: Callable[[Thread, int, int], None], report: Report | None = None) -> tuple[Report, Thread]:
    """Steps of 1 ms with 10 kernels each; ``mark(thread, number, begin)`` adds what shows where they are."""
    report = report or Report()
    main = report.process(1).thread(1, "python")
    for i in range(count):
        work(main, i * PERIOD + 20 * US)
        mark(main, i, i * PERIOD)
    return report, main


def nothing(main: Thread, i: int, t: int) -> None: ...


def own_step(main: Thread, i: int, t: int) -> None:
    main.add_range(f"step {i}", t, t + 900 * US, domain="nsysx")


def user_step(main: Thread, i: int, t: int) -> None:
    main.add_range(f"iteration {i + 5}", t + 1, t + 901 * US)


def step_mark(main: Thread, i: int, t: int) -> None:
    main.mark(f"step {i}", t + 2)


def optimizer(main: Thread, i: int, t: int) -> None:
    main.add_range("optimizer.step", t + 800 * US, t + 850 * US)


def everything(main: Thread, i: int, t: int) -> None:
    for add in (own_step, user_step, step_mark, optimizer):
        add(main, i, t)


# --- sources, in their order ---------------------------------------------------------------------------------------------


def test_ranges_of_the_probe_come_first(tmp_path: Path) -> None:
    table = read(loop(5, everything)[0], tmp_path)
    assert (table.source, table.rule) == ("nsysx", "step ranges of the probe")
    assert spans(table) == [(i * PERIOD, i * PERIOD + 900 * US) for i in range(5)]
    assert table.cpu["number"].to_list() == table.cpu["index"].to_list() == list(range(5))


def numbered_step(main: Thread, i: int, t: int) -> None:
    main.add_range("step", t, t + 900 * US, domain="nsysx", registered=True)["int64Value"] = i + 7


def unnumbered_step(main: Thread, i: int, t: int) -> None:
    main.add_range("step", t, t + 900 * US, domain="nsysx", registered=True)


@pytest.mark.parametrize(
    ("called", "then", "number"),
    [("Net", "", -1), ("Other", "", 0), ("Net", "backward", 0)],
    ids=["same", "other", "trains"],
)
def test_the_first_call_of_a_program_that_only_infers_is_a_step(
    tmp_path: Path, called: str, then: str, number: int
) -> None:
    """The probe begins no step for it: it may be a look at shapes, or of another network."""

    def call(main: Thread, i: int, t: int) -> None:
        if i:
            main.add_range(f"step {i - 1}", t, t + 999 * US, domain="nsysx")
        main.add_range(f"evaluation {'Net' if i else called}", t + 2 * US, t + 700 * US, domain="nsysx")
        if i and then:
            main.add_range(then, t + 700 * US, t + 900 * US, domain="nsysx")

    table = read(loop(10, call)[0], tmp_path)
    assert table.source == "nsysx"
    assert table.cpu["number"].to_list() == [*([-1] if number else []), *range(9)]
    if number:
        assert spans(table)[0] == (2 * US, PERIOD)  # up to the next step


@pytest.mark.parametrize(
    ("step", "window", "first"), [(numbered_step, None, 7), (unnumbered_step, None, 0), (unnumbered_step, [7, 12], 7)]
)
def test_steps_of_one_text_are_told_apart_by_their_payload_or_by_order(
    step: Callable[[Thread, int, int], None], window: list[int] | None, first: int, tmp_path: Path
) -> None:
    report, _ = loop(5, step)
    (tmp_path / "r.run.json").write_text(json.dumps({"probe": [{"pid": 1, "capture_steps": window}]}))
    table = read(report, tmp_path)
    assert table.rule == "step ranges of the probe"
    assert table.cpu["number"].to_list() == list(range(first, first + 5))


def test_then_the_users_ranges(tmp_path: Path) -> None:
    def mine(main: Thread, i: int, t: int) -> None:
        for add in (user_step, step_mark, optimizer):
            add(main, i, t)

    table = read(loop(5, mine)[0], tmp_path)
    assert (table.source, table.rule) == ("user", "NVTX ranges named like steps")
    assert table.cpu["number"].to_list() == [5, 6, 7, 8, 9]
    assert table.cpu["index"].to_list() == [0, 1, 2, 3, 4]


def test_then_marks(tmp_path: Path) -> None:
    def mine(main: Thread, i: int, t: int) -> None:
        step_mark(main, i, t)
        optimizer(main, i, t)

    table = read(loop(5, mine)[0], tmp_path)
    assert (table.source, table.rule) == ("user", "NVTX marks named like steps")
    last = 4 * PERIOD + (20 + 9 * 60 + 5) * US
    assert spans(table) == [(i * PERIOD + 2, (i + 1) * PERIOD + 2) for i in range(4)] + [(4 * PERIOD + 2, last)]


def test_then_the_optimizer(tmp_path: Path) -> None:
    table = read(loop(5, optimizer)[0], tmp_path)
    assert (table.source, table.rule) == ("optimizer", "each step ends where the optimizer's step ends")
    ends = [i * PERIOD + 850 * US for i in range(5)]
    assert spans(table) == list(zip([20 * US, *ends[:-1]], ends, strict=True))
    assert table.cpu["number"].to_list() == [0, 1, 2, 3, 4]


def test_then_the_repeated_kernel_sequence(tmp_path: Path) -> None:
    table = read(loop(6, nothing)[0], tmp_path)
    assert table.source == "kernels"
    assert table.rule == "the repeated kernel sequence (no step range in the report)"
    # The last one ends with its own last call: nothing follows that would show where it ends.
    last = (5 * PERIOD + 20 * US, 5 * PERIOD + (20 + 9 * 60 + 5) * US)
    assert spans(table) == [*((i * PERIOD + 20 * US, (i + 1) * PERIOD + 20 * US) for i in range(5)), last]


@pytest.mark.parametrize(
    ("name", "first"),
    [("warm up", 3), ("gpu_warmup", 3), ("Warm-Up of the model", 3), ("forward all", 0), ("warmupper", 0)],
)
def test_repetitions_in_a_range_called_warm_up_are_no_steps(name: str, first: int, tmp_path: Path) -> None:
    report, main = loop(9, nothing)
    main.add_range(name, 0, 3 * PERIOD)
    assert spans(read(report, tmp_path))[0][0] == first * PERIOD + 20 * US


def test_what_repeats_behind_a_warm_up_of_another_kind_are_the_steps(tmp_path: Path) -> None:
    """A benchmark of the forward pass warms up with training steps: five of two kinds of work, then ten of one."""
    report = Report()
    main = report.process(1).thread(1, "python")
    at = 0
    for i in range(20):
        work(main, at + 20 * US)
        if i < 10 and i % 2:
            for k in range(12):
                main.launch(
                    at + (400 + 10 * k) * US,
                    5 * US,
                    kernel=f"backward_{k}",
                    gpu_start=at + (410 + 10 * k) * US,
                    gpu_dur=8 * US,
                )
        at += PERIOD
    assert len(read(report, tmp_path).cpu) < 20
    main.add_range("Warm-up", 0, 10 * PERIOD)
    table = read(report, tmp_path)
    assert table.source == "kernels" and table.cpu.height == 10
    assert int(table.cpu["start_ns"].to_list()[0]) >= 10 * PERIOD


def test_a_program_that_only_warms_up_keeps_its_steps(tmp_path: Path) -> None:
    report, main = loop(6, nothing)
    main.add_range("warmup", 0, 6 * PERIOD)
    assert len(spans(read(report, tmp_path))) == 6


def test_else_the_whole_capture(tmp_path: Path) -> None:
    report = Report()
    main = report.process(1).thread(1)
    for i in range(30):
        main.launch(i * 100, 10, kernel=f"k{i}", gpu_start=i * 100 + 20, gpu_dur=50)
    table = read(report, tmp_path)
    assert table.source == "capture"
    assert table.rule.startswith("the whole capture as one step: no step range")
    assert spans(table) == [(0, 2970)]
    assert table.whole
    assert table.steady == (0, 0)
    assert table.windows.select("start_ns", "end_ns").rows() == [(20, 2970)]


def test_one_mark_or_one_optimizer_makes_no_steps(tmp_path: Path) -> None:
    def once(main: Thread, i: int, t: int) -> None:
        if i == 2:
            step_mark(main, i, t)
            optimizer(main, i, t)

    assert read(loop(6, once)[0], tmp_path).source == "kernels"


@pytest.mark.parametrize(("name", "processes"), [("evaluation", [1, 2]), ("warm-up", [2])])
def test_a_rank_that_evaluates_for_all_in_a_short_window_keeps_its_steps(
    tmp_path: Path, name: str, processes: list[int]
) -> None:
    """More than half of its GPU work is in no step."""
    report, main = loop(6, own_step)
    for i in range(6, 30):
        work(main, i * PERIOD + 20 * US, names="vwxyz")
        main.add_range(f"{name} Net", i * PERIOD, i * PERIOD + 900 * US, domain="nsysx")
    other = report.process(2).thread(2)
    for i in range(6):
        work(other, i * PERIOD + 20 * US)
        own_step(other, i, i * PERIOD)
    table = read(report, tmp_path)
    assert table.source == "nsysx"
    assert [ids.pid_of(p) for p in table.cpu["process"].unique().sort().to_list()] == processes


@pytest.mark.parametrize("of_both", [0, 1])
def test_evaluations_that_come_often_are_no_rollouts_where_another_rank_has_steps(tmp_path: Path, of_both: int) -> None:
    """Behind every second step come four rounds of one process, and as many of the other as ``of_both`` says."""
    report, main = loop(0, own_step)
    other = report.process(2).thread(2)
    t = 0
    for i in range(8):
        for thread in (main, other):
            work(thread, t + 20 * US)
            own_step(thread, i, t)
        t += PERIOD
        for k in range(4 if i % 2 else 0):
            for thread in (main, other) if k < of_both else (main,):
                work(thread, t + k * PERIOD + 20 * US, names="vwxyz")
                thread.add_range("evaluation Net", t + k * PERIOD, t + k * PERIOD + 900 * US, domain="nsysx")
        t += 4 * PERIOD if i % 2 else 0
    table = read(report, tmp_path)
    assert table.source == "nsysx" and table.cpu["process"].n_unique() == 2


@pytest.mark.parametrize(("every", "source"), [(5, "nsysx"), (3, "optimizer"), (2, "optimizer")])
def test_what_most_steps_lack_is_no_part_of_them_however_long_it_takes(tmp_path: Path, every: int, source: str) -> None:
    """An index made anew behind every fifth step takes most of the time; a rollout behind every third one is of the iteration."""
    report, main = loop(0, own_step)
    t = 0
    for i in range(20):
        work(main, t + 20 * US)
        own_step(main, i, t)
        optimizer(main, i, t)
        t += PERIOD
        for k in range(8 if i % every == every - 1 else 0):
            work(main, t + k * PERIOD + 20 * US, names="vwxyz")
            main.add_range("evaluation Net", t + k * PERIOD, t + k * PERIOD + 900 * US, domain="nsysx")
        t += 8 * PERIOD if i % every == every - 1 else 0
    table = read(report, tmp_path)
    assert table.source == source
    if every == 5:  # too few to tell whether the whole of it is the step
        assert table.between["evaluation"].to_list() == [True] * 3
        lasting = table.gpu.filter(pl.col("index") < 19).select(pl.col("end_ns") - pl.col("start_ns"))
        assert lasting.to_series().to_list() == [PERIOD] * 19


def test_ranges_that_hold_little_of_the_work_are_passed_over(tmp_path: Path) -> None:
    """Step ranges around three steps of warm-up, the steps proper without any."""
    table = read(loop(12, lambda m, i, t: own_step(m, i, t) if i < 3 else None)[0], tmp_path)
    assert table.source == "kernels"
    assert "step ranges of the probe hold less than half of the GPU work" in table.rule


@pytest.mark.parametrize(
    ("before", "step", "source"),
    [("abcdefghij", own_step, "nsysx"), ("klmnopqrst", own_step, "kernels"), ("abcdefghij", user_step, "kernels")],
)
def test_rounds_before_the_probe_knew_the_loop_do_not_count(
    tmp_path: Path, before: str, step: Callable[[Thread, int, int], None], source: str
) -> None:
    """Twenty rounds pass until eight are marked; other work as long as that, or ranges of the program, would be no steps."""
    report, main = loop(0, nothing)
    for i in range(28):
        work(main, i * PERIOD + 20 * US, names=before if i < 20 else "abcdefghij")
        if i >= 20:
            step(main, i, i * PERIOD)
    assert read(report, tmp_path).source == source


def test_nothing_but_ranges(tmp_path: Path) -> None:
    report = Report()
    main = report.process(1).thread(1)
    for i in range(5):
        main.add_range(f"step {i}", i * 100, i * 100 + 90)
    table = read(report, tmp_path)
    assert (table.source, table.cpu.height) == ("user", 5)
    assert table.gpu.height == table.windows.height == 0
    assert table.steady is not None


# --- shapes of training --------------------------------------------------------------------------------------------------


def test_gradient_accumulation(tmp_path: Path) -> None:
    """Four passes per optimizer step: a step is what the optimizer ends, and its GPU tile holds all four."""
    table = read(loop(16, lambda m, i, t: optimizer(m, i, t) if i % 4 == 3 else None)[0], tmp_path)
    assert table.source == "optimizer"
    assert [e for _, e in spans(table)] == [(4 * i + 3) * PERIOD + 850 * US for i in range(4)]
    tiles = table.gpu["end_ns"] - table.gpu["start_ns"]
    assert tiles.to_list()[:3] == [4 * PERIOD] * 3


def test_several_optimizers(tmp_path: Path) -> None:
    """A GAN: the second optimizer of a step does not end one."""

    def two(main: Thread, i: int, t: int) -> None:
        main.add_range("optimizer SGD", t + 300 * US, t + 310 * US, domain="nsysx")
        main.add_range("optimizer Adam", t + 800 * US, t + 850 * US, domain="nsysx")

    table = read(loop(5, two)[0], tmp_path)
    assert table.source == "optimizer"
    assert [e for _, e in spans(table)] == [i * PERIOD + 310 * US for i in range(5)]


def test_two_optimizers_of_one_name_take_turns(tmp_path: Path) -> None:
    """A GAN with two Adams: each cycle launches 6 kernels for the one and 4 for the other."""
    report = Report()
    main = report.process(100).thread(100, "python")
    t = 20 * US
    for _ in range(10):
        for kernels in (6, 4):
            for _ in range(kernels):
                main.launch(t, 2 * US, kernel="w", gpu_start=t + 5 * US, gpu_dur=3 * US)
                t += 10 * US
            with_optimizer = t
            main.launch(t, 2 * US, kernel="adam", gpu_start=t + 5 * US, gpu_dur=3 * US)
            t += 10 * US
            main.add_range("optimizer Adam", with_optimizer - US, t - US, domain="nsysx")
    table = read(report, tmp_path)
    assert table.source == "optimizer"
    assert table.cpu.height == 10


def test_each_process_has_the_source_that_suits_it(tmp_path: Path) -> None:
    """A process without ranges that works more beside it does not take the steps from the one that marks them."""
    report = Report()
    main, other = report.process(100).thread(100, "python"), report.process(200).thread(200, "python")
    for i in range(8):
        t = 20 * US + i * PERIOD
        main.add_range(f"step {i}", t, t + 900 * US)
        main.launch(t + 10 * US, 5 * US, kernel="w", gpu_start=t + 20 * US, gpu_dur=300 * US)
        for k in range(3):
            at = t + k * 300 * US
            other.launch(at, 5 * US, kernel=f"x{(i * k) % 7}", gpu_start=at + 9 * US, gpu_dur=280 * US, device=1)
    table = read(report, tmp_path)
    assert (table.source, table.cpu.height) == ("user", 8)
    assert table.cpu["process"].n_unique() == 1


def test_inference_only(tmp_path: Path) -> None:
    def forward(main: Thread, i: int, t: int) -> None:
        main.add_range("forward", t, t + 800 * US, domain="nsysx")

    table = read(loop(8, forward)[0], tmp_path)
    assert table.source == "kernels"
    assert table.cpu.height == 8


@pytest.mark.parametrize("named", [True, False])
def test_evaluation_in_between_is_a_row_of_its_own(tmp_path: Path, named: bool) -> None:
    report = Report()
    main = report.process(1).thread(1)
    for i in range(8):
        t = i * PERIOD
        work(main, t + 20 * US)
        if i != 5:
            own_step(main, i if i < 5 else i - 1, t)
        elif named:
            main.add_range("evaluation", t, t + 900 * US, domain="nsysx")
    table = read(report, tmp_path)
    assert table.cpu["number"].to_list() == list(range(7))
    assert (table.gpu["end_ns"] - table.gpu["start_ns"]).to_list()[:6] == [PERIOD] * 6
    begin = 5 * PERIOD + 30 * US
    assert table.between.select("index", "start_ns", "end_ns", "cpu_start_ns", "cpu_end_ns", "evaluation").rows() == [
        (4, begin, begin + PERIOD, 4 * PERIOD + 900 * US, 6 * PERIOD, named)
    ]
    assert table.steady == (0, 3)  # the longest stretch without it, less the step that it ends


def test_what_follows_every_step_is_part_of_the_loop(tmp_path: Path) -> None:
    def fetch(main: Thread, i: int, t: int) -> None:
        own_step(main, i, t)
        main.memcpy(t + 910 * US, US, gpu_start=t + 920 * US, gpu_dur=30 * US)

    table = read(loop(8, fetch)[0], tmp_path)
    assert (table.between.height, table.steady) == (0, (0, 6))
    assert (table.gpu["end_ns"] - table.gpu["start_ns"]).to_list()[:7] == [PERIOD] * 7


def test_a_pause_of_the_host_between_two_steps_is_in_none(tmp_path: Path) -> None:
    report = Report()
    main = report.process(1).thread(1)
    for i in range(10):
        t = i * PERIOD + (i > 6) * 20 * PERIOD  # 20 ms of writing a checkpoint
        work(main, t + 20 * US)
        own_step(main, i, t)
    table = read(report, tmp_path)
    assert table.between.select("index", "start_ns", "end_ns").rows() == [
        (6, 6 * PERIOD + 900 * US, 27 * PERIOD + 30 * US)
    ]
    assert table.steady == (0, 5)


def test_evaluation_inside_what_ends_with_the_optimizer_is_taken_out(tmp_path: Path) -> None:
    report = Report()
    main = report.process(1).thread(1)
    for i in range(10):
        t = i * PERIOD
        work(main, t + 20 * US)
        if i == 4:
            main.add_range("evaluation", t, t + 900 * US)
        else:
            optimizer(main, i, t)
    table = read(report, tmp_path)
    assert (table.source, table.cpu.height) == ("optimizer", 9)
    assert (table.cpu["start_ns"][4], table.cpu["end_ns"][4]) == (4 * PERIOD + 900 * US, 5 * PERIOD + 850 * US)
    assert (table.gpu["end_ns"] - table.gpu["start_ns"]).to_list()[:8] == [PERIOD] * 8
    assert table.between["evaluation"].to_list() == [True]


def test_inference_is_no_evaluation_between_its_own_steps(tmp_path: Path) -> None:
    """Each token is a pass in eval() mode and some sampling: the pass is the step."""

    def token(main: Thread, i: int, t: int) -> None:
        own_step(main, i, t)
        main.add_range("evaluation GPT2", t + 10 * US, t + 500 * US, domain="nsysx")

    table = read(loop(10, token)[0], tmp_path)
    assert spans(table) == [(i * PERIOD, i * PERIOD + 900 * US) for i in range(10)]
    assert (table.between.height, table.steady) == (0, (0, 8))


@pytest.mark.parametrize("over", [3, 90])
def test_ranges_that_overlap_a_little_are_neighbors(tmp_path: Path, over: int) -> None:
    def lapping(main: Thread, i: int, t: int) -> None:
        main.add_range(f"step {i}", t, t + PERIOD + over * US, start_end=True)

    table = read(loop(5, lapping)[0], tmp_path)
    assert spans(table)[:4] == [(i * PERIOD, (i + 1) * PERIOD) for i in range(4)]


def test_a_range_inside_another_is_no_step(tmp_path: Path) -> None:
    report, main = loop(4, own_step)
    main.add_range("step 99", PERIOD + 100, PERIOD + 500 * US, domain="nsysx")
    assert read(report, tmp_path).cpu["number"].to_list() == [0, 1, 2, 3]


@pytest.mark.parametrize("count", [1, 2])
def test_host_time_counts_in_captures_of_few_steps(tmp_path: Path, count: int) -> None:
    """300 us of host code, then 545 us of launches, then host code again: the only step is as long as its range."""
    report = Report()
    main = report.process(1).thread(1)
    for i in range(count):
        own_step(main, i, i * PERIOD)
        work(main, i * PERIOD + 300 * US)
    gpu = read(report, tmp_path).gpu
    assert gpu["start_ns"].to_list() == [i * PERIOD for i in range(count)]
    assert gpu["end_ns"].to_list() == [*(i * PERIOD for i in range(1, count)), (count - 1) * PERIOD + 900 * US]


def test_a_truncated_last_step_is_not_steady(tmp_path: Path) -> None:
    report, main = loop(6, own_step)
    main.add_range("step 6", 6 * PERIOD, None, domain="nsysx")
    work(main, 6 * PERIOD + 20 * US, kernels=2)
    table = read(report, tmp_path)
    assert table.cpu["cut"].to_list() == [False] * 6 + [True]
    assert table.steady is not None
    assert table.steady[1] < 6


def test_every_process_has_its_own_steps(tmp_path: Path) -> None:
    report = Report()
    for pid, count in ((1, 4), (2, 6)):
        main = report.process(pid).thread(pid)
        for i in range(count):
            work(main, i * PERIOD + 20 * US)
            own_step(main, i, i * PERIOD)
    table = read(report, tmp_path)
    assert dict(table.cpu.group_by("process").len().rows()) == {1 << 24 | 1: 4, 1 << 24 | 2: 6}
    assert table.process == 1 << 24 | 2  # the one with more GPU work is shown


# --- GPU steps -----------------------------------------------------------------------------------------------------------


def test_gpu_steps_begin_with_their_first_op(tmp_path: Path) -> None:
    """The CPU runs ahead: step i is launched at once, and its work runs a whole step later."""
    report = Report()
    main = report.process(1).thread(1)
    for i in range(5):
        t = i * 100 * US
        main.add_range(f"step {i}", t, t + 99 * US)
        for k in range(10):
            main.launch(t + k * US, 500, kernel="k", gpu_start=i * PERIOD + 30 * US + k * 60 * US, gpu_dur=50 * US)
    table = read(report, tmp_path)
    borders = [i * PERIOD + 30 * US for i in range(5)]
    assert table.gpu["start_ns"].to_list() == borders
    assert table.gpu["end_ns"].to_list() == [*borders[1:], 4 * PERIOD + (30 + 9 * 60 + 50) * US]


def test_prefetch_moves_a_border_and_opens_no_gap(tmp_path: Path) -> None:
    """Another stream copies the next batch early: launched in step i + 1, run before the last kernel of step i began."""
    report, main = loop(5, own_step)
    for i in range(1, 5):
        main.memcpy(i * PERIOD + US, US, gpu_start=i * PERIOD - 500 * US, gpu_dur=100 * US, stream=13)
    gpu = read(report, tmp_path).gpu
    assert gpu["start_ns"].to_list()[1:] == [i * PERIOD - 500 * US for i in range(1, 5)]
    assert gpu["end_ns"].to_list()[:-1] == gpu["start_ns"].to_list()[1:]


def test_a_step_without_gpu_work_is_an_empty_tile(tmp_path: Path) -> None:
    report = Report()
    main = report.process(1).thread(1)
    for i in range(4):
        own_step(main, i, i * PERIOD)
        if i != 2:
            work(main, i * PERIOD + 20 * US)
    gpu = read(report, tmp_path).gpu
    lengths = (gpu["end_ns"] - gpu["start_ns"]).to_list()
    assert gpu.height == 4
    assert lengths[2] == 0
    assert lengths[1] == 2 * PERIOD


@settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck))
@given(strategies.programs())
def test_tiles_tile(tmp_path_factory: pytest.TempPathFactory, report: Report) -> None:
    table = read(report, tmp_path_factory.mktemp("s"))
    for (process, device), part in table.gpu.group_by("process", "device"):
        part = part.sort("index")
        assert part["index"].to_list() == list(range(part.height))
        assert (part["end_ns"] >= part["start_ns"]).all()
        following = dict(zip(part["index"].to_list(), part["end_ns"].to_list(), strict=True))
        mine = (pl.col("process") == process) & (pl.col("device") == device)
        rest = table.between.filter(mine)
        for index, start, end in rest.select("index", "start_ns", "end_ns").iter_rows():
            assert start == following[index] < end
            following[index] = end
        assert list(following.values())[:-1] == part["start_ns"].to_list()[1:]
    for _, part in table.cpu.group_by("process"):
        part = part.sort("index")
        assert (part["start_ns"].to_numpy()[1:] >= part["end_ns"].to_numpy()[:-1]).all()


# --- warm-up -------------------------------------------------------------------------------------------------------------


def test_warm_up_by_first_calls(tmp_path: Path) -> None:
    """All steps last equally long, but the first two load code."""
    report, main = loop(10, own_step)
    for i in range(2):
        main.call("cuLibraryLoadData", i * PERIOD + 700 * US, 100 * US)
    table = read(report, tmp_path)
    assert table.steady == (2, 8)
    assert table.cpu["warmup"].to_list() == [True] * 2 + [False] * 8
    assert table.cpu["steady"].to_list() == [False] * 2 + [True] * 7 + [False]


def test_warm_up_by_duration(tmp_path: Path) -> None:
    report = Report()
    main = report.process(1).thread(1)
    t = 0
    for i in range(10):
        length = PERIOD * (3 if i < 3 else 1)
        work(main, t + 20 * US)
        main.add_range(f"step {i}", t, t + length - US)
        t += length
    assert read(report, tmp_path).steady == (3, 8)


def test_what_every_step_pays_is_no_warm_up(tmp_path: Path) -> None:
    """An allocator that keeps missing belongs to the steady step."""
    report, main = loop(10, own_step)
    for i in range(10):
        main.call("cudaMalloc_v3020", i * PERIOD + 700 * US, 100 * US)
    assert read(report, tmp_path).steady == (0, 8)


def test_equal_steps_have_no_warm_up_and_lose_the_last(tmp_path: Path) -> None:
    assert read(loop(6, own_step)[0], tmp_path).steady == (0, 4)


@pytest.mark.parametrize("count", [1, 3])
def test_few_steps_are_all_used(tmp_path: Path, count: int) -> None:
    table = read(loop(count, own_step)[0], tmp_path)
    assert table.steady == (0, count - 1)


# --- options -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "steady"), [("0:1", (0, 0)), ("2:4", (2, 3)), ("3:99", (3, 5)), ("5:6", (5, 5))])
def test_a_window_of_steps(tmp_path: Path, text: str, steady: tuple[int, int]) -> None:
    table = read(loop(6, own_step)[0], tmp_path, steps=text)
    assert table.steady == steady
    assert not table.whole
    first, last = steady
    assert table.cpu_windows.select("start_ns", "end_ns").rows() == [(first * PERIOD, last * PERIOD + 900 * US)]
    assert table.windows["start_ns"].to_list() == [first * PERIOD + 30 * US]


def test_all(tmp_path: Path) -> None:
    table = read(loop(6, own_step)[0], tmp_path, steps="all")
    assert table.whole
    assert table.cpu.height == 6
    assert table.windows.select("start_ns", "end_ns").rows() == [(30 * US, 5 * PERIOD + 620 * US)]


@pytest.mark.parametrize(
    "text",
    ["", "1", "1:", ":2", "2:1", "2:2", "-1:3", "a:b", "1:2:3", "1.0:2", " 1:2", "1:2\n", "ALL", "1-2", "0x1:0x2"],
)
def test_windows_that_are_none(text: str) -> None:
    with pytest.raises(NsysxError) as caught:
        steps.parse_window(text)
    assert (caught.value.slug, caught.value.exit_code) == ("steps-syntax", EXIT_USAGE)


def test_a_window_behind_the_end(tmp_path: Path) -> None:
    with pytest.raises(NsysxError) as caught:
        read(loop(6, own_step)[0], tmp_path, steps="6:7")
    assert (caught.value.slug, caught.value.exit_code) == ("steps-empty", EXIT_EMPTY)
    assert "steps 0 to 5" in str(caught.value)


def test_a_range_of_the_users_choice_wins(tmp_path: Path) -> None:
    report, main = loop(4, everything)
    for i in range(4):
        main.add_range(f"tick-{i} tock", i * PERIOD + 5, i * PERIOD + 700 * US)
    table = read(report, tmp_path, step_range=r"^tick-\d+")
    assert (table.source, table.rule) == ("user", "ranges that match '^tick-\\\\d+'")
    assert [s for s, _ in spans(table)] == [i * PERIOD + 5 for i in range(4)]


def test_the_choice_is_a_regular_expression_of_bounded_time(tmp_path: Path) -> None:
    assert read(loop(4, own_step)[0], tmp_path, step_range=r"step [12]$").cpu["number"].to_list() == [1, 2]
    # What can take time without end is refused with a word.
    with pytest.raises(NsysxError, match="look-around"):
        read(loop(4, own_step)[0], tmp_path, step_range=r"step (?=[12]$)")


def test_marks_of_the_users_choice(tmp_path: Path) -> None:
    table = read(loop(4, lambda m, i, t: m.mark("tick", t))[0], tmp_path, step_range="tick")
    assert [s for s, _ in spans(table)] == [i * PERIOD for i in range(4)]


@pytest.mark.parametrize(
    ("pattern", "slug", "code"),
    [
        ("no such", "step-range-empty", EXIT_EMPTY),
        ("(", "step-range-syntax", EXIT_USAGE),
        ("[z-a]", "step-range-syntax", EXIT_USAGE),
        ("(?P<a>x", "step-range-syntax", EXIT_USAGE),
    ],
)
def test_choices_that_fail(tmp_path: Path, pattern: str, slug: str, code: int) -> None:
    with pytest.raises(NsysxError) as caught:
        read(loop(3, own_step)[0], tmp_path, step_range=pattern)
    assert (caught.value.slug, caught.value.exit_code) == (slug, code)
    assert "\n" not in caught.value.message


def test_steps_are_sorted_whatever_the_rows(tmp_path: Path) -> None:
    report = loop(6, own_step)[0]
    expected = read(report, tmp_path).cpu
    report.shuffle(3)
    assert read(report, tmp_path).cpu.equals(expected)
    assert expected["start_ns"].is_sorted()
    assert isinstance(expected, pl.DataFrame)

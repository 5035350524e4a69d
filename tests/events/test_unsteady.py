"""Steps that are not steady: one-time costs in the middle, what comes between, and steps of several parts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from nsysx.events.coverage import BEFORE, BEHIND, coverage
from nsysx.events.steps import StepTable
from nsysx.events.tiles import representative
from tests.builder import Report, Thread
from tests.events.test_steps import PERIOD, US, own_step, read, work

MS = 1000 * US


def lengths(table: StepTable) -> list[int]:
    return (table.gpu["end_ns"] - table.gpu["start_ns"]).to_list()


def training(count: int, long: dict[int, int], load: str = "", *, compiled: bool = False) -> Report:
    """Steps of 1 ms; those in ``long`` pause for so many ms before their launches, and then load code by ``load``."""
    report = Report()
    main = report.process(1).thread(1, "python")
    t = 0
    for i in range(count):
        pause = long.get(i, 0) * MS
        main.add_range(f"step {i}", t, t + pause + PERIOD - 100 * US, domain="nsysx")
        main.memcpy(t + 5 * US, 2 * US, gpu_start=t + 8 * US, gpu_dur=US)
        if pause and load:
            main.call(load, t + pause, 15 * US)
        work(main, t + pause + 20 * US)
        if pause and compiled:
            said = {"ns": pause - MS, "ago_ns": 300 * US, "id": str(i), "function": "forward"}
            main.mark(f"compile {json.dumps(said)}", t + pause + 300 * US, domain="nsysx")
        t += pause + PERIOD
    return report


@pytest.mark.parametrize(("load", "compiled"), [("cuModuleLoadData", False), ("cuLibraryLoadData", False), ("", True)])
def test_a_compilation_in_the_middle_is_in_no_steady_step(tmp_path: Path, load: str, compiled: bool) -> None:
    """A recompile of 1.58 s at step 7 of 24: the mean would be seven times the usual step."""
    table = read(training(24, {7: 1580}, load, compiled=compiled), tmp_path)
    assert table.steady == (8, 22)
    assert max(lengths(table)[8:23]) == PERIOD
    assert table.coverage is not None
    assert table.coverage.parts["steps with a one-time cost"] == 1580 * MS + PERIOD


@pytest.mark.parametrize(
    ("count", "long", "left_out"),
    [
        (220, {4: 900}, [4]),  # an early one, alone
        (220, {60: 900}, []),  # in the middle: it may come back
        (220, {4: 900, 150: 300}, []),  # not alone
        (120, {4: 900}, []),  # of few steps nothing says that it does not come back
    ],
)
def test_a_late_start_without_a_call_is_in_no_steady_step(
    tmp_path: Path, count: int, long: dict[int, int], left_out: list[int]
) -> None:
    """Every 12th step takes 5 ms more, so the mean counts: one that stands still for 900 ms once would make each step 4 ms longer."""
    table = read(training(count, dict.fromkeys(range(11, count, 12), 4) | long), tmp_path)
    assert table.coverage is not None
    once = table.coverage.parts.get("steps with a one-time cost", 0)
    assert once == sum(long[i] * MS + PERIOD for i in left_out)


def two_ranks(paused: dict[int, str], meets: tuple[int, ...]) -> Report:
    """Steps of 1 ms of two processes that meet in a collective in some of them; the second pauses 60 ms in others, and may load code then.

    The first, which has nothing to wait for but the collective, is in it until the second has come.
    """
    report = Report()
    one, other = (report.process(pid).thread(1, "python") for pid in (1, 2))
    t, late, now = 0, 0, {id(one): 0, id(other): 0}
    for i in range(24):
        for thread in (one, other):
            t, late = now[id(thread)], now[id(other)] - now[id(one)]
            pause = 60 * MS if thread is other and i in paused else 0
            if pause and paused[i]:
                thread.call(paused[i], t + pause, 15 * US)
            waits = max(late, 0) if thread is one and i in meets else 0
            length = pause + waits + PERIOD
            thread.add_range(f"step {i}", t, t + length - 100 * US, domain="nsysx")
            work(thread, t + pause + 20 * US)
            if i in meets:
                begin = t + pause + 700 * US
                kernel = "ncclDevKernel_Broadcast_RING_LL"
                device = 0 if thread is one else 1
                thread.launch(
                    begin, 5 * US, kernel=kernel, gpu_start=begin + 10 * US, gpu_dur=waits + 20 * US, device=device
                )
            now[id(thread)] = t + length
    return report


@pytest.mark.parametrize(
    ("paused", "meets", "once"),
    [
        ({5: "cuLibraryLoadData"}, (2, 12), [12]),  # what the other paid once stands in the next collective
        ({5: ""}, (2, 12), []),  # nobody knows what it did
        (dict.fromkeys(range(1, 24, 3), "cuLibraryLoadData"), tuple(range(24)), []),  # it comes back
    ],
)
def test_a_step_that_waits_for_what_another_process_paid_once_is_not_steady(
    paused: dict[int, str], meets: tuple[int, ...], once: list[int], tmp_path: Path
) -> None:
    table = read(two_ranks(paused, meets), tmp_path)
    assert table.steady is not None and table.coverage is not None
    first, last = table.steady
    for step in once:
        assert not first <= step <= last, table.steady
    paid = table.coverage.parts.get("steps with a one-time cost", 0)
    assert (paid > 60 * MS) is bool(once)


def test_a_long_step_without_one_time_work_stays(tmp_path: Path) -> None:
    """Nobody knows what it did: it is told as a level of its own."""
    table = read(training(24, {7: 1580}), tmp_path)
    assert table.steady == (0, 22)
    assert [(level.median_ns, level.count) for level in table.levels] == [(PERIOD, 22), (1581 * MS, 1)]
    assert table.trend.note == "Usually 1.00 ms; 1 of 23 steps takes 1.58 s."


def test_code_that_is_loaded_in_a_long_step_must_explain_it(tmp_path: Path) -> None:
    """A checkpoint of 300 ms whose last launch loads code for 2 ms is no one-time cost: copies fill the pause."""
    report = training(24, {7: 300})
    main = report.process(1).thread(1)
    for k in range(30):
        main.memcpy(7 * PERIOD + (k * 10 + 6) * MS, 3 * MS, gpu_start=7 * PERIOD + (k * 10 + 7) * MS, gpu_dur=MS)
    main.call("cuModuleLoadData", 7 * PERIOD + 298 * MS, 2 * MS)
    assert read(report, tmp_path).steady == (0, 22)


def test_compilations_that_come_back_are_steady(tmp_path: Path) -> None:
    """A new shape every third step compiles every third step: told as a level, over whole periods."""
    table = read(training(24, dict.fromkeys(range(3, 24, 3), 80), "cuModuleLoadData"), tmp_path)
    assert table.steady == (2, 22)
    assert [(level.count, level.every) for level in table.levels] == [(14, None), (7, 3)]
    assert table.trend.note == "Usually 1.00 ms; every 3rd step takes 81.00 ms."


def test_compilations_that_become_rare_end(tmp_path: Path) -> None:
    table = read(training(30, {2: 90, 4: 90, 9: 90, 19: 90}, "cuModuleLoadData"), tmp_path)
    assert table.steady == (20, 28)


def test_one_time_costs_that_leave_no_steps_stay(tmp_path: Path) -> None:
    table = read(training(8, {1: 90, 3: 90, 6: 90}, "cuModuleLoadData"), tmp_path)
    assert table.steady is not None
    assert table.steady[1] - table.steady[0] >= 2


# --- steps of several parts ----------------------------------------------------------------------------------------------


def rollouts(
    count: int,
    parts: int,
    rollout: int,
    *,
    kernels: int = 12,
    name: str = "evaluation",
    skip: int = 0,
    heavy: bool = False,
) -> Report:
    """Iterations of ``parts`` optimizer steps of 1 ms, with ``rollout`` ms of policy calls before them.

    ``heavy``: these are most of the GPU work, and the optimizer's steps have ranges.
    """
    report = Report()
    main = report.process(1).thread(1, "python")
    t = number = 0
    for i in range(count):
        if i >= skip:
            policy(main, t, rollout, kernels, name, heavy=heavy)
        t += rollout * MS
        for _ in range(parts):
            work(main, t + 20 * US)
            own_step(main, number, t)
            if heavy:
                main.add_range("optimizer Adam", t + 700 * US, t + 900 * US, domain="nsysx")
            number, t = number + 1, t + PERIOD
    return report


def policy(main: Thread, at: int, ms: int, kernels: int, name: str, *, heavy: bool = False) -> None:
    if name and kernels:
        main.add_range(name, at, at + ms * MS - 50 * US, domain="nsysx")
    for k in range(kernels):
        t = at + 10 * US + k * (ms * MS // kernels)
        main.launch(t, 5 * US, kernel="policy", gpu_start=t + 10 * US, gpu_dur=(400 if heavy else 20) * US)


@pytest.mark.parametrize("name", ["evaluation", ""])
def test_an_iteration_with_its_rollout_is_the_step(tmp_path: Path, name: str) -> None:
    table = read(rollouts(12, 4, 6, name=name), tmp_path)
    assert (table.parts, table.cpu.height, table.between.height) == (4, 12, 0)
    assert table.rule.endswith("4 of them and what comes before them repeat as one step")
    assert lengths(table)[:11] == [10 * PERIOD] * 11
    assert table.steady == (0, 10)
    assert table.coverage is not None
    assert table.coverage.steady_ns > 0.8 * table.coverage.loop_ns
    assert table.cpu["number"].to_list() == list(range(0, 48, 4))


@pytest.mark.parametrize("uneven", [False, True])
def test_how_many_timed_steps_make_one_that_ends_with_the_optimizer(tmp_path: Path, uneven: bool) -> None:
    """Most work is outside of the probe's steps, so steps end where every third step of the optimizer does."""
    report = rollouts(9, 3, 6, heavy=True)
    if uneven:
        own_step(report.processes[0].thread(1, "python"), 99, 5 * 9 * MS + MS)
    table = read(report, tmp_path)
    assert (table.source, table.grouped, table.timed) == ("optimizer", False, 0 if uneven else 3)
    assert lengths(table)[1:-1] == [9 * PERIOD] * 7


def test_parts_without_what_comes_before_them_are_no_step(tmp_path: Path) -> None:
    """The capture began behind the first rollout: the first optimizer steps are short of it."""
    report = rollouts(12, 4, 6, skip=1)
    table = read(report, tmp_path)
    assert (table.parts, table.cpu.height, table.steady) == (4, 11, (0, 9))
    assert table.cpu["index"].to_list() == list(range(11))
    assert table.cpu["number"].to_list() == list(range(4, 48, 4))


@pytest.mark.parametrize(
    ("count", "parts", "rollout", "kernels"),
    [(12, 17, 12, 12), (12, 12, 2, 12), (3, 4, 6, 12), (5, 5, 6, 12), (12, 4, 6, 0)],
    ids=[
        "epochs with an evaluation",
        "a short evaluation",
        "too few",
        "an evaluation every five steps",
        "a pause of the host",
    ],
)
def test_what_is_no_part_of_a_step(tmp_path: Path, count: int, parts: int, rollout: int, kernels: int) -> None:
    table = read(rollouts(count, parts, rollout, kernels=kernels), tmp_path)
    assert (table.parts, table.cpu.height, table.between.height) == (1, count * parts, count - 1)
    assert table.coverage is not None
    between = table.coverage.parts["evaluation between steps" if kernels else "between steps"]
    assert between == pytest.approx((count - 1) * (rollout * MS + 100 * US), abs=(count - 1) * 100 * US)


def test_what_comes_now_and_then_is_no_part_of_a_step(tmp_path: Path) -> None:
    report = rollouts(6, 4, 6)
    main = report.process(1).thread(1)
    t = 6 * 10 * PERIOD
    for i in range(3):
        own_step(main, 24 + i, t + 6 * MS + i * PERIOD)
        work(main, t + 6 * MS + i * PERIOD + 20 * US)
    policy(main, t, 6, 12, "")
    policy(main, t + 9 * MS, 6, 12, "")
    for i in range(4):
        own_step(main, 27 + i, t + 15 * MS + i * PERIOD)
        work(main, t + 15 * MS + i * PERIOD + 20 * US)
    assert read(report, tmp_path).parts == 1


def test_coverage_sums_to_the_recorded_time(tmp_path: Path) -> None:
    report = training(24, {7: 1580}, "cuModuleLoadData")
    main = report.process(1).thread(1)
    main.call("cudaMalloc", 1700 * MS, 10 * MS)
    found = read(report, tmp_path).coverage
    assert found is not None
    assert sum(found.parts.values()) == found.wall_ns
    assert found.wall_ns - sum(found.parts.get(name, 0) for name in (BEFORE, BEHIND)) == found.loop_ns
    assert found.parts["after the last step"] > 80 * MS


def test_an_evaluation_that_waits_for_the_steps_before_it_is_as_long_as_its_work(tmp_path: Path) -> None:
    """The host is done with five steps in 0.5 ms, and their kernels take 5 ms: only 1 ms is the evaluation's."""
    report = Report()
    main = report.process(1).thread(1)
    at = free = 0
    for number in range(20):
        begin = at
        for _ in range(10):
            at, start = at + 10 * US, max(at + 6 * US, free)
            main.launch(at - 10 * US, 5 * US, kernel="work", gpu_start=start, gpu_dur=100 * US)
            free = start + 100 * US
        main.add_range(f"step {number}", begin, at)
        if number % 5 == 4:
            begin, start = at, max(at + 6 * US, free)
            main.launch(at, 5 * US, kernel="work", gpu_start=start, gpu_dur=MS)
            free = start + MS
            main.sync("cudaDeviceSynchronize_v3020", at=at + 5 * US, dur=free - at, stream=None)
            at = free + 10 * US
            main.add_range("evaluation", begin, at)
    found = read(report, tmp_path).coverage
    assert found is not None and sum(found.parts.values()) == found.wall_ns
    assert found.parts["evaluation between steps"] == pytest.approx(3 * MS, rel=0.1)


def test_an_evaluation_between_warm_up_steps_is_warm_up() -> None:
    """The first evaluation takes 130 ms, as its kernels are loaded then; the one between steady steps takes 6."""
    lengths = np.array([130, 0, 6, 0]) + 10
    start = np.append(0, np.cumsum(lengths))[:4]
    warmup = [True, True, False, False]
    steps = pl.DataFrame(
        {
            "index": range(4),
            "start_ns": start,
            "end_ns": start + 10,
            "warmup": warmup,
            "steady": [not w for w in warmup],
        }
    ).with_columns(cut=pl.lit(value=False))
    between = pl.DataFrame({"index": [0, 2], "evaluation": [True, True]})
    found = coverage(steps, between, np.zeros(4, np.bool_), (0, int(start[-1]) + 10))
    assert found is not None
    assert found.parts == {"warm-up steps": 150, "evaluation between steps": 6, "steady steps": 20}


def test_steady_steps_count_wherever_they_lie(tmp_path: Path) -> None:
    """An evaluation every five steps: averages need steps in a row, but how many are steady and how long they are needs none."""
    table = read(rollouts(5, 5, 6), tmp_path)
    assert table.runs == ((0, 3), (5, 8), (10, 13), (15, 18), (20, 23))
    assert table.steady == (20, 23)
    assert [(level.count, level.every) for level in table.levels] == [(20, 1)]
    assert table.trend.kind == "level"
    assert not table.cpu["warmup"].any()
    assert table.coverage is not None
    assert not {"warm-up steps", "other steps"} & set(table.coverage.parts)
    assert table.coverage.steady_ns == 24 * PERIOD - 4 * 10 * US  # an evaluation begins with its first launch
    assert sum(table.coverage.parts.values()) == table.coverage.wall_ns


def test_a_step_with_a_one_time_cost_is_warm_up_only_where_no_steady_one_came_before(tmp_path: Path) -> None:
    table = read(training(24, {7: 1580}, "cuModuleLoadData"), tmp_path)
    assert table.runs == ((0, 6), (8, 22))
    assert table.cpu.filter("warmup")["index"].to_list() == [7]  # its cost is one of start-up, and no other step's
    assert table.levels[0].count == 22


def test_the_stretch_that_averages_are_taken_over_is_like_all_steady_steps() -> None:
    lengths = np.array([10, 10, 10, 10, 0, 14, 14, 14, 14, 0, 11, 11, 11, 0, 20, 20], np.int64)
    assert representative([(0, 3), (5, 8), (10, 12)], lengths) == (10, 12)  # 11 of 11.7
    assert representative([(0, 3), (5, 8), (14, 15)], lengths) == (5, 8)
    assert representative([(0, 3), (5, 8), (14, 14)], lengths * 0 + 10) == (5, 8)  # equally good: the longest, the last

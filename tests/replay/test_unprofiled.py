"""The step without a profiler: reports whose tracing costs are known must give the step that they were stretched from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nsysx.model import Unprofiled
from nsysx.pipeline import ReadingOptions, gather, summarize
from nsysx.replay import tracing_costs
from nsysx.replay.engine import (
    FreeLoader,
    Graph,
    RemoveExposedComm,
    RemoveHost,
    RemoveWaits,
    Replay,
    ScaleOps,
    Withheld,
    idle_of,
    replay_of,
    unprofiled_of,
)
from nsysx.replay.replay_bounds import SLOWER_WHILE_RECORDED
from nsysx.replay.unprofiled import steady_lengths
from tests.builder import Report
from tests.findings import findings_alone

pytestmark = pytest.mark.traced

US = 1000
#: What the tracing of a launch and of a backward mark adds in these reports; the rest is free.
LAUNCH, MARK, INSIDE = 4 * US, 20 * US, 0.5


def loop(
    steps: int = 8,
    launches: int = 100,
    traced: bool = True,
    kernel: int = 6,
    marks: int = 10,
    late: tuple[int, ...] = (0,),
) -> Report:
    """Steps of ``launches`` launches, 8 us of host code before each and 3 us within, with ``marks`` backward marks.

    ``traced`` stretches it by LAUNCH and MARK where they stand. Kernels of ``kernel`` us; nothing waits but for batches: the steps in
    turn as long as ``late`` (us).
    """
    report = Report()
    process = report.process(100)
    process.context()
    main = process.thread(100, "python")
    at, free = 0, 0
    for number in range(steps):
        begin = at
        at += late[number % len(late)] * US
        main.add_range("data DataLoader", begin, at + US, domain="nsysx")
        for k in range(launches):
            if k % (launches // marks) == 0:
                main.mark("bwd layer:Linear", at + US, domain="nsysx")
                at += MARK if traced else 0
            at += 8 * US + round(LAUNCH * (1 - INSIDE) if traced else 0)
            dur = 3 * US + round(LAUNCH * INSIDE if traced else 0)
            start = max(free, at + dur + 2 * US)
            main.launch(at, dur, kernel="work", gpu_start=start, gpu_dur=kernel * US)
            free, at = start + kernel * US, at + dur
        main.add_range(f"step {number}", begin, at, domain="nsysx")
    return report


def table(**changed: float) -> dict[str, Any]:
    """Return a machine profile in which only launches and backward marks cost something."""
    free = {name: {"ns": 0, "low_ns": 0, "high_ns": 0} for name in tracing_costs.ASSUMED.of}
    free["launch"] = {"ns": LAUNCH, "low_ns": LAUNCH * 0.8, "high_ns": LAUNCH * 1.2, "inside": INSIDE}
    free["backward_mark"] = {"ns": MARK, "low_ns": MARK * 0.5, "high_ns": MARK * 1.5}
    return {"schema": tracing_costs.SCHEMA, "launch_ns": 3 * US + LAUNCH * INSIDE, "costs": free, **changed}


def told(report: Report, folder: Path, **run: object) -> tuple[Unprofiled, Replay]:
    path = report.write(folder / "r.sqlite")
    path.with_suffix(".run.json").write_text(json.dumps({"schema": "nsysx.run/1", **run}))
    given = gather(path, ReadingOptions())
    known, replay = unprofiled_of(given), replay_of(given)
    assert isinstance(known, Unprofiled), known
    assert isinstance(replay, Replay)
    return known, replay


BARE = 100 * 11 * US


def test_what_tracing_added_is_taken_out_where_it_arose(tmp_path: Path) -> None:
    known, replay = told(loop(), tmp_path, machine_profile=table())
    assert known.source == "modelled"
    assert replay.recorded_ns == pytest.approx(BARE + 100 * LAUNCH + 10 * MARK, rel=0.01)
    assert known.step_ns == pytest.approx(BARE, rel=0.01)
    assert known.overhead["launch"] == pytest.approx(100 * LAUNCH, rel=0.01)
    assert known.overhead["backward_mark"] == pytest.approx(10 * MARK, rel=0.01)
    assert known.low_ns < known.step_ns < known.high_ns
    assert known.gpu_busy == pytest.approx(6 / 11, rel=0.02)


def test_a_report_that_was_not_stretched_keeps_its_step(tmp_path: Path) -> None:
    free = {name: {"ns": 0, "low_ns": 0, "high_ns": 0} for name in tracing_costs.ASSUMED.of}
    known, replay = told(loop(traced=False), tmp_path, machine_profile={**table(), "costs": free})
    assert known.step_ns == known.low_ns == known.high_ns == replay.unchanged_ns
    assert known.overhead == {}


def test_a_slower_host_pays_more_for_each_event(tmp_path: Path) -> None:
    fast, _ = told(loop(), tmp_path, machine_profile=table(launch_ns=10 * US))
    slow, _ = told(loop(), tmp_path, machine_profile=table(launch_ns=4 * US))
    assert slow.step_ns < fast.step_ns


def queried(pause: int, slow: int, of: int) -> Report:
    """Steps of 20 launches with 10 us of host code and a trivial call before each, and one pause; one of ``of`` trivial calls takes
    100 ns, the others ``slow`` times that.
    """
    report = Report()
    process = report.process(100)
    process.context()
    main = process.thread(100, "python")
    at = 0
    for number in range(10):
        begin = at
        at += pause
        for k in range(20):
            took = 100 * (slow if k % of else 1)
            main.call("cudaStreamIsCapturing_v10000", at + 5 * US, took)
            at += 10 * US + took
            main.launch(at, 3 * US, kernel="work", gpu_start=at + 8 * US, gpu_dur=2 * US)
            at += 3 * US
        main.add_range(f"step {number}", begin, at, domain="nsysx")
    return report


def free_costs() -> dict[str, Any]:
    """Return a machine profile in which each launch costs next to nothing, but something."""
    return {
        **table(),
        "launch_ns": 3 * US,
        "costs": {**table()["costs"], "launch": {"ns": 1, "low_ns": 1, "high_ns": 1}},
    }


def test_a_pause_is_as_long_without_tracing_however_slow_the_calls_after_it(tmp_path: Path) -> None:
    """A compilation of 30 ms evicts the caches, and the few calls that follow take four times their usual time."""
    known, replay = told(queried(30_000 * US, slow=4, of=5), tmp_path, machine_profile=free_costs())
    assert known.step_ns > 0.99 * replay.recorded_ns
    assert known.low_ns > (1 - SLOWER_WHILE_RECORDED) * replay.recorded_ns * 0.99


def test_the_bounds_hold_a_process_on_a_slower_host(tmp_path: Path) -> None:
    """Steps that are all host code: recorded at 30.4 ms, a program that compiles took 32 ms in another process."""
    known, _ = told(queried(30_000 * US, slow=1, of=5), tmp_path, machine_profile=free_costs())
    assert 1.05 * known.recorded_ns < known.high_ns < 1.07 * known.recorded_ns


@pytest.mark.parametrize(("slow", "left"), [(1, 1.0), (4, (1.1 / 4) ** 0.5)])
def test_code_between_calls_is_slow_where_the_fastest_calls_of_the_report_say_so(
    tmp_path: Path, slow: int, left: float
) -> None:
    known, replay = told(queried(0, slow, of=5), tmp_path, machine_profile=free_costs())
    assert known.step_ns == pytest.approx(left * replay.recorded_ns, rel=0.02)


def test_the_minute_in_which_the_costs_were_measured_does_not_move_the_step(tmp_path: Path) -> None:
    """The same machine, measured while it was a quarter slower in all that it did."""
    usual = {**table(), "other_ns": 80}
    slower = {
        name: {k: v * (1 if k == "inside" else 1.25) for k, v in row.items()} for name, row in usual["costs"].items()
    }
    busy = {**usual, "launch_ns": usual["launch_ns"] * 1.25, "other_ns": 125, "costs": slower}
    steps = [told(queried(0, 4, of=5), tmp_path, machine_profile=profile)[0].step_ns for profile in (usual, busy)]
    assert steps[0] == pytest.approx(steps[1], rel=0.001)


def test_a_gpu_bound_step_is_what_its_work_takes(tmp_path: Path) -> None:
    known, replay = told(loop(kernel=40), tmp_path, machine_profile=table())
    assert known.step_ns == pytest.approx(replay.recorded_ns, rel=0.01)
    assert known.gpu_busy > 0.97


def told_step(step: int, **more: object) -> list[dict[str, object]]:
    """Return what the probe says of steps before the window."""
    return [{"pid": 100, "unrecorded_steps": {"count": 20, "median_ns": step, "low_ns": step, "high_ns": step, **more}}]


def test_a_host_that_ran_ahead_of_its_device_told_no_step(tmp_path: Path) -> None:
    """The device alone takes 4 ms a step; by the host's clock the 20 steps before the window took 0.9 ms each."""
    known, _ = told(loop(kernel=40), tmp_path, machine_profile=table(), probe=told_step(BARE))
    assert known.source == "modelled" and known.step_ns > 3_900 * US


def bare_loop(pause: int, after_pause: int) -> list[dict[str, object]]:
    """Return what the probe says of bare steps of 0.9 ms, behind each eighth of which something ran for so long."""
    loop_ns = [BARE - 200 * US + (0 if i % 8 else pause) for i in range(64)]
    later_ns = [BARE - 200 * US + (0 if i % 8 else after_pause) for i in range(64)]
    steps: dict[str, object] = {
        "lengths_ns": [BARE - 200 * US] * 64,
        "after_ns": [BARE - 200 * US] * 64,
        "fetch_ns": [US] * 64,
    }
    more = {"loop_ns": loop_ns, "after_loop_ns": later_ns, "where": "between the windows", "detached": True}
    return [{"pid": 100, "unrecorded_steps": {**steps, "after_fetch_ns": [US] * 64, **more}}]


def test_steps_that_hold_what_ran_between_bare_ones_are_measured_by_the_loop(tmp_path: Path) -> None:
    """A recorded step takes 4 ms. Bare ones take 0.9 ms, and with the pause behind each eighth 3.15 ms: no less than the device needs."""
    pause = 18_000 * US
    known, replay = told(loop(kernel=40), tmp_path, machine_profile=table(), probe=bare_loop(pause, pause))
    mean = BARE - 200 * US + pause // 8
    assert known.source == "in_process" and known.step_ns == known.loop_ns == pytest.approx(mean, rel=0.001)
    assert known.low_ns < known.step_ns < known.high_ns and replay.real_ns == pytest.approx(mean, rel=0.01)
    long = 60_000 * US  # 8.4 ms with it, which no recorded step holds
    known, _ = told(loop(kernel=40), tmp_path, machine_profile=table(), probe=bare_loop(long, long))
    assert known.source == "modelled" and known.step_ns > 3_900 * US


def test_replayed_steps_with_more_of_the_loops_pauses_are_not_the_mean_of_all(tmp_path: Path) -> None:
    path = loop().write(tmp_path / "r.sqlite")
    profile = gather(path, ReadingOptions())
    known = unprofiled_of(profile)
    assert isinstance(known, Unprofiled)
    fewer = replace(known, steps=known.steps - 2, measured_steps=64, step_ns=2 * BARE, loop_ns=BARE)
    assert steady_lengths(profile, fewer, profile.scope.steps)[0] == BARE
    longer = replace(fewer, loop_ns=3 * BARE)  # the rest of it lies between steps
    assert steady_lengths(profile, longer, profile.scope.steps)[0] == 2 * BARE


@pytest.mark.parametrize(("step_us", "gains_us"), [(1_290, 190), (1_400, 0)])
def test_a_host_that_the_measured_step_does_not_show_is_as_fast_as_usual(
    tmp_path: Path, step_us: int, gains_us: int
) -> None:
    """Work of 1.28 ms and a host of 1.1 ms without tracing. A step that is the device's leaves the host what it has; a longer one is it."""
    report = loop(kernel=12)
    known, replay = told(report, tmp_path, machine_profile=table(), probe=told_step(step_us * US))
    assert known.step_ns == pytest.approx(step_us * US, rel=0.005)
    ops = frozenset(replay.window.ops["op"].to_list())
    saved = replay.saving(ScaleOps(ops, 0.5)).saving_ns
    assert saved == pytest.approx(gains_us * US, abs=20 * US)


def test_now_is_one_step_also_where_the_device_was_faster_without_tracing(tmp_path: Path) -> None:
    known, replay = told(loop(kernel=40), tmp_path, machine_profile=table(), probe=told_step(3_600 * US))
    assert (known.source, known.step_ns) == ("in_process", 3_600 * US)
    assert replay.real_ns == pytest.approx(known.step_ns, rel=0.005)


def test_steps_in_which_the_host_ran_ahead_do_not_lower_the_bound(tmp_path: Path) -> None:
    """The shortest of the bare steps took 0.5 ms by the host's clock, which is no step of a device that works for 4 ms in each."""
    bare = told_step(3_900 * US, low_ns=500 * US)
    known, _ = told(loop(kernel=40), tmp_path, machine_profile=table(), probe=bare)
    assert known.source == "in_process" and 2_500 * US < known.low_ns < known.step_ns


def test_tracing_makes_no_step_shorter(tmp_path: Path) -> None:
    known, replay = told(loop(), tmp_path, machine_profile=table(), probe=told_step(3 * BARE))
    assert known.step_ns == replay.real_ns == replay.unchanged_ns
    assert known.high_ns == 3 * BARE


@pytest.mark.parametrize("step", [BARE, round(BARE * 0.8), round(BARE * 1.2)])
def test_a_measured_step_is_taken_and_the_timeline_agrees_with_it(tmp_path: Path, step: int) -> None:
    measured = {"count": 20, "median_ns": step, "low_ns": step - 5, "high_ns": step + 5, "where": "before the window"}
    known, replay = told(loop(), tmp_path, probe=[{"pid": 100, "unrecorded_steps": measured}])
    assert (known.source, known.step_ns, known.low_ns, known.high_ns) == ("in_process", step, step - 5, step + 5)
    assert known.measured_steps == 20
    assert replay.real_ns == pytest.approx(step, rel=0.005)


def test_a_second_run_is_held_against_the_same_steps(tmp_path: Path) -> None:
    lengths = {str(i): BARE if i else 50 * BARE for i in range(8)}
    known, _ = told(loop(), tmp_path, calibration={"clock": "gpu", "error": None, "steps_ns": lengths})
    assert (known.source, known.step_ns) == ("second_run", BARE)


@pytest.mark.parametrize(
    "profile",
    [
        None,
        "text",
        {"schema": "other/1"},
        {**table(), "launch_ns": "3"},
        {**table(), "costs": {"launch": {"ns": -1}}},
        {**table(), "costs": {"launch": {"ns": float("nan")}}},
        {**table(), "costs": {"launch": {"ns": 1, "inside": 7}}},
        {**table(), "costs": {"launch": 4}},
    ],
)
@pytest.mark.parametrize("measured", [None, {"count": 3, "median_ns": -5, "low_ns": 1, "high_ns": 2}, {"count": 1}])
def test_what_cannot_be_used_is_as_if_it_were_not_there(tmp_path: Path, profile: object, measured: object) -> None:
    known, _ = told(
        loop(), tmp_path, machine_profile=profile, probe=[{"pid": 100, "unrecorded_steps": measured}, "text"]
    )
    assert known.source == "assumed"


def test_no_steps_no_figure(tmp_path: Path) -> None:
    report = Report()
    process = report.process(100)
    process.context()
    process.thread(100, "python").launch(0, 5 * US, kernel="a", gpu_start=9 * US, gpu_dur=US)
    path = report.write(tmp_path / "r.sqlite")
    assert isinstance(unprofiled_of(gather(path, ReadingOptions())), Withheld)
    summary = summarize([path], every_table=False)
    assert summary.to_json()["unprofiled"] is None
    assert next(c for c in summary.quality if c.check == "unprofiled").status == "missing"


def test_causes_sum_to_the_idle_time_and_savings_stay_inside_the_step(tmp_path: Path) -> None:
    for kernel in (2, 6, 9, 40):
        known, replay = told(loop(kernel=kernel), tmp_path, machine_profile=table())
        assert sum(known.idle_causes.values()) == pytest.approx(known.gpu_idle_ns, abs=len(known.idle_causes) + 1)
        whole = known.gpu_busy_ns + known.gpu_idle_ns
        assert whole == pytest.approx(replay.real_ns, abs=2)
        for edit in (RemoveWaits(), RemoveHost(), Graph(), FreeLoader(), RemoveExposedComm()):
            outcome = replay.saving(edit)
            assert outcome.saving_ns <= known.gpu_idle_ns + 2
            assert outcome.step_ns >= known.gpu_busy_ns - 2


def test_waiting_for_batches_that_only_bare_steps_have_is_the_loaders(tmp_path: Path) -> None:
    """Every fourth bare step waits 2 ms longer for its batch; no recorded one does. What the wait does not lengthen is hidden."""
    wait = 2_000 * US
    fetches = [wait if i % 4 == 0 else 50 * US for i in range(40)]
    lengths = [BARE + (wait if ns == wait else 0) for ns in fetches]
    bare = {"lengths_ns": lengths, "fetch_ns": fetches, "where": "between the windows", "detached": True}
    run = {"probe": [{"pid": 100, "unrecorded_steps": bare}], "machine_profile": table()}
    known, replay = told(loop(), tmp_path, **run)
    assert known.step_ns == sum(lengths) // len(lengths) and replay.more_loading_ns == pytest.approx(wait / 4, rel=0.01)
    assert known.idle_causes["data_loader"] == replay.more_loading_ns
    assert sum(known.idle_causes.values()) == pytest.approx(known.gpu_idle_ns, abs=len(known.idle_causes) + 1)
    assert replay.saving(FreeLoader()).step_ns == pytest.approx(BARE, rel=0.01)
    assert replay.saving(Graph()).step_ns > replay.more_loading_ns + known.gpu_busy_ns
    path = tmp_path / "r.sqlite"
    profile = gather(path, ReadingOptions())
    idle = idle_of(profile)
    assert idle["real_ns"].sum() == pytest.approx(known.gpu_idle_ns * profile.scope.steps, rel=0.01)
    finding = findings_alone("NSX106", path)[0]
    assert finding.title.startswith("The loader cannot keep up"), finding.title
    assert finding.saving.likely_ns == pytest.approx(wait / 4, rel=0.05)
    for hidden in ([2 * US] * 40, [wait] * 40):  # no wait, and one that the work of the device covers
        bare |= {"lengths_ns": [BARE] * 40, "fetch_ns": hidden}
        assert told(loop(), tmp_path, **run)[1].more_loading_ns < 0.1 * US  # what rounding leaves
    bare |= {"fetch_ns": fetches[1:]}  # of another number of steps: not usable
    assert told(loop(), tmp_path, **run)[1].more_loading_ns == 0


@pytest.mark.parametrize("bare_ms", [6, 4, 3])
def test_waits_of_some_steps_are_compared_as_a_mean(tmp_path: Path, bare_ms: int) -> None:
    """Every other step waits 4 ms for its batch as recorded, and bare ones longer, as long, or shorter: kernels take what they take."""
    wait = bare_ms * 1_000 * US
    fetches = [wait if i % 2 else 50 * US for i in range(40)]
    lengths = [BARE + (wait if ns == wait else 0) for ns in fetches]
    bare = {"lengths_ns": lengths, "fetch_ns": fetches, "where": "between the windows", "detached": True}
    run = {"probe": [{"pid": 100, "unrecorded_steps": bare}], "machine_profile": table()}
    known, replay = told(loop(late=(0, 4_000)), tmp_path, **run)
    assert known.step_ns == pytest.approx(BARE + wait / 2, rel=0.03)
    assert replay.more_loading_ns == pytest.approx(max(wait / 2 - 2_000 * US, 0), abs=60 * US)
    assert known.gpu_busy_ns == pytest.approx(600 * US, rel=0.02)
    assert known.idle_causes["data_loader"] == pytest.approx(wait / 2, rel=0.05)
    assert replay.saving(FreeLoader()).step_ns == pytest.approx(BARE, rel=0.05)

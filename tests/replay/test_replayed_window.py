"""Which steps are replayed: figures of the replayed steps are those of the steady ones, whatever lies around them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nsysx.events import attribute, correlate, ledger, nvtx_ranges, profile, steps
from nsysx.pipeline import summarize
from nsysx.reading.load import load
from nsysx.replay import replayed_window
from nsysx.replay.engine import Replay, replay_of, replayed_scope
from tests.builder import Report
from tests.replay.test_engine import US, read, replayed

MS = 1_000_000


def loop(lengths: list[int], *, evaluate_after: int | None = None, kernels: int = 20) -> Report:
    """Steps whose GPU work takes ``lengths`` (ns), launched far ahead; an evaluation of 100 ms of launches after one of them."""
    report = Report()
    report.gpu(pids=[(100, 0)])
    process = report.process(100)
    process.context()
    main = process.thread(100, "python")
    at, free = 20 * US, 20 * US
    for i, length in enumerate(lengths):
        main.add_range(f"step {i}", at, at + kernels * 10 * US + 90 * US, domain="nsysx")
        for k in range(kernels):
            begin = max(free, at + 10 * US + k * 10 * US + 6 * US)
            main.launch(at + 10 * US + k * 10 * US, 4 * US, kernel="w", gpu_start=begin, gpu_dur=length // kernels)
            free = begin + length // kernels
        at += kernels * 10 * US + 100 * US
        if i == evaluate_after:
            main.sync("cudaDeviceSynchronize_v3020", at=at, dur=free + 5 * US - at)
            at = free + 10 * US
            main.add_range("eval", at, at + 100 * MS, domain="nsysx")
            for k in range(50):
                main.launch(at + k * 2 * MS, 4 * US, kernel="e", gpu_start=at + k * 2 * MS + 8 * US, gpu_dur=US)
            at += 100 * MS
            free = max(free, at)
    main.sync("cudaDeviceSynchronize_v3020", at=at, dur=free + 5 * US - at)
    return report


def test_an_evaluation_after_the_last_steady_step_is_not_replayed(tmp_path: Path) -> None:
    given, made = replayed(loop([10 * MS] * 9, evaluate_after=7), tmp_path)
    assert given.steps.steady == (0, 7)
    assert made.recorded_ns == pytest.approx(10 * MS, rel=0.01)
    assert made.error < 0.01
    assert made.real_ns == pytest.approx(10 * MS, rel=0.02)


@pytest.mark.parametrize("pause", [0, 800 * MS])
def test_a_pause_between_two_parts_of_a_capture_is_in_no_replayed_step(tmp_path: Path, pause: int) -> None:
    """The chosen steps are all of the first part; behind its last one the clock runs on until the second part begins."""
    report, starts = Report(), list[int]()
    report.gpu(pids=[(100, 0)])
    process = report.process(100)
    process.context()
    main = process.thread(100, "python")
    for i in range(9):
        at = 20 * US + i * 10 * MS + (pause if i == 8 else 0)
        starts.append(at)
        main.add_range(f"step {i}", at, at + 9 * MS, domain="nsysx")
        for k in range(9):
            main.launch(at + k * MS, 4 * US, kernel="w", gpu_start=at + k * MS + 8 * US, gpu_dur=900 * US)
    trace = load(report.write(tmp_path / "r.sqlite"))
    named = nvtx_ranges.read(trace)
    attributed = attribute.attribute(trace, correlate.correlate(trace), named)
    found = steps.find(named, attributed, steps="0:8", seams=[starts[8] - MS], main=0)
    given = profile.gather(trace, named, attributed, found, ledger.build(trace, attributed, named), only_steady=True)
    assert found.steady == (0, 7)
    made = replay_of(given)
    assert isinstance(made, Replay)
    assert made.window.numbers[-1] == 6
    assert made.unchanged_ns == pytest.approx(10 * MS, rel=0.01)
    assert made.error < 0.01


@pytest.mark.parametrize(
    "lengths", [[(5 + i // 2) * MS for i in range(40)], [(20, 10)[i > 20] * MS for i in range(40)]]
)
def test_the_steps_that_are_replayed_have_the_mean_of_all(
    tmp_path: Path, lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Growing steps, and steps that become short in the middle: a third of them is replayed."""
    monkeypatch.setattr(replayed_window, "MOST_REPLAYED_OPS", 13 * 20)
    given, made = replayed(loop(lengths), tmp_path)
    scope = replayed_scope(given)
    assert given.steps.steady is not None and scope is not None and scope.first is not None and scope.last is not None
    first, last = given.steps.steady
    mean = sum(lengths[first : last + 1]) / (last - first + 1)
    assert made.recorded_ns == pytest.approx(mean, rel=0.08)
    own = lengths[scope.first : scope.last + 1]
    assert len(own) == scope.steps == made.steps
    assert made.recorded_ns == pytest.approx(sum(own) / len(own), rel=0.02)


def test_the_steps_that_are_replayed_wait_and_compute_as_all_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty steps that compute all the time, then twenty of the same length that wait for half of it: some of both are replayed."""
    monkeypatch.setattr(replayed_window, "MOST_REPLAYED_OPS", 13 * 20)
    report = Report()
    report.gpu(pids=[(100, 0)])
    process = report.process(100)
    process.context()
    main = process.thread(100, "python")
    for i in range(41):
        at, took = 20 * US + i * 10 * MS, (490 if i < 20 else 245) * US
        main.add_range(f"step {i}", at, at + 9_990 * US, domain="nsysx")
        for k in range(20):
            main.launch(at + k * 5 * US, 4 * US, kernel="w", gpu_start=at + 110 * US + k * took, gpu_dur=took)
        main.sync("cudaStreamSynchronize_v3020", at=at + 105 * US, dur=20 * took + 10 * US)
    given, made = replayed(report, tmp_path)
    scope = replayed_scope(given)
    assert given.steps.steady == (0, 39) and scope is not None and scope.first is not None and scope.last is not None
    assert made.steps == 13
    assert 6 <= sum(i < 20 for i in range(scope.first, scope.last + 1)) <= 7


@pytest.mark.parametrize(("host_ms", "last"), [(14, False), (10, True)])
def test_steps_in_which_the_host_falls_back_are_not_the_ones_replayed(
    tmp_path: Path, host_ms: int, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step takes the device 10 ms; a host that got 50 ms ahead may be slower for ten steps, but not in every round of a replay."""
    monkeypatch.setattr(replayed_window, "MOST_REPLAYED_OPS", 9 * 20)
    report = Report()
    report.gpu(pids=[(100, 0)])
    process = report.process(100)
    process.context()
    main = process.thread(100, "python")
    at = free = 20 * US
    for i in range(31):
        took = (10, 5, host_ms, host_ms)[i // 10] * MS
        main.add_range(f"step {i}", at, at + took - 10 * US, domain="nsysx")
        for k in range(20):
            free = max(free, at + k * 10 * US + 8 * US)
            main.launch(at + k * 10 * US, 4 * US, kernel="w", gpu_start=free, gpu_dur=500 * US)
            free += 500 * US
        at += took
    main.sync("cudaDeviceSynchronize_v3020", at=at, dur=max(free - at, 0) + 5 * US)
    given, made = replayed(report, tmp_path)
    scope = replayed_scope(given)
    assert scope is not None and scope.first is not None and (scope.first >= 20) is last
    assert made.error < 0.03


def test_of_several_ranks_none_may_fall_back() -> None:
    begin, end = np.array([0, 1, 2]), np.array([2, 3, 4])
    worked = np.full((2, 4), 100)
    level = replayed_window._level(begin, end, np.array([[100, 100, 90, 110], [100, 100, 120, 100]]), worked)
    assert [run.tolist() for run in level] == [[0], [2]]
    every = replayed_window._level(begin, end, np.array([[150] * 4, [100] * 4]), worked)
    assert [run.tolist() for run in every] == [[0, 1, 2], [2, 3, 4]]


@pytest.mark.parametrize("fits", [5, 11, 40])
def test_how_many_steps_are_replayed_changes_no_figure_of_equal_steps(
    tmp_path: Path, fits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replayed_window, "MOST_REPLAYED_OPS", fits * 20)
    report = Report()
    report.gpu(pids=[(100, 0)])
    process = report.process(100)
    process.context()
    main = process.thread(100, "python")
    for i in range(30):  # 20 kernels of 100 us, a wait for them, 1 ms of host code
        at = 20 * US + i * 3_200 * US
        main.add_range(f"step {i}", at, at + 3_190 * US, domain="nsysx")
        for k in range(20):
            main.launch(at + k * 5 * US, 4 * US, kernel="w", gpu_start=at + 10 * US + k * 100 * US, gpu_dur=100 * US)
        main.sync("cudaStreamSynchronize_v3020", at=at + 110 * US, dur=1_905 * US)
    summary = summarize([report.write(tmp_path / "r.sqlite")], every_table=False)
    found = {f.code: f for f in summary.findings or () if f.verdict == "found"}
    assert summary.replay is not None and summary.replay["steps"] == min(fits, 29)
    assert found["NSX101"].saving_ns_per_step == pytest.approx(1_190 * US, rel=0.02)
    assert found["NSX101"].cost_ns_per_step == pytest.approx(1_195 * US, rel=0.02)


def test_calls_of_other_steps_are_not_in_the_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replayed_window, "MOST_REPLAYED_OPS", 13 * 20)
    given = read(loop([(5 + i // 2) * MS for i in range(40)]), tmp_path)
    scope = replayed_scope(given)
    assert scope is not None and scope.last is not None and given.steps.steady is not None
    assert scope.last < given.steps.steady[1]  # steps after the replayed ones are steady too


def starved(waits: list[int]) -> Report:
    """Steps that wait for a batch (ns) before their work of 20 x 50 us, and synchronize after it."""
    report = Report()
    report.gpu(pids=[(100, 0)])
    process = report.process(100)
    process.context()
    main = process.thread(100, "python")
    at = 20 * US
    for i, wait in enumerate(waits):
        main.add_range(f"step {i}", at, at + wait + 1_100 * US, domain="nsysx")
        main.add_range("data loading", at, at + wait, domain="nsysx")
        at += wait
        for k in range(20):
            begin = at + 20 * US + k * 50 * US
            main.launch(at + 10 * US + k * 10 * US, 4 * US, kernel="w", gpu_start=begin, gpu_dur=50 * US)
        main.sync("cudaDeviceSynchronize_v3020", at=at + 250 * US, dur=780 * US)
        at += 1_100 * US
    return report


def test_the_waits_for_data_of_the_replayed_steps_are_those_in_their_gpu_time(tmp_path: Path) -> None:
    """On the CPU a step begins with the wait for its batch, on the GPU it ends with that for the next one."""
    waits = [1, 2, 90, 5, 40, 70, 3, 60, 4, 120]
    given, made = replayed(starved([ns * MS for ns in waits]), tmp_path)
    assert given.steps.steady is not None
    first, last = given.steps.steady
    assert made.recorded_ns == pytest.approx(sum(waits[first + 1 : last + 2]) / made.steps * MS + 1_100 * US, rel=0.01)
    assert made.error < 0.005

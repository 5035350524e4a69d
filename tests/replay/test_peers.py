"""Ranks that wait for each other: what tracing makes of their waiting goes with it, what the ranks compute stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nsysx.model import Unprofiled
from nsysx.pipeline import ReadingOptions, gather_job
from nsysx.replay import peers, rank_alone
from nsysx.replay.engine import Replay, replay_of, unprofiled_of
from tests.builder import Report
from tests.replay.test_unprofiled import LAUNCH, MARK, US, table

pytestmark = pytest.mark.traced

LAUNCHES, STEPS = 100, 8
#: Host code before each launch and what the launch takes.
HOST, CALL = 8 * US, 3 * US
TRANSFER = 20 * US
BARE = LAUNCHES * (HOST + CALL) + TRANSFER


def job(
    *,
    marks: tuple[int, int],
    kernels: tuple[int, int] = (6, 6),
    traced: bool = True,
    only: int | None = None,
    in_turn: bool = False,
) -> Report:
    """Two processes, whose steps of ``LAUNCHES`` kernels (us each) end in an all-reduce, which ends on both, and a synchronize.

    ``marks``: how many backward marks each has in a step; ``traced`` stretches the host by LAUNCH and MARK where they stand.
    ``only``: which of the two is in the report. ``in_turn``: they swap their kernels with every step.
    """
    report, unseen = Report(), Report()
    threads = []
    for pid in (100, 200):
        process = (report if only in (None, pid) else unseen).process(pid)
        process.context()
        threads.append(process.thread(pid, "python"))
    added, price = (LAUNCH, MARK) if traced else (0, 0)
    at, free = [0, 0], [0, 0]
    for number in range(STEPS):
        begin = list(at)
        arrived, called = [0, 0], [0, 0]
        took_by = kernels[::-1] if in_turn and number % 2 else kernels
        for rank, thread in enumerate(threads):
            for k in range(LAUNCHES):
                if k % (LAUNCHES // marks[rank]) == 0:
                    thread.mark("bwd layer:Linear", at[rank] + US, domain="nsysx")
                    at[rank] += price
                at[rank] += HOST + added // 2
                took = CALL + added // 2
                start = max(free[rank], at[rank] + took + 2 * US)
                if k < LAUNCHES - 1:
                    thread.launch(at[rank], took, kernel="work", gpu_start=start, gpu_dur=took_by[rank] * US)
                    free[rank] = start + took_by[rank] * US
                arrived[rank], called[rank] = start, at[rank]
                at[rank] += took
        done = max(arrived) + TRANSFER
        for rank, thread in enumerate(threads):
            took = CALL + added // 2
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
            thread.launch(called[rank], took, kernel=name, gpu_start=arrived[rank], gpu_dur=done - arrived[rank])
            thread.sync(at=at[rank], dur=done + US - at[rank])
            free[rank], at[rank] = done, done + US
            thread.add_range(f"step {number}", begin[rank], at[rank], domain="nsysx")
    return report


def pipeline_of_two(first: int, second: int) -> Report:
    """Two stages of ``LAUNCHES`` kernels, of ``first`` and ``second`` us: the second waits for what the first sends, and sends back."""
    report = Report()
    at = 0
    threads = []
    for pid in (100, 200):
        process = report.process(pid)
        process.context()
        threads.append(process.thread(pid, "python"))
    for number in range(STEPS):
        begin, sent = at, [at + 200 * US + LAUNCHES * first * US, 0]
        sent[1] = sent[0] + TRANSFER + LAUNCHES * second * US
        end = sent[1] + TRANSFER
        for rank, (thread, kernel) in enumerate(zip(threads, (first, second), strict=True)):
            work = begin + 200 * US if rank == 0 else sent[0] + TRANSFER
            receives = (sent[1 - rank], sent[0] + TRANSFER if rank == 0 else begin + 200 * US)
            for k in range(LAUNCHES):
                thread.launch(begin + k * US, US, kernel="work", gpu_start=work + k * kernel * US, gpu_dur=kernel * US)
            for stream, start, done in (
                (8, sent[rank], sent[rank] + TRANSFER),
                (9, receives[1], receives[0] + TRANSFER),
            ):
                name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
                called = begin + (LAUNCHES + stream) * US
                thread.launch(called, US, kernel=name, gpu_start=start, gpu_dur=done - start, stream=stream)
            thread.sync(at=begin + 150 * US, dur=end + US - begin - 150 * US)
            thread.add_range(f"step {number}", begin, end + US, domain="nsysx")
        at = end + 2 * US
    return report


def told(*reports: Report, folder: Path) -> tuple[Unprofiled, Replay]:
    paths = []
    for number, report in enumerate(reports):
        paths.append(folder / f"r.rank{number}.sqlite")
        report.write(paths[-1])
        machine = {"schema": "nsysx.run/1", "machine_profile": table()}
        paths[-1].with_suffix(".run.json").write_text(json.dumps(machine))
    given = gather_job(paths, ReadingOptions()).profile
    known, replay = unprofiled_of(given), replay_of(given)
    assert isinstance(known, Unprofiled), known
    assert isinstance(replay, Replay)
    return known, replay


@pytest.mark.parametrize("marks", [(5, 50), (50, 5), (20, 20)])
@pytest.mark.parametrize("together", [True, False])
def test_waiting_that_tracing_caused_goes_with_it(tmp_path: Path, marks: tuple[int, int], together: bool) -> None:
    reports = [job(marks=marks)] if together else [job(marks=marks, only=100), job(marks=marks, only=200)]
    known, replay = told(*reports, folder=tmp_path)
    assert replay.recorded_ns > 1.4 * BARE, "tracing makes one rank slower, and the other waits for it"
    assert known.step_ns == pytest.approx(BARE, rel=0.03)
    assert known.low_ns < BARE < known.high_ns


@pytest.mark.parametrize("kernels", [(6, 40), (40, 6)])
@pytest.mark.parametrize("pids", [[None], [100, 200], [200, 100]])
def test_waiting_for_a_rank_that_computes_longer_stays(
    tmp_path: Path, kernels: tuple[int, int], pids: list[int | None]
) -> None:
    known, _ = told(*(job(marks=(5, 5), kernels=kernels, only=pid) for pid in pids), folder=tmp_path)
    slowest = max(kernels) * US * (LAUNCHES - 1) + TRANSFER
    assert known.step_ns == pytest.approx(slowest, rel=0.03)
    assert known.low_ns > 0.95 * slowest, "the GPU of the slowest rank is what every step takes"


@pytest.mark.parametrize("pids", [[None], [100, 200]])
def test_ranks_that_are_slow_in_turn_wait_for_each_other_in_every_step(tmp_path: Path, pids: list[int | None]) -> None:
    """Batches of different length: both ranks compute as long, and every step is as long as the longer batch."""
    known, _ = told(*(job(marks=(5, 5), kernels=(20, 60), only=pid, in_turn=True) for pid in pids), folder=tmp_path)
    longer = 60 * US * (LAUNCHES - 1) + TRANSFER
    assert known.step_ns == pytest.approx(longer, rel=0.03)
    assert 0.95 * longer < known.low_ns < longer < known.high_ns


@pytest.mark.parametrize("pids", [[None], [100, 200]])
def test_who_is_last_only_under_the_profiler_waits_without_it(tmp_path: Path, pids: list[int | None]) -> None:
    """The first rank comes last, as recorded, because tracing slows its host; without it the other one's work takes longer."""
    known, replay = told(*(job(marks=(50, 5), kernels=(6, 20), only=pid) for pid in pids), folder=tmp_path)
    longer = 20 * US * (LAUNCHES - 1) + TRANSFER
    assert BARE < longer < 0.85 * replay.recorded_ns
    assert known.step_ns == pytest.approx(longer, rel=0.03)


def test_waiting_for_a_rank_that_cannot_be_replayed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be the one that all wait for."""
    monkeypatch.setattr(rank_alone, "by_communication", lambda _: ())
    known, replay = told(*(job(marks=(5, 5), kernels=(6, 40), only=pid) for pid in (100, 200)), folder=tmp_path)
    assert known.step_ns > 0.85 * replay.recorded_ns


def test_a_rank_that_waits_idles_no_less_than_its_step_leaves(tmp_path: Path) -> None:
    known, _ = told(job(marks=(5, 50)), folder=tmp_path)
    assert known.gpu_busy_ns + known.gpu_idle_ns == pytest.approx(known.step_ns, abs=2)
    assert sum(known.idle_causes.values()) == pytest.approx(known.gpu_idle_ns, rel=0.01)


def test_a_rank_without_its_peers_says_how_little_it_may_wait(tmp_path: Path) -> None:
    """Its peer was slowed by tracing, of which this report knows nothing: the step keeps the waiting, its bounds do not."""
    known, replay = told(job(marks=(5, 50), only=100), folder=tmp_path)
    assert known.step_ns > 1.3 * BARE
    assert known.low_ns < BARE < known.high_ns <= replay.recorded_ns * 1.03


def test_a_rank_without_its_peers_that_waits_for_their_work_waits_on(tmp_path: Path) -> None:
    known, _ = told(job(marks=(5, 5), kernels=(40, 80), only=100), folder=tmp_path)
    slowest = 80 * US * (LAUNCHES - 1) + TRANSFER
    assert known.step_ns == pytest.approx(slowest, rel=0.03)
    assert known.low_ns > 0.9 * slowest, "tracing changes nothing in a GPU that is never short of work"


@pytest.mark.parametrize(("first", "second"), [(20, 20), (10, 30)])
def test_a_stage_waits_for_the_work_of_another_stage(tmp_path: Path, first: int, second: int) -> None:
    """What a receive waits is no unevenness of ranks: a step is as long as both stages, one after the other."""
    known, replay = told(pipeline_of_two(first, second), folder=tmp_path)
    assert known.step_ns == pytest.approx(replay.recorded_ns, rel=0.01)
    assert known.step_ns > (first + second) * LAUNCHES * US


def test_another_rank_of_a_report_has_its_own_steady_events(tmp_path: Path) -> None:
    """What a change removes on all ranks is read from each rank's own steps."""
    profile = gather_job([job(marks=(4, 2)).write(tmp_path / "j.sqlite")], ReadingOptions()).profile
    (other,) = peers.others(profile)
    for each in (profile, other):
        assert each.scope.processes == (each.process,) and each.scope.steps == profile.scope.steps
        assert set(each.steady_ops["process"]) == set(each.steady_calls["process"]) == {each.process}
    assert other.process != profile.process

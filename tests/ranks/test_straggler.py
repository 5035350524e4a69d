"""Who the others wait for, and what it costs: the truth is built in."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nsysx.catalogue import Late
from nsysx.errors import NsysxError
from nsysx.events.profile import Profile
from nsysx.judging import rank_waiting
from nsysx.pipeline import ReadingOptions, gather_job, summarize
from nsysx.ranks import own_time, straggler
from nsysx.ranks.match import SeriesKey
from nsysx.replay import engine, replayed_window, unprofiled
from tests.builder import Report
from tests.ranks import rank_rows
from tests.ranks.test_rank_table import ALL_REDUCE, reports

US, MS = 1_000, 1_000_000
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)"


def job(path: Path, own: list[list[int]], *, idle: str = "", clocks_mhz: Sequence[int] = (), stream: int = 20) -> Path:
    """Write a job: ``own[r][i]`` is how long rank r works in step i before the all-reduce that all wait for (50 us).

    ``idle`` names a range in which a rank's host spends what exceeds 20 ms, its device idle; else it computes all of it. ``clocks_mhz``
    are the clocks of the ranks' GPUs, sampled every ms. ``stream`` has the all-reduce: on that of the computation (7) it begins when that
    is done, in a replay, too.
    """
    report = Report()
    for r in range(len(own)):
        report.gpu(r, pids=[(100 + r, r)])
    for r, mhz in enumerate(clocks_mhz):
        report.counters(("GPC Clock Frequency [MHz]", "SMs Active [Throughput %]"), gpu=r)
        for at in range(0, sum(max(each) for each in zip(*own, strict=True)), MS):
            report.sample(at, (mhz * 1_000_000, 95), gpu=r)
    threads = [(p := report.process(100 + r)).thread(p.pid, "python3") for r in range(len(own))]
    for r, thread in enumerate(threads):
        thread.process.context(device=r)
    t = MS
    for i in range(len(own[0])):
        done = t + max(o[i] for o in own) + 50 * US
        for r, thread in enumerate(threads):
            late = max(0, own[r][i] - 20 * MS) if idle else 0
            work = own[r][i] - late
            if late:
                thread.add_range(idle, t + US, t + late, domain="nsysx")
            for k in range(4):
                begin = t + late + k * work // 4
                thread.launch(
                    t + late + 2 * US + k * 5 * US,
                    kernel=f"gemm{k}",
                    gpu_start=begin + 20 * US,
                    gpu_dur=work // 4 - 20 * US,
                    device=r,
                )
            came = t + late + work
            thread.launch(
                t + late + 40 * US, kernel=ALL_REDUCE, gpu_start=came, gpu_dur=done - came, stream=stream, device=r
            )
            thread.sync("cudaDeviceSynchronize_v3020", at=t + late + 50 * US, dur=done - t - late - 40 * US, device=r)
            thread.add_range(f"step {i}", t, done + 20 * US, domain="nsysx")
        t = done + 30 * US
    return report.write(path)


def ranks(path: Path) -> tuple[list[Any], Any]:
    summary = summarize([path], every_table=False)
    finding = next(f for f in summary.findings or () if f.code == "NSX111")
    return list(summary.rows("ranks")), finding


def test_a_rank_that_sleeps_in_its_loader_costs_all_of_it(tmp_path: Path) -> None:
    rows, finding = ranks(job(tmp_path / "j.sqlite", [[20 * MS] * 12, [41_900 * US] * 12], idle="data DataLoader"))
    assert [r["straggler"] for r in rows] == [False, True]
    late = rows[1]
    assert late["late_cause"] == "input"
    assert abs(late["price_ns"] - 21_900 * US) < 300 * US
    assert late["price_share"] == late["alone_share"] == 1.0
    assert late["replay_error"] < 0.01
    assert finding.saving_ns_per_step == late["price_ns"]
    assert "loading" in finding.fix


def test_a_rank_with_more_work(tmp_path: Path) -> None:
    rows, finding = ranks(job(tmp_path / "j.sqlite", [[20 * MS] * 12, [20 * MS] * 12, [50 * MS] * 12]))
    assert [r["straggler"] for r in rows] == [False, False, True]
    assert rows[2]["late_cause"] == "compute"
    assert rows[2]["price_ns"] == 30 * MS
    assert "same work" in finding.fix


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_job_without_communication_is_as_long_as_its_slowest_rank(tmp_path: Path, late: int) -> None:
    path = job(tmp_path / "j.sqlite", [[50 * MS if r == late else 20 * MS] * 12 for r in range(3)])
    profile = gather_job([path], ReadingOptions()).profile
    made = engine.replay_of(profile)
    assert isinstance(made, engine.Replay)
    after = made.saving(engine.RemoveExposedComm())
    assert 49 * MS < after.step_ns <= made.real_ns
    assert after.saving_ns < 2 * MS
    fast = engine.replay_of(gather_job([job(tmp_path / "e.sqlite", [[20 * MS] * 12] * 2)], ReadingOptions()).profile)
    assert isinstance(fast, engine.Replay)
    assert fast.saving(engine.RemoveExposedComm()).step_ns < 21 * MS


def test_reports_of_single_ranks_know_the_slowest_one_without_communication(tmp_path: Path) -> None:
    paths = reports(tmp_path, [300 * US, 600 * US], starts=[0, 0], clocks=[0, 0])
    made = engine.replay_of(gather_job(paths, ReadingOptions()).profile)
    assert isinstance(made, engine.Replay)
    assert made.real_ns > 600 * US
    assert made.saving(engine.RemoveExposedComm()).step_ns > 600 * US


@pytest.mark.parametrize(
    ("own", "idle", "said"),
    [
        ([[20 * MS] * 12, [50 * MS] * 12], "", "The others wait for rank 1"),
        ([[20 * MS] * 12, [20 * MS] * 12], "", "No rank waits for another for 1 % of the step"),
        ([[20 * MS + 5 * MS * (i % 2 == r) for i in range(12)] for r in range(2)], "", "in turn, up to 2.73"),
        ([[38 * MS] * 12, [43 * MS] * 12], "some range", "Rank 1 comes last in 100 % of the collectives"),
    ],
)
def test_who_is_waited_for_is_said_from_the_table(tmp_path: Path, own: list[list[int]], idle: str, said: str) -> None:
    rows, finding = ranks(job(tmp_path / "j.sqlite", own, idle=idle))
    assert said in rank_waiting.sentence(rows)
    assert finding.verdict == "found" or said in finding.detail


def test_waiting_is_told_by_who_is_waited_for_and_sums_to_it(tmp_path: Path) -> None:
    own = [[20 * MS, 30 * MS, 26 * MS][(i + r) % 3] for r in range(3) for i in range(12)]
    rows, _ = ranks(job(tmp_path / "j.sqlite", [own[12 * r : 12 * r + 12] for r in range(3)]))
    for row in rows:
        assert sum(w["ns"] for w in row["waits_for"]) == row["exposed_wait_ns"] > 0
        assert row["rank"] not in {w["rank"] for w in row["waits_for"]}
    assert {w["rank"] for row in rows for w in row["waits_for"] if w["rank"] is not None} == {0, 1, 2}
    rows, _ = ranks(job(tmp_path / "l.sqlite", [[20 * MS] * 12, [50 * MS] * 12]))
    assert rows[0]["waits_for"] == [{"rank": 1, "ns": rows[0]["exposed_wait_ns"], "because": "compute"}]


@pytest.mark.parametrize(("slowed_us", "late"), [(0, True), (900, True), (2_800, False)])
def test_kernels_that_a_waiting_collective_slows_are_no_more_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slowed_us: int, *, late: bool
) -> None:
    """Rank 1 computes 3 ms longer; so much of that because its collective spins beside its kernels until the other rank comes."""

    def slowed(profile: Profile) -> float:
        return float(profile.scope.steps or 0) * slowed_us * US * (profile.process == max(processes))

    path = job(tmp_path / "j.sqlite", [[20 * MS] * 12, [23 * MS] * 12])
    processes = {row["process"] for row in ranks(path)[0]}
    monkeypatch.setattr(own_time, "slowed_ns", slowed)
    rows, finding = ranks(path)
    assert [row["straggler"] for row in rows] == [False, late]
    assert (finding.verdict == "found") is late


def test_kernels_that_all_take_longer_are_a_slow_clock(tmp_path: Path) -> None:
    rows, finding = ranks(job(tmp_path / "j.sqlite", [[20 * MS] * 12, [22 * MS] * 12]))
    assert rows[1]["late_cause"] == "clocks"
    assert "clocks" in finding.fix


@pytest.mark.parametrize(
    ("clocks_mhz", "cause", "said"),
    [
        ((1980, 660), "held_clock", "its GPU runs at 660 of 1980 MHz"),
        ((1980, 1900), "compute", "which wait for it"),  # a clock that differs little explains little
        ((1980,), "compute", "which wait for it"),  # that of the late rank was not sampled
        ((), "compute", "which wait for it"),
    ],
)
def test_a_rank_whose_gpu_is_held_down_has_no_more_work_than_others(
    tmp_path: Path, clocks_mhz: tuple[int, ...], cause: str, said: str
) -> None:
    rows, finding = ranks(job(tmp_path / "j.sqlite", [[20 * MS] * 12, [60 * MS] * 12], clocks_mhz=clocks_mhz))
    assert (rows[1]["straggler"], rows[1]["late_cause"]) == (True, cause)
    assert finding.title.endswith(said)
    held = cause == "held_clock"
    assert ("nvidia-smi" in finding.paste, "no change of the program" in finding.fix) == (held, held)
    assert (rows[1]["even_ns"] is None) == held and rows[1]["price_ns"] == pytest.approx(40 * MS, rel=0.01)
    assert [r["clock_mhz"] for r in rows] == [*clocks_mhz, *[None] * (2 - len(clocks_mhz))]


def test_ranks_that_are_late_in_turn_are_no_stragglers(tmp_path: Path) -> None:
    own = [[20 * MS + 5 * MS * (i % 2 == r) for i in range(12)] for r in range(2)]
    rows, finding = ranks(job(tmp_path / "j.sqlite", own))
    assert not any(r["straggler"] for r in rows)
    assert finding.verdict == "clear"


def test_a_host_that_is_a_quarter_slower_is_no_straggler(tmp_path: Path) -> None:
    rows, finding = ranks(job(tmp_path / "j.sqlite", [[38 * MS] * 12, [43 * MS] * 12], idle="some range"))
    assert not any(r["straggler"] for r in rows)
    assert rows[1]["late_ns"] == rows[1]["late_drift_ns"] > 4 * MS
    assert "healthy processes" in finding.detail


def test_host_code_that_hides_behind_a_collective_counts(tmp_path: Path) -> None:
    """Rank 0 waits 10 ms on its GPU for rank 1, whose host is slower; its own host code, which goes on meanwhile, takes 24 ms."""
    report = Report()
    host = (24 * MS, 26 * MS)
    threads = []
    for r in range(2):
        report.gpu(r, pids=[(100 + r, r)])
        process = report.process(100 + r)
        process.context(device=r)
        threads.append(process.thread(process.pid, "python3"))
    for i in range(12):
        t = MS + i * 26 * MS
        came = [t + 10 * MS, t + 20 * MS]
        for r, thread in enumerate(threads):
            thread.launch(came[r] - 20 * US, kernel="gemm", gpu_start=came[r] - 10 * US, gpu_dur=8 * US, device=r)
            done = came[1] + 50 * US
            thread.launch(
                came[r] - 10 * US, kernel=ALL_REDUCE, gpu_start=came[r], gpu_dur=done - came[r], stream=20, device=r
            )
            for k in range(10):  # goes on while the collective waits
                at = came[r] + (t + host[r] - came[r]) * (k + 1) // 11
                start = max(at, done) + 10 * US
                thread.launch(at, kernel="add", gpu_start=start + k * 5 * US, gpu_dur=4 * US, device=r, stream=20)
            thread.sync(
                "cudaDeviceSynchronize_v3020",
                at=t + host[r],
                dur=t + 26 * MS - 100 * US - t - host[r] + 90 * US,
                device=r,
            )
            thread.add_range(f"step {i}", t, t + 26 * MS - US, domain="nsysx")
    rows, finding = ranks(report.write(tmp_path / "h.sqlite"))
    assert rows[0]["exposed_wait_ns"] > 9 * MS * rows[0]["steps"]
    assert not any(r["straggler"] for r in rows)
    assert all((r["price_ns"] or 0) < 3 * MS for r in rows), rows
    assert finding.verdict == "clear"


def test_a_balanced_pipeline_has_a_bubble_and_no_straggler(tmp_path: Path) -> None:
    """Two stages, four micro-batches, forward 2 ms and backward 4: each stage waits or idles for a fifth of the step."""
    report = Report()
    stages = []
    for r in range(2):
        report.gpu(r, pids=[(100 + r, r)])
        process = report.process(100 + r)
        process.context(device=r)
        stages.append(process.thread(process.pid, "python3"))
    for i in range(10):
        t = MS + i * 31 * MS
        free, calls = [t + 60 * US] * 2, [t + 10 * US] * 2

        def work(r: int, name: str, start: int, length: int, stream: int, calls: list[int]) -> None:
            stages[r].launch(calls[r], 2 * US, kernel=name, gpu_start=start, gpu_dur=length, stream=stream, device=r)
            calls[r] += 4 * US

        for length, first, stream in ((2 * MS, 0, 20), (4 * MS, 1, 21)):
            for _ in range(4):
                second = 1 - first
                work(first, "gemm", free[first], length, 7, calls)
                free[first] += length
                end = max(free) + 50 * US
                for r in (0, 1):
                    work(r, SEND, free[r], end - free[r], stream, calls)
                    free[r] = end
                work(second, "gemm", free[second], length, 7, calls)
                free[second] += length
        for stage in stages:
            stage.add_range(f"step {i}", t, t + 31 * MS - US, domain="nsysx")
    rows, finding = ranks(report.write(tmp_path / "pp.sqlite"))
    assert not any(r["straggler"] for r in rows)
    for r in rows:
        assert r["delay_ns"] is None
        assert r["bubble_ns"] == r["exposed_wait_ns"] + r["idle_ns"]
    assert finding.verdict == "clear"
    assert "bubble" in finding.detail


def test_only_messages_between_two_make_stages() -> None:
    """An all-to-all is made of sends, too, and each of its ranks has many partners."""
    assert SeriesKey("1", (0, 1), 0, "sendrecv").between_two
    assert SeriesKey("", (), 3, "sendrecv").between_two  # who exchanges them was not noted
    assert not SeriesKey("1", (), 0, "sendrecv").between_two
    assert not SeriesKey("1", (), 0, "allreduce").between_two


@pytest.mark.parametrize("what", ["later", "same", "command"])
def test_two_runs_are_not_two_ranks(tmp_path: Path, what: str) -> None:
    paths = reports(tmp_path, [300_000, 500_000], starts=[0, 0], clocks=[0, 10**12 if what == "later" else 0])
    if what == "same":
        shutil.copy(paths[0], paths[1])
    if what == "command":
        for path, word in zip(paths, ("a.py", "b.py"), strict=True):
            path.with_suffix(".run.json").write_text(f'{{"schema": "nsysx.run/1", "command": ["python", "{word}"]}}')
    with pytest.raises(NsysxError) as error:
        summarize(paths)
    assert error.value.exit_code == 2
    assert error.value.slug == ("same-report" if what == "same" else "not-one-job")
    assert "nsysx compare" in error.value.hint


@pytest.mark.parametrize("normalized", [False, True])
def test_sessions_that_began_apart_are_one_job_in_any_time(tmp_path: Path, normalized: bool) -> None:
    """Session 1 began 2 s later; exported with times since 1970 the reports say the same as with times of the session."""
    began = [1_795_228_332_000_000_000, 1_795_228_334_000_000_000]
    files = []
    for r, epoch in enumerate(began):
        report = Report("3.24.7", utc_epoch_ns=epoch)
        report.gpu(pids=[(100 + r, 0)])
        process = report.process(100 + r)
        process.context()
        main = process.thread(100 + r, "python")
        for i in range(12):
            t = 5_000 * MS + i * 10 * MS - (epoch - began[0])  # the same instants
            main.add_range(f"step {i}", t, t + 10 * MS - 5 * US)
            work = (4, 7)[r] * MS
            main.launch(t + 10 * US, kernel="w", gpu_start=t + 30 * US, gpu_dur=work)
            came, done = t + 30 * US + work, t + 7_130 * US
            main.launch(t + 30 * US, kernel=ALL_REDUCE, gpu_start=came, gpu_dur=done - came, stream=20)
            main.launch(t + 50 * US, kernel="adam", gpu_start=done + 100 * US, gpu_dur=MS, stream=20)
            main.sync("cudaDeviceSynchronize_v3020", at=t + 60 * US, dur=done + 1_050 * US - t)
        if normalized:
            report.shift(epoch)
        files.append(report.write(tmp_path / f"n.rank{r}.sqlite"))
    rows = rank_rows(*files)
    assert rows is not None
    assert [(r["wait_ns"], r["transfer_ns"], r["straggler"]) for r in rows] == [
        (11 * 3 * MS, 11 * 100 * US, False),
        (0, 11 * 100 * US, True),
    ]
    assert [r["clock_correction_ns"] for r in rows] == [0, 0]


@pytest.mark.parametrize(("idle_ms", "drift_ms"), [(5, 5), (50, 10)])
def test_without_replays_a_rank_may_drift_by_its_idle_time_but_by_no_more_than_healthy_ones_do(
    monkeypatch: pytest.MonkeyPatch, idle_ms: int, drift_ms: int
) -> None:
    more = {"compute_ns": 90.0 * MS, straggler._DRIFTING[0]: float(idle_ms * MS)}
    monkeypatch.setattr(straggler, "excesses", lambda *_: {1: more})
    monkeypatch.setattr(straggler, "cause_of", lambda _: Late.COMPUTE)
    tiles = SimpleNamespace(start_ns=np.array([0, 30 * MS]), end_ns=np.array([30 * MS, 60 * MS]))
    ranks = [SimpleNamespace(tiles=tiles)] * 2
    excess = straggler._by_ledger(ranks, (0, 1), 1, np.full((2, 2), 30.0 * MS))  # type: ignore[arg-type]
    assert (excess.step, excess.drift, excess.cause) == (30 * MS, drift_ms * MS, Late.COMPUTE)


def in_two_windows(
    folder: Path, before: list[list[int]], steady: list[list[int]], *, left: tuple[int, ...] = (100, 101)
) -> Path:
    """Write a job whose cold start is in a report of its own; ``left``: the processes that CUPTI left between the windows."""
    cold = job(folder / "r.cold.sqlite", before, idle="some range")
    with closing(sqlite3.connect(cold)) as report, report:
        columns = "timestamp INT, timestampType INT, source INT, severity INT, text TEXT, globalPid INT"
        report.execute(f"CREATE TABLE IF NOT EXISTS DIAGNOSTIC_EVENT ({columns})")
        for pid in left:
            text = "The CUPTI was finalized to allow another client to subscribe."
            report.execute("INSERT INTO DIAGNOSTIC_EVENT VALUES (0, 1, 1, 1, ?, ?)", (text, (pid << 24) | 1 << 48))
    path = job(folder / "r.sqlite", steady, idle="some range")
    bare = {
        "lengths_ns": [40 * MS] * 40,
        "clock": "gpu",
        "where": "between the windows",
        "after_ns": [],
        "detached": True,
    }
    probes = [
        {
            "pid": 100 + r,
            "rank": str(r),
            "unrecorded_steps": bare,
            "window_pauses_ns": [4_000 * MS, 4_000 * MS],
            "steps": {},
        }
        for r in range(len(steady))
    ]
    record = {"schema": "nsysx.run/1", "probe": probes, "files": {"cold": "r.cold.sqlite"}}
    (folder / "r.run.json").write_text(json.dumps(record))
    return path


@pytest.mark.parametrize("before_ms", [[36, 60], [60, 36], [44, 44]])
def test_who_is_late_in_host_code_in_one_window_only_is_no_straggler(tmp_path: Path, before_ms: list[int]) -> None:
    """In the steady steps rank 1 is late by 24 ms, which is more than the hosts of healthy processes differ by."""
    path = in_two_windows(tmp_path, [[ms * MS] * 24 for ms in before_ms], [[36 * MS] * 12, [60 * MS] * 12])
    rows, finding = ranks(path)
    always = before_ms[1] > before_ms[0]
    assert [r["straggler"] for r in rows] == [False, always]
    assert rows[1]["late_ns"] > 20 * MS and (rows[1]["late_drift_ns"] == rows[1]["late_ns"]) is not always
    if not always:
        assert "healthy processes" in finding.detail


def test_a_late_rank_of_a_job_that_was_timed_without_the_profiler_is_told_in_that_time(tmp_path: Path) -> None:
    slow = [[16 * MS] * 24, [38 * MS] * 24]
    summary = summarize([in_two_windows(tmp_path, slow, slow)], every_table=False)
    answer, late = summary.answer, summary.rows("ranks")[1]
    assert summary.unprofiled is not None and summary.unprofiled.source == "in_process"
    assert late["straggler"] and answer.now_ns == summary.unprofiled.step_ns != answer.recorded_ns
    assert answer.then_ns == answer.now_ns - late["price_ns"] and answer.real
    assert answer.picture.title.endswith(", as recorded")


@pytest.mark.parametrize(("left", "bare"), [((100, 101), True), ((100,), False), ((101,), False), ((), False)])
def test_steps_of_a_job_are_bare_where_cupti_left_every_rank(tmp_path: Path, left: tuple[int, ...], bare: bool) -> None:
    """They wait for each other: a rank whose launches are slower holds the others."""
    own = [[38 * MS] * 24, [38 * MS] * 24]
    summary = summarize([in_two_windows(tmp_path, own, own, left=left)], every_table=False)
    (check,) = [check for check in summary.quality if check.check == "windows"]
    assert ("stays in the program's CUDA calls" not in check.detail) is bare


def test_ranks_of_one_report_replay_the_same_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More work than is replayed, in steps of different lengths on each rank: each would choose a run of its own."""
    monkeypatch.setattr(replayed_window, "MOST_REPLAYED_OPS", 40)
    own = [[(30 + (i % 5) * (1 + r) + r * (i > 8)) * MS for i in range(24)] for r in range(3)]
    chosen = []
    real = unprofiled.choose

    def choose(profile: Profile) -> replayed_window.ReplayedWindow | replayed_window.Withheld:
        chosen.append(real(profile))
        return chosen[-1]

    monkeypatch.setattr(unprofiled, "choose", choose)
    rows, _ = ranks(job(tmp_path / "j.sqlite", own))
    runs = [w.numbers for w in chosen if isinstance(w, replayed_window.ReplayedWindow)]
    assert len(runs) >= 3 and len(set(runs)) == 1 and 4 <= len(runs[0]) <= 8
    assert all(r["late_ns"] is None or r["replay_error"] < 0.01 for r in rows)

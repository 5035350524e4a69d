"""The replay against programs whose answer is known: the same wait is worth nothing in one and a sixth of the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl
import pytest

from nsysx.events import attribute, correlate, ledger, nvtx_ranges, profile, steps
from nsysx.events.profile import Profile
from nsysx.reading.load import load
from nsysx.replay import engine
from nsysx.replay.engine import (
    FreeLoader,
    Fuse,
    Graph,
    OverlapCopies,
    RemoveCalls,
    RemoveExposedComm,
    RemoveHost,
    RemoveOps,
    RemoveWaits,
    Replay,
    ScaleOps,
    replay_of,
)
from nsysx.replay.simulate import run
from tests.builder import Report, Thread

US = 1000


def read(report: Report, folder: Path) -> Profile:
    trace = load(report.write(folder / "r.sqlite"))
    named = nvtx_ranges.read(trace)
    attributed = attribute.attribute(trace, correlate.correlate(trace), named)
    found = steps.find(named, attributed)
    return profile.gather(trace, named, attributed, found, ledger.build(trace, attributed, named), only_steady=False)


def replayed(report: Report, folder: Path) -> tuple[Profile, Replay]:
    given = read(report, folder)
    made = replay_of(given)
    assert isinstance(made, Replay), made
    return given, made


def training(count: int = 6, backward: Sequence[int] = (400,) * 100, loading: int = 0, malloc: int = 0) -> Report:
    """``count`` equal steps (times in us): 100 forward kernels of 200, an ``.item()`` that waits for them, backward on the
    autograd thread, 10 optimizer kernels of 50, and an event synchronize that ends the step.
    """
    report = Report()
    process = report.process(100)
    process.context()
    main, autograd = process.thread(100, "python"), process.thread(101, "pt_autograd_0")
    at = free = 0
    for number in range(count):
        begin = at
        if loading:
            main.add_range("data DataLoader", at * US, (at + loading) * US, domain="nsysx")
            at += loading
        for k in range(100):
            start = max(free, at + 10)
            main.launch(at * US, 10 * US, kernel="fwd_gemm", gpu_start=start * US, gpu_dur=200 * US)
            free, at = start + 200, at + 10
            if malloc and k == 50:
                main.call("cudaMalloc_v3020", at * US, malloc * US)
                at += malloc
        main.memcpy(
            at * US, (free + 4 - at) * US, kind="DtoH", pageable=True, gpu_start=free * US, gpu_dur=2 * US, bytes=4
        )
        at, free = free + 12, free + 2
        for dur in backward:
            start = max(free, at + 10)
            autograd.launch(at * US, 10 * US, kernel="bwd_gemm", gpu_start=start * US, gpu_dur=dur * US)
            free, at = start + dur, at + 10
        for _ in range(10):
            start = max(free, at + 10)
            main.launch(at * US, 10 * US, kernel="adam", gpu_start=start * US, gpu_dur=50 * US)
            free, at = start + 50, at + 10
        main.event_record(1, at=at * US)
        at += 6
        end = max(free + 2, at + 2)
        main.sync("cudaEventSynchronize_v3020", at=at * US, dur=(end - at) * US, event=1)
        at = end + 2
        main.add_range(f"step {number}", begin * US, at * US, domain="nsysx")
    return report


def calls_of(given: Profile, name: str) -> frozenset[int]:
    return frozenset(given.attributed.api_calls.filter(pl.col("name").cast(pl.String) == name)["call"].to_list())


def ops_of(given: Profile, name: str) -> frozenset[int]:
    return frozenset(given.attributed.gpu_ops.filter(pl.col("name").cast(pl.String) == name)["op"].to_list())


def test_unchanged_is_the_recorded_step(tmp_path: Path) -> None:
    for backward in ((400,) * 100, (5,) * 1000):
        _, made = replayed(training(backward=backward), tmp_path)
        assert made.error < 1e-4
        assert made.trusted


def test_a_wait_in_a_gpu_bound_step_is_worth_nothing_and_moves(tmp_path: Path) -> None:
    given, made = replayed(training(), tmp_path)
    item = calls_of(given, "cudaMemcpyAsync")
    outcome = made.saving(RemoveWaits(item))
    assert 0 <= outcome.saving_ns < 100 * US
    assert outcome.moves_to is not None
    assert outcome.moves_to.startswith("cudaEventSynchronize")
    assert outcome.next_limit == "GPU work"


def test_the_same_wait_in_a_launch_bound_step_is_worth_what_the_gpu_idles(tmp_path: Path) -> None:
    given, made = replayed(training(backward=(5,) * 1000), tmp_path)
    outcome = made.saving(RemoveWaits(calls_of(given, "cudaMemcpyAsync")))
    # The 1000 launches of 10 us then hide behind the forward kernels: backward takes 5 ms of GPU time instead of 10.
    assert outcome.saving_ns == pytest.approx(5_000 * US, rel=0.02)


def test_the_chain_of_waits_ends_where_it_gains(tmp_path: Path) -> None:
    given, made = replayed(training(backward=(5,) * 1000), tmp_path)
    sites = given.wait_sites().group_by("site", maintain_order=True).agg("call")
    links = made.chain({site: frozenset(calls) for site, calls in sites.iter_rows()})
    assert links[0].site.startswith("cudaMemcpyAsync")
    assert links[-1].saving_ns > 0.01 * made.unchanged_ns


def test_faster_kernels_gain_their_time_on_the_critical_path_only(tmp_path: Path) -> None:
    given, made = replayed(training(), tmp_path)
    assert made.saving(ScaleOps(ops_of(given, "bwd_gemm"), 0.5)).saving_ns == pytest.approx(20_000 * US, rel=0.01)
    assert made.saving(RemoveOps(ops_of(given, "adam"))).saving_ns == pytest.approx(500 * US, rel=0.05)
    given, made = replayed(training(backward=(5,) * 1000), tmp_path)
    # 1000 launches take 10 ms however fast their kernels are.
    assert made.saving(ScaleOps(ops_of(given, "bwd_gemm"), 0.5)).saving_ns < 50 * US


def test_a_graph_takes_the_launches_away(tmp_path: Path) -> None:
    given, made = replayed(training(backward=(5,) * 1000), tmp_path)
    busy = 100 * 200 + 2 + 1000 * 5 + 10 * 50
    outcome = made.saving(Graph())
    # Each kernel still pauses for up to 1 us inside the graph, and the .item() still parts forward from backward.
    assert busy * US < outcome.step_ns < (busy + 1100) * US
    assert made.saving(Graph(calls_of(given, "cudaLaunchKernel"))).step_ns == outcome.step_ns


def test_loading_counts_only_as_far_as_it_shows(tmp_path: Path) -> None:
    _, made = replayed(training(loading=7_000), tmp_path)
    assert made.saving(FreeLoader()).saving_ns == pytest.approx(7_000 * US, rel=0.01)


def test_an_allocation_behind_a_busy_gpu_costs_nothing(tmp_path: Path) -> None:
    given, made = replayed(training(malloc=1_000), tmp_path)
    assert made.error < 1e-4
    assert made.saving(RemoveCalls(calls_of(given, "cudaMalloc"))).saving_ns < 100 * US


def test_host_code_of_a_launch_bound_step(tmp_path: Path) -> None:
    given, made = replayed(training(backward=(5,) * 1000), tmp_path)
    assert made.saving(RemoveHost()).saving_ns <= made.unchanged_ns
    assert made.saving(RemoveHost(calls_of(given, "cudaEventSynchronize"))).saving_ns < 100 * US


def test_copies_on_their_own_stream(tmp_path: Path) -> None:
    given, made = replayed(training(), tmp_path)
    assert made.saving(OverlapCopies(ops_of(given, "DtoH"))).saving_ns >= 0


def test_edits_do_not_touch_the_unchanged_replay(tmp_path: Path) -> None:
    given, made = replayed(training(), tmp_path)
    before = made.saving().step_ns
    made.saving(RemoveOps(frozenset(given.attributed.gpu_ops["op"].to_list())))
    made.saving(RemoveWaits(), Graph(), FreeLoader())
    assert made.saving().step_ns == before == made.unchanged_ns
    assert made.saving().saving_ns == 0


def test_without_steps_there_is_a_reason_instead(tmp_path: Path) -> None:
    report = Report()
    main = report.process(1).thread(1)
    main.launch(0, 5, gpu_start=10, gpu_dur=10)
    made = replay_of(read(report, tmp_path))
    assert not isinstance(made, Replay)
    assert "no steps" in made.reason


def test_full_launch_queue_moves_with_the_gpu(tmp_path: Path) -> None:
    """The CPU runs ahead until launches stall at 1024 pending ops; faster kernels must shorten those stalls."""
    report = Report()
    process = report.process(100)
    process.context()
    main = process.thread(100, "python")
    at = free = 0
    starts: list[int] = []
    for number in range(5):
        begin = at
        for _ in range(1200):
            if len(starts) >= 1024 and starts[-1024] > at:
                stall = starts[-1024] - at
            else:
                stall = 0
            start = max(free, at + stall + 10)
            main.launch(at * US, (stall + 2) * US, gpu_start=start * US, gpu_dur=20 * US)
            free, at = start + 20, at + stall + 3
            starts.append(start)
        main.add_range(f"step {number}", begin * US, at * US, domain="nsysx")
    main.sync(at=at * US, dur=(free + 2 - at) * US)
    given, made = replayed(report, tmp_path)
    assert made.error < 0.01
    half = made.saving(ScaleOps(frozenset(given.attributed.gpu_ops["op"].to_list()), 0.5))
    assert half.step_ns == pytest.approx(12_000 * US, rel=0.02)


def test_each_stream_has_a_launch_queue_of_its_own(tmp_path: Path) -> None:
    """Launches stall at 1024 pending ops of their stream; those of another one, where an op waits behind a long one, do not count."""
    report = Report()
    process = report.process(100)
    process.context()
    main = process.thread(100, "python")
    at = 0
    free: dict[int, int] = {7: 0, 13: 0}
    starts: dict[int, list[int]] = {7: [], 13: []}
    for number in range(4):
        begin = at
        for stream, us in ((7, 10), (13, 40_000), (13, 1_000), *((7, 10),) * 4_799):
            before = starts[stream]
            stall = max(before[-1024] - at, 0) if len(before) >= 1024 else 0
            start = max(free[stream], at + stall + 10)
            main.launch(at * US, (stall + 2) * US, gpu_start=start * US, gpu_dur=us * US, stream=stream)
            free[stream], at = start + us, at + stall + 3
            before.append(start)
        main.add_range(f"step {number}", begin * US, at * US, domain="nsysx")
    main.sync(at=at * US, dur=(max(free.values()) + 2 - at) * US)
    _, made = replayed(report, tmp_path)
    assert made.error < 0.005


@pytest.mark.parametrize("host_us", [0, 30_000])
def test_work_from_before_the_steps_fills_the_launch_queue_too(tmp_path: Path, host_us: int) -> None:
    """A launch that stalls behind work of before the window costs no host time in each round; host code at the same place does."""
    report = Report()
    process = report.process(100)
    process.context()
    main = process.thread(100, "python")
    at, free, starts = 0, 40_000, [40_000]  # the first of all waits for 40 ms on the GPU
    main.launch(at * US, 2 * US, gpu_start=5 * US, gpu_dur=39_995 * US)
    borders = []
    for number in range(12):
        borders.append(at)
        if number == 5:
            at += host_us
        for _ in range(300):
            stall = max(starts[-1024] - at, 0) if len(starts) >= 1024 else 0
            start = max(free, at + stall + 10)
            main.launch(at * US, (stall + 2) * US, gpu_start=start * US, gpu_dur=20 * US)
            free, at = start + 20, at + stall + 3
            starts.append(start)
    for number, (begin, end) in enumerate(itertools.pairwise([*borders, at])):
        main.add_range(f"step {number}", begin * US, end * US, domain="nsysx")
    main.sync(at=at * US, dur=(free + 2 - at) * US)
    given, made = replayed(report, tmp_path)
    gone = made.saving(ScaleOps(frozenset(given.attributed.gpu_ops["op"].to_list()), 0.1))
    assert gone.step_ns == pytest.approx((900 + host_us / made.steps) * US, rel=0.05)


def loop(report: Report, step: Callable[[int, Thread], int], count: int = 8) -> Report:
    """``count`` steps on one thread; ``step`` adds one that begins at a time (us) and returns its end."""
    process = report.process(100)
    process.context()
    main = process.thread(100, "python")
    at = 10
    for number in range(count):
        end = step(at, main)
        main.add_range(f"step {number}", at * US, (end - 1) * US, domain="nsysx")
        at = end
    return report


def test_a_copy_and_the_wait_that_follows_it_go_together(tmp_path: Path) -> None:
    def step(at: int, main: Thread) -> int:
        main.launch(at * US, 5 * US, kernel="w", gpu_start=(at + 10) * US, gpu_dur=8_000 * US)
        copied = at + 8_010
        main.memcpy(
            (at + 10) * US, 8_010 * US, kind="DtoH", bytes=4096, gpu_start=copied * US, gpu_dur=3 * US, pageable=True
        )
        main.sync(at=(at + 8_021) * US, dur=4 * US)
        return at + 10_025

    given, made = replayed(loop(Report(), step), tmp_path)
    whole = made.saving(RemoveWaits(calls_of(given, "cudaMemcpyAsync"))).saving_ns
    assert whole == pytest.approx(2_010 * US, rel=0.02)
    assert made.saving(RemoveWaits(calls_of(given, "cudaStreamSynchronize"))).saving_ns == whole


def host_bound(at: int, main: Thread) -> int:
    """Two kernels of 100 us a step; a ms of host code before and after calls that do nothing."""
    for k in range(2):
        begin = at + 3_000 * k
        main.launch(begin * US, 5 * US, kernel="w", gpu_start=(begin + 10) * US, gpu_dur=100 * US)
        main.call("cudaEventQuery_v3020", (begin + 1_000) * US, US)
        main.call("cudaStreamIsCapturing_v10000", (begin + 2_000) * US, US)
    return at + 6_000


def test_no_host_code_at_all_is_an_upper_bound(tmp_path: Path) -> None:
    given, made = replayed(loop(Report(), host_bound), tmp_path)
    best = made.saving(RemoveHost())
    assert best.step_ns == pytest.approx(200 * US, rel=0.1)
    for calls in (calls_of(given, "cudaEventQuery"), calls_of(given, "cudaLaunchKernel")):
        assert made.saving(RemoveHost(calls)).saving_ns <= best.saving_ns


def test_work_without_a_call_stays_at_its_place(tmp_path: Path) -> None:
    def step(at: int, main: Thread) -> int:
        main.launch((at + 10) * US, 5 * US, kernel="w", gpu_start=(at + 30) * US, gpu_dur=5_000 * US)
        for k in range(4):
            begin = (at + 5_030 + 1_000 * k) * US
            main.process.copy("UVM_HtoD", begin, 990 * US, bytes=10 << 20, stream=0, correlation=0)
        return at + 10_000

    _, made = replayed(loop(Report(), step), tmp_path)
    assert made.error < 0.01
    assert made.unprofiled.gpu_busy_ns == pytest.approx((5_000 + 4 * 990) * US, rel=0.01)


def launches(at: int, main: Thread, count: int = 100, dur: int = 1) -> int:
    """Launches 20 us apart; the GPU is idle most of the time."""
    for k in range(count):
        begin = at + 20 * k
        main.launch(begin * US, 5 * US, kernel="tiny", gpu_start=(begin + 10) * US, gpu_dur=dur * US)
    return at + 20 * count + 200


def test_a_graph_has_a_price_by_how_it_is_made(tmp_path: Path) -> None:
    _, made = replayed(loop(Report(), launches), tmp_path)
    raw, callables, compiled = (made.saving(Graph(by=by)).step_ns for by in ("raw", "callable", "compiled"))
    assert raw < callables < compiled < made.real_ns
    assert compiled - raw == pytest.approx(300 * US, rel=0.05)


def test_a_graph_of_a_single_launch_loses(tmp_path: Path) -> None:
    def step(at: int, main: Thread) -> int:
        main.launch(at * US, 5 * US, kernel="tiny", gpu_start=(at + 10) * US, gpu_dur=5 * US)
        main.sync(at=(at + 6) * US, dur=12 * US)
        return at + 20

    _, made = replayed(loop(Report(), step, 12), tmp_path)
    assert made.saving(Graph(by="compiled")).saving_ns < 0


def test_fused_launches_leave_the_bytes_and_one_launch(tmp_path: Path) -> None:
    given, made = replayed(loop(Report(), launches), tmp_path)
    outcome = made.saving(Fuse(calls_of(given, "cudaLaunchKernel")))
    # Kernels of 1 us are all but bytes; the host code behind the loop stays.
    assert outcome.step_ns == pytest.approx(205 * US, rel=0.1)


def test_calls_that_do_nothing_do_not_part_fused_launches(tmp_path: Path) -> None:
    def step(at: int, main: Thread) -> int:
        for number in range(50):
            begin = at + 10 * number
            main.call("cudaStreamIsCapturing_v10000", (begin + 4) * US, US)
            main.launch((begin + 5) * US, 5 * US, kernel="tiny", gpu_start=(begin + 10) * US, gpu_dur=US)
        main.sync(at=(at + 500) * US, dur=12 * US)
        return at + 520

    given, made = replayed(loop(Report(), step), tmp_path)
    outcome = made.saving(Fuse(calls_of(given, "cudaLaunchKernel")))
    assert outcome.saving_ns > 0.7 * made.real_ns, "the host code before each of them goes, too"


def test_kernels_beside_communication_run_as_fast_as_alone_when_it_goes(tmp_path: Path) -> None:
    report = Report()
    process = report.process(100)
    process.context()
    process.stream(13)
    main = process.thread(100, "python")
    at = 0
    for number in range(8):
        begin = at
        main.launch(
            at * US, 5 * US, kernel="ncclDevKernel_AllReduce", stream=13, gpu_start=(at + 9) * US, gpu_dur=900 * US
        )
        for k in range(10):
            slow = k < 5  # the first five run beside the all-reduce
            start = at + 20 + (150 * k if slow else 750 + 100 * (k - 5))
            main.launch((at + 6 + k) * US, US, kernel="gemm", gpu_start=start * US, gpu_dur=(150 if slow else 100) * US)
        at += 1_250
        main.sync("cudaDeviceSynchronize_v3020", at=(begin + 20) * US, dur=(at - begin - 21) * US)
        main.add_range(f"step {number}", begin * US, (at - 1) * US, domain="nsysx")
    _, made = replayed(report, tmp_path)
    after = made.saving(RemoveExposedComm())
    assert after.saving_ns > 100 * US


def test_edits_that_come_to_the_same_calls_are_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, made = replayed(training(), tmp_path)
    ran: list[object] = []
    monkeypatch.setattr(engine, "run", lambda cols: ran.append(cols) or run(cols))
    every = calls_of(given, "cudaMemcpyAsync") | calls_of(given, "cudaEventSynchronize")
    assert made.saving(RemoveWaits(every)) == made.saving(RemoveWaits()) and len(ran) == 1
    assert made.saving(RemoveWaits(calls_of(given, "cudaMemcpyAsync"))) != made.saving(RemoveWaits()) and len(ran) == 2

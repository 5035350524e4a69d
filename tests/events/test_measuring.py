"""A program that measures is led by what its clocks read, and what repeats in it is no step."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Summary
from nsysx.pipeline import summarize
from tests.builder import Report

US = 1_000
#: The flush kernel of torch's zero_ and the timed one.
ZERO = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1>>(int, T1, T2)"
GEMM = "nvjet_sm90_hsh_128x24_64x11_4x1_v_bz_splitK_TNT"


def timed(
    *,
    rounds: int = 40,
    flushed_every: int = 2,
    ops: int = 1,
    read: bool = True,
    extra: int = 0,
    orders: bool = False,
    alike: bool = True,
    waits: bool = False,
    hands_on: bool = False,
) -> Report:
    """Return a loop that times ``ops`` products between events; before every ``flushed_every``-th it zeroes 256 MiB.

    The product takes 31.0 us with a warm L2 cache and 34.4 us with a cold one. ``extra`` kernels are launched outside of the windows.
    ``orders``: another stream waits for each event, as around a collective. ``alike``: all ``ops`` are the same kernel. ``waits``: the
    program waits for the second event as soon as it is recorded, as C++ does. ``hands_on``: another stream waits for the first one,
    behind torch's question whether it captures, as where a copy follows whose end is waited for.
    """
    report = Report()
    report.gpu(0, name="NVIDIA H100", l2=50 << 20, bandwidth=3_350_000_000_000)
    main = report.process(100).thread(100)
    at = 0
    for i in range(rounds):
        flushed = flushed_every and i % flushed_every == flushed_every - 1
        free = at + 20 * US
        if flushed:
            main.launch(at=at, dur=5 * US, kernel=ZERO, gpu_start=free, gpu_dur=95 * US)
            free += 96 * US
        for k in range(extra):
            main.launch(at=at + (6 + k) * US, dur=US // 2, kernel="prepare", gpu_start=free, gpu_dur=US)
            free += 2 * US
        begin = at + (10 + extra) * US
        main.event_record(2 * i + 1, at=begin, dur=US)
        if hands_on:
            main.sync("cudaStreamIsCapturing_v10000", at=begin + US, dur=US // 4)
            main.sync("cudaStreamWaitEvent_v3020", at=begin + US + US // 2, dur=US // 4, event=2 * i + 1)
        if orders:
            main.sync("cudaStreamWaitEvent_v3020", at=begin + US, dur=US // 2, event=2 * i + 1)
        for k in range(ops):
            took = 34_400 if flushed else 31_000
            start = max(free, begin + 10 * US)
            kernel = GEMM if alike or not k else f"layer_{k}"
            main.launch(
                at=begin + (2 + k) * US, dur=US // 2, kernel=kernel, gpu_start=start, gpu_dur=took + (i % 3) * 32
            )
            free = start + took + 100
        main.event_record(2 * i + 2, at=begin + (4 + ops) * US, dur=US)
        if orders:
            main.sync("cudaStreamWaitEvent_v3020", at=begin + (5 + ops) * US, dur=US // 2, event=2 * i + 2)
        waited = {"event": 2 * i + 2} if waits else {}
        wait = "cudaEventSynchronize_v3020" if waits else "cudaDeviceSynchronize_v3020"
        main.sync(wait, at=begin + (6 + ops) * US, dur=free - begin - (5 + ops) * US, **waited)
        at = free + 10 * US
        if read:
            for event in (2 * i + 1, 2 * i + 2):
                main.sync("cudaEventQuery_v3020", at=at, dur=US, event=event)
                at += 2 * US
        at += 30 * US
    return report


def summed(tmp_path: Path, report: Report) -> Summary:
    return summarize([report.write(tmp_path / "r.sqlite")], every_table=False)


def test_a_flush_is_no_launch_to_save(tmp_path: Path) -> None:
    summary = summed(tmp_path, timed())
    assert summary.steps.source == "capture"
    assert "the measurement" in summary.steps.rule
    assert summary.verdict.sentence.startswith("cuda.Event reads")
    assert summary.answer is not None
    assert not any("fewer" in action.text for action in summary.answer.do)


@pytest.mark.parametrize(
    ("report", "why"),
    [
        (timed(ops=12, alike=False), "a step that is timed as a whole"),
        (timed(ops=12, alike=False, read=False, waits=True), "a step that is timed as a whole in C++"),
        (timed(read=False), "events that nobody reads"),
        (timed(extra=9), "a loop that times a small part of what it does"),
        (timed(rounds=3), "too few to be a loop"),
        (timed(orders=True), "events that order two streams"),
        (timed(read=False, waits=True, hands_on=True), "an event that waits for the end of a copy"),
    ],
)
def test_what_else_has_events_keeps_its_steps(tmp_path: Path, report: Report, why: str) -> None:
    assert "the measurement" not in summed(tmp_path, report).steps.rule, why


@pytest.mark.parametrize(
    "report",
    [timed(ops=12), timed(read=False, waits=True), timed(ops=30, rounds=5, flushed_every=0, read=False, waits=True)],
)
def test_one_kernel_again_and_again_between_two_events_is_measured(tmp_path: Path, report: Report) -> None:
    """Seen in a lesson on transposing: a hundred launches between two events, and a wait for the second one."""
    assert "the measurement" in summed(tmp_path, report).steps.rule


def test_clocks_that_read_the_kernels_are_left_alone(tmp_path: Path) -> None:
    """With a flush before each window the queue is never empty: the events read the kernel, which is cold each time."""
    summary = summed(tmp_path, timed(flushed_every=1))
    assert summary.answer is not None
    assert "read what the kernels take" in summary.answer.do[0].text
    assert summary.answer.also == ()
    assert not summary.answer.do[0].where, "the flush takes most of the time, and is not what is measured"

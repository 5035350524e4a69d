"""NSX130: calls of DDP's wrapper between steps that train nothing, with buffers in each of them or in the first alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsysx.events.coverage import BETWEEN
from nsysx.findings import nsx130_between_steps as rule
from nsysx.findings._wrapper_calls import wrapper_calls
from nsysx.model import Finding
from nsysx.replay.engine import Withheld, unprofiled_of
from tests.builder import Report
from tests.findings import findings_alone

US, MS = 1_000, 1_000_000
BROADCAST = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096>)"
WRAPPER = {"kind": "DDP", "count": 1, "broadcast_buffers": True, "buffers": 3}
EVALUATED = {
    "step": 7,
    "class": "Net",
    "place": "/job/train.py:31",
    "calls": 16,
    "rows": 8,
    "sums": [],
    "loader": "/job/train.py:9",
}


def evaluating(
    sending: int = 16, calls: int = 16, messages: int = 2, wait_us: int = 20, phase: str = "forward"
) -> Report:
    """Return a program of 20 steps, behind every fourth of which a network is called 16 times; so many of these calls send buffers.

    A call takes 200 us: 10 for each broadcast, 10 for each of three copies behind them, and five kernels of the network.
    """
    report = Report()
    report.gpu(0, pids=[(100, 0)])
    thread = (process := report.process(100)).thread(100, "python3")
    process.context()
    at = MS
    for step in range(20):
        thread.add_range(f"step {step}", at, at + 2 * MS, domain="nsysx")
        thread.launch(at + 10 * US, kernel="gemm", gpu_start=at + 20 * US, gpu_dur=MS)
        at += 2 * MS
        for call in range(calls if step % 4 == 3 and step < 19 else 0):
            thread.add_range(f"{phase} DistributedDataParallel", at, at + 200 * US, domain="nsysx")
            begin = at + 10 * US
            for kernel in ([BROADCAST] * messages + ["copy"] * 3) * (call < sending) + ["gemm"] * 5:
                length = wait_us * US if kernel == BROADCAST else 2 * US
                thread.launch(
                    begin,
                    kernel=kernel,
                    gpu_start=begin + 5 * US,
                    gpu_dur=min(length, 4 * US) if wait_us < 5 else length,
                )
                begin += max(10 * US, length + 6 * US)
            at += 220 * US
    return report


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[Finding], Any]]:
    """Return what NSX130 finds in a program whose loop takes twice as long as its steps, and the calls that it saw."""

    def told(report: Report, wrapper: dict[str, Any] | None = WRAPPER, times: float = 2.0) -> tuple[list[Finding], Any]:
        seen = []

        def with_loop(case: Any) -> Any:
            real = unprofiled_of(case.profile)
            assert not isinstance(real, Withheld)
            object.__setattr__(case.profile.steps, "coverage", replace(case.profile.steps.coverage, parts={BETWEEN: 1}))
            seen.append(wrapper_calls(SimpleNamespace(profile=case.profile, process=case.process)))  # type: ignore[arg-type]
            return replace(real, loop_ns=round(times * real.step_ns))

        monkeypatch.setattr(rule, "measured_loop", with_loop)
        record = {
            "pid": 100, "backend": "nvtx", "ranges": {}, "ranges_pushed": 1,
            "settings": {"wrappers": [wrapper] if wrapper else [], "evaluations": [EVALUATED]},
        }  # fmt: skip
        (tmp_path / "r.run.json").write_text(json.dumps({"probe": [record]}))
        said = findings_alone("NSX130", report.write(tmp_path / "r.sqlite"))
        return [f for f in said if f.verdict == "found"], seen[-1]

    return told


def test_an_evaluation_that_keeps_gradients_sends_buffers_in_each_call(told: Callable[..., Any]) -> None:
    (first, second), calls = told(evaluating())
    assert (calls.calls, calls.stretches, calls.sending, calls.messages) == (64, 4, 64, 128)
    assert calls.gpu_ns == 64 * 2 * 20 * US
    assert first.title.startswith(
        "Between steps DDP sends its buffers to all ranks in each of 16 calls that train nothing"
    )
    assert second.title.startswith("Between steps other code takes")
    assert [way.name for way in first.remedies] == ["evaluated-without-gradients"] and "torch.no_grad()" in first.paste
    assert first.where["line"] == 31 and first.where["near"] == "evaluation between steps"
    assert "each call sends 3 buffers of rank 0 in 2 messages" in first.detail
    row = first.evidence[0]
    assert first.saving.likely_ns is None and first.saving.confidence.startswith("up to")
    assert row["loop_ns"] - row["loop_then_ns"] == pytest.approx(calls.share * row["step_ns"], rel=0.01)
    assert 0.5 < calls.share <= 1


def test_it_goes_behind_what_takes_more(told: Callable[..., Any]) -> None:
    (first, second), calls = told(evaluating(messages=1, wait_us=1))
    assert calls.share < 0.5
    assert first.title.startswith("Between steps other code takes") and "DDP sends its buffers" in second.title


@pytest.mark.parametrize(
    ("report", "wrapper"),
    [
        (evaluating(sending=1, phase="evaluation"), WRAPPER),  # under no_grad the first call alone sends
        (evaluating(sending=0, phase="evaluation"), WRAPPER),  # the bare module
        (evaluating(), {**WRAPPER, "broadcast_buffers": False}),  # what is sent is the network's own
        (evaluating(), {**WRAPPER, "buffers": 0}),
        (evaluating(), {**WRAPPER, "buffers": 1}),  # more messages than buffers
        (evaluating(), None),
        (evaluating(calls=4), WRAPPER),  # a few batches
    ],
)
def test_other_calls_are_not_told(told: Callable[..., Any], report: Report, wrapper: dict[str, Any] | None) -> None:
    found, calls = told(report, wrapper)
    assert not any("DDP sends" in f.title for f in found)
    assert calls is None or not calls.in_each


def test_what_is_little_of_the_loop_is_not_told(told: Callable[..., Any]) -> None:
    assert not any("DDP sends" in f.title for f in told(evaluating(messages=1, wait_us=1), times=1.12)[0])


def test_a_rollout_through_the_wrapper_says_what_it_exchanges(told: Callable[..., Any]) -> None:
    calls = told(evaluating(sending=1, phase="evaluation"))[1]
    assert calls is not None and (calls.sending, calls.stretches) == (4, 4)
    sends = "Without gradients that sends 3 buffers of rank 0 in 2 messages in the first call alone"
    assert sends in calls.sentence()

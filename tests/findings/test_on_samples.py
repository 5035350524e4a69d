"""Findings on the programs that were recorded on an H200: what was built into them is found, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nsysx.model import Finding, Summary
from tests.samples import Samples


@pytest.fixture(scope="module")
def of(recorded: Samples) -> Callable[[str], Summary]:
    return recorded.summary


def found(summary: Summary, *codes: str) -> list[Finding]:
    return [f for f in summary.findings or () if f.verdict == "found" and (not codes or f.code in codes)]


def step_ns(summary: Summary) -> int:
    assert summary.replay is not None
    return int(summary.replay["recorded_ns"])


def test_the_waits_of_the_masked_loss_are_worth_nothing_its_kernels_22_ms(of) -> None:
    summary = of("masked_lines")
    waits = found(summary, "NSX101")
    # nonzero, unique and the boolean mask; 67 masks the target, the same way.
    assert {47, 61, 66, 67} <= {f.where.get("line") for f in waits}
    # 47 ms in one call, and the GPU is idle for 0.1 ms of them.
    assert any("46.87 ms in cudaStreamSynchronize" in f.title for f in waits)
    for finding in waits:
        assert (finding.cost_ns_per_step or 0) < 0.01 * step_ns(summary)
        assert finding.saving_ns_per_step is not None
        assert finding.saving_ns_per_step < 0.01 * step_ns(summary)
    (masks,) = found(summary, "NSX120")
    # Measured without a profiler: ignore_index instead of the masks takes 22 to 23 ms off the step.
    assert masks.saving_ns_per_step == pytest.approx(22_500_000, rel=0.03)
    assert (masks.where["module"], masks.where["line"]) == ("MaskedLoss", 47), (
        "of the wait that is longest, by nsys's backtraces"
    )
    assert summary.findings is not None
    assert summary.findings[0] == masks


#: What is left to do in a program without faults: its kernels. The backward of a layer norm runs in 16 blocks on 132 SMs.
OF_KERNELS = ("NSX112", "NSX116", "NSX117", "NSX122")


@pytest.mark.parametrize("name", ["gpt_graph", "gpt", "masked_ignore_index"])
def test_healthy_programs_hear_of_their_kernels_and_nothing_else(name: str, of) -> None:
    summary = of(name)
    for finding in found(summary):
        if finding.code in OF_KERNELS:
            continue
        assert (finding.saving_ns_per_step or 0) < 0.01 * step_ns(summary), finding.title
        assert (finding.cost_ns_per_step or 0) < 0.01 * step_ns(summary), finding.title


def test_what_compiling_saves_is_estimated(of) -> None:
    """Measured: torch.compile takes this GPT from 29.9 to 19.0 ms. The estimate counts only kernels that can share data."""
    summary = of("gpt")
    assert summary.findings is not None
    first = summary.findings[0]
    assert first.code == "NSX112"
    assert 0.5 * 10_900_000 < (first.saving_ns_per_step or 0) <= 10_900_000


@pytest.mark.parametrize(
    ("name", "code", "least"),
    [
        ("masked_nonzero", "NSX120", 0.3),
        ("tiny_stack", "NSX102", 0.5),
        ("copies", "NSX105", 0.5),
        ("masked_slow_loader", "NSX106", 0.5),
    ],
)
def test_what_was_built_in_comes_first(name: str, code: str, least: float, of) -> None:
    summary = of(name)
    assert summary.findings is not None
    first = summary.findings[0]
    assert (first.code, first.verdict) == (code, "found")
    # What it is worth is a part of the step as it runs without a profiler.
    assert summary.unprofiled is not None
    assert (first.saving_ns_per_step or 0) > least * summary.unprofiled.step_ns


def test_thrash_is_found_with_its_flushes(of) -> None:
    (finding,) = found(of("varlen_memory"), "NSX104")
    assert "flushed" in finding.detail
    assert "was freed" in finding.detail


def test_wrong_readings_are_found(of) -> None:
    inflated = found(of("event_linear"), "NSX107")
    # Without the first, 66.58 ms long: as its median says, 32.7 of 506 us.
    assert (
        "At call site 1, kernels are 6.5 % of the median event time (the rest: 51 % copies, 41 % waiting"
        in inflated[0].detail
    )
    (clock,) = found(of("custom_add"), "NSX115")
    assert "custom_add_kernel" in clock.title
    for way in ("a synchronize after only", "a synchronize before only", "no synchronize", "before and after"):
        assert way in clock.detail

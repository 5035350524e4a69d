"""Bounds of a difference, and waits that a budget does not name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from nsysx.comparing import budget, comparison


def side(step: int, low: int, high: int) -> Any:
    real = SimpleNamespace(step_ns=step, low_ns=low, high_ns=high, source="in_process")
    return SimpleNamespace(captures=[SimpleNamespace(summary=SimpleNamespace(step=SimpleNamespace(estimate=real)))])


def test_a_difference_is_least_where_the_first_side_is_most() -> None:
    """100 (90 to 130) and 60 (40 to 65): at least 40 - (30^2 + 20^2)^0.5 less, at most 40 + (10^2 + 5^2)^0.5 more."""
    real = comparison._unprofiled_steps(side(100, 90, 130), side(60, 40, 65), 0.02)
    assert real is not None
    assert real.low_ns == pytest.approx(-40 - (30**2 + 20**2) ** 0.5, abs=1)
    assert real.high_ns == pytest.approx(-40 + (10**2 + 5**2) ** 0.5, abs=1)


@pytest.mark.parametrize(
    ("allowed", "per_step", "status"),
    [
        ((), 0.01, "broken"),  # a new wait, however rare
        (({"api": "cudaStreamSynchronize", "count": 1},), 1.2, "kept"),  # an allowed one that comes a little more often
        (({"api": "cudaStreamSynchronize", "count": 1},), 1.8, "broken"),
        (({"api": "cudaStreamSynchronize", "count": 0.5},), 0.7, "broken"),  # allowed less than once a step
    ],
)
def test_a_new_wait_is_new_however_rare(allowed: tuple[dict[str, object], ...], per_step: float, status: str) -> None:
    wait = {
        "api": "cudaStreamSynchronize",
        "calls": 100 * per_step,
        "module": None,
        "phase": None,
        "file": None,
        "line": None,
    }
    capture: Any = SimpleNamespace(summary=SimpleNamespace(recorded=lambda _: [wait]), steps=100)
    (result,) = [r for r in budget.lint(capture, allowed) if "cudaStreamSynchronize" in r.detail]
    assert result.status == status

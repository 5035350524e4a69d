"""Bare steps: which are long, and what these add to the mean."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from nsysx.events import bare


@pytest.mark.parametrize(("every", "excess"), [(20, 48.5), (0, 0.0)])
def test_what_rare_long_steps_add_to_the_mean(every: int, excess: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every 20th step takes a second: 970 ms more than the usual 30, or 48.5 a step."""
    lengths = [1_000 if every and i % every == every - 1 else 30 + i % 3 for i in range(80)]
    monkeypatch.setattr(bare, "of_process", lambda capture, process: lengths)
    assert bare.excess_ns(SimpleNamespace(), 1) == pytest.approx(excess, abs=0.1)  # type: ignore[arg-type]


def test_a_spread_is_no_long_step() -> None:
    assert not bare.long_steps(np.array([10, 14, 18, 22, 12, 16])).any()
    assert bare.long_steps(np.array([10, 10, 11, 10, 30])).tolist() == [False] * 4 + [True]

"""A rank with far more GPU work, where a capture holds one or two steps and bare steps say how long all others are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nsysx.catalogue import DeviceActivity
from nsysx.ranks import few_steps
from tests.ranks.test_one_job import rank

MS = 1_000_000
SHORT = {("attention", 8, 128): (4, 15 * MS), ("gemm", 132, 128): (8, 45 * MS)}
LONG = {("attention_lower_right", 16, 128): (4, 83 * MS), ("gemm", 132, 128): (8, 46 * MS)}
#: The same kernels, as large and as often.
SLOW = {("attention", 8, 128): (4, 83 * MS), ("gemm", 132, 128): (8, 46 * MS)}


def told(
    monkeypatch: pytest.MonkeyPatch,
    *,
    kernels: Any = LONG,
    bare_ms: tuple[float, float] = (137, 4),
    step_ms: int = 138,
    work_ms: int = 130,
    steps: int = 1,
) -> few_steps.FarBehind | None:
    """Return what two ranks tell in so many steps, rank 0 with 62 ms of work, without waits 70; ``bare_ms``: length, how far apart."""
    monkeypatch.setattr(few_steps, "own_times", lambda *_, **__: None)
    played = SimpleNamespace(measured_ns=bare_ms[0] * MS, apart_ns=bare_ms[1] * MS)
    ends = np.arange(1, steps + 1) * step_ms * MS
    tiles = SimpleNamespace(start_ns=ends - step_ms * MS, end_ns=ends)
    ranks = [
        rank(
            r,
            steps=steps,
            kernels=each,
            parts={a.column: work * MS * steps for a in DeviceActivity},
            played=played,
            tiles=tiles,
        )
        for r, (each, work) in enumerate(((SHORT, 62), (kernels, work_ms)))
    ]
    own = np.array([[70.0 * MS] * steps, [step_ms * MS] * steps])
    return few_steps.far_behind(SimpleNamespace(ranks=ranks), (0, 1), own)  # type: ignore[arg-type]


def test_one_step_is_enough_where_all_others_are_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    far = told(monkeypatch)
    assert far is not None and far.member == 1
    assert far.late_ns == (68 * MS, 64 * MS, 72 * MS) and far.even_ns == 34 * MS
    assert told(monkeypatch, steps=2) is not None


@pytest.mark.parametrize(
    "alike",
    [
        {"steps": 3},  # enough for an interval
        {"bare_ms": (90, 4)},  # this one step is an exception: others are far shorter
        {"bare_ms": (137, 40)},  # work is drawn anew in each step
        {"work_ms": 70},  # it is late by its host
        {"kernels": SLOW},  # what runs beside them makes the same kernels slow
        {"step_ms": 88, "bare_ms": (88, 4), "work_ms": 80},  # behind by no more than chance may be
    ],
)
def test_other_steps_and_small_delays_name_nobody(alike: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, **alike) is None

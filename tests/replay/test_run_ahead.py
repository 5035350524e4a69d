"""Hosts that run ahead of their device while steps are recorded: what the device waits for at first, no repeated round waits for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from nsysx.catalogue import Cause
from nsysx.replay import real_idle, run_ahead
from tests.findings import Program
from tests.replay.test_engine import replayed


def test_a_host_that_gains_on_its_device_is_no_error_of_the_replay(tmp_path: Path) -> None:
    """Steps of 2 ms of kernels, for which the host takes 2.3 ms at first and 1.2 ms later: repeated, they take 2 ms each."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"):
            for _ in range(20):
                program.host((113 if number < 8 else 60) - 6)
                program.launch(100)

    _, replay = replayed(Program().steps(body, 16).report, tmp_path)
    assert replay.unchanged_ns == pytest.approx(2_000_000, rel=0.03)
    assert replay.error > 0.05 and replay.trusted


@pytest.mark.parametrize(
    ("cause", "ends_ahead", "idles_ns", "gone_ns"),
    [
        (Cause.HOST_CODE, 900, 1_000, 800),
        (Cause.HOST_CODE, 900, 500, 500),  # no more than the device idles for the host
        (Cause.HOST_CODE, 50, 1_000, 0),  # it falls back
        (Cause.SYNC, 900, 1_000, 0),  # a wait comes in each round
    ],
)
def test_no_more_goes_than_the_host_gains_and_the_device_idles_for_it(
    cause: Cause, ends_ahead: int, idles_ns: int, gone_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = pl.DataFrame({"start_ns": [5_000], "ns": [idles_ns], "cause": [cause.number]})
    monkeypatch.setattr(real_idle, "recorded", lambda profile: idle)
    window: Any = SimpleNamespace(start_ns=1_000, end_ns=20_000 - ends_ahead, gpu_span=(1_100, 20_000))
    assert run_ahead.gone_in_repeats_ns(SimpleNamespace(), window) == gone_ns  # type: ignore[arg-type]

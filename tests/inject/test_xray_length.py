"""How long a step takes for the host without marks: what the lines of an X-ray step may cost is measured by it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from nsysx.inject.nsysx_probe import xray


@pytest.mark.parametrize(
    ("recorded_ns", "bare_ns", "usual_ns"),
    [([9, 9, 11], [46, 47, 45], 46), ([171, 172, 170], [104], 171), ([9], [], 9), ([], [46], 46), ([], [], 0)],
    ids=["recorded ones run ahead", "recorded ones are slowed", "no bare ones", "no recorded ones", "none yet"],
)
def test_the_longer_kind_of_step_is_the_usual_one(recorded_ns: list[int], bare_ns: list[int], usual_ns: int) -> None:
    kinds = ((recorded_ns, True, False), (bare_ns, False, False), ([10_000], True, True))
    periods = [SimpleNamespace(ns=ns, recorded=r, marked=marked) for lengths, r, marked in kinds for ns in lengths]
    timed = SimpleNamespace(clock=SimpleNamespace(periods=periods))
    assert xray.Xray._usual_ns(timed) == usual_ns  # type: ignore[arg-type]

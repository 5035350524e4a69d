"""How sure the size of a saving is, where the step without the profiler is another than the recorded one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsysx.answer import certainty
from nsysx.model import Finding, Summary, Unprofiled
from tests.render import factory

MS = 1_000_000
CHOSEN = Finding("NSX102", "launch-bound", "found", "A title", "", saving_ns_per_step=MS)


def known(low_ms: float, high_ms: float) -> Summary:
    """Return a Summary whose step is 10 ms without the profiler, between these bounds, and 20 ms as recorded."""
    real = Unprofiled(
        10 * MS, round(low_ms * MS), round(high_ms * MS), "assumed", 0, 20 * MS, 1, 0, 4, 0.5, 5 * MS, 5 * MS, {}, {}
    )
    summary: Summary = factory.summary()
    verdict = replace(summary.verdict, step_ns=10 * MS, recorded_ns=20 * MS, estimated=False, late_rank=None)
    return replace(summary, unprofiled=real, verdict=verdict)


@pytest.mark.parametrize(
    ("low_ms", "high_ms", "level"), [(9.8, 10.3, "likely"), (9.4, 10.6, "unknown"), (5, 30, "unknown")]
)
def test_a_step_known_within_3_percent_raises_no_doubt(low_ms: float, high_ms: float, level: str) -> None:
    (_, size) = certainty.of(known(low_ms, high_ms), CHOSEN).parts
    assert (size.about, size.level) == ("How much", level)
    assert size.command == ("nsysx run" if level == "unknown" else "")


def test_a_wide_step_is_told_with_its_bounds() -> None:
    (_, size) = certainty.of(known(5, 30), CHOSEN).parts
    assert "5.00 ms to 30.00 ms a step." in size.reason


@pytest.mark.parametrize(
    ("gpus", "probe", "command"),
    [
        (1, (), "nsysx run"),
        (1, ({"rank": None, "window_pauses_ns": None},), "nsysx run"),
        (1, ({"rank": None, "window_pauses_ns": [3]},), "nsysx run --calibrate"),  # a plain run was too short
        (2, (), "nsysx run --steps 40:64"),
        (1, ({"rank": "1", "window_pauses_ns": None},), "nsysx run --steps 40:64"),
    ],
)
def test_what_would_measure_the_step(gpus: int, probe: tuple[dict[str, object], ...], command: str) -> None:
    capture = factory.summary().capture
    several = tuple(replace(capture.gpus[0], process=number) for number in range(gpus))
    summary = replace(known(5, 30), capture=replace(capture, gpus=several, probe=probe))
    assert certainty.of(summary, CHOSEN).parts[1].command == command

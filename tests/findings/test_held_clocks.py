"""NSX127's clocks: a GPU that is held down, by the driver's word or by sampled clocks that no power limit explains."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nsysx.events.recorded_settings import RecordedSettings
from nsysx.events.sampled_clocks import WorkingClock
from nsysx.findings import _held_clocks
from tests.analyses.test_gpu_metrics import report, true
from tests.findings import findings_alone, said_of


def at_clock(mhz: int, *, dram: tuple[int, int] = (46, 47)) -> Callable[[int], list[int]]:
    """Return the counters of two kernels at this clock: a copy with these shares of the memory's rate, and a product."""

    def sample(at: int) -> list[int]:
        found = true(at)
        return [mhz * 1_000_000, *found[1:7], *(dram if found[7] == 46 else found[7:9]), *found[9:]]

    return sample


def found(tmp_path: Path, mhz: int, **card: Any) -> Any:
    """Return what NSX127 says of the clocks of a report at this clock."""
    path = report(at_clock(mhz)).write(tmp_path / "r.sqlite")
    if card:
        record = {"schema": "nsysx.run/1", "probe": [{"pid": 100, "settings": {"card": card}}]}
        (tmp_path / "r.run.json").write_text(json.dumps(record))
    return next((f for f in findings_alone("NSX127", path) if "MHz" in f.detail), None)


HOT = {"clock_mhz": 1980, "most_clock_mhz": 1980, "held_by": ["temperature"], "temperature_c": 86}


@pytest.mark.parametrize(
    ("mhz", "card", "said"),
    [
        (345, {}, "The GPU runs at 345 of 1980 MHz: lower than a power limit alone would hold it."),
        (1400, {}, None),  # as dense products under the card's own power limit
        (1400, HOT, "The GPU runs at 1400 of 1980 MHz: held down by temperature at 86 C."),
        (1900, HOT, None),
        (1400, {**HOT, "held_by": ["power"]}, None),
    ],
)
def test_samples_tell_how_low_the_clock_is_and_the_driver_why(
    tmp_path: Path, mhz: int, card: dict[str, Any], said: str | None
) -> None:
    finding = found(tmp_path, mhz, **card)
    assert (finding.detail if finding else None) == said
    assert finding is None or "no change of the program mends" in finding.fix


@pytest.mark.parametrize(("mhz", "likely", "least", "most"), [(345, 0.24, 0.326, 0.24), (900, 0.535, 0.699, 0.455)])
def test_full_clocks_are_worth_what_kernels_wait_for_the_clock(
    tmp_path: Path, mhz: int, likely: float, least: float, most: float
) -> None:
    """In a step of 4 ms a copy at 93 % of the memory's rate (1 ms) stays nearly as long; a product (2 ms) needs 24 % of that rate.

    ``likely``, ``least``, ``most``: how long the product takes at 0.85, 0.65 and all of 1980 MHz, as shares; at 24 % its bytes bound it.
    From 345 MHz so much goes that the GPU would wait for the host, which may be slower than it was recorded: as 0.326 in place of 0.268.
    """
    finding = found(tmp_path, mhz)
    saved = [(2 * (1 - factor) + 0.04) * 1e6 for factor in (likely, least, most)]
    error = 0.02 * 2e6 + 0.04e6  # factors are told apart in steps of 2 %, the copy's likewise
    assert finding.saving_ns_per_step == pytest.approx(saved[0], abs=error)
    assert finding.saving_ns_per_step - finding.saving.error_ns == pytest.approx(saved[1], abs=error)
    assert finding.saving.most_ns == pytest.approx(saved[2], abs=error)


@pytest.mark.parametrize(
    ("sampled", "held", "words"),
    [
        (None, ["temperature"], "the GPU runs at 500 of 1980 MHz: held down by temperature"),
        (WorkingClock(1979, 1980), ["temperature"], ""),  # at one instant it was lower than in all steps
        (WorkingClock(700, 1980), [], "the GPU runs at 700 of 1980 MHz: lower than a power limit alone would hold it"),
        (None, [], ""),
    ],
)
def test_samples_of_all_steps_count_more_than_one_instant(
    sampled: WorkingClock | None, held: list[str], words: str
) -> None:
    record = {"card": {"clock_mhz": 500, "most_clock_mhz": 1980, "held_by": held}}
    assert _held_clocks.words(sampled, RecordedSettings(record)) == words


@pytest.mark.parametrize("mhz", [345, 1700])
def test_how_near_kernels_are_to_limits_is_not_known_at_a_clock_that_is_held_down(tmp_path: Path, mhz: int) -> None:
    path = report(at_clock(mhz)).write(tmp_path / "r.sqlite")
    open_ones = {f.code for f in said_of(path) if f.detail == _held_clocks.NO_RATES}
    assert open_ones == ({"NSX128"} if mhz == 345 else set()), "NSX134 needs sizes, NSX136 lines"

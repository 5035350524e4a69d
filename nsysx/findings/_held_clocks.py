"""A GPU whose clocks are held down, by the driver's word or so low that no power limit explains it; and what full clocks are worth."""

from __future__ import annotations

import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.catalogue import StepPart
from nsysx.events import gpu_samples
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.events.sampled_clocks import WorkingClock, working_clock
from nsysx.findings._case import Case, Saving, way
from nsysx.findings._finding_bounds import CLOCK_FACTOR_GRAIN, CLOCKS_AT_LOAD, LOW_CLOCK, LOWEST_CLOCK_BY_POWER
from nsysx.model import Row
from nsysx.replay.edits import ScaleOps

#: What holds clocks down that should not; drawing all the power that the card has is the usual way of working.
_HELD = ("application clocks", "hardware slowdown", "temperature", "temperature of the hardware", "power brake")

#: Why kernels that are far from the device's limits are no finding then.
NO_RATES = "the GPU's clock is held down: how near kernels are to its limits is not known (NSX127)"


def _of_shown(profile: Profile) -> WorkingClock | None:
    """Return the clock at which the shown device worked in the steady steps, None where it was not sampled."""
    device = profile.device
    return None if device is None else working_clock(profile.trace, profile.steps.process, device, profile.window)


def _of_the_driver(settings: RecordedSettings | None) -> tuple[WorkingClock | None, tuple[str, ...]]:
    """Return the clock that the driver told in an X-ray step, and what held it down then, as far as that should not."""
    if settings is None:
        return None, ()
    clock, most, reasons = (settings.card(name) for name in ("clock_mhz", "most_clock_mhz", "held_by"))
    held = tuple(reason for reason in reasons if reason in _HELD) if isinstance(reasons, list) else ()
    return WorkingClock(clock, most) if isinstance(clock, int) and isinstance(most, int) and most > 0 else None, held


def words(sampled: WorkingClock | None, settings: RecordedSettings | None) -> str:
    """Return how low the clocks are and what holds them down, "" where they are not held.

    The driver tells of one instant, samples of all steps: where both are there, the samples say how low.
    """
    instant, held = _of_the_driver(settings)
    clock = sampled or (instant if held else None)
    if clock is None or clock.share >= (LOW_CLOCK if held else LOWEST_CLOCK_BY_POWER):
        return ""
    temperature = settings.card("temperature_c") if settings is not None else None
    hot = f" at {temperature} C" if isinstance(temperature, int) and any("temperature" in h for h in held) else ""
    by = f"held down by {' and '.join(held)}{hot}" if held else "lower than a power limit alone would hold it"
    return f"the GPU runs at {clock.text}: {by}"


def _words(profile: Profile) -> str:
    return words(profile.once(_of_shown), settings_of(profile))


def is_held(profile: Profile) -> bool:
    """Return whether the clocks are held down, so that rates far below the card's own tell nothing of its kernels."""
    return bool(profile.once(_words))


def held_down(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return how low the clocks are and what holds them down, "" where they are not held: by samples where no settings were read."""
    return case.profile.once(_words)


def at_full_clocks(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what the clocks of a cool GPU at load save by the replay; None where no samples show how low they are in the steps.

    A kernel takes longer in proportion to the clock, but no less than what its bytes take at the full rate of the memory, which keeps its
    clock: t' = max(t * clock / full clock, t * share of the memory's rate). GPUs that draw all their power do not reach the highest clock.
    """
    clock = case.profile.once(_of_shown)
    if clock is None:
        return None
    least, likely, most = (_edits_at(case, min(1.0, clock.share / share)) for share in CLOCKS_AT_LOAD)
    low, high = (share * clock.most_mhz for share in (CLOCKS_AT_LOAD[0], CLOCKS_AT_LOAD[-1]))
    why = f"replayed at {low:.0f} to {high:.0f} MHz, as such a GPU has at load"
    return case.worth_between(least, likely, most, why, cause=(StepPart.WORK,))


def _edits_at(case: Case, factor: float) -> list[ScaleOps]:
    """Return edits that make each kernel take ``factor`` times as long, none less than its bytes take."""
    rates = case.profile.once(gpu_samples.of_kernels)["name", "grid", "block", "dram"]
    kernels = case.ops.filter(case.ops["op_kind"] == "kernel")["op", "name", "grid", "block"]
    by_bytes = kernels.join(rates, on=["name", "grid", "block"], how="left")
    grains = (pl.max_horizontal(pl.lit(factor), pl.col("dram").fill_null(0.0)) / CLOCK_FACTOR_GRAIN).ceil()
    grouped = by_bytes.group_by(grain=grains, maintain_order=True).agg("op")
    # The roofs that counters tell are those of the clock that is held.
    return [
        ScaleOps(frozenset(ops), min(1.0, max(factor, grain * CLOCK_FACTOR_GRAIN)), less_work=True)
        for grain, ops in grouped["grain", "op"].iter_rows()
    ]


def worded(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return how low the clocks are as the title, and the remedy for what holds them: clocks that were set are set free by a command."""
    settings = settings_of(case.profile)
    if _of_the_driver(settings)[1] == ("application clocks",):
        remedy = way("full-clocks")
    return units.capitalized(case.profile.once(_words)) or title, remedy


def gpu(case: Case) -> Row:
    """Return which GPU it is."""
    return {} if case.device is None else {"near": f"GPU {case.device}"}

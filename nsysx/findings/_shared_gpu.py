"""A GPU that another process uses, too: by the driver's count of them, or by kernels that its slices of time interrupt."""

from __future__ import annotations

from nsysx import units
from nsysx.catalogue import StepPart
from nsysx.events import time_slices
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings import _held_clocks
from nsysx.findings._case import Case, Saving
from nsysx.findings._finding_bounds import CLOCK_FACTOR_GRAIN, CLOCKS_AT_LOAD, MOST_SHARE
from nsysx.findings._ranks_on_one_gpu import on_one_gpu
from nsysx.replay.edits import ScaleOps

#: Why kernels that are far from the device's limits are no finding then.
_NO_RATES = "another process interrupts the kernels: how near they are to the GPU's limits is not known (NSX127)"


def by_driver(case: Case, settings: RecordedSettings) -> str:
    """Return how many other processes the driver knows on this GPU, "" where it knows none, or kernels show what they take."""
    others = settings.card("others")
    if not isinstance(others, int) or others < 1 or seen(case) or on_one_gpu(case):
        return ""
    return f"{units.several(others, 'other process', 'other processes')} had work on this GPU: they take turns with this one"


def seen(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return how kernels show that another process has the GPU in turn, "" where they do not."""
    slices = case.profile.once(time_slices.of_shown)
    if slices is None or on_one_gpu(case):  # the other process is a rank
        return ""
    count = units.count(max(1, round(slices.kernels.height / (case.steps or 1))))
    return (
        f"another process has the GPU in turn with this one: {count} kernels a step, short and long ones, take "
        f"{units.duration(slices.slice_ns)} longer than others of their shape"
    )


def alone(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what kernels save that nobody interrupts, None where none were.

    A GPU that works for one program all the time may draw all its power, and then its clock is lower: at least what is left at the clock
    of a GPU at load. (H100: 174 ms a step beside another program, 79 without its slices, 90 alone, at 0.9 of the clock.)
    Where the replay finds less than half of what the slices take, they are the most: calls that waited for the GPU's turn are host code to
    it, and whether the host had been done by then is not known. (40 and 33 ms were such slices, and 38 and 35 ms went with them.)
    """
    slices = case.profile.once(time_slices.of_shown)
    if slices is None:
        return None
    kernels, full_clock = slices.kernels, CLOCKS_AT_LOAD[1]
    others = case.ops.filter((case.ops["op_kind"] == "kernel") & ~case.ops["op"].is_in(kernels["op"].implode()))
    left = (1 - slices.slice_ns / kernels["ns"]).clip(0)
    grains = (left / CLOCK_FACTOR_GRAIN).round() * CLOCK_FACTOR_GRAIN
    grouped = kernels.group_by(left=grains, maintain_order=True).agg("op")["left", "op"].rows()
    likely = [ScaleOps(frozenset(ops), factor, less_work=True) for factor, ops in grouped]
    least = [ScaleOps(frozenset(ops), factor / full_clock, less_work=True) for factor, ops in grouped]
    least.append(ScaleOps(frozenset(others["op"].to_list()), 1 / full_clock, less_work=True))
    why = "replayed without the time that another process takes from kernels"
    replayed = case.worth_between(least, likely, likely, why, cause=(StepPart.WORK,))
    taken = case.per_step(slices.taken_ns)
    if (replayed.likely_ns or 0) >= MOST_SHARE * taken:
        return replayed
    return case.bound(taken, "the time that another process takes from kernels and from launched work")


def no_rates(case: Case) -> str:
    """Return why rates far below the card's own tell nothing of its kernels, "" where they do: a clock or another process holds it."""
    if _held_clocks.is_held(case.profile):
        return _held_clocks.NO_RATES
    return _NO_RATES if case.profile.once(time_slices.of_shown) is not None else ""

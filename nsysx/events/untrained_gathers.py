"""Parameters that a sharded model gathers where nothing is trained: for each call of a loop, or of a network that stays as it is.

A wrapper makes the parameters of a unit whole before it computes, and frees them behind it. In the steps of a training that pays for its
memory; a loop that generates, and calls the network for each token without gradients, gathers all of it for each, and a network that
nothing trains could be whole on each rank for good. The gathers are those of the steps outside of forward and backward, of modules that
copy parameters out of what came; the probe notes the lines that call networks without gradients, and whether these are trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events.attribute import IN_STEP
from nsysx.events.operator_bounds import GATHERED_OFTEN_TIMES
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import file_and_line, settings_of
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.model import Row

_GATHERS, _COPIES_OUT = r"ncclDevKernel_AllGather", r"split_with_sizes_copy"


class UntrainedGathers(NamedTuple):
    """What is gathered without gradients for one line's calls (``where``; empty: not known) of a network (``network``: its class, "").

    ``ops``: the gathers that need not be, and the copies into and out of them; ``gathers``: of these, the gathers; ``units`` are gathered
    ``times`` in each step. ``frozen``: nothing trains the network.
    """

    ops: frozenset[int]
    gathers: frozenset[int]
    units: int
    times: float
    network: str
    where: Row
    frozen: bool


def gathered_in_loop(profile: Profile) -> UntrainedGathers | None:
    """Return what a loop gathers again for each of its calls, of the line that gathers most; None without any."""
    return profile.once(_in_loop)


def gathered_frozen(profile: Profile) -> UntrainedGathers | None:
    """Return what is gathered of a network that nothing trains, of the line that gathers most; None without any."""
    return profile.once(_frozen)


def gathered_behind(profile: Profile) -> frozenset[int]:
    """Return what the training's forward gathers of the units that a loop before it had whole, with the copies into and out of them.

    Empty where nothing trains them, or an optimizer or a backward comes between: that changes the parameters, or frees them.
    """
    return profile.once(_behind_loop)


def _behind_loop(profile: Profile) -> frozenset[int]:
    loop, settings = gathered_in_loop(profile), settings_of(profile)
    if loop is None or loop.frozen or settings is None:
        return frozenset()
    ops = profile.steady_ops["op", "phase", "module", "call_start_ns"].drop_nulls("call_start_ns").sort("call_start_ns")
    of_loop = ops.filter(pl.col("op").is_in(list(loop.ops)))
    changing = ops["phase"].cast(pl.String).is_in(["optimizer", "backward"]).fill_null(value=False)
    units = of_loop["module"].cast(pl.String).unique()
    again = _gathering(profile, copies=bool(settings.wrappers("fully_shard")), phase="forward")
    again = again.filter(pl.col("module").is_in(units.implode()))
    last_call, last_change = (
        _last_before(x["call_start_ns"].to_numpy(), again["call_start_ns"].to_numpy())
        for x in (of_loop, ops.filter(changing))
    )
    return frozenset(again["op"].to_numpy()[last_call > last_change].tolist())


def _last_before(times: I64, each: I64) -> I64:
    """Return the last of these times, in order, before each of others, -1 without one."""
    result: I64 = np.append(-1, times)[np.searchsorted(times, each)]
    return result


def _in_loop(profile: Profile) -> UntrainedGathers | None:
    steps = profile.scope.steps or 1
    candidates = []
    for of_line, network, where, frozen in profile.once(_by_line):
        of_unit = of_line.filter(pl.col("gathers")).group_by("module").len()
        units = of_unit.filter(pl.col("len") > GATHERED_OFTEN_TIMES * steps)
        times = float(units["len"].median() or 0) / steps  # type: ignore[arg-type]
        again = _without_first(of_line.filter(pl.col("module").is_in(units["module"].implode())))
        candidates.append(_gathers_of(again, units.height, times, network, where, frozen=frozen))
    return max((each for each in candidates if each.gathers), key=lambda each: len(each.gathers), default=None)


def _frozen(profile: Profile) -> UntrainedGathers | None:
    steps = profile.scope.steps or 1
    candidates = []
    for of_line, network, where, frozen in profile.once(_by_line):
        gathers = of_line.filter(pl.col("gathers"))
        if frozen and gathers.height >= steps:
            units = gathers["module"].n_unique()
            candidates.append(_gathers_of(of_line, units, gathers.height / units / steps, network, where, frozen=True))
    return max(candidates, key=lambda each: len(each.gathers), default=None)


def _gathers_of(
    ops: pl.DataFrame, units: int, times: float, network: str, where: Row, *, frozen: bool
) -> UntrainedGathers:
    gathers = ops.filter(pl.col("gathers"))
    return UntrainedGathers(
        frozenset(ops["op"].to_list()), frozenset(gathers["op"].to_list()), units, times, network, where, frozen
    )


def _without_first(ops: pl.DataFrame) -> pl.DataFrame:
    """Return the gathers of units without the first of each in each step, and the copies that follow these."""
    return ops.sort("call_start_ns").filter(pl.col("gathers").cum_sum().over("step", "module") - pl.col("opens") > 1)


def _by_line(profile: Profile) -> list[tuple[pl.DataFrame, str, Row, bool]]:
    """Return, for each line that calls a sharded network without gradients, its gathers and copies, the network's class, the line, and
    whether nothing trains it. Ops: op, call, module, step, ``gathers``, ``opens``: it stands before the gather that it is for.
    """
    settings = settings_of(profile)
    if settings is None or not (settings.wrappers("fully_shard") or settings.wrappers("FSDP")):
        return []
    ops = _gathering(profile, copies=bool(settings.wrappers("fully_shard")))
    rows = [row for row in settings.rows("given_again") or () if row.get("learns") is False]
    if not ops.height:
        return []
    if len(rows) < 2:
        row = rows[0] if rows else {}
        return [(ops, str(row.get("class") or ""), file_and_line(row.get("place")), row.get("trained") is False)]
    line_of_op = _calling_lines(profile, ops["op"].to_numpy(), rows)
    return [
        (
            ops.filter(pl.Series(line_of_op == n, dtype=pl.Boolean)),
            str(row.get("class") or ""),
            file_and_line(row.get("place")),
            row.get("trained") is False,
        )
        for n, row in enumerate(rows)
        if (line_of_op == n).any()
    ]


def _calling_lines(profile: Profile, ops: I64, rows: Sequence[Row]) -> I64:
    """Return for each op which of these calls it is launched by (row), -1 where lines do not say so."""
    code, row_of_op = profile.code(), np.full(len(ops), -1, np.int64)
    if code is None:
        return row_of_op
    places = [file_and_line(row.get("place")) for row in rows]
    stacks = code.op[ops]
    for n, called_at in enumerate(places):
        alike = [m for m, other in enumerate(places) if other == called_at]
        lines = [
            m for m, (file, line, _) in enumerate(code.places.iter_rows()) if {"file": file, "line": line} == called_at
        ]
        if called_at and len(alike) == 1:  # one line that calls several networks does not say which
            row_of_op[code.passing(stacks, frozenset(lines))] = n
    return row_of_op


def _gathering(profile: Profile, *, copies: bool, phase: str = "") -> pl.DataFrame:
    """Return what the steps launch to gather parameters without gradients, or in a ``phase``; ``copies``: a unit copies its parameters out
    of what came.
    """
    ops = profile.steady_ops["op", "call", "name", "cls", "phase", "module", "stream", "call_start_ns"]
    comm = ops["cls"] == DeviceActivity.COMM.value
    busiest = ops.filter(~comm).group_by("stream").len().sort("len", "stream")["stream"]
    trains = ops["phase"].cast(pl.String).is_in(["forward", "backward", "optimizer"]).fill_null(value=False)
    # What a line gathers outside of all modules (whole weights for an average) is no call of a network.
    inside = (pl.col("module").cast(pl.String) != IN_STEP).fill_null(value=False)
    when = ops["phase"].cast(pl.String) == phase if phase else ~trains
    ops = ops.filter(when & inside & pl.col("call_start_ns").is_not_null())
    if not ops.height or not len(busiest):
        return ops.clear()
    gathers = lookup.matching(ops["name"], _GATHERS)
    out = lookup.matching(ops["name"], _COPIES_OUT)
    ops = ops.with_columns(
        pl.col("module").cast(pl.String),
        gathers=pl.Series(gathers, dtype=pl.Boolean),
        # FSDP copies what it sends on a stream of its own, before the gather.
        opens=pl.Series(~gathers & ~out, dtype=pl.Boolean) & (pl.col("stream") != busiest[-1]),
        out=pl.Series(out, dtype=pl.Boolean),
    )
    units = ops.filter(pl.col("out") if copies else pl.col("gathers"))["module"].unique()
    chosen = ops.filter(pl.col("module").is_in(units.implode()) & (pl.col("gathers") | pl.col("opens") | pl.col("out")))
    return chosen.with_columns(step=pl.Series(_steps_of(profile, chosen), dtype=pl.Int64))


def _steps_of(profile: Profile, ops: pl.DataFrame) -> I64:
    """Return in which step each of these is launched."""
    starts = profile.steps.cpu.filter(pl.col("process") == profile.process)["start_ns"].sort().to_numpy()
    return np.searchsorted(starts, ops["call_start_ns"].fill_null(0).to_numpy(), side="right").astype(np.int64)

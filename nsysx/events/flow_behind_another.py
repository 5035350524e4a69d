"""The operators of an X-ray step with its collectives and those of packages among them, for what a step takes from the one before it.

A program may end before the X-ray at the end of a capture, so that no other step right before the one that all resemble was recorded
with its operators. What another step took from the one before it, as at the program's start, holds for those that run the same ones.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from nsysx.events.alignment import align
from nsysx.events.event_bounds import CORRESPONDING_OPERATORS_SHARE
from nsysx.events.operator_flow import ID, MADE, WITH_COLLECTIVES, OperatorFlow, flow_of, flows_of, results_in
from nsysx.events.profile import Profile

#: Operators that may hand on what they are given as it is, under their own number: what has the type, the layout or the shape already.
_HANDS_ON = r"^aten::(to|type_as|contiguous|flatten|resolve_(conj|neg)|dropout|coalesce|atleast_[123]d|real|conj|positive|pin_memory)$"


def flow_with_collectives(profile: Profile) -> OperatorFlow | None:
    """Return the operators of an X-ray step of the shown process with the collectives among them: what they receive is made of what they
    send then. It is the step of ``flow_of``, or one behind another that was recorded where that is not.
    """
    return profile.once(_with_collectives)


def _with_collectives(profile: Profile) -> OperatorFlow | None:
    names = profile.ranges.ranges["name"].unique().cast(pl.String)
    others = names.str.contains(WITH_COLLECTIVES) & ~names.str.starts_with("aten::")
    some, of_torch = bool(others.any()), flow_of(profile)
    if of_torch is not None and of_torch.follows and not some:
        return replace(of_torch, made=_as_before(profile, of_torch))
    flows = flows_of(profile, WITH_COLLECTIVES) if some else flows_of(profile)
    first = next(flows, None)
    if first is None:
        return None
    flow = first if first.follows else next((f for f in flows if f.follows and _runs_the_same(f, first)), first)
    return replace(flow, made=_as_before(profile, flow))


def _runs_the_same(flow: OperatorFlow, other: OperatorFlow) -> bool:
    """Return whether two steps run nearly the same operators."""
    code = {name: number for number, name in enumerate(dict.fromkeys([*flow.names, *other.names]))}
    here, _ = align(*(np.array([code[name] for name in each.names], np.int64) for each in (flow, other)))
    return len(here) >= CORRESPONDING_OPERATORS_SHARE * max(len(flow.names), len(other.names))


def _as_before(profile: Profile, flow: OperatorFlow) -> list[tuple[int, ...]]:
    """Return what made the arguments of each operator, whatever handed them on as they are since; -1 for what is older than all X-ray
    steps.
    """
    ops = profile.ranges.ranges.filter(
        (pl.col("process") == profile.process) & (pl.col("thread") == flow.thread) & ~pl.col("repeated"),
        pl.col("kind") == "op",
        pl.col("start_ns") <= int(flow.start_ns[-1]),
        pl.col("name").cast(pl.String).str.starts_with("aten::"),
    ).sort("start_ns")
    alone = (pl.col("start_ns").shift(-1) >= pl.col("end_ns")).fill_null(
        value=True
    )  # with another in it, it makes something
    text = pl.col("label").cast(pl.String)
    handed = ops.filter(alone & pl.col("name").cast(pl.String).str.contains(_HANDS_ON)).select(
        number=text.str.extract(ID, 1).cast(pl.Int64), made=text.str.extract(MADE, 1).fill_null("")
    )
    given = {
        number: first[0][0] if first[0][1] >= 0 else -1
        for number, made in handed.iter_rows()
        if (first := results_in(made))
    }

    def before(number: int) -> int:
        while number in given:
            number = given[number]
        return number

    return [tuple(before(number) for number in made) for made in flow.made]

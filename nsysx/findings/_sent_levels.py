"""Stages cut between the encoder and the decoder of a U-Net: the skips of all levels are sent, of which the outermost are the largest."""

from __future__ import annotations

import itertools
import math
import re
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.events.collective_operators import collective_operators
from nsysx.events.operator_flow import flow_of
from nsysx.events.profile import Profile
from nsysx.findings._case import Case, Saving
from nsysx.findings._exposed_transfer import communication, exposed_transfer_ns
from nsysx.findings._work_bounds import FEWEST_SENT_LEVELS, LEVELS_APART_TIMES
from nsysx.model import Row

_BETWEEN_TWO = re.compile(r"^c10d::(send|recv_)$")
_OF_TWO = r"SendRecv"


class _Levels(NamedTuple):
    """The levels that are sent or received in a step: numbers of each tensor of a level, the largest first; of all; and the line."""

    numbers: tuple[int, ...]
    together: int
    where: Row


class SentLevels(NamedTuple):
    """Skip connections that cross a link: what it saves at most to send one inner level alone, the line, and a sentence."""

    saving: Saving
    where: Row
    text: str


def _levels(profile: Profile) -> _Levels | None:
    flow, code = flow_of(profile), profile.code()
    if flow is None or code is None:
        return None
    sent = [
        (each.start_ns, each.sizes[0])
        for each in collective_operators(flow, profile)
        if _BETWEEN_TWO.match(each.name) and each.sizes and len(each.sizes[0]) >= 4
    ]
    # Of each level the places of a field (behind sample and channel), and the numbers of a tensor: places shrink from level to level.
    levels = sorted({(math.prod(size[2:]), math.prod(size)) for _, size in sent}, reverse=True)
    apart = all(a >= LEVELS_APART_TIMES * b for (a, _), (b, _) in itertools.pairwise(levels))
    if len(levels) < FEWEST_SENT_LEVELS or not apart:
        return None
    largest = next(start for start, size in sent if math.prod(size[2:]) == levels[0][0])
    where = code.where(int(code.places_of(code.at(flow.thread, np.array([largest])))[0]))
    return _Levels(tuple(n for _, n in levels), sum(math.prod(size) for _, size in sent), where)


def sent_levels(case: Case) -> SentLevels | None:
    """Return the skip connections of all levels that cross a link, if that transfer is exposed for a notable time; else None."""
    levels = case.profile.once(_levels)
    if levels is None or case.program.compiled:
        return None
    comm = communication(case)
    theirs = comm["name"].cast(pl.String).str.contains(_OF_TWO).fill_null(value=False).to_numpy()
    once = levels.together / sum(levels.numbers)  # messages of each level
    left = min(levels.numbers) * once * 2 / levels.together  # there and back
    saved = round(exposed_transfer_ns(case, theirs) * max(0.0, 1 - left))
    if not case.notable(saved):
        return None
    text = (
        f"Cut between an outer and an inner level: let one rank run the outermost levels of encoder and decoder, the other one all inner "
        f"ones. Now the skips of {len(levels.numbers)} levels are sent, and the largest holds "
        f"{units.share(levels.numbers[0], sum(levels.numbers))} of it"
    )
    return SentLevels(case.bound(saved, "one inner level is sent, there and back"), levels.where, text)

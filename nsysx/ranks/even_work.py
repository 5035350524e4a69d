"""GPU work that is the same on all ranks, for a replay: between each two exchanges each has as much as they have on average.

One factor for all of a rank's work would lengthen what all ranks do alike, too, at another place of the step than where the late rank gets
shorter: all would wait there instead, and work that is spread evenly would save nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nsysx.frames.intervals import I64
from nsysx.frames.statistics import F64
from nsysx.replay.together import ReplayedRank


def factors(members: Sequence[ReplayedRank], *, in_each_step: bool = False) -> list[F64] | None:
    """Return, for each op of each rank, how many times as long it takes where the ranks' work is even between their exchanges.

    That is what is launched between two collectives that all ranks have, over all steps with as many of these, or ``in_each_step``. Where a
    rank has no work there, it counts to what follows in the step, behind the last such stretch to what is before. None where ranks launch
    these collectives in unlike order, or one of them has no work in a whole step.
    """
    stretches = _stretches(members)
    if stretches is None:
        return None
    if in_each_step:  # as if no two steps had as many
        stretches = [
            np.stack([member.step_of_op, of_rank[:, 1]], axis=1)
            for member, of_rank in zip(members, stretches, strict=True)
        ]
    keys, of_op = np.unique(np.concatenate(stretches), axis=0, return_inverse=True)
    stretch_of_op = np.split(of_op.ravel(), np.cumsum([len(each) for each in stretches])[:-1])
    ns = [np.where(member.own, member.cols.op_duration, 0) for member in members]
    work = np.array([np.bincount(stretch, each, len(keys)) for stretch, each in zip(stretch_of_op, ns, strict=True)])
    part = _parts(work, keys[:, 0])
    if part is None:
        return None
    whole = np.array([np.bincount(part, row) for row in work])
    factor = np.where(whole > 0, whole.mean(axis=0) / np.maximum(whole, 1), 1.0)
    return [of_rank[part[stretch]] for of_rank, stretch in zip(factor, stretch_of_op, strict=True)]


def _stretches(members: Sequence[ReplayedRank]) -> list[I64] | None:
    """Return of each op of each rank, in rows, how many collectives that all ranks have its step has, and how many of them are launched
    before it; None where the ranks launch them in unlike order.
    """
    common = sorted(set[int].intersection(*(set(member.joint[~member.own].tolist()) for member in members)))
    orders, stretches = set[tuple[bytes, bytes]](), []
    for member in members:
        here, step = np.isin(member.joint, common), member.step_of_op
        in_step = np.bincount(step[here], minlength=len(member.borders))
        orders.add((member.joint[here].tobytes(), in_step.tobytes()))
        before = np.cumsum(here) - (np.cumsum(in_step) - in_step)[step]
        stretches.append(np.stack([in_step[step], before], axis=1))
    return stretches if len(orders) == 1 else None


def _parts(work: F64, collectives: I64) -> I64 | None:
    """Return the part of a step that each stretch between two collectives belongs to, so that each part holds work of all ranks.

    ``work``: of each rank in each stretch (ns); ``collectives``: how many the steps of a stretch have, in order. None where a rank has no
    work in steps in which another one has.
    """
    part, number = np.zeros(work.shape[1], np.int64), 0
    for of_step in np.unique(collectives).tolist():
        stretches, held, first = np.flatnonzero(collectives == of_step), np.zeros(len(work)), number
        for stretch in stretches.tolist():
            held, part[stretch] = held + work[:, stretch], number
            if held.all():
                held, number = np.zeros(len(work)), number + 1
        if number > first:
            part[stretches] = np.minimum(part[stretches], number - 1)
        elif held.any():
            return None
        else:
            number += 1
    return part

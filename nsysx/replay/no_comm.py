"""The steps of a job if communication took no time: as long as those of its slowest rank, which the others still wait for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nsysx.events.other_ranks import Modelled
from nsysx.events.profile import Profile
from nsysx.replay import peers, rank_alone
from nsysx.replay.edits import Fixed, RemoveExposedComm, RemoveHost, apply
from nsysx.replay.simulate import run


def alone(profile: Profile) -> Modelled | None:
    """Return the step of the shown rank without any communication; None if it cannot be replayed.

    ``low_ns`` is that of its GPU work alone, which takes as long on a faster host; ``high_ns`` is the step with its communication as
    long as recorded.
    """
    model = rank_alone.by_itself(profile)
    if model is None:
        return None
    window = model.window
    fixed = Fixed.from_chain(model.chain)
    near = model.added.near
    cols = apply(model.relieved.columns(1.0, near=near), RemoveExposedComm(), fixed, profile)
    bare = apply(cols, RemoveHost(), fixed, profile)
    step, work = (window.step_ns(run(each).round_ns) for each in (cols, bare))
    return Modelled(step, min(work, step), max(model.step(1.0, near=near), step), model.by_step(cols))


def others(profile: Profile) -> list[Modelled]:
    """Return the steps without communication of the other ranks, in this report and in others, as far as they can be replayed."""
    here = [alone(other) for other in peers.others(profile)]
    elsewhere = profile.other_ranks.without_comm if profile.other_ranks else ()
    return [step for step in (*here, *elsewhere) if step is not None]


def job_step(real_ns: int, ranks: Sequence[Modelled]) -> int:
    """Return the step (ns) without communication of a job with these ranks, whose step is ``real_ns`` now.

    If that is less than a rank's modelled step, its host is so much faster, but not its GPU work. If it is more, then nothing tells
    a slower host from slower communication, and the most that communication may take is all of it.
    """
    numbers = sorted(set[int].intersection(*(set(r.by_step) for r in ranks)))
    lengths = np.array([[r.by_step[n] for n in numbers] for r in ranks], np.float64)
    longest = lengths.mean(axis=1).max() if numbers else 0.0
    # In each step another rank may be the slowest one. The step as it is now holds that, too.
    in_turn = float(lengths.max(axis=0).mean() / longest) if longest else 1.0

    def of_rank(rank: Modelled) -> float:
        longer = min(real_ns / rank.high_ns, in_turn) if rank.high_ns else in_turn
        return max(rank.step_ns * longer, rank.low_ns)

    return min(round(max(map(of_rank, ranks), default=0.0)), real_ns)

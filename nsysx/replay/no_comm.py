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

    ``low_ns`` is that of its GPU work alone, which takes as long on a faster host.
    """
    model = rank_alone.by_itself(profile)
    if model is None:
        return None
    window = model.window
    fixed = Fixed.from_chain(model.chain)
    cols = apply(model.relieved.columns(1.0, near=model.added.near), RemoveExposedComm(), fixed, profile)
    bare = apply(cols, RemoveHost(), fixed, profile)
    step, work = (window.step_ns(run(each).round_ns) for each in (cols, bare))
    return Modelled(step, min(work, step), step, model.by_step(cols))


def others(profile: Profile) -> list[Modelled]:
    """Return the steps without communication of the other ranks, in this report and in others, as far as they can be replayed."""
    here = [alone(other) for other in peers.others(profile)]
    elsewhere = profile.other_ranks.without_comm if profile.other_ranks else ()
    return [step for step in (*here, *elsewhere) if step is not None]


def job_step(shown_ns: int, shown: Modelled, rest: Sequence[Modelled]) -> int:
    """Return the step (ns) of a job without communication, whose shown rank takes ``shown_ns`` for itself.

    ``shown`` and ``rest`` are the modelled steps of the ranks. Where the shown rank turned out faster than modelled, so are the hosts
    of the others, but not their GPU work.
    """
    factor = min(shown_ns / shown.step_ns, 1.0) if shown.step_ns else 1.0
    slowest = max((max(round(r.step_ns * factor), r.low_ns) for r in rest), default=0)
    numbers = sorted(set[int].intersection(*(set(r.by_step) for r in (shown, *rest))))
    lengths = np.array([[r.by_step[n] for n in numbers] for r in (shown, *rest)], np.float64)
    longest = lengths.mean(axis=1).max() if numbers else 0.0
    # In each step another rank may be the slowest one.
    in_turn = float(lengths.max(axis=0).mean() / longest) if longest else 1.0
    return round(max(shown_ns, slowest) * in_turn)

"""The model of one rank that knows nothing of the others, its step by how much it communicates, and what its host takes alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from nsysx.events.other_ranks import Modelled
from nsysx.events.profile import Profile
from nsysx.replay import job_changes, peers, unprofiled
from nsysx.replay.removed_work import without_launches, without_ops
from nsysx.replay.replayed_window import Withheld
from nsysx.replay.simulate import run


def by_itself(profile: Profile) -> unprofiled.Model | None:
    """Return the model of the shown rank that knows nothing of the others, made once; None where its steps cannot be replayed."""
    return profile.once(_by_itself)


def _by_itself(profile: Profile) -> unprofiled.Model | None:
    model = unprofiled.model_of(profile, profile.once(peers.unknown))
    return None if isinstance(model, Withheld) else model


def hosts_ns(profile: Profile, most_ns: int) -> Mapping[int, int]:
    """Return process -> how long the host of that rank takes for a step if it waits for nothing; of those that can be replayed.

    That is without tracing, with as many launches as were recorded, and at most ``most_ns``, the step that was measured (ns).
    """
    return {process: min(ns, most_ns) for process, ns in profile.once(_hosts_ns).items()}


def _hosts_ns(profile: Profile) -> Mapping[int, int]:
    models = {each.process: by_itself(each) for each in (profile, *peers.others(profile))}
    return {
        process: model.step(1.0, 1.0, 0.0, 0.0, near=model.added.near)
        for process, model in models.items()
        if model is not None
    }


def hosts_without_ns(profile: Profile, name: str) -> Mapping[int, tuple[int, int]]:
    """Return process -> what the host of that rank takes as `hosts_ns` has it, and without what a change removes, see ``job_changes``."""
    pairs = {each.process: _host_without(each, name) for each in (profile, *peers.others(profile))}
    return {process: pair for process, pair in pairs.items() if pair is not None}


def _host_without(profile: Profile, name: str) -> tuple[int, int] | None:
    model = by_itself(profile)
    if model is None:
        return None
    cols = model.relieved.columns(1.0, 1.0, 0.0, 0.0, model.added.near)
    ops = np.array([op.op for item in model.chain.items for op in item.ops], np.int64)
    gone = np.isin(ops, list(job_changes.gone(profile, name)))
    left = without_launches(without_ops(cols, gone), gone) if gone.any() else cols
    now, then = (model.window.step_ns(run(each).round_ns) for each in (cols, left))
    return now, min(now, then)


#: Shares of its communication for which a rank's step is computed in advance, for those who know how long it waits.
_PARTS = (0.0, 0.25, 0.5, 0.75, 1.0)


def by_communication(profile: Profile) -> tuple[tuple[float, Modelled], ...]:
    """Return (share, step) of the shown rank with shares of its time of communication; () without a replay or communication."""
    model = by_itself(profile)
    if model is None or not model.relieved.waits:
        return ()
    by_step = model.by_step()
    return tuple((part, replace(model.at(part), by_step=by_step)) for part in _PARTS)

"""What ``nsysx whatif`` says as plain values, ``nsysx.whatif/1``: the same changes from the same replay as its text."""

from __future__ import annotations

from typing import Any

from nsysx.advice import Answer
from nsysx.errors import EXIT_EMPTY, NsysxError
from nsysx.events.profile import Profile
from nsysx.replay import requested_edits
from nsysx.replay.changes import Changes
from nsysx.replay.engine import Replay, replay_of
from nsysx.replay.outcome import Outcome
from nsysx.replay.replay_bounds import SAVES_NOTHING_SHARE

WHATIF_SCHEMA = "nsysx.whatif/1"


def values(profile: Profile, changes: Changes) -> dict[str, Any]:
    """Return what the changes are worth, without one all that save something; ns are of a step, without the profiler's time.

    ``recorded_ns`` and ``replayed_ns`` are with it. ``trusted`` is false, and ``changes`` empty, where the unchanged replay misses the
    recorded steps by too much; ``gpu_work_ns`` and ``loading_ns`` need no replay. ``alternatives`` are other ways to make a change,
    ``together`` is null unless several are asked for. Raises NsysxError, exit code 4 without a replay, 2 for a name that matches nothing.
    """
    replay = replay_of(profile)
    if not isinstance(replay, Replay):
        raise NsysxError(f"no replay: {replay.reason}", slug="whatif-no-replay", exit_code=EXIT_EMPTY)
    asked = requested_edits.edits(profile, changes)
    if not replay.trusted and asked and changes != Changes(free_loader=True):
        raise NsysxError(replay.misses, slug="whatif-untrusted", exit_code=EXIT_EMPTY)
    step = replay.steady
    low, high = map(round, step.bounds_of(step.now_ns))
    shown: list[dict[str, Any]] = []
    if replay.trusted and asked:
        for words, edit in asked:
            ways = [
                {"change": way, **_outcome(replay.outcome(other))} for way, other in requested_edits.alternatives(edit)
            ]
            shown.append({"option": None, "change": words, **_outcome(replay.outcome(edit)), "alternatives": ways})
    elif replay.trusted:
        for option, words, outcome in requested_edits.candidates(profile, replay):
            if outcome.saving_ns >= SAVES_NOTHING_SHARE * step.now_ns:
                shown.append({"option": option, "change": words, **_outcome(outcome), "alternatives": []})
    whole = replay.outcome(*(edit for _, edit in asked)) if replay.trusted and len(asked) > 1 else None
    return {
        "schema": WHATIF_SCHEMA,
        "step_ns": step.now_ns if replay.trusted else None,
        "low_ns": low if replay.trusted else None,
        "high_ns": high if replay.trusted else None,
        "source": step.source if replay.trusted else "recorded",
        "recorded_ns": round(step.recorded_ns),
        "replayed_ns": round(replay.unchanged_ns),
        "error": replay.error,
        "trusted": replay.trusted,
        "gpu_work_ns": round(replay.gpu_work_ns()),
        "loading_ns": round(replay.loading_ns()),
        "changes": shown,
        "together": None if whole is None else _outcome(whole),
    }


def advised(answer: Answer, loop: tuple[int, int] | None = None) -> dict[str, Any] | None:
    """Return what the page advises, with the page's figures; None where it gives none. ``bound``: it saves at most that.

    ``loop``: of a change between steps, the loop per step now and after it (ns), which then stands for the step.
    """
    if answer.then_ns is None and loop is not None:
        now, then = loop
        return {
            "finding": answer.do[-1].code,
            "change": answer.do[-1].text,
            "step_ns": None,
            "loop_ns": now,
            "loop_then_ns": then,
            "saving_ns": now - then,
            "bound": True,
        }
    if answer.then_ns is None or answer.now_ns is None:
        return None
    return {
        "finding": answer.do[-1].code,
        "change": answer.do[-1].text,
        "step_ns": answer.then_ns,
        "low_ns": answer.then_low_ns,
        "high_ns": answer.then_high_ns,
        "saving_ns": answer.now_ns - answer.then_ns,
        "bound": answer.bound,
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome: ``saving_ns`` is negative where the change may cost time, ``error_ns`` is its error bar."""
    return {
        "step_ns": round(outcome.step_ns),
        "saving_ns": round(outcome.saving_ns),
        "error_ns": round(outcome.bar_ns),
        "limit": outcome.next_limit,
        "moves_to": outcome.moves_to,
    }

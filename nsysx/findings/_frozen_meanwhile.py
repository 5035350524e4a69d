"""A network that stands between a loss and what that trains: frozen from the line that calls it until the backward of that loss is done.

The graph must be made while the network is frozen: what was called before computes the gradients of its weights still.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nsysx.advice import Alternative
from nsysx.analyses.lines import text_of, texts
from nsysx.events.backward_passes import backward_passes
from nsysx.events.operator_flow import ModuleCall, flow_of
from nsysx.events.profile import Profile
from nsysx.events.program_backwards import program_backwards
from nsysx.findings._called_names import network_in_text
from nsysx.findings._unread_calls import line_of_calls
from nsysx.model import Row


def frozen_meanwhile(
    profile: Profile,
    remedy: Alternative,
    call: ModuleCall,
    numbers: Sequence[int],
    *,
    cls: str = "",
    wrapped: bool = False,
) -> Alternative:
    """Return the advice for a call of a network that backwards of a step (``numbers``) go back through, in the program's words.

    ``wrapped``: a wrapper of ranks, not of class ``cls``, is called, waits for the gradients of what it wraps, and is passed by.
    """
    where = line_of_calls(profile, [call])
    cls = cls or call.cls or "this network"
    past = ", and call it past its wrapper, which reduces them" if wrapped else ""
    text = (
        f"Freeze {cls} while another network is trained through it, from its call to the end of that backward{past}: it computes gradients "
        "of its own weights that nothing reads"
    )
    name, behind = network_in_text(profile, call, where), backward_through(profile, call, numbers)
    if not name or not behind:
        return replace(remedy, text=text)
    called, loss = (text_of(texts(profile), each["file"], each["line"]) or "" for each in (where, behind))
    lines = [f"{name}.requires_grad_(False)  # before line {where['line']}: {called}"]
    if wrapped:
        inside = re.sub(rf"(?<![\w.]){re.escape(name)}\(", lambda _: f"{name}.module(", called)
        lines.append(f"{inside}  # line {where['line']}")
    lines.append(f"{name}.requires_grad_(True)  # behind line {behind['line']}: {loss}")
    return replace(remedy, text=text, paste="\n".join(lines))


def backward_through(profile: Profile, call: ModuleCall, numbers: Sequence[int]) -> Row:
    """Return the line that asks for the last of these backwards which goes back through a call of a network; empty where none is known."""
    flow, code = flow_of(profile), profile.code()
    if flow is None or code is None:
        return {}
    every = backward_passes(profile, flow, code)
    theirs = program_backwards(profile).number_at(np.array([each.start_ns for each in every], np.int64)).tolist()
    lines = [
        each.where
        for each, number in zip(every, theirs, strict=True)
        if number in numbers and each.where and any(call.first <= row < call.last for row in each.rows)
    ]
    return lines[-1] if lines else {}

"""Calls of one network in a loop over parts of a tensor: the advice to make one of them, in the names of the loop."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from nsysx.events.code_lines import CodeLines
from nsysx.events.operator_flow import ModuleCall, OperatorFlow, flow_of
from nsysx.events.profile import Profile
from nsysx.findings._fix import Fix
from nsysx.findings._function_texts import lines_of_function
from nsysx.findings._loop_folds import folded_loop

_ONE_CALL = (
    "Call it once for all rounds of this loop: none of them needs what another one makes. Fold the dimension that the loop goes through "
    "into that of the batch, and take it out of the result"
)
_BY_SAMPLE = (
    "The first dimension of what a round gives it must be that of the samples, and no sample may need another one."
)
#: What is not computed sample by sample, by the operators in a call, and what is said of it.
_OTHERWISE = (
    (
        re.compile(r"^aten::_?\w*batch_norm"),
        " Batch norm, where it trains, then takes its statistics from all rounds at once, and updates them once: its numbers change.",
    ),
    (re.compile(r"dropout|bernoulli"), " Dropout then draws other numbers."),
)
_KEPT = " What it computes on the way is then in memory for all rounds at once."


def in_names_of_loop(
    profile: Profile, code: CodeLines, calls: Sequence[ModuleCall], fix: Fix, *, trains: bool
) -> Fix | None:
    """Return the advice in the names of the loop that makes all of these calls; None where its lines do not show what each is given."""
    flow = flow_of(profile)
    stacks = [int(code.at(call.thread, np.array([call.start_ns], np.int64))[0]) for call in calls]
    if flow is None or not stacks:
        return None
    shared = set(code.own_chain(stacks[0])).intersection(*map(code.own_chain, stacks[1:]))
    for line_row in code.own_chain(stacks[0]):  # from the line that calls the network outward
        if line_row not in shared:
            continue
        file, line, *_ = code.places.row(line_row)
        paste = folded_loop(lines_of_function(profile, file, line), line, _unbinding(code, flow, file))
        if paste:
            condition = _BY_SAMPLE + "".join(words for kind, words in _OTHERWISE if _runs(flow, calls[0], kind))
            condition += "" if trains else _KEPT
            return fix.but(text=_ONE_CALL, paste=paste, condition=condition)
    return None


def _unbinding(code: CodeLines, flow: OperatorFlow, file: str) -> set[int]:
    """Return the lines of a file at which a tensor is taken apart, as by a loop that goes through one."""
    starts = [flow.start_ns[row] for row in flow.outermost if flow.names[row] == "aten::unbind"]
    stacks = code.at(flow.thread, np.array(starts, np.int64)).tolist()
    rows = (code.places.row(line_row) for stack in stacks for line_row in code.own_chain(stack)[:1])
    return {line for of_file, line, *_ in rows if of_file == file and line is not None}


def _runs(flow: OperatorFlow, call: ModuleCall, kind: re.Pattern[str]) -> bool:
    return any(kind.search(flow.names[row]) for row in range(call.first, call.last))

"""Options of the program's own layers by which a line runs: the change is made where such a layer is made, not where all of them run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from nsysx.analyses import lines
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.findings._case import Case
from nsysx.model import Row

#: The attribute that a statement keeps a layer in.
_KEPT = re.compile(r"^self\.(\w+)\b[^=]*=(?!=)")


def other_layers(case: Case, asked: Iterable[tuple[int, int]]) -> list[Row]:
    """Return the statements that make layers so that these do not what is asked for at instants (thread, ns): file, line and ``paste``.

    None where one of it runs by no option, or it is not known which statement made that layer.
    """
    flow, changed = flow_of(case.profile), dict[tuple[str, int], Row]()
    within = [] if flow is None else [each for each in asked if each[0] == flow.thread and _is_in(flow, each[1])]
    for thread, at_ns in within:  # other steps do the same
        made = _made(case, thread, at_ns)
        if made is None:
            return []
        where = made["made_file"], made["made_line"]
        changed[where] = {"file": where[0], "line": where[1], "paste": f"{made['changed']}  # line {where[1]}"}
    return [changed[where] for where in sorted(changed)]


def _is_in(flow: OperatorFlow, at_ns: int) -> bool:
    return bool(len(flow.start_ns)) and flow.start_ns[0] <= at_ns <= flow.end_ns.max()


def paste_of(changed: Sequence[Row]) -> str:
    """Return the statements of such layers as lines to paste."""
    return "\n".join(str(each["paste"]) for each in changed)


def _made(case: Case, thread: int, at_ns: int) -> Row | None:
    """Return the statement that makes the layer at work then, with an option by which it does what it does, the other way round."""
    code = case.profile.code()
    if code is None:
        return None
    for line_row in code.own_chain(int(code.at(thread, np.array([at_ns]))[0])):
        file, number, _ = code.places.row(line_row)
        options = lines.options_of_layers(case.profile, file, number)
        if options:
            kept = {part for path in _paths(case, thread, at_ns) for part in path.split(".")}
            by_name = [each for each in options if (name := _KEPT.match(each["text"])) and name[1] in kept]
            # Layers of blocks may have the same name in each of two kinds of blocks: then it is not known which it is.
            these = by_name if by_name or len(options) > 1 else options
            return dict(these[0]) if len(these) == 1 else None
    return None


def _paths(case: Case, thread: int, at_ns: int) -> list[str]:
    """Return the path of the innermost module that is called at an instant."""
    flow = flow_of(case.profile)
    if flow is None or flow.thread != thread:
        return []
    return [call.path for call in flow.calls if call.start_ns <= at_ns < call.end_ns][-1:]

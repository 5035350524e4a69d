"""Operators of layers that a subclass of tensors passes on, as DTensor does: each goes through Python, which takes the host many times as
long as the operator on a plain tensor.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from nsysx.events.operator_flow import OperatorFlow

#: Operators that split layers make of their own weights: these are DTensors, whatever the layers hand on.
_OF_LAYERS = re.compile(r"linear|mm$|matmul|norm|embedding|detach|alias|^aten::(t|transpose)$")


class PassedOn(NamedTuple):
    """Outermost operators that are passed on (rows of the flow), and which share of the host's time in them is not the operator's own."""

    rows: tuple[int, ...]
    share: float


def passed_on(flow: OperatorFlow) -> PassedOn:
    """Return the operators in calls of modules that a subclass passes on, besides those on weights."""
    rows, whole_ns, inner_ns, parts = list[int](), 0, 0, False
    inside = [(call.first, call.last) for call in flow.calls if "." not in call.path]
    for row, last in flow.outermost_spans:
        name = flow.names[row]
        if _OF_LAYERS.search(name) or not any(first <= row < end for first, end in inside):
            continue
        inner = next((each for each in range(row + 1, last) if flow.names[each] == name), None)
        if inner is None:
            continue
        rows.append(row)
        parts |= flow.size[inner] != flow.size[row]
        whole_ns += int(flow.end_ns[row] - flow.start_ns[row])
        inner_ns += int(flow.end_ns[inner] - flow.start_ns[inner])
    # What a subclass passes on in one piece may be anything: a part of a rank has other sizes.
    return PassedOn(tuple(rows) if parts else (), 1 - inner_ns / whole_ns if whole_ns else 0.0)

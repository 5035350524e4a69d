"""What each call of a module of a class makes from tensors that do not change, so that it could be made once and handed to all."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from nsysx.events.operator_flow import OperatorFlow, in_place, is_drawn, is_view
from nsysx.events.operator_names import writes_lists

#: Operators that give a new tensor its size or memory, and write nothing into it.
_MADE_ROOM = re.compile(r"::(resize_|set_)$")


def repeated_constants(
    flow: OperatorFlow, trained: Sequence[bool], copied: Sequence[bool], least: int
) -> dict[str, list[int]]:
    """Return class of a module -> the operators in its calls that need nothing of the step, where ``least`` calls or more run the same.

    Nothing that is trained, drawn, copied from the host (``copied``), written into a tensor that is older than the step, or from a tensor
    that an operator of another step or thread made. Into what memory an operator of that kind writes, or into which lists (FSDP gathers
    parameters there), is no constant, nor are the views of it. What calls make of other tensors each, as of columns, is not the same.
    """
    constant: list[bool] = []
    filled: list[int] = []
    for row, given in enumerate(flow.makers):
        name, made = flow.names[row], flow.made[row]
        new = trained[row] or copied[row] or is_drawn(name) or len(given) < sum(number >= 0 for number in made)
        writes = in_place(name) and not _MADE_ROOM.search(name)
        lists = writes_lists(name)
        new = new or lists or bool(writes and (not made or made[0] < 0))
        constant.append(not new and all(constant[maker] for maker in given))
        if not constant[row] and (writes or lists):
            filled += given if lists else given[:1]
    for row in filled:  # the memory, and of what it is a view
        _changing(flow, constant, row)
    for row, given in enumerate(flow.makers):
        constant[row] = constant[row] and all(constant[maker] for maker in given)
    alike: dict[tuple[str, frozenset[tuple[str, str]], frozenset[int]], list[list[int]]] = {}
    for call in flow.calls:
        rows = [row for row in range(call.first, call.last) if constant[row]]
        if rows and any(
            trained[call.first : call.last]
        ):  # without gradients (checkpoints) trained weights look constant
            what = frozenset((flow.names[row], flow.size[row]) for row in rows)
            outside = frozenset(maker for row in rows for maker in flow.makers[row] if maker < call.first)
            alike.setdefault((call.cls, what, outside), []).append(rows)
    repeated: dict[str, list[int]] = {}
    for (cls, _, _), calls in alike.items():
        if len(calls) >= least:
            repeated.setdefault(cls, []).extend(row for rows in calls for row in rows)
    return {cls: sorted(set(rows)) for cls, rows in repeated.items()}


def _changing(flow: OperatorFlow, constant: list[bool], row: int) -> None:
    """Note that a tensor, and each of which it is a view, changes: what its operator fills it with at first (zeros) is needed anew."""
    while constant[row]:
        behind = int(np.searchsorted(flow.start_ns, flow.end_ns[row])) if len(flow.end_ns) else row + 1
        constant[row:behind] = [False] * (behind - row)
        if not is_view(flow.names[row]) or not flow.makers[row]:
            return
        row = flow.makers[row][0]

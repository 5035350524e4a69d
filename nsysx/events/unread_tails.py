"""Networks that run to their end although nothing reads what comes behind an inner layer: from an X-ray's operators.

A feature that a hook keeps, or one of ``hidden_states``, needs the layers before it. A call's tail is what it runs behind the last operator
of whose result something is made. All calls of one module in a step leave the same layers out, or none can be cut.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from nsysx.events.operator_flow import ModuleCall, OperatorFlow, is_view


class UnreadTail(NamedTuple):
    """Calls of one module, the operators (rows of the flow) behind the last one that is needed, the innermost module that makes what is
    needed last, and the modules that run behind it alone, by path.
    """

    calls: tuple[ModuleCall, ...]
    rows: tuple[int, ...]
    last: str
    behind: tuple[str, ...]


def unread_tails(flow: OperatorFlow, unread: Collection[int]) -> Iterator[UnreadTail]:
    """Yield such calls, those of outer modules first. ``unread``: the outermost operators (rows) of whose results nothing is made."""
    gone, told = frozenset(unread), set[int]()
    cut = {call: _needed_to(flow, call, gone) for call in flow.calls}
    for path in dict.fromkeys(call.path for call in flow.calls):
        calls = tuple(call for call in flow.calls if call.path == path)
        if any(call.first in told for call in calls) or not all(call.first < cut[call] < call.last for call in calls):
            continue
        inner = [
            each for each in flow.calls if any(call.first <= each.first and each.last <= call.last for call in calls)
        ]
        inner = [each for each in inner if each.path != path]
        needed = {each.path for each in inner if any(each.first < cut[c] for c in calls if _is_in(each, c))}
        behind = tuple(dict.fromkeys(each.path for each in inner if each.path not in needed))
        rows = [row for call in calls for row in flow.outermost_of(cut[call], call.last)]
        kept = {row for each in inner if each.path in needed for row in range(each.first, each.last)}
        rows = [row for row in rows if row not in kept]
        last = _innermost(inner, cut[calls[0]] - 1)
        if not behind or last is None or all(is_view(flow.names[row]) for row in rows):
            continue
        told.update(row for call in calls for row in range(call.first, call.last))
        yield UnreadTail(calls, tuple(rows), last.path, behind)


def _is_in(inner: ModuleCall, outer: ModuleCall) -> bool:
    return outer.first <= inner.first and inner.last <= outer.last


def _needed_to(flow: OperatorFlow, call: ModuleCall, unread: Collection[int]) -> int:
    """Return the row behind the last outermost operator of a call of whose result something is made; its first one where there is none."""
    rows = flow.outermost_of(call.first, call.last)
    needed = [n for n, row in enumerate(rows) if row not in unread]
    return [*rows, call.last][needed[-1] + 1] if needed else call.first


def _innermost(calls: Collection[ModuleCall], row: int) -> ModuleCall | None:
    """Return the shortest of some calls around an operator."""
    around = [call for call in calls if call.first <= row < call.last]
    return min(around, key=lambda call: call.last - call.first) if around else None

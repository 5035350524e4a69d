"""Borders (halos) that a rank receives from its neighbours and puts beside its own part of a field before it computes any of that.

Most of the field reads no border: that can be computed while the borders travel. What was received, and what it is put beside, sizes tell,
and the names of arguments.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from nsysx.events.collective_operators import CollectiveOperator, collective_operators
from nsysx.events.early_waits import WorkOfStep
from nsysx.events.narrowed_operators import Size
from nsysx.events.operator_bounds import MOST_OF_BORDER_SHARE
from nsysx.events.operator_flow import OperatorFlow, is_view
from nsysx.events.profile import Profile
from nsysx.events.result_readers import ResultReaders

_RECEIVES = re.compile(r"^c10d::(recv_|recv_any_source_)$")
#: Operators that read of a tensor its size and type alone.
_LIKE = re.compile(r"^aten::(new_\w+|\w+_like)$")
_TOGETHER, _COPIES = re.compile(r"^aten::(cat|concat|concatenate)$"), "aten::copy_"


class HaloWait(NamedTuple):
    """A receive of the flow's thread, the operator (row) that puts what came beside a field, and which ``share`` of both together that is.

    ``work_ns``: how long what is launched from there to the next receive computes on the GPU.
    """

    start_ns: int
    reader: int
    share: float
    work_ns: int


def halo_waits(flow: OperatorFlow, profile: Profile) -> list[HaloWait]:
    """Return the receives of borders, in order."""
    receives = [each for each in collective_operators(flow, profile) if _RECEIVES.match(each.name) and each.sizes]
    if not receives:
        return []
    readers, work, waits = ResultReaders(flow), WorkOfStep(flow, profile), list[HaloWait]()
    begins = [*(each.start_ns for each in receives[1:]), int(flow.end_ns[-1])]
    for each, next_ns in zip(receives, begins, strict=True):
        border = _beside(readers, each)
        if border is None:
            continue
        row, share = border
        # Of borders that come together the last one's work is that of all.
        waits.append(HaloWait(each.start_ns, row, share, work.between_ns(int(flow.start_ns[row]), next_ns)))
    return waits


def _beside(readers: ResultReaders, each: CollectiveOperator) -> tuple[int, float] | None:
    """Return the first operator that puts what is received beside a larger tensor, and which share of both it is; else None."""
    flow, size, number = readers.flow, each.sizes[0], each.given[0] if each.given else -1
    numbers = math.prod(size)
    into = flow.row_of.get(number)
    if into is not None and is_view(flow.names[into]):
        whole = max((math.prod(part) for part in readers.sizes[into]), default=0)
        if 0 < numbers <= MOST_OF_BORDER_SHARE * whole:
            behind = next((row for row in flow.outermost if flow.start_ns[row] >= each.end_ns), None)
            return None if behind is None else (behind, numbers / whole)
    for row in flow.outermost:
        if flow.start_ns[row] < each.end_ns or _LIKE.match(flow.names[row]):
            continue
        sizes, made = readers.sizes[row], flow.made[row]
        # A tensor that is older than the X-ray has no name.
        if number in made if number >= 0 else (size in sizes and -1 in made):
            whole = _whole(readers, row, sizes, size)
            return (row, numbers / whole) if 0 < numbers <= MOST_OF_BORDER_SHARE * whole else None
    return None


def _whole(readers: ResultReaders, row: int, sizes: list[Size], size: Size) -> int:
    """Return of how many numbers the tensor is that an operator puts what came into; 0 where it computes of it."""
    flow = readers.flow
    if _TOGETHER.match(flow.names[row]):
        return sum(math.prod(part) for part in sizes if len(part) == len(size))
    if flow.names[row] == _COPIES and len(sizes) > 1 and sizes[1] == size:
        into = flow.row_of.get(flow.made[row][0])
        return max((math.prod(part) for part in readers.sizes[into]), default=0) if into is not None else 0
    return 0

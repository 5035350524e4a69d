"""How many of a loss's targets count: as the probe noted it, or as the program made them, by sizes.

Targets that a loss ignores are filled in first, and some of them are written over with labels (``full_like(...).scatter_(1, where, ...)``):
how many, the sizes tell. Where a mask chooses them (``where``, ``masked_fill``) they do not.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from nsysx.events.narrowed_operators import Size, sizes_of
from nsysx.events.operator_bounds import MOST_LAST_TIMES
from nsysx.events.operator_flow import OperatorFlow, is_view
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import settings_of
from nsysx.events.step_before import with_step_before
from nsysx.records import whole_number

#: Operators that hand targets on, number by number.
_HANDS_ON = re.compile(r"^aten::(to|_to_copy|contiguous|clone|long)$")
#: What makes a tensor of one number, and what writes labels into some of its places.
_FILLS = re.compile(r"^aten::(full|full_like|new_full|fill_)$")
_SCATTERS, _PUTS = re.compile(r"^aten::scatter_?$"), re.compile(r"^aten::index_put_?$")
#: What takes one of two numbers for each place, or a number of its own.
_CHOOSES = re.compile(r"^aten::(where|masked_fill_?|index_put_?)$")


class NotedTargets(NamedTuple):
    """Of all targets of the losses of one size in a step: which share counts. Of each row that was looked at the least and the most that
    count and the first place that does, None where the rows are not known.
    """

    share: float
    least: int | None
    most: int | None
    length: int | None
    first: int | None

    @property
    def last(self) -> int | None:
        """How many last positions of a row hold all that count, None where few of these do, or that is not known."""
        if not self.first or not self.length:
            return None
        last = self.length - self.first
        return last if last <= MOST_LAST_TIMES * self.share * self.length else None

    @property
    def left(self) -> float:
        """Which share of the positions is left where those that count, or the last ones that hold them, are taken."""
        return self.last / self.length if self.last is not None and self.length else self.share


class MadeTargets(NamedTuple):
    """Targets as the program makes them: ``fills_ns`` is the instant (on the flow's thread) of the operator that gives the ignored ones
    their number; ``counted`` of ``length`` in each row count at most, and ``share`` of all, None where sizes do not tell.
    """

    fills_ns: int
    counted: int | None
    length: int
    share: float | None


def noted_targets(profile: Profile, targets: int, classes: int = 0, *, kind: str = "loss") -> NotedTargets | None:
    """Return what the probe noted of losses of so many targets, each of one of so many classes, or of masks of so many positions; None
    where it noted none.
    """
    settings = settings_of(profile)
    for row in (settings.rows("targets") if settings is not None else None) or ():
        share = row.get("counts")
        if (row.get("kind"), row.get("targets"), row.get("classes")) == (kind, targets, classes) and share is not None:
            return NotedTargets(float(share), *(whole_number(row.get(n)) for n in ("least", "most", "length", "first")))
    return None


def made_targets(profile: Profile, number: int) -> MadeTargets | None:
    """Return how the targets are made that an operator of the flow (its number) makes, None for another way."""
    steps = with_step_before(profile)
    if steps is None:
        return None
    flow = steps.flow
    row = _behind_views(flow, number)
    if row < 0:
        return None
    name, sizes = flow.names[row], sizes_of(flow.size[row])
    whole, begin_ns = max(sizes[:2], key=math.prod, default=()), int(flow.start_ns[row])
    written = _written(name, sizes)
    filled = _behind_views(flow, flow.made[row][0]) if flow.made[row] else -1
    if not whole or math.prod(whole) < 1:
        return None
    if written and math.prod(written) < math.prod(whole) and filled >= 0 and _FILLS.match(flow.names[filled]):
        in_rows = _SCATTERS.match(name) is not None and len(whole) == len(written) == 2 and whole[0] == written[0]
        share = math.prod(written) / math.prod(whole)
        return MadeTargets(int(flow.start_ns[filled]), written[-1] if in_rows else None, whole[-1], share)
    chosen = _CHOOSES.match(name) is not None and not written
    return MadeTargets(begin_ns, None, whole[-1], None) if chosen else None


def _written(name: str, sizes: list[Size]) -> Size:
    """Return the size of what is written into some places of a tensor, () for a number, and for other operators.

    A dimension of 1 may be written many times: how many places that are is not known.
    """
    written: Size = ()
    if _SCATTERS.match(name) and len(sizes) > 3 and sizes[3]:
        written = sizes[2]
    elif _PUTS.match(name) and len(sizes) > 2:
        written = sizes[-2]
    return () if 1 in written else written


def _behind_views(flow: OperatorFlow, number: int) -> int:
    row = flow.row_of.get(number, -1)
    while row >= 0 and (is_view(flow.names[row]) or _HANDS_ON.match(flow.names[row])) and flow.made[row]:
        row = flow.row_of.get(flow.made[row][0], -1)
    return row

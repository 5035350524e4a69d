"""Lines of several kinds that one call runs in each step, as a metric that is written in several functions: its cost is that of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nsysx.events.code_lines import CodeLines
from nsysx.findings import _line_causes
from nsysx.findings._case import Case
from nsysx.findings._costly_lines import CostlyLine
from nsysx.findings._finding_bounds import FEWEST_KINDS_TOGETHER, MOST_OF_TOGETHER_SHARE
from nsysx.frames.intervals import I64

#: Phases that a step cannot do without: a line below which they run calls the network, not something beside it.
OF_TRAINING = ("forward", "backward", "optimizer")
Kind = tuple[object, ...]


class CalledTogether(NamedTuple):
    """``caller``: the line (place) that calls all lines of some ``kinds``."""

    caller: int
    kinds: tuple[Kind, ...]


def called_together(case: Case, code: CodeLines, kinds: Mapping[Kind, Sequence[CostlyLine]]) -> CalledTogether | None:
    """Return the innermost line that calls the costliest lines of several kinds, and nothing that trains; None where there is none.

    Only lines whose change is known count, and no loops that launch: these have prices of their own. Where one kind is most of it, or there
    are two alone, what they do themselves says more.
    """
    of_kind = {key: _callers(code, group) for key, group in kinds.items() if _may_join(group)}
    training = _calls_that_train(case)
    best: CalledTogether | None = None
    best_cost = 0
    for caller in frozenset[int]().union(*of_kind.values()):
        joined = tuple(key for key, callers in of_kind.items() if caller in callers)
        costs = [sum(line.cost for line in kinds[key]) for key in joined]
        cost = sum(costs)
        if len(costs) < FEWEST_KINDS_TOGETHER or max(costs) > MOST_OF_TOGETHER_SHARE * cost or cost < best_cost:
            continue
        if best is not None and cost == best_cost and not any(best.caller in above for above in _above(code, caller)):
            continue
        trains = code.passing(code.call[training], frozenset({caller})).any()
        if not (trains or _line_causes.encloses(case, caller)):
            best, best_cost = CalledTogether(caller, joined), cost
    return best


def _may_join(group: Sequence[CostlyLine]) -> bool:
    return all(line.fix is not None and not line.looping and not line.aside and line.part == 1.0 for line in group)


def _callers(code: CodeLines, group: Sequence[CostlyLine]) -> frozenset[int]:
    """Return the places from which every line of a group is called, wherever it runs."""
    above = [each for line in group for each in _above(code, line.place)]
    return frozenset.intersection(*above) if above else frozenset()


def _above(code: CodeLines, line_row: int) -> list[frozenset[int]]:
    """Return the places that a line is called from, for each stack that ends with it."""
    return [frozenset(code.chain(stack)[:-1]) for stack in np.flatnonzero(code.place == line_row).tolist()]


def _calls_that_train(case: Case) -> I64:
    """Return the calls of a network, its gradients or its optimizer."""
    trains = case.calls["phase"].is_in(OF_TRAINING).fill_null(value=False)
    made: I64 = case.calls["call"].filter(trains).to_numpy()
    return made

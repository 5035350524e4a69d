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

#: Phases that a step cannot do without: a line below which they run calls the network, not something beside it.
_OF_TRAINING = ("forward", "backward", "optimizer")
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
    best: CalledTogether | None = None
    best_cost = 0
    for caller in frozenset[int]().union(*of_kind.values()):
        joined = tuple(key for key, callers in of_kind.items() if caller in callers)
        costs = [sum(line.cost for line in kinds[key]) for key in joined]
        cost = sum(costs)
        innermost = best is None or best.caller in _above(code, caller)
        alone = len(costs) < FEWEST_KINDS_TOGETHER or max(costs) > MOST_OF_TOGETHER_SHARE * cost
        if alone or cost < best_cost or (cost == best_cost and not innermost):
            continue
        if not (_line_causes.encloses(case, caller) or _trains(case, code, caller)):
            best, best_cost = CalledTogether(caller, joined), cost
    return best


def _may_join(group: Sequence[CostlyLine]) -> bool:
    return all(line.fix is not None and not line.looping and not line.aside and line.part == 1.0 for line in group)


def _callers(code: CodeLines, group: Sequence[CostlyLine]) -> frozenset[int]:
    """Return the places from which every line of a group is called, wherever it runs."""
    chains = [
        frozenset(code.chain(int(stack))[:-1])
        for line in group
        for stack in np.flatnonzero(code.place == line.place).tolist()
    ]
    return frozenset.intersection(*chains) if chains else frozenset()


def _above(code: CodeLines, line_row: int) -> frozenset[int]:
    """Return the places that a line is called from."""
    stacks = np.flatnonzero(code.place == line_row).tolist()
    return frozenset(above for stack in stacks for above in code.chain(int(stack))[:-1])


def _trains(case: Case, code: CodeLines, caller: int) -> bool:
    """Return whether calls of a network, its gradients or its optimizer are made below a line."""
    made = case.calls.filter(case.calls["phase"].is_in(_OF_TRAINING).fill_null(value=False))
    return bool(code.passing(code.call[made["call"].to_numpy()], frozenset({caller})).any())

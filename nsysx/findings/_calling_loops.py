"""Loops that call a function in each round, where what launches are the lines of that function: the loop itself may stand elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.catalogue import Call
from nsysx.events import line_runs
from nsysx.events.code_lines import CodeLines
from nsysx.findings._case import Case
from nsysx.findings._finding_bounds import FEWEST_CALLING_ROUNDS, MOST_RUNS_OF_ONE_CALL


class CallingLoop(NamedTuple):
    """The function that is called (``function``), how often in a step (``calls``), and what calls it: the ``file``, the function
    (``caller``) and the places of its lines.
    """

    function: str
    calls: float
    file: str
    caller: str
    places: tuple[int, ...]

    def holds(self, file: object, function: object) -> bool:
        """Return whether lines of this function are beside those that call."""
        return (self.file, self.caller) == (file, function)


def calling_loop(case: Case, code: CodeLines, places: Sequence[int]) -> CallingLoop | None:
    """Return the loop that calls the function in which these lines stand, None where they are of several, or loop in it themselves.

    All calls come from one other function, in several rounds of a run of it, and what else these lines launch is of the same phase and
    module: a function that trains, or runs a network, may change weights.
    """
    runs = case.profile.once(line_runs.of_lines)
    theirs = {code.places.row(each)[::2] for each in places}
    if len(theirs) != 1 or any(runs.rounds[each] > MOST_RUNS_OF_ONE_CALL for each in places):
        return None
    ((file, function),) = theirs
    chains = [code.own_chain(stack) for stack in np.flatnonzero(np.isin(code.place, list(places))).tolist()]
    callers = {chain[1] if chain[1:] else -1 for chain in chains}
    calling = {code.places.row(each)[::2] for each in callers if each >= 0}
    if -1 in callers or len(calling) != 1 or (file, function) in calling:
        return None
    ((outer, caller),) = calling
    often = float(max(runs.runs[each] for each in places))
    if sum(runs.rounds[each] for each in callers) < FEWEST_CALLING_ROUNDS or often < FEWEST_CALLING_ROUNDS:
        return None
    launches = case.calls.filter(case.calls["kind"].is_in(Call.LAUNCHES))
    below = code.passing(code.call[launches["call"].to_numpy()], frozenset(callers))
    kinds = code.made_at(launches, places)["phase", "module"].unique()
    within = launches.filter(pl.Series(below, dtype=pl.Boolean))
    if not within.join(kinds, on=["phase", "module"], how="anti", nulls_equal=True).is_empty():
        return None
    return CallingLoop(str(function or ""), often, str(outer), str(caller or ""), tuple(sorted(callers)))

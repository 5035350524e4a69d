"""Frozen networks that several steps in a row give the same: the passes over one batch, of which one has to call them.

The probe tells that the steps give a network the very same tensors, and that nothing trains it. The line that calls it is the outermost
one of the program below which nothing is trained; all that is computed below that line is the same in each pass if all networks there are
frozen ones, and nothing of it is drawn, written into older tensors or made of what the step makes elsewhere of what is trained.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np

from nsysx.analyses.lines import text_of, texts
from nsysx.events.code_lines import CodeLines
from nsysx.events.needless_operators import behind, outer_operators
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_flow import OperatorFlow, is_drawn
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings, file_and_line, settings_of
from nsysx.findings._case import Fix
from nsysx.findings._finding_bounds import POLICY_CALLS
from nsysx.findings._flow_work import place_of_operator
from nsysx.findings._work_bounds import FEWEST_PASSES
from nsysx.model import Row
from nsysx.records import whole_number
from nsysx.saving import Saving

#: A line that gives what a call makes a name.
_NAMED = re.compile(r"^\s*([A-Za-z_]\w*)\s*=\s*([^=\s][^#]*[)\]])\s*(?:#.*)?$")
_Call = tuple[str, object, object]


class SameInPasses(NamedTuple):
    """Outermost operators (rows of the flow) below a line that calls frozen networks (classes) on the same in ``passes`` steps in a row."""

    rows: list[int]
    where: Row
    classes: tuple[str, ...]
    passes: float

    @property
    def share(self) -> float:
        """In which share of the steps they need not run."""
        return 1 - 1 / self.passes

    def sentence(self) -> str:
        """Return what was seen."""
        each = " and ".join(self.classes)
        return (
            f"{self.passes:.3g} steps in a row, passes over one batch, give {each} the very same tensors. Nothing trains it, and nothing "
            f"is drawn below this line: all but the first of them, {self.share:.0%} of the steps, compute what is there already."
        )


def saved_in_passes(worth: Saving, share: float) -> Saving:
    """Return what is saved in a share of the steps, of what a step saves without the work."""
    if worth.likely_ns is None or share == 1:
        return worth
    likely, error, most = (
        None if ns is None else round(ns * share) for ns in (worth.likely_ns, worth.error_ns, worth.most_ns)
    )
    return replace(worth, likely_ns=likely, error_ns=error, most_ns=most, bound=False)


def to_keep_with_batch(profile: Profile, same: SameInPasses) -> Fix:
    """Return the advice to keep it with the batch, with the names of the line where it gives what it makes one."""
    fix, line = Fix.by_name("kept-with-batch"), same.where.get("line")
    written = _NAMED.match(text_of(texts(profile), same.where.get("file"), line) or "")
    if written is None:
        return fix
    name, value = written.groups()
    return fix.but(
        paste=(
            f'with torch.no_grad():  # once, where the batch is made\n    batch["{name}"] = {value}\n'
            f'{name} = batch["{name}"]  # in each pass, in place of line {line}'
        )
    )


def same_in_passes(profile: Profile, flow: OperatorFlow, code: CodeLines, trained: Flags) -> list[SameInPasses]:
    """Return what passes over one batch compute again, by the line that calls the networks."""
    again = _given_again(profile)
    if not trained.any() or max((passes for passes, _ in again.values()), default=0.0) < FEWEST_PASSES:
        return []
    frozen = {call for call, (_, is_frozen) in again.items() if is_frozen}
    outer = outer_operators(flow)
    learns = outer.within(trained, len(flow.names))
    drawn = outer.within((is_drawn(name) and not name.endswith("::dropout") for name in flow.names), len(flow.names))
    changes = behind(outer.makers, learns | drawn | outer.into_older)
    stacks = code.at(flow.thread, flow.start_ns[outer.rows])
    chains = [code.chain(stack) if stack >= 0 else [] for stack in stacks.tolist()]
    taught = frozenset(
        row for chain, is_trained in zip(chains, learns.tolist(), strict=True) if is_trained for row in chain
    )
    lines: dict[int, list[tuple[_Call, int, int]]] = {}
    for call, first, last in _roots(flow, code):
        chain = code.chain(int(code.at(flow.thread, flow.start_ns[[first]])[0]))
        line = next((row for row in chain if row not in taught and code.where(row)), None)
        if line is not None:
            lines.setdefault(line, []).append((call, first, last))
    computed = list[SameInPasses]()
    for line, calls in lines.items():
        passes = max((again[call][0] for call, _, _ in calls if call in again), default=0.0)
        below = [index for index, chain in enumerate(chains) if line in chain]
        if passes < FEWEST_PASSES or not all(call in frozen for call, _, _ in calls) or changes[below].any():
            continue
        classes = tuple(dict.fromkeys(call[0] for call, _, _ in calls))
        computed.append(SameInPasses([outer.rows[index] for index in below], code.where(line), classes, passes))
    return computed


def _roots(flow: OperatorFlow, code: CodeLines) -> list[tuple[_Call, int, int]]:
    """Return the calls of networks from outside of any other: class, file and line, and the operators in it ([first, last))."""
    roots, until = list[tuple[_Call, int, int]](), -1
    for call in flow.calls:
        if call.first < until:
            continue
        until = call.last
        where = place_of_operator(code, flow, np.array([call.start_ns]))
        roots.append(((call.cls, where.get("file"), where.get("line")), call.first, call.last))
    return roots


def _given_again(profile: Profile) -> Mapping[_Call, tuple[float, bool]]:
    """Return of each network that steps call without gradients how many steps in a row give it the same, and whether it is frozen."""
    settings = settings_of(profile)
    rows = () if settings is None else settings.rows("given_again") or ()
    again = dict[_Call, tuple[float, bool]]()
    for row in rows:
        if row.get("learns"):
            continue
        where, steps = file_and_line(row.get("place")), row.get("steps")
        call = str(row.get("class")), where.get("file"), where.get("line")
        is_frozen = row.get("trained") is False and row.get("drops") is False
        again[call] = _passes(steps if isinstance(steps, list) else []), is_frozen
    return again


def made_between_steps(settings: RecordedSettings | None) -> bool:
    """Return whether what runs a network between steps makes the batch of the steps behind it, as the rollouts of a policy do.

    Steps are given something else exactly where a network has run before them, and the same in all other ones. It runs many times in a row:
    a few calls may test what was learned of a batch before the next one comes.
    """
    ran = () if settings is None else settings.rows("evaluations") or ()
    if max((whole_number(row.get("calls")) or 0 for row in ran), default=0) < POLICY_CALLS:
        return False
    behind_step = {step for row in ran if (step := whole_number(row.get("step"))) is not None}
    for row in (settings.rows("given_again") if settings is not None else None) or ():
        steps = row.get("steps")
        pairs = [each for each in steps if isinstance(each, list) and len(each) == 2] if isinstance(steps, list) else []
        beside = [
            (a[0], a[1] != b[1])
            for a, b in pairwise(pairs)
            if b[0] == a[0] + 1 and a[0] <= max(behind_step, default=-1)
        ]
        new, same = ({step for step, is_new in beside if is_new is which} for which in (True, False))
        if new and same and new <= behind_step and same.isdisjoint(behind_step):
            return True
    return False


def _passes(steps: Sequence[object]) -> float:
    """Return how many steps in a row are given the same, on average; 0 where it is the same in all of them, or that is not known.

    What was recorded of a batch may begin or end within its passes: only those count whose first and last one were seen.
    """
    pairs = [each for each in steps if isinstance(each, list) and len(each) == 2]
    numbers = [(whole_number(step), whole_number(number)) for step, number in pairs]
    noted = [(step, number) for step, number in numbers if step is not None and number is not None]
    whole = list[int]()
    # Steps that follow each other: between two windows others were not recorded.
    for _, together in groupby(enumerate(noted), key=lambda each: each[1][0] - each[0]):
        runs = [len(list(run)) for _, run in groupby(number for _, (_, number) in together)]
        whole += runs[1:-1]
    return sum(whole) / len(whole) if whole else 0.0

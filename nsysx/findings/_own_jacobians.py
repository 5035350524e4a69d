"""Jacobians of every sample by every sample, of which the samples' own blocks are read: all others are zero, a pass of autograd for each.

``torch.autograd.functional.jacobian`` of a batch runs a pass for each number that comes out. Where samples are computed by themselves one
pass over the sum of all samples gives the gradients of one output of each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from nsysx import units
from nsysx.events.backward_passes import BackwardPass
from nsysx.events.operator_flow import OperatorFlow, is_view
from nsysx.events.result_readers import ResultReaders
from nsysx.findings._case import Fix
from nsysx.findings._flow_work import NeedlessOperators, in_short
from nsysx.findings._work_bounds import FEWEST_OWN_PASSES, SAME_PASS_SHARE

_STACKS = re.compile(r"^aten::(stack|cat)$")
_DIAGONAL = "aten::diagonal"
#: J = torch.autograd.functional.jacobian(net, x, create_graph=True)
_JACOBIAN = re.compile(
    r"^(?P<made>[A-Za-z_]\w*)\s*=\s*[\w.]*\bjacobian\(\s*(?P<of>[A-Za-z_][\w.]*)\s*,\s*(?P<by>[A-Za-z_]\w*)\s*(?P<rest>,[^()]*)?\)$"
)


def own_blocks(
    flow: OperatorFlow, passes: Sequence[BackwardPass], text: Sequence[str]
) -> tuple[NeedlessOperators, Mapping[int, float]] | None:
    """Return the operators that are differentiated for such blocks, and the share of each's work that stays; None without any."""
    group = _longest_run(flow, passes)
    if len(group) < FEWEST_OWN_PASSES:
        return None
    readers, end_ns = ResultReaders(flow), passes[group[-1]].end_ns
    behind = (row for row in flow.outermost if flow.start_ns[row] >= end_ns)
    samples = next((n for row in behind if (n := _samples(readers, row, len(group)))), 0)
    if not samples:
        return None
    several, outputs = [passes[n] for n in group], len(group) // samples
    rows = frozenset[int]().union(*(each.rows for each in several))
    kept = {}
    for row in rows:
        times = sum(row in each.rows for each in several)
        if times > outputs:
            kept[row] = 1 - (times - outputs) / sum(row in each.rows for each in passes)
    where = several[0].where
    title = (
        f"{in_short(where) or 'The step'} differentiates each number of {units.count(samples)} samples by all samples"
    )
    why = (
        f"{len(group)} passes of autograd run one after the other; of what each makes the block of one sample is read, and the others "
        f"are zero: {units.several(outputs, 'pass', 'passes')} over sums of all samples would do."
    )
    return NeedlessOperators(sorted(kept), title, why, _fix(text[group[0]]), where), kept


def _longest_run(flow: OperatorFlow, passes: Sequence[BackwardPass]) -> list[int]:
    """Return the longest run of passes of one line that differentiate nearly the same; each begins at a view of its own."""
    computed = [frozenset(row for row in each.rows if not is_view(flow.names[row])) for each in passes]
    best, run = list[int](), [0] if passes else []
    for n, m in pairwise(range(len(passes))):
        earlier, later = passes[n], passes[m]
        alike = len(computed[n] & computed[m]) >= SAME_PASS_SHARE * max(min(len(computed[n]), len(computed[m])), 1)
        same = earlier.where == later.where and alike and not later.afresh
        best, run = (best, [*run, m]) if same else (max(best, run, key=len), [m])
    return max(best, run, key=len)


def _samples(readers: ResultReaders, row: int, passes: int) -> int:
    """Return of how many samples an operator stacks the gradients of so many passes, if only the diagonal of samples is read; else 0."""
    flow, sizes = readers.flow, [size for size in readers.sizes[row] if size]
    if not _STACKS.match(flow.names[row]) or len(flow.made[row]) < passes or not sizes or len(sizes[0]) < 2:
        return 0
    samples = sizes[0][0]
    if samples < 2 or passes % samples or len(set(sizes[:passes])) > 1:
        return 0
    reader = readers.only_reader(row)
    if reader is None:
        return 0
    end = next((end for begin, end in flow.outermost_spans if begin == reader[0]), reader[0] + 1)
    diagonal = any(
        flow.names[inner] == _DIAGONAL and len(size := readers.sizes[inner][0]) > 1 and size.count(samples) > 1
        for inner in range(reader[0], end)
    )
    return samples if diagonal else 0


def _fix(text: str) -> Fix:
    """Return the advice, with the names of the line that asks for the Jacobian."""
    fix, line = Fix.by_name("own-jacobians"), _JACOBIAN.match(text)
    if line is None:
        return fix
    graph = "" if "create_graph" in text else "retain_graph"
    paste = fix.paste
    for name, in_program in (("J", line["made"]), ("net", line["of"]), ("x", line["by"])):
        paste = re.sub(rf"(?<![\w.]){name}\b", in_program, paste)
    return fix.but(paste=paste.replace("create_graph", graph) if graph else paste)

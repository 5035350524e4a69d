"""Logits of positions that a mask takes out of a loss, as prompts in the loss of a policy: a head need not make them.

The loss of each position is multiplied by a mask, added up, and divided by the sum of that mask. An X-ray's operators show it, and what
makes the logits. How many positions the mask keeps the probe notes where it can look at the mask; else what is saved is not told, only
what is at stake.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.events.counted_targets import NotedTargets, noted_targets
from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.operator_flow import OperatorFlow, flow_of, handed_from
from nsysx.events.operator_names import LAYERS
from nsysx.findings._case import Case, Fix, Rule, Saving, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator, work_of_operators
from nsysx.findings._found import Found
from nsysx.findings._ignored_targets import hands_logits_on, worth_of_fewer_rows
from nsysx.findings._once import Takes
from nsysx.findings._smaller_operators import LOGITS_TO_KEEP, keeps_logits
from nsysx.findings._work_bounds import MANY_IGNORED_SHARE
from nsysx.model import Finding
from nsysx.replay.engine import ScaleOps

_TIMES, _SUMS = re.compile(r"^aten::mul_?$"), re.compile(r"^aten::sum$")
#: What makes one number of each position's logits: the loss of a label, or its probability.
_PICKS = re.compile(r"^aten::(gather|cross_entropy_loss|nll_loss(_nd)?)$")
_TEXT = (
    "Where this mask is 0 at many positions (prompts, padding), make logits of the others alone: the head takes the hidden states of those "
    "that count (of so many last ones: logits_to_keep, where the model has it)"
)
_PASTE = (
    "logits = head(hidden[:, -n - 1 : -1])  # n: how many last positions may count; targets and mask alike: [:, -n:]"
)

_BY_MASK = (
    "keep = mask.bool()  # of the positions whose logits are made\n"
    "logits = head(hidden[keep])  # targets, and what else has a number of each position, alike: [keep]"
)
_WAITS = "A mask as index waits once a step for the GPU to tell how many there are; where each row has as many, gather them by place."
_AT_MOST = Saving(
    None, "at most the share of that work at whose positions the mask is 0, and less where hosts set the pace"
)


class _MaskedLoss(NamedTuple):
    """A product with a mask (row of the flow), the layer whose logits it is of, and what works on these in between."""

    times: int
    layer: int
    between: frozenset[int]


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return one finding about a loss of which a mask keeps positions, where head and loss take 5 % of the step or more."""
    flow, code = flow_of(case.profile), case.profile.code()
    if flow is None or code is None or not case.program.trains or case.program.compiled:
        return []
    losses = list(dict.fromkeys(_masked_losses(flow)))
    if len({loss.layer for loss in losses}) != 1:
        return []
    rows = frozenset[int]().union(*({loss.layer, *loss.between} for loss in losses))
    work = work_of_operators(case, flow).filter(pl.col("row").is_in(list(rows)))
    taken = case.per_step(int(work["ns"].sum()))
    if not case.notable(taken, REPORTED_SHARE):
        return []
    head = place_of_operator(code, flow, flow.start_ns[[losses[0].layer]])
    positions = math.prod(sizes_of(flow.size[losses[0].times])[0])
    noted = noted_targets(case.profile, positions, kind="mask")
    if noted is not None and 1 - noted.share < MANY_IGNORED_SHARE:
        return []
    worth, by = _AT_MOST, in_short(head) or "the head"
    if noted is None:
        masked = "The share of positions at which the mask is 0 goes with it; how many these are was not noted."
        title = f"A mask says which positions count in a loss, and {by} makes logits for all of them: {units.duration(taken)} of GPU work"
    else:
        worth = worth_of_fewer_rows(case, [ScaleOps(ops_of(work), noted.left, less_work=True)])
        if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
            return []
        masked = (
            f"Of {positions:,} positions {units.share(1 - noted.share, 1)} were masked in the step that was looked at."
        )
        title = f"A mask takes {units.share(1 - noted.share, 1)} of the positions out of a loss, and {by} makes logits for all of them"
    detail = (
        f"The layer that makes the logits, what works on them and their gradients take {units.duration(taken)} of GPU work {case.per}, "
        f"{case.share(taken)} of the step. {masked}"
    )
    where = place_of_operator(code, flow, flow.start_ns[[losses[0].times]]) or head
    fix = _fix(case, noted)
    takes = Takes(ops_of(work))
    return [
        Found(rule, title, detail, worth=worth, cost_ns=taken, fix=fix, where=where or None, takes=takes).as_finding(
            case
        )
    ]


def _fix(case: Case, noted: NotedTargets | None) -> Fix:
    """Return how to make the logits that count alone: those of so many last positions where a mask keeps these, as far as that is known."""
    if noted is not None and noted.last is None:
        return Fix.by_name("rows-that-count", text=_TEXT, paste=_BY_MASK, condition=_WAITS)
    paste = _PASTE if noted is None else f"n = {noted.last}  # of {noted.length} positions\n{_PASTE}"
    paste = LOGITS_TO_KEEP if keeps_logits(case) else paste
    return Fix.by_name(
        "rows-that-count", text=_TEXT, paste=paste, condition="It must be the last positions that count."
    )


def _masked_losses(flow: OperatorFlow) -> Iterator[_MaskedLoss]:
    """Yield the products of a loss of each position with a mask that is added up for itself, too."""
    summed = {flow.made[row][0] for row in flow.outermost if _SUMS.match(flow.names[row]) and flow.made[row]}
    summed_rows = {flow.row_of.get(number, -1) for number in summed}
    for row in flow.outermost:
        sizes, made = sizes_of(flow.size[row]), flow.made[row]
        if not _TIMES.match(flow.names[row]) or len(made) < 2 or sizes[0] != sizes[1] or len(sizes[0]) < 2:
            continue
        if row not in summed_rows:
            continue
        for losses, mask in (made[:2], made[1::-1]):
            # The product is added up as a whole, and so is the mask: their quotient is the mean of what counts.
            if mask not in summed or mask < 0 or _layer_behind(flow, mask, sizes[0]) is not None:
                continue
            layer = _layer_behind(flow, losses, sizes[0])
            if layer is not None:
                yield _MaskedLoss(row, layer, _on_logits(flow, layer, row))


def _layer_behind(flow: OperatorFlow, made: int, size: tuple[int, ...]) -> int | None:
    """Return the layer whose outputs, as logits of each position, a result is made of by a pick for each; None without one, or of several.

    ``size``: of the positions.
    """
    rows, seen, layers = [flow.row_of.get(made, -1)], set[int](), set[int]()
    while rows:
        row = rows.pop()
        if row < 0 or row in seen:
            continue
        seen.add(row)
        if _PICKS.match(flow.names[row]):
            layers |= {layer for layer in [_head_of(flow, row)] if layer is not None}
        elif flow.names[row] not in LAYERS:
            rows += [flow.row_of.get(each, -1) for each in flow.made[row]]
    return layers.pop() if len(layers) == 1 else None


def _head_of(flow: OperatorFlow, row: int) -> int | None:
    """Return the layer that makes the logits of a pick, through what hands them on row by row; None for another origin."""
    maker, _ = handed_from(flow, flow.made[row][0], hands_logits_on) if flow.made[row] else (-1, ())
    return maker if maker >= 0 and flow.names[maker] in LAYERS else None


def _on_logits(flow: OperatorFlow, layer: int, end: int) -> frozenset[int]:
    """Return the operators that work on the logits of a layer, word by word, up to a row."""
    words, made = sizes_of(flow.size[layer]), {layer}
    width = words[1][0] if len(words) > 1 and words[1] else 0
    for row in flow.outermost:
        if layer < row < end and any(flow.row_of.get(each, -1) in made for each in flow.made[row]):
            sizes = sizes_of(flow.size[row])
            if sizes and sizes[0] and sizes[0][-1] == width:
                made.add(row)
    return frozenset(made - {layer})

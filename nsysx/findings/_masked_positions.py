"""Logits of positions that a mask takes out of a loss, as prompts in the loss of a policy: a head need not make them.

The loss of each position is multiplied by a mask, added up, and divided by the sum of that mask. An X-ray's operators show it, and what
makes the logits (``events.masked_losses``): one head, or those of a student and its teacher. How many positions the mask keeps the probe
notes where it can look at the mask; of a mask of labels the loader's batches tell it. Else what is saved is not told, only what is at
stake.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.events.code_lines import CodeLines
from nsysx.events.counted_targets import NotedTargets, noted_targets
from nsysx.events.masked_losses import MaskedLoss, behind_types, compared_of, masked_losses
from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.findings._case import Case, Fix, Rule, Saving, ops_of
from nsysx.findings._counted_pastes import IGNORES
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator, work_of_operators
from nsysx.findings._found import Found
from nsysx.findings._ignored_targets import HeadLoss, head_losses, ignored_shares, worth_of_fewer_rows
from nsysx.findings._masked_pastes import ComparedLabels, fix_of_compared
from nsysx.findings._once import Takes
from nsysx.findings._smaller_operators import LOGITS_TO_KEEP, keeps_logits
from nsysx.findings._work_bounds import MANY_IGNORED_SHARE
from nsysx.model import Finding
from nsysx.replay.engine import ScaleOps

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


class _KeptPositions(NamedTuple):
    """Of the positions of a mask: which share is left, and how that is known; ``labels``: the mask compares labels of the batch."""

    share: float
    left: float
    seen: str
    noted: NotedTargets | None = None
    labels: ComparedLabels | None = None


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return one finding about a loss of which a mask keeps positions, where heads and loss take 5 % of the step or more."""
    flow, code = flow_of(case.profile), case.profile.code()
    if flow is None or code is None or not case.program.trains or case.program.compiled:
        return []
    losses = list(dict.fromkeys(masked_losses(flow)))
    if len({loss.layers for loss in losses}) != 1:
        return []
    rows = _on_positions(flow, losses)
    if rows is None:
        return []
    work = work_of_operators(case, flow).filter(pl.col("row").is_in(list(rows)))
    taken = case.per_step(int(work["ns"].sum()))
    if not case.notable(taken, REPORTED_SHARE):
        return []
    heads = [place_of_operator(code, flow, flow.start_ns[[layer]]) for layer in sorted(losses[0].layers)]
    positions = math.prod(sizes_of(flow.size[losses[0].times])[0])
    kept = _kept(case, code, flow, losses[0], positions)
    if kept is not None and 1 - kept.share < MANY_IGNORED_SHARE:
        return []
    named = list(dict.fromkeys(filter(None, map(in_short, heads))))
    worth, by = _AT_MOST, " and ".join(named) or "the head"
    makes = "make" if len(named) > 1 else "makes"
    if kept is None:
        masked = "The share of positions at which the mask is 0 goes with it; how many these are was not noted."
        title = f"A mask says which positions count in a loss, and {by} {makes} logits for all of them: {units.duration(taken)} of GPU work"
    else:
        worth = worth_of_fewer_rows(case, [ScaleOps(ops_of(work), kept.left, less_work=True)])
        if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
            return []
        masked = f"Of {positions:,} positions {units.share(1 - kept.share, 1)} {kept.seen}."
        title = f"A mask takes {units.share(1 - kept.share, 1)} of the positions out of a loss, and {by} {makes} logits for all of them"
    layers = "The layer that makes" if len(losses[0].layers) == 1 else "The layers that make"
    detail = (
        f"{layers} the logits, what works on them and their gradients take {units.duration(taken)} of GPU work {case.per}, "
        f"{case.share(taken)} of the step. {masked}"
    )
    where = place_of_operator(code, flow, flow.start_ns[[losses[0].times]]) or heads[0]
    fix = _fix(case, code, flow, losses[0], kept)
    takes = Takes(ops_of(work))
    return [
        Found(rule, title, detail, worth=worth, cost_ns=taken, fix=fix, where=where or None, takes=takes).as_finding(
            case
        )
    ]


def _on_positions(flow: OperatorFlow, losses: Sequence[MaskedLoss]) -> frozenset[int] | None:
    """Return the operators that the mask's positions need less of: heads and what works on their logits, other losses that ignore the
    same labels included; None where another loss reads the logits of all positions.
    """
    rows = frozenset[int]().union(*(loss.layers | loss.between for loss in losses))
    compared = {behind_types(flow, compared_of(flow, loss.mask)[1]) for loss in losses}
    others = [each for each in head_losses(flow) if each.layer in losses[0].layers and each.row not in rows]
    if any(not _of_same_labels(flow, each, compared) for each in others):
        return None
    return rows.union(*((each.row, *each.between) for each in others))


def _of_same_labels(flow: OperatorFlow, loss: HeadLoss, compared: set[int]) -> bool:
    return loss.made >= 0 and behind_types(flow, loss.made) in compared


def _kept(case: Case, code: CodeLines, flow: OperatorFlow, loss: MaskedLoss, positions: int) -> _KeptPositions | None:
    """Return how many positions a mask keeps, None where that is not known."""
    noted = noted_targets(case.profile, positions, kind="mask")
    if noted is not None:
        return _KeptPositions(noted.share, noted.left, "were masked in the step that was looked at", noted)
    row, compared = compared_of(flow, loss.mask)
    if row < 0:
        return None
    where = place_of_operator(code, flow, flow.start_ns[[row]])
    text = (text_of(texts(case.profile), where["file"], where["line"]) if where else "") or ""
    same_labels = any(_of_same_labels(flow, each, {behind_types(flow, compared)}) for each in head_losses(flow))
    for each in ignored_shares(case):
        named = re.search(rf"\b{re.escape(each.name)}\b", text) is not None and bool(each.name)
        if math.prod(each.size) == positions and (same_labels or named or IGNORES.search(text)):
            labels = ComparedLabels(each.name, row, compared)
            return _KeptPositions(
                1 - each.share, 1 - each.share, "are masked in the batches that were looked at", labels=labels
            )
    return None


def _fix(case: Case, code: CodeLines, flow: OperatorFlow, loss: MaskedLoss, kept: _KeptPositions | None) -> Fix:
    """Return how to make the logits that count alone: those of so many last positions where a mask keeps these, as far as that is known."""
    if kept is not None and kept.labels is not None:
        return fix_of_compared(case, code, flow, sorted(loss.layers), kept.labels)
    noted = None if kept is None else kept.noted
    if noted is not None and noted.last is None:
        return Fix.by_name("rows-that-count", text=_TEXT, paste=_BY_MASK, condition=_WAITS)
    paste = _PASTE if noted is None else f"n = {noted.last}  # of {noted.length} positions\n{_PASTE}"
    paste = LOGITS_TO_KEEP if keeps_logits(case) else paste
    return Fix.by_name(
        "rows-that-count", text=_TEXT, paste=paste, condition="It must be the last positions that count."
    )

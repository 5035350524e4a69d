"""Logits of positions whose targets a loss ignores (prompts, padding, tokens that were not masked): a head need not make them.

Of the targets of a loss the probe notes behind a window how many count, and of each tensor of the loader's batches some numbers. Without
either, sizes may tell: of targets that are filled with the ignored number, and of which some are written over. The layer that makes the
logits, what stands between, the loss and their gradients do the share that is ignored of their work for nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.catalogue import StepPart
from nsysx.events.code_lines import CodeLines
from nsysx.events.counted_targets import MadeTargets, made_targets, noted_targets
from nsysx.events.masked_losses import hands_logits_on
from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.operator_flow import OperatorFlow, flow_of, handed_from
from nsysx.events.operator_names import LAYERS
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Fix, Rule, Saving, ops_of, way
from nsysx.findings._counted_pastes import RowsThatCount, fills_ignored, fix_of_counted, ignored_number
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator, work_of_operators
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._slower_host import lost_to_slower_host_ns
from nsysx.findings._work_bounds import MANY_IGNORED_SHARE
from nsysx.model import Finding
from nsysx.replay.engine import ScaleOps

_LOSSES = re.compile(r"^aten::(cross_entropy_loss|nll_loss(_nd)?)$")
#: What names targets that are ignored, in the line of a loss.
_NAMES_IGNORED = re.compile(r"ignore_index|-100\b")
#: How the probe notes a number that losses ignore.
_IGNORED = "-"
_AT_MOST = Saving(None, "at most the share of that work whose labels are ignored, and less where hosts set the pace")


class HeadLoss(NamedTuple):
    """A loss, what stands between it and the layer that makes its logits, and this layer (rows of the flow); how many targets it takes,
    and of how many words each is one.
    """

    row: int
    between: tuple[int, ...]
    layer: int
    targets: int
    words: int
    made: int  # the number of the operator that makes the targets


def head_losses(flow: OperatorFlow) -> Iterator[HeadLoss]:
    for row in flow.outermost:
        sizes, made = sizes_of(flow.size[row]), flow.made[row]
        if not _LOSSES.match(flow.names[row]) or len(sizes) < 2 or len(sizes[0]) < 2 or not made:
            continue
        maker, between = handed_from(flow, made[0], hands_logits_on)
        if maker >= 0 and flow.names[maker] in LAYERS:
            yield HeadLoss(row, between, maker, math.prod(sizes[1]), sizes[0][1], made[1] if len(made) > 1 else -1)


class _Ignored(NamedTuple):
    """Of the targets of a loss: which share is ignored, None where that is not known, which share of the positions is left, how that is
    known, and which of each row count.
    """

    share: float | None
    left: float
    seen: str
    counted: RowsThatCount


class IgnoredShare(NamedTuple):
    """Of the targets in the batches of a loader: name, size of one batch, and which share is ignored."""

    name: str
    size: tuple[int, ...]
    share: float

    def all_in(self, losses: Sequence[HeadLoss]) -> bool:
        """Return whether losses together take all targets of some batches, or all but the first of each row."""
        shifted = self.size[0] * (self.size[-1] - 1) if len(self.size) > 1 else 0
        targets = sum(loss.targets for loss in losses)
        return targets > 0 and any(n and targets % n == 0 for n in (math.prod(self.size), shifted))


def ignored_shares(case: Case) -> list[IgnoredShare]:
    """Return of whole numbers in the loaders' batches which share is ignored, by some of each batch that was looked at; none if unknown."""
    settings = settings_of(case.profile)
    counted = dict[tuple[str, tuple[int, ...]], list[int]]()
    for loader in (settings.rows("loaders") if settings else None) or ():
        for part in chain.from_iterable(filter(None, loader.get("parts") or ())):
            numbers = str(part["numbers"]).split(",") if part["numbers"] else []
            if part["dtype"] == "int64" and part["shape"]:
                seen = counted.setdefault((str(part["name"]), tuple(part["shape"])), [0, 0])
                seen[0] += len(numbers)
                seen[1] += numbers.count(_IGNORED)
    shares = (IgnoredShare(name, size, skipped / max(every, 1)) for (name, size), (every, skipped) in counted.items())
    return [each for each in shares if each.share > 0]


def _of_fast_and_slow_host(worth: Saving, least_ns: int | None) -> Saving:
    """Return a bound whose doubt goes down to what is saved if the host needs as long as the replay takes it to.

    The host does no less for fewer rows, and its work is hidden as long as the GPU is busy. Tried on two H200 with 82 % ignored: 4.9 ms,
    where the replay has 0.7 ms with that host, and 25.1 ms with a fast one.
    """
    if worth.likely_ns is None or least_ns is None or least_ns >= worth.likely_ns:
        return worth
    why = f"between what the host allows as it was recorded, and all of that work; {worth.confidence}"
    error_ns = max(worth.error_ns or 0, worth.likely_ns - least_ns, lost_to_slower_host_ns(worth))
    return replace(worth, error_ns=error_ns, confidence=why, source="limits")


def perhaps_ignored(case: Case, texts: Sequence[str]) -> Alternative | None:
    """Return what to do where lines of a loss name targets that it ignores, and how many these are was not noted; None for others."""
    flow = flow_of(case.profile)
    if flow is None or case.program.compiled or not any(map(_NAMES_IGNORED.search, texts)) or ignored_shares(case):
        return None
    losses = list(head_losses(flow))
    if any(noted_targets(case.profile, loss.targets, loss.words) for loss in losses):
        return None
    rows = [row for loss in losses for row in (loss.row, loss.layer, *loss.between)]
    taken = case.per_step(int(work_of_operators(case, flow).filter(pl.col("row").is_in(rows))["ns"].sum()))
    if not case.notable(taken, REPORTED_SHARE):
        return None
    return way(
        "rows-that-count",
        f"Where many labels are ignored here, take the positions that count before the head: of {units.duration(taken)} {case.per} for the "
        "head, the loss and their gradients at most the share that is ignored goes",
    )


def findings_of(case: Case, rule: Rule, told_of: frozenset[int] = frozenset()) -> list[Finding]:
    """Return one finding about losses whose ignored targets, left out before the head, save 5 % of the step or more.

    ``told_of``: GPU ops of another finding about such positions.
    """
    flow, code = flow_of(case.profile), case.profile.code()
    if flow is None or code is None or not case.program.trains or case.program.compiled:
        return []
    losses, batches = (
        list(head_losses(flow)),
        [each for each in ignored_shares(case) if each.share >= MANY_IGNORED_SHARE],
    )
    judged = [(loss, _ignored(case, code, flow, loss, _in_batches(batches, losses, loss))) for loss in losses]
    theirs = [(loss, each) for loss, each in judged if each is not None]
    priced = [(loss, each) for loss, each in theirs if each.share is not None]
    chosen = priced or theirs
    if not chosen:
        return []
    work, edits = work_of_operators(case, flow), list[ScaleOps]()
    for loss, each in chosen:
        ops = ops_of(work.filter(pl.col("row").is_in([loss.row, loss.layer, *loss.between])))
        edits.append(ScaleOps(ops, each.left, less_work=True))
    edits = [edit for edit in edits if edit.ops]
    ops = frozenset[int]().union(*(edit.ops for edit in edits))
    if not ops.isdisjoint(told_of):
        return []
    taken = case.per_step(int(work.filter(pl.col("op").is_in(list(ops)))["ns"].sum()))
    worth = worth_of_fewer_rows(case, edits) if priced else _AT_MOST
    if not case.notable((worth.likely_ns or 0) if priced else taken, REPORTED_SHARE):
        return []
    (loss, most), several = max(chosen, key=lambda each: each[1].share or 0.0), len(chosen)
    head = place_of_operator(code, flow, flow.start_ns[[loss.layer]])
    where = place_of_operator(code, flow, flow.start_ns[[loss.row]]) or head
    by = in_short(head) or "the head"
    if most.share is None:
        title = f"A mask says which labels a loss ignores, and {by} makes logits for all: {units.duration(taken)} of GPU work"
    else:
        title = f"{units.share(most.share, 1)} of the labels are ignored, and {by} makes logits for all of them"
    detail = (
        f"{units.several(several, 'loss', 'losses')} {case.per} of {loss.targets:,} labels each, {most.seen}. The layer that makes the "
        f"logits, what stands between, the loss and their gradients take {units.duration(taken)} {case.per}, "
        f"{case.share(taken)} of the step."
    )
    alike = len({each.layer for each, _ in chosen}) == 1
    fix = (
        fix_of_counted(case, code, flow, loss.row, loss.layer, most.counted)
        if alike
        else Fix.by_name("rows-that-count")
    )
    return [
        Found(
            rule, title, detail, worth=worth, cost_ns=taken, fix=fix, where=where or None, takes=Takes(ops),
        ).as_finding(case)
    ]  # fmt: skip


def worth_of_fewer_rows(case: Case, edits: Sequence[ScaleOps]) -> Saving:
    """Return what it saves that work takes its share of the time, with a fast host and with the one that was recorded."""
    worth = case.worth_or_freed(*edits, cause=(StepPart.WORK,), bound=True)
    return _of_fast_and_slow_host(worth, case.worth(*edits, cause=(StepPart.WORK,)).likely_ns)


def _in_batches(batches: Sequence[IgnoredShare], losses: Sequence[HeadLoss], loss: HeadLoss) -> IgnoredShare | None:
    """Return the labels of batches that this loss takes, with others of as many words; None where it takes none of them."""
    alike = [other for other in losses if other.words == loss.words]
    return next((each for each in batches if each.all_in(alike)), None)


def _ignored(
    case: Case, code: CodeLines, flow: OperatorFlow, loss: HeadLoss, of_batch: IgnoredShare | None
) -> _Ignored | None:
    """Return how many targets of a loss are ignored, None where few are, or nothing tells of any."""
    noted = noted_targets(case.profile, loss.targets, loss.words)
    made = made_targets(case.profile, loss.made)
    if noted is not None:
        same = noted.least is not None and noted.least == noted.most
        by_index = made is not None and made.counted == noted.most
        first = noted.first if noted.last is not None and not (same and by_index) else None
        counted = RowsThatCount(noted.most, same and by_index, noted.length, first)
        left = noted.left if first else noted.share
        share, seen = 1 - noted.share, "were ignored in the step that was looked at"
    elif of_batch is not None:
        share, left, seen, counted = (
            of_batch.share,
            1 - of_batch.share,
            "are ignored in the batches that were looked at",
            RowsThatCount(None, False, None),
        )
    elif made is not None and _are_filled(case, code, flow, loss, made):
        if made.share is None:
            return _Ignored(
                None,
                1.0,
                "of which a mask chooses the ones that count: how many was not noted",
                RowsThatCount(None, False, None),
            )
        share, left, seen = 1 - made.share, made.share, "or more are ignored, by the sizes of what is written into them"
        counted = RowsThatCount(made.counted, made.counted is not None, made.length)
    else:
        return None
    several = f"of which {units.share(share, 1)} {seen}"
    return _Ignored(share, left, several, counted) if share >= MANY_IGNORED_SHARE else None


def _are_filled(case: Case, code: CodeLines, flow: OperatorFlow, loss: HeadLoss, made: MadeTargets) -> bool:
    """Return whether targets are filled with the number that their loss ignores, by the texts of the lines."""
    return fills_ignored(case, code, flow, made.fills_ns, ignored_number(case, code, flow, loss.row))

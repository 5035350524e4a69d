"""Operators in an order, or on a side, that makes them larger than the same result needs, from their sizes and what made their arguments.

A matrix times its transpose is as large as the matrix is long on that side; where the product is only multiplied into the matrix again, a
tall matrix that is turned first gives the same from smaller products (Newton-Schulz iterations). A resampling treats each channel alike,
and a 1x1 convolution or a linear layer each place alike: what leaves fewer channels can come first. Where only some rows of a result
are read, and each is made of its own row alone, the others need not be made (``narrowed_operators``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.analyses.helpers import operator_work
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import StepPart
from nsysx.events.code_lines import CodeLines
from nsysx.events.narrowed_operators import SOFTMAX, narrowed_operators, sizes_of
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.padded_experts import padded_experts
from nsysx.events.profile import NotRecorded
from nsysx.events.recorded_settings import settings_of
from nsysx.events.step_before import with_step_before
from nsysx.findings._capacity_lines import with_less_room
from nsysx.findings._case import Case, Fix, Rule, Saving, ops_of, way
from nsysx.findings._cut_rows import cut_first, last_kept, last_pick
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator, work_of_operators, work_with_gradients
from nsysx.findings._found import Found
from nsysx.findings._handed_indices import rows_by_tensors
from nsysx.findings._handed_slices import handed_on
from nsysx.findings._narrowing_edits import NarrowingEdits, edits_of_narrowing
from nsysx.findings._once import Takes
from nsysx.findings._picked_before import makes_by_item, picked_before
from nsysx.findings._work_bounds import FEWEST_LEFT_OF_DRAWN, USUAL_CAPACITY
from nsysx.model import Finding, Row
from nsysx.replay.engine import ScaleOps

_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
_TURNED = re.compile(r"::(t|transpose|numpy_T|mT|permute|adjoint)$")
_RESAMPLES = re.compile(r"::upsample_\w+$")
#: Operators that hand on what they are given, in another type or layout.
_HANDS_ON = re.compile(r"::(to|_to_copy|contiguous|clone|view|reshape|permute|flatten|transpose)$")
#: Kernels of a resampling, and of the types and layouts around it.
_OF_RESAMPLING = ("resampling", "elementwise")


class _Smaller(NamedTuple):
    """A change that makes operators smaller: what it is about in words, the rest of their time with it, what they are, and where."""

    title: str
    fix: Fix
    edits: tuple[ScaleOps, ...]
    where: Row | None = None
    between: NarrowingEdits | None = None


def findings_of(case: Case, rule: Rule, told_of: frozenset[int] = frozenset()) -> list[Finding]:
    """Return a finding for each such change that saves 5 % of the step or more. ``told_of``: operators (rows) that narrow what another
    finding is about.
    """
    flow = flow_of(case.profile)
    if flow is None:
        return []
    findings = []
    for smaller in (
        *_on_the_shorter_side(case, flow),
        *_resampled_last(case, flow),
        *_narrowed_later(case, flow, told_of),
        *_padded_experts(case, flow),
        *_few_of_permutation(case, flow),
    ):
        ops = frozenset().union(*(edit.ops for edit in smaller.edits))
        if not ops:
            continue
        worth = _worth(case, smaller)
        if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
            continue
        work = case.timed_ops(case.ops["op"].is_in(list(ops)), "op")
        taken = case.per_step(int(work["ns"].sum()))
        detail = (
            f"These operators take {units.duration(taken)} {case.per}, {case.share(taken)} of the step; "
            f"the same result needs {units.duration(min(worth.likely_ns or 0, taken))} less."
        )
        smaller_work = Found(
            rule, smaller.title, detail, worth=worth, cost_ns=taken, fix=smaller.fix, where=smaller.where, takes=Takes(ops)
        )  # fmt: skip
        findings.append(smaller_work.as_finding(case))
    return findings


def _worth(case: Case, smaller: _Smaller) -> Saving:
    between = smaller.between
    if between is not None and between.full_rate:
        why = "each operator takes its share of the time, or a quarter more"
        worth = case.worth_between(between.least, between.likely, between.most, why, cause=(StepPart.WORK,))
        if worth.likely_ns is not None:
            return worth
    return case.worth_or_freed(*smaller.edits, cause=(StepPart.WORK,), bound=True)


def _on_the_shorter_side(case: Case, flow: OperatorFlow) -> Iterator[_Smaller]:
    """Yield the products of tall matrices with their transposes that are multiplied into the matrix again."""
    sides, given_back = dict[int, tuple[int, int]](), set[tuple[int, int]]()
    for name, made, text in zip(flow.names, flow.made, flow.size, strict=True):
        if name not in _PRODUCTS:
            continue
        shapes = [shape for shape in sizes_of(text) if len(shape) > 1][-2:]
        factors = made[1:3] if name.endswith(("addmm", "baddbmm")) else made[:2]
        if len(shapes) < 2 or len(factors) < 2:
            continue
        first, second = factors
        (rows, inner), columns = shapes[0][-2:], shapes[1][-1]
        turned = flow.row_of.get(second)
        if turned is not None and _TURNED.search(flow.names[turned]) and flow.made[turned][0] == first >= 0:
            if rows == columns > inner:
                sides[first] = (rows, inner)
        elif second in sides and (rows, columns) == sides[second]:
            given_back.add(sides[second])
    edits: list[ScaleOps] = []
    for long, short in sorted(given_back, reverse=True):
        part = short / long
        left = {
            f"[[{long}, {short}], [{short}, {long}]]": part,
            f"[[{long}, {long}], [{long}, {long}]]": part**3,
            f"[[{long}, {long}], [{long}, {short}]]": part,
        }
        edits += [ScaleOps(_of_products(case, shapes), share, less_work=True) for shapes, share in left.items()]
    if given_back:
        long, short = max(given_back)
        title = f"Products of {long} x {long} for matrices of {long} x {short}: {short} x {short} are enough"
        yield _Smaller(title, Fix.by_name("shorter-side"), tuple(edits))


def _of_products(case: Case, shapes: str) -> frozenset[int]:
    """Return the GPU ops of products of two factors of these shapes, outside of the backward."""
    try:
        operators = operator_work.numbered_operators(case.profile)
    except NotRecorded:
        return frozenset()
    sizes = pl.col("shapes").str.replace(r"(, \[\])+\]$", "]")  # numbers that an operator is given have none
    theirs = operators.filter(
        pl.col("name").is_in(_PRODUCTS), pl.col("node").is_null(), sizes.str.ends_with(shapes.lstrip("["))
    )
    return ops_of(operator_work.work_of(case.profile, theirs))


def _resampled_last(case: Case, flow: OperatorFlow) -> Iterator[_Smaller]:
    """Yield the lines that resample more channels than a 1x1 convolution or a linear layer behind it leaves."""
    code = case.profile.code()
    if code is None:
        return
    origin, seen = dict[int, int](), set[tuple[int, str]]()
    for row, (name, number, made, text) in enumerate(zip(flow.names, flow.number, flow.made, flow.size, strict=True)):
        if _RESAMPLES.search(name):
            origin[number] = row
        elif _HANDS_ON.search(name) and made and made[0] in origin:
            origin[number] = origin[made[0]]
        elif name in ("aten::conv2d", "aten::linear") and made and made[0] in origin:
            weight = [*sizes_of(text), (), ()][1]
            if len(weight) < 2 or weight[2:] not in ((), (1, 1)) or weight[0] >= weight[1]:
                continue
            line_rows = code.places_of(code.at(flow.thread, flow.start_ns[[origin[made[0]]]]))
            if (int(line_rows[0]), text) in seen:  # autocast calls it again with other types
                continue
            seen.add((int(line_rows[0]), text))
            there = (
                code.made_at(case.ops.filter(case.ops["call"].is_not_null()), line_rows.tolist())
                if line_rows[0] >= 0
                else case.ops.clear()
            )
            work = there.filter(there["family"].cast(pl.String).is_in(_OF_RESAMPLING))
            title = f"{weight[1]} channels are resampled, and {weight[0]} are left of them"
            fix = Fix.by_name("mixed-before-resampled")
            yield _Smaller(title, fix, (ScaleOps(ops_of(work), weight[0] / weight[1], less_work=True),))


def _narrowed_later(case: Case, flow: OperatorFlow, told_of: frozenset[int]) -> Iterator[_Smaller]:
    """Yield the operators of whose rows only a part is read."""
    code, steps = case.profile.code(), with_step_before(case.profile)
    if code is None or steps is None or case.program.compiled:  # what a compiled program reads is not seen
        return
    rows = pl.DataFrame({"row": steps.like, "both": range(len(steps.like))}).filter(pl.col("row") >= 0)
    work = work_with_gradients(case, flow).join(rows, on="row").drop("row").rename({"both": "row"})
    flow = steps.flow
    taken = dict(work.group_by("row").agg(pl.col("ns").sum()).iter_rows())
    together: dict[tuple[str, float], list[tuple[frozenset[int], dict[int, float]]]] = {}
    for narrowed in narrowed_operators(flow, _over_last(case, flow, work)):
        # What the step before reads of its own is in this one, too.
        share_of = {row: share for row, share in narrowed.share.items() if row in taken}
        other = {row - steps.first for row in narrowed.by}
        if not share_of or max(narrowed.by) < steps.first or not told_of.isdisjoint(other):
            continue
        most = _of_most_work(flow, share_of, taken)
        key = in_short(place_of_operator(code, flow, flow.start_ns[[most]])) or str(most)
        # Several calls of a function, as of a trained and a frozen network, are narrowed by one change.
        together.setdefault((key, share_of[most]), []).append((narrowed.by, share_of))
    for (_, kept), changes in together.items():
        share_of = {row: share for _, shares in changes for row, share in shares.items()}
        most = _of_most_work(flow, share_of, taken)
        picks = sorted(last_pick(flow, by, most) for by, _ in changes)
        made = place_of_operator(code, flow, flow.start_ns[[most]])
        picked = dict.fromkeys(in_short(place_of_operator(code, flow, flow.start_ns[[row]])) for row in picks)
        keeping = " and ".join(filter(None, picked)) or "One line"
        title = f"{keeping} {'keep' if len(picked) > 1 else 'keeps'} {units.share(kept, 1)} of what "
        title += f"{in_short(made)} computes" if in_short(made) and in_short(made) not in picked else "it computes"
        heads = {last_pick(flow, by, most): _of_most_work(flow, shares, taken) for by, shares in changes}
        by_tensors = rows_by_tensors(case, code, flow, heads)
        if flow.names[most] == "aten::linear" and keeps_logits(case):
            paste = _LOGITS_OF_ROWS if by_tensors else last_kept(case, code, flow, picks, most) or LOGITS_TO_KEEP
            fix = Fix.by_name(way("narrowed-first", _FEWER_LOGITS_OF_ROWS if by_tensors else _FEWER_LOGITS, paste))
        elif makes_by_item(flow, most):
            fix = _picked_first(case, code, flow, changes, taken)
        elif by_tensors:
            fix = Fix.by_name("narrowed-first").but(paste=by_tensors)
        else:
            ordered = [most, *(row for row in sorted(share_of) if row != most)]
            paste = cut_first(case, code, flow, picks, ordered) or handed_on(case, code, flow, heads, share_of)
            fix = Fix.by_name("narrowed-first").but(paste=paste or None)
        edits = edits_of_narrowing(flow, work, [(max(by), shares) for by, shares in changes])
        yield _Smaller(title, fix, edits.likely, made, edits)


def _picked_first(
    case: Case,
    code: CodeLines,
    flow: OperatorFlow,
    changes: Sequence[tuple[frozenset[int], dict[int, float]]],
    taken: Mapping[int, int],
) -> Fix:
    """Return the remedy for what makes each item by itself; ``taken``: of the operators (rows) their time."""
    orders = {by: sorted(shares, key=lambda row: -taken[row]) for by, shares in changes}
    paste = picked_before(case, code, flow, orders)
    return Fix.by_name("narrowed-first").but(text=_PICKED_FIRST, paste=paste, condition=_OTHER_ITEMS)


_PICKED_FIRST = "Pick first, and compute only what is picked: here each item (image or channel) of the result is made of its own alone"
_OTHER_ITEMS = "Nothing else may read the other items."
#: Kernels of a softmax over the last dimension, of one that is short, too; others stand for one over a dimension before it.
_OF_ROWS, _OF_ANY = re.compile(r"(?i)cunn_SoftMax|softmax_warp"), re.compile(r"(?i)softmax")


def _over_last(case: Case, flow: OperatorFlow, work: pl.DataFrame) -> frozenset[int]:
    """Return the softmaxes (rows of the flow) whose kernels say that they are over the last dimension."""
    rows = [row for row in flow.outermost if SOFTMAX.match(flow.names[row])]
    ran = work.filter(pl.col("row").is_in(rows)).join(case.ops.select("op", pl.col("name").cast(pl.String)), on="op")
    names = ran.drop_nulls("name").filter(pl.col("name").str.contains(_OF_ANY.pattern))
    by_row = names.group_by("row").agg(pl.col("name").str.contains(_OF_ROWS.pattern).all())
    return frozenset(by_row.filter("name")["row"])


def _of_most_work(flow: OperatorFlow, rows: Iterable[int], taken: Mapping[int, int]) -> int:
    """Return the linear layer with most work among some operators, without one the operator with most: the place to narrow before."""
    return max(rows, key=lambda row: (flow.names[row] == "aten::linear", taken[row]))


_FEWER_LOGITS = "Let the model make only the logits that are read (logits_to_keep): without, all positions are projected to the vocabulary"
LOGITS_TO_KEEP = "out = model(input_ids=ids, logits_to_keep=n)  # n: so many last positions, or a tensor of the positions that are read"
#: Positions that each sequence has of its own are no ``logits_to_keep``.
_FEWER_LOGITS_OF_ROWS = (
    "Make only the logits that are read: take these rows of what the last layer makes, and give them to the head"
)
_LOGITS_OF_ROWS = (
    "hidden = model.base_model(input_ids=ids).last_hidden_state\n"
    "logits = model.get_output_embeddings()(hidden[rows, positions])  # rows, positions: as the logits are read now"
)


def keeps_logits(case: Case) -> bool:
    """Return whether all networks that are called are language models of transformers whose forward takes ``logits_to_keep``."""
    settings = settings_of(case.profile)
    rows = () if settings is None else settings.rows("networks") or ()
    return bool(rows) and all(r.get("package") == "transformers" and r.get("logits_to_keep") is True for r in rows)


def _padded_experts(case: Case, flow: OperatorFlow) -> Iterator[_Smaller]:
    """Yield the products of experts on rows that are mostly padding, with what works on these rows between them."""
    padded, code = padded_experts(flow), case.profile.code()
    if padded is None or code is None or case.program.compiled:
        return
    kept = USUAL_CAPACITY / padded.times
    ops = ops_of(work_of_operators(case, flow).filter(pl.col("row").is_in(list(padded.operators))))
    made = place_of_operator(code, flow, flow.start_ns[[padded.made]])
    title = (
        f"{in_short(made) or 'Experts'}: {padded.experts} experts compute {units.count(padded.experts * padded.rows)} rows, and "
        f"{units.count(padded.tokens)} are sent to them"
    )
    fix, where = with_less_room(Fix.by_name("smaller-capacity"), texts(case.profile), made.get("file"), kept)
    yield _Smaller(title, fix, (ScaleOps(ops, kept, less_work=True),), where or made)


def _few_of_permutation(case: Case, flow: OperatorFlow) -> Iterator[_Smaller]:
    """Yield the random orders of many numbers of which only the first few are read."""
    code = case.profile.code()
    if code is None or case.program.compiled:
        return
    work = work_of_operators(case, flow)
    orders = {flow.number[row]: row for row in flow.outermost if flow.names[row] == "aten::randperm"}
    cut, readers = dict[int, tuple[int, int]](), set[int]()  # of each slice its order, and how many numbers that has
    for row in flow.outermost:
        (first, *others), sizes = flow.made[row] or (-1,), sizes_of(flow.size[row])
        readers.update(number for number in others if number in orders)
        if first in orders and flow.names[row] in _CUTS and sizes and len(sizes[0]) == 1:
            cut[flow.number[row]] = first, sizes[0][0]
        elif first in orders:
            readers.add(first)
    few = dict[int, int]()
    for row in flow.outermost:
        for number, size in zip(flow.made[row], sizes_of(flow.size[row]), strict=False):
            if number in cut and len(size) == 1:
                order, _ = cut[number]
                few[order] = max(few.get(order, 0), size[0])
    many = dict(cut.values())
    for order, kept in few.items():
        if order in readers or kept * FEWEST_LEFT_OF_DRAWN > many[order]:
            continue
        ops = ops_of(work.filter(work["row"] == orders[order]))
        made = place_of_operator(code, flow, flow.start_ns[[orders[order]]])
        title = f"{in_short(made) or 'One line'} puts {units.count(many[order])} numbers in random order and takes {units.count(kept)}"
        fix, line = (
            Fix.by_name("drawn-one-by-one"),
            _drawn(text_of(texts(case.profile), made["file"], made["line"]) if made else None),
        )
        twice = kept * (kept - 1) / (2 * many[order])
        condition = f"About {twice:.2g} of {units.count(kept)} numbers come twice: keep the order where none may."
        edit = ScaleOps(ops, kept / many[order], less_work=True)
        yield _Smaller(title, fix.but(paste=line, condition=condition), (edit,), made or None)


_CUTS = ("aten::slice", "aten::narrow")
_PERMUTES = re.compile(
    r"torch\.randperm\(\s*(?P<n>[\w.]+|len\([\w.]+\)|[\w.]+\.(?:size|shape)[(\[]0[)\]])\s*(?P<options>,[^()]*)?\)\s*\[\s*:\s*(?P<k>[\w.]+)\s*\]"
)


def _drawn(text: str | None) -> str | None:
    """Return a line that draws each number by itself, None where its text does not tell how."""
    text = (text or "").partition("  #")[0].strip()
    new, times = _PERMUTES.subn(r"torch.randint(\g<n>, (\g<k>,)\g<options>)", text)
    return f"{new}  # not randperm(...)[: ...]" if times == 1 else None

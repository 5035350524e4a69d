"""Tensors whose pieces are taken one by one under autograd (``events.taken_apart``): backward makes and adds up a whole gradient for each.

What stays with pieces that are taken together is computed from recorded times: a join moves as many bytes as the copies of the pieces
into their zeros do. Pieces that overlap, or are picked by number, need one tensor of zeros still, into which they are added.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import StepPart
from nsysx.events.code_lines import CodeLines
from nsysx.events.taken_apart import AGAIN, PieceWork, TakenApart, TakenTensor, taken_apart
from nsysx.findings import _packed_attention, _taken_pastes
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short
from nsysx.findings._found import Found
from nsysx.findings._gone_backwards import edits_of_gone
from nsysx.findings._once import Takes
from nsysx.findings._taken_pastes import PIECES, WINDOWS, PiecesOfLine, form_of
from nsysx.findings._work_bounds import (
    INDEXED_COPIES,
    LINE_OF_PIECES_SHARE,
    MOST_LINES_NAMED,
    PICKED_COPIES,
    WINDOWED_COPIES,
)
from nsysx.model import Finding, Row
from nsysx.replay.engine import Edit, RemoveCalls, RemoveHost, ScaleOps
from nsysx.roofline.element_types import types_of


class _PieceLines(NamedTuple):
    """Tensors of which lines of one file take pieces in one way: GPU ops (op, ns, call, tensor, work), and the lines, first that with most
    of their time, each with its tensors.
    """

    form: str
    by: str
    ops: pl.DataFrame
    tensors: dict[int, TakenTensor]
    lines: list[tuple[Row, list[TakenTensor]]]


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return a finding for the lines of each file whose pieces cost 5 % of the step or more."""
    taken, code = taken_apart(case.profile), case.profile.code()
    if taken is None or code is None:
        return []
    op = case.ops["op"].to_numpy()
    work = case.ops.select("op", "call", pl.col("name").cast(pl.String), ns=pl.col("end_ns") - pl.col("start_ns"))
    work = work.with_columns(tensor=pl.Series(taken.tensor[op]), work=pl.Series(taken.work[op]))
    work = work.filter(work["tensor"] >= 0)
    places = _places_of_tensors(case, code, taken)
    groups = _groups(code, taken.tensors, work, places)
    return [finding for group in groups if (finding := _found(case, rule, group)) is not None]


def _places_of_tensors(case: Case, code: CodeLines, taken: TakenApart) -> dict[int, dict[int, int]]:
    """Return of each tensor the lines that take its pieces (rows of the places of the code), with the time on the GPU (ns) of each."""
    ops = case.profile.attributed.gpu_ops
    rows = pl.DataFrame(
        {"tensor": taken.tensor, "place": code.places_of(code.op), "ns": ops["end_ns"] - ops["start_ns"]}
    )
    rows = rows.filter((rows["tensor"] >= 0) & (rows["place"] >= 0))
    sums = rows.group_by("tensor", "place").agg(pl.col("ns").sum()).sort("tensor", "place")
    # Few calls of a step that is not quite like another one have the line of a neighbour.
    sums = sums.filter(pl.col("ns") >= LINE_OF_PIECES_SHARE * pl.col("ns").sum().over("tensor"))
    places = dict[int, dict[int, int]]()
    for tensor, line, ns in sums.iter_rows():
        places.setdefault(tensor, {})[line] = ns
    return places


def _groups(
    code: CodeLines, tensors: Sequence[TakenTensor], work: pl.DataFrame, places: Mapping[int, Mapping[int, int]]
) -> Iterator[_PieceLines]:
    """Yield the tensors by the file of the line that takes most of the time, and by how their pieces can be taken together."""
    members = dict[tuple[object, str, str], list[int]]()
    for tensor in work["tensor"].unique().sort().to_list():
        form, theirs = form_of(tensors[tensor]), places.get(tensor, {})
        if form is not None:
            most = max(theirs, key=lambda line: theirs[line], default=-1)
            members.setdefault((code.where(most).get("file"), form, tensors[tensor].by), []).append(tensor)
    for (file, form, by), of_group in members.items():
        time_of = Counter[int]()
        for tensor in of_group:
            time_of.update(places.get(tensor, {}))
        lines = [
            (where, [tensors[tensor] for tensor in of_group if line in places.get(tensor, {})])
            for line, _ in time_of.most_common()
            if (where := code.where(line)).get("file") == file
        ]
        ops = work.filter(pl.col("tensor").is_in(of_group))
        yield _PieceLines(form, by, ops, {tensor: tensors[tensor] for tensor in of_group}, lines)


def _found(case: Case, rule: Rule, group: _PieceLines) -> Finding | None:
    """Return the finding about a group, None where it saves too little, or no line of the program takes the pieces."""
    source = texts(case.profile)
    lines = [
        PiecesOfLine(where, text_of(source, where["file"], where["line"]), tensors) for where, tensors in group.lines
    ]
    fix = _taken_pastes.fix_of(group.form, lines, list(group.tensors.values()))
    attention = _packed_attention.attention_of(case, list(group.tensors.values()))
    if attention is not None:
        fix = _packed_attention.fix_of(lines[0].text if lines else None)
    if fix is None:
        return None
    gone, left = group.ops.filter(group.ops["work"] != PieceWork.COPY), _left_ns(group)
    edits = _edits(case, group, gone, left)
    if attention is not None:
        edits = [*edits_of_gone(case, group.ops), *_packed_attention.edits_of(case, attention)]
        gone, left = group.ops, 0.0
    worth = case.worth_or_freed(*edits, cause=(StepPart.WORK, StepPart.HOST, StepPart.LAUNCH))
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return None
    where = group.lines[0][0] if group.lines else {}
    taken = max(
        case.per_step(int(gone["ns"].sum())), worth.likely_ns or 0
    )  # a host that only launches them waits for nothing
    title, detail = _title(case, group, where, taken), _detail(case, group, left)
    if attention is not None:
        title = f"{f'{in_short(where)}: ' if where else ''}attention is called {units.several(len(attention.rows), 'time')} {case.per}"
        title += f", for one piece of a sequence each: {units.duration(taken)} {case.per} beside it"
        detail = detail.rpartition(". A join")[0] + ". One call for all pieces needs none of that, and launches once."
    return Found(
        rule, title, detail, worth=worth,
        cost_ns=case.per_step(int(group.ops["ns"].sum())), where=where or None, fix=fix if attention else _with_others(fix, group),
        takes=Takes(ops_of(group.ops)),
    ).as_finding(case)  # fmt: skip


def _with_others(fix: Fix, group: _PieceLines) -> Fix:
    """Return the remedy with the other lines that it is for."""
    others = [in_short(where) for where, _ in group.lines[1:MOST_LINES_NAMED]]
    if not others:
        return fix
    do, _, why = fix.text.partition(": ")
    return fix.but(text=f"{do}, likewise for {', '.join(others)}: {why}")


def _edits(case: Case, group: _PieceLines, gone: pl.DataFrame, left_ns: float) -> list[Edit]:
    """Return what is not launched any more, and how long the copies then take that join what was taken, with one launch for each tensor."""
    edits = edits_of_gone(case, gone)
    copies = group.ops.filter(group.ops["work"] == PieceWork.COPY)
    copied = int(copies["ns"].sum())
    if copied and left_ns > copied:
        edits.append(ScaleOps(ops_of(copies), left_ns / copied, less_work=True))
    many = pl.col("tensor").replace_strict({i: len(tensor.pieces) for i, tensor in group.tensors.items()})
    joined = copies.filter(pl.int_range(pl.len()).over("tensor") % many > 0)["call"].drop_nulls()
    if group.by == AGAIN or not len(joined):
        return edits
    calls = frozenset(joined.to_list())
    return [*edits, RemoveCalls(calls), RemoveHost(calls, leading=True)]


def _left_ns(group: _PieceLines) -> float:
    """Return what a join of all pieces takes (ns, all steps): as many bytes as their copies, by the times of these."""
    sums = group.ops.group_by("tensor", "work").agg(pl.col("ns").sum())
    time_of = {(tensor, work): float(ns) for tensor, work, ns in sums.iter_rows()}
    left = 0.0
    for number, tensor in group.tensors.items():
        fills, copies, adds = (time_of.get((number, work), 0.0) for work in PieceWork)
        fill, add = fills / len(tensor.pieces), adds / max(len(tensor.pieces) - 1, 1)
        if tensor.by == AGAIN:
            left += copies
        elif group.form != PIECES:
            windows = group.form == WINDOWS
            left += fill + copies * (
                WINDOWED_COPIES if windows else INDEXED_COPIES if group.by == "index" else PICKED_COPIES
            )
        elif tensor.covered > 1:  # some are read twice: their gradients are added before the join
            left += copies / tensor.covered + add * (tensor.covered - 1)
        else:
            left += copies / tensor.covered + fill * (1 - tensor.covered)
    return left


def _title(case: Case, group: _PieceLines, where: Row, taken_ns: int) -> str:
    fills = group.ops.filter(group.ops["work"] == PieceWork.FILL)
    made = fills.height / max(case.steps, 1) if group.by != AGAIN else _pieces_per_step(case, group)
    return (
        f"{f'{in_short(where)}: ' if where else ''}backward makes {units.count(made)} whole gradients, one for each piece of a tensor: "
        f"{units.duration(taken_ns)} {case.per}"
    )


def _pieces_per_step(case: Case, group: _PieceLines) -> float:
    """Return how many pieces are taken in a step: one more than what is added up, for each tensor."""
    adds = group.ops.filter(group.ops["work"] == PieceWork.ADD).height / max(case.steps, 1)
    pieces = [len(tensor.pieces) for tensor in group.tensors.values()]
    return adds * sum(pieces) / max(sum(pieces) - len(pieces), 1)


def _detail(case: Case, group: _PieceLines, left_ns: float) -> str:
    largest = max(group.tensors.values(), key=lambda tensor: math.prod(tensor.size))
    adds = group.ops.filter(group.ops["work"] == PieceWork.ADD)
    named = [types_of(name).size for name in adds["name"].unique().to_list()]
    sizes = {each for each in named if each}
    size = f" ({units.size(math.prod(largest.size) * sizes.pop())})" if len(sizes) == 1 else ""
    whole = f"{' x '.join(map(str, largest.size))}{size}"
    many = round(_pieces_per_step(case, group) / len(largest.pieces))
    what = f"a tensor of {whole}" if many <= 1 else f"{units.count(many)} tensors, the largest of {whole}"
    cost = case.per_step(int(group.ops["ns"].sum()))
    fills = (
        "joins it with zeros for all others"
        if group.by == AGAIN
        else "fills zeros of the size of the whole, writes its gradient in"
    )
    return (
        f"{units.count(len(largest.pieces))} pieces each of {what} are taken one by one. For each piece backward {fills}, and "
        f"adds what comes out to that of the piece before: {units.count(adds.height / max(case.steps, 1))} sums {case.per}; with "
        f"all of it {units.duration(cost)}, {case.share(cost)} of the step. A join of pieces that are taken together takes "
        f"about {units.duration(case.per_step(round(left_ns)))}."
    )

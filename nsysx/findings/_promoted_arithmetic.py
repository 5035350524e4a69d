"""Small tensors of float32 that make float32 of 16 bits between a network's products (``events.promoted_arithmetic``)."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import StepPart
from nsysx.events.code_lines import CodeLines
from nsysx.events.kernel_math import number_format
from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.operator_of_calls import operator_of_calls
from nsysx.events.promoted_arithmetic import FlowKernels, Promoted, promoted
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, work_with_gradients
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._pieces_in_text import whole_statement
from nsysx.findings._without_autocast import HALVES
from nsysx.findings._work_bounds import ARITHMETIC_IN_HALVES_LEFT, POOLING_IN_HALVES_LEFT
from nsysx.frames import lookup
from nsysx.model import Finding, Row
from nsysx.replay.engine import Edit, RemoveOps, ScaleOps
from nsysx.roofline.element_types import OF_FORMAT, converts_types, types_of

_ARITHMETIC, _POOLING = "elementwise", "pooling"


class _PromotedWork(NamedTuple):
    """GPU ops: conversions that go, elementwise kernels and pooling that move half of their bytes; what they take in a step (ns)."""

    casts: frozenset[int]
    arithmetic: frozenset[int]
    pooling: frozenset[int]
    cost_ns: int

    @property
    def every(self) -> frozenset[int]:
        """All of them."""
        return self.casts | self.arithmetic | self.pooling


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return the finding about all such arithmetic, where it saves 5 % of the step or more."""
    flow, code = flow_of(case.profile), case.profile.code()
    if flow is None or code is None or case.program.compiled or not _mixes_types(case):
        return []
    work = _named_work(case, flow)
    rows = promoted(flow, _kernels(work))
    taken = _taken(case, flow, work, rows) if rows.first and rows.products else None
    if taken is None or not taken.casts or not case.notable(taken.cost_ns, REPORTED_SHARE):
        return []
    least, likely, most = (
        _edits(taken, arithmetic, pooling)
        for arithmetic, pooling in zip(ARITHMETIC_IN_HALVES_LEFT, POOLING_IN_HALVES_LEFT, strict=True)
    )
    why = "the conversions go and what is left moves half of its bytes"
    worth = case.worth_between(least, likely, most, why, cause=(StepPart.WORK,))
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return []
    where = _place_of_most(code, flow, work, rows.first)
    many, computing = len(rows.first), len(rows.first) + len(rows.widened)
    title = (
        f"{f'{in_short(where)}: ' if where else ''}small float32 tensors make float32 of 16 bits {units.count(many)} "
        f"time{'s' if many != 1 else ''} a step"
    )
    detail = (
        f"What products make in 16 bits meets small tensors of float32 there, and is float32 then: {units.count(computing)} operators "
        f"compute so until {units.several(len(rows.products), 'product')} convert it back, {units.duration(taken.cost_ns)} "
        f"{case.per} with the gradients, {case.share(taken.cost_ns)} of the step."
    )
    fix = Fix.by_name("small-tensors-cast").but(paste=_paste(case, code, flow, rows) or None)
    return [
        Found(
            rule, title, detail, worth=worth, cost_ns=taken.cost_ns, fix=fix, where=where or None, takes=Takes(taken.every)
        ).as_finding(case)
    ]  # fmt: skip


def _mixes_types(case: Case) -> bool:
    """Return whether a kernel makes float32 of numbers of 16 bits: without one nothing is promoted."""
    names, _ = lookup.distinct(case.ops["name"])
    return any(each.casts and each.size == OF_FORMAT["fp32"] for each in map(types_of, filter(None, names)))


def _named_work(case: Case, flow: OperatorFlow) -> pl.DataFrame:
    """Return the GPU ops that operators launch: op, ns, row, backward, name, family, and the innermost operator (``inner``)."""
    of_calls = operator_of_calls(case.profile)
    if of_calls is None:
        return pl.DataFrame(
            schema={"op": pl.Int64, "ns": pl.Int64, "row": pl.Int64, "backward": pl.Boolean, "name": pl.String}
        )
    call = case.ops["call"].fill_null(-1).to_numpy()
    inner = np.append(np.where(of_calls.forward >= 0, of_calls.forward, of_calls.backward), -1)[call]
    kernels = case.ops.select("op", pl.col("name").cast(pl.String), pl.col("family").cast(pl.String))
    kernels = kernels.with_columns(inner=pl.Series(inner))
    work = work_with_gradients(case, flow).join(kernels, on="op", how="inner", maintain_order="left").drop_nulls("name")
    names = work.select("name", "family").unique(maintain_order=True)
    described = names.with_columns(
        format=number_format(names["name"].cast(pl.Categorical), names["family"]),
        size=pl.Series([types_of(name).size for name in names["name"]], dtype=pl.Int64),
        mixes=pl.Series([types_of(name).casts for name in names["name"]], dtype=pl.Boolean),
        converts=pl.Series([converts_types(name) for name in names["name"]], dtype=pl.Boolean),
    )
    return work.join(described, on=["name", "family"], how="left", maintain_order="left", nulls_equal=True)


def _kernels(work: pl.DataFrame) -> FlowKernels:
    forward = work.filter(~work["backward"])

    def rows(chosen: pl.Expr) -> frozenset[int]:
        return frozenset(forward.filter(chosen)["row"].to_list())

    computing = ~pl.col("converts") & pl.col("family").is_in((_ARITHMETIC, _POOLING, "copy"))
    return FlowKernels(
        promoting=rows(computing & pl.col("mixes") & (pl.col("size") == OF_FORMAT["fp32"])),
        narrow=rows(computing & (pl.col("size") == OF_FORMAT["bf16"])),
        wide=rows(computing & (pl.col("size") == OF_FORMAT["fp32"])),
        multiplying=rows(pl.col("format").is_in(HALVES)),
        casting=rows(pl.col("converts")),
    )


def _taken(case: Case, flow: OperatorFlow, work: pl.DataFrame, rows: Promoted) -> _PromotedWork:
    """Return what goes, and what moves half of its bytes: in the operators that compute in float32, and around what products are given."""
    size = [next(iter(sizes_of(text)), ()) for text in flow.size]
    inner = {
        row: outer
        for outer, end in flow.outermost_spans
        if outer in set(rows.products)
        for row in range(outer, end)
        if size[row] == size[outer]
    }
    within = pl.col("row").is_in([*rows.first, *rows.widened])
    given = pl.col("row").is_in(rows.products) & pl.col("inner").is_in(list(inner))
    theirs = work.filter((within | given) & (pl.col("converts") | (pl.col("size") == OF_FORMAT["fp32"]))).unique(
        "op", maintain_order=True
    )
    casts = theirs.filter("converts")
    arithmetic, pooling = (
        theirs.filter(~pl.col("converts") & (pl.col("family") == family)) for family in (_ARITHMETIC, _POOLING)
    )
    cost = sum(int(each["ns"].sum()) for each in (casts, arithmetic, pooling))
    return _PromotedWork(ops_of(casts), ops_of(arithmetic), ops_of(pooling), case.per_step(cost))


def _edits(work: _PromotedWork, arithmetic: float, pooling: float) -> list[Edit]:
    return [
        RemoveOps(work.casts),
        ScaleOps(work.arithmetic, arithmetic, less_work=True),
        ScaleOps(work.pooling, pooling, less_work=True),
    ]


def _place_of_most(code: CodeLines, flow: OperatorFlow, work: pl.DataFrame, rows: Sequence[int]) -> Row:
    """Return the line in which most of some operators' work is."""
    taken = dict(work.group_by("row").agg(pl.col("ns").sum()).iter_rows())
    places = code.places_of(code.at(flow.thread, flow.start_ns[list(rows)]))
    return code.where_most(places, np.array([taken.get(row, 0) for row in rows], np.int64))


# ---- words ---------------------------------------------------------------------------------------------------------------


def _paste(case: Case, code: CodeLines, flow: OperatorFlow, rows: Promoted) -> str:
    """Return the statements with their small tensors cast, "" where the text of one does not tell which these are."""
    by_line: dict[int, list[int]] = {}
    for row in sorted(rows.small):
        (line_row,) = code.places_of(code.at(flow.thread, flow.start_ns[[row]])).tolist()
        by_line.setdefault(line_row, []).append(row)
    lines = list[str]()
    for line_row, small in sorted(by_line.items()):
        where = code.where(line_row)
        text = (text_of(texts(case.profile), where["file"], where["line"]) if where else "") or ""
        line = cast_in_text(text, [rows.small[row] for row in small])
        if not line:
            return ""
        lines.append(f"{line}  # {in_short(where)}")
    return "\n".join(lines)


def cast_in_text(text: str, small: Sequence[int]) -> str:
    """Return a statement whose arithmetic has its small tensors cast, "" where it is not told which they are.

    ``small``: of each operator of arithmetic with one, in order of time, in one run of the line or in several, which argument that is.
    """
    statement = whole_statement(text)
    if statement is None:
        return ""
    arithmetic = list(_arithmetic(statement))
    every = len(arithmetic)
    if (
        not every
        or len(small) % every
        or any(list(small[i : i + every]) != list(small[:every]) for i in range(0, len(small), every))
    ):
        return ""
    first = arithmetic[0]
    large = first.right if small[0] == 0 else first.left
    if not isinstance(large, ast.Name):
        return ""
    for each, argument in zip(arithmetic, small, strict=False):
        operand = each.left if argument == 0 else each.right
        if not isinstance(operand, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
            return ""
        cast = ast.parse(f"{ast.unparse(operand)}.to({large.id}.dtype)", mode="eval").body
        if argument == 0:
            each.left = cast
        else:
            each.right = cast
    return ast.unparse(statement)


def _arithmetic(node: ast.AST) -> Iterator[ast.BinOp]:
    """Yield the arithmetic of tensors in a statement, in the order in which it is computed."""
    for each in ast.iter_child_nodes(node):
        yield from _arithmetic(each)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
        yield node

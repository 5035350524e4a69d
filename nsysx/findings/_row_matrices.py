"""Matrices that are made for each row, to multiply one vector by each: the product has a formula that never makes them.

The Jacobian of a softmax or a sparsemax is a diagonal less an outer product; written out it has as many numbers for each row as the row
has squared. A sum of diagonals and outer products, scaled by row, times a vector is two passes over rows: (diag(s) - u v^T) g equals
s * g - u * (v . g). Where anything else makes the matrix (an exponential of its differences, a product of larger factors), no
formula is known, and nothing is said.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.analyses.helpers import operator_work
from nsysx.catalogue import StepPart
from nsysx.events.code_lines import CodeLines
from nsysx.events.narrowed_operators import Size, sizes_of
from nsysx.events.profile import NotRecorded
from nsysx.findings._case import Case, Fix, Rule
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import ROW_MATRIX_PASSES, ROW_MATRIX_SHORTEST
from nsysx.model import Finding
from nsysx.replay.engine import ScaleOps

#: Operators that keep a sum of diagonals and outer products one: those that make zeros, copy, add, and scale by rows.
_MAKES = re.compile(r"^aten::(fill_|zero_|zeros|copy_|clone|neg_?|add_?|sub_?|rsub)$")
_SCALES = re.compile(r"^aten::(mul_?|div_?)$")
_PRODUCTS = re.compile(r"^aten::(bmm|baddbmm|matmul|mv|gemv)$")
_DIAGONAL = "aten::diag_embed"


class _Made(NamedTuple):
    """The matrices of one function: their size, the GPU ops that make and multiply them, and the line with most of these."""

    size: Size
    ops: pl.DataFrame
    file: str
    line: int
    function: str


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return a finding for each function whose matrices take 5 % of the step or more."""
    code = case.profile.code()
    if code is None:
        return []
    try:
        operators = operator_work.numbered_operators(case.profile)
    except NotRecorded:
        return []
    return [f for made in _matrices(case, code, operators) if (f := _found(case, rule, made)) is not None]


def _matrices(case: Case, code: CodeLines, operators: pl.DataFrame) -> list[_Made]:
    called = operators.unique("kind")["name", "shapes"]
    if not any(_of_product(name, sizes_of(shapes or "")) for name, shapes in called.iter_rows()):
        return []
    work = operator_work.work_of(case.profile, operators, "shapes", "caller").drop("name")
    work = work.join(operators.select("row", operator=pl.col("name").cast(pl.String)), on="row", how="inner")
    line_row = code.places_of(code.op[work["op"].to_numpy()])
    work = work.with_columns(place=pl.Series(line_row)).filter(pl.col("place") >= 0)
    places = code.places.with_row_index("place").with_columns(pl.col("place").cast(pl.Int64))
    work = work.join(places, on="place", how="inner").with_columns(pl.col("shapes", "caller").cast(pl.String))
    matrices = []
    for (file, function), part in work.group_by("file", "function", maintain_order=True):
        kinds = part["operator", "shapes", "caller"].unique(maintain_order=True)
        rows = [(name, sizes_of(shapes or ""), caller) for name, shapes, caller in kinds.iter_rows()]
        for size in dict.fromkeys(size for name, sizes, _ in rows if (size := _of_product(name, sizes))):
            texts = [
                kinds["shapes"][i]
                for i, (name, sizes, _) in enumerate(rows)
                if size in sizes or _outer(name, sizes, size)
            ]
            if not _has_formula(rows, size):
                continue
            ops = part.filter(pl.col("shapes").is_in(texts))
            of_line = ops.group_by("line").agg(pl.col("ns").sum()).sort("ns", "line", descending=[True, False])
            matrices.append(_Made(size, ops, str(file), int(of_line["line"][0]), str(function)))
    return matrices


def _of_product(name: str, sizes: list[Size]) -> Size | None:
    """Return the size of the matrices (rows, height, width) that an operator multiplies one vector each by, None for any other."""
    tensors = [size for size in sizes if len(size) == 3][-2:]
    if not _PRODUCTS.match(name) or len(tensors) < 2:
        return None
    first, second = tensors
    matrix = first if second[2] == 1 else second if first[1] == 1 else ()
    return matrix if matrix and min(matrix[1:]) >= ROW_MATRIX_SHORTEST and matrix[0] > 1 else None


def _outer(name: str, sizes: list[Size], size: Size) -> bool:
    """Return whether an operator multiplies columns by rows, which makes matrices of that size."""
    rows, height, width = size
    return bool(_SCALES.match(name)) and sorted(s for s in sizes if s) == sorted([(rows, height, 1), (rows, 1, width)])


def _has_formula(rows: list[tuple[str, list[Size], str | None]], size: Size) -> bool:
    """Return whether all that makes and reads matrices of that size leaves a sum of diagonals and outer products."""
    made = False
    for name, sizes, caller in rows:
        if _outer(name, sizes, size):
            made = made or name.startswith("aten::mul")
        elif size in sizes:
            diagonal = caller == _DIAGONAL
            scaled = _SCALES.match(name) and sizes.count(size) == 1 and sizes[0] == size and _by_rows(sizes, size)
            if not (diagonal or scaled or _MAKES.match(name) or _of_product(name, sizes) == size):
                return False
            made = made or diagonal
    return made


def _by_rows(sizes: list[Size], size: Size) -> bool:
    """Return whether the other operands of a matrix are numbers, or one for each row, column or matrix."""
    return all(not other or other == size or 1 in other[-2:] for other in sizes)


def _found(case: Case, rule: Rule, made: _Made) -> Finding | None:
    rows, height, width = made.size
    ops = frozenset(made.ops["op"].to_list())
    left = min(ROW_MATRIX_PASSES / min(height, width), 1.0)
    worth = case.worth(ScaleOps(ops, left, less_work=True), cause=(StepPart.WORK,))
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return None
    taken = case.per_step(int(made.ops["ns"].sum()))
    where = {"file": made.file, "line": made.line}
    title = (
        f"{in_short(where)} {made.function} makes a matrix of {height} x {width} for each of {units.count(rows)} rows, "
        "to multiply one vector by it"
    )
    detail = (
        f"Making them and multiplying by them takes {units.duration(taken)} {case.per}, {case.share(taken)} of the step. Each is a sum "
        f"of a diagonal and of outer products, which moves {min(height, width)} times the bytes of the row that comes out."
    )
    fix, takes = Fix.by_name("product-by-formula"), Takes(ops)
    return Found(rule, title, detail, worth=worth, cost_ns=taken, fix=fix, where=where, takes=takes).as_finding(case)

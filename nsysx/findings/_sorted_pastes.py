"""Sorts of which the first or the last few are read, as ``topk`` in the names of their lines."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import polars as pl

from nsysx.analyses.helpers import operator_work
from nsysx.events.operator_flops import sizes
from nsysx.events.profile import NotRecorded
from nsysx.findings._case import Case
from nsysx.findings._pieces_in_text import function_of_call, names_in, whole_statement, with_node_replaced

_LIBRARIES, _NO_TENSORS = ("torch",), ("np", "numpy", "math", "random")
#: What sort() returns, in order.
_RESULTS = ("values", "indices")


class _Sort(NamedTuple):
    """A call of sort() or argsort(): what it sorts, along which dimension (its text in ``written``, or ""), and from the greatest on."""

    call: ast.Call
    tensor: ast.expr
    dimension: int
    written: str
    descending: bool
    order_alone: bool


class _Few(NamedTuple):
    """How many are read (text), and whether these are the last ones."""

    number: str
    last: bool


def largest_for_sort(lines: Mapping[int, str], line: int, rank: int | None) -> str:
    """Return the statement in along of a line that sorts, "" where its function does not show that few are read, and how many.

    ``lines``: those of its function; ``rank``: how many dimensions the sorted tensor has, None where that is not known.
    """
    statement = whole_statement(lines.get(line, ""))
    if statement is None:
        return ""
    sorts = [each for node in ast.walk(statement) if (each := _sort(node)) is not None]
    if len(sorts) != 1:
        return ""
    (sort,) = sorts
    parents = {child: node for node in ast.walk(statement) for child in ast.iter_child_nodes(node)}
    result, chosen = _chosen(sort, parents)
    taken = parents.get(result)
    if isinstance(taken, ast.Subscript) and taken.value is result and (chosen or sort.order_alone):
        few = _few(taken.slice, sort, rank)
        return with_node_replaced(statement, taken, _topk(sort, few, chosen)) if few is not None else ""
    few = _few_of_names(statement, result, (lines, line), sort, rank)
    if few is None:
        return ""
    if chosen or sort.order_alone:
        return with_node_replaced(statement, result, _topk(sort, few, chosen))
    both = _call(sort, few)
    return with_node_replaced(
        statement, result, f"[each.flip({sort.dimension}) for each in {both}]" if few.last else both
    )


def rank_of_sorted(case: Case, ops: pl.DataFrame) -> int | None:
    """Return how many dimensions the tensors have that GPU work (op) sorts, None where that is not known, or differs."""
    try:
        operators = operator_work.numbered_operators(case.profile)
    except NotRecorded:
        return None
    sorting = operators.filter(operators["name"].cast(pl.String).is_in(["aten::sort", "aten::argsort"]))
    work = operator_work.work_of(case.profile, sorting, "shapes").join(ops, on="op", how="semi")
    ranks = {len(next((each for each in sizes(shapes) or [] if each), [])) for shapes in work["shapes"].unique()}
    return ranks.pop() if len(ranks) == 1 and 0 not in ranks else None


def _sort(node: ast.AST) -> _Sort | None:
    """Return what a node sorts, None for another node, and where that stands in names."""
    if not isinstance(node, ast.Call) or function_of_call(node) not in ("sort", "argsort"):
        return None
    if not isinstance(node.func, ast.Attribute):
        return None
    args, owner = list(node.args), ast.unparse(node.func.value)
    if owner in _NO_TENSORS:
        return None
    words = {str(each.arg): each.value for each in node.keywords}
    tensor: ast.expr | None = node.func.value
    if owner in _LIBRARIES:
        tensor = args.pop(0) if args else words.pop("input", None)
    if tensor is None or len(args) > 2 or not {*words} <= {"dim", "descending", "stable"}:
        return None
    names: tuple[str, ...] = ("dim", "descending")
    given = {**words, **dict(zip(names, args, strict=False))}
    written = given.get("dim")
    try:
        dimension = -1 if written is None else ast.literal_eval(written)
        descending = ast.literal_eval(given["descending"]) if "descending" in given else False
    except ValueError:
        return None
    if type(dimension) is not int or type(descending) is not bool:
        return None
    text = "" if written is None else ast.unparse(written)
    return _Sort(node, tensor, dimension, text, descending, order_alone=node.func.attr == "argsort")


def _chosen(sort: _Sort, parents: Mapping[ast.AST, ast.AST]) -> tuple[ast.AST, str]:
    """Return the node that stands for what is taken of the results, and how it is taken of both of them: [0], .indices, "" for both."""
    above = parents.get(sort.call)
    if sort.order_alone:
        return sort.call, ""
    if isinstance(above, ast.Attribute) and above.attr in _RESULTS:
        return above, f".{above.attr}"
    if isinstance(above, ast.Subscript) and above.value is sort.call and ast.unparse(above.slice) in ("0", "1"):
        return above, f"[{ast.unparse(above.slice)}]"
    return sort.call, ""


def _few(index: ast.expr, sort: _Sort, rank: int | None) -> _Few | None:
    """Return how many an index takes of what is sorted, None where it takes others, or of another dimension."""
    each = index.elts if isinstance(index, ast.Tuple) else [index]
    taking = [n for n, part in enumerate(each) if not _is_all(part)]
    gaps = [n for n, part in enumerate(each) if isinstance(part, ast.Constant) and part.value is ...]
    if len(taking) != 1 or len(gaps) > 1:
        return None
    (chosen,) = taking
    along = chosen - len(each) if gaps and gaps[0] < chosen else chosen
    part, dimension = each[chosen], sort.dimension
    if (along < 0) != (dimension < 0):
        if rank is None:
            return None
        along, dimension = along % rank, dimension % rank
    if along != dimension or not isinstance(part, ast.Slice) or part.step is not None:
        return None
    from_start = part.lower is None or (isinstance(part.lower, ast.Constant) and part.lower.value == 0)
    if from_start and part.upper is not None and not _is_negative(part.upper):
        return _Few(ast.unparse(part.upper), last=False)
    if part.upper is None and isinstance(part.lower, ast.UnaryOp) and isinstance(part.lower.op, ast.USub):
        return _Few(ast.unparse(part.lower.operand), last=True)
    return None


def _is_all(part: ast.expr) -> bool:
    whole = isinstance(part, ast.Slice) and not (part.lower or part.upper or part.step)
    return whole or (isinstance(part, ast.Constant) and part.value is ...)


def _is_negative(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)


def _few_of_names(
    statement: ast.stmt, result: ast.AST, where: tuple[Mapping[int, str], int], sort: _Sort, rank: int | None
) -> _Few | None:
    """Return how many the function reads of the names that a statement gives to what it sorts; None where it reads all, or other parts."""
    if not isinstance(statement, ast.Assign) or statement.value is not result or len(statement.targets) != 1:
        return None
    (target,) = statement.targets
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    if not all(isinstance(each, ast.Name) for each in names):
        return None
    given = {each.id for each in names if isinstance(each, ast.Name)} - {"_"}
    lines, line = where
    reads = [few for number, text in lines.items() if number != line for few in _reads(text, given, sort, rank)]
    ways = set(reads)
    if len(ways) != 1:
        return None
    (few,) = ways
    counted = names_in(ast.parse(few.number, mode="eval")) if few is not None else set()
    bound = {name for number, text in lines.items() if number >= line for name in _bound(text)}
    return None if counted & (bound | given) else few


def _reads(text: str, names: set[str], sort: _Sort, rank: int | None) -> Iterator[_Few | None]:
    """Yield how many a line takes of each of some names where it reads them, None where it reads something else of them."""
    tree = whole_statement(text) or whole_statement(f"{text.strip()} pass")
    if tree is None:
        # A part of a statement of several lines, which stands whole in its first line.
        return
    taken = {id(n.value): _few(n.slice, sort, rank) for n in ast.walk(tree) if isinstance(n, ast.Subscript)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load):
            yield taken.get(id(node))


def _bound(text: str) -> Iterator[str]:
    """Yield the names that a line gives another value."""
    tree = whole_statement(text) or whole_statement(f"{text.strip()} pass")
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _call(sort: _Sort, few: _Few) -> str:
    tensor = ast.unparse(ast.Attribute(sort.tensor, "topk", ast.Load()))
    along = f", dim={sort.written}" if sort.written else ""
    return f"{tensor}({few.number}{along}{'' if sort.descending != few.last else ', largest=False'})"


def _topk(sort: _Sort, few: _Few, chosen: str) -> str:
    """Return what takes the few, in the order in which they stood."""
    results = f"{_call(sort, few)}{chosen or '[1]'}"
    return f"{results}.flip({sort.dimension})" if few.last else results

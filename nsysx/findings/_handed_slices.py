"""The slice that takes what is read of a network's rows, handed to its forward and applied before the layer, in the program's own names."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from itertools import takewhile
from typing import NamedTuple

from nsysx.analyses.lines import texts
from nsysx.events.code_lines import CodeLines
from nsysx.events.narrowed_operators import Size, narrowing, result_sizes, sizes_of
from nsysx.events.operator_flow import OperatorFlow
from nsysx.findings._case import Case
from nsysx.findings._cut_rows import statement_at
from nsysx.findings._flow_work import in_short
from nsysx.model import Row


class _HandedCut(NamedTuple):
    """A statement that cuts what a call of a network makes: its line, and what is left of it without the cut; the line of the call, and the
    call with the slice; that slice.
    """

    where: Row
    without: str
    called: Row
    call: str
    cut: ast.Slice


def handed_on(
    case: Case, code: CodeLines, flow: OperatorFlow, heads: Mapping[int, int], narrowed: Collection[int] = ()
) -> str:
    """Return the lines that hand the slice to each network and apply it before the layer, "" where the texts of the lines do not tell how.

    ``heads``: what narrows the results (rows of the flow) -> the layer of most work that is narrowed by it. ``narrowed``: all operators
    that are. The layer may stand in a function that the forward gives what it made: of that all has to be narrowed.
    """
    result = result_sizes(flow, [sizes_of(text) for text in flow.size])
    cuts, layers, name = list[_HandedCut](), dict[str, str](), unused_name(case)
    for pick, head in heads.items():
        before = sizes_of(flow.size[pick])[0]
        if narrowing(before, result.get(flow.number[pick], before)) != frozenset({1}):
            return ""
        if result.get(flow.number[head]) != before:
            return ""
        inner, outer = places_of(code, flow, head), places_of(code, flow, pick)
        deeper = len(inner) == len(outer) + 2 and inner[:-3] == outer[:-1]
        if deeper and _all_narrowed(code, flow, head, before, narrowed):
            inner = inner[:-1]
        if len(inner) < 2 or inner[:-2] != outer[:-1]:  # what lies between would have to hand the slice on
            return ""
        called, made = code.where(inner[-2]), code.where(inner[-1])
        cut = _cut_of(case, code.where(outer[-1]), called, name)
        layer = _layer(case, made, name)
        if cut is None or not layer:
            return ""
        cuts.append(cut)
        layers[layer] = f"{layer}  # {in_short(made)}: its forward takes {name}=slice(None), too"
    if len({ast.unparse(each.cut) for each in cuts}) != 1 or not _known_before(case, cuts):
        return ""
    bounds = [ast.unparse(each) if each is not None else "None" for each in (cuts[0].cut.lower, cuts[0].cut.upper)]
    first = min(cuts, key=lambda each: int(each.called["line"]))
    lines = [f"{name} = slice({', '.join(bounds)})  # before {in_short(first.called)}"]
    calls = [
        f"{each.call}  # {in_short(each.called)}" for each in sorted(cuts, key=lambda each: int(each.called["line"]))
    ]
    left = [f"{each.without}  # {in_short(each.where)}" for each in cuts if each.without]
    return "\n".join(dict.fromkeys((*lines, *calls, *left, *layers.values())))  # a line may be called from several


def _all_narrowed(code: CodeLines, flow: OperatorFlow, head: int, size: Size, narrowed: Collection[int]) -> bool:
    """Return whether all that the function of a layer makes of rows of this size is narrowed, from its first operator to its last."""
    result = result_sizes(flow, [sizes_of(text) for text in flow.size])
    lines, outermost = places_of(code, flow, head), list(flow.outermost)
    function, depth = code.places.row(lines[-1])[::2], len(lines) - 1

    def inside(row: int) -> bool:
        chain = places_of(code, flow, row)
        return chain[:depth] == lines[:-1] and bool(chain[depth:]) and code.places.row(chain[depth])[::2] == function

    where = outermost.index(head) if head in outermost else -1
    around = [*takewhile(inside, reversed(outermost[: max(where, 0)])), *takewhile(inside, outermost[where:])]
    sizes = {
        row: [result.get(flow.number[row], ()), *sizes_of(flow.size[row])[:1]] for row in around
    }  # what is made is not always known
    made = (row for row in around if size[:-1] in [each[: len(size) - 1] for each in sizes[row]])
    return where >= 0 and all(row in narrowed for row in made)


def places_of(code: CodeLines, flow: OperatorFlow, row: int) -> list[int]:
    """Return the program's own lines in which an operator runs, outermost first."""
    (stack,) = code.at(flow.thread, flow.start_ns[[row]]).tolist()
    return list(reversed(code.own_chain(stack))) or [-1]


def _cut_of(case: Case, where: Row, called: Row, name: str) -> _HandedCut | None:
    """Return the cut in a line (``where``) of what a line of the same function calls, None where these do not tell it."""
    statement = statement_at(case, where)
    pieces = [each for each in ast.walk(statement) if _cut_in(each) is not None] if statement is not None else []
    if statement is None or len(pieces) != 1 or not called or called["file"] != where["file"]:
        return None
    (piece,) = pieces
    cut = _cut_in(piece)
    if cut is None or not isinstance(piece, ast.Subscript):
        return None
    if called["line"] == where["line"]:
        call = piece.value
        if not isinstance(call, ast.Call):
            return None
        call.keywords.append(ast.keyword(name, ast.Name(name)))
        return _HandedCut(where, "", where, ast.unparse(Replaced(piece, call).visit(statement)), cut)
    calling = statement_at(case, called)
    makes = isinstance(calling, ast.Assign) and isinstance(calling.value, ast.Call) and len(calling.targets) == 1
    if not isinstance(calling, ast.Assign) or not makes or called["line"] > where["line"]:
        return None
    if ast.unparse(calling.targets[0]) != ast.unparse(piece.value) or not isinstance(calling.value, ast.Call):
        return None
    calling.value.keywords.append(ast.keyword(name, ast.Name(name)))
    without = ast.unparse(Replaced(piece, piece.value).visit(statement))
    left, _, right = without.partition(" = ")
    return _HandedCut(where, "" if left == right else without, called, ast.unparse(calling), cut)


def _cut_in(node: ast.AST) -> ast.Slice | None:
    """Return the slice of the second dimension that an index takes, and no other; None for another expression."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Tuple) or len(node.slice.elts) < 2:
        return None
    (first, second), rest = node.slice.elts[:2], node.slice.elts[2:]
    whole = [isinstance(each, ast.Slice) and each.lower is each.upper is each.step is None for each in (first, *rest)]
    return second if all(whole) and isinstance(second, ast.Slice) and second.step is None else None


class Replaced(ast.NodeTransformer):
    """Puts another expression in the place of one."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        """Return the new expression for the old one."""
        return self._new if node is self._old else self.generic_visit(node)


def _layer(case: Case, where: Row, name: str) -> str:
    """Return the statement of a layer of one argument with the slice of that, "" for another one."""
    statement = statement_at(case, where)
    value = statement.value if isinstance(statement, ast.Return | ast.Assign) else None
    if not isinstance(value, ast.Call) or len(value.args) != 1 or value.keywords:
        return ""
    (given,) = value.args
    if not isinstance(given, ast.Call | ast.Name | ast.Attribute | ast.Subscript):
        return ""
    value.args = [ast.parse(f"{ast.unparse(given)}[:, {name}]", mode="eval").body]
    return ast.unparse(statement) if statement is not None else ""


def _lines(case: Case) -> Iterator[tuple[str, int, str]]:
    for file, text_of_line in texts(case.profile).items():
        for line, text in text_of_line.items():
            if str(line).isdigit():
                yield file, int(line), str(text)


def unused_name(case: Case) -> str:
    """Return a name for the slice that no line of the program holds."""
    written = " ".join(text for _, _, text in _lines(case))
    return next(name for name in ("keep", "kept_places", "places_that_are_read") if name not in written)


def _known_before(case: Case, cuts: list[_HandedCut]) -> bool:
    """Return whether nothing that the slice's bounds are made of is assigned between the first call and the cuts."""
    names = {each.id for cut in cuts for each in ast.walk(cut.cut) if isinstance(each, ast.Name)}
    first = min(int(each.called["line"]) for each in cuts)
    last = max(int(each.where["line"]) for each in cuts)
    for file, line, _ in _lines(case):
        if file == cuts[0].where["file"] and first <= line <= last:
            statement = statement_at(case, {"file": file, "line": line})
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            if names.intersection(
                each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)
            ):
                return False
    return True

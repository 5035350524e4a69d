"""Rows that tensors choose, taken before they are computed: the index of the line that reads them, handed to where they are made."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from nsysx.events.code_lines import CodeLines
from nsysx.events.narrowed_operators import Size, result_sizes, sizes_of
from nsysx.events.operator_flow import OperatorFlow
from nsysx.findings._case import Case
from nsysx.findings._cut_rows import statement_at, with_piece
from nsysx.findings._flow_work import in_short
from nsysx.findings._handed_slices import Replaced, places_of, unused_name
from nsysx.findings._pieces_in_text import names_in
from nsysx.model import Row

#: Picks whose numbers are tensors: they differ from step to step, and may from row to row.
_BY_TENSORS = re.compile(r"^aten::(index|index_select|gather|masked_select|take_along_dim)$")


def rows_by_tensors(case: Case, code: CodeLines, flow: OperatorFlow, heads: Mapping[int, int]) -> str:
    """Return the lines that take rows by tensors before a layer, "" where something else chooses the rows.

    ``heads``: what narrows the results (rows of the flow) -> the layer of most work that is narrowed by it. Where the texts of the lines do
    not tell how, a comment says what has to be handed on.
    """
    if not any(_BY_TENSORS.match(flow.names[pick]) for pick in heads):
        return ""
    pick, head = next((pick, head) for pick, head in heads.items() if _BY_TENSORS.match(flow.names[pick]))
    inner, outer = places_of(code, flow, head), places_of(code, flow, pick)
    made, read = code.where(inner[-1]), code.where(outer[-1])
    result = result_sizes(flow, [sizes_of(text) for text in flow.size])
    before, after, given = sizes_of(flow.size[pick])[0], result.get(flow.number[pick]), sizes_of(flow.size[head])[:1]
    piece = _piece_by_tensors(statement_at(case, read), before, after)
    if piece is None or not given or given[0][:-1] != before[:-1]:
        taken = f"index: by which {in_short(read) or 'the line behind'} takes rows"
        return f"y = head(x[index])  # {taken}; not head(x)[index]"
    called = code.where(inner[-2]) if len(inner) > 1 and inner[:-2] == outer[:-1] else None
    if len(heads) == 1 and inner[:-1] == outer[:-1] and made != read:
        lines = _in_one_function(case, made, read, piece)
    else:
        lines = _through_call(case, called, made, read, piece) if called and len(heads) == 1 else ""
    index = ast.unparse(piece.slice)
    layer = with_piece(statement_at(case, made), f"[{index}]") if not lines else ""
    hand = f"{in_short(made)}; hand it {index} of {in_short(read)}"
    return lines or (f"{layer}  # {hand}" if layer else f"y = head(x[{index}])  # {hand}")


def _piece_by_tensors(statement: ast.stmt | None, before: Size, after: Size | None) -> ast.Subscript | None:
    """Return the expression of a statement that takes rows by tensors alone, None where none or several do.

    Each index stands for one of the first dimensions, and the last is no row's; together they make one dimension of them, or a mask does.
    """
    if statement is None or after is None:
        return None
    pieces = list[ast.Subscript]()
    for node in ast.walk(statement):
        if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
            continue
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        tensors = all(any(isinstance(each, ast.Name | ast.Attribute) for each in ast.walk(part)) for part in parts)
        if (
            tensors
            and not any(isinstance(part, ast.Slice | ast.Starred) for part in parts)
            and len(parts) < len(before)
        ):
            pieces.append(node)
    pieces = [node for node in pieces if not isinstance(node.value, ast.Subscript)]
    return pieces[0] if len(pieces) == 1 and after[-1:] == before[-1:] else None


def _in_one_function(case: Case, made: Row, read: Row, piece: ast.Subscript) -> str:
    """Return a layer's line with the rows that a later line of its function reads, and that line without taking them."""
    making, reading = statement_at(case, made), statement_at(case, read)
    if not isinstance(making, ast.Assign) or reading is None or len(making.targets) != 1:
        return ""
    if ast.unparse(making.targets[0]) != ast.unparse(piece.value):
        return ""
    earlier = _made_between(case, made, read, piece)
    layer = with_piece(making, f"[{ast.unparse(piece.slice)}]")
    if earlier is None or not layer:
        return ""
    return "\n".join((*earlier, f"{layer}  # {in_short(made)}", _without_piece(case, read, piece)))


def _through_call(case: Case, called: Row, made: Row, read: Row, piece: ast.Subscript) -> str:
    """Return a call of a network that is handed the index, with the layer in it that takes the rows, and the line that took them."""
    calling = statement_at(case, called)
    if not isinstance(calling, ast.Assign) or not isinstance(calling.value, ast.Call) or len(calling.targets) != 1:
        return ""
    if called["file"] != read["file"] or ast.unparse(calling.targets[0]) != ast.unparse(piece.value):
        return ""
    earlier = _made_between(case, called, read, piece)
    name = unused_name(case)
    layer = with_piece(statement_at(case, made), f"[{name}]")
    if earlier is None or not layer:
        return ""
    calling.value.keywords.append(ast.keyword(name, ast.parse(f"({ast.unparse(piece.slice)})", mode="eval").body))
    return "\n".join(
        (
            *earlier,
            f"{ast.unparse(calling)}  # {in_short(called)}",
            _without_piece(case, read, piece),
            f"{layer}  # {in_short(made)}: its forward takes {name}=..., too (an Ellipsis: all rows)",
        )
    )


def _without_piece(case: Case, read: Row, piece: ast.Subscript) -> str:
    """Return a line that takes rows without taking them."""
    reading = statement_at(case, read)
    assert reading is not None
    same = next(node for node in ast.walk(reading) if ast.dump(node) == ast.dump(piece))
    assert isinstance(same, ast.Subscript)
    return f"{ast.unparse(Replaced(same, same.value).visit(reading))}  # {in_short(read)}"


def _made_between(case: Case, first: Row, last: Row, piece: ast.Subscript) -> list[str] | None:
    """Return the lines between two of a function that make what an index is made of, to stand before the first; None where they cannot."""
    needed = names_in(piece.slice)
    whole, moved = ast.unparse(piece.value), list[str]()
    for line in range(int(last["line"]) - 1, int(first["line"]), -1):
        statement = statement_at(case, {"file": first["file"], "line": line})
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            continue
        names = {each.id for each in ast.walk(statement.targets[0]) if isinstance(each, ast.Name)}
        if names.isdisjoint(needed):
            continue
        if any(ast.unparse(each) == whole for each in ast.walk(statement.value) if isinstance(each, ast.expr)):
            return None
        needed |= names_in(statement.value)
        moved.append(f"{ast.unparse(statement)}  # from line {line}, before {in_short(first)}")
    return moved[::-1]

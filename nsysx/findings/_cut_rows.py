"""Lines that take what is read of some rows before these are computed, in the program's own names."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from copy import deepcopy

from nsysx.analyses.lines import text_of, texts
from nsysx.events.code_lines import CodeLines
from nsysx.events.narrowed_operators import Size, is_row_loss, narrowing, result_sizes, sizes_of
from nsysx.events.operator_flow import OperatorFlow, is_view
from nsysx.findings._case import Case
from nsysx.findings._flow_work import in_short, place_of_operator
from nsysx.findings._pieces_in_text import whole_statement
from nsysx.model import Row

#: Calls that change the type of what a layer makes, behind it.
RETYPES = ("float", "half", "bfloat16", "double", "to", "contiguous")


def cut_first(case: Case, code: CodeLines, flow: OperatorFlow, picks: Sequence[int], computing: Sequence[int]) -> str:
    """Return the lines that make only the rows that are read, "" where the texts of the lines do not tell how.

    ``picks``: what narrows the results (rows of the flow); ``computing``: what is narrowed with them, the product of most work first.
    """
    sizes = [sizes_of(text) for text in flow.size]
    result = result_sizes(flow, sizes)
    where = [_place(code, flow, row) for row in picks]
    piece, made = _piece_of(case, code, flow, picks), _place(code, flow, computing[0])
    line = with_piece(statement_at(case, made), piece) if piece and made else ""
    if not line:
        return ""
    lines = [f"{line}  # {in_short(made)}; so many as {in_short(where[0])} keeps"]
    before = sizes[picks[0]][0]
    for targets in {_targets(flow, row, before, result) for row in computing if is_row_loss(flow.names[row])}:
        compared = {} if targets is None else _place(code, flow, targets)
        cut = _assigned(statement_at(case, compared), piece)
        lines.append(f"{cut}  # {in_short(compared)}" if cut else f"# and {piece} of what they are compared with")
    return "\n".join(dict.fromkeys(lines))


def last_kept(case: Case, code: CodeLines, flow: OperatorFlow, picks: Sequence[int], head: int) -> str:
    """Return the call of a language model that makes the logits of the last positions alone, "" where texts do not tell how.

    ``picks``: what narrows the logits (rows of the flow); ``head``: what makes them. What reads the last positions of fewer fits as it is.
    """
    piece, made = _piece_of(case, code, flow, picks), _place(code, flow, head)
    statement, last = statement_at(case, made), re.fullmatch(r"\[:, -(\d+):\]", piece)
    if statement is None or last is None:
        return ""
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call) and not _is_of_tensor(node)]
    if len(calls) != 1 or any(each.arg in (None, "labels", "logits_to_keep") for each in calls[0].keywords):
        return ""
    calls[0].keywords.append(ast.keyword("logits_to_keep", ast.Constant(int(last[1]))))
    return f"{ast.unparse(statement)}  # {in_short(made)}"


def _is_of_tensor(call: ast.Call) -> bool:
    """Return whether a call changes the type or the place of what it is given."""
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("to", "float", "half", "bfloat16", "cuda")


def _piece_of(case: Case, code: CodeLines, flow: OperatorFlow, picks: Sequence[int]) -> str:
    """Return the index by which all of these operators narrow what is computed, "" where they do not by one, or not by such a one."""
    result = result_sizes(flow, [sizes_of(text) for text in flow.size])
    pieces = {
        _piece(statement_at(case, _place(code, flow, row)), sizes_of(flow.size[row])[0], result.get(flow.number[row]))
        for row in picks
    }
    return pieces.pop() if len(pieces) == 1 else ""


def last_pick(flow: OperatorFlow, by: frozenset[int], computed: int) -> int:
    """Return the last of these operators (rows of the flow) that narrows the rows of what another computes, not the numbers of each row."""
    result = result_sizes(flow, [sizes_of(text) for text in flow.size])
    width = (result.get(flow.number[computed]) or (0,))[-1]
    before, after = (
        {row: sizes_of(flow.size[row])[0] for row in by},
        {row: result.get(flow.number[row]) for row in by},
    )
    within = [row for row in by if before[row][-1:] == (width,) != (after[row] or ())[-1:]]
    return max(by.difference(within), default=max(by))


def _place(code: CodeLines, flow: OperatorFlow, row: int) -> Row:
    return place_of_operator(code, flow, flow.start_ns[[row]])


def statement_at(case: Case, where: Row) -> ast.stmt | None:
    """Return the statement in a line of the program, None for one that is not whole."""
    return whole_statement((text_of(texts(case.profile), where["file"], where["line"]) if where else "") or "")


def _piece(statement: ast.stmt | None, before: Size, after: Size | None) -> str:
    """Return the index that takes the first or the last places of the second dimension, with their number, "" for another one.

    The last place alone is a piece of one: what reads the last of it is left as it is.
    """
    cuts = (
        [each.slice for each in ast.walk(statement) if isinstance(each, ast.Subscript)] if statement is not None else []
    )
    cuts = [
        each
        for each in cuts
        if isinstance(each, ast.Tuple) and len(each.elts) > 1 and all(map(_is_all, [each.elts[0], *each.elts[2:]]))
    ]
    if (
        len(cuts) != 1
        or not isinstance(cuts[0], ast.Tuple)
        or after is None
        or narrowing(before, after) != frozenset({1})
    ):
        return ""
    taken = cuts[0].elts[1]
    if len(after) == len(before) - 1 and ast.unparse(taken) in ("-1", "0"):
        return "[:, -1:]" if ast.unparse(taken) == "-1" else "[:, :1]"
    if not isinstance(taken, ast.Slice) or len(after) != len(before) or taken.step is not None:
        return ""
    if taken.upper is None and taken.lower is not None:
        return f"[:, -{after[1]}:]"
    return f"[:, :{after[1]}]" if taken.lower is None and taken.upper is not None else ""


def _is_all(index: ast.expr) -> bool:
    return isinstance(index, ast.Slice) and index.lower is index.upper is index.step is None


def with_piece(statement: ast.stmt | None, piece: str) -> str:
    """Return a statement whose value is a call of one argument, as another type or not, with a piece of that; "" for another one."""
    if not isinstance(statement, ast.Return) and (not isinstance(statement, ast.Assign) or len(statement.targets) > 1):
        return ""
    statement = deepcopy(statement)
    call = statement.value
    while isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in RETYPES:
        call = call.func.value
    if not isinstance(call, ast.Call) or len(call.args) != 1 or call.keywords or isinstance(call.args[0], ast.Starred):
        return ""
    call.args = [ast.parse(_cut(call.args[0], piece), mode="eval").body]
    return ast.unparse(statement)


def _assigned(statement: ast.stmt | None, piece: str) -> str:
    """Return a statement that gives a name to a piece of its value, "" for one that gives none."""
    if (
        not isinstance(statement, ast.Assign)
        or len(statement.targets) != 1
        or not isinstance(statement.targets[0], ast.Name)
    ):
        return ""
    return f"{statement.targets[0].id} = {_cut(statement.value, piece)}"


def _cut(value: ast.expr, piece: str) -> str:
    text = ast.unparse(value)
    return (
        f"{text}{piece}"
        if isinstance(value, ast.Call | ast.Subscript | ast.Name | ast.Attribute)
        else f"({text}){piece}"
    )


def _targets(flow: OperatorFlow, row: int, size: Size, result: dict[int, Size]) -> int | None:
    """Return the operator that makes what a loss compares rows with, in the size in which these are narrowed; None if it is not seen."""
    maker = flow.row_of.get(flow.made[row][1]) if len(flow.made[row]) > 1 else None
    while maker is not None and result.get(flow.number[maker]) != size:
        maker = flow.row_of.get(flow.made[maker][0]) if is_view(flow.names[maker]) and flow.made[maker] else None
    return maker

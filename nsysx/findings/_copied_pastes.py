"""Code to paste for work on copies of rows (`_copied_rows`): the line with the copying behind the work, in the names of the program."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import NamedTuple

#: Methods that copy rows, and those that hand on what they are given.
_METHODS = (
    "index_select", "gather", "repeat", "repeat_interleave", "tile", "expand", "expand_as", "broadcast_to",
)  # fmt: skip
_HANDS_ON = ("reshape", "view", "flatten", "contiguous", "clone", "squeeze", "unsqueeze", "unflatten")
#: Methods whose arguments say how wide rows are.
_SIZED = ("gather", "reshape", "view", "expand", "expand_as", "broadcast_to", "unflatten")
_FUNCTIONS = ("torch", "F", "functional")

#: Whether a call, by its own text, is work that can come before the copying.
Through = Callable[[ast.expr], bool]


class _CopyText(NamedTuple):
    """An expression that copies rows: its text before the rows, that of the rows, and behind them."""

    before: str
    rows: str
    behind: str

    def with_rows(self, rows: str) -> str:
        return f"{self.before}{rows}{self.behind}"


class _LineTree(NamedTuple):
    """A line and its tree, with the node around each."""

    text: str
    tree: ast.Module
    around: dict[ast.AST, ast.AST]

    def part(self, node: ast.AST) -> str:
        begin, end = _span(node)
        return self.text[begin:end]


def moved(text: str | None, copying: str | None, by: str, through: Through, *, same_width: bool) -> str | None:
    """Return a line in which the rows are copied behind the work on them; None where the text does not tell how.

    ``copying``: the line that copies, if it is another one: it gives the copies a name. ``by``: the operator that copies. ``through``:
    whether an expression (a call's function) is work that can come before. ``same_width``: it leaves rows as wide as they are.
    """
    line = _read(text)
    if line is None:
        return None
    other = _read(copying) if copying is not None else None
    if copying is not None:
        copies = _named(line, other, by) if other is not None else []
    else:
        copies = _in_line(line, by)
    rewritten = []
    for node, copied in copies:
        last, behind = _handed_on(line, node)
        sized = any(f".{name}(" in f"{copied.behind}{behind}" for name in _SIZED)
        work = _work_around(line, last, through)
        if work is None or (sized and not same_width):
            continue
        begin, end = _span(work)
        first, until = _span(last)[0], _span(last)[1]
        rows = f"{line.text[begin:first]}{copied.rows}{line.text[until:end]}"
        rows = f"({rows})" if isinstance(work, ast.BinOp) else rows
        new = f"{line.text[:begin]}{copied.with_rows(rows)}{behind}{line.text[end:]}"
        rewritten.append(f"{new}  # not {line.part(work)}")
    return rewritten[0] if len(rewritten) == 1 else None


def moved_lines(
    lines: Sequence[str | None],
    ends: Sequence[bool],
    copying: str | None,
    by: str,
    through: Through,
    *,
    same_width: bool,
) -> str | None:
    """Return several lines of work with the copying behind those whose results others read; None where the texts do not tell how.

    ``copying``: as of `moved`; without it the first line copies.
    """
    read = [_read(line) for line in (lines if copying is None else [copying, *lines])]
    copies = _in_line(read[0], by) if read[0] is not None else []
    if len(copies) != 1 or read[0] is None:
        return None
    node, copied = copies[0]
    last, behind = _handed_on(read[0], node)
    sized = any(f".{name}(" in f"{copied.behind}{behind}" for name in _SIZED)
    if sized and not same_width:
        return None
    begin, end = _span(last)
    head = f"{read[0].text[:begin]}{copied.rows}{read[0].text[end:]}"
    written = [] if copying is None else [f"{head}  # not {read[0].part(last)}"]
    for line, is_end in zip(read if copying is None else read[1:], ends, strict=True):
        if line is None:
            return None
        value = getattr(line.tree.body[0], "value", None)
        whole = value if isinstance(value, ast.Call) and through(value.func) else None
        if is_end and (whole is None or line is read[0]):
            return None
        text = f"{head}  # not {read[0].part(last)}" if line is read[0] else line.text
        if whole is not None and is_end:
            first, until = _span(whole)
            text = f"{text[:first]}{copied.with_rows(line.part(whole))}{behind}{text[until:]}"
        written.append(text)
    return "\n".join(written)


def copied_whole(text: str, by: str) -> _CopyText | None:
    """Return how an expression copies rows by an operator and does nothing else; None where it does not."""
    line = _read(text)
    value = getattr(line.tree.body[0], "value", None) if line is not None else None
    if line is None or not isinstance(value, (ast.Call, ast.Subscript)):
        return None
    return _copied(line, value, by)


def _read(text: str | None) -> _LineTree | None:
    """Return the tree of a line; None where it is no whole statement."""
    if text is None or not text.isascii():  # columns of the tree are bytes
        return None
    text = text.partition("  #")[0].strip()
    for statement in (text, f"{text} pass"):  # the second one: the head of a loop
        try:
            tree = ast.parse(statement)
        except SyntaxError:
            continue
        return _LineTree(text, tree, {inner: node for node in ast.walk(tree) for inner in ast.iter_child_nodes(node)})
    return None


def _span(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "col_offset", 0), getattr(node, "end_col_offset", 0) or 0


def _in_line(line: _LineTree, by: str) -> list[tuple[ast.expr, _CopyText]]:
    """Return the expressions of a line that copy rows by an operator."""
    every = [node for node in ast.walk(line.tree) if isinstance(node, (ast.Call, ast.Subscript))]
    return [(node, copied) for node in every if (copied := _copied(line, node, by)) is not None]


def _named(line: _LineTree, other: _LineTree, by: str) -> list[tuple[ast.expr, _CopyText]]:
    """Return the names in a line that another line gives to copies of rows."""
    statement = other.tree.body[0]
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return []
    name, value = statement.targets[0], statement.value
    inner = [(node, copied) for node, copied in _in_line(other, by) if _handed_on(other, node)[0] is value]
    if not isinstance(name, ast.Name) or len(inner) != 1:
        return []
    node, copied = inner[0]
    whole = copied._replace(behind=f"{copied.behind}{_handed_on(other, node)[1]}")
    named = [each for each in ast.walk(line.tree) if isinstance(each, ast.Name) and each.id == name.id]
    return [(each, whole) for each in named if isinstance(each.ctx, ast.Load)]


def _copied(line: _LineTree, node: ast.Call | ast.Subscript, by: str) -> _CopyText | None:
    """Return how an expression copies rows by an operator, None where it does not."""
    begin, end = _span(node)
    rows: ast.expr | None = None
    if isinstance(node, ast.Subscript):
        rows = node.value if by == "index" and isinstance(node.ctx, ast.Load) and _by_number(node.slice) else None
    elif isinstance(node.func, ast.Attribute):
        function = _is_function(node.func)
        if by == "embedding" and function == (node.func.attr == "embedding") and len(node.args) == 1 + function:
            table = line.part(node.args[1]) if function else f"{line.part(node.func)}.weight"
            return _CopyText(f"F.embedding({line.part(node.args[0])}, ", table, ")")
        if node.func.attr == by and by in _METHODS:
            rows = node.args[0] if function and node.args else None if function else node.func.value
    if rows is None:
        return None
    first, last = _span(rows)
    return _CopyText(line.text[begin:first], line.text[first:last], line.text[last:end])


def _by_number(index: ast.expr) -> bool:
    """Return whether an index picks rows by a tensor: it is no slice, number, None or text."""
    each = index.elts if isinstance(index, ast.Tuple) else [index]
    return any(not isinstance(index_of, (ast.Slice, ast.Constant, ast.UnaryOp)) for index_of in each)


def _is_function(node: ast.Attribute) -> bool:
    """Return whether an attribute is a function of torch."""
    base = node.value
    name = base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else ""
    return name in _FUNCTIONS


def _handed_on(line: _LineTree, node: ast.expr) -> tuple[ast.expr, str]:
    """Return the expression around copies that hands them on in another shape, and the text that does."""
    last = node
    while True:
        method, call = line.around.get(last), None
        if isinstance(method, ast.Attribute) and method.attr in _HANDS_ON:
            call = line.around.get(method)
        if not isinstance(call, ast.Call) or call.func is not method:
            return last, line.text[_span(node)[1] : _span(last)[1]]
        last = call


def _work_around(line: _LineTree, node: ast.expr, through: Through) -> ast.expr | None:
    """Return the outermost expression around another one that is work on each row of it; None where there is none."""
    last = node
    while True:
        outer = line.around.get(last)
        if isinstance(outer, ast.Attribute):
            call = line.around.get(outer)
            if isinstance(call, ast.Call) and call.func is outer and through(outer):
                last = call
                continue
        elif (isinstance(outer, ast.Call) and outer.args and outer.args[0] is last and through(outer.func)) or (
            isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.MatMult) and outer.left is last and through(outer)
        ):
            last = outer
            continue
        return None if last is node else last

"""Tables on the host that a helper is handed and copies to the GPU in each of its calls: arrays that an object keeps, by the calls' lines.

The line that copies has an argument's name alone; the lines that call it say which attributes they hand over, and these stay as they are.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.advice import Alternative
from nsysx.analyses.lines import text_of, texts
from nsysx.events.code_lines import CodeLines
from nsysx.findings._case import Case, Fix, way
from nsysx.findings._pieces_in_text import function_of_call, names_in, only_statement, parsed, with_names_replaced
from nsysx.findings._work_bounds import MOST_LINES_NAMED

#: Names of what is another one in each step.
OF_A_STEP = re.compile(
    r"batch|input|sample|image|frame|audio|text|token|data|target|label|obs|state|action|reward|current|next|buffer|"
    r"(?:^|_)(?:x|y|z|ids?|seq)(?:_|$)",
    re.IGNORECASE,
)
SAME_BYTES = "Nothing may change it between steps: the recording shows the size of the copies, not what is in them."
_MAKES, _MOVES = ("from_numpy", "as_tensor", "tensor"), ("to", "cuda")
_ON_GPU = ast.Constant("cuda")


class _Copy(NamedTuple):
    """The expression of a line that copies a table, from a column to another: the table, and the copy made with another name for it."""

    table: ast.expr
    whole: ast.Call
    statement: str

    def copied_once(self, table: ast.expr) -> str:
        """Return the code that copies another table once."""
        return ast.unparse(with_names_replaced(_once(self.whole, self.table), {_TABLE: table}))

    def without(self) -> str:
        """Return the line that reads a table which is on the GPU."""
        begin, end = self.whole.col_offset, self.whole.end_col_offset or 0
        return f"{self.statement[:begin]}{ast.unparse(self.table)}{self.statement[end:]}"


_TABLE = "table_"


def handed_tables(case: Case, file: str | None, line: int | None, calls: pl.Series) -> Fix | None:
    """Return the advice to keep on the GPU the tables that the callers of a line hand over, or that it takes of its object; else None.

    ``calls``: what the line calls.
    """
    code, source = case.profile.code(), texts(case.profile)
    copy = _copy_in(text_of(source, file, line) or "")
    ops = case.ops.filter(case.ops["call"].is_in(calls.implode()) & (case.ops["op_kind"] == "memcpy"))
    alike = ops.group_by("bytes").len()
    if code is None or copy is None or not ops.height or (alike["len"] % case.steps != 0).any():
        return None
    if isinstance(copy.table, ast.Name):
        handed = _handed(case, code, ops["call"], copy.table.id)
    else:
        handed = [(copy.table, "")] if _stays(copy.table) else []
    tables = list({ast.unparse(each): each for each, _ in handed}.values())
    owners = {owner for _, owner in handed}
    if not tables or any(is_written(source, ast.unparse(each)) for each in tables):
        return None
    often = round(ops.height / case.steps)
    return Fix.by_name(_remedy(copy, tables, owners.pop() if len(owners) == 1 else "", often))


def _remedy(copy: _Copy, tables: Sequence[ast.expr], owner: str, often: int) -> Alternative:
    names = [ast.unparse(each) for each in tables]
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    if len(names) > MOST_LINES_NAMED:
        listed = f"{', '.join(names[:MOST_LINES_NAMED])} and {len(names) - MOST_LINES_NAMED} more"
    there = f"# once, at the end of {owner}.__init__" if owner else "# once, where it is made"
    of_self = [each.attr for each in tables if isinstance(each, ast.Attribute) and ast.unparse(each.value) == "self"]
    if len(names) > MOST_LINES_NAMED and len(of_self) == len(names):
        quoted = ", ".join(f'"{each}"' for each in of_self)
        getting = copy.copied_once(ast.parse("getattr(self, name)", mode="eval").body)
        kept = f"for name in ({quoted}):  {there}\n    setattr(self, name, {getting})"
    else:
        kept = "\n".join(
            f"{name} = {copy.copied_once(each)}  {there}" for name, each in zip(names, tables, strict=True)
        )
    it = "it is" if len(names) == 1 else "they are"
    each_step = "in each step" if often == 1 else f"{often} times in each step"
    text = f"Keep {listed} on the GPU: {it} copied there {each_step}, and no line of a step changes {'it' if it == 'it is' else 'them'}"
    return way("kept-constant", text, f"{kept}\n{copy.without()}  # in place of the line that copies", SAME_BYTES)


def is_written(source: object, name: str) -> bool:
    """Return whether a line of the steps assigns a tensor of this name, or writes into it."""
    writes = re.compile(rf"{re.escape(name)}(?:\[[^\]]*\])?\s*(?:[-+*/@|&]?=(?!=)|\.\w+_\()")
    lines = source.values() if isinstance(source, dict) else ()
    return any(writes.search(text) for of_file in lines for text in of_file.values() if isinstance(text, str))


def _copy_in(text: str) -> _Copy | None:
    """Return the one expression of a line that makes a tensor of a table, or moves one, and where; None where there are others."""
    statement = text.partition("  #")[0].strip()
    tree = only_statement(statement)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree is not None else []
    copies = [_Copy(table, each, statement) for each in calls if (table := _copied(each)) is not None]
    if len(copies) != 1 or tree is None:
        return None
    return None if ast.unparse(copies[0].table) in _names_made(statement) else copies[0]  # as of a comprehension


def _names_made(text: str) -> set[str]:
    """Return the names to which a line gives a value, or which it has written into (``out=``)."""
    tree = parsed(text.partition("  #")[0])
    nodes = list(ast.walk(tree)) if tree is not None else []
    names = {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return names | {ast.unparse(each.value) for each in nodes if isinstance(each, ast.keyword) and each.arg == "out"}


def _copied(call: ast.Call) -> ast.expr | None:
    """Return the table that a call copies to the GPU, None for another call."""
    if function_of_call(call) in _MAKES and any(each.arg == "device" for each in call.keywords):
        return _table(call.args[0]) if call.args else None
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _MOVES:
        return None
    base = call.func.value
    while isinstance(base, ast.Call) and isinstance(base.func, ast.Attribute) and not base.args:  # .float()
        base = base.func.value
    if isinstance(base, ast.Call):
        makes = function_of_call(base) in _MAKES and base.args and not _sets_device(base)
        return _table(base.args[0]) if makes else None
    return base if isinstance(base, ast.Name) else None  # an attribute that is moved has its own advice


def _sets_device(call: ast.Call) -> bool:
    return any(each.arg == "device" for each in call.keywords)


def _table(node: ast.expr) -> ast.expr | None:
    return node if isinstance(node, (ast.Name, ast.Attribute)) else None


def _stays(node: ast.expr) -> bool:
    """Return whether an expression is an attribute of an object, or a constant of a module, and by its name none of a step."""
    if isinstance(node, ast.Name):
        return node.id.isupper() and len(node.id) > 2
    of_self = isinstance(node, ast.Attribute) and "self" in names_in(node) and "(" not in ast.unparse(node)
    return of_self and not OF_A_STEP.search(ast.unparse(node).rpartition(".")[2])


def _handed(case: Case, code: CodeLines, calls: pl.Series, name: str) -> list[tuple[ast.expr, str]]:
    """Return what the lines that call the copying function hand over as an argument of that name, with the class that does; [] where one
    of them does not say it.
    """
    source = texts(case.profile)
    chains = {
        tuple(code.own_chain(stack)[:2]) for stack in np.unique(code.call[calls.to_numpy()]).tolist() if stack >= 0
    }
    file, _, function = code.places.row(min(chains)[0]) if chains else (None, None, None)
    names = code.places.iter_rows()
    theirs = [text_of(source, in_file, n) or "" for in_file, n, other in names if (in_file, other) == (file, function)]
    if any(name in _names_made(text) for text in theirs) or is_written({"": dict(enumerate(theirs))}, name):
        return []  # made in the function itself
    made, owners = list[ast.Call](), list[str]()
    for chain in sorted(chains):
        where = code.places.row(chain[1]) if len(chain) > 1 else (None, None, None)
        tree = only_statement((text_of(source, *where[:2]) or "").partition("  #")[0])
        wanted = str(function or "").rpartition(".")[2]
        calls_there = [node for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree is not None else []
        of_line = [node for node in calls_there if function_of_call(node) == wanted]
        if not of_line:
            return []
        made += sorted(of_line, key=lambda each: each.col_offset)
        owners += [str(where[2] or "").rpartition(".")[0]] * len(of_line)
    slots: list[int | str] = [*range(min((len(each.args) for each in made), default=0)), name]
    given = [[_argument(each, slot) for each in made] for slot in slots]
    staying = [each for each in given if all(argument is not None and _stays(argument) for argument in each)]
    if len(staying) != 1:
        return []
    return [(argument, owner) for argument, owner in zip(staying[0], owners, strict=True) if argument is not None]


def _argument(call: ast.Call, slot: int | str) -> ast.expr | None:
    if isinstance(slot, int):
        return call.args[slot]
    return next((each.value for each in call.keywords if each.arg == slot), None)


class _Once(ast.NodeTransformer):
    """Puts a name in place of the table, and the GPU in place of where a copy goes."""

    def __init__(self, table: str) -> None:
        self._of_table = table

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) == self._of_table:
            return ast.Name(_TABLE)
        node = self.generic_visit(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MOVES:
            kept = [each for each in node.keywords if each.arg == "dtype"]
            dtypes = [each for each in node.args if "dtype" in ast.unparse(each) or "torch." in ast.unparse(each)]
            return ast.Call(ast.Attribute(node.func.value, "to"), [_ON_GPU, *dtypes], kept)
        if isinstance(node, ast.keyword) and node.arg == "device":
            return ast.keyword("device", _ON_GPU)
        return node


def _once(call: ast.Call, table: ast.expr) -> ast.expr:
    made = _Once(ast.unparse(table)).visit(ast.parse(ast.unparse(call), mode="eval").body)
    return made if isinstance(made, ast.expr) else call

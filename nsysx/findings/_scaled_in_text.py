"""Lines that convert numbers on the CPU, without that: in the program's own words, and what is left to do on the GPU."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import polars as pl

from nsysx.analyses.lines import text_of, texts
from nsysx.events.profile import Profile
from nsysx.findings import _draw_pastes, _fill_pastes, _segments_in_text
from nsysx.findings._case import Fix
from nsysx.findings._pieces_in_text import parsed, whole_statement

_FLOAT32 = re.compile(r"float(32)?\b")
_FACTOR = re.compile(r"\.div_\((.+?)\)")
_COPIES = re.compile(r"\.(to|cuda)\(")
_AS_STORED = "  # as they are stored"
_ARRAYS = re.compile(r"^(np|numpy|torch)\.(as_?array|array|as_?tensor|tensor)$")


def in_names_of_line(source: Mapping[str, Any], file: str | None, line: int | None, fix: Fix) -> Fix:
    """Return advice in the names of a line whose text tells what it makes or converts. ``source``: file -> line -> text."""
    if [way.name for way in fix.ways] == ["converted-on-gpu"]:
        text = source.get(file or "", {}).get(str(line))
        paste = converted_later(text) if isinstance(text, str) else ""
        return fix.but(paste=paste) if paste else fix
    if [way.name for way in fix.ways] == ["filled-by-mask"] and line is not None:
        paste = _fill_pastes.masked(source.get(file or "", {}), line)
        return fix.but(paste=paste) if paste else fix
    return _segments_in_text.in_names_of_line(source, file, line, fix)


def in_names_of_program(profile: Profile, file: str | None, line: int | None, fix: Fix) -> Fix:
    """Return the same, and what is left to do on the GPU in the words of the line that copies the numbers there, where one is known."""
    source = texts(profile)
    fix = in_names_of_line(source, file, line, fix)
    if [way.name for way in fix.ways] == ["drawn-by-weight"]:
        return _draw_pastes.by_running_sums(profile, file, line, fix)
    code, stored = profile.code(), fix.paste.partition("\n")
    if [way.name for way in fix.ways] != ["converted-on-gpu"] or code is None or file is None or line is None:
        return fix
    factor = _FACTOR.search(stored[2])
    text = text_of(source, file, line) or ""
    if factor is None or not stored[0].endswith(_AS_STORED):
        return fix
    lines = code.places.filter(pl.col("file").cast(pl.String) == file).sort("line")
    function = dict(lines.select("line", pl.col("function").cast(pl.String)).iter_rows())
    behind = [n for n in function if n > line and function[n] == function.get(line)]
    copied = _copied_behind(source.get(file, {}), whole_statement(text), behind, function)
    if copied is None:
        return fix
    where, before, after = copied
    return fix.but(paste=f"{stored[0]}\n{before}.float().div_({factor[1]}){after}  # line {where}: on the GPU")


def _copied_behind(
    texts_of_file: Mapping[str, Any], made: ast.stmt | None, behind: Sequence[int], function: Mapping[int, str]
) -> tuple[int, str, str] | None:
    """Return the line that copies to the GPU what a statement gives a name, up to the end of the copy and from there on; None without one.

    ``behind``: lines of the same function behind it, ``function``: line -> its function, of those that ran.
    """
    target = made.targets[0] if isinstance(made, ast.Assign) and len(made.targets) == 1 else None
    if not isinstance(target, ast.Name):
        return None
    copying = {function[n].rpartition(".")[2] for n in function if _COPIES.search(str(texts_of_file.get(str(n), "")))}
    reading = [(n, text, tree) for n in behind if (tree := parsed(text := str(texts_of_file.get(str(n), "")).strip()))]
    reading = [(n, text, tree) for n, text, tree in reading if _reads(tree, target.id)]
    if len(reading) != 1:  # on the CPU, too
        return None
    ((number, text, tree),) = reading
    copies = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _copies(node, target.id, copying)]
    if len(copies) != 1 or re.search(r"float|dtype|half", text):
        return None
    end = copies[0].end_col_offset or 0
    return number, text[:end], text[end:]


def _copies(call: ast.Call, name: str, copying: Collection[str]) -> bool:
    """Return whether a call copies what has a name to the GPU: itself, or in a function of the program that copies (``copying``)."""
    last = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if last in ("to", "cuda"):
        return isinstance(call.func, ast.Attribute) and _reads(call.func.value, name)
    return last in copying and any(isinstance(each, ast.Name) and each.id == name for each in call.args)


def _reads(node: ast.AST, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) for n in ast.walk(node))


def converted_later(text: str) -> str:
    """Return a statement without the division and the conversion that it makes, and the line that makes both on the GPU; "" for another."""
    statement = whole_statement(text)
    if statement is None:
        return ""
    by: list[str] = []

    class Left(ast.NodeTransformer):
        """Leaves of (numbers as float32) / 255 the numbers."""

        def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
            stored = _stored(node.left) if isinstance(node.op, ast.Div) else None
            if (
                stored is None
                or not isinstance(node.right, ast.Constant)
                or not isinstance(node.right.value, int | float)
            ):
                return self.generic_visit(node)
            by.append(f"{node.right.value:g}")
            return stored

    left = Left().visit(statement)
    if len(set(by)) != 1:
        return ""
    return f"{ast.unparse(left)}{_AS_STORED}\nx = x.float().div_({by[0]})  # on the GPU, before the network takes it"


def _stored(node: ast.expr) -> ast.expr | None:
    """Return the numbers that an expression converts to float32, None where it does not, or does more."""
    if not isinstance(node, ast.Call):
        return None
    given = [*map(ast.unparse, node.args), *(ast.unparse(each.value) for each in node.keywords)]
    if isinstance(node.func, ast.Attribute) and node.func.attr == "astype" and given and _FLOAT32.search(given[0]):
        return node.func.value
    if _ARRAYS.match(ast.unparse(node.func)) and len(given) == 2 and node.args and _FLOAT32.search(given[1]):
        return ast.Call(node.func, [node.args[0]], [])
    return None

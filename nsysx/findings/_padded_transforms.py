"""Fourier transforms in the program's own lines, padded to a length that cuFFT has kernels for and cut off again.

The length is mostly given where it is computed, as ``size = x.size(-1) + kernel.size(-1) - 1`` of a convolution, and the transform back,
in the same function, says how much of its result is read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from nsysx.advice import Alternative
from nsysx.analyses import lines
from nsysx.findings._case import Case
from nsysx.findings._pieces_in_text import function_of_call, names_in, parsed
from nsysx.findings._transform_lengths import kernels
from nsysx.model import Row

_BACK = ("irfft", "ifft")
_TRANSFORMS = ("rfft", "fft", *_BACK)


class Padded(NamedTuple):
    """The line of a function that says how long transforms are, and code in place of it and of the transforms back."""

    line: int
    paste: str


def place(case: Case) -> Row:
    """Return the line that says the length of the transforms that take longest, else theirs; empty where lines are not known."""
    where = _line_of_transforms(case)
    padded = _of_line(case, where)
    return where if padded is None else {**where, "line": padded.line}


def worded(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy, that with the program's own lines where they say the length."""
    padded = _of_line(case, _line_of_transforms(case))
    return title, remedy if padded is None else replace(remedy, paste=padded.paste)


def _line_of_transforms(case: Case) -> Row:
    code, taken = case.profile.code(), kernels(case)
    if code is None or not taken.height:
        return {}
    return code.where_most(code.places_of(code.op[taken["op"].to_numpy()]), taken["ns"].to_numpy())


def _of_line(case: Case, where: Row) -> Padded | None:
    """Return how the function of a line could pad its transforms."""
    code = case.profile.code()
    if code is None or not where:
        return None
    places = [code.places.row(row) for row in range(code.places.height)]
    functions = {function for file, line, function in places if (file, line) == (where["file"], where["line"])}
    source, near = lines.texts(case.profile), dict[int, str]()
    for file, line, function in places:
        if file == where["file"] and function in functions and line is not None:
            near[line] = (lines.text_of(source, file, line) or "").partition("  #")[0]
    return padded_in(near, int(where["line"]))


def padded_in(near: Mapping[int, str], line: int) -> Padded | None:
    """Return how the lines of a function could pad what one of them transforms, None where that names no length; number -> text."""
    length = next((length for each in _transforms(near.get(line, "")) if (length := _length(each)) is not None), None)
    if length is None:
        return None
    asked, every = (
        ast.unparse(length),
        set[str]().union(*(names_in(tree) for text in near.values() if (tree := parsed(text)))),
    )
    given = _assigned(near, line, asked) if isinstance(length, ast.Name) else None
    name = asked if isinstance(length, ast.Name) else _free("size", every)
    full = _free("full", every)
    padded = {n: after for n in sorted(near) if (after := _with_length(near[n], asked, name, full)) is not None}
    cut = any(full in names_in(ast.parse(each)) for each in padded.values())
    begin = (
        f"{full if cut else name} = {asked if given is None else given[1]}"
        if given is not None or cut or name != asked
        else ""
    )
    first = full if cut else name
    longer = f"{name} = next(n for n in range({first}, 2 * {first}) if pow(210, 64, n) == 0)  # 2, 3, 5 and 7 alone"
    paste = "\n".join(filter(None, (begin, longer, *padded.values())))
    return Padded(min(padded, default=line) if given is None else given[0], paste)


def _free(name: str, every: set[str]) -> str:
    return name if name not in every else f"{name}_length"


def _transforms(text: str) -> Iterator[ast.Call]:
    tree = parsed(text)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and function_of_call(node) in _TRANSFORMS:
            yield node


def _length(call: ast.Call) -> ast.expr | None:
    """Return the length that a transform asks for, None where it takes that of its input."""
    named = next((each.value for each in call.keywords if each.arg == "n"), None)
    length = named or (call.args[1] if len(call.args) > 1 else None)
    return None if isinstance(length, ast.Constant) and length.value is None else length


def _assigned(near: Mapping[int, str], line: int, name: str) -> tuple[int, str] | None:
    """Return the last line before another one that gives a name its value, and the value."""
    for number in sorted((each for each in near if each < line), reverse=True):
        tree = parsed(near[number])
        statement = tree.body[0] if tree is not None and tree.body else None
        if isinstance(statement, ast.Assign) and [ast.unparse(each) for each in statement.targets] == [name]:
            return number, ast.unparse(statement.value)
    return None


def _with_length(text: str, asked: str, name: str, full: str) -> str | None:
    """Return a line with transforms of the padded length, those back cut off; None for a line without transforms of this length."""
    tree, lengths = parsed(text), [_length(each) for each in _transforms(text)]
    if tree is None or asked not in [ast.unparse(each) for each in lengths if each is not None]:
        return None

    class Pads(ast.NodeTransformer):
        def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
            if isinstance(node.value, ast.Call) and function_of_call(node.value) in _BACK:
                self.generic_visit(node.value)  # it is cut off as it is
                _rename(node.value)
                return node
            self.generic_visit(node)
            return node

        def visit_Call(self, node: ast.Call) -> ast.expr:
            self.generic_visit(node)
            if not _rename(node) or function_of_call(node) not in _BACK:
                return node
            dim = _dimension(node)
            cut = f"[..., :{full}]" if dim is None else f".narrow({dim}, 0, {full})"
            return ast.parse(f"{ast.unparse(node)}{cut}", mode="eval").body

    def _rename(node: ast.Call) -> bool:
        length = _length(node) if function_of_call(node) in _TRANSFORMS else None
        if length is None or ast.unparse(length) != asked:
            return False
        put = ast.Name(name, ast.Load())
        node.args = [put if each is length else each for each in node.args]
        for each in node.keywords:
            each.value = put if each.value is length else each.value
        return True

    return ast.unparse(Pads().visit(tree))


def _dimension(call: ast.Call) -> str | None:
    """Return the dimension that a transform names, None for the last one."""
    named = next((each.value for each in call.keywords if each.arg == "dim"), None)
    dim = named or (call.args[2] if len(call.args) > 2 else None)
    return None if dim is None or ast.unparse(dim) == "-1" else ast.unparse(dim)

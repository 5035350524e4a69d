"""The line that pools along one dimension after the other in place of large windows, in a program's own names."""

from __future__ import annotations

import ast
from typing import NamedTuple

from nsysx.findings._pieces_in_text import parsed, with_part

#: Arguments of torch.nn.functional's pooling by position, behind what is pooled.
_ARGUMENTS = {
    "max": ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"),
    "avg": ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
}
_BY_DIMENSION = ("kernel_size", "stride", "padding")
_TAKEN = (*_BY_DIMENSION, "ceil_mode", "count_include_pad")


class PoolInText(NamedTuple):
    """A line that pools along each dimension in turn, and the side of the window where it is written out, else None."""

    line: str
    window: int | None


def pooled_in_turn(text: str, kind: str, dimensions: int) -> PoolInText | None:
    """Return the line in which its one pooling is done along the dimensions in turn; None where its text does not tell how.

    The last dimension comes first: of equal largest numbers gradients go to the first of the window, row by row, as they do now.
    """
    text = text.partition("  #")[0].strip()
    tree = parsed(text)
    name = f"{kind}_pool{dimensions}d"
    calls = [
        node
        for node in ast.walk(tree or ast.Module([], []))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == name
    ]
    if len(calls) != 1:
        return None
    (call,) = calls
    given = dict(zip(_ARGUMENTS[kind], call.args[1:], strict=False))
    given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    starred = any(isinstance(each, ast.Starred) for each in call.args) or any(not each.arg for each in call.keywords)
    if starred or not call.args or not given.keys() <= {*_TAKEN} or not {"kernel_size", "stride"} <= given.keys():
        return None
    sides = {key: _sides(given[key], dimensions, given) for key in _BY_DIMENSION if key in given}
    if any(side is None for side in sides.values()):
        return None
    rest = "".join(f", {key}={ast.unparse(value)}" for key, value in given.items() if key not in _BY_DIMENSION)
    made, function = ast.unparse(call.args[0]), ast.unparse(call.func)
    for along in reversed(range(dimensions)):
        single = {key: _one_of(side or [], along, "0" if key == "padding" else "1") for key, side in sides.items()}
        padding = f", padding={single['padding']}" if "padding" in single else ""
        made = f"{function}({made}, {single['kernel_size']}, stride={single['stride']}{padding}{rest})"
    line = with_part(text, call, made)
    written = [int(side) for side in sides["kernel_size"] or [] if side.isdecimal()]
    return PoolInText(line, min(written) if written else None)


def _sides(value: ast.expr, dimensions: int, given: dict[str, ast.expr]) -> list[str] | None:
    """Return an argument for each dimension; None where a name may stand for one number as well as for several."""
    if isinstance(value, (ast.Tuple, ast.List)):
        return [ast.unparse(each) for each in value.elts] if len(value.elts) == dimensions else None
    text = ast.unparse(value)
    divided = {
        ast.unparse(node.left)
        for each in given.values()
        for node in ast.walk(each)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv)
    }
    return [text] * dimensions if isinstance(value, (ast.Constant, ast.BinOp)) or text in divided else None


def _one_of(sides: list[str], along: int, other: str) -> str:
    """Return an argument that is that of its own dimension, and leaves the others as they are."""
    if sides[along] == other:
        return other
    return f"({', '.join(side if n == along else other for n, side in enumerate(sides))})"

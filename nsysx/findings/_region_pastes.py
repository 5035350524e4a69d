"""A region that switches autocast off, in the program's own statements: what multiplies stands outside, what needs float32 within."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from nsysx.findings._loop_texts import depth_of
from nsysx.findings._pieces_in_text import function_of_call, only_statement

#: What needs all digits of what it is given.
_NEEDS_DIGITS = re.compile(
    r"softmax|(^|_)(norm\d*|loss|entropy|exp(m1|2)?|log(1p|2|10|sumexp)?|sigmoid|rout\w*|gat(e|es|ing)|topk|var|std|sum|mean|cumprod|inv|"
    r"solve|cholesky|eigh?|svd)(_|$)|LayerNorm|RMSNorm"
)
#: What only shows a tensor in another shape or type.
_SHOWS = (
    "transpose", "permute", "reshape", "view", "flatten", "unflatten", "contiguous", "unbind", "chunk", "split", "size", "len", "t",
    "unsqueeze", "squeeze", "expand", "to", "type_as", "movedim", "half", "bfloat16",
)  # fmt: skip
_FLOATS = ("torch.float32", "torch.float")


class RegionPaste(NamedTuple):
    """The statements of a region, in ``code``; ``left_out``: none of them needs it."""

    code: str
    left_out: bool


def narrowed(source: Mapping[int, str], head: int, multiplying: Collection[int]) -> RegionPaste | None:
    """Return the statements below the head of a region, with those that multiply (lines) outside and without casts to float32; None where
    these are no plain statements, or need all digits themselves. ``source``: line -> text with its indent.
    """
    statement = only_statement(f"{source.get(head, '').split('  #')[0].strip()} pass")
    if not isinstance(statement, ast.With) or len(statement.items) != 1:
        return None
    body, line = list[tuple[int, ast.stmt]](), head + 1
    while depth_of(source.get(line, "")) > depth_of(source[head]):
        each = only_statement(source[line].partition("  #")[0])
        if each is None or isinstance(each, ast.With | ast.For | ast.If | ast.While):
            return None
        body.append((line, each))
        line += 1
    behind = min((number for number in source if number >= line), default=0)
    if depth_of(source.get(behind, "")) > depth_of(source[head]):  # lines between were not recorded
        return None
    if not any(number in multiplying for number, _ in body):
        return None
    kept = {number for number, each in body if number not in multiplying and not _only_shows(each)}
    if any(_NEEDS_DIGITS.search(name) for number, each in body if number in multiplying for name in _called(each)):
        return None
    code, inside = list[str](), False
    for number, each in body:
        if number in kept or (kept and number not in multiplying):
            code += ([] if inside else [source[head].split("  #")[0].strip()]) + [f"    {ast.unparse(each)}"]
            inside = True
        elif (text := _without_casts(each)) is not None:
            code.append(text)
            inside = False
    return RegionPaste("\n".join(code), not kept)


def _called(statement: ast.stmt) -> list[str]:
    return [function_of_call(node) for node in ast.walk(statement) if isinstance(node, ast.Call)]


def _only_shows(statement: ast.stmt) -> bool:
    """Return whether a statement computes nothing."""
    computes = any(
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult | ast.Mult | ast.Div | ast.Pow)
        for node in ast.walk(statement)
    )
    return not computes and all(name in _SHOWS or name == "float" for name in _called(statement))


class _Uncast(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Attribute):
            return node
        given = [*node.args, *(each.value for each in node.keywords)]
        to_float = node.func.attr == "to" and len(given) == 1 and ast.unparse(given[0]) in _FLOATS
        return node.func.value if to_float or (node.func.attr == "float" and not given) else node


def _without_casts(statement: ast.stmt) -> str | None:
    """Return a statement without casts to float32, None where nothing is left of it."""
    after: ast.stmt = _Uncast().visit(statement)
    same = isinstance(after, ast.Assign) and [ast.unparse(each) for each in after.targets] == [ast.unparse(after.value)]
    return None if same else ast.unparse(after)

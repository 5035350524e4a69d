"""Values that a loop carries on as h = a * h + b, in the text of a round: what h is multiplied with, and what is added to it."""

from __future__ import annotations

import ast

from nsysx.findings._pieces_in_text import names_in

#: Functions and methods whose result for all elements is theirs for each.
OF_ELEMENTS = frozenset(
    (
        "float", "to", "double", "half", "bfloat16", "exp", "log", "sigmoid", "tanh", "sqrt", "rsqrt", "square", "abs", "neg", "relu",
        "clamp", "where", "pow", "detach", "type_as", "logical_not",
    )
)  # fmt: skip
#: As code on tensors of all rounds: ``b`` of what is added becomes the values.
SCANNED = (
    "for reach in (2**i for i in range(len({b}).bit_length())):",
    "    {b} = torch.cat([{b}[:reach], {b}[reach:] + {a}[reach:] * {b}[:-reach]])",
    "    {a} = torch.cat([{a}[:reach], {a}[reach:] * {a}[:-reach]])",
)


def parts_of(value: ast.expr, name: str) -> tuple[ast.expr | None, ast.expr] | None:
    """Return what a name is multiplied with in an expression (None for 1) and what is added to that; None where it is not so."""
    if name not in names_in(value):
        return None
    if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.Sub)):
        left, right = name in names_in(value.left), name in names_in(value.right)
        if (left and right) or (right and isinstance(value.op, ast.Sub)):
            return None
        inner = _factor(value.left if left else value.right, name)
        if inner is not None:
            return inner[0], value.right if right is False and isinstance(value.op, ast.Add) else (
                ast.UnaryOp(ast.USub(), value.right) if left else value.left
            )
        deeper = parts_of(value.left if left else value.right, name)
        if deeper is None:
            return None
        if left:
            return deeper[0], ast.BinOp(deeper[1], value.op, value.right)
        return deeper[0], ast.BinOp(value.left, ast.Add(), deeper[1])
    return None


def _factor(value: ast.expr, name: str) -> tuple[ast.expr | None] | None:
    """Return what a name is multiplied with in a product, (None,) for the name alone; None where it is no factor."""
    if isinstance(value, ast.Name) and value.id == name:
        return (None,)
    if not (isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult)):
        return None
    left, right = name in names_in(value.left), name in names_in(value.right)
    if left == right:
        return None
    inner = _factor(value.left if left else value.right, name)
    if inner is None:
        return None
    other = value.right if left else value.left
    return (other if inner[0] is None else ast.BinOp(inner[0], ast.Mult(), other),)

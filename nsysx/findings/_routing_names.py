"""What a program calls the expert, the place and the weight of its tokens, in the lines that make masks of them.

Read where experts and places are compared with all numbers (``expert[..., None] == torch.arange(n)``), or made rows of ``one_hot``, and
one factor weighs the mask. A place that is compared is kept where it is one of the numbers; ``one_hot`` does not say which are kept.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nsysx.findings._pieces_in_text import whole_statement

#: Calls that hand on the numbers that they are called on, of another kind or size.
_PASSES = (
    "to",
    "unsqueeze",
    "float",
    "half",
    "bfloat16",
    "type_as",
    "long",
    "int",
    "type",
    "contiguous",
    "view",
    "reshape",
)


class RoutingNames(NamedTuple):
    """Of each token its ``choice`` of an expert, its ``place`` there and the ``gate`` that weighs it; the numbers of ``experts`` and of
    ``places``.
    """

    choice: str
    place: str
    gate: str
    experts: str
    places: str


def routing_names(statements: Mapping[int, str], classes: Mapping[int, int], mask: str) -> RoutingNames | None:
    """Return these names, None where the lines do not tell them.

    ``classes``: of each line that makes rows of a unit matrix how long these are; ``mask``: the sizes of the mask, tokens first.
    """
    trees = {line: tree for line, text in statements.items() if (tree := whole_statement(_code(text))) is not None}
    sizes = [int(size) for size in mask.split(" x ")]
    if len(sizes) != 3 or sizes[1] == sizes[2]:
        return None
    named: dict[int, tuple[str, str, bool]] = {}
    for line, number in classes.items():
        rows = list(_unit_rows(trees[line])) if line in trees else []
        if len(rows) != 1 or number in named:
            return None
        named[number] = rows[0]
    made = {target.id for tree in trees.values() for target in _targets(tree)}
    gates = {name for tree in trees.values() for name in _weights(tree, made)}
    if set(named) != set(sizes[1:]) or len(gates) != 1:
        return None
    (choice, experts, _), (in_queue, places, compared) = named[sizes[1]], named[sizes[2]]
    told_by = {choice, in_queue, *gates}
    bound_again = made & {name.partition(".")[0] for name in told_by}
    return RoutingNames(choice, in_queue, gates.pop(), experts, places) if compared and not bound_again else None


def _code(text: str) -> str:
    return text.partition("  #")[0].strip()


def _targets(tree: ast.stmt) -> Iterator[ast.Name]:
    for target in tree.targets if isinstance(tree, ast.Assign) else ():
        yield from (node for node in ast.walk(target) if isinstance(node, ast.Name))


def _unit_rows(tree: ast.stmt) -> Iterator[tuple[str, str, bool]]:
    """Yield the numbers of which a statement makes rows of a unit matrix, how many there are, and whether they are compared with all."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
            sides = [node.left, node.comparators[0]]
            numbers = [_counted(side) for side in sides]
            for by, number in zip(reversed(sides), numbers, strict=True):
                if number and (name := _passed(by)):
                    yield name, number, True
        elif isinstance(node, ast.Call) and _called(node) == "one_hot" and node.args:
            options = [*node.args[1:], *(each.value for each in node.keywords if each.arg == "num_classes")]
            if len(options) == 1 and (name := _passed(node.args[0])):
                yield name, ast.unparse(options[0]), False


def _counted(node: ast.expr) -> str:
    """Return how many numbers an ``arange`` has, "" for what is none from 0 on."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if not isinstance(node, ast.Call) or _called(node) != "arange" or len(node.args) != 1:
        return ""
    return ast.unparse(node.args[0])


def _weights(tree: ast.stmt, made: set[str]) -> Iterator[str]:
    """Yield the names that a statement multiplies a mask by, none of those that the statements make."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            yield from (name for side in (node.left, node.right) if (name := _passed(side)) and name not in made)


def _passed(node: ast.expr) -> str:
    """Return the name of a tensor that is only viewed or converted, "" for another expression."""
    while True:
        if isinstance(node, ast.Subscript) and all(
            isinstance(each, ast.Slice) or (isinstance(each, ast.Constant) and each.value in (None, ...))
            for each in (node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice])
        ):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _PASSES:
            node = node.func.value
        else:
            return ast.unparse(node) if isinstance(node, ast.Name) else ""


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")

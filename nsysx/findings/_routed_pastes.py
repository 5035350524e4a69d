"""Code to paste for products with masks that send rows to slots (``events.routing_masks``): rows by number, in the program's names."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import NamedTuple

from nsysx.events.product_forms import ProductForm
from nsysx.findings._pieces_in_text import parsed
from nsysx.findings._routing_names import RoutingNames

_PRODUCTS = ("einsum", "bmm", "matmul", "mm")


class _ProductText(NamedTuple):
    """What a line calls the rows that it multiplies with a mask, or the call that makes them there, and the result; how the product stands
    there, and the names that such a call is given.
    """

    rows: str
    result: str
    product: str
    given: frozenset[str] = frozenset()


#: What the lines are written in where the program's own names are not known.
_NAMES = RoutingNames("choice", "place", "gate", "experts", "places")


def moved_rows(
    lines: Sequence[tuple[str | None, ProductForm]], named: RoutingNames | None = None, computed: Sequence[str] = ()
) -> str:
    """Return lines that move rows to their slots and back; ``lines``: the text of each product's, None where it was not recorded.

    ``named``: what the program calls what it makes its masks of; ``computed``: its lines between the two products.
    """
    there = next((each for text, form in lines if form.sums_tokens and (each := _read(text, form))), None)
    back = next((each for text, form in lines if not form.sums_tokens and (each := _read(text, form))), None)
    several = max(int(form.after) for _, form in lines)
    if has_no_places(lines[0][1]):
        sends, brings = (any(form.sums_tokens is kind for _, form in lines) for kind in (True, False))
        return "\n".join([*(_added(there, several) if sends else ()), *(_picked(back, several) if brings else ())])
    x, buffer = (there.rows, there.result) if there else ("x", "rows")
    out, y = (back.rows, back.result) if back else (buffer, "y")
    slots, rows = ("slot.flatten()", f"{x}.repeat_interleave({several}, 0)") if several > 1 else ("slot", x)
    # What the experts compute may be called in the product itself.
    between = f"{buffer} = {out}" if back and buffer in back.given else ""
    out = buffer if between else out
    names = named or _NAMES
    experts, places = names.experts, names.places
    weighted = f"{y} * {names.gate}.to({y}.dtype)[..., None]"
    sizes = lines[0][1].before.split(" x ")
    numbers = f"experts, places = {', '.join(sizes[1:])}  # as the masks have here" if len(sizes) == 3 else ""
    if named:
        numbers = f"keep = ({names.place} >= 0) & ({names.place} < {places})"
    return "\n".join(
        (
            *([numbers] if numbers else []),
            f"slot = torch.where(keep, {names.choice} * {places} + {names.place}, {experts} * {places})  # the last one: no place",
            f"{buffer} = {x}.new_zeros({experts} * {places} + 1, {x}.size(-1)).index_copy(0, {slots}, {rows}){_instead(there)}",
            f"{buffer} = {buffer}[:-1].unflatten(0, ({experts}, {places}))",
            *([between] if between else computed),
            f"{y} = F.embedding(slot, F.pad({out}.flatten(0, 1), (0, 0, 0, 1))){_instead(back)}",
            f"{y} = ({weighted}).sum(-2)" if several > 1 else f"{y} = {weighted}",
        )
    )


def has_no_places(form: ProductForm) -> bool:
    """Return whether a mask has rows and numbers alone, and no places beside experts."""
    return form.before.count(" x ") < 2


def _added(line: _ProductText | None, several: int) -> list[str]:
    """Return lines that add up weighed rows by their numbers."""
    x, result = (line.rows, line.result) if line else ("x", "rows")
    weighed = f"{x}[:, None] * weight[..., None]" if several > 1 else f"{x} * weight[:, None]"
    number, weighed = ("number.flatten()", f"({weighed}).flatten(0, 1)") if several > 1 else ("number", weighed)
    return [f"{result} = {x}.new_zeros(n, {x}.size(-1)).index_add(0, {number}, {weighed}){_instead(line)}"]


def _picked(line: _ProductText | None, several: int) -> list[str]:
    """Return lines that look rows up by number, and weigh them."""
    rows, y = (line.rows, line.result) if line else ("rows", "y")
    picked = f"F.embedding(number, {rows}) * weight[..., None]"
    return [f"{y} = ({picked}).sum(-2){_instead(line)}" if several > 1 else f"{y} = {picked}{_instead(line)}"]


def _instead(line: _ProductText | None) -> str:
    return f"  # not {line.product}" if line else ""


def _read(text: str | None, form: ProductForm) -> _ProductText | None:
    """Return the product of a line that gives its result a name, None where there is none."""
    text = (text or "").partition("  #")[0].strip()
    tree = parsed(text) if text else None
    if tree is None or not isinstance(tree.body[0], ast.Assign):
        return None
    statement = tree.body[0]
    target, value = statement.targets[0], statement.value
    factors: list[ast.expr] = []
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.MatMult):
        factors = [value.left, value.right]
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _PRODUCTS:
        factors = [each for each in value.args if not (isinstance(each, ast.Constant) and isinstance(each.value, str))]
    if len(factors) != 2 or not isinstance(target, ast.Name):
        return None
    rows = factors[1 - form.mask_at]
    product = ast.get_source_segment(text, value) or ""
    if isinstance(rows, ast.Name):
        return _ProductText(rows.id, target.id, product)
    if form.sums_tokens or not isinstance(rows, ast.Call):
        return None
    given = frozenset(node.id for each in rows.args for node in ast.walk(each) if isinstance(node, ast.Name))
    return _ProductText(ast.get_source_segment(text, rows) or "", target.id, product, given)

"""Code to paste for products with masks that send rows to slots (``events.routing_masks``): rows by number, in the program's names."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import NamedTuple

from nsysx.events.product_forms import ProductForm
from nsysx.findings._pieces_in_text import parsed

_PRODUCTS = ("einsum", "bmm", "matmul", "mm")


class _ProductText(NamedTuple):
    """What a line calls the rows that it multiplies with a mask, and the result; how the product stands there."""

    rows: str
    result: str
    product: str


def moved_rows(lines: Sequence[tuple[str | None, ProductForm]]) -> str:
    """Return lines that move rows to their slots and back; ``lines``: the text of each product's, None where it was not recorded."""
    there = next((each for text, form in lines if form.sums_tokens and (each := _read(text, form))), None)
    back = next((each for text, form in lines if not form.sums_tokens and (each := _read(text, form))), None)
    several = max(int(form.after) for _, form in lines)
    x, buffer = (there.rows, there.result) if there else ("x", "rows")
    out, y = (back.rows, back.result) if back else ("rows", "y")
    numbers, rows = ("torch.where(keep, slot, spare)", x)
    if several > 1:
        numbers, rows = f"{numbers}.flatten()", f"{x}.repeat_interleave({several}, 0)"
    paste = [
        "slot = choice * places + place.clamp(max=places - 1)",
        "spare = experts * places  # a row for those that have no place",
        f"{buffer} = {x}.new_zeros(spare + 1, {x}.size(-1)).index_copy(0, {numbers}, {rows})[:-1]{_instead(there)}",
        f"{buffer} = {buffer}.unflatten(0, (experts, places))",
    ]
    weights = f"(gate * keep).to({out}.dtype)[..., None]"
    if several > 1:
        paste.append(
            f"{y} = {out}.flatten(0, 1).index_select(0, slot.flatten()).unflatten(0, slot.shape){_instead(back)}"
        )
        paste.append(f"{y} = ({y} * {weights}).sum(1)")
    else:
        paste.append(f"{y} = {out}.flatten(0, 1).index_select(0, slot) * {weights}{_instead(back)}")
    return "\n".join(paste)


def _instead(line: _ProductText | None) -> str:
    return f"  # not {line.product}" if line else ""


def _read(text: str | None, form: ProductForm) -> _ProductText | None:
    """Return the product of a line that gives its result a name, None where there is none."""
    tree = parsed(text.partition("  #")[0].strip()) if text else None
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
    return _ProductText(rows.id, target.id, ast.unparse(value)) if isinstance(rows, ast.Name) else None

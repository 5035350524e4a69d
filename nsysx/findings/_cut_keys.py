"""A call of attention to a whole cache, in the program's own names: the same call with the keys and values that are written."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from nsysx.findings._pieces_in_text import names_in, parsed
from nsysx.findings._work_bounds import KEYS_IN_STEPS_OF

_CALLED = "scaled_dot_product_attention"
_GIVEN = ("query", "key", "value", "attn_mask")
_UNKNOWN = "position"


def with_written_keys(text: str, writes: str, beside: Iterable[str]) -> str | None:
    """Return a line whose call of attention is given the written keys alone, behind one that counts them; None where it has no such call.

    ``writes``: the line that writes into the cache; ``beside``: the other lines of the function that calls attention, whose names it has.
    """
    tree = parsed(text) if text else None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree else []
    calls = [call for call in calls if ast.unparse(call.func).rpartition(".")[2] == _CALLED]
    if len(calls) != 1 or any(isinstance(each, ast.Starred) for each in calls[0].args):
        return None
    given = dict(zip(_GIVEN, calls[0].args, strict=False))
    given |= {each.arg: each.value for each in calls[0].keywords if each.arg in _GIVEN}
    if not all(isinstance(given.get(name), ast.Name | ast.Attribute | ast.Subscript) for name in _GIVEN):
        return None
    cut = text
    for name, of_them in sorted(
        (("key", "[:, :, :n]"), ("value", "[:, :, :n]"), ("attn_mask", "[..., :n]")),
        key=lambda each: -(given[each[0]].end_col_offset or 0),
    ):
        end = given[name].end_col_offset or 0
        cut = f"{cut[:end]}{of_them}{cut[end:]}"
    query, key = ast.unparse(given["query"]), ast.unparse(given["key"])
    start = _begins(writes)
    where = (
        start if start is not None and start in {name for line in (text, *beside) for name in _names(line)} else None
    )
    counted = f"-(-({where or _UNKNOWN} + {query}.size(-2)) // {KEYS_IN_STEPS_OF}) * {KEYS_IN_STEPS_OF}"
    remark = (
        ""
        if where
        else f"  # {_UNKNOWN}: of the first query, the loop's own counter, a number of the host, not .item()"
    )
    return f"n = min({counted}, {key}.size(-2)){remark}\n{cut}"


def _begins(text: str) -> str | None:
    """Return the name from which on a line writes rows into a slice, None for a line of another form."""
    tree = parsed(text) if text else None
    statement = tree.body[0] if tree is not None and tree.body else None
    if isinstance(statement, ast.Assign):
        target: ast.expr | None = statement.targets[0]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        called = statement.value.func
        target = called.value if isinstance(called, ast.Attribute) and called.attr == "copy_" else None
    else:
        target = None
    slices = [node for node in ast.walk(target) if isinstance(node, ast.Slice)] if target is not None else []
    starts = [each.lower for each in slices if each.lower is not None and each.upper is not None]
    names = {start.id for start in starts if isinstance(start, ast.Name)}
    return names.pop() if len(names) == 1 and len(starts) == 1 else None


def _names(text: str) -> set[str]:
    tree = parsed(text)
    return names_in(tree) if tree is not None else set()

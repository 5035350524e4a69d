"""Calls of attention with a causal mask as a tensor, in the program's own names: the same call with is_causal=True in its place."""

from __future__ import annotations

import ast

import numpy as np

from nsysx.analyses.lines import text_of, texts
from nsysx.findings._case import Case, Fix
from nsysx.findings._pieces_in_text import parsed, with_part

_CALLED = "scaled_dot_product_attention"
#: The arguments that stand before a mask that has no name.
_BEFORE_MASK = ("query", "key", "value")


def in_its_call(case: Case, ops: frozenset[int], fix: Fix) -> Fix:
    """Return the advice with the call that launches these GPU ops; as it is where they have several texts, or none that is known."""
    code, source = case.profile.code(), texts(case.profile)
    if code is None or not ops:
        return fix
    rows = np.unique(code.places_of(code.op[sorted(ops)]))
    changed = {
        line for row in rows[rows >= 0].tolist() if (line := without_mask(text_of(source, *code.places.row(row)[:2])))
    }
    return fix.but(paste=changed.pop()) if len(changed) == 1 else fix


def without_mask(text: str | None) -> str | None:
    """Return a line whose call of attention has is_causal=True instead of a mask; None where it is no statement with one such call."""
    tree = parsed(text) if text else None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree else []
    calls = [call for call in calls if ast.unparse(call.func).rpartition(".")[2] == _CALLED]
    if text is None or len(calls) != 1:
        return None
    call = calls[0]
    named = {each.arg: each for each in call.keywords}
    if None in named or "is_causal" in named or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    masks: list[ast.expr | ast.keyword] = [
        *call.args[len(_BEFORE_MASK) :],
        *([named["attn_mask"]] if "attn_mask" in named else []),
    ]
    if len(masks) != 1 or masks[0].end_col_offset is None:
        return None
    return with_part(text, masks[0], "is_causal=True")

"""Attention that a loop calls for each document of a packed sequence: one call does for all, with a mask that keeps them apart."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from nsysx.events.operator_flow import flow_of, is_view
from nsysx.events.operator_of_calls import operator_of_calls
from nsysx.events.taken_apart import TakenTensor
from nsysx.findings._case import Case, Fix, calls_of
from nsysx.findings._pieces_in_text import parsed
from nsysx.findings._work_bounds import FEWEST_DOCUMENTS
from nsysx.replay.engine import Edit, RemoveCalls, RemoveHost

_ATTENTION = re.compile(
    r"^aten::(_?scaled_dot_product_\w*attention\w*|_flash_attention_forward|_efficient_attention_forward)$"
)
_CAUSAL = re.compile(r"\b(is_)?causal\s*=\s*True")


class AttentionOfPieces(NamedTuple):
    """Calls of attention (rows of the flow) that are each given pieces of the same tensors; ``first``: of each of these the first."""

    rows: tuple[int, ...]
    first: frozenset[int]


def attention_of(case: Case, tensors: Sequence[TakenTensor]) -> AttentionOfPieces | None:
    """Return the calls of attention that read the pieces of all of some tensors, None where these are read by anything else, too."""
    flow = flow_of(case.profile)
    if flow is None:
        return None
    piece_of = {number: index for index, tensor in enumerate(tensors) for number in tensor.numbers}
    # Operators that make no node bear the number of the next one, too.
    making = {flow.sequence[row]: row for row in flow.outermost if flow.sequence[row] in piece_of}
    pieces = {flow.number[row]: piece_of[each] for each, row in making.items()}
    here = len(set(pieces.values()))  # the tensors are those of all X-ray steps
    rows, first = set[int](), dict[int, int]()
    for row in flow.outermost:
        read = [pieces[number] for number in flow.made[row] if number in pieces]
        if not read:
            continue
        if is_view(flow.names[row]):
            pieces[flow.number[row]] = read[0]
        elif _ATTENTION.match(flow.names[row]):
            rows.add(row)
            for tensor in read:
                first.setdefault(tensor, row)
        else:
            return None
    if len(rows) < FEWEST_DOCUMENTS * len(set(first.values())) or not rows or len(first) < here:
        return None
    return AttentionOfPieces(tuple(sorted(rows)), frozenset(first.values()))


def edits_of(case: Case, attention: AttentionOfPieces) -> list[Edit]:
    """Return what is not launched any more if one call does the work of all."""
    flow, of_calls = flow_of(case.profile), operator_of_calls(case.profile)
    if flow is None or of_calls is None:
        return []
    within = of_calls.within(flow)[case.calls["call"].to_numpy()]
    gone = [row for row in attention.rows if row not in attention.first]
    calls = calls_of(case.calls.filter(pl.Series(within).is_in(gone)))
    return [RemoveCalls(calls), RemoveHost(calls, leading=True)]


def fix_of(text: str | None) -> Fix:
    """Return the remedy, with the names of the line that calls attention, and causal where that is."""
    fix, text = Fix.by_name("documents-at-once"), (text or "").partition("  #")[0].strip()
    paste = fix.paste if _CAUSAL.search(text) else fix.paste.replace(" & (i >= j)", "")
    named = _wholes(text)
    if named is not None:
        paste = paste.replace("attend(q, k, v", f"attend({', '.join(named)}").replace(
            "q.size(-2)", f"{named[0]}.size(-2)"
        )
    return fix.but(paste=paste)


def _wholes(text: str) -> tuple[str, str, str] | None:
    """Return what the queries, keys and values are pieces of, by the text of a call; None where it does not tell."""
    tree = parsed(text) if text else None
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and "attention" in ast.unparse(node.func) and len(node.args) >= 3:
            given = [each.value for each in node.args[:3] if isinstance(each, ast.Subscript)]
            if len(given) == 3 and all(isinstance(each, (ast.Name, ast.Attribute)) for each in given):
                query, key, value = map(ast.unparse, given)
                return query, key, value
    return None

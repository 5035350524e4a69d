"""Heads of keys and values that are repeated before ranks exchange them: the lines without that, and attention that takes fewer of them."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import numpy as np

from nsysx.analyses import lines
from nsysx.events.operator_flow import flow_of
from nsysx.events.sent_copies import SentCopies
from nsysx.findings._case import Case

_ATTENTION = "scaled_dot_product_attention"


def heads_as_they_are(case: Case, copies: Sequence[SentCopies]) -> str:
    """Return the program's line of attention with fewer heads of keys and values, and its lines that repeat these, to be left out.

    "" where another function attends, or it is not known which lines repeat them.
    """
    attends, repeats = _attention_behind(case, copies[0].start_ns), _repeating(case, copies)
    return "\n".join((attends, *repeats)) if attends and repeats else ""


def _attention_behind(case: Case, at_ns: int) -> str:
    """Return the line of the next call of attention, which takes each head of keys and values for several of queries then."""
    code, flow = case.profile.code(), flow_of(case.profile)
    if code is None or flow is None:
        return ""
    row = next((r for r in flow.outermost if flow.start_ns[r] > at_ns and flow.names[r] == f"aten::{_ATTENTION}"), None)
    if row is None:
        return ""
    file, number, _ = code.places.row(int(code.places_of(code.at(flow.thread, flow.start_ns[[row]]))[0]))
    text = lines.text_of(lines.texts(case.profile), file, number) or ""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return ""
    named = [n for n in ast.walk(ast.Module(body, [])) if isinstance(n, ast.Call) and _ATTENTION in ast.unparse(n.func)]
    if len(named) != 1 or any(k.arg in (None, "enable_gqa") for k in named[0].keywords):
        return ""
    named[0].keywords.append(ast.keyword("enable_gqa", ast.Constant(value=True)))
    return f"{ast.unparse(body[0])}  # line {number}: each head of key and value is taken for several of query"


def _repeating(case: Case, copies: Sequence[SentCopies]) -> list[str]:
    """Return what is left of the lines that repeat: nothing, as words, where what they make has the name of what they are given."""
    code, flow = case.profile.code(), flow_of(case.profile)
    if code is None or flow is None:
        return []
    source, told = lines.texts(case.profile), dict[str, None]()
    for row in sorted({each.copying for each in copies if each.heads}):
        chain = [
            code.places.row(n) for n in code.own_chain(int(code.at(flow.thread, np.array([flow.start_ns[row]]))[0]))
        ]
        texts = [(number, lines.text_of(source, file, number) or "") for file, number, _ in chain]
        number, text = next(((n, t) for n, t in texts if not t.startswith("return")), (0, ""))
        left = _without(text)
        if left is None:
            return []
        told[f"{left}  # line {number}" if left else f"# without line {number}: {text}"] = None
    return list(told)


def _without(text: str) -> str | None:
    """Return an assignment of what is given to a call in place of its result, "" where it has that name; None for other statements."""
    try:
        statement = ast.parse(text).body[0]
    except (SyntaxError, ValueError, IndexError):
        return None
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    targets, value = _elements(statement.targets[0]), statement.value
    if isinstance(value, ast.GeneratorExp | ast.ListComp) and len(value.generators) == 1:
        given: list[ast.expr | None] = [*_elements(value.generators[0].iter)]
    else:
        given = [_what_is_repeated(each) for each in _elements(value)]
    names = [ast.unparse(each) for each in targets], [ast.unparse(each) if each is not None else "" for each in given]
    if len(targets) != len(given) or not all(names[1]):
        return None
    return "" if names[0] == names[1] else f"{', '.join(names[0])} = {', '.join(names[1])}"


def _elements(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, ast.Tuple | ast.List) else [node]


def _what_is_repeated(node: ast.expr) -> ast.expr | None:
    """Return what a call repeats: its first argument, or the tensor whose method is called."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("repeat_interleave", "repeat", "tile", "expand"):
        of_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
        return node.args[0] if of_torch and node.args else None if of_torch else node.func.value
    return node.args[0] if node.args else None

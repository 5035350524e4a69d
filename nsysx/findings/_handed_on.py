"""What each of several layers computes of the same tensors: how to make it once, in the names of the function or line that makes it."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

import numpy as np

from nsysx.analyses.lines import text_of, texts
from nsysx.events.code_lines import CodeLines
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.profile import Profile
from nsysx.findings._case import Fix
from nsysx.findings._kept_results import NAMED
from nsysx.findings._pieces_in_text import parsed
from nsysx.model import Row


def handed_on(profile: Profile, code: CodeLines, flow: OperatorFlow, rows: Sequence[int]) -> Fix:
    """Return how layers come by one result that now each of them makes by some operators (rows)."""
    fix, source = Fix.by_name("result-handed-on"), texts(profile)
    called = _called(code, flow, rows)
    if called is None:
        made = [NAMED.match(text_of(source, *code.places.row(each)[:2]) or "") for each in _lines(code, flow, rows)]
        named = [(match[1], match[2]) for match in made if match is not None]
        return fix.but(paste=_before_layers(named)) if named and len(named) == len(made) else fix
    function, caller = called
    owner, _, name = function.rpartition(".")
    text, line = text_of(source, caller.get("file"), caller.get("line")) or "", caller.get("line")
    if owner and owner not in {call.cls for call in flow.calls} and re.search(rf"\.{re.escape(name)}\b(?!\s*\()", text):
        advice = f"Make {name} once for each {owner}, not each time that a layer reads it (line {line})"
        paste = (
            f"from functools import cached_property  # at the top\n@cached_property  # of {owner}, in place of @property\n"
            f"def {name}(self):"
        )
        condition = f"{owner} must be a new one for each batch, and nothing may write into what {name} is made of, or into the result."
        return fix.but(text=advice, paste=paste, condition=condition)
    call = _call_of(text, name)
    return fix if call is None else fix.but(paste=_before_layers([(name.strip("_"), call)]))


def _called(code: CodeLines, flow: OperatorFlow, rows: Sequence[int]) -> tuple[str, Row] | None:
    """Return the innermost function of the program in which all of some operators are made, and the line that calls it; None where that is
    the layer's own.
    """
    makers = set[tuple[str, int]]()
    for stack in np.unique(code.at(flow.thread, flow.start_ns[list(rows)])).tolist():
        chain = code.own_chain(stack)
        if len(chain) < 2:
            return None
        makers.add((str(code.places.row(chain[0])[2] or ""), chain[1]))
    if len(makers) != 1:
        return None
    ((function, caller),) = makers
    return None if function.rpartition(".")[2] in ("forward", "__call__", "") else (function, code.where(caller))


def _lines(code: CodeLines, flow: OperatorFlow, rows: Sequence[int]) -> list[int]:
    """Return the lines (places) of the program that make some operators (rows), in their order."""
    places = code.places_of(code.at(flow.thread, flow.start_ns[sorted(rows)])).tolist()
    return sorted({each for each in places if each >= 0}, key=lambda each: code.places.row(each)[:2])


def _call_of(text: str, name: str) -> str | None:
    """Return the call of a function in a line, None where the line does not show all of it."""
    tree = parsed(text)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree is not None else []
    return next((ast.unparse(node) for node in calls if ast.unparse(node.func).rpartition(".")[2] == name), None)


def _before_layers(made: Sequence[tuple[str, str]]) -> str:
    """Return the lines that make these (names, what they are given) before the layers, which take the last."""
    first = "  # once, before the loop over the layers, of what each of them is given"
    lines = [f"{name} = {value}{first if not number else ''}" for number, (name, value) in enumerate(made)]
    return "\n".join([*lines, f"x = layer(x, {made[-1][0]})  # each layer takes it, in place of making it"])

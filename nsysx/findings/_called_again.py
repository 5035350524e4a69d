"""Calls of modules that compute what a call of the same module has computed (``events.repeated_calls``), and what to keep of the first.

Physics-informed networks call theirs, and differentiate it, anew for each derivative of a second order: one call and its first derivatives,
with a graph of their own, are enough for all of them.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nsysx.analyses.lines import text_of, texts
from nsysx.events.code_lines import CodeLines
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_flow import ModuleCall, OperatorFlow
from nsysx.events.profile import Profile
from nsysx.events.repeated_calls import RepeatedCall, repeated_calls, written_between
from nsysx.events.trained_operators import trained_of
from nsysx.findings._case import Fix
from nsysx.findings._flow_work import NeedlessOperators, in_short, place_of_operator
from nsysx.findings._pieces_in_text import parsed
from nsysx.model import Row

_PARAMETRIZED = re.compile(r"(^|\.)parametrizations\.\w+\.\d+$")
_WITH_GRAPH = re.compile(r"\bcreate_graph\s*=\s*True")
#: Such gradients are those of weights (meta learning), not of what a network is given.
_OF_WEIGHTS = re.compile(r"(?i)\bgrad\(.*(parameters\(|\bparams?\b|weights?\b|\bfast\w*|\.values\(\)|\bthetas?\b)")


def called_again(profile: Profile, flow: OperatorFlow, code: CodeLines) -> Iterator[NeedlessOperators]:
    """Yield what calls of each module compute that a call before them has computed."""
    groups = defaultdict[tuple[str, str], list[RepeatedCall]](list)
    for repeated in repeated_calls(flow):
        groups[repeated.again.path, repeated.again.cls].append(repeated)
    source = texts(profile)
    derived = any(
        isinstance(text, str) and _WITH_GRAPH.search(text) and not _OF_WEIGHTS.search(text)
        for lines in source.values()
        for text in lines.values()
    )
    trained = trained_of(profile)
    for (_, cls), group in groups.items():
        if _before_training(group, trained):
            yield _second_pass(code, flow, cls, group)
            continue
        first, again = (_calling(code, flow, call) for call in group[-1])
        rows = [row for each in group for row in flow.outermost_of(each.again.first, each.again.last)]
        why = "Both calls run the same operators on the same tensors, and nothing has written into any of their sizes in between."
        if len(group) == 1:
            before = f" as {in_short(first)} did" if first and first != again else ""
            title = f"{in_short(again) or 'The step'} calls {cls} on the same input{before} again"
            yield NeedlessOperators(rows, title, why, Fix.by_name("result-kept"), again)
            continue
        where, again_at = _calling(code, flow, group[0].first), {each.again.first for each in group}
        inputs = len({each.first.first for each in group} - again_at)
        of_inputs = "the same input" if inputs == 1 else f"each of {inputs} inputs"
        title = f"{in_short(where) or 'The step'} calls {cls} {len(group) // inputs + 1} times on {of_inputs}"
        lines = {tuple(_calling(code, flow, call).items()) for each in group for call in each}
        fix = (
            _derivatives(source, where)
            if derived
            else _before_loop(source, where)
            if len(lines) == 1
            else Fix.by_name("result-kept")
        )
        yield NeedlessOperators(rows, title, why.replace("Both", "All"), fix, where)


def _before_training(group: Sequence[RepeatedCall], trained: Flags) -> bool:
    """Return whether each of several calls without gradients is repeated with them: a pass over the pieces of a batch before training."""
    with_gradients = [
        (trained[e.first.first : e.first.last].any(), trained[e.again.first : e.again.last].any()) for e in group
    ]
    return len(group) > 1 and all(not before and again for before, again in with_gradients)


def _second_pass(code: CodeLines, flow: OperatorFlow, cls: str, group: Sequence[RepeatedCall]) -> NeedlessOperators:
    """Return the calls without gradients of a step that makes the output of all pieces first, for the loss, and then each again."""
    first, again = (_calling(code, flow, call) for call in group[-1])
    rows = [row for each in group for row in flow.outermost_of(each.first.first, each.first.last)]
    title = f"{in_short(first) or 'The step'} calls {cls} on {len(group)} pieces of a batch without gradients, and then again with them"
    behind = f" ({in_short(again)})" if again and again != first else ""
    why = (
        f"The loss is computed of the first outputs, and its gradients are taken through the second ones{behind}, as a cache of gradients "
        "does where the activations of the whole batch do not fit."
    )
    return NeedlessOperators(rows, title, why, Fix.by_name("one-pass"), first)


def parametrized_again(flow: OperatorFlow, code: CodeLines) -> Iterator[NeedlessOperators]:
    """Yield what parametrizations (weight norm) make again of weights that nothing has written into since their last call."""
    before, again = dict[str, ModuleCall](), list[ModuleCall]()
    for call in flow.calls:
        # A spectral norm goes on with its estimate in each call.
        if _PARAMETRIZED.search(call.path) and call.cls != "_SpectralNorm":
            last = before.get(call.path)
            if last is not None and last.last <= call.first and not written_between(flow, last, call):
                again.append(call)
            before[call.path] = call
    if not again:
        return
    rows = [row for call in again for row in flow.outermost_of(call.first, call.last)]
    where = _calling_network(flow, code, again)
    often = 1 + len(again) / len({call.path for call in again})
    kinds = " and ".join(dict.fromkeys(call.cls for call in again))
    title = (
        f"{in_short(where) or 'The step'}: parametrizations ({kinds}) make each weight about {often:.0f} times a step"
    )
    why = f"{len(before)} weights are made anew in each call of their layers, and nothing has written into them in between."
    yield NeedlessOperators(rows, title, why, Fix.by_name("parametrized-once"), where)


def _calling_network(flow: OperatorFlow, code: CodeLines, calls: Sequence[ModuleCall]) -> Row:
    """Return the line that calls the outermost module around some calls."""
    first = calls[0]
    around = [call for call in flow.calls if call.first <= first.first and first.last <= call.last]
    return _calling(code, flow, min(around, key=lambda call: (call.first, -call.last)))


def _calling(code: CodeLines, flow: OperatorFlow, call: ModuleCall) -> Row:
    """Return the line of the program that is at work when a module is called."""
    return place_of_operator(code, flow, np.array([call.start_ns]))


def _derivatives(source: Mapping[str, Any], where: Row) -> Fix:
    """Return the remedy for networks that are differentiated twice, with the names of the line that calls one."""
    fix = Fix.by_name("derivatives-once")
    called = _innermost_call(text_of(source, where["file"], where["line"])) if where else None
    if called is None:
        return fix
    network, given = called
    paste = fix.paste.replace("u = net(x)", f"u = {network}({', '.join(given)})", 1)
    return fix.but(paste=re.sub(r"\bx\b", given[0], paste) if len(given) == 1 else paste)


def _before_loop(source: Mapping[str, Any], where: Row) -> Fix:
    """Return the remedy for a line that calls a network on the same input in each round of a loop, with the names of that line."""
    fix = Fix.by_name("result-kept")
    called = _innermost_call(text_of(source, where["file"], where["line"])) if where else None
    network, given = ("net", ["x"]) if called is None else called
    return fix.but(
        text=f"Call {network} once, before the loop, and give each round its result, with its graph: it is given the same in each round",
        paste=f"kept = {network}({', '.join(given)})  # once, before the loop\nfor _ in range(rounds):\n    out = head(kept)",
        condition=f"{fix.condition} Statistics of BatchNorm then count a batch once.",
    )


def _innermost_call(text: str | None) -> tuple[str, list[str]] | None:
    """Return function and arguments of the one call of names with names alone of a line, None where there is none or several unlike."""
    tree = parsed((text or "").partition("  #")[0].strip())
    calls = {
        (ast.unparse(node.func), tuple(each.id for each in node.args if isinstance(each, ast.Name)))
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, ast.Call) and node.args and not node.keywords
        if all(isinstance(each, ast.Name) for each in node.args) and isinstance(node.func, (ast.Name, ast.Attribute))
    }
    if len(calls) != 1:
        return None
    ((network, given),) = calls
    return network, list(given)

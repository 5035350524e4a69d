"""Gradients of one output that are asked for by one input at a time (``events.passes_of_one_output``), which one call gives.

Physics-informed networks ask so for u_x, u_y and u_t: a pass through the network for each, with a graph of its own that the loss's backward
goes through once more.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.events.code_lines import CodeLines
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.passes_of_one_output import OneOutput, passes_of_one_output
from nsysx.findings._case import Case, Fix, Rule, calls_of, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short
from nsysx.findings._found import Found
from nsysx.findings._once import Takes, began_in, edits_without
from nsysx.findings._pieces_in_text import names_in, parsed
from nsysx.model import Finding

_GRAD = "torch.autograd.grad"
#: Names that stand for the same everywhere.
_MODULES = frozenset(("torch", "autograd", "grad"))


class _Asked(NamedTuple):
    """An output, the rows of ``places`` at which its gradients are asked for, one for each pass, and those that call autograd."""

    output: OneOutput
    lines: Sequence[int]
    grads: Sequence[int]


class _Ask(NamedTuple):
    """A gradient that a line asks for: what takes it, by which call, and whether that call's own first result is it."""

    target: str
    call: ast.Call
    first: bool


def findings_of(case: Case, rule: Rule, flow: OperatorFlow, code: CodeLines) -> list[Finding]:
    """Return a finding for each function that asks so, where that takes 5 % of the step or more."""
    functions = defaultdict[object, list[_Asked]](list)
    for output in passes_of_one_output(case.profile, flow, code):
        asked = _asked(case, code, output)
        if asked is not None:
            functions[code.places.row(asked.lines[0])[::2]].append(asked)
    findings = (_found(case, rule, code, group) for group in functions.values())
    return [finding for finding in findings if finding is not None]


def _asked(case: Case, code: CodeLines, output: OneOutput) -> _Asked | None:
    """Return the lines that ask: the innermost ones that differ, or where all are one line, that; behind ``return``, who calls it."""
    chains = [code.own_chain(stack) for stack in output.stacks]
    depth = min(map(len, chains))
    if not depth:
        return None
    levels = [[chain[level] for chain in chains] for level in range(depth)]
    differing = next((level for level in levels if len({*level}) > 1), None)
    if differing is None:
        text = text_of(texts(case.profile), *code.places.row(levels[0][0])[:2]) or ""
        differing = levels[1] if text.startswith("return") and depth > 1 else levels[0]
    return _Asked(output, differing, levels[0])


def _found(case: Case, rule: Rule, code: CodeLines, group: Sequence[_Asked]) -> Finding | None:
    gone = frozenset[int]().union(*(asked.output.calls for asked in group))
    made = case.calls.filter(case.calls["call"].is_in(list(gone)))
    calls = calls_of(made)
    theirs = case.ops.filter(case.ops["call"].is_in(list(calls)).fill_null(value=False))
    if theirs.is_empty():
        return None
    worth = case.worth_or_freed(*edits_without(made, case.ops, leading=True), cause=rule.cause)
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return None
    cost = case.per_step(int((theirs["end_ns"] - theirs["start_ns"]).sum()))
    where = code.where(min(group[0].lines, key=lambda row: code.places.row(row)[1] or 0))
    passes, outputs = sum(len(asked.lines) for asked in group), len(group)
    of_outputs, would = ("one output", "one would") if outputs == 1 else (f"{outputs} outputs", f"{outputs} would")
    title = (
        f"{in_short(where) or 'The step'}: {passes} passes of autograd take gradients of {of_outputs} by one input each, where {would} do: "
        f"{units.duration(worth.likely_ns or 0)} {case.per}"
    )
    nodes = max(asked.output.nodes for asked in group)
    with_graph = any(asked.output.with_graph for asked in group)
    graphs = (
        " Each makes a graph of its own (create_graph), and a later backward goes through all of them."
        if with_graph
        else ""
    )
    detail = (
        f"Passes from one output begin with the same gradient and run the same {nodes} nodes; they differ in the input that is asked for."
        f"{graphs} What is done again takes {units.duration(cost)} of the GPU's time and {len(calls) / case.steps:.0f} calls {case.per}."
    )
    return Found(
        rule,
        title,
        detail,
        worth=worth,
        cost_ns=max(cost, worth.likely_ns or 0),
        fix=_fix(texts(case.profile), code, group),
        where=where or None,
        calls=calls,
        takes=Takes(ops_of(theirs), idle=began_in(case.idle, calls)),
    ).as_finding(case)


def _fix(source: Mapping[str, Any], code: CodeLines, group: Sequence[_Asked]) -> Fix:
    """Return the advice with a call for each output, in the names of the lines; as an example where their text does not say all."""
    fix = Fix.by_name("gradients-in-one-call")
    pastes = [_in_one_call(source, code, asked) for asked in group]
    told = [paste for paste in pastes if paste]
    if not told:
        return fix
    first, *others = told
    return fix.but(paste="\n".join([f"{first}  # in place of {len(group[pastes.index(first)].lines)} calls", *others]))


def _in_one_call(source: Mapping[str, Any], code: CodeLines, asked: _Asked) -> str:
    """Return the statement that takes all gradients of one output; "" where the lines' text does not tell it."""
    places = [code.places.row(row) for row in dict.fromkeys(asked.lines)]
    trees = [parsed(text_of(source, *site[:2]) or "") for site in places]
    within = None if asked.lines == asked.grads else code.places.row(asked.grads[0])
    helper = None
    if within is not None:
        helper = _grad_in(parsed(text_of(source, *within[:2]) or ""))
        if helper is None or len({*asked.grads}) > 1:
            return ""
    elsewhere = within is not None and within[0] != places[0][0]
    if len(trees) == 1 and (round_ := _of_rounds(trees[0], helper, elsewhere=elsewhere)):
        return round_
    asks = [ask for tree in trees for ask in _asks(tree)]
    return _joined(asks, len(asked.lines), helper, elsewhere=elsewhere)


def _joined(asks: Sequence[_Ask], passes: int, helper: ast.Call | None, *, elsewhere: bool) -> str:
    """Return one statement for so many calls that differ in one argument alone."""
    for nth in range(2):
        alike = defaultdict[tuple[str, ...], list[_Ask]](list)
        for ask in asks:
            if len(ask.call.args) > nth and ask.first == (helper is None):
                others = [ast.unparse(each) for n, each in enumerate(ask.call.args) if n != nth]
                key = (ast.unparse(ask.call.func), *others, *map(ast.unparse, ask.call.keywords))
                alike[key].append(ask)
        for several in alike.values():
            inputs = [each.call.args[nth] for each in several]
            if len(several) == passes == len({*map(ast.unparse, inputs)}) and all(map(_is_name, inputs)):
                by = ast.Tuple(inputs, ast.Load())
                call = _with_inputs(several[0].call, nth, by, helper, elsewhere=elsewhere)
                return f"{', '.join(each.target for each in several)} = {call}" if call else ""
    return ""


def _of_rounds(tree: ast.Module | None, helper: ast.Call | None, *, elsewhere: bool) -> str:
    """Return a statement without its rounds, [derivative(u, c) for c in inputs]; "" for others."""
    for node in ast.walk(tree) if tree is not None else ():
        if not isinstance(node, ast.ListComp | ast.GeneratorExp) or len(node.generators) > 1 or node.generators[0].ifs:
            continue
        (over,) = node.generators
        call, first = _called(node.elt)
        if call is None or first != (helper is None) or not isinstance(over.target, ast.Name):
            continue
        nth = next((n for n, each in enumerate(call.args[:2]) if ast.unparse(each) == over.target.id), None)
        if nth is None or not isinstance(over.iter, ast.Tuple | ast.List | ast.Name | ast.Attribute):
            continue
        new = _with_inputs(call, nth, over.iter, helper, elsewhere=elsewhere)
        whole = ast.unparse(tree) if tree is not None else ""
        return whole.replace(ast.unparse(node), new, 1) if new else ""
    return ""


def _with_inputs(call: ast.Call, nth: int, by: ast.expr, helper: ast.Call | None, *, elsewhere: bool) -> str:
    """Return the call of autograd by all inputs, in the place of the line's own call, or of the one that it makes in its ``helper``."""
    if helper is None:
        if nth != 1 or not _is_grad(call):
            return ""
        return ast.unparse(ast.Call(call.func, [call.args[0], by, *call.args[2:]], call.keywords))
    output = call.args[1 - nth] if len(call.args) == 2 and not call.keywords else None
    variable = helper.args[1] if len(helper.args) > 1 else None
    names = names_in(helper) - _MODULES
    if output is None or not isinstance(variable, ast.Name) or len(names) != 2 or variable.id not in names:
        return ""
    (output_name,) = names - {variable.id}
    given: dict[str, ast.expr] = {output_name: output, variable.id: by}
    new = ast.parse(ast.unparse(helper), mode="eval").body
    text = ast.unparse(_Renamed(given).visit(new))
    return text.replace(ast.unparse(helper.func), _GRAD, 1) if elsewhere else text


class _Renamed(ast.NodeTransformer):
    """Puts expressions in the place of names."""

    def __init__(self, given: Mapping[str, ast.expr]) -> None:
        self._expressions = given

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._expressions.get(node.id, node)


def _grad_in(tree: ast.Module | None) -> ast.Call | None:
    """Return the call of autograd whose first result a line of a helper takes."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Subscript)] if tree is not None else []
    asks = [call for node in calls if (call := _called(node)[0]) is not None and _is_grad(call)]
    asks += [ask.call for ask in _asks(tree) if ask.first and _is_grad(ask.call)]
    return asks[0] if asks else None


def _asks(tree: ast.Module | None) -> list[_Ask]:
    """Return what an assignment takes by calls: u_x = derivative(u, x), or several of them."""
    if tree is None or len(tree.body) != 1 or not isinstance(tree.body[0], ast.Assign):
        return []
    (target, *others), value = tree.body[0].targets, tree.body[0].value
    if others:
        return []
    targets = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    if isinstance(value, ast.Call) and targets != [target]:  # (u_x,) = torch.autograd.grad(u, x)
        return [_Ask(ast.unparse(targets[0]), value, first=True)] if len(targets) == 1 else []
    values = value.elts if isinstance(value, ast.Tuple | ast.List) and targets != [target] else [value]
    if len(values) != len(targets):
        return []
    pairs = ((name, *_called(each)) for name, each in zip(targets, values, strict=True))
    return [_Ask(ast.unparse(name), call, first=first) for name, call, first in pairs if call is not None]


def _called(value: ast.expr) -> tuple[ast.Call | None, bool]:
    """Return the call whose result, or whose first one, an expression is; None for others."""
    if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant) and value.slice.value == 0:
        return (value.value, True) if isinstance(value.value, ast.Call) else (None, False)
    return (value, False) if isinstance(value, ast.Call) else (None, False)


def _is_grad(call: ast.Call) -> bool:
    return ast.unparse(call.func).rpartition(".")[2] == "grad"


def _is_name(value: ast.expr) -> bool:
    return isinstance(value, ast.Name | ast.Attribute | ast.Subscript)

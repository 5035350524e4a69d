"""What the program calls a network in the line that calls it, by the text of the line and the calls of networks there."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Collection, Iterator

import numpy as np

from nsysx.analyses.lines import text_of, texts
from nsysx.events.needless_networks import outermost_calls
from nsysx.events.operator_flow import ModuleCall, flow_of
from nsysx.events.profile import Profile
from nsysx.findings._freezing_pastes import network_name
from nsysx.findings._pieces_in_text import parsed
from nsysx.model import Row

#: Modules of packages whose functions stand in lines beside networks.
_PACKAGES = ("torch", "F", "nn", "np", "math", "dist", "time", "random")


def call_in_text(profile: Profile, call: ModuleCall, where: Row) -> tuple[str, ast.Call] | None:
    """Return the text of a line and the expression in it that is this call of a network; None where several may be.

    Python evaluates the arguments of a call before it makes the call: in this order the calls of a line are those of networks there.
    """
    text = text_of(texts(profile), where.get("file"), where.get("line")) or ""
    tree, flow, code = parsed(text), flow_of(profile), profile.code()
    if tree is None or flow is None or code is None:
        return None
    theirs = list(outermost_calls(flow))
    stacks = code.at(flow.thread, np.array([each.start_ns for each in theirs])).tolist()
    there = [
        each
        for each, stack in zip(theirs, stacks, strict=True)
        if stack >= 0 and any(code.where(line) == where for line in code.own_chain(stack))
    ]
    if call not in there:
        return None
    once = there[: _before_repeat(there)]
    functions = set(code.places["function"].drop_nulls().to_list())
    written = [node for node in _evaluated(tree) if _may_be_network(node.func, functions)]
    for among in (written, [node for node in written if _is_usual(node.func)]):
        if len(among) == len(once):
            return text, among[there.index(call) % len(once)]
    named = [node for node in written if ast.unparse(node.func) == network_name(profile, call.cls, otherwise="")]
    named = named or [node for node in written if _is_short_for(ast.unparse(node.func), call.cls)]
    return (text, named[0]) if len(named) == 1 else None


def network_in_text(profile: Profile, call: ModuleCall, where: Row) -> str:
    """Return what a line calls a network that it calls, "" where that is not known."""
    written = call_in_text(profile, call, where)
    return "" if written is None else ast.unparse(written[1].func)


def _before_repeat(calls: list[ModuleCall]) -> int:
    """Return after how many calls those of a line that runs again in the step begin anew; all of them where they do not."""
    kinds = [(each.path, each.cls) for each in calls]
    every = range(1, len(kinds))
    return next((n for n in every if len(kinds) % n == 0 and kinds == kinds[:n] * (len(kinds) // n)), len(kinds))


def _evaluated(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls in a piece of code in the order in which they are made."""
    for child in ast.iter_child_nodes(node):
        yield from _evaluated(child)
    if isinstance(node, ast.Call):
        yield node


def _may_be_network(function: ast.expr, functions: Collection[str]) -> bool:
    """Return whether what is called may be a network: a name, an attribute of a name, or an element of either; nothing of a package or of
    Python, and none of the program's ``functions``.
    """
    if isinstance(function, ast.Subscript):
        return _may_be_network(function.value, functions)
    if isinstance(function, ast.Name):
        return function.id not in functions and not hasattr(builtins, function.id)
    owner = function
    while isinstance(owner, ast.Attribute):
        owner = owner.value
    return isinstance(owner, ast.Name) and owner is not function and owner.id not in _PACKAGES


def _is_usual(function: ast.expr) -> bool:
    """Return whether networks are mostly called so: by a name, or as attributes of ``self``; tensors have methods."""
    plain, owner = isinstance(function, ast.Name | ast.Subscript), function
    while isinstance(owner, ast.Attribute | ast.Subscript):
        owner = owner.value
    return plain or (isinstance(owner, ast.Name) and owner.id == "self")


def _is_short_for(name: str, cls: str) -> bool:
    """Return whether the last part of a name is a part of the name of a class, as of ``self.disc`` for a Discriminator."""
    last = re.sub(r"\[.*|_", "", name.rpartition(".")[2]).lower()
    return bool(last) and (last in cls.lower() or cls.lower() in last)

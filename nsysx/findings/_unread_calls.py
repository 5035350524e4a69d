"""Calls of networks of which no gradient is read: the line that makes them, and that line under torch.no_grad().

The probe names networks by their class. What a wrapper wraps shares the wrapper's path in the recording, so its class is that of the other
range with that path: modules of it may be of the class of another network, as the encoder of a network is that of its momentum target.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from nsysx.advice import Alternative
from nsysx.analyses.lines import text_of, texts
from nsysx.events.code_lines import CodeLines
from nsysx.events.needless_networks import NeedlessNetwork, outermost_calls
from nsysx.events.operator_flow import ModuleCall, OperatorFlow, flow_of
from nsysx.events.profile import Profile
from nsysx.findings._attached_outputs import HandedOver, handed_over
from nsysx.findings._called_names import call_in_text
from nsysx.findings._finding_bounds import MOST_NAMED_PARTS
from nsysx.findings._pieces_in_text import whole_statement
from nsysx.findings.nsx112_fusion import outermost
from nsysx.model import Row

_DDP = "DistributedDataParallel"
#: A statement that can stand under a context alone.
_PLAIN = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)
_WITHOUT = (
    "Call {cls} under torch.no_grad() here, or detach what it returns: backward runs through it for gradients that no optimizer "
    "steps by"
)
_DETACHED = (
    "Detach what {cls} returns before {uses} it: backward runs through it from here for gradients that no "
    "optimizer reads"
)


def network_names(profile: Profile) -> dict[str, tuple[str, ...]]:
    """Return module -> the classes by which the probe may name the network that it is a part of: its own, and that of its wrapper unless
    several networks are wrapped alike, as a generator and its critic are.
    """
    tree = profile.attributed.modules.select(pl.col("module", "cls", "parent").cast(pl.String)).drop_nulls("module")
    networks = outermost(profile)
    wrappers = {root for root, cls in networks.values() if cls == _DDP}
    alone = {cls for root, cls in networks.values() if root not in wrappers}
    within = _wrapped_at_path(profile, wrappers)
    wrapped = dict[str, str | None](within)  # module -> the class of the network in its wrapper
    names: dict[str, tuple[str, ...]] = {}
    for module, cls, parent in tree.iter_rows():  # parents come first
        if parent in wrappers and parent not in within:
            wrapped[module] = cls
        elif parent in wrapped:
            wrapped[module] = wrapped[parent]
        root, outer = networks[module]
        several = root in wrappers and len(wrappers) > 1
        inner = wrapped.get(module)
        # Of two networks of one class the optimizer holds the one that is wrapped: the other is its average, or a teacher.
        names[module] = tuple(
            name for name in (None if inner in alone else inner, None if several else outer) if name is not None
        )
    return names


def _wrapped_at_path(profile: Profile, wrappers: Collection[str]) -> dict[str, str]:
    """Return wrapper -> the class of what it wraps, where that was called by the wrapper's own path."""
    if not wrappers:
        return {}
    ranges = profile.ranges.ranges
    names = pl.col("name", "cls", "kind").cast(pl.String)
    called = ranges.select(names).filter((pl.col("kind") == "module") & pl.col("name").is_in(list(wrappers)))
    inner = called.filter(pl.col("cls") != _DDP).unique(["name", "cls"]).sort("name", "cls")
    classes = inner.group_by("name").agg(pl.col("cls").first(), pl.len())
    return {name: cls for name, cls, count in classes.iter_rows() if count == 1}


def calls_of_classes(profile: Profile, classes: Collection[str]) -> list[ModuleCall]:
    """Return the calls from outside of networks of these classes, as the probe names them."""
    flow = flow_of(profile)
    if flow is None or not classes:
        return []
    names = network_names(profile)
    return [
        call
        for call in outermost_calls(flow)
        if any(name in classes for name in names.get(call.path or f"({call.cls})", (call.cls,)))
    ]


def line_of_calls(profile: Profile, calls: Collection[ModuleCall]) -> Row:
    """Return the line of the program that makes calls of networks, below which nothing else computes; of nested ones the outermost.

    Where every line runs other work, too, it is the line that calls them; empty where none is known.
    """
    flow, code = flow_of(profile), profile.code()
    if flow is None or code is None or not calls:
        return {}
    theirs = _own_chains(code, flow, np.array([call.start_ns for call in calls]))
    operators = np.array(flow.outermost)
    inside = np.zeros(len(operators), np.bool_)
    for call in calls:
        inside |= (operators >= call.first) & (operators < call.last)
    shared = {line for chain in _own_chains(code, flow, flow.start_ns[operators[~inside]]) for line in chain}
    chain = theirs[0] if theirs else []
    return next(
        (code.where(line) for line in reversed(chain) if line not in shared), code.where(chain[0]) if chain else {}
    )


def calls_alone(profile: Profile, where: Row, calls: Collection[ModuleCall]) -> bool:
    """Return whether nothing but these calls of networks computes below a line."""
    flow, code = flow_of(profile), profile.code()
    if flow is None or code is None or not where:
        return False
    operators = np.array(flow.outermost)
    outside = np.ones(len(operators), np.bool_)
    for call in calls:
        outside &= (operators < call.first) | (operators >= call.last)
    chains = _own_chains(code, flow, flow.start_ns[operators[outside]])
    return not any(code.where(line) == where for chain in chains for line in chain)


def _own_chains(code: CodeLines, flow: OperatorFlow, start_ns: np.ndarray) -> list[list[int]]:
    """Return the lines of the program that are open on the flow's thread at some instants, as rows of ``places``, innermost first."""
    stacks = np.unique(code.at(flow.thread, start_ns))
    return [chain for stack in stacks.tolist() if stack >= 0 and (chain := code.own_chain(stack))]


def place_without_gradients(profile: Profile, networks: Sequence[NeedlessNetwork]) -> Row:
    """Return the line that is changed, that which hands on what a network made or calls it; empty where that is not known."""
    handed = _handed(profile, networks)
    return handed.lines[0].where if handed is not None else line_of_calls(profile, [each.call for each in networks])


def without_gradients(profile: Profile, remedy: Alternative, networks: Sequence[NeedlessNetwork]) -> Alternative:
    """Return the advice in the program's words for networks of which some backward, or all of them, need nothing."""
    calls = [each.call for each in networks]
    where, handed = line_of_calls(profile, calls), _handed(profile, networks)
    cls = next((call.cls for call in calls if call.cls), "this network")
    if handed is not None:
        text = _DETACHED.format(cls=cls, uses="these lines use" if len(handed.lines) > 1 else "this line uses")
        more = (
            ""
            if handed.freed is None
            else f"; retain_graph=True of line {handed.freed.where.get('line')} is then not needed"
        )
        worded = len(handed.lines) <= MOST_NAMED_PARTS and all(each.text for each in handed.lines)
        pasted = [*handed.lines, *([] if handed.freed is None else [handed.freed])] if worded else []
        paste = "\n".join(f"{each.text}  # line {each.where.get('line')}" for each in pasted)
        return replace(remedy, text=f"{text}{more}", paste=paste)
    text = text_of(texts(profile), where.get("file"), where.get("line")) or ""
    statement = whole_statement(text)
    line = f"  # line {where.get('line')}"
    if not all(each.always for each in networks):
        name = ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
        paste = f"{name}.detach(){line}: where this loss takes {name}" if name.isidentifier() else ""
        return replace(remedy, text=_DETACHED.format(cls=cls, uses="this loss uses"), paste=paste)
    stands = isinstance(statement, _PLAIN) and calls_alone(profile, where, calls)
    value = statement.value if stands and isinstance(statement, _PLAIN) else None
    if isinstance(value, ast.Call) and _several_of_class(profile, cls):
        cls = ast.unparse(value.func)
    paste = f"with torch.no_grad():{line}\n    {text.strip()}" if stands else ""
    if not stands and len(calls) == 1 and (written := call_in_text(profile, calls[0], where)) is not None:
        text, called = written
        end = called.end_col_offset or 0
        paste = f"{text[:end]}.detach(){text[end:]}{line}"
    return replace(remedy, text=_WITHOUT.format(cls=cls), paste=paste)


def _several_of_class(profile: Profile, cls: str) -> bool:
    """Return whether the step calls several networks of a class, which then does not say which one is meant."""
    flow = flow_of(profile)
    return flow is not None and len({call.path for call in outermost_calls(flow) if call.cls == cls}) > 1


def _handed(profile: Profile, networks: Sequence[NeedlessNetwork]) -> HandedOver | None:
    """Return where what a network made is handed on, of one that other backwards need: else its own line may go without gradients."""
    return None if not networks or any(each.always for each in networks) else handed_over(profile, networks)

"""Where what a network made is handed, with its graph, to a loss of which the network's weights need no gradient.

As a generator's output in its critic's loss: backward runs through the generator, too. The line that hands it on is told by data flow: the
operators in it are gone back through for such losses alone, and are given what others made that are gone back through for other losses.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nsysx.analyses.lines import text_of, texts
from nsysx.events.backward_passes import backward_passes
from nsysx.events.code_lines import CodeLines
from nsysx.events.needless_networks import NeedlessNetwork
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.profile import Profile
from nsysx.events.program_backwards import program_backwards
from nsysx.findings._pieces_in_text import parsed
from nsysx.model import Row

_DETACHES = "aten::detach"
_RETAINS = re.compile(r"\s*,?\s*\bretain_graph\s*=\s*True\b")


class HandOver(NamedTuple):
    """A line that takes what a network made, and the line as it is once that is detached; "" where its text does not tell how."""

    where: Row
    text: str


class HandedOver(NamedTuple):
    """The lines that hand on what a network made, in order, and the line whose backward then has no graph to retain, if there is one."""

    lines: tuple[HandOver, ...]
    freed: HandOver | None


class _PassesThrough(NamedTuple):
    """The operators (rows of the flow) that backwards go back through, those that are ``needless`` in a network, and all ``others``;
    ``asked``: the lines of the needless ones.
    """

    needless: frozenset[int]
    others: frozenset[int]
    asked: Sequence[Row]


def handed_over(profile: Profile, networks: Sequence[NeedlessNetwork]) -> HandedOver | None:
    """Return where what calls of a network made is handed to losses that do not train it; None where the recording does not tell."""
    flow, code = flow_of(profile), profile.code()
    if flow is None or code is None:
        return None
    passes = _passes_of(profile, flow, code, networks)
    stacks = dict(zip(flow.outermost, code.at(flow.thread, flow.start_ns[flow.outermost]).tolist(), strict=True))
    chains = {row: code.own_chain(stack)[::-1] if stack >= 0 else [] for row, stack in stacks.items()}
    wanted = {line for row in passes.others for line in chains.get(row, ())}
    alone = {line for row in passes.needless for line in chains.get(row, ())} - wanted
    taken = _taken(flow, networks, chains, alone)
    if not taken.lines:
        return None
    lines = tuple(
        HandOver(code.where(line), _detached(profile, code, line, given)) for line, given in taken.lines.items()
    )
    return HandedOver(lines, _freed(profile, passes, taken.made))


def _passes_of(
    profile: Profile, flow: OperatorFlow, code: CodeLines, networks: Sequence[NeedlessNetwork]
) -> _PassesThrough:
    every = backward_passes(profile, flow, code)
    numbers = program_backwards(profile).number_at(np.array([each.start_ns for each in every], np.int64)).tolist()
    needless = frozenset[int]().union(*(each.backwards for each in networks))
    rows = [
        frozenset[int]().union(*(each.rows for each, n in zip(every, numbers, strict=True) if (n in needless) is kind))
        for kind in (True, False)
    ]
    asked = [each.where for each, number in zip(every, numbers, strict=True) if number in needless]
    return _PassesThrough(rows[0], rows[1], asked)


class _Given(NamedTuple):
    """What a line is given: the chain of lines in which it was made, outermost first, and which results of each call or line these are."""

    chain: Sequence[int]
    results: set[tuple[int | str, ...]]


class _Taken(NamedTuple):
    """Line -> what it is given of what a network made, and the operators (rows) that make that, those of the network among them."""

    lines: dict[int, _Given]
    made: set[int]


def _taken(
    flow: OperatorFlow, networks: Sequence[NeedlessNetwork], chains: Mapping[int, Sequence[int]], alone: Collection[int]
) -> _Taken:
    """Return which lines, of those gone back through for nothing in the network ``alone``, take what it made from other lines."""
    lines, calls = dict[int, _Given](), [each.call for each in networks]
    made = {row for row in flow.outermost if any(call.first <= row < call.last for call in calls)}
    outermost_of = np.repeat(flow.outermost, np.diff([*flow.outermost, len(flow.names)])).tolist()
    for row in flow.outermost:
        if row in made or flow.names[row] == _DETACHES:
            continue
        given = [
            (number, outermost_of[maker]) for number in flow.made[row] if (maker := flow.row_of.get(number, row)) < row
        ]
        given = [(number, maker) for number, maker in given if maker in made]
        if not given:
            continue
        line = next((line for line in chains[row] if line in alone), -1)
        if line < 0 or all(line in chains[maker] for _, maker in given):
            made.add(row)
            continue
        maker = given[0][1]
        begin = next((call.first for call in calls if call.first <= maker < call.last), -1)
        result = (flow.names[maker], *chains[maker]) if begin < 0 else (maker - begin,)
        lines.setdefault(line, _Given(chains[maker], set())).results.add(result)
    return _Taken(lines, made)


def _detached(profile: Profile, code: CodeLines, line: int, given: _Given) -> str:
    """Return a line with what it is given detached, in its own words; "" where the name of that is not known."""
    file, _, function = code.places.row(line)
    source, where = texts(profile), code.where(line)
    text = text_of(source, where.get("file"), where.get("line")) or ""
    maker = next((each for each in reversed(given.chain) if code.places.row(each)[::2] == (file, function)), -1)
    made = code.where(maker)
    tree, names = parsed(text), _assigned(text_of(source, made.get("file"), made.get("line")) or "")
    if tree is None or not names:
        return ""
    above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    uses = [
        _with_parts(node, above)
        for node in ast.walk(tree)
        if isinstance(node, ast.expr)
        and isinstance(getattr(node, "ctx", None), ast.Load)
        and ast.unparse(node) in names
    ]
    spread = any(isinstance(above.get(use), ast.Starred | ast.keyword) and _is_spread(above[use]) for use in uses)
    whole = {ast.unparse(use) for use in uses}
    if not uses or spread or len(whole) < len(given.results):
        return ""
    for use in sorted(uses, key=lambda each: -(each.end_col_offset or 0)):
        text = f"{text[: use.end_col_offset]}.detach(){text[use.end_col_offset :]}"
    return text if parsed(text) is not None else ""


def _is_spread(node: ast.AST) -> bool:
    return isinstance(node, ast.Starred) or (isinstance(node, ast.keyword) and node.arg is None)


def _assigned(text: str) -> set[str]:
    """Return the names that a line gives what it makes."""
    tree = parsed(text)
    nodes = list(ast.walk(tree)) if tree is not None else []
    return {
        ast.unparse(node)
        for node in nodes
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store)
    }


def _with_parts(node: ast.expr, above: Mapping[ast.AST, ast.AST]) -> ast.expr:
    """Return the largest expression that is a part of what a name stands for: out["image"], out.sample; no method of it."""
    parent = above.get(node)
    while isinstance(parent, ast.Subscript | ast.Attribute) and parent.value is node:
        around = above.get(parent)
        if isinstance(around, ast.Call) and around.func is parent:
            break
        node, parent = parent, around
    return node


def _freed(profile: Profile, passes: _PassesThrough, made: Iterable[int]) -> HandOver | None:
    """Return the line of a backward that need not retain its graph, of which others only go back through ``made``; None without one."""
    where = passes.asked[0] if passes.asked else {}
    text = text_of(texts(profile), where.get("file"), where.get("line")) or ""
    alone = all(each == where for each in passes.asked) and not (passes.needless & passes.others) - set(made)
    if not alone or not _RETAINS.search(text) or "create_graph" in text:
        return None
    text = re.sub(r"\(\s*,\s*", "(", _RETAINS.sub("", text))
    return HandOver(where, text) if parsed(text) is not None else None

"""Passes of autograd over one graph (``events.backward_passes``) that one pass would do, or whose gradients are only asked for their norm.

Gradients add up: those of several losses, one after the other, are those of their sum. A weight of losses that is a ratio of norms of
gradients (as of a reconstruction and of a discriminator) needs those of the last layer alone, and nothing below it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from nsysx.analyses.lines import text_of, texts
from nsysx.events.backward_passes import BackwardPass, backward_passes
from nsysx.events.code_lines import CodeLines
from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.operator_flow import OperatorFlow, is_view
from nsysx.events.operator_names import begins_gradients
from nsysx.events.profile import Profile
from nsysx.findings._case import Fix
from nsysx.findings._flow_work import NeedlessOperators, in_short
from nsysx.findings._own_jacobians import own_blocks
from nsysx.findings._untrained import within_network
from nsysx.findings._work_bounds import FEWEST_NORMS, SAME_PASS_SHARE

_GRAD = re.compile(r"\bgrad\(")
_BACKWARD = re.compile(r"^(?P<loss>.+)\.backward\((?P<given>[^()]*)\)$")
_ADDS_UP = re.compile(r"^aten::(add|sub|neg)_?$")
_NORMS = re.compile(r"^aten::(linalg_vector_norm|norm|_foreach_norm|linalg_norm)$")
_FOR_NORMS = re.compile(r"^aten::(linalg_vector_norm|norm|_foreach_norm|linalg_norm|flatten|reshape|view|cat|stack)$")
_LAYERS = re.compile(r"^aten::(linear|conv[123]d|conv_transpose[123]d|convolution)$")
#: g, = torch.autograd.grad(E[m], pos, retain_graph=True, create_graph=True)
_OF_ONE = re.compile(r"^(?P<begin>.*\bgrad\(\s*\w+)\[\w+\](?:\.sum\(\))?(?P<rest>,.*)$")
_RETAINS = re.compile(r",\s*retain_graph\s*=\s*True")


class RepeatedBackward(NamedTuple):
    """Operators whose gradients are computed more often than needed, and of each the share of that work that stays."""

    needless: NeedlessOperators
    kept: Mapping[int, float]


def repeated_backwards(profile: Profile, flow: OperatorFlow, code: CodeLines) -> Iterator[RepeatedBackward]:
    """Yield the passes that go: those of one line or of several that one pass does, and those for norms of gradients."""
    passes, source = backward_passes(profile, flow, code), texts(profile)
    if len(passes) < 2:
        return
    text = [_text(source, each) for each in passes]
    yield from _for_norms(flow, passes, text)
    blocks = own_blocks(flow, passes, text)
    if blocks is not None:
        yield RepeatedBackward(*blocks)
        return
    for group in _rounds(flow, passes, text):
        yield _summed_first(source, passes, group, text)


def _text(source: Mapping[str, Any], each: BackwardPass) -> str:
    text = text_of(source, each.where["file"], each.where["line"]) if each.where else None
    return (text or "").partition("  #")[0].strip()


def _work_between(flow: OperatorFlow, begin_ns: int, end_ns: int) -> list[int]:
    """Return the outermost operators (rows) between two instants that work on more than single numbers."""
    rows = (row for row in flow.outermost if begin_ns <= flow.start_ns[row] < end_ns)
    big = (row for row in rows if max(map(math.prod, (s for s in sizes_of(flow.size[row]) if s)), default=1) > 1)
    return [row for row in big if not is_view(flow.names[row]) and not begins_gradients(flow.names[row])]


def _rounds(flow: OperatorFlow, passes: Sequence[BackwardPass], text: Sequence[str]) -> Iterator[list[int]]:
    """Yield passes in a row whose gradients are only added up: of one line, again and again, or of several losses."""
    differentiated = frozenset[int]().union(*(each.rows for each in passes))
    group = list[int]()

    def joins(n: int, m: int) -> bool:
        between = _work_between(flow, passes[n].end_ns, passes[m].start_ns)
        if _BACKWARD.match(text[n]) and _BACKWARD.match(text[m]):
            return (
                "create_graph" not in text[n] + text[m]
                and not passes[m].afresh
                and differentiated.issuperset(between)
                and _alike(passes[n], passes[m]) > 0
            )
        same = (
            text[n] == text[m] and _GRAD.search(text[n]) is not None and _alike(passes[n], passes[m]) >= SAME_PASS_SHARE
        )
        return same and bool(between) and all(_ADDS_UP.match(flow.names[row]) for row in between)

    for n, m in pairwise(range(len(passes))):
        if joins(n, m):
            group = [*(group or [n]), m]
        elif group:
            yield group
            group = []
    if group:
        yield group


def _alike(earlier: BackwardPass, later: BackwardPass) -> float:
    """Return which share of the nodes of the smaller of two passes ran in the other one, too."""
    return len(earlier.rows & later.rows) / min(len(earlier.rows), len(later.rows))


def _summed_first(
    source: Mapping[str, Any], passes: Sequence[BackwardPass], group: Sequence[int], text: Sequence[str]
) -> RepeatedBackward:
    several = [passes[n] for n in group]
    rows = frozenset[int]().union(*(each.rows for each in several))
    often = {row: sum(row in each.rows for each in several) for row in rows}
    in_all = {row: sum(row in each.rows for each in passes) for row in rows}  # one of the group's stays, and all others
    kept = {row: 1 - (times - 1) / in_all[row] for row, times in often.items() if times > 1}
    where, fix = several[0].where, Fix.by_name("one-backward")
    lines = list(dict.fromkeys(text[n] for n in group))
    of_round = _OF_ONE.match(lines[0])
    losses = [match["loss"] for line in lines if (match := _BACKWARD.match(line)) is not None]
    paste = fix.paste
    if of_round is not None:
        paste = f"{of_round['begin']}.sum(){_RETAINS.sub('', of_round['rest'])}  # once, in place of the loop"
        behind = text_of(source, where["file"], int(where["line"]) + 1)
        paste += f"\n{behind.strip()}" if isinstance(behind, str) else ""
    elif len(losses) > 1:
        paste = f"({' + '.join(losses)}).backward()  # in place of {len(losses)}"
    title = f"{in_short(where) or 'The step'} runs {len(several)} backwards through one graph"
    why = f"{len(kept)} operators are differentiated up to {max(often.values())} times, and what comes out is only added up."
    return RepeatedBackward(NeedlessOperators(sorted(kept), title, why, fix.but(paste=paste), where), kept)


def _for_norms(flow: OperatorFlow, passes: Sequence[BackwardPass], text: Sequence[str]) -> Iterator[RepeatedBackward]:
    """Yield what is differentiated for norms of gradients alone, below the last layer that has all of them."""
    last = next((n for n, line in enumerate(text) if ".backward(" in line), None)
    asked = [
        n
        for n in range(last or 0)
        if _GRAD.search(text[n]) and "retain_graph" in text[n] and "create_graph" not in text[n]
    ]
    if last is None or not asked:
        return
    end_ns, of_backward = passes[last].start_ns, passes[last].rows
    between = [row for row in _work_between(flow, passes[asked[0]].end_ns, end_ns) if row not in of_backward]
    norms = [row for row in between if _NORMS.match(flow.names[row])]
    given = sum(len([size for size in sizes_of(flow.size[row]) if len(size) > 0]) for row in norms)
    joined = [
        row for row in between if flow.names[row].endswith("::cat") and len(sizes_of(flow.size[row])) >= FEWEST_NORMS
    ]
    if (
        not norms
        or (given < FEWEST_NORMS and not joined)
        or not all(_FOR_NORMS.match(flow.names[row]) for row in between)
    ):
        return
    shared = of_backward.intersection(*(passes[n].rows for n in asked))
    layers = [row for row in shared if _LAYERS.match(flow.names[row])]
    below = {row for row in shared if layers and row < max(layers)}
    if not below:
        return
    kept = {row: 1 / (1 + len(asked)) for row in below}
    inside = [call for call in flow.calls if call.first <= max(layers) < call.last]
    path = min(inside, key=lambda call: call.last - call.first).path if inside else ""
    path = within_network(path, max(inside, key=lambda call: call.last - call.first).path) if inside else ""
    fix, where = Fix.by_name("last-layer-gradients"), passes[asked[0]].where
    paste = fix.paste.replace("decoder.conv_out", path) if path else fix.paste
    title = f"{in_short(where) or 'The step'} differentiates a network {len(asked)} more times for norms of gradients"
    why = f"Of all gradients of {len(asked)} {'passes' if len(asked) > 1 else 'pass'} only norms are read; the backward behind runs again."
    yield RepeatedBackward(NeedlessOperators(sorted(below), title, why, fix.but(paste=paste), where), kept)

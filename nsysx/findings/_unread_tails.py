"""Networks that run on behind the last layer that something reads (``events.unread_tails``): a hidden state, a perceptual loss."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.events.code_lines import CodeLines
from nsysx.events.needless_operators import unread_operators
from nsysx.events.operator_flow import OperatorFlow, flows_of
from nsysx.events.trained_operators import trained_in
from nsysx.events.unread_tails import unread_tails
from nsysx.findings._case import Case, Fix
from nsysx.findings._flow_work import NeedlessOperators, copied, in_short, place_of_operator
from nsysx.findings._unread_results import read_elsewhere
from nsysx.findings._work_bounds import MOST_PASTED_LINES

_ONCE = "  # once, behind loading"
_CALLED = re.compile(r"(?<![\w.])([A-Za-z_][\w.]*)\(")
#: A line that keeps results for later, which no recorded step need read.
_COLLECTS = re.compile(r"\.(append\w*|extend|update|put)\(")


def tails_of_networks(case: Case, flow: OperatorFlow, code: CodeLines) -> Iterator[NeedlessOperators]:
    """Yield what networks compute behind the last of their layers whose result something takes, by network."""
    if not case.program.trains or not trained_in(case.profile, flow).any():
        return
    tails = list(unread_tails(flow, _unread(case, flow)))
    if not tails:
        return
    # What the step behind may read is known of a step that is no last one: rows are the same where operators are.
    followed = (
        flow
        if flow.precedes
        else next(
            (each for each in flows_of(case.profile, flow.operators) if each.precedes and each.names == flow.names),
            None,
        )
    )
    unread = frozenset(_unread(case, followed) if followed is not None else ())
    for tail in tails:
        if not unread.issuperset(tail.rows):
            continue
        where = place_of_operator(code, flow, np.array([tail.calls[0].start_ns]))
        text = text_of(texts(case.profile), str(where.get("file")), int(where.get("line") or 0)) or ""
        if _COLLECTS.search(text):
            continue
        path, cls = tail.calls[0].path, tail.calls[0].cls
        last = _within(tail.last, path)
        title = (
            f"{in_short(where) or 'The step'} runs {cls or path} to its end, and nothing reads what comes behind {last}"
        )
        why = (
            f"No operator, gradient, copy to the host or later step takes what {units.several(len(tail.behind), 'module')} behind it make, "
            f"in {'the call' if len(tail.calls) == 1 else f'any of {len(tail.calls)} calls'} of a step."
        )
        paste = paste_of(_name(text, path), last, [_within(each, path) for each in tail.behind])
        yield NeedlessOperators(tail.rows, title, why, Fix.by_name("cut-behind-feature", paste=paste), where)


def _unread(case: Case, flow: OperatorFlow) -> list[int]:
    """Return the outermost operators of whose results nothing of their step, nor of the next one if it was recorded, takes anything."""
    to_host = copied(case.profile, flow, "DtoH", many=True)
    elsewhere, trained = read_elsewhere(case.profile, flow), trained_in(case.profile, flow)
    return unread_operators(flow, trained.tolist(), to_host, elsewhere, unfollowed=True)[0]


def _within(path: str, outer: str) -> str:
    return path.removeprefix(f"{outer}.") if outer else path


def _name(text: str, path: str) -> str:
    """Return the name by which a line calls a module."""
    names = _CALLED.findall(text)
    last = path.rpartition(".")[2]
    return next((name for name in names if last and name.rpartition(".")[2] == last), last or "model")


def paste_of(name: str, last: str, behind: Sequence[str]) -> str | None:
    """Return the lines that cut a network: lists of layers behind the last one, and what runs behind these; None for no such parts."""
    parts, lines = last.split("."), list[str]()
    index = next((n for n, part in enumerate(parts) if part.isdecimal() and n), None)
    layers = ".".join(parts[:index]) if index is not None else ""
    if index is not None and any(_number(each, layers) > int(parts[index]) for each in behind):
        lines.append(f"{name}.{layers} = {name}.{layers}[:{int(parts[index]) + 1}]{_ONCE}")
    outer = list[str]()
    for each in behind:
        is_cut = layers and each.startswith(f"{layers}.")
        if not is_cut and not any(each.startswith(f"{before}.") for before in outer):
            outer.append(each)
    lines += [
        f"{name}.{each} = torch.nn.Identity()" for each in outer if not any(p.isdecimal() for p in each.split("."))
    ]
    if lines and not lines[0].endswith(_ONCE):
        lines[0] += _ONCE
    return "\n".join(lines[:MOST_PASTED_LINES]) or None


def _number(path: str, layers: str) -> int:
    """Return which layer of a list a module is, or is in; -1 for others."""
    number = path.removeprefix(f"{layers}.").partition(".")[0]
    return int(number) if path.startswith(f"{layers}.") and number.isdecimal() else -1

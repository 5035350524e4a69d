"""An activation that is made to require a gradient below all that is trained: backward runs on through frozen layers, for nobody.

Recipes for checkpoints and adapters do so (``enable_input_require_grads()``, ``x.requires_grad_(True)``). Where nothing is trained below
the upper layers, all of the backward below these is for a gradient that nothing reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import DeviceActivity, StepPart
from nsysx.events.leaf_backwards import LeafBackwards, leaf_backwards
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.operator_of_calls import operator_of_calls
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._finding_bounds import LEFT_BELOW_SHARE, MUCH_UNREAD_SHARE
from nsysx.findings._flow_work import place_of_operator
from nsysx.findings._gone_backwards import edits_of_gone
from nsysx.findings._once import Takes
from nsysx.findings._untrained import within_network
from nsysx.findings.nsx112_fusion import outermost
from nsysx.model import Row

_REQUIRES = re.compile(r"\.requires_grad_\((True)?\)|\.requires_grad\s*=\s*True")
_HOOK = "cut = lambda part, given, made: made.detach()\nmodel.get_submodule(at).register_forward_hook(cut)"
_WITHOUT_REENTRANT = (
    "Checkpoint without reentrant backwards, which alone need an input that requires a gradient, and let no activation below what is "
    "trained require one: leave enable_input_require_grads() out"
)
_NOT_REENTRANT = (
    'model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})\n'
    "# or checkpoint(block, x, use_reentrant=False); and no model.enable_input_require_grads()"
)
#: Files of installed packages, which the program cannot change.
_INSTALLED = re.compile(r"(?:site|dist)-packages/")
_IN_PLACE = re.compile(r"^([\w.]+)\.(?:requires_grad_\((?:True)?\)|requires_grad\s*=\s*True)$")


def seen(case: Case) -> str:
    """Return which backward leads to nothing that is trained, "" where there is none or it takes little."""
    needless, flow = leaf_backwards(case.profile), flow_of(case.profile)
    ns = case.per_step(int(_work(case)["ns"].sum()))
    if needless is None or flow is None or not _sure(case, needless) or not case.notable(ns, MUCH_UNREAD_SHARE):
        return ""
    part, made = _lowest_part(case, needless, flow), _module_of_leaf(case, needless, flow)
    size = " x ".join(map(str, needless.size))
    behind = f" below {part}" if part else ""
    owner = f" of {made}" if made else ""
    return (
        f"an activation ({size}{owner}) was made to require a gradient, which no operator reads: {units.duration(ns)} {case.per} of "
        f"backward{behind} leads to it alone, behind the last of {units.several(needless.gradients, 'gradient')} of parameters"
    )


def costs(case: Case, _: RecordedSettings) -> str:
    """Return the same; settings are not asked."""
    return seen(case)


def _sure(case: Case, needless: LeafBackwards) -> bool:
    """Return whether what gets the gradient is no parameter for sure: one of a single row may have that size, and is counted then."""
    if needless.size[0] > 1:
        return True
    settings = settings_of(case.profile)
    counts = [row.get("parameters") for row in (settings.rows("optimizers") if settings else None) or ()]
    return bool(counts) and needless.gradients >= sum(n for n in counts if isinstance(n, int))


def _work(case: Case) -> pl.DataFrame:
    """Return the GPU work of that backward (op, call, ns), without what ranks send beside it."""
    needless = leaf_backwards(case.profile)
    columns = ("op", "call")
    if needless is None:
        return case.timed_ops(case.ops["op"] < 0, *columns)
    made = pl.Series(np.append(needless.work, np.False_)[case.ops["call"].fill_null(-1).to_numpy()])
    return case.timed_ops(made & (case.ops["cls"] != DeviceActivity.COMM.value), *columns)


def without(case: Case, _: RecordedSettings | None) -> Saving:
    """Return what it is worth if this backward is neither done nor launched."""
    return case.worth_or_freed(*edits_of_gone(case, _work(case)), cause=(StepPart.WORK, StepPart.HOST, StepPart.LAUNCH))


def taken(case: Case) -> Takes:
    """Return this work."""
    return Takes(ops_of(_work(case)))


def place(case: Case) -> Row:
    """Return the line that makes the activation require a gradient, else the one that makes the activation."""
    needless, flow, code = leaf_backwards(case.profile), flow_of(case.profile), case.profile.code()
    if needless is None or flow is None or code is None:
        return {}
    line = next(_requiring(case), None)
    return line[0] if line else place_of_operator(code, flow, flow.start_ns[[needless.leaf]])


def worded(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and advice with the parts of the network."""
    needless, flow = leaf_backwards(case.profile), flow_of(case.profile)
    if needless is None or flow is None:
        return title, remedy
    part, made = _lowest_part(case, needless, flow), _module_of_leaf(case, needless, flow)
    if needless.reentrant:
        return "Checkpoints compute again, and backward runs, below all that is trained", replace(
            remedy, text=_WITHOUT_REENTRANT, paste=_NOT_REENTRANT
        )
    if part:
        title = f"Backward runs on below {part}, where nothing is trained"
    line = next(_requiring(case), None)
    if line is not None:
        return title, replace(remedy, paste=_detached(line[1]))
    if not made:
        return title, remedy
    paste = f'at = "{made}"  # before the network is wrapped\n{_HOOK}'
    return title, replace(remedy, text=f"{remedy.text}; or detach it behind the hook that does", paste=paste)


def _detached(text: str) -> str:
    """Return a line that makes a tensor require a gradient as one that makes it require none."""
    alone = _IN_PLACE.match(text)
    return f"{alone[1]} = {alone[1]}.detach()" if alone else _REQUIRES.sub(".detach()", text)


def _requiring(case: Case) -> Iterator[tuple[Row, str]]:
    """Yield the program's own lines of the steps that make a tensor require a gradient, with their texts."""
    code = case.profile.code()
    source = texts(case.profile)
    for number in range(0 if code is None else code.places.height):
        file, line = code.places.row(number)[:2] if code is not None else ("", 0)
        text = text_of(source, file, line) or ""
        if _REQUIRES.search(text) and not _INSTALLED.search(file or ""):
            yield {"file": file, "line": line}, text


def _lowest_part(case: Case, needless: LeafBackwards, flow: OperatorFlow) -> str:
    """Return the path of the lowest part of the network that is trained: the outermost call around the trained operator that comes first
    which holds hardly anything of what backward does for nothing; "" where that is none.
    """
    of_calls = operator_of_calls(case.profile)
    if of_calls is None or needless.last < 0:
        return ""
    rows = of_calls.backward[np.flatnonzero(needless.work)]
    for call in flow.calls:  # outer ones first
        if call.path and call.first <= needless.last < call.last:
            inside = (rows >= call.first) & (rows < call.last)
            if inside.mean() <= LEFT_BELOW_SHARE and not (rows >= call.last).any():
                return _in_network(case, call.path)
    return ""


def _module_of_leaf(case: Case, needless: LeafBackwards, flow: OperatorFlow) -> str:
    """Return the path of the innermost module whose last operator makes the activation, "" where that is none."""
    end = int(np.searchsorted(flow.start_ns, flow.end_ns[needless.leaf]))
    paths = (call.path for call in reversed(flow.calls) if call.first <= needless.leaf and call.last == end)
    return _in_network(case, next(paths, ""))


def _in_network(case: Case, path: str) -> str:
    """Return the path of a module within its network."""
    networks = outermost(case.profile)
    return within_network(path, networks[path][0]) if path in networks else path

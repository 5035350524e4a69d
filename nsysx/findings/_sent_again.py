"""What is sent once for each layer that reads it, although it stays the same: what goes with all but the first time."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from nsysx import units
from nsysx.advice import Alternative
from nsysx.analyses import lines
from nsysx.analyses.helpers.module_names import folded
from nsysx.catalogue import DeviceActivity
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.events.sent_again import SentTensor, SpanOfThread, tensors_sent_again
from nsysx.findings._case import Case, Saving
from nsysx.findings._exposed_transfer import transfer_of_ops_ns
from nsysx.findings._finding_bounds import MOST_NAMED_LAYERS
from nsysx.findings._once import Takes
from nsysx.findings._parting_lines import parting_line
from nsysx.findings._rank_rows import rank_rows
from nsysx.frames.intervals import I64
from nsysx.model import Row
from nsysx.replay import peers
from nsysx.replay.edits import Edit, RemoveCalls, RemoveHost, RemoveOps, RemoveWaits
from nsysx.replay.engine import replay_of


class _SentInVain(NamedTuple):
    """What goes of the steady steps if each tensor is sent once: API ``calls`` and the GPU ``ops`` that they launch.

    ``entered``: so many of the first calls of each time that the host code in front of them is as long as what goes of it in front of the
    first call and behind the last one of all times. ``every``: all GPU work of sending these tensors.
    """

    calls: frozenset[int]
    entered: frozenset[int]
    ops: frozenset[int]
    every: frozenset[int]


def _gone(profile: Profile) -> _SentInVain:
    tensors = tensors_sent_again(profile)
    calls, repeats = profile.attributed.api_calls, profile.ranges.repeats
    thread, start, end = (calls[c].to_numpy() for c in ("thread", "start_ns", "end_ns"))
    rows = {span: _rows_in(thread, start, span) for span in _spans(tensors, 0)}
    again = [(span, rows[span]) for span in _spans(tensors, 1) if len(rows[span])]
    entered, owed = list[int](), 0
    for span, (first, *_, last) in ((span, these if len(these) > 1 else (*these, *these)) for span, these in again):
        before = int(end[first - 1]) if first and thread[first - 1] == span.thread else span.begin_ns
        gap = int(start[first]) - before
        owed += max(int(start[first]) - max(span.begin_ns, before), 0) + max(span.end_ns - int(end[last]), 0)
        if owed >= gap:
            owed -= gap
            entered.append(first)
    like = np.arange(calls.height) if repeats is None else repeats.like
    steady, ops = profile.steady_calls["call"].to_numpy(), profile.steady_ops["op", "call"].drop_nulls()
    of_op = like[ops["call"].to_numpy()]

    def launched(chosen: Iterable[I64]) -> frozenset[int]:
        return frozenset(ops["op"].to_numpy()[np.isin(of_op, np.concatenate([*chosen, _NONE]))].tolist())

    going = np.concatenate([*(these for _, these in again), _NONE])
    return _SentInVain(
        frozenset(steady[np.isin(like[steady], going)].tolist()),
        frozenset(steady[np.isin(like[steady], entered)].tolist()),
        launched([going]),
        launched(rows.values()),
    )


_NONE = np.empty(0, np.int64)


def _spans(tensors: Sequence[SentTensor], first: int) -> list[SpanOfThread]:
    """Return when what is sent again runs, from this time on that it is sent."""
    return [span for tensor in tensors for sent in tensor.members[first:] for span in sent.spans]


def _rows_in(thread: I64, start_ns: I64, span: SpanOfThread) -> I64:
    """Return the API calls (sorted by thread and time) that begin in a span."""
    a, b = np.searchsorted(thread, [span.thread, span.thread + 1])
    first, last = a + np.searchsorted(start_ns[a:b], [span.begin_ns, span.end_ns])
    return np.arange(first, last)


def _edits(profile: Profile) -> list[Edit]:
    gone = profile.once(_gone)
    calls: list[Edit] = [RemoveWaits(gone.calls), RemoveCalls(gone.calls, between=True), RemoveHost(gone.entered)]
    return [*calls, RemoveOps(gone.ops)]


def _other_ranks(profile: Profile) -> list[Profile]:
    return list(peers.others(profile))


def _pace(case: Case) -> int | None:
    """Return the process of the rank that waits least for others, None where ranks cannot be compared."""
    waits = {
        r["process"]: (r["exposed_wait_ns"] or 0) / max(r["steps"], 1)
        for r in rank_rows(case)
        if r["exposed_wait_ns"] is not None
    }
    return min(waits, key=lambda process: waits[process], default=None)


def sent_once(case: Case, settings: RecordedSettings | None = None) -> Saving:
    """Return what it saves if each tensor is sent once: the collectives and copies that go, with the host code of these.

    What the rank saves that sets the pace, the job does. Where another rank waits less, this one's collectives hold what it waits for that.
    """
    pace = _pace(case)
    if pace is None:
        return case.worth(*_edits(case.profile), bound=True)
    if pace == case.process:
        return case.worth(*_edits(case.profile))
    other = next((p for p in case.profile.once(_other_ranks) if p.process == pace), None)
    if other is not None and other.once(_gone).calls:
        return replace(case, profile=other, replay=replay_of(other)).worth(*_edits(other))
    worth = case.worth(*_edits(case.profile))
    if worth.likely_ns is None:
        return worth
    transfer = transfer_of_ops_ns(case, case.profile.once(_gone).ops)
    return replace(worth, likely_ns=min(worth.likely_ns, transfer))


def _tensors(case: Case) -> list[SentTensor]:
    """Return the tensors of all X-ray steps; none of a compiled program, of which it is not seen what reads what."""
    return [] if case.program.compiled else tensors_sent_again(case.profile)


def again_sent(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that one tensor is sent several times, where that costs anything."""
    tensors = _tensors(case)
    if not tensors or not case.notable(sent_once(case).likely_ns or 0):
        return ""
    tensor, gone = max(tensors, key=lambda t: (math.prod(t.size), len(t.members))), case.profile.once(_gone)
    comm = case.ops.filter(case.ops["cls"] == DeviceActivity.COMM.value)["op"]
    whole, less = (round(int(comm.is_in(list(ops)).sum()) / case.steps) for ops in (gone.every, gone.ops))
    back = any(len(sent.spans) > 1 for tensor in tensors for sent in tensor.members)
    often, size = max(len(t.members) for t in tensors), " x ".join(map(str, tensor.size))
    return (
        f"{_readers(tensors)} each {_KINDS[_kind(tensor)].each} one tensor ({size} on each rank), up to {often} "
        f"times in a step, and nothing changes it in between{_BACK if back else ''}: {units.several(whole, 'collective')} of a step, and "
        f"{units.count(whole - less)} would do"
    )


#: What a function of autograd does in backward.
_BACK = "; in backward its gradient is sent back once for each, and added up then"


def _readers(tensors: Sequence[SentTensor]) -> str:
    """Return the layers that send: "layers wq, wk and wv of layers.*.attn, w1 and w3 of layers.*.ffn"."""
    named = []
    for parent, children in _siblings(tensors).items():
        listed = children[:MOST_NAMED_LAYERS]
        named.append(f"{', '.join(listed[:-1])} and {listed[-1]}{f' of {parent}' if parent else ''}")
    return f"layers {', '.join(named[:MOST_NAMED_LAYERS])}" if named else "several readers"


def _siblings(tensors: Sequence[SentTensor]) -> dict[str, list[str]]:
    """Return of each module the parts of it that send one tensor, in their order; paths with their numbers folded."""
    siblings: dict[str, list[str]] = {}
    for tensor in tensors:
        paths = list(dict.fromkeys(sent.module for sent in tensor.members))
        split = [path.rpartition(".") for path in paths]
        if len(paths) > 1 and len({parent for parent, _, _ in split}) == 1:
            siblings.setdefault(folded(split[0][0]), [name for _, _, name in split])
    return siblings


class _CollectiveWords(NamedTuple):
    """A kind of collective: what each reader does, what is done, and lines that do it once for all, also of those that are functional."""

    each: str
    done: str
    once: str
    functional: str


_KINDS = {
    "gather": _CollectiveWords(
        "gather",
        "gathered",
        "whole = torch.empty(world * x.shape[0], *x.shape[1:], dtype=x.dtype, device=x.device)\n"
        "dist.all_gather_into_tensor(whole, x)  # once; all that read it are given whole",
        "whole = funcol.all_gather_tensor_autograd(x, 0, group)  # once; all that read it are given whole",
    ),
    "scatter": _CollectiveWords(
        "reduce and scatter",
        "reduced",
        "part = torch.empty(x.shape[0] // world, *x.shape[1:], dtype=x.dtype, device=x.device)\n"
        "dist.reduce_scatter_tensor(part, x)  # once; all that read it are given part",
        'part = funcol.reduce_scatter_tensor_autograd(x, "sum", 0, group)  # once; all that read it are given part',
    ),
    "to_all": _CollectiveWords(
        "exchange",
        "exchanged",
        "came = torch.empty_like(x)\ndist.all_to_all_single(came, x)  # once; all that read it are given came",
        "came = funcol.all_to_all_single_autograd(x, None, None, group)  # once; all that read it are given came",
    ),
    "reduce": _CollectiveWords(
        "reduce",
        "reduced",
        "total = x.clone()\ndist.all_reduce(total)  # once; all that read it are given total",
        'total = funcol.all_reduce(x, "sum", group)  # once; all that read it are given total',
    ),
}


def _kind(tensor: SentTensor) -> str:
    name = tensor.name.replace("_", "")
    return next((kind for kind in ("gather", "scatter", "toall") if kind in name), "reduce").replace("toall", "to_all")


_GATHERED_BY_PLAN = re.compile(r"\bColwiseParallel\(.*\binput_layouts\s*=\s*[(\[]*\s*Shard\b")
#: The function with which DTensor makes other parts of a tensor.
_OF_DTENSOR = "Redistribute"


def in_words_of_function(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy for the collective that is made, and with the function that makes it, where the capture names it."""
    tensors = _tensors(case)
    if not tensors:
        return title, remedy
    kind = _KINDS[_kind(tensors[0])]
    function = tensors[0].members[0].function
    title, remedy = (
        title.replace("gathered", kind.done),
        replace(remedy, text=remedy.text.replace("Gather", kind.each.capitalize())),
    )
    siblings, split, gathers = _siblings(tensors), _split_in(tensors[0]), kind is _KINDS["gather"]
    if function == _OF_DTENSOR and gathers and siblings and all(siblings) and split is not None:
        text = f"{remedy.text}: PrepareModuleInput of the block that holds these layers, and no input_layouts in theirs"
        return title, replace(remedy, text=text, paste=_prepared(case, siblings, split))
    if function == _OF_DTENSOR:
        placements = "[Replicate()]" if gathers else "placements"
        paste = f"x = x.redistribute(placements={placements})  # once, before all layers that are given x"
    elif function.startswith("_"):
        paste = f"whole = {kind.each.partition(' ')[0]}(x)  # once, as each of them does now; all that read it are given whole"
    elif function:
        paste = f"x = {function}.apply(x)  # once, before all that read x\nreturn F.linear(x, self.weight)  # in them, without {function}"
    else:
        paste = kind.functional if tensors[0].name.startswith("_c10d_functional") else kind.once
    return title, replace(remedy, paste=paste)


def _split_in(tensor: SentTensor) -> int | None:
    """Return the dimension in which a DTensor is split over the ranks, None where that is not known."""
    apart = [d for d, (part, whole) in enumerate(zip(tensor.size, tensor.whole, strict=False)) if part != whole]
    return apart[0] if len(apart) == 1 and len(tensor.size) == len(tensor.whole) else None


#: The last name of a path, with its number where it is of a list.
_NUMBERED = re.compile(r"[^.]*(\.\*)*$")


def _prepared(case: Case, siblings: Mapping[str, Sequence[str]], split: int) -> str:
    """Return the plan of the layers whose input is gathered once for each block of them."""
    source, paste = lines.texts(case.profile), list[str]()
    texts = [str(text) for of_file in source.values() for text in of_file.values()]
    for parent, children in siblings.items():
        block = (_NUMBERED.search(parent) or ["*"])[0]
        inputs = max((_inputs_of(block, text) for text in texts), default=1)
        others = ", None" * (inputs - 1) if inputs > 1 else ","
        paste += [
            f'plan["{block}"] = PrepareModuleInput(input_layouts=(Shard({split}){others}),',
            f"    desired_input_layouts=(Replicate(){others}))",
            " = ".join([*(f'plan["{block}.{child}"]' for child in children), "ColwiseParallel()"]),
        ]
    return "\n".join((*paste, "parallelize_module(layer, mesh, plan)  # plan: that of each block"))


def _inputs_of(block: str, text: str) -> int:
    """Return how many tensors, or other positional inputs, a line of the program gives a module; 1 where it does not call it."""
    try:
        tree = ast.parse(text.strip().rstrip(":"))
    except SyntaxError:
        return 1
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
    return max((len(call.args) for call in calls if getattr(call.func, "attr", "") == block), default=1)


def of_again(case: Case) -> Takes:
    """Return all that is done to send these tensors."""
    return Takes(case.profile.once(_gone).every if _tensors(case) else frozenset())


def _place_in_plan(case: Case) -> Row:
    """Return the first line of a plan that has the input of such a layer gathered for it alone, empty where its text is not known."""
    tensors = _tensors(case)
    if not tensors or tensors[0].members[0].function != _OF_DTENSOR:
        return {}
    layers = {name for children in _siblings(tensors).values() for name in children}
    for noted in (lines.texts_of_ranks(case.profile), lines.texts(case.profile)):
        for file, text_of_line in noted.items():
            for line, text in text_of_line.items():
                named = any(re.search(rf"[\"'.]{re.escape(name)}[\"']", str(text)) for name in layers)
                if named and str(line).isdigit() and _GATHERED_BY_PLAN.search(str(text)):
                    return {"file": file, "line": int(line)}
    return {}


def place_of_again(case: Case) -> Row:
    """Return the line of the plan that asks for it, else that at which most of the readers of one tensor part."""
    if planned := _place_in_plan(case):
        return planned
    return parting_line(case, [[(t.thread, sent.start_ns) for sent in t.members] for t in _tensors(case)])

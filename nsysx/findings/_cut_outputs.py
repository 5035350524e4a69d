"""Outputs of split layers that all ranks gather, and of which each takes its own part for the next split layer.

In between every rank computes the same for the parts of all: attention over all heads, activations, norms of single heads. That, forward
and backward, takes as many times as long as there are ranks, and needs no part of another rank.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.analyses import lines, phases
from nsysx.events.operator_flow import OperatorFlow, flow_of, is_view
from nsysx.events.outputs_cut_again import CutOutput
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving, ops_of, way
from nsysx.findings._exposed_transfer import transfer_of_ops_ns
from nsysx.findings._layer_messages import gathers_outputs, line_of_layers, of_layers
from nsysx.findings._layer_options import other_layers, paste_of
from nsysx.findings._once import Takes
from nsysx.findings._repeated_work import RepeatedOperators, RepeatedWork, own_part, repeated_work, with_more
from nsysx.judging import rank_verdict
from nsysx.model import Row
from nsysx.replay.edits import RemoveOps

#: A line of a plan that has the output of a layer gathered.
_GATHERED_BY_PLAN = re.compile(r"\boutput_layouts\s*=\s*[(\[]*\s*Replicate\b")
#: A view by sizes, each without brackets of its own.
_VIEW = re.compile(r"\.(view|reshape)\(([^()]*)\)")
_GATHERS_BY_HAND = re.compile(r"gather", re.IGNORECASE)


def _repeated(case: Case) -> RepeatedWork | None:
    """Return the work between the gathers and the cuts, None where it is not seen."""
    outputs = of_layers(case).outputs
    return repeated_work(case, [RepeatedOperators(each.between, each.joins, each.ranks) for each in outputs])


def _needless_ns(case: Case) -> int:
    """Return what of the work in between goes (ns a step)."""
    repeated = _repeated(case)
    return 0 if repeated is None else case.per_step(repeated.needless_ns)


def _attends(case: Case) -> bool:
    return any(output.attends for output in of_layers(case).outputs)


def cut_again(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that ranks gather what they have of a layer, and each then takes its own part of what is made of it."""
    cut = of_layers(case).cut
    transfer, needless = transfer_of_ops_ns(case, cut), _needless_ns(case)
    if not cut or not case.notable(transfer + needless) or (gathers_outputs(case) and not case.notable(needless)):
        return ""
    several = f"{units.several(round(len(cut) / case.steps), 'message')} in each step gather{'s' if len(cut) <= case.steps else ''}"
    repeated = _repeated(case)
    if repeated is None or not case.notable(needless):
        return (
            f"{several} what the ranks have of a layer, and of it each rank takes as much as it had ({units.duration(transfer)} of "
            "transfer that nothing hides): it can go on with its own part"
        )
    ns = case.per_step(int(repeated.between["ns"].sum()))
    what = "computes the attention of all heads" if _attends(case) else "computes the same of all parts"
    return (
        f"{several} what the ranks have of a layer, or the gradient of that ({units.duration(transfer)} of transfer that nothing hides); "
        f"each of {repeated.ranks} ranks then {what}, {units.duration(ns)} with its gradients, and takes its own part of it for the next "
        "layer"
    )


def not_gathered(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return what it saves if each rank keeps its own part: its part of the work in between, and the gathers' exposed transfer.

    Where the host limits the step, what its calls for the gathers take of it goes, and at most all that goes on the GPU, once the host is
    faster, too.
    """
    cut, repeated = of_layers(case).cut, _repeated(case)
    transfer, needless = transfer_of_ops_ns(case, cut), _needless_ns(case)
    at_most = case.bound(transfer + needless, "the gathers are gone, and what goes back through them")
    if repeated is None or not case.notable(needless):
        return at_most
    between, joins = ops_of(repeated.between), RemoveOps(ops_of(repeated.joins))
    least, of_own_part = own_part(between, repeated.ranks)
    why = (
        f"each rank keeps 1 of {repeated.ranks} parts of what all of them compute, {units.duration(needless)} less on the GPU, and "
        f"{units.duration(transfer)} of exposed transfer goes"
    )
    worth = case.worth_between([least], [of_own_part, joins], [of_own_part, joins, RemoveOps(cut)], why)
    if worth.likely_ns is None:
        return replace(at_most, confidence=why)
    most, more = max(worth.likely_ns, worth.most_ns or 0), transfer
    held = (worth.likely_ns + transfer) * 2 < (at_most.likely_ns or 0)
    if held or _ranks_wait_for_hosts(case):
        host = _host_of_gathers_ns(case)
        # Where this rank's own host limits its step, the replay has not taken these calls from it; where it waits for other ranks', all
        # that they are late for goes, and this is in it.
        more = host if held else max(transfer, host - worth.likely_ns)
        most = max(most, at_most.likely_ns or 0, worth.likely_ns + more)
        why = f"{why}; the host limits the step, and its calls for the gathers take {units.duration(host)}: more goes once it is faster"
    return replace(with_more(worth, more, most), confidence=why)


def _ranks_wait_for_hosts(case: Case) -> bool:
    """Return whether the ranks wait for each other's host code: what goes of that shortens the step of all."""
    return case.ranks is not None and rank_verdict.wait_for_hosts(case.ranks.rows or ())


def _host_of_gathers_ns(case: Case) -> int:
    """Return how long the host is at work for the gathers and the cuts (ns a step): their share of the network's forward in an X-ray step,
    of what the forward takes the host in every step; as much again where gradients go back through them: to a gather belongs a cut then.
    """
    flow = flow_of(case.profile)
    whole = 0 if flow is None else max((call.end_ns - call.start_ns for call in flow.calls), default=0)
    if flow is None or not whole:
        return 0
    spans = {(output.gather_ns, *_span_of_gather(flow, output)) for output in of_layers(case).outputs}
    cuts = {(output.by, *_span_of_cut(flow, output)) for output in of_layers(case).outputs}
    share = min(sum(end - start for _, start, end in (*spans, *cuts)) / whole, 1.0)
    forward_ns = sum(row["cpu_ns"] for row in case.typed_rows(phases.ROWS) if row["name"] == "forward")
    back = of_layers(case).cut & set(case.ops.filter(case.ops["phase"].cast(pl.String) == "backward")["op"].to_list())
    passes = 2 if back else 1
    return round(case.per_step(forward_ns) * share * passes * case.step_ns / max(case.recorded_ns, 1))


def _span_of_gather(flow: OperatorFlow, output: CutOutput) -> tuple[int, int]:
    """Return from when to when the host is at work for a gather: behind the operator before it, until the parts are put together."""
    before = [int(flow.end_ns[row]) for row, _ in flow.outermost_spans if flow.end_ns[row] <= output.gather_ns]
    start = max(before, default=output.gather_ns)
    return start, max((int(flow.end_ns[row]) for row in output.joins), default=start)


def _span_of_cut(flow: OperatorFlow, output: CutOutput) -> tuple[int, int]:
    """Return from when to when the host is at work for a cut: behind what made all parts, until the own part is there."""
    if not is_view(flow.names[output.by]) and not flow.names[output.by].endswith("clone"):
        return 0, 0  # a product reads the part itself
    end = int(flow.end_ns[output.by])
    return max((int(flow.end_ns[row]) for row in output.between if row < output.by), default=end), end


def of_cut(case: Case) -> Takes:
    """Return these gathers, and the work in between."""
    cut, repeated = of_layers(case).cut, _repeated(case)
    return Takes(cut if repeated is None else cut | ops_of(repeated.between) | ops_of(repeated.joins))


# ---- words and places ----------------------------------------------------------------------------------------------------


def _layers(flow: OperatorFlow, output: CutOutput) -> tuple[str, str]:
    """Return the paths of the layers that gather, and that take their part; "" where none is known."""

    def path(at_ns: int) -> str:
        around = [call.path for call in flow.calls if call.start_ns <= at_ns < call.end_ns]
        return around[-1] if around else ""

    return path(output.gather_ns), path(int(flow.start_ns[output.by]))


def _short(path: str) -> str:
    """Return the end of a path that a plan names: without the number of the block and what is before that."""
    return re.sub(r"^.*\.\d+\.", "", path)


def _place_in_plan(case: Case) -> Row:
    """Return the line of a plan that has the output of such a layer gathered, empty where its text is not known."""
    flow = flow_of(case.profile)
    if flow is None:
        return {}
    names = {_layers(flow, output)[0].rpartition(".")[2] for output in of_layers(case).outputs} - {""}
    for noted in (lines.texts_of_ranks(case.profile), lines.texts(case.profile)):
        for file, text_of_line in noted.items():
            for line, text in text_of_line.items():
                named = any(re.search(rf"[\"'.]{re.escape(name)}[\"']", str(text)) for name in names)
                if named and str(line).isdigit() and _GATHERED_BY_PLAN.search(str(text)):
                    return {"file": file, "line": int(line)}
    return {}


def _line_of_gathers(case: Case) -> Row:
    """Return the line of layers that sends most of these gathers, else the line of a function that does."""
    code, cut = case.profile.code(), of_layers(case).cut
    if code is None or not cut:
        return {}
    theirs = case.ops.filter(case.ops["op"].is_in(list(cut)))["op"].to_numpy()
    return line_of_layers(case, cut) or code.where_most(code.places_of(code.op[theirs]))


def _other_layers(case: Case) -> list[Row]:
    """Return the statements that make the layers so that none gathers and none cuts, where options of the program's own layers say that."""
    flow = flow_of(case.profile)
    outputs = [] if flow is None else [each for each in of_layers(case).outputs if each.cut_ns]
    thread = -1 if flow is None else flow.thread
    gathering, cutting = (
        other_layers(case, [(thread, at_ns) for at_ns in instants])
        for instants in ([each.gather_ns for each in outputs], [each.cut_ns for each in outputs])
    )
    # One of both alone makes shapes that do not fit.
    return sorted((*gathering, *cutting), key=lambda row: (row["file"], row["line"])) if gathering and cutting else []


def place_of_cut(case: Case) -> Row:
    """Return the line of the plan that asks for the gathers, or that makes the layers so; else that of the layer that gathers most."""
    made = [{"file": each["file"], "line": each["line"]} for each in _other_layers(case)]
    return _place_in_plan(case) or next(iter(made), {}) or _line_of_gathers(case)


def _by_hand(case: Case) -> bool:
    """Return whether a line of the program itself gathers."""
    code, flow = case.profile.code(), flow_of(case.profile)
    if code is None or flow is None:
        return False
    at_ns = np.array([output.gather_ns for output in of_layers(case).outputs], np.int64)
    rows = {row for row in code.places_of(code.at(flow.thread, at_ns)).tolist() if row >= 0}
    source, places = lines.texts(case.profile), (code.places.row(row) for row in rows)
    return any(_GATHERS_BY_HAND.search(lines.text_of(source, file, line) or "") for file, line, _ in places)


def in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy where attention lies in between, with the names of the layers and what their weights need."""
    outputs, flow = of_layers(case).outputs, flow_of(case.profile)
    own_layers = _other_layers(case)
    if not outputs or flow is None or not _attends(case):
        return title, replace(remedy, paste=paste_of(own_layers)) if own_layers else remedy
    told = way("own-heads")
    if own_layers or _by_hand(case):
        told = replace(told, text=_OF_OWN_LAYERS)
    layers = [tuple(_short(path) for path in _layers(flow, output)) for output in outputs]
    second = layers[0][1]
    first = list(dict.fromkeys(gathers for gathers, cuts in layers if gathers and cuts == second))
    scattered = outputs[0].scattered
    if scattered >= 0:
        told = replace(told, text=told.text.replace("the all-reduce", "the reduce-scatter"))
    if own_layers:
        told = replace(told, paste="\n".join((paste_of(own_layers), *_views(case, flow, outputs))))
    elif _by_hand(case):
        stays = "its reduce-scatter stays" if scattered >= 0 else "its all-reduce stays"
        told = replace(told, paste=_OWN_LAYERS.replace("its all-reduce stays", stays))
    elif first and second and second not in first:
        entries = "".join(f'"{name}": ColwiseParallel(), ' for name in first)
        behind = f"output_layouts=Shard({scattered})" if scattered >= 0 else ""
        planned = f'plan |= {{{entries}"{second}": RowwiseParallel({behind})}}  # its other entries stay'
        told = replace(told, paste="\n".join((planned, *_views(case, flow, outputs))))
    if any(output.packed for output in outputs):
        told = replace(told, text=f"{told.text}. {_PACKED}")
    return "Every rank computes the attention of all heads", told


def _views(case: Case, flow: OperatorFlow, outputs: Sequence[CutOutput]) -> list[str]:
    """Return the lines that make heads of the layers' outputs, with the heads of a rank: as the program has them, where that is known."""
    code, source, views = case.profile.code(), lines.texts(case.profile), dict[str, None]()
    for row, dimension, dimensions in sorted({view for output in outputs for view in output.views}):
        if code is None:
            break
        place_row = int(code.places_of(code.at(flow.thread, flow.start_ns[row : row + 1]))[0])
        text = None if place_row < 0 else lines.text_of(source, *code.places.row(place_row)[:2])
        views.update(dict.fromkeys(filter(None, [heads_of_rank(text or "", dimension, dimensions, outputs[0].ranks)])))
    return list(views) or ["x.view(b, t, -1, head_dim)  # -1: the heads of this rank, not the number of all"]


def heads_of_rank(text: str, dimension: int, dimensions: int, ranks: int) -> str:
    """Return a line whose view, of so many dimensions, takes the heads that are there instead of a number of all of them, "" where no such
    view stands in it.
    """
    views = ((view, [size.strip() for size in view[2].split(",")]) for view in _VIEW.finditer(text))
    view, sizes = next(((view, sizes) for view, sizes in views if len(sizes) == dimensions), (None, []))
    if view is None or sizes[dimension] == "-1":
        return ""
    others = "-1" in sizes
    sizes[dimension] = f"{sizes[dimension]} // {ranks}" if others else "-1"
    line = f"{text[: view.start(2)]}{', '.join(sizes)}{text[view.end(2) :]}"
    return f"{line}  # the heads of this rank" if "#" not in line else line


_OF_OWN_LAYERS = (
    "Let each rank attend over its own heads: the layer before attention gathers no output, the one behind it cuts no input, and views "
    "take the heads that are there; only the all-reduce behind the second layer stays"
)
_OWN_LAYERS = (
    "y = F.linear(x, self.weight, self.bias)  # first layer: no gather, y has the heads of this rank\n"
    "q, k, v = (each.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for each in y.chunk(3, -1))  # -1: the heads that are there\n"
    "out = F.linear(attended, self.weight)  # second layer: no cut before it; its all-reduce stays"
)
_PACKED = (
    "As the rows of the first layer's weight lie, a rank's part is no whole heads of query, key and value: order them head by head "
    "(rank, query / key / value, head) first, or make three layers of it"
)

"""Cells of torch (``nn.LSTMCell`` and its like) that a loop calls for each position of a sequence that is there before the loop.

A layer of torch takes the place of the loop: cuDNN multiplies all positions of the input at once, and all gradients of weights at once;
only the products with the state stay one after the other, without host code between. The recorded flow says which cells the loop calls and
that nothing else touches their state, its text that no input is made of an output.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses import lines
from nsysx.catalogue import Call
from nsysx.events.code_lines import CodeLines
from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.needs_of_calls import state_is_touched
from nsysx.events.operator_flow import ModuleCall, OperatorFlow
from nsysx.findings._case import Case, Fix, Rule, Saving, calls_of, ops_of
from nsysx.findings._cell_pastes import CellLoop, loop_of_cells
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._found import Found
from nsysx.findings._job_bounds import OVER_SEQUENCE_SHARES
from nsysx.findings._line_remedies import quoted
from nsysx.findings._loop_texts import depth_of
from nsysx.findings._once import Takes
from nsysx.model import Finding
from nsysx.replay.edits import Graph, RemoveHost, RemoveOps, ScaleOps

#: What is said about such a loop.
AT_ONCE = Fix.by_name("sequence-at-once")
LAYERS = {"LSTMCell": "nn.LSTM", "GRUCell": "nn.GRU", "RNNCell": "nn.RNN"}
#: Kernels of backward that a layer needs as well, besides products: those of the gates.
_OF_GATES = r"cell_backward|tanh_backward|threshold"
_PRODUCTS = r"gemm|gemv|cutlass|nvjet|splitK"


class CellsInSequence(NamedTuple):
    """A loop over time: its text, its cells' class, paths and calls a step, the line of a cell and all lines (rows of places of code)."""

    text: CellLoop
    cls: str
    paths: tuple[str, ...]
    calls: int
    row: int
    rows: frozenset[int]


def loop_of(case: Case, code: CodeLines, flow: OperatorFlow, line_row: int) -> CellsInSequence | None:
    """Return the loop over time in which a line calls cells of torch and nothing else, None where it does more or it is not known."""
    file, line, function = code.places.row(line_row)
    there = code.passing(code.at(flow.thread, flow.start_ns), frozenset({line_row}))
    begun = [call for call in flow.calls if call.last > call.first and there[call.first : call.last].all()]
    classes = {call.cls for call in begun}
    if len(classes) != 1 or not classes <= LAYERS.keys():
        return None
    cls = next(iter(classes))
    texts = _texts_of_function(case, str(file), int(line), str(function))
    # The line of one cell may stand beside that of the next one: all cells of the function's class may be meant.
    parents = {call.path.rpartition(".")[0] for call in begun}
    near = [call for call in flow.calls if call.cls == cls and call.path.rpartition(".")[0] in parents]
    loop = loop_of_cells(texts, int(line), _groups(near), cls, str(function))
    if loop is None or any(
        state_is_touched(flow, [c for c in near if c.path == path]) for path in {c.path for c in near}
    ):
        return None
    if len({_width(flow, call) for call in near}) != 1:  # a layer has one width for all
        return None
    inside = (
        (pl.col("file") == file) & (pl.col("function") == function) & pl.col("line").is_between(loop.first, loop.last)
    )
    rows = code.places.with_row_index("row").filter(inside)["row"].to_list()
    return CellsInSequence(
        loop, cls, tuple(dict.fromkeys(call.path for call in near)), len(near), line_row, frozenset(rows)
    )


def _groups(calls: list[ModuleCall]) -> Mapping[str, int]:
    """Return what holds cells as the text of their class names it, with their number; 0 for a cell of its own name."""
    groups = dict[str, int]()
    for path in dict.fromkeys(call.path for call in calls):
        parent, _, name = path.rpartition(".")
        group = parent.rpartition(".")[2] if name.isdigit() else name
        count = int(name) + 1 if name.isdigit() else 0
        groups[f"self.{group}"] = max(groups.get(f"self.{group}", 0), count)
    return groups


def _width(flow: OperatorFlow, call: ModuleCall) -> int:
    """Return how many numbers a row of a cell's state has."""
    sizes = sizes_of(flow.size[call.first])
    return sizes[1][-1] if len(sizes) > 1 and sizes[1] else -1


def _texts_of_function(case: Case, file: str, line: int, function: str) -> dict[int, str]:
    """Return the lines of a function that ran, by their numbers: those around a line that are known to be of no other function."""
    source = lines.texts(case.profile).get(file) or {}
    texts = {int(number): str(text) for number, text in source.items() if number.isdigit() and str(text).strip()}
    other = [
        int(r["line"] or 0) for r in case.typed_rows(lines.ROWS) if r["file"] == file and r["function"] != function
    ]
    first = max((number for number in other if number < line), default=0)
    last = min((number for number in other if number > line), default=max(texts, default=0) + 1)
    depth = depth_of(texts.get(line, ""))
    ends = [number for number, text in texts.items() if text.lstrip().startswith("return") and depth_of(text) < depth]
    first = max((number for number in ends if first < number < line), default=first)
    last = min((number + 1 for number in ends if line < number < last), default=last)
    return {number: text for number, text in texts.items() if first < number < last}


def finding_of_cells(case: Case, rule: Rule, code: CodeLines, loop: CellsInSequence) -> list[Finding]:
    """Return the finding about such a loop if a layer in its place saves a share of the step that is reported."""
    within = case.calls.filter(pl.Series(code.passing(code.call[case.calls["call"].to_numpy()], loop.rows)))
    ended = case.profile.attributed.gpu_ops["call"].gather(case.idle["op"].fill_null(0))
    calls = calls_of(within)
    before = (ended.is_in(list(calls)) & case.idle["op"].is_not_null()).fill_null(value=False)
    cost = min(case.per_step(float(case.idle["real_ns"].filter(before).sum())), case.taken_by(rule.cause))
    stays, goes = _kernels(case, within)
    worth = _worth(case, calls, stays, goes)
    if not (case.notable(cost) and worth.likely_ns is not None and case.notable(worth.likely_ns, REPORTED_SHARE)):
        return []
    file, line, function = code.places.row(loop.row)
    text = _text(case, file, line)
    count = units.count(loop.calls)
    there, quote = f"{PurePath(str(file)).name}:{line}", f" `{quoted(text)}`" if text else ""
    title = (
        f"{there}{quote} calls nn.{loop.cls} {count} times {case.per}, for each position of a sequence; the GPU idles "
        f"{units.duration(cost)} {case.per} before their launches"
    )
    made = within.filter(within["kind"].is_in(Call.LAUNCHES)).height / case.steps
    detail = (
        f"All inputs are there before the loop in {function}: {LAYERS[loop.cls]} takes its place. The rounds make "
        f"{units.count(round(made))} launches {case.per}, forward and backward."
    )
    takes = Takes(ops=goes, idle=before.to_numpy().astype(np.float64))
    where = {"file": file, "line": line}
    return [
        Found(rule, title, detail, worth=worth, cost_ns=cost, where=where, fix=_fix(loop), takes=takes).as_finding(case)
    ]


def _text(case: Case, file: str, line: int) -> str:
    return str((lines.texts(case.profile).get(file) or {}).get(str(line)) or "").partition("  #")[0]


def _fix(loop: CellsInSequence) -> Fix:
    """Return the advice to run the layer, with the code in the program's own names where that is known."""
    layers = len(loop.text.rounds.cells)
    which = f"{LAYERS[loop.cls]} with {layers} layers" if layers > 1 else LAYERS[loop.cls]
    text = (
        f"Run {which} over the whole sequence in one call in place of {units.count(loop.calls)} calls of nn.{loop.cls} a step: all "
        "inputs are there before the loop"
    )
    condition = (
        f"Parameters get other names: copy weight_ih of {loop.paths[0]} in a checkpoint to weight_ih_l0 of the layer, and so on. "
        "Weights that are drawn behind it differ for the same seed."
    )
    return AT_ONCE.but(text=text, paste=loop.text.paste, condition=condition)


def _kernels(case: Case, within: pl.DataFrame) -> tuple[frozenset[int], frozenset[int]]:
    """Return the GPU ops of a loop that a layer's are in place of (products, gates), and the others: sums and copies of each position."""
    back = pl.col("phase").cast(pl.String).eq("backward").fill_null(value=False)
    ops = case.ops.filter(pl.col("call").is_in(list(calls_of(within)))).select("op", "name", "call")
    ops = ops.join(within.select("call", back.alias("back")), on="call", how="left", maintain_order="left")
    needed = pl.col("name").cast(pl.String).str.contains(f"(?i){_PRODUCTS}|{_OF_GATES}") | ~pl.col("back")
    return ops_of(ops.filter(needed)), ops_of(ops.filter(~needed))


def _worth(case: Case, calls: frozenset[int], stays: frozenset[int], goes: frozenset[int]) -> Saving:
    """Return what the layer saves: host code before the ``calls`` and the kernels that ``goes``; of the others a share ``stays``.

    At the least each kernel that stays is launched by itself, by code of cuDNN, and takes as long as it does.
    """
    fewest, likely, most = OVER_SEQUENCE_SHARES
    return case.worth_between(
        [RemoveHost(calls, leading=True), RemoveOps(goes), ScaleOps(stays, most, less_work=True)],
        [Graph(calls), RemoveOps(goes), ScaleOps(stays, likely, less_work=True)],
        [Graph(calls), RemoveOps(goes), ScaleOps(stays, fewest, less_work=True)],
        "between products as long as those of the cells, each launched by itself, and those of a whole sequence at once",
    )

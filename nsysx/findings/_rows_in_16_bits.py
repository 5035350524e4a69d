"""Rows that ranks exchange as float32 although they have 16 bits in all work: what moves them besides, and where to cast them."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.advice import Alternative
from nsysx.analyses import lines
from nsysx.catalogue import DeviceActivity
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.operator_of_calls import operator_of_calls
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.events.widened_messages import WidenedMessage
from nsysx.findings._case import Case
from nsysx.findings._pieces_in_text import parsed
from nsysx.model import Row


class MovedWork(NamedTuple):
    """GPU work of a step (ns) with float32 rows beside their exchange: that converts them, moves them, and then reads what came."""

    converts_ns: int = 0
    moves_ns: int = 0
    reads_ns: int = 0


def moved_work(case: Case, sent: Sequence[WidenedMessage]) -> MovedWork:
    """Return the work with these rows in a step, nothing where it is not known.

    The X-ray step's forward tells it of each operator; gradients go back the same way.
    """
    flow, of_calls = flow_of(case.profile), operator_of_calls(case.profile)
    if flow is None or of_calls is None:
        return MovedWork()
    ops = case.profile.attributed.gpu_ops.filter(
        (pl.col("process") == case.process) & (pl.col("device") == case.device),
        pl.col("cls") != DeviceActivity.COMM.value,
        pl.col("thread") == flow.thread,
        pl.col("call_start_ns").is_between(int(flow.start_ns[0]), int(flow.end_ns.max())),
    )
    row = of_calls.forward[ops["call"].to_numpy()]
    ns = (ops["end_ns"] - ops["start_ns"]).to_numpy()

    def time_of(rows: set[int]) -> int:
        return int(ns[np.isin(row, list(rows))].sum())

    gone = set[int]().union(*(each.gone for each in sent))
    moves, reads = (
        _inside(flow, set[int]().union(*(getattr(each, name) for each in sent))) - gone for name in ("moves", "reads")
    )
    passes = 2 if (case.ops["phase"].cast(pl.String) == "backward").fill_null(value=False).any() else 1
    return MovedWork(passes * time_of(gone), passes * time_of(moves), passes * time_of(reads - moves))


def _inside(flow: OperatorFlow, outermost: set[int]) -> set[int]:
    """Return the rows of some outermost operators and of those in them."""
    return {row for first, end in flow.outermost_spans if first in outermost for row in range(first, end)}


class CastLine(NamedTuple):
    """The line at which rows can be cast before they are exchanged: its place, and how it then reads ("" where its text does not tell)."""

    where: Row
    paste: str


def cast_line(case: Case, first: WidenedMessage, settings: RecordedSettings | None) -> CastLine:
    """Return the line that moves the rows first on their way to a message, or converts them to float32; an empty place for none."""
    flow, code = flow_of(case.profile), case.profile.code()
    if flow is None or code is None:
        return CastLine({}, "")
    start = first.start_ns if first.first < 0 else int(flow.start_ns[first.first])
    start = start if first.behind else int(flow.start_ns[first.conversion])
    stacks, source = code.around(int(code.at(flow.thread, np.array([start]))[0])), lines.texts(case.profile)
    networks = {f"{call.cls}.forward" for call in flow.calls if call.start_ns <= start < call.end_ns}
    functions, inside = code.places["function"].to_list(), list[tuple[Row, str]]()
    for stack in stacks:
        where = code.where_of(stack)
        text = lines.text_of(source, str(where["file"]), int(where["line"])) if where else None
        inside.append((where, (text or "").partition("  #")[0].strip()))
        if functions[int(code.place[stack])] in networks:
            break
    # A function of autograd is given numbers of one type: they are cast where it is called.
    called = [each for each in inside if _CALLS_FUNCTION.search(each[1])]
    if not first.behind and inside and inside[0] in called and not _CONVERSION.search(inside[0][1]):
        return _without_cast_inputs(case, *inside[0])
    where, text = (called or inside or [({}, "")])[-1 if called else 0]
    return CastLine(where, cast_in(text, _type_of(settings)) if first.behind else without_conversion(text))


def _without_cast_inputs(case: Case, where: Row, text: str) -> CastLine:
    """Return the decorator without its ``cast_inputs``, by which a function of autograd converts what it is given in a line, ``text``, that
    converts nothing itself; else that line.
    """
    name = (_CALLS_FUNCTION.search(text) or [""])[0].removesuffix(".apply(")
    decorators = [
        ({"file": file, "line": int(line)}, str(each).strip())
        for noted in (lines.texts_of_ranks(case.profile), lines.texts(case.profile))
        for file, of_file in noted.items()
        for line, each in of_file.items()
        if str(line).isdigit() and _CASTS_INPUTS.search(str(each))
    ]
    theirs = [each for number, each in enumerate(decorators) if each not in decorators[:number]]
    tree = parsed(theirs[0][1].lstrip("@")) if len(theirs) == 1 else None
    call = tree.body[0].value if tree is not None and isinstance(tree.body[0], ast.Expr) else None
    why = f"  # of {name or 'the function'}.forward: an exchange does no arithmetic"
    if not isinstance(call, ast.Call):
        return CastLine(where, f"@custom_fwd(device_type='cuda'){why}, and needs no cast_inputs")
    call.keywords = [each for each in call.keywords if each.arg != "cast_inputs"]
    return CastLine(theirs[0][0], f"@{ast.unparse(call)}{why}")


def in_its_words(
    remedy: Alternative, line: CastLine, settings: RecordedSettings | None, *, behind: bool
) -> Alternative:
    """Return the remedy for exchanged rows, in the names of the program where its line tells them."""
    kind = _type_of(settings)
    general = f"rows = rows.to({kind})  # before they are sorted and sent" if behind else ""
    return replace(remedy, paste=line.paste or general or remedy.paste.replace(_USUAL, kind))


_CALLS_FUNCTION = re.compile(r"\w*\.apply\(")
_CASTS_INPUTS = re.compile(r"^\s*@.*\bcast_inputs\s*=")
_USUAL = "torch.bfloat16"
#: Methods and functions that pick rows, and those that exchange them: which argument of a function of torch is what they pick, or send.
_PICKS = ("index_select", "gather", "take_along_dim", "repeat_interleave", "permute")
_EXCHANGES = {"all_to_all_single": 1}
_CONVERSION = re.compile(r"\.(float\(\)|type_as\([\w.]+\)|to\((dtype=)?torch\.float32\))")


def _type_of(settings: RecordedSettings | None) -> str:
    """Return the type of 16 bits that the program's autocast computes in."""
    kind = settings.autocast("forward") if settings is not None else None
    return f"torch.{kind}" if kind in ("bfloat16", "float16") else _USUAL


def without_conversion(text: str) -> str:
    """Return a line without its one conversion to float32, "" where it has none or several."""
    return (
        f"{_CONVERSION.sub('', text)}  # converted behind the exchange" if len(_CONVERSION.findall(text)) == 1 else ""
    )


def cast_in(text: str, kind: str) -> str:
    """Return a line in which what it moves is cast first; "" where the text does not tell what that is."""
    tree = parsed(text)
    nodes = list(ast.walk(tree)) if tree is not None else []
    for node in nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name = node.func.attr
        if name in _EXCHANGES:
            return _before(text, node.args, _EXCHANGES[name], kind)
        of_module = isinstance(node.func.value, ast.Name) and node.func.value.id in ("torch", "F")
        if name == "apply" or (name in _PICKS and of_module):
            return _with_cast(text, node.args[0], kind) if node.args else ""
        if name in _PICKS:
            return _with_cast(text, node.func.value, kind)
    picked = [node for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)]
    whole = tree is not None and isinstance(tree.body[0], ast.Assign) and picked[:1] == [tree.body[0].value]
    return _with_cast(text, picked[0].value, kind) if whole else ""


def _with_cast(text: str, node: ast.expr, kind: str) -> str:
    """Return a line with an expression cast; "" where it is none that a method can be called of as it is."""
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        return ""
    begin, end = node.col_offset, node.end_col_offset or 0
    return f"{text[:end]}.to({kind}){text[end:]}" if begin < end <= len(text) else ""


def _before(text: str, given: Sequence[ast.expr], sent: int, kind: str) -> str:
    """Return a line that casts what a collective is given to send, before what it receives is made."""
    node = given[sent] if len(given) > sent else None
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):  # x.contiguous()
        node = node.func.value
    if not isinstance(node, ast.Name) or not isinstance(given[0], ast.Name):
        return ""
    return f"{node.id} = {node.id}.to({kind})  # before {given[0].id} is made, which has its type\n{text}"

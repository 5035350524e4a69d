"""GPU work and lines of the operators of an X-ray step, for rules about what these make of what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import PurePath
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.events.code_lines import CodeLines
from nsysx.events.operator_flow import OperatorFlow, flow_of, is_view
from nsysx.events.operator_of_calls import OperatorOfCalls, operator_of_calls
from nsysx.events.profile import Profile
from nsysx.findings._case import Case, Fix
from nsysx.findings._finding_bounds import NUMBER_COPY_BYTES
from nsysx.frames.intervals import I64
from nsysx.frames.statistics import F64
from nsysx.model import Row


class NeedlessOperators(NamedTuple):
    """Outermost operators (rows of a flow) that one place of the program need not run, in words behind that place, why, and what to do."""

    rows: Sequence[int]
    title: str
    why: str
    fix: Fix
    where: Row


def work_of_operators(
    case: Case, flow: OperatorFlow, of_calls: OperatorOfCalls | None = None, *, gradients: bool = True
) -> pl.DataFrame:
    """Return the GPU ops of the steady steps that operators or their gradients launch: op, ns, row (of the outermost operator).

    ``of_calls``: of the flow, if that is another one than `flow_of` returns. ``gradients``: of these, too.
    """
    of_calls = of_calls or operator_of_calls(case.profile)
    if of_calls is None:
        return pl.DataFrame(schema={"op": pl.Int64, "ns": pl.Int64, "row": pl.Int64})
    row = np.append(of_calls.within(flow, gradients=gradients), -1)[case.ops["call"].fill_null(-1).to_numpy()]
    ops = case.ops.select("op", ns=pl.col("end_ns") - pl.col("start_ns")).with_columns(row=pl.Series(row))
    return ops.filter(ops["row"] >= 0)


def work_with_gradients(case: Case, flow: OperatorFlow) -> pl.DataFrame:
    """Return the GPU ops that operators launch: op, ns, row (of the outermost operator), backward (its gradient does)."""
    of_calls = operator_of_calls(case.profile)
    work = work_of_operators(case, flow)
    if of_calls is None:
        return work.with_columns(backward=pl.lit(value=False))
    itself = np.append(of_calls.forward >= 0, False)[case.ops["call"].fill_null(-1).to_numpy()]
    kinds = case.ops.select("op").with_columns(backward=pl.Series(~itself))
    return work.join(kinds, on="op", how="left", maintain_order="left")


def launching_operators(case: Case, flow: OperatorFlow, rows: Sequence[int], of_calls: OperatorOfCalls) -> I64:
    """Return of each of ``case.calls`` the operator among these (rows) that makes it, itself or through its gradient; -1 for none."""
    around, call = _around(flow, rows), case.calls["call"].to_numpy()
    outer: I64 = np.where(of_calls.forward[call] < 0, around[of_calls.backward[call]], around[of_calls.forward[call]])
    return outer


def _around(flow: OperatorFlow, rows: Sequence[int]) -> I64:
    """Return of each row of the flow the one of these that it lies in, -1 for none, and -1 behind the last."""
    around = np.full(len(flow.names) + 1, -1)
    for row in rows:
        around[row : int(np.searchsorted(flow.start_ns, flow.end_ns[row]))] = row
    around[-1] = -1
    return around


def host_code_shared(
    case: Case, flow: OperatorFlow, rows: Sequence[int], of_calls: OperatorOfCalls, calls: frozenset[int]
) -> tuple[frozenset[int], float]:
    """Return those of the calls of operators (rows) that come right behind a call of something else, and how much before them is theirs.

    What runs between two calls of which the first is another's belongs to it up to where the operator begins: the share of the time behind
    that, in the X-ray step, of their launches in forward; 1 where there are none.
    """
    api = case.profile.attributed.api_calls
    start, end, thread = (api[column].to_numpy() for column in ("start_ns", "end_ns", "thread"))
    before = np.arange(len(start)) - 1  # calls are numbered by thread and time
    before[np.append(True, thread[1:] != thread[:-1])] = -1
    gone = np.zeros(len(start) + 1, np.bool_)
    gone[list(calls)] = True
    shared = frozenset(call for call in calls if not gone[before[call]])
    row = _around(flow, rows)[of_calls.forward]
    made = (
        (row >= 0) & (thread == flow.thread) & (start >= flow.start_ns[0]) & (start < flow.end_ns.max()) & (before >= 0)
    )
    first = np.flatnonzero(made)
    first = first[row[before[first]] < 0]
    free = end[before[first]]
    whole = float((start[first] - free).clip(0).sum())
    theirs = float((start[first] - np.maximum(flow.start_ns[row[first]], free)).clip(0).sum())
    return shared, theirs / whole if whole else 1.0


def time_of_operators(work: pl.DataFrame) -> dict[int, int]:
    """Return row -> time on the GPU (ns, all steps) of what outermost operators launch; ``work``: of `work_of_operators`."""
    return dict(work.group_by("row").agg(pl.col("ns").sum()).filter(pl.col("ns") > 0).iter_rows())


def left_of_new(ns: I64, new_ns: F64, least_ns: float) -> float:
    """Return what is left of GPU ops (ns each) if they do what is new alone: no op is shorter than ``least_ns``, or than it was."""
    return float(np.maximum(new_ns, np.minimum(ns, least_ns)).sum())


def place_of_operator(code: CodeLines, flow: OperatorFlow, start_ns: I64) -> Row:
    """Return file and line of the program that is at work on the flow's thread at an instant; empty where that is not known."""
    return code.where_of(int(code.at(flow.thread, start_ns)[0]))


def place_of_group(
    code: CodeLines, flow: OperatorFlow, rows: Sequence[int], launching: Collection[int] | None = None
) -> Row:
    """Return file and line of the program below which most of some outermost operators (rows) are made, and no other that computes.

    Of nested lines it is the outer one: the call that can be made once. Empty where no line is known. ``launching``: the operators (rows)
    that launch kernels, or in which one does; without it all but views compute.
    """
    stacks = code.at(flow.thread, flow.start_ns[flow.outermost])
    theirs = np.isin(flow.outermost, rows)
    if launching is None:
        computes = np.array([not is_view(flow.names[row]) for row in flow.outermost], np.bool_)
    else:
        computes = (
            np.bincount(np.searchsorted(flow.outermost, sorted(launching), side="right"), minlength=len(stacks) + 1)[1:]
            > 0
        )
    changing = {each for stack in np.unique(stacks[computes & ~theirs]).tolist() for each in code.around(stack)}
    most = Counter(each for stack in stacks[theirs].tolist() for each in code.around(stack) if each not in changing)
    if not most:
        return place_of_operator(code, flow, flow.start_ns[[rows[0]]])
    stack = max(most, key=lambda each: (most[each], -len(code.chain(each))))
    return code.where_of(stack)


def place_of_batch(profile: Profile) -> Row:
    """Return the line that launches the last work between a step's optimizer and the first network of the next, which makes its batch;
    the line that calls the network where nothing is launched there; empty where neither is known.
    """
    flow, code = flow_of(profile), profile.code()
    if flow is None or code is None or not flow.calls:
        return {}
    called_ns = min(call.start_ns for call in flow.calls)
    before = profile.ranges.ranges.filter(
        (pl.col("process") == profile.process)
        & (pl.col("thread") == flow.thread)
        & (pl.col("end_ns") <= called_ns)
        & pl.col("own")
        & (pl.col("kind") == "phase")
        & (pl.col("name").cast(pl.String) != "data")
    )["end_ns"].max()
    if not isinstance(before, int):
        return {}
    launched = profile.attributed.gpu_ops["call_start_ns"].filter(
        (profile.attributed.gpu_ops["process"] == profile.process)
        & profile.attributed.gpu_ops["call_start_ns"]
        .is_between(before, called_ns, closed="left")
        .fill_null(value=False)
    )
    last = place_of_operator(code, flow, np.array([launched.max()])) if len(launched) else {}
    return last or place_of_operator(code, flow, np.array([called_ns]))


def copied(profile: Profile, flow: OperatorFlow, kind: str, *, many: bool = False) -> list[bool]:
    """Return whether each operator copies something of a kind ("HtoD" or "DtoH"); ``many``: more than a number."""
    ops, calls = profile.attributed.gpu_ops, profile.attributed.api_calls
    chosen = (ops["op_kind"] == "memcpy") & (ops["name"] == kind)
    if many:
        chosen &= (ops["bytes"] > NUMBER_COPY_BYTES).fill_null(value=True)
    copies = ops["call"].filter(chosen).drop_nulls().to_numpy()
    copies = copies[calls["thread"].to_numpy()[copies] == flow.thread]
    when = np.sort(calls["start_ns"].to_numpy()[copies])
    inside = np.searchsorted(when, flow.end_ns) > np.searchsorted(when, flow.start_ns)
    return [bool(each) for each in inside]


def in_short(where: Row) -> str:
    """Return a place as text: "train.py:12", "" for none."""
    return f"{PurePath(str(where['file'])).name}:{where['line']}" if where else ""

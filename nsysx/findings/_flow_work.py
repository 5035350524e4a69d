"""GPU work and lines of the operators of an X-ray step, for rules about what these make of what."""

from __future__ import annotations

from pathlib import PurePath

import numpy as np
import polars as pl

from nsysx.events.code_lines import CodeLines
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.operator_of_calls import operator_of_calls
from nsysx.findings._case import Case
from nsysx.model import Row


def work_of_operators(case: Case, flow: OperatorFlow) -> pl.DataFrame:
    """Return the GPU ops of the steady steps that operators or their gradients launch: op, ns, row (of the outermost operator)."""
    of_calls = operator_of_calls(case.profile)
    if of_calls is None:
        return pl.DataFrame(schema={"op": pl.Int64, "ns": pl.Int64, "row": pl.Int64})
    row = np.append(of_calls.within(flow), -1)[case.ops["call"].fill_null(-1).to_numpy()]
    ops = case.ops.select("op", ns=pl.col("end_ns") - pl.col("start_ns")).with_columns(row=pl.Series(row))
    return ops.filter(pl.col("row") >= 0)


def place_of_operator(code: CodeLines, flow: OperatorFlow, row: int) -> Row:
    """Return file and line of the program that runs an operator; empty where that is not known."""
    place = int(code.places_of(code.at(flow.thread, flow.start_ns[[row]]))[0])
    file, line, _ = code.places.row(place) if place >= 0 else (None, None, None)
    return {"file": file, "line": line} if file is not None and line is not None else {}


def in_short(place: Row) -> str:
    """Return a place as text: "train.py:12", "" for none."""
    return f"{PurePath(str(place['file'])).name}:{place['line']}" if place else ""

"""Normalizations by constants that a network applies in passes of their own (frozen batch norm), behind convolutions that could do it.

Each call makes a factor and a bias for each channel anew, of tensors that never change, then multiplies by the one and adds the other: two
passes over the activation, and one in backward. Folded into the convolution in front of it, none of them is left.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import numpy as np
import polars as pl

from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.operator_flow import OperatorFlow, is_view
from nsysx.events.operator_of_calls import operator_of_calls
from nsysx.events.result_readers import ResultReaders
from nsysx.findings._case import Case

_TIMES, _ADDS = "aten::mul", "aten::add"
_CONVOLUTION = re.compile(r"^aten::_?(conv[123]d|convolution)$")


def applied_rows(flow: OperatorFlow, constants: Collection[int], cls: str) -> list[int]:
    """Return the outermost operators (rows) that apply the constants (rows) which the calls of a class make, if that is all they do.

    Each call multiplies what a convolution made by one of them, and adds another one; [] where any call does something else.
    """
    readers, made, rows = ResultReaders(flow), {flow.number[row] for row in constants}, list[int]()
    for call in (each for each in flow.calls if each.cls == cls):
        rest = [
            row
            for row in flow.outermost_of(call.first, call.last)
            if row not in constants and not is_view(flow.names[row])
        ]
        if [flow.names[row] for row in rest] != [_TIMES, _ADDS]:
            return []
        times, adds = rest
        scaled = [number for number in flow.made[times][:2] if readers.base_of(number)[0] not in made]
        added = [number for number in flow.made[adds][:2] if readers.base_of(number)[0] not in made]
        if len(scaled) != 1 or added != [flow.number[times]] or len(sizes_of(flow.size[times])[0]) < 3:
            return []
        before = flow.row_of.get(readers.base_of(scaled[0])[0])
        if before is None or not _CONVOLUTION.match(flow.names[before]):
            return []
        rows += rest
    return rows


def calls_of_rows(case: Case, flow: OperatorFlow, rows: Collection[int]) -> pl.DataFrame:
    """Return the rows of ``case.calls`` that operators of the flow (outermost rows) make, themselves or by their gradients."""
    of_calls = operator_of_calls(case.profile)
    if of_calls is None or not rows:
        return case.calls.clear()
    within = of_calls.within(flow)[case.calls["call"].to_numpy()]
    return case.calls.filter(pl.Series(np.isin(within, list(rows)), dtype=pl.Boolean))

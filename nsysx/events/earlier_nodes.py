"""Nodes of autograd that an X-ray step runs for the forward of the step before it, which was not recorded: what they are the gradients of.

Where a step ends before its backward (its mark lies behind the forward), the nodes in it were made before its operators. Autograd numbers
nodes one by one, so that two steps that run the same operators have the same numbers up to the length of a step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import polars as pl

from nsysx.events.event_bounds import LIKE_NODES_SHARE
from nsysx.events.operator_flow import OperatorFlow

_NODE = re.compile(r"Backward\d*$")


def numbers_in_flow(nodes: pl.DataFrame, flow: OperatorFlow) -> Mapping[int, int]:
    """Return number of a node of the step before -> the number that its like has in the flow; empty where none correspond.

    ``nodes``: name and number of the nodes that the report holds.
    """
    names = dict[int, set[str]]()
    for name, number in zip(flow.names, flow.sequence, strict=True):
        if number >= 0:
            names.setdefault(number, set()).add(_plain(name.removeprefix("aten::")))
    rows = nodes.select(pl.col("name").cast(pl.String), "number").unique("number").sort("number")
    if not names or any(number in names for number in rows["number"].to_list()):
        return {}  # the flow's own nodes were recorded
    first = min(names)
    before = {number: name for name, number in rows.iter_rows() if first - len(names) <= number < first}
    if not before:
        return {}
    later = max(names) - max(before)
    like = sum(
        any(other.startswith(made) or made.startswith(other) for other in names.get(number + later, ()))
        for number, name in before.items()
        if (made := _plain(_NODE.sub("", name)))
    )
    if like < LIKE_NODES_SHARE * len(before):
        return {}
    return {number: number + later for number in before if number + later in names}


def _plain(name: str) -> str:
    """Return a name without the marks that torch spells it with: "linalginvex" for linalg_inv_ex and for LinalgInvEx."""
    return name.replace("_", "").lower()

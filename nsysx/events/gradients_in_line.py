"""Gradients of a split layer's input that a node of its own reduces over the ranks, behind the product of the weight's gradient.

A layer's node makes both gradients, one product each. A function before the layer whose backward reduces begins when both are there, and
what comes behind waits for it; the product of the weight's gradient needs nothing of the message, and could run beside it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.events.code_lines import are_nodes
from nsysx.events.flow_messages import place_of_sent
from nsysx.events.message_calls import with_messages
from nsysx.events.operator_flow import ID, MADE, outermost_rows, results_in
from nsysx.events.profile import Profile

_REDUCES = re.compile(
    r"^(c10d::(allreduce_|_reduce_scatter_base_)|_c10d_functional::(all_reduce_?|reduce_scatter_tensor))$"
)
_OPERATORS = r"^(aten|c10d|_c10d_functional)::"
_PRODUCTS = re.compile(r"^aten::(mm|addmm|bmm|baddbmm|matmul)$")
_HANDS_ON = re.compile(
    r"^aten::(_?(unsafe_)?view(_as)?|reshape(_as)?|_reshape_alias|(un)?flatten|(un)?squeeze|[tT]|transpose|alias|detach|to|_to_copy|contiguous|"
    r"clone)$"
)
#: The node with which DTensors do it: no function of the program.
_OF_DTENSOR = "_FromTorchTensorBackward"


class ReducedInLine(NamedTuple):
    """A reduction in an X-ray step: the API ``call`` that launches it, on which thread and when, and how long the product of the weight's
    gradient takes on the GPU (ns), that ran before it.
    """

    call: int
    thread: int
    start_ns: int
    beside_ns: int


def reduced_in_line(profile: Profile) -> tuple[ReducedInLine, ...]:
    """Return these reductions of the X-ray steps of the shown process."""
    return profile.once(_find)


def _find(profile: Profile) -> tuple[ReducedInLine, ...]:
    ops = profile.ranges.ranges.filter(
        (pl.col("process") == profile.process) & (pl.col("kind") == "op"),
        ~(pl.col("crossing") | pl.col("open") | pl.col("repeated")),
    )
    name = ops["name"].cast(pl.String)
    if not name.str.contains("c10d").any():
        return ()
    nodes = ops.filter(are_nodes(ops["name"]))
    threads = nodes["thread"].unique().to_list()
    operators = ops.filter(name.str.contains(_OPERATORS) & ops["thread"].is_in(threads)).sort("thread", "start_ns")
    sent = profile.once(with_messages)
    reductions = list[ReducedInLine]()
    for thread in threads:
        of_thread = (each.filter(each["thread"] == thread) for each in (operators, nodes, sent))
        reductions += _OfThread(profile, *of_thread).all()
    return tuple(reductions)


class _OfThread:
    """The operators of a thread of autograd's, in order of time, the nodes that they are in, and the messages that it sends."""

    def __init__(self, profile: Profile, operators: pl.DataFrame, nodes: pl.DataFrame, sent: pl.DataFrame) -> None:
        text = operators["label"].cast(pl.String)
        self._profile = profile
        self._names: list[str] = operators["name"].cast(pl.String).to_list()
        self._made = [results_in(each) for each in text.str.extract(MADE, 1).fill_null("").to_list()]
        numbers = text.str.extract(ID, 1).cast(pl.Int64, strict=False).fill_null(-1).to_list()
        self._row_of = {number: row for row, number in enumerate(numbers) if number >= 0}
        self._thread = int(operators["thread"][0]) if operators.height else -1
        self._start, self._end = (operators[column].to_numpy() for column in ("start_ns", "end_ns"))
        nodes = nodes.sort("start_ns")
        self._nodes = nodes["name"].cast(pl.String).to_list()
        self._node_start, self._node_end = (nodes[column].to_numpy() for column in ("start_ns", "end_ns"))
        sent = sent.sort("call_start_ns")
        self._calls, self._sent_ns = sent["call"].to_list(), sent["call_start_ns"].to_numpy()

    def all(self) -> list[ReducedInLine]:
        """Return the reductions of what a product in the node of a layer made that has another product."""
        reductions = list[ReducedInLine]()
        for row, name in enumerate(self._names):
            node = self._node_around(row)
            if not _REDUCES.match(name) or node < 0 or self._nodes[node] == _OF_DTENSOR:
                continue
            call, product = self._call_of(row), self._product_behind(row)
            others = self._other_products(product, node)
            if call is not None and others:
                beside_ns = sum(self._gpu_ns(other) for other in others)
                reductions.append(ReducedInLine(call, self._thread, int(self._start[row]), beside_ns))
        return reductions

    def _node_around(self, row: int) -> int:
        """Return the innermost node that an operator lies in, -1 for none."""
        around = np.flatnonzero((self._node_start <= self._start[row]) & (self._node_end >= self._end[row]))
        return int(around[-1]) if len(around) else -1

    def _call_of(self, row: int) -> int | None:
        first, last = np.searchsorted(self._sent_ns, (self._start[row], self._end[row]))
        return int(self._calls[first]) if last - first == 1 and self._calls[first] is not None else None

    def _product_behind(self, row: int) -> int:
        """Return the product (row) of which a reduction is given the result, -1 where it is given something else."""
        argument = place_of_sent(self._names[row]) or 0
        while True:
            made = self._made[row]
            if len(made) <= argument or made[argument][1] < 0:
                return -1
            maker = self._row_of.get(made[argument][0], -1)
            if maker < 0 or maker >= row:
                return -1
            if not _HANDS_ON.match(self._names[maker]):
                return maker if _PRODUCTS.match(self._names[maker]) else -1
            row, argument = maker, 0

    def _other_products(self, product: int, behind: int) -> list[int]:
        """Return the other products in the node of one, which came before the node that reduces."""
        node = self._node_around(product) if product >= 0 else -1
        if node < 0 or node == behind or self._node_end[node] > self._node_start[behind]:
            return []
        first, last = np.searchsorted(self._start, (self._node_start[node], self._node_end[node]))
        outer = [int(first) + row for row in outermost_rows(self._start[first:last], self._end[first:last])]
        return [row for row in outer if row != product and _PRODUCTS.match(self._names[row])]

    def _gpu_ns(self, row: int) -> int:
        """Return how long what an operator launches takes on the GPU."""
        launched = self._profile.once(_launched).filter(
            pl.col("thread") == self._thread,
            pl.col("call_start_ns").is_between(int(self._start[row]), int(self._end[row]), closed="left"),
        )
        return int(launched["ns"].sum())


def _launched(profile: Profile) -> pl.DataFrame:
    """Return what the shown process launches: thread, call_start_ns, ns on the GPU."""
    ops = profile.attributed.gpu_ops
    ops = ops.filter((ops["process"] == profile.process) & ops["call_start_ns"].is_not_null())
    calls = profile.attributed.api_calls["call", "thread"]
    timed = ops.select("call", "call_start_ns", ns=pl.col("end_ns") - pl.col("start_ns"))
    return timed.join(calls, on="call", how="left", maintain_order="left")

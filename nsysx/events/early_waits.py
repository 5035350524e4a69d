"""Collectives of an X-ray step by what is launched between them and the first operator that reads what they bring.

A program that waits for a collective where it makes it keeps the GPU from that work for as long as the message takes. Who reads what came
is read from the names of the arguments (``operator_flow``): views of it are followed, those that were there before included. Kernels that
no operator launches may read anything.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from nsysx.catalogue import DeviceActivity
from nsysx.events.collective_operators import WAITS, CollectiveOperator, collective_operators
from nsysx.events.operator_flow import OperatorFlow, is_view
from nsysx.events.profile import Profile
from nsysx.events.result_readers import ResultReaders

#: Collectives whose first argument is the one tensor that they bring, or that torch gives a result of its own.
_BRINGS = re.compile(
    r"^(c10d::(allreduce_|broadcast_|_allgather_base_|_reduce_scatter_base_|alltoall_base_)|"
    r"_c10d_functional::(all_reduce_?|all_gather_into_tensor|reduce_scatter_tensor|all_to_all_single|broadcast_?))$"
)


class EarlyWait(NamedTuple):
    """A collective of the flow's thread, when it is called, and the first operator that reads what it brings (row of the flow).

    ``between_ns``: how long what is launched between the two computes on the GPU.
    """

    start_ns: int
    reader: int
    between_ns: int


def early_waits(flow: OperatorFlow, profile: Profile) -> list[EarlyWait]:
    """Return the collectives whose reader is seen, with what is launched before it."""
    operators = collective_operators(flow, profile)
    bring = [each for each in operators if _BRINGS.match(each.name)]
    if not bring:
        return []
    readers, given = ResultReaders(flow), _makers_of_arguments(flow)
    waited = {each.given[0]: each.number for each in operators if each.name == WAITS and each.given}
    work = WorkOfStep(flow, profile)
    waits = []
    for each in bring:
        brought = _brought(each, waited)
        reader = _first_reader(readers, given, each.end_ns, brought) if brought else -1
        if reader >= 0:
            between_ns = work.between_ns(each.end_ns, int(flow.start_ns[reader]))
            waits.append(EarlyWait(each.start_ns, reader, between_ns))
    return waits


def _brought(each: CollectiveOperator, waited: dict[int, int | None]) -> set[int]:
    """Return the names of what a collective brings, none where one of them is not known."""
    if each.number is None or not each.given:
        return set()
    if each.name.startswith("_c10d"):
        behind = waited.get(each.number)
        return {each.number} if behind is None else {each.number, behind}
    return {each.number, each.given[0]} if each.given[0] >= 0 else set()


def _makers_of_arguments(flow: OperatorFlow) -> list[tuple[int, int, frozenset[int]]]:
    """Return first and last row of each outermost operator, and what made the arguments of it and of those in it."""
    return [
        (row, end, frozenset(made for inner in range(row, end) for made in flow.made[inner]))
        for row, end in flow.outermost_spans
    ]


def _first_reader(
    readers: ResultReaders, given: list[tuple[int, int, frozenset[int]]], since_ns: int, brought: set[int]
) -> int:
    """Return the first operator (row) behind a time that is given one of these tensors, or a view of what they are views of; -1: unseen."""
    flow, names = readers.flow, brought | {readers.base_of(number)[0] for number in brought}
    for row, end, made in given:
        if names.isdisjoint(made):
            continue
        view = is_view(flow.names[row]) or (flow.start_ns[row] < since_ns and readers.hands_on(row))
        if view:
            names |= set(flow.number[row:end])
        elif flow.start_ns[row] >= since_ns:
            return row
    return -1


class WorkOfStep:
    """What the shown process launches in the flow's step: when, for how long it computes, and whether an operator launches it."""

    def __init__(self, flow: OperatorFlow, profile: Profile) -> None:
        ops = profile.attributed.gpu_ops
        here = (ops["process"] == profile.process) & ops["call_start_ns"].is_not_null()
        computes = ops.filter(here & (ops["cls"] == DeviceActivity.COMPUTE.value)).sort("call_start_ns")
        self._called_ns = computes["call_start_ns"].to_numpy()
        self._until_ns = np.concatenate(([0], np.cumsum((computes["end_ns"] - computes["start_ns"]).to_numpy())))
        outer = np.array(flow.outermost, np.int64)
        row = np.searchsorted(flow.start_ns[outer], self._called_ns, side="right") - 1
        inside = (row >= 0) & (self._called_ns < flow.end_ns[outer][row])
        # What other threads launch, such as the backward, has operators of its own.
        calls = profile.attributed.api_calls["call", "thread"]
        thread = computes.select("call").join(calls, on="call", how="left", maintain_order="left")["thread"].to_numpy()
        self._unnamed_ns = self._called_ns[~inside & (thread == flow.thread)]

    def between_ns(self, begin: int, end: int) -> int:
        """Return how long what is launched in [begin, end) computes, up to the first that no operator launches."""
        first = int(np.searchsorted(self._unnamed_ns, begin))
        end = min(end, int(self._unnamed_ns[first])) if first < len(self._unnamed_ns) else end
        a, b = np.searchsorted(self._called_ns, (begin, end))
        return int(self._until_ns[b] - self._until_ns[a]) if b > a else 0

"""Operators that compute for the call of one module what they have computed for another, and those that compute something else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from nsysx.events.operator_flow import ModuleCall, OperatorFlow
from nsysx.events.repeated_operators import repeated_operators

X, PAIRS = "[64, 3]", "[64, 64]"
#: An operator: its name, what made its arguments, and their sizes.
Op = tuple[str, tuple[int, ...], str]


def flow_of_layers(*layers: Sequence[Op], classes: Sequence[str] = ()) -> OperatorFlow:
    """Return the operators of layers, numbered from 11 on, those of the second layer from 21 on, and so on."""
    ops = [op for layer in layers for op in layer]
    names, made, size = zip(*ops, strict=True)
    ends = np.cumsum([len(layer) for layer in layers]).tolist()
    calls = [
        ModuleCall(f"blocks.{i}", classes[i] if classes else "Block", 0, 0, 0, first=end - len(layer), last=end)
        for i, (layer, end) in enumerate(zip(layers, ends, strict=True))
    ]
    start = np.arange(len(ops))
    numbers = [10 * i + j for i, layer in enumerate(layers, 1) for j in range(1, len(layer) + 1)]
    names = tuple(f"aten::{name}" for name in names)
    return OperatorFlow(names, numbers, made, size, calls=tuple(calls), start_ns=start, end_ns=start + 1)


def repeated(
    flow: OperatorFlow, kernels: Sequence[str] = (), lines: Sequence[int] = ()
) -> list[list[tuple[int, Sequence[int]]]]:
    """Return what is repeated, as rows; each operator launches a kernel, of one name if not given."""
    rows = range(len(flow.names))
    launched = {row: frozenset({kernels[row] if kernels else "kernel"}) for row in rows}
    groups = repeated_operators(flow, launched, lines or [7] * len(flow.names))
    return [[(each.first, list(each.again)) for each in group] for group in groups]


def searched(layer: int, points: int = 3, given: str = X, nearest: str = "[64, 12]") -> list[Op]:
    """The distances of points that operator ``points`` of before the step made, the nearest ones, and what reads them."""
    at = 10 * layer
    return [
        ("cdist", (points, points), f"{given}, {given}"),
        ("topk", (at + 1, -1), f"{PAIRS}, []"),
        ("bmm", (at + 2, -1), f"{nearest}, [12, 12]"),  # weights of the layer
    ]


def test_layers_that_search_the_same_points() -> None:
    assert repeated(flow_of_layers(searched(1), searched(2), searched(3))) == [[(0, [3, 6]), (1, [4, 7])]]


def test_another_number_of_neighbors_is_seen_by_the_size_of_the_result() -> None:
    assert repeated(flow_of_layers(searched(1), searched(2, nearest="[64, 24]"))) == [[(0, [3])]]


def test_a_number_with_the_name_of_a_result_says_nothing_of_its_size() -> None:
    first, second = searched(1), searched(2)
    second.insert(2, ("mul", (5, 22), f"{X}, []"))
    assert repeated(flow_of_layers(first, second)) == [[(0, [3]), (1, [4])]]


@pytest.mark.parametrize(
    ("flow", "kernels", "lines"),
    [
        (flow_of_layers(searched(1), searched(2, points=4)), (), ()),
        (flow_of_layers(searched(1, points=-1), searched(2, points=-1)), (), ()),  # no name: any tensor
        (flow_of_layers(searched(1), searched(2), classes=("Near", "Far")), (), ()),
        (flow_of_layers(searched(1), searched(2)), "abcdef", ()),
        (flow_of_layers(searched(1), searched(2)), (), (7, 7, 7, 8, 8, 8)),
        (flow_of_layers(searched(1), searched(2)), (), (-1, -1, -1, -1, -1, -1)),
        # Written into in between: a tensor from before the step, of which the points may be a view; all weights.
        (flow_of_layers([*searched(1), ("copy_", (-1, 13), f"{X}, {X}")], searched(2)), (), ()),
        (flow_of_layers([*searched(1), ("_foreach_add_", (-1, -1), f"{PAIRS}, []")], searched(2)), (), ()),
        # Only converted again, which another rule tells.
        (flow_of_layers(*([("to", (3, -1), f"{X}, []"), ("bmm", (at, -1), f"{X}, {X}")] for at in (11, 21))), (), ()),
    ],
)
def test_layers_that_compute_something_else(flow: OperatorFlow, kernels: Sequence[str], lines: Sequence[int]) -> None:
    assert repeated(flow, kernels, lines) == []


def test_tensors_without_a_name_stay_two_where_they_are_handed_on_as_they_are() -> None:
    def converted(layer: int, points: int) -> list[Op]:
        at = 10 * layer + 1
        return [
            ("to", (points, -1), f"{X}, []"),
            ("cdist", (at, at), f"{X}, {X}"),
            ("bmm", (at + 1, -1), f"{PAIRS}, {X}"),
        ]

    def of_two(points: int) -> list[list[tuple[int, Sequence[int]]]]:
        flow = flow_of_layers(converted(1, points), converted(2, points))
        groups = repeated_operators(flow, {1: frozenset({"kernel"}), 4: frozenset({"kernel"})}, [7] * 6)
        return [[(each.first, list(each.again)) for each in group] for group in groups]

    assert of_two(3) == [[(1, [4])]]
    assert of_two(-1) == []


def test_a_counter_that_a_layer_raises_is_no_tensor_of_which_another_is_a_view() -> None:
    raised = [*searched(1), ("add_", (-1, -1), "[], []")]
    assert repeated(flow_of_layers(raised, searched(2))) == [[(0, [4]), (1, [5])]]


def test_two_results_of_one_operator_are_two_tensors() -> None:
    flow = flow_of_layers(searched(1), searched(2))
    which = [(0,) * len(made) for made in flow.made]
    assert repeated(replace(flow, which=which)) == repeated(flow)
    which[3] = (1, 1)  # the second layer is given the second result of operator 3
    assert repeated(replace(flow, which=which)) == []

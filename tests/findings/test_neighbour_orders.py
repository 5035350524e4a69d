"""Sums over neighbours before and behind linear layers: on the wider side of the layer, and where they belong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nsysx.events.neighbour_orders import NeighbourOrder, neighbour_orders
from nsysx.events.operator_flow import OperatorFlow
from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.test_product_forms import Called
from tests.findings.test_smaller_operators import LINE, operator

SPARSE = "void cusparse::csrmm_alg2_kernel<cusparse::CsrMMPolicy<float>>(cusparse::KernelCoeffs<float>)"


def orders(*called: Called, inside: dict[int, Called] | None = None) -> list[NeighbourOrder]:
    """Return the orders of operators of which none lies in another; ``inside``: number of one -> what lies in it."""
    rows, at, number = list[tuple[Called, int, int]](), 0, 1000
    for each in called:
        rows.append((each, at, at + 9))
        held = (inside or {}).get(each[1])
        if held is not None:
            rows.append(((held[0], number, held[2], held[3]), at + 2, at + 4))
            number += 1
        at += 10
    starts, ends = (np.array([row[i] for row in rows], np.int64) for i in (1, 2))
    names, numbers, made, size = zip(*(row[0] for row in rows), strict=True)
    flow = OperatorFlow(
        [f"aten::{name}" for name in names], numbers, made=made, size=size, calls=(), start_ns=starts, end_ns=ends
    )
    return neighbour_orders(flow)


EDGES = {1: ("_nnz", 0, (-1,), "[9000, 9000], [80000]")}
SUM: Called = ("matmul", 1, (-1, -1), "[9000, 9000], [9000, 512]")
SCALED: Called = ("mul", 2, (1, -1), "[9000, 512], [9000, 1]")
LAYER: Called = ("linear", 3, (2, -1, -1), "[9000, 512], [64, 512], [64]")


def test_a_sparse_product_belongs_behind_the_layer_that_makes_its_rows_shorter() -> None:
    (order,) = orders(SUM, SCALED, LAYER, inside=EDGES)
    assert (order.wide, order.narrow, order.edges, order.layer_first, order.grows) == (512, 64, 80000, True, 1.0)
    assert order.rows == {0, 2} and order.layer == 3
    (order,) = orders(SUM, ("mm", 3, (1, -1), "[9000, 512], [512, 64]"), inside=EDGES)
    assert order.narrow == 64


def test_a_sparse_product_belongs_before_the_layer_that_makes_its_rows_longer() -> None:
    layer: Called = ("linear", 3, (-1, -1), "[9000, 64], [512, 64]")
    summed: Called = ("matmul", 1, (-1, 3), "[9000, 9000], [9000, 512]")
    (order,) = orders(layer, summed, inside=EDGES)
    assert (order.wide, order.narrow, order.layer_first, order.layer) == (512, 64, False, 0) and order.rows == {1}
    biased: Called = ("linear", 3, (-1, -1, -1), "[9000, 64], [512, 64], [512]")
    assert not orders(biased, summed, inside=EDGES), "the bias is summed over neighbours, too"
    assert not orders(layer, summed, ("relu", 4, (3,), "[9000, 512]"), inside=EDGES), "the layer's result is read again"


@pytest.mark.parametrize(
    ("called", "inside"),
    [
        ([SUM, SCALED, LAYER], {}),
        ([SUM, ("relu", 2, (1,), "[9000, 512]"), LAYER], EDGES),
        ([SUM, ("mul", 2, (1, -1), "[9000, 512], [9000, 512]"), LAYER], EDGES),
        ([SUM, SCALED, LAYER, ("sum", 4, (2, -1), "[9000, 512], []")], EDGES),
        ([SUM, SCALED, ("linear", 3, (2, -1), "[9000, 512], [384, 512]")], EDGES),
        ([("linear", 3, (-1, -1), "[9000, 512], [64, 512]"), ("matmul", 1, (-1, 3), "[9000, 9000], [9000, 64]")], EDGES),
    ],
    ids=["dense", "relu between", "masked", "read again", "nearly as wide", "layer first already"],
)  # fmt: skip
def test_what_needs_its_order(called: list[Called], inside: dict[int, Called]) -> None:
    assert not orders(*called, inside=inside)


PASSING: list[Called] = [
    ("index_select", 1, (-1, -1, -1), "[9000, 512], [], [80000]"),
    ("mul", 2, (1, -1), "[80000, 512], [80000, 1]"),
    ("new_zeros", 4, (-1,), "[9000, 512]"),
    ("scatter_add_", 5, (4, -1, -1, 2), "[4000, 512], [], [80000, 512], [80000, 512]"),
    ("view", 6, (-1, -1), "[4000], []"),
    ("expand_as", 7, (6, 5), "[4000, 1], [4000, 512]"),
    ("div", 8, (5, 7), "[4000, 512], [4000, 512]"),
]
BEHIND: Called = ("linear", 9, (8, -1, -1), "[4000, 512], [64, 512], [64]")


def test_messages_that_are_picked_scaled_and_added_are_a_sum_over_neighbours() -> None:
    (order,) = orders(*PASSING, BEHIND)
    assert (order.wide, order.narrow, order.edges, order.layer_first) == (512, 64, 80000, True)
    # 9000 rows are multiplied in place of 4000; what picks, scales and adds gets narrower, and so does the mean.
    assert order.grows == 2.25 and order.rows == {0, 1, 2, 3, 6}
    added: Called = ("index_add_", 5, (4, -1, -1, 2, -1), "[4000, 512], [], [80000], [80000, 512], []")
    assert orders(*PASSING[:3], added, *PASSING[4:], BEHIND)


@pytest.mark.parametrize(
    ("replaced", "by"),
    [
        (3, ("scatter_reduce_", 5, (4, -1, -1, 2), "[4000, 512], [], [80000, 512], [80000, 512]")),
        (3, ("scatter_add_", 5, (-1, -1, -1, 2), "[4000, 512], [], [80000, 512], [80000, 512]")),
        (1, ("relu", 2, (1,), "[80000, 512]")),
        (4, ("sum", 6, (1, -1), "[80000, 512], []")),
    ],
    ids=["the largest", "added to what is there", "another function", "messages are read again"],
)
def test_messages_that_need_their_order(replaced: int, by: Called) -> None:
    assert not orders(*PASSING[:replaced], by, *PASSING[replaced + 1 :], BEHIND)


def graph_network(program: Lined, step: int, *, first: bool) -> None:
    """A sparse product (800 us with 512 numbers a row, 100 us with 64) and a linear layer of 200 us, in either order."""
    at, wide = 1000 * step + 10, "[9000, 512]"
    with program.line(LINE), program.range("forward"), program.range("net:Net"):
        if first:
            operator(program, "linear", at, [-1, -1], f"{wide}, [64, 512]", 200)
        begin, size = program.t, "[9000, 64]" if first else wide
        operator(
            program, "mm", at + 1, [-1, at if first else -1], f"[9000, 9000], {size}", 100 if first else 800, SPARSE
        )
        if program.noted is not None:
            label = f"aten::_nnz, op_id = {at + 2}, sizes = [[9000, 9000]], input_op_ids = [(0,-1)]"
            program.main.add_range(label, begin + 10, begin + 20)
        if not first:
            operator(program, "linear", at + 3, [at + 1, -1], f"{wide}, [64, 512]", 200)
    program.sync()


def found(folder: Path, *, first: bool) -> list[Finding]:
    program = Lined({LINE: "return self.lin(adj @ x)"}).run(
        lambda program, step: graph_network(program, step, first=first)
    )
    names = ("layer-before-neighbours", "neighbours-before-layer")
    return [f for f in program.found(folder, "NSX131") if any(way.name in names for way in f.remedies)]


def test_what_the_other_order_saves_follows_the_width(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, first=False)
    assert finding.remedies[0].name == "layer-before-neighbours" and finding.where["line"] == LINE
    assert "512" in finding.title and "64" in finding.title and "8.0 times fewer bytes" in finding.detail
    assert "Of each edge 512 numbers" in finding.detail, "no size says how many there are"
    # An eighth of 800 us is left, to a quarter; nothing is trained here.
    saved = finding.saving
    assert saved.likely_ns == pytest.approx(800_000 * (1 - 2**0.5 / 8), rel=0.03)
    assert saved.error_ns == pytest.approx(800_000 * (2 - 2**0.5) / 8, rel=0.05)


def test_in_the_cheaper_order_nothing_is_said(tmp_path: Path) -> None:
    assert not found(tmp_path, first=True)

"""Tensors whose pieces programs take one by one, and those that they take apart at once: by the operators that torch runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nsysx.events.layers import LAYER
from nsysx.events.taken_apart import TakenTensor, tensors_in
from tests.events.traced import _ranges_of

E, D, B, T = 8, 6, 4, 12
weight = nn.Parameter(torch.randn(E, D, D))
other = nn.Parameter(torch.randn(E, D, D))
layer = nn.Linear(D, D)
cell = nn.GRUCell(D, D)


def tensors(step: Callable[[], object], folder: Path) -> list[TakenTensor]:
    """Return the tensors of three steps of a program."""
    rows = list[dict[str, object]]()
    for each in _ranges_of(step, folder, None):
        if "step" in each.name and "traced" in each.name:
            continue
        made = ", ".join(f"({max(number, 0)},{which})" for number, which in each.made)
        label = f"{each.name}, op_id = {each.number}, sizes = [{each.sizes}], input_op_ids = [{made}]"
        row = {"start_ns": each.first, "end_ns": each.last, "label": label, "name": each.name, "number": each.sequence}
        rows.append({"process": 1, "thread": 1, "kind": "op", "cls": None, "recompute": False, **row})
    return tensors_in(pl.DataFrame(rows).select(LAYER).with_columns(pl.col("name", "kind").cast(pl.Categorical)))


def summed(pieces: Callable[[Tensor, int], Tensor], whole: Callable[[], Tensor], count: int) -> Callable[[], object]:
    """Return a step that reads so many pieces of a tensor."""

    def step() -> None:
        weight.grad = other.grad = None
        of, total = whole(), torch.zeros(())
        for n in range(count):
            total = total + pieces(of, n).square().sum()
        total.backward()

    return step


def parameter() -> Tensor:
    return weight


def sequence() -> Tensor:
    return layer(torch.randn(B, T, D))


def table() -> Tensor:
    return layer(torch.randn(64, D))


@pytest.mark.parametrize(
    ("pieces", "whole", "count", "by", "size", "piece", "dimension"),
    [
        (lambda x, n: x[n], parameter, E, "select", (E, D, D), (D, D), 0),
        (lambda x, n: x.select(0, n), parameter, E, "select", (E, D, D), (D, D), 0),
        (lambda x, n: x[:, n], sequence, T, "select", (B, T, D), (B, D), 1),
        (lambda x, n: x[:, 3 * n : 3 * n + 3], sequence, 4, "slice", (B, T, D), (B, 3, D), 1),
        (lambda x, n: x.narrow(1, 3 * n, 3), sequence, 4, "slice", (B, T, D), (B, 3, D), 1),
        (lambda x, n: x[:, n::4], sequence, 4, "slice", (B, T, D), (B, 3, D), 1),
        (lambda x, n: x.tensor_split(4, 1)[n], sequence, 4, "slice", (B, T, D), (B, 3, D), 1),
        (lambda x, n: x[torch.arange(8 * n, 8 * n + 8)], table, 8, "index", (64, D), (8, D), 0),
        (lambda x, n: x[torch.arange(64) % 8 == n], table, 8, "index", (64, D), (8, D), 0),
        (lambda x, n: x.index_select(0, torch.arange(8 * n, 8 * n + 8)), table, 8, "index", (64, D), (8, D), 0),
        (lambda x, n: x.chunk(4, 1)[n], sequence, 4, "again", (B, T, D), (B, 3, D), 1),
        (lambda x, n: x.unbind(1)[n], sequence, T, "again", (B, T, D), (B, D), 1),
        (lambda x, n: x.t()[n], lambda: table().t(), 64, "select", (64, D), (D,), 0),
    ],
)
def test_pieces_that_are_taken_one_by_one(
    pieces: Callable[[Tensor, int], Tensor],
    whole: Callable[[], Tensor],
    count: int,
    by: str,
    size: tuple[int, ...],
    piece: tuple[int, ...],
    dimension: int,
    tmp_path: Path,
) -> None:
    found = tensors(summed(pieces, whole, count), tmp_path)
    assert len(found) == 3, "one in each step"
    assert all((each.by, each.size, each.dimension) == (by, size, dimension) for each in found)
    assert all(each.pieces == (piece,) * count for each in found)


@pytest.mark.parametrize(
    ("pieces", "inner"),
    [
        (lambda x, n: x[:, n, 1], "select"),
        (lambda x, n: x[:, n][..., 1], "select"),
        (lambda x, n: x[:, n, torch.arange(2)], "index"),
        (lambda x, n: x[:, n, 1:3], "slice"),
        (lambda x, n: x[:, n], ""),
    ],
)
def test_how_one_piece_of_each_piece_is_taken(
    pieces: Callable[[Tensor, int], Tensor], inner: str, tmp_path: Path
) -> None:
    found = tensors(summed(pieces, sequence, T), tmp_path)
    assert [(each.by, each.size, each.pieces, each.inner) for each in found] == 3 * [
        ("select", (B, T, D), ((B, D),) * T, inner)
    ]


def stacked_experts() -> None:
    """Two stacks of one size; the second one's pieces are cast, and both tensors have other readers."""
    x = torch.randn(B, D)
    total = weight.square().sum()
    for n in range(E):
        total = total + (x @ weight[n].double().float() @ other[n]).sum()
    (total + other.sum()).backward()


def test_tensors_of_one_size_are_told_apart(tmp_path: Path) -> None:
    found = tensors(stacked_experts, tmp_path)
    assert [(each.by, each.size, len(each.pieces)) for each in found] == 6 * [("select", (E, D, D), E)]


def residual() -> None:
    """What one block takes apart goes on beside it to the next one."""
    x = layer(torch.randn(B, T, D))
    for _ in range(2):
        x = x + torch.stack([layer(x[:, t]) for t in range(T)], 1)
    x.sum().backward()


def recomputed() -> None:
    def run(x: Tensor) -> Tensor:
        return torch.stack([layer(x[:, t]) for t in range(T)], 1)

    checkpoint(run, sequence(), use_reentrant=False).sum().backward()


@pytest.mark.parametrize(("step", "count"), [(residual, 2), (recomputed, 1)])
def test_layers_that_each_take_their_input_apart(step: Callable[[], object], count: int, tmp_path: Path) -> None:
    found = tensors(step, tmp_path)
    assert [(each.size, len(each.pieces)) for each in found] == 3 * count * [((B, T, D), T)]


def at_once() -> None:
    x = torch.randn(B, D)
    torch.stack([x @ w for w in weight.unbind(0)]).sum().backward()


def iterated() -> None:
    x = torch.randn(B, D)
    torch.stack([x @ w for w in weight]).sum().backward()


def chunks() -> None:
    q, k, v = layer(torch.randn(B, T, D)).chunk(3, -1)
    (q * k * v).sum().backward()


def two_halves() -> None:
    x = sequence()
    torch.cat([-x[..., D // 2 :], x[..., : D // 2]], -1).sum().backward()


def without_gradients() -> None:
    data = torch.randn(B, T, D)
    for t in range(T):
        layer(data[:, t]).sum().backward()


def cache() -> None:
    with torch.no_grad():
        keys = sequence()
        for t in range(1, T):
            F.softmax(keys[:, :t], -1)


def lookups() -> None:
    """Large numbers of rows, of which each round reads most."""
    rows = table()
    sum(
        F.embedding(torch.randint(E * D, (64,)), weight.flatten(0, 1)).sum() + rows[torch.randint(64, (60,))].sum()
        for _ in range(4)
    ).backward()


def all_but_the_last() -> None:
    x = sequence()
    (x[:, :-1].sum() + x[:, 1:].sum() + x[:, :-2].sum()).backward()


def several_tensors() -> None:
    """The last row of each layer's result alone."""
    sum(sequence()[:, -1].sum() for _ in range(6)).backward()


def backward_of_each() -> None:
    x = sequence().detach().requires_grad_()
    for t in range(T):
        x[:, t].square().sum().backward()


@pytest.mark.parametrize(
    "step",
    [
        at_once,
        iterated,
        chunks,
        two_halves,
        without_gradients,
        cache,
        lookups,
        all_but_the_last,
        several_tensors,
        backward_of_each,
    ],
)
def test_what_backward_joins_at_once_or_needs(step: Callable[[], object], tmp_path: Path) -> None:
    assert not tensors(step, tmp_path)

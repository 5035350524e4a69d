"""Tensors that programs fill part by part under autograd, and writes that backward does not pay for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nsysx.events.written_parts import WrittenParts, written_in
from tests.events.traced import traced

B, D, T = 4, 16, 12
cell = nn.GRUCell(D, D)


def written(step: Callable[[], object], folder: Path) -> list[WrittenParts]:
    flow, _, trained = traced(step, folder)
    return written_in(flow, trained)


def filled(
    write: Callable[[Tensor, Tensor, int], object], *size: int, rounds: int = T, first: int = 0
) -> Callable[[], object]:
    """Return a step that writes the state of each round into a tensor of this size."""

    def step() -> None:
        out, state = torch.zeros(*size), torch.randn(B, D)
        for n in range(first, rounds):
            state = cell(state, state)
            write(out, state, n)
        out.square().sum().backward()

    return step


def test_what_is_cloned_before_each_write(tmp_path: Path) -> None:
    (parts,) = written(cloned, tmp_path)
    assert (parts.size, parts.dimension, len(parts.rows), len(parts.clones)) == ((B, T, D), 1, T, T)


def test_what_is_moved_before_it_is_filled(tmp_path: Path) -> None:
    def step() -> None:
        out, state = torch.zeros(T, B, D, dtype=torch.double).to(torch.float32), torch.randn(B, D)
        for n in range(1, T):
            out[n] = state = cell(state, state)
        out.square().sum().backward()

    (parts,) = written(step, tmp_path)
    assert (parts.size, len(parts.rows)) == ((T, B, D), T - 1)


def row(out: Tensor, state: Tensor, n: int) -> None:
    out[n] = state


def column(out: Tensor, state: Tensor, n: int) -> None:
    out[:, n] = state


def piece(out: Tensor, state: Tensor, n: int) -> None:
    out[n * B : (n + 1) * B] = state


def column_read(out: Tensor, state: Tensor, n: int) -> None:
    out[:, n] = state if n == 0 else state + out[:, n - 1].detach()


@pytest.mark.parametrize(
    ("write", "size", "first", "dimension", "stacked", "read"),
    [
        (row, (T, B, D), 0, 0, True, False),
        (row, (T, B, D), 1, 0, True, False),
        (column, (B, T, D), 0, 1, True, False),
        (piece, (T * B, D), 0, 0, False, False),
        (column_read, (B, T, D), 0, 1, True, True),
    ],
)
def test_parts_that_make_up_a_tensor(
    write: Callable[[Tensor, Tensor, int], object],
    size: tuple[int, ...],
    first: int,
    dimension: int,
    stacked: bool,
    read: bool,
    tmp_path: Path,
) -> None:
    (parts,) = written(filled(write, *size, first=first), tmp_path)
    assert parts == WrittenParts(parts.rows, size, (B, D), dimension, stacked, read)
    assert len(parts.rows) == T - first


def cloned() -> None:
    out, state = torch.zeros(B, T, D), torch.randn(B, D)
    for n in range(T):
        state = cell(state, state)
        out = out.clone()
        out[:, n] = state
    out.square().sum().backward()


def versions_kept() -> None:
    out, state, kept_ones = torch.zeros(B, T, D), torch.randn(B, D), list[Tensor]()
    for n in range(T):
        state = cell(state, state)
        out = out.clone()
        out[:, n] = state
        kept_ones.append(out)
    torch.stack(kept_ones).square().sum().backward()


def snapshots() -> None:
    out, state, kept_ones = torch.zeros(B, T, D), torch.randn(B, D), list[Tensor]()
    for n in range(T):
        state = cell(state, state)
        out[:, n] = state
        kept_ones.append(out.clone())
    torch.stack(kept_ones).square().sum().backward()


def without_gradients() -> None:
    with torch.no_grad():
        out, state = torch.zeros(T, B, D), torch.randn(B, D)
        for n in range(T):
            out[n] = state = cell(state, state)
    cell(out[0], out[1]).sum().backward()


def whole_read(out: Tensor, state: Tensor, n: int) -> None:
    out[n] = state + out.sum(0)


def repeated(out: Tensor, state: Tensor, n: int) -> None:
    out[n] = state[0]


kept = torch.zeros(T, B, D)


def into_what_stays() -> None:
    state, out = torch.randn(B, D), kept.clone()
    for n in range(T):
        state = cell(state, state)
        out[n] = state
    out.square().sum().backward()


def joined() -> None:
    state, parts = torch.randn(B, D), list[Tensor]()
    for _ in range(T):
        state = cell(state, state)
        parts.append(state)
    torch.stack(parts).square().sum().backward()


def experts() -> None:
    x, out, chosen = torch.randn(64, D), torch.zeros(64, D), torch.arange(64) % 8
    for n in range(8):
        out[chosen == n] = cell(x[chosen == n], x[chosen == n])
    out.square().sum().backward()


@pytest.mark.parametrize(
    "step",
    [
        without_gradients,
        filled(whole_read, T, B, D),
        filled(repeated, T, B, D),
        filled(row, T, B, D, rounds=4),  # few writes
        filled(row, 2 * T, B, D),  # half of it stays zero
        into_what_stays,
        joined,
        experts,
        versions_kept,
        snapshots,
    ],
)
def test_what_no_join_can_replace(step: Callable[[], object], tmp_path: Path) -> None:
    assert not written(step, tmp_path)

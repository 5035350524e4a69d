"""Tensors that rounds put in another order: what of them a search has to move, in the forms that programs have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from nsysx.events.reordered_rows import ReorderedRows, reordered_rows
from tests.events.traced import traced

INPUTS, BEAMS, HEADS, PROMPT, ROUNDS, WORDS, WIDTH = 2, 3, 2, 8, 7, 5, 4
ROWS, ROOM = INPUTS * BEAMS, PROMPT + ROUNDS
BASE = torch.arange(INPUTS)[:, None] * BEAMS


def searched(score: torch.Tensor) -> torch.Tensor:
    """The rows that the best go on from."""
    return (torch.topk(score.view(INPUTS, -1), BEAMS).indices // WORDS + BASE).flatten()


def rounds(
    order: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], beam: object = searched, kind: str = "room"
) -> None:
    """A search with one layer's keys, which are written in place (``room``), put behind (``grown``), noisy, or only read."""
    prompt = torch.randn(INPUTS, HEADS, PROMPT, WIDTH).repeat_interleave(BEAMS, 0)
    keys = F.pad(prompt, (0, 0, 0, ROUNDS)) if kind == "room" else prompt
    for n in range(ROUNDS):
        new = torch.randn(ROWS, HEADS, 1, WIDTH)
        if kind == "room":
            keys[:, :, PROMPT + n : PROMPT + n + 1] = new
        elif kind == "grown":
            keys = torch.cat([keys, new], 2)
        elif kind == "noisy":
            keys = keys + torch.randn_like(keys)
        score = (new @ keys[:, :, : PROMPT + n + 1].transpose(2, 3)).sum((1, 2, 3))[:, None] + torch.randn(ROWS, WORDS)
        keys = order(keys, beam(score))  # type: ignore[operator]


def found(step: Callable[[], object], folder: Path) -> list[ReorderedRows]:
    with torch.no_grad():
        return reordered_rows(traced(step, folder)[0])


def gathered(keys: torch.Tensor, beam: torch.Tensor) -> torch.Tensor:
    return keys.gather(0, beam.view(-1, 1, 1, 1).expand_as(keys))


ORDERS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "index_select": lambda keys, beam: keys.index_select(0, beam),
    "index": lambda keys, beam: keys[beam],
    "gather": gathered,
    "second dimension": lambda keys, beam: keys.transpose(0, 1).index_select(1, beam).transpose(0, 1),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", ["room", "grown", "read"])
def test_caches_that_a_search_orders(order: str, kind: str, tmp_path: Path) -> None:
    (each,) = found(lambda: rounds(ORDERS[order], kind=kind), tmp_path)
    assert len(each.orders) == ROUNDS and each.read_only == (kind == "read")
    if kind != "read":  # one row of all tokens more in each round
        wholes = [ROOM if kind == "room" else PROMPT + n for n in range(1, ROUNDS + 1)]
        assert list(each.orders.values()) == [pytest.approx(n / whole) for n, whole in enumerate(wholes, 1)]
    assert len(each.cats) == (ROUNDS - 1 if kind == "grown" else 0)


def test_several_layers_follow_one_order(tmp_path: Path) -> None:
    def step() -> None:
        caches = [torch.randn(ROWS, HEADS, PROMPT, WIDTH) * n for n in (1, 2)]
        for _ in range(ROUNDS):
            beam = searched(torch.randn(ROWS, WORDS))
            caches = [cache.index_select(0, beam) for cache in caches]

    assert [each.read_only for each in found(step, tmp_path)] == [True, True]


def drawn(score: torch.Tensor) -> torch.Tensor:
    """Rows that are drawn by weight: of particles, what each of them holds may be its own."""
    return torch.multinomial(score.exp().sum(1), ROWS, replacement=True)


def shuffled(_: torch.Tensor) -> torch.Tensor:
    return torch.randperm(ROWS)


@pytest.mark.parametrize("beam", [drawn, shuffled])
def test_rows_that_no_search_orders(beam: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path) -> None:
    assert not found(lambda: rounds(ORDERS["index"], beam, "read"), tmp_path)


def test_rows_that_change_as_a_whole(tmp_path: Path) -> None:
    assert not found(lambda: rounds(ORDERS["index"], kind="noisy"), tmp_path), "a population that mutates"


def test_inputs_that_are_done_and_leave(tmp_path: Path) -> None:
    def step() -> None:
        keys = torch.randn(ROUNDS + ROWS, HEADS, PROMPT, WIDTH)
        for n in range(ROUNDS):
            keys = keys[torch.topk(torch.randn(len(keys)), ROUNDS + ROWS - n - 1).indices]

    assert not found(step, tmp_path)


def test_other_tensors_in_each_round(tmp_path: Path) -> None:
    def step() -> None:
        table = torch.randn(ROWS, HEADS, PROMPT, WIDTH)
        for _ in range(ROUNDS):
            (table * 2)[searched(torch.randn(ROWS, WORDS))]

    assert not found(step, tmp_path)

"""Networks with a cache of keys and values that a loop begins anew for a longer sequence, and loops that keep it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nsysx.events.growing_calls import GrowingCalls, growing_in
from tests.events.traced import traced

BATCH, WIDE, LONG, ROUNDS, DRAFT = 2, 8, 40, 4, 3
Cache = tuple[Tensor, Tensor] | None


class Draft(nn.Module):
    """A layer of attention with a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.qkv, self.head = nn.Embedding(30, WIDE), nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, 30)

    def forward(self, ids: Tensor, cache: Cache = None) -> tuple[Tensor, Cache]:
        q, k, v = self.qkv(self.words(ids)).chunk(3, -1)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 1), torch.cat([cache[1], v], 1)
        scores = q @ k.transpose(1, 2) + torch.ones(q.shape[1], k.shape[1]).tril(k.shape[1] - q.shape[1]).log()
        return self.head(scores.softmax(-1) @ v), (k, v)


NET = Draft()


def rounds(kind: str) -> Tensor:
    """Rounds in which some of the drafted tokens are kept."""
    torch.manual_seed(0)
    ids, cache, kept = torch.randint(0, 30, (BATCH, LONG)), None, 0
    for n in range(ROUNDS):
        if kind == "anew":
            cache, kept = None, 0
        if kind == "other sequences":
            ids, cache, kept = torch.randint(0, 30, (BATCH, LONG + n)), None, 0
        given, drafted = ids[:, kept:] if kept else ids, list[Tensor]()
        for _ in range(DRAFT):
            logits, cache = NET(given, cache)
            given = logits[:, -1].argmax(-1, keepdim=True)
            drafted.append(given)
        accepted = 1 + n % 2
        kept = ids.shape[1] + accepted - 1
        ids = torch.cat([ids, *drafted[:accepted]], 1)
        assert cache is not None
        cache = (cache[0][:, :kept], cache[1][:, :kept])
    return ids


def grown(kind: str, folder: Path) -> list[GrowingCalls]:
    def step() -> None:
        with torch.no_grad():
            rounds(kind)

    flow, _, trained = traced(step, folder, NET)
    return growing_in(flow, trained)


def test_a_cache_that_is_begun_anew_for_each_round(tmp_path: Path) -> None:
    (each,) = grown("anew", tmp_path)
    assert each.with_cache and len(each.calls) == ROUNDS and each.new == 2 * BATCH
    assert each.rows == tuple(BATCH * n for n in (40, 41, 43, 44))
    assert torch.equal(rounds("anew"), rounds("kept")), "cut off, it gives the same"


@pytest.mark.parametrize("kind", ["kept", "other sequences"])
def test_caches_of_each_sequence(kind: str, tmp_path: Path) -> None:
    assert not grown(kind, tmp_path)

"""Batches of which each rank takes every n-th: the line that deals them out in groups of like work, run as it is told."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nsysx.findings._dealt_in_turn import in_groups

WORLD = 3


def dealt(paste: str, **names: Any) -> list[list[Any]]:
    """Return what each rank gets by a paste whose last line gives it out."""
    *before, last = paste.splitlines()
    given = last.replace("yield from ", "given = ", 1).replace("return ", "given = ", 1)
    shares = []
    for rank in range(WORLD):
        scope = {**names, "rank": rank, "world": WORLD, "self": SimpleNamespace(rank=rank, world=WORLD, **names)}
        exec("\n".join([*before, given]), scope)
        shares.append(list(scope["given"]))
    return shares


def test_batches_of_an_array_come_in_groups_of_like_length_by_the_names_of_the_sampler() -> None:
    lengths = np.arange(120) // 4 * 10
    batches = np.random.default_rng(1).permutation(np.arange(120).reshape(-1, 4))
    fix = in_groups("yield from batches[self.rank :: self.world].tolist()", "lengths")
    shares = dealt(fix.paste, batches=batches, lengths=lengths)
    assert sorted(i for share in shares for batch in share for i in batch) == list(range(120))
    longest = np.array([[max(lengths[i] for i in batch) for batch in share] for share in shares])
    assert (np.ptp(longest, axis=0) <= (WORLD - 1) * 10).all()
    assert (np.diff(longest[0]) < 0).any()  # still shuffled
    assert "cost(" not in fix.condition


@pytest.mark.parametrize("line", ["return order[rank::world]", "return iter(order[rank::world])"])
def test_a_list_is_dealt_with_a_cost_that_the_program_has_to_give(line: str) -> None:
    order = list(range(31))
    random.Random(3).shuffle(order)
    fix = in_groups(line)
    shares = dealt(fix.paste, order=order, cost=lambda item: item)
    assert {len(share) for share in shares} == {31 // WORLD}  # what does not fill a group is left out on all ranks
    assert all(max(each) - min(each) == WORLD - 1 for each in zip(*shares, strict=True))
    assert "cost(order[i])" in fix.condition


@pytest.mark.parametrize(
    "line",
    [
        "part = rows[rank * n : (rank + 1) * n]",
        "yield from batches[self.rank : usable : self.world]",
        "order = np.argsort(lengths)[rank::world]",
        "x = rows[rank::world].to(device)",
    ],
)
def test_what_is_dealt_in_another_way_is_told_in_general(line: str) -> None:
    fix = in_groups(line)
    assert fix.ways[0].name == "like-batches" and "own = [group[rank] for group in groups]" in fix.paste

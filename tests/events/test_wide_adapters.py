"""Adapters that are given converted activations, as torch runs them, and layers of other kinds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsysx.events.wide_adapters import converting_adapters
from tests.events.traced import traced

WIDTH, RANK = 64, 4
torch.manual_seed(0)
NARROW = torch.bfloat16
BASE = nn.Linear(WIDTH, WIDTH, bias=False, dtype=NARROW).requires_grad_(requires_grad=False)
DOWN, UP = nn.Linear(WIDTH, RANK, bias=False), nn.Linear(RANK, WIDTH, bias=False)
NARROW_DOWN, NARROW_UP = (nn.Linear(*each, bias=False, dtype=NARROW) for each in ((WIDTH, RANK), (RANK, WIDTH)))
DROP, ROUTER = nn.Dropout(0.1), nn.Linear(WIDTH, 8, bias=False)
LARGE, LARGER = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)
INPUT = torch.randn(3, 8, WIDTH, dtype=NARROW)


def in_turn(x: Tensor) -> Tensor:
    y = BASE(x)
    z = x.to(DOWN.weight.dtype)
    z = UP(DOWN(DROP(z)))
    y = y + z * 2.0
    return y.to(x.dtype)


ADAPTERS: dict[str, Callable[[Tensor], Tensor]] = {
    "on one line": lambda x: (BASE(x) + 2.0 * UP(DOWN(DROP(x.to(DOWN.weight.dtype))))).to(x.dtype),
    "in turn": in_turn,
    "of flat rows": lambda x: (BASE(x).float() + UP(DOWN(x.float().flatten(0, 1))).view(x.shape) / 4).type_as(x),
    "multiplied": lambda x: (x.float() @ DOWN.weight.t() @ UP.weight.t() + BASE(x)).bfloat16(),
    "into the layer's": lambda x: BASE(x).add_(UP(DOWN(x.float())), alpha=2),
}
OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "of 16 bits": lambda x: BASE(x) + 2.0 * NARROW_UP(NARROW_DOWN(DROP(x))),
    "converted weights": lambda x: BASE(x) + F.linear(F.linear(x, DOWN.weight.to(NARROW)), UP.weight.to(NARROW)),
    "a router": lambda x: BASE(x) * ROUTER(x.float()).softmax(-1)[..., :1].to(x.dtype),
    "a large network": lambda x: (BASE(x) + LARGER(LARGE(x.float()))).to(x.dtype),
    "a gate between": lambda x: (BASE(x) + UP(F.silu(DOWN(x.float())))).to(x.dtype),
    "all of float32": lambda x: LARGER(LARGE(x.float())) + UP(DOWN(torch.tanh(x.float()))),
}


@pytest.mark.parametrize("kind", ADAPTERS)
def test_an_adapter_that_is_given_what_is_converted(kind: str, tmp_path: Path) -> None:
    def step() -> None:
        ADAPTERS[kind](INPUT * 1.5).float().square().sum().backward()

    flow, *_ = traced(step, tmp_path)
    (adapter,) = converting_adapters(flow)
    assert (adapter.rank, adapter.width) == (RANK, WIDTH) and adapter.at == adapter.conversions[0]
    names = [flow.names[row] for row in adapter.others]
    assert any("add" in name for name in names) and ("aten::dropout" in names) == (kind in ("on one line", "in turn"))


@pytest.mark.parametrize("kind", OTHERS)
def test_layers_that_are_none(kind: str, tmp_path: Path) -> None:
    def step() -> None:
        OTHERS[kind](INPUT * 1.5).float().square().sum().backward()

    assert not converting_adapters(traced(step, tmp_path)[0])

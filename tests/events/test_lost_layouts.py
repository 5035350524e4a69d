"""Programs in channels_last that lose that order at an operator, and those that keep it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsysx.events.lost_layouts import lost_layouts
from tests.events.traced import traced


class Net(nn.Module):
    """Two convolutions with something in between."""

    def __init__(self, between: str) -> None:
        super().__init__()
        self.between = between
        self.first, self.last = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        between: Any = getattr(self, self.between)
        result: Tensor = self.last(between(F.relu(self.first(x))))
        return result

    def joined_in_time(self, x: Tensor) -> Tensor:
        x = x.view(2, 4, 16, 8, 8)
        a, b = x.split([4, 12], dim=2)
        x = torch.cat([F.pad(a, (0, 0, 0, 0, 0, 0, 1, -1)), b], dim=2)
        return x.view(8, 16, 8, 8)

    def scaled_after(self, x: Tensor) -> Tensor:
        return self.joined_in_time(x) * 2

    def mixed(self, x: Tensor) -> Tensor:
        return (x.flatten(2) @ torch.ones(64, 64)).view(8, 16, 8, 8)

    def copied_view(self, x: Tensor) -> Tensor:
        return x.reshape(8, 2, 8, 8, 8).transpose(1, 2).reshape(8, 16, 8, 8)

    def over_channels(self, x: Tensor) -> Tensor:
        return F.softmax(x.flatten(2), 1).view(8, 16, 8, 8)

    def kept_in_time(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1).view(2, 4, 8, 8, 16)
        a, b = x.split([4, 12], dim=4)
        x = torch.cat([F.pad(a, (0, 0, 0, 0, 0, 0, 1, -1)), b], dim=4)
        return x.view(8, 8, 8, 16).permute(0, 3, 1, 2)

    def halves(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        return torch.cat([F.silu(a), b], 1)

    def normalized(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.permute(0, 2, 3, 1), (16,)).permute(0, 3, 1, 2)


def found_in(between: str, folder: Path, *, last: bool = True) -> list[str]:
    """Return the operators at which such a program loses the order."""
    net = Net(between)
    order = torch.channels_last if last else torch.contiguous_format
    net = net.to(memory_format=order)
    x = torch.rand(8, 8, 8, 8).contiguous(memory_format=order)
    _, flow, _ = traced(lambda: net(x).sum().backward(), folder, net)
    return [flow.names[each.row].removeprefix("aten::") for each in lost_layouts(flow)]


@pytest.mark.parametrize(
    ("between", "operator"),
    [
        ("joined_in_time", "cat"),
        ("scaled_after", "cat"),
        ("copied_view", "reshape"),
        ("over_channels", "softmax"),
        ("mixed", "matmul"),
    ],
)
def test_lost(between: str, operator: str, tmp_path: Path) -> None:
    assert found_in(between, tmp_path) == [operator]


@pytest.mark.parametrize("between", ["kept_in_time", "halves", "normalized"])
def test_kept(between: str, tmp_path: Path) -> None:
    assert found_in(between, tmp_path) == []


def test_a_network_with_channels_first_has_none_to_lose(tmp_path: Path) -> None:
    assert found_in("joined_in_time", tmp_path, last=False) == []

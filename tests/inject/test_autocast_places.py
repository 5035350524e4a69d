"""Where the probe says that a program enters autocast or switches it off, on CPU torch."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.inject.test_probe import armed

pytestmark = pytest.mark.filterwarnings("ignore")


def line_here() -> int:
    return sys._getframe(1).f_lineno


DECORATED = line_here() + 3


@torch.autocast("cpu", enabled=False)
def blended(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.float() @ weight


WIDE_ONLY = torch.autocast("cpu", enabled=False)


@WIDE_ONLY
def summed(x: torch.Tensor) -> torch.Tensor:
    return x.sum()


class Wide(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return gradient @ weight.t(), x.t() @ gradient


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    with torch.autocast("cpu", enabled=False):
        yield


class Full:
    def __enter__(self) -> None:
        self.region = torch.autocast("cpu", enabled=False)
        self.region.__enter__()

    def __exit__(self, *why: Any) -> None:
        self.region.__exit__(*why)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            x = blended(x, self.fc.weight)
            x = Wide.apply(x, self.fc.weight)
            summed(x)
            with full_precision():
                x = self.fc(x.float())
            with Full():
                x = self.fc(x.float())
            with torch.autocast("cpu", enabled=False):
                return self.fc(x.float())


def entries() -> list[dict[str, Any]]:
    with armed() as lab:
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(4):
            net(torch.randn(2, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        noted = lab.probe.settings.record(last=True)
    assert noted is not None
    rows: list[dict[str, Any]] = noted["autocast"]["entries"]
    return rows


def test_who_enters_autocast_and_who_switches_it_off() -> None:
    first = Net.forward.__code__.co_firstlineno
    rows = [
        {key: value.replace(f"{__file__}:", "") if isinstance(value, str) else value for key, value in row.items()}
        for row in entries()
    ]
    by_line = {(row["line"], row["function"]): row for row in rows if row["kind"] != "decorate_bwd"}
    assert all(row["count"] == 1 and row["type"] == "cpu:bfloat16" for row in rows)
    assert [row["on"] for row in rows].count(True) == 1 and by_line[f"{first + 1}", None]["on"]
    decorated = by_line[f"{first + 2}", "blended"]
    assert (decorated["kind"], decorated["decorator"], decorated["file"]) == (
        "decorate_autocast",
        f"{DECORATED}",
        __file__,
    )
    casting = by_line[f"{first + 3}", "Wide.forward"]
    assert (casting["kind"], casting["decorator"]) == ("decorate_fwd", f"{DECORATED + 15}")
    assert by_line[f"{first + 4}", "summed"]["decorator"] == f"{DECORATED + 8}"
    around = {row["around"] for row in rows}
    assert around == {None, f"{first + 5}", f"{first + 7}"}
    assert by_line[f"{first + 9}", None]["on"] is False
    assert [row["function"] for row in rows if row["kind"] == "decorate_bwd"] == ["Wide.backward"]

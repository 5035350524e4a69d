"""NSX127: what layers do by an option of theirs is changed where such a layer is made, with the program's own statements."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from nsysx.model import Finding
from tests.findings.lined import all_is_transfer
from tests.findings.recorded_programs import recorded

WIDTH, RANKS = 16, 2
SLOW = ("allreduce_", "allgather_", "mm", "gelu", "cat")


@pytest.fixture(autouse=True)
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    all_is_transfer(monkeypatch)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


def add_up(x: Tensor) -> Tensor:
    dist.all_reduce(x)
    return x


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(RANKS)]
        dist.all_gather(parts, x)
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].chunk(RANKS, dim=-1)[0]


class Column(nn.Module):
    def __init__(self, inner: int, outer: int, whole: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outer // RANKS, inner))
        self.whole = whole

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight)
        if self.whole:
            y = Gather.apply(y)  # type: ignore[no-untyped-call]
        return y


class Row(nn.Module):
    def __init__(self, inner: int, outer: int, parted: bool = False, reduces: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outer, inner // RANKS))
        self.parted, self.reduces = parted, reduces
        self.parted = parted
        self.reduces = reduces

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.parted else x.chunk(RANKS, dim=-1)[0].contiguous()
        y = F.linear(x, self.weight)
        return add_up(y) if self.reduces else y


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = Column(WIDTH, 4 * WIDTH)
        self.down = Row(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(x)))


class Split(Whole):
    def __init__(self) -> None:
        super().__init__()
        self.up = Column(WIDTH, 4 * WIDTH, whole=False)
        self.down = Row(4 * WIDTH, WIDTH, parted=True)


class Beside(nn.Module):
    """Two branches of one input, whose outputs are added up by a line of their own."""

    def __init__(self, reduces: bool = True) -> None:
        super().__init__()
        self.left_up, self.right_up = Column(WIDTH, 4 * WIDTH, whole=False), Column(WIDTH, 2 * WIDTH, whole=False)
        if reduces:
            self.left = Row(4 * WIDTH, WIDTH, parted=True)
            self.right = Row(2 * WIDTH, WIDTH, parted=True)
        else:
            self.left, self.right = (Row(n * WIDTH, WIDTH, True, reduces) for n in (4, 2))

    def forward(self, x: Tensor) -> Tensor:
        left = self.left(F.gelu(self.left_up(x)))
        right = self.right(F.gelu(self.right_up(x)))
        left += right
        return x + left


class InOneLine(Beside):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.left(F.gelu(self.left_up(x))) + self.right(F.gelu(self.right_up(x)))


class Together(Beside):
    def __init__(self) -> None:
        super().__init__(reduces=False)

    def forward(self, x: Tensor) -> Tensor:
        left = self.left(F.gelu(self.left_up(x)))
        return x + add_up(left + self.right(F.gelu(self.right_up(x))))


def told(cls: type[nn.Module], setting: str, folder: Path) -> Finding | None:
    model = nn.Sequential(cls(), cls())
    x = torch.randn(128, WIDTH)

    def step() -> None:
        with torch.no_grad():
            model(x * 1).pow(2)

    found = recorded(step, model, __file__, folder, slow=SLOW, ranks=RANKS).found(folder, "NSX127")
    return next((f for f in found if f.evidence[0]["setting"] == setting), None)


def statements(finding: Finding | None) -> list[str]:
    assert finding is not None
    return [line.partition("  # line ")[0] for line in finding.paste.splitlines()]


def test_split_layers_are_made_so_that_nothing_is_gathered(tmp_path: Path) -> None:
    assert statements(told(Whole, "outputs cut apart again", tmp_path)) == [
        "self.up = Column(WIDTH, 4 * WIDTH, whole=False)",
        "self.down = Row(4 * WIDTH, WIDTH, parted=True)",
    ]


MADE = [
    "self.left = Row(4 * WIDTH, WIDTH, parted=True, reduces=False)",
    "self.right = Row(2 * WIDTH, WIDTH, parted=True, reduces=False)",
]


def test_a_sum_is_reduced_once_in_its_own_names(tmp_path: Path) -> None:
    assert statements(told(Beside, "reductions added up", tmp_path)) == [*MADE, "left += right", "left = add_up(left)"]


def test_what_is_no_part_of_the_sum_is_not_reduced(tmp_path: Path) -> None:
    assert statements(told(InOneLine, "reductions added up", tmp_path)) == [
        *MADE,
        "return x + add_up(self.left(F.gelu(self.left_up(x))) + self.right(F.gelu(self.right_up(x))))",
    ]


@pytest.mark.parametrize(("cls", "setting"), [(Split, "outputs cut apart again"), (Together, "reductions added up")])
def test_layers_that_are_made_so_are_told_nothing(cls: type[nn.Module], setting: str, tmp_path: Path) -> None:
    assert told(cls, setting, tmp_path) is None

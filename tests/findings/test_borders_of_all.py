"""NSX127: fields that every rank gathers whole and reads the borders of, in programs that torch runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from nsysx.model import Finding
from tests.findings.lined import all_is_transfer
from tests.findings.recorded_programs import recorded

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # newer names of the same collectives
RANKS, RANK, BORDER = 4, 1, 2
FIELD = torch.randn(2, 3, 16, 64)


def listed(u: Tensor) -> Tensor:
    full = [torch.empty_like(u) for _ in range(RANKS)]
    dist.all_gather(full, u)
    return torch.cat([full[RANK - 1][..., -BORDER:], u, full[RANK + 1][..., :BORDER]], -1)


def in_one(u: Tensor) -> Tensor:
    full = u.new_empty(RANKS, *u.shape)
    dist.all_gather_into_tensor(full, u)
    left, right = full[RANK - 1][..., -BORDER:], full[RANK + 1][..., :BORDER]
    return torch.cat([left, u, right], -1)


def stacked(u: Tensor) -> Tensor:
    """A helper that returns the neighbours' borders, by rows."""
    u = u.transpose(-1, -2).contiguous()
    full = u.new_empty(RANKS, *u.shape)
    dist.all_gather_into_tensor(full, u)
    before, behind = full.select(0, RANK - 1).narrow(-2, 0, BORDER), full.select(0, RANK + 1).narrow(-2, 60, BORDER)
    return torch.cat([before, u, behind], -2).transpose(-1, -2).contiguous()


def all_of_it(u: Tensor) -> Tensor:
    full = [torch.empty_like(u) for _ in range(RANKS)]
    dist.all_gather(full, u)
    return torch.cat(full, -1)


def in_one_all(u: Tensor) -> Tensor:
    full = u.new_empty(RANKS, *u.shape)
    dist.all_gather_into_tensor(full, u)
    return full.mean(0)


def borders_alone(u: Tensor) -> Tensor:
    mine = torch.cat([u[..., :BORDER], u[..., -BORDER:]], -1).contiguous()
    full = mine.new_empty(RANKS, *mine.shape)
    dist.all_gather_into_tensor(full, mine)
    return torch.cat([full[RANK - 1][..., BORDER:], u, full[RANK + 1][..., :BORDER]], -1)


@pytest.fixture(autouse=True)
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    all_is_transfer(monkeypatch)
    dist.init_process_group("fake", store=FakeStore(), rank=RANK, world_size=RANKS)
    yield
    dist.destroy_process_group()


def told(exchange: Callable[[Tensor], Tensor], folder: Path) -> Finding | None:
    stencil = nn.Conv2d(3, 3, 3)

    def step() -> None:
        with torch.no_grad():
            u = FIELD * 1
            for _ in range(3):
                u = stencil(exchange(u.contiguous()))[..., :64].tanh()
                u = nn.functional.pad(u, (0, 64 - u.shape[-1], 0, 16 - u.shape[-2]))

    found = recorded(step, stencil, __file__, folder).found(folder, "NSX127")
    return next((f for f in found if f.evidence[0]["setting"] == "rows of all ranks"), None)


@pytest.mark.parametrize("exchange", [listed, in_one, stacked])
def test_borders_are_sent_alone(exchange: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    found = told(exchange, tmp_path)
    assert found is not None and [r.name for r in found.remedies] == ["borders-sent"] and found.saving.bound
    assert "of what comes 1.6 % is read" in found.detail or "of what comes 2 % is read" in found.detail, found.detail


@pytest.mark.parametrize("exchange", [all_of_it, in_one_all, borders_alone])
def test_what_is_read_is_sent(exchange: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    found = told(exchange, tmp_path)
    assert found is None or [r.name for r in found.remedies] != ["borders-sent"]

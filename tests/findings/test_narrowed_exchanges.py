"""NSX127: exchanges of whole spectra of which a layer uses few modes, in programs that torch runs, and exchanges that need all."""

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

RANKS, ROWS, WIDE, MODES, KEPT = 2, 8, 16, 33, 4
FIELD = torch.randn(3, ROWS, 2 * (MODES - 1))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3, KEPT, KEPT))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("ixz,ioxz->oxz", x.real, self.weight)


def exchanged(x: Tensor) -> Tensor:
    """Rows become local, and modes are shared out; complex numbers are sent as pairs."""
    channels, rows, modes = x.shape
    sent = torch.view_as_real(x.reshape(channels, rows, RANKS, modes // RANKS).permute(2, 0, 1, 3).contiguous())
    came = torch.empty_like(sent)
    dist.all_to_all_single(came, sent)
    return torch.view_as_complex(came).permute(1, 0, 2, 3).reshape(channels, RANKS * rows, modes // RANKS)


def cut_behind(x: Tensor, index: Tensor) -> Tensor:
    return torch.fft.fft(exchanged(x[..., : 2 * WIDE]), dim=-2)[:, :, :KEPT][:, index]


def cut_before(x: Tensor, index: Tensor) -> Tensor:
    return torch.fft.fft(exchanged(x[..., : RANKS * KEPT].contiguous()), dim=-2)[:, index]


def all_read(x: Tensor, index: Tensor) -> Tensor:
    whole = torch.fft.fft(exchanged(x[..., : 2 * WIDE]), dim=-2)
    return whole[:, :KEPT, :KEPT] + whole.sum()


def one_cut(x: Tensor, index: Tensor) -> Tensor:
    """What is cut may be what is transformed."""
    return torch.fft.fft(exchanged(x[..., : RANKS * KEPT].contiguous()), dim=-2)[:, index]


@pytest.fixture(autouse=True)
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    all_is_transfer(monkeypatch)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


def told(transform: Callable[[Tensor, Tensor], Tensor], folder: Path, *, padded: bool = False) -> Finding | None:
    layer, index = Layer(), torch.tensor([0, 1, 2, 3])

    def step() -> None:
        with torch.no_grad():
            x = torch.fft.rfft(FIELD, dim=-1)
            y = layer(transform(x, index))
            if padded:
                whole = torch.zeros(3, RANKS * ROWS, WIDE)
                whole[:, :KEPT, :KEPT] = y
                exchanged(torch.fft.ifft(whole, dim=-2)[:, :, :]).abs().sum()
        y.requires_grad_().sum().backward()

    found = recorded(step, layer, __file__, folder).found(folder, "NSX127")
    return next((f for f in found if f.evidence[0]["setting"] == "rows of all ranks"), None)


@pytest.mark.parametrize("padded", [False, True])
def test_modes_that_are_cut_behind_an_exchange_need_not_be_sent(padded: bool, tmp_path: Path) -> None:
    finding = told(cut_behind, tmp_path, padded=padded)
    assert finding is not None and [each.name for each in finding.remedies] == ["cut-before-exchange"]
    # Of 16 modes 4 are used; of the rows, which are transformed, all are needed.
    assert "25 % is read" in finding.detail and finding.saving.bound
    assert finding.saving_ns_per_step == pytest.approx(0.75 * (1 + padded) * 10_000, rel=0.05)


def picked_behind(x: Tensor, index: Tensor) -> Tensor:
    """Rows that come back from experts with more room than tokens: which of them are read, each step's router says."""
    came = exchanged(x[..., : 2 * WIDE])
    chosen = torch.rand(RANKS * ROWS).argsort()[:KEPT]
    return came[:, chosen][:, :, :KEPT]


@pytest.mark.parametrize("transform", [cut_before, all_read, one_cut, picked_behind])
def test_exchanges_of_what_is_needed_are_silent(transform: Callable[[Tensor, Tensor], Tensor], tmp_path: Path) -> None:
    assert told(transform, tmp_path) is None

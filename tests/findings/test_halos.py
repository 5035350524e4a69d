"""NSX110: fields that wait for the borders of their neighbours, inside and all, in programs that torch runs; and other receives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from nsysx.findings import _halos
from nsysx.inject.nsysx_probe.changes.sent_rows import UNTRIED
from nsysx.model import Finding
from tests.findings.lined import all_is_transfer
from tests.findings.recorded_programs import recorded

RANKS, WIDE, LONG = 2, 2, 64
FIELD, OLDER = torch.randn(2, 3, 16, LONG), torch.zeros(2, 3, 16, WIDE)


class Stencil(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, (1, 2 * WIDE + 1))

    def forward(self, u: Tensor) -> Tensor:
        return self.conv(u).tanh()


def exchanged(u: Tensor, halo: Tensor) -> list[dist.Work]:
    ops = [dist.P2POp(dist.isend, u[..., -WIDE:].contiguous(), 1), dist.P2POp(dist.irecv, halo, 1)]
    return dist.batch_isend_irecv(ops)


def joined(stencil: nn.Module, u: Tensor) -> Tensor:
    halo = torch.empty(2, 3, 16, WIDE)
    for work in exchanged(u, halo):
        work.wait()
    return stencil(torch.cat([torch.zeros_like(halo), u, halo], -1))


def kept_buffer(stencil: nn.Module, u: Tensor) -> Tensor:
    for work in exchanged(u, OLDER):
        work.wait()
    return stencil(torch.cat([u[..., :WIDE], u, OLDER], -1))


def padded(stencil: nn.Module, u: Tensor) -> Tensor:
    halo = torch.empty(2, 3, 16, WIDE)
    whole = torch.zeros(2, 3, 16, LONG + 2 * WIDE)
    whole[..., WIDE:-WIDE] = u
    for work in exchanged(u, halo):
        work.wait()
    whole[..., -WIDE:] = halo
    return stencil(whole)


def inside_first(stencil: nn.Module, u: Tensor) -> Tensor:
    halo = torch.empty(2, 3, 16, WIDE)
    works = exchanged(u, halo)
    new = torch.empty_like(u)
    new[..., WIDE:-WIDE] = stencil(u)
    for work in works:
        work.wait()
    new[..., :WIDE] = stencil(torch.cat([torch.zeros_like(halo), u[..., : 2 * WIDE]], -1))
    new[..., -WIDE:] = stencil(torch.cat([u[..., -2 * WIDE :], halo], -1))
    return new


def stage(stencil: nn.Module, u: Tensor) -> Tensor:
    came = torch.empty_like(u)
    ops = [dist.P2POp(dist.isend, u, 1), dist.P2POp(dist.irecv, came, 1)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return stencil(nn.functional.pad(came, (WIDE, WIDE)))


def halves(stencil: nn.Module, u: Tensor) -> Tensor:
    """What comes is as much as what is there."""
    came = torch.empty_like(u)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, u, 1), dist.P2POp(dist.irecv, came, 1)]):
        work.wait()
    return stencil(torch.cat([u, came], -1))[..., :LONG]


def corrected(stencil: nn.Module, u: Tensor) -> Tensor:
    """What comes is computed with, and put beside nothing."""
    few = torch.empty(2, 3, 16, WIDE)
    for work in exchanged(u, few):
        work.wait()
    return stencil(nn.functional.pad(u * few.mean(), (WIDE, WIDE)))


@pytest.fixture(autouse=True)
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    all_is_transfer(monkeypatch)
    all_is_transfer(monkeypatch, _halos)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


def of_layers(layers: int, folder: Path, *, wide: bool = False) -> list[Finding]:
    """Return what is found of a step that exchanges a border before each of its layers, or one for all of them."""
    stencils = nn.ModuleList(Stencil() for _ in range(layers))

    def step() -> None:
        with torch.no_grad():
            u = FIELD * 1
            for each in stencils:
                u = nn.functional.pad(each(u), (WIDE, WIDE)) if wide else joined(each, u.contiguous())

    return [f for f in recorded(step, stencils, __file__, folder).found(folder, "NSX110") if f.remedies]


def test_short_exchanges_before_each_layer_can_be_one(tmp_path: Path) -> None:
    (finding,) = (f for f in of_layers(6, tmp_path) if f.remedies[0].name == "wider-border")
    assert "Exchange a border of 6 times the width once" in finding.fix and finding.saving.bound
    assert finding.title == "A whole field waits for the borders of its neighbours before each of several layers"


@pytest.mark.parametrize("kind", ["few", "long", "none"])
def test_few_and_long_exchanges_stay(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "long":
        monkeypatch.setattr(_halos, "SHORT_EXCHANGE_NS", 1)
    found = of_layers(3 if kind == "few" else 6, tmp_path, wide=kind == "none")
    assert "wider-border" not in {each.name for f in found for each in f.remedies}


def told(substep: Callable[[nn.Module, Tensor], Tensor], folder: Path) -> Finding | None:
    stencil = Stencil()

    def step() -> None:
        with torch.no_grad():
            u = FIELD * 1
            for _ in range(3):
                u = substep(stencil, u.contiguous())

    found = recorded(step, stencil, __file__, folder).found(folder, "NSX110")
    return next((f for f in found if any(r.name == "inside-first" for r in f.remedies)), None)


@pytest.mark.parametrize("substep", [joined, kept_buffer, padded])
def test_the_inside_is_computed_while_borders_travel(
    substep: Callable[[nn.Module, Tensor], Tensor], tmp_path: Path
) -> None:
    found = told(substep, tmp_path)
    assert found is not None and found.title == "A whole field waits for the borders of its neighbours"
    assert "they are 2.9 %" in found.fix and "of what is computed on (train.py:" in found.fix


@pytest.mark.parametrize("substep", [inside_first, stage, halves, corrected])
def test_other_receives_are_waited_for(substep: Callable[[nn.Module, Tensor], Tensor], tmp_path: Path) -> None:
    assert told(substep, tmp_path) is None


def test_a_wider_border_computes_the_same() -> None:
    paste = next(r.example for r in UNTRIED if r.name == "wider-border")
    convs = [nn.Conv2d(3, 3, (1, 3)) for _ in range(4)]
    with torch.no_grad():
        whole = FIELD
        for conv in convs:
            whole = nn.functional.gelu(conv(whole))
        part = slice(20, 30)  # of one rank, away from the edges of the whole field

        def exchange_halo(x: Tensor, width: int) -> Tensor:
            return FIELD[..., part.start - width : part.stop + width]

        names = {"F": nn.functional, "convs": convs, "exchange_halo": exchange_halo, "x": FIELD[..., part]}
        exec(paste, names)
        wanted = whole[..., part.start - len(convs) : part.stop - len(convs)]
        assert torch.allclose(names["x"], wanted, atol=1e-6)  # type: ignore[arg-type]


def test_the_inside_first_computes_the_same() -> None:
    with torch.no_grad():
        stencil, u = Stencil(), FIELD * 1
        zeros = torch.zeros(2, 3, 16, WIDE)
        new = torch.empty_like(u)
        new[..., WIDE:-WIDE] = stencil(u)
        new[..., :WIDE] = stencil(torch.cat([zeros, u[..., : 2 * WIDE]], -1))
        new[..., -WIDE:] = stencil(torch.cat([u[..., -2 * WIDE :], zeros], -1))
        assert torch.allclose(new, stencil(torch.cat([zeros, u, zeros], -1)), atol=1e-6)

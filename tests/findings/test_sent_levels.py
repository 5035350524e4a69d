"""NSX110: skips of all levels that cross a link between two ranks, and stages that send one tensor, or several of one size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from nsysx.findings import _sent_levels
from nsysx.model import Finding
from tests.findings.lined import all_is_transfer
from tests.findings.recorded_programs import recorded

SIDE, LEVELS, MICRO_BATCHES = 16, 3, 2
X = torch.randn(2, 1, SIDE, SIDE)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.levels = nn.ModuleList(
            nn.Conv2d(1 if not i else 4 * i, 4 * (i + 1), 3, padding=1, stride=1 + (i > 0)) for i in range(LEVELS)
        )

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        skips = list[torch.Tensor]()
        for level in self.levels:
            x = level(x).relu()
            skips.append(x)
        return skips


@pytest.fixture(autouse=True)
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    all_is_transfer(monkeypatch)
    all_is_transfer(monkeypatch, _sent_levels)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


def told(sent: Sequence[int], folder: Path) -> list[Finding]:
    """Return what is found of a stage that sends these levels of each micro-batch, and is sent their gradients."""
    encoder = Encoder()

    def step() -> None:
        for _ in range(MICRO_BATCHES):
            skips = encoder(X)
            chosen = [skips[each] for each in sent]
            gradients = list[torch.Tensor]()
            for skip in chosen:
                dist.send(skip.detach().contiguous(), 1)
                gradients.append(torch.zeros_like(skip))
            for gradient in gradients:
                dist.recv(gradient, 1)
            torch.autograd.backward(chosen, gradients)

    found = recorded(step, encoder, __file__, folder).found(folder, "NSX110")
    return [f for f in found if "cut-between-levels" in [each.name for each in f.remedies]]


def test_skips_of_all_levels_that_are_sent_are_told(tmp_path: Path) -> None:
    (finding,) = told([0, 1, 2], tmp_path)
    assert finding.title == "Skip connections of all levels are sent from one rank to another"
    assert "skips of 3 levels" in finding.fix and finding.saving.bound


@pytest.mark.parametrize("sent", [[2], [1, 2], [1, 1, 1]], ids=["one level", "two levels", "several of one level"])
def test_stages_that_send_few_levels_are_silent(sent: list[int], tmp_path: Path) -> None:
    assert told(sent, tmp_path) == []

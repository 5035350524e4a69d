"""NSX131: auxiliary logits enlarged to the size of the labels, and outputs that are compared at the size that they need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nsysx.inject.nsysx_probe.changes.matrices import UNTRIED
from nsysx.model import Finding
from tests.findings.recorded_programs import recorded

CLASSES, SIDE = 6, 16
IMAGES, LABELS = torch.randn(2, 1, SIDE, SIDE, SIDE), torch.randint(CLASSES, (2, SIDE, SIDE, SIDE))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv3d(1, 4, 3, padding=1)
        self.deeper = nn.ModuleList(nn.Conv3d(4, 4, 3, padding=1, stride=2) for _ in range(2))
        self.heads = nn.ModuleList(nn.Conv3d(4, CLASSES, 1) for _ in range(3))

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.first(x)
        outputs = [self.heads[0](x)]
        for layer, head in zip(self.deeper, self.heads[1:], strict=False):
            x = layer(x)
            outputs.append(head(x))
        return outputs


def enlarged(outputs: list[Tensor]) -> Tensor:
    loss = F.cross_entropy(outputs[0], LABELS)
    for level, logits in enumerate(outputs[1:]):
        up = F.interpolate(logits.float(), size=LABELS.shape[1:], mode="trilinear")
        loss = loss + 0.5**level * F.cross_entropy(up, LABELS)
    return loss


def by_upsample(outputs: list[Tensor]) -> Tensor:
    loss, grow = F.cross_entropy(outputs[0], LABELS), nn.Upsample(size=(SIDE, SIDE, SIDE), mode="nearest")
    for logits in outputs[1:]:
        loss = loss + F.nll_loss(F.log_softmax(grow(logits), 1), LABELS)
    return loss


def smaller_labels(outputs: list[Tensor]) -> Tensor:
    loss = F.cross_entropy(outputs[0], LABELS)
    for level, logits in enumerate(outputs[1:]):
        s = 2 ** (level + 1)
        loss = loss + F.cross_entropy(logits, LABELS[:, ::s, ::s, ::s])
    return loss


def one_answer(outputs: list[Tensor]) -> Tensor:
    return F.cross_entropy(F.interpolate(outputs[2], size=LABELS.shape[1:], mode="trilinear"), LABELS)


def answers_joined(outputs: list[Tensor]) -> Tensor:
    up = [F.interpolate(each, size=LABELS.shape[1:], mode="trilinear") for each in outputs[1:]]
    return F.cross_entropy(outputs[0] + up[0] + up[1], LABELS)


def told(loss: Callable[[list[Tensor]], Tensor], folder: Path) -> list[Finding]:
    net = Net()
    found = recorded(lambda: loss(net(IMAGES)).backward(), net, __file__, folder).found(folder, "NSX131")
    return [f for f in found if f.remedies and f.remedies[0].name == "labels-made-smaller"]


@pytest.mark.parametrize("loss", [enlarged, by_upsample])
def test_auxiliary_logits_are_compared_at_their_size(loss: Callable[[list[Tensor]], Tensor], tmp_path: Path) -> None:
    (finding,) = told(loss, tmp_path)
    assert "enlarges auxiliary logits up to 64 times" in finding.title and "2 of 3 losses" in finding.detail
    assert finding.saving.bound and (finding.saving_ns_per_step or 0) > 0


@pytest.mark.parametrize("loss", [smaller_labels, one_answer, answers_joined])
def test_other_losses_are_silent(loss: Callable[[list[Tensor]], Tensor], tmp_path: Path) -> None:
    assert told(loss, tmp_path) == []


def test_the_paste_takes_one_label_of_each_block() -> None:
    paste = next(r.example for r in UNTRIED if r.name == "labels-made-smaller")
    outputs = Net()(IMAGES)
    for level, logits in enumerate(outputs[1:]):
        names = {"F": F, "labels": LABELS, "logits": logits, "weight": 1.0, "loss": 0.0}
        exec(paste, names)
        s = 2 ** (level + 1)
        wanted = F.cross_entropy(logits, LABELS[:, ::s, ::s, ::s])
        assert torch.equal(cast(Tensor, names["loss"]), wanted)

"""NSX131: one-hot rows of all pixels for a sum over them (Dice, Jaccard), and such that something else needs."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nsysx.findings._class_pastes import compared_classes
from nsysx.model import Finding
from tests.findings.recorded_programs import from_host, recorded

CLASSES = 7
LINE = "oh = F.one_hot(target, 7).permute(0, 3, 1, 2).float()"


def dice(logits: Tensor, target: Tensor) -> Tensor:
    p = logits.float().softmax(1)
    oh = F.one_hot(target, 7).permute(0, 3, 1, 2).float()
    inter = (p * oh).sum((2, 3))
    card = p.sum((2, 3)) + oh.sum((2, 3))
    return 1 - ((2 * inter + 1e-5) / (card + 1e-5)).mean()


def smoothed(logits: Tensor, target: Tensor) -> Tensor:
    rows = F.one_hot(target, 7).float()
    rows = rows * 0.9 + 0.1 / 7
    return -(rows * logits.permute(0, 2, 3, 1).log_softmax(-1)).sum(-1).mean()


def remedies(loss: object, folder: Path) -> dict[str, Finding]:
    net = nn.Conv2d(3, CLASSES, 1)

    def step() -> None:
        x, y = from_host(torch.randn(2, 3, 8, 8)), from_host(torch.randint(CLASSES, (2, 8, 8)))
        loss(net(x), y).backward()  # type: ignore[operator]

    found = recorded(step, net, __file__, folder, slow=("scatter_", "mul", "_to_copy")).found(folder, "NSX131")
    return {f.remedies[0].name: f for f in found if f.remedies}


def test_one_hot_rows_of_all_pixels(tmp_path: Path) -> None:
    told = remedies(dice, tmp_path)
    assert "classes-as-numbers" not in told
    finding = told["classes-compared"]
    assert finding.paste == (
        "oh = target[:, None] == torch.arange(7, device=target.device).view(-1, 1, 1)\n"
        "dice = torch.compile(dice)  # fused, nothing of this is written"
    )
    assert (finding.saving_ns_per_step or 0) > 0


def test_rows_of_a_smoothed_loss_stay_classes_as_numbers(tmp_path: Path) -> None:
    told = remedies(smoothed, tmp_path)
    assert "classes-compared" not in told and "classes-as-numbers" in told


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (LINE, "oh = target[:, None] == torch.arange(7, device=target.device).view(-1, 1, 1)"),
        (
            "t = F.one_hot(y.squeeze(1).long(), num_classes=C).permute(0, 4, 1, 2, 3)",
            "t = y.squeeze(1)[:, None] == torch.arange(C, device=y.squeeze(1).device).view(-1, 1, 1, 1)",
        ),
        ("t = one_hot(y, C).movedim(-1, 1)", "t = y[:, None] == torch.arange(C, device=y.device).view(-1, 1, 1)"),
        ("t = F.one_hot(y, C).permute(0, 2, 1, 3)", None),
        ("t = F.one_hot(y).permute(0, 3, 1, 2)", None),
    ],
)
def test_the_paste(text: str, wanted: str | None) -> None:
    assert compared_classes(text, "main") == wanted


def test_the_paste_gives_the_same() -> None:
    paste = (compared_classes(LINE, "main") or "").splitlines()[0]
    logits, target = torch.randn(2, CLASSES, 4, 4, requires_grad=True), torch.randint(CLASSES, (2, 4, 4))
    names = {"torch": torch, "target": target, "p": logits.softmax(1)}
    exec(paste, names)
    exec("inter, card = (p * oh).sum((2, 3)), p.sum((2, 3)) + oh.sum((2, 3))", names)
    inter, card = cast(Tensor, names["inter"]), cast(Tensor, names["card"])
    loss = 1 - ((2 * inter + 1e-5) / (card + 1e-5)).mean()
    wanted = dice(logits, target)
    assert torch.allclose(loss, wanted)
    assert torch.allclose(*(torch.autograd.grad(each, logits, retain_graph=True)[0] for each in (loss, wanted)))

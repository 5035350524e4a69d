"""NSX137: heads whose results a line multiplies by zero, and factors that only look like that."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from nsysx.findings._fix import Fix
from nsysx.model import Finding
from tests.findings.recorded_programs import recorded

TASKS = ("boxes", "depth", "edges", "masks")


class Heads(torch.nn.Module):
    """A trunk, and a head for each task, of which a batch has targets for one."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = torch.nn.Conv2d(3, 8, 3, padding=1)
        make = torch.nn.Conv2d
        self.heads = torch.nn.ModuleDict(
            {task: torch.nn.Sequential(make(8, 8, 3, padding=1), torch.nn.ReLU(), make(8, 2, 1)) for task in TASKS}
        )


class Loss:
    """How a program adds up the losses of its tasks."""

    def __init__(self, net: Heads) -> None:
        self.net = net

    def of_all(self, x: torch.Tensor, targets: dict[str, torch.Tensor]) -> torch.Tensor:
        feats, loss = self.net.trunk(x), x.new_zeros(())
        for task, head in self.net.heads.items():
            out = head(feats)
            loss = loss + (F.mse_loss(out, targets[task]) if task in targets else 0.0 * out.sum())
        return loss

    def behind(self, x: torch.Tensor, targets: dict[str, torch.Tensor]) -> torch.Tensor:
        feats = self.net.trunk(x)
        outs = {task: head(feats) for task, head in self.net.heads.items()}
        loss = sum(F.mse_loss(outs[task], y) for task, y in targets.items())
        for task in outs.keys() - targets.keys():
            loss = loss + outs[task].mean() * 0
        return loss  # type: ignore[return-value]

    def parameters_alone(self, x: torch.Tensor, targets: dict[str, torch.Tensor]) -> torch.Tensor:
        feats = self.net.trunk(x)
        heads, loss = self.net.heads, sum(F.mse_loss(self.net.heads[task](feats), y) for task, y in targets.items())
        given = {"heads": heads, "targets": targets, "loss": loss}
        exec(Fix.by_name("zeroed-parameters").paste, given)
        return given["loss"]  # type: ignore[return-value]

    def weighed(self, x: torch.Tensor, targets: dict[str, torch.Tensor]) -> torch.Tensor:
        feats, loss, weight = self.net.trunk(x), x.new_zeros(()), 0.0
        for task, head in self.net.heads.items():
            out = head(feats)
            loss = loss + (F.mse_loss(out, targets[task]) if task in targets else weight * out.sum() + 10.0 * out.sum())
        return loss

    def read_elsewhere(self, x: torch.Tensor, targets: dict[str, torch.Tensor]) -> torch.Tensor:
        feats, loss, shared = self.net.trunk(x), x.new_zeros(()), x.new_zeros(())
        for task, head in self.net.heads.items():
            out = head(feats)
            shared = shared + out.square().mean()
            loss = loss + (F.mse_loss(out, targets[task]) if task in targets else 0.0 * out.sum())
        return loss + shared


def batch() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    return torch.randn(2, 3, 8, 8), {"depth": torch.randn(2, 2, 8, 8)}


def found(form: str, folder: Path) -> list[Finding]:
    net = Heads()
    loss = getattr(Loss(net), form)

    def step() -> None:
        loss(*batch()).backward()
        net.zero_grad()

    findings = recorded(step, net, __file__, folder, slow=("conv2d",)).found(folder, "NSX137")
    return [each for each in findings if each.remedies[0].name == "zeroed-parameters"]


@pytest.mark.parametrize("form", ["of_all", "behind"])
def test_heads_that_are_multiplied_by_zero(form: str, tmp_path: Path) -> None:
    (finding,) = found(form, tmp_path)
    assert "multiplies by zero what 3 calls of modules" in finding.title
    assert finding.where["line"] == getattr(Loss, form).__code__.co_firstlineno + (4 if form == "of_all" else 5)
    # Of each head two convolutions of 60 us and what lies between, in forward; 20 us for each node of backward.
    assert 3 * 2 * 60_000 < (finding.saving_ns_per_step or 0) < 3 * (3 * 60_000 + 8 * 20_000)


@pytest.mark.parametrize("form", ["parameters_alone", "weighed", "read_elsewhere"])
def test_what_is_needed(form: str, tmp_path: Path) -> None:
    assert not found(form, tmp_path)


def test_the_paste_gives_the_same_gradients() -> None:
    net, gradients = Heads(), []
    x, targets = batch()
    for form in ("of_all", "parameters_alone"):
        net.zero_grad()
        getattr(Loss(net), form)(x, targets).backward()
        gradients.append([p.grad.clone() for p in net.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(list(net.parameters()))
    for before, after in zip(*gradients, strict=True):
        assert torch.allclose(before, after)

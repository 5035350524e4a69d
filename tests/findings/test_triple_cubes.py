"""NSX131: cubes of all triples of samples that a mask keeps few of, and cubes that are something else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from nsysx.findings._fix import Fix
from nsysx.model import Finding
from tests.findings.recorded_programs import from_host, recorded

SAMPLES, WIDTH, CLASSES = 24, 4, 6


def cube(d: torch.Tensor, y: torch.Tensor, margin: float = 0.2) -> torch.Tensor:
    t = d.unsqueeze(2) - d.unsqueeze(1) + margin
    same = y[:, None] == y[None]
    ok = same[:, :, None] & ~same[:, None, :] & ~torch.eye(len(y), dtype=torch.bool)[:, :, None]
    t = F.relu(t * ok.float())
    return t.sum() / ((t > 1e-16).float().sum() + 1e-16)


def indexed(dist: torch.Tensor, y: torch.Tensor, slack: float = 0.2) -> torch.Tensor:
    loss = dist[:, :, None] - dist[:, None] + slack
    same = y[:, None] == y[None]
    return torch.where(same[:, :, None] & ~same[:, None, :], loss.relu(), 0).sum()


def listed(d: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    t = d[:, :4, None] - d[:, None, :] + 0.2
    return (t.relu() * (y[None, :4, None] != y[:, None, None])).sum()


def hardest(d: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    same = y[:, None] == y[None]
    return F.relu((d * same).max(1).values - (d + 9 * same).min(1).values + 0.2).mean()


def of_all(d: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (d.unsqueeze(2) - d.unsqueeze(1)).square().mean()  # every triple counts


def found(loss_of: object, folder: Path) -> list[Finding]:
    net = torch.nn.Linear(WIDTH, WIDTH)

    def step() -> None:
        y = from_host(torch.arange(SAMPLES) % CLASSES)
        made = net(from_host(torch.randn(SAMPLES, WIDTH)))
        loss_of(torch.cdist(made, made), y).backward()  # type: ignore[operator]
        net.zero_grad()

    findings = recorded(step, net, __file__, folder, slow=("sub", "mul", "relu", "where")).found(folder, "NSX131")
    return [each for each in findings if each.remedies[0].name == "positives-as-list"]


@pytest.mark.parametrize(
    ("loss_of", "names"), [(cube, ("d.gather", "+ margin")), (indexed, ("dist.gather", "+ slack"))]
)
def test_a_cube_of_which_few_triples_count(loss_of: object, names: tuple[str, ...], tmp_path: Path) -> None:
    (finding,) = found(loss_of, tmp_path)
    assert "all triples of 24 samples" in finding.title and finding.saving.bound
    assert finding.where["line"] == loss_of.__code__.co_firstlineno + 1  # type: ignore[attr-defined]
    assert all(name in finding.paste for name in names)
    assert 0 < (finding.saving.likely_ns or 0) < (finding.cost_ns_per_step or 0)
    compile(finding.paste, "paste", "exec")


@pytest.mark.parametrize("loss_of", [listed, hardest, of_all])
def test_other_distances(loss_of: object, tmp_path: Path) -> None:
    assert not found(loss_of, tmp_path)


def test_the_paste_gives_the_same_loss_and_gradients() -> None:
    x, y = torch.randn(SAMPLES, WIDTH), torch.randint(0, CLASSES, (SAMPLES,))
    d = torch.cdist(x, x).requires_grad_()
    cube(d, y).backward()
    assert d.grad is not None
    before, d.grad = d.grad.clone(), None
    given = {"torch": torch, "F": F, "d": d, "y": y, "margin": 0.2, "k": int(y.bincount().max()) - 1}
    exec(Fix.by_name("positives-as-list").paste, given)
    given["loss"].backward()
    assert torch.allclose(given["loss"], cube(d, y)) and torch.allclose(before, d.grad, atol=1e-6)

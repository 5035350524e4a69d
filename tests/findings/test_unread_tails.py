"""NSX137: networks that run on behind the last layer that something reads, and networks all of which is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nsysx.findings._unread_tails import paste_of
from nsysx.model import Finding
from tests.findings.recorded_programs import from_host, recorded

WIDTH, WORDS, LAYERS, READ = 8, 20, 8, 4


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + cast(Tensor, self.down(F.gelu(self.up(x))))


class Net(nn.Module):
    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
        x = self.embedding(ids)
        hidden = [x]
        for layer in self.layers:
            x = layer(x)
            hidden.append(x)
        return self.head(x), hidden


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = Net(2), Net().requires_grad_(False)


def distilled(pair: Pair, ids: Tensor, kind: str) -> Tensor:
    with torch.no_grad():
        logits, hidden = pair.teacher(ids)
    scores, inner = pair.student(ids)
    loss = F.cross_entropy(scores.flatten(0, 1), ids.flatten())
    if kind == "logits":
        loss = loss + F.mse_loss(scores, logits)
    elif kind == "last":
        loss = loss + F.mse_loss(inner[-1], hidden[-1])
    if kind == "another call":
        with torch.no_grad():
            loss = loss + F.mse_loss(scores, pair.teacher(ids.flip(1))[0])
    return cast(Tensor, loss + F.mse_loss(inner[-1], hidden[READ]))


def perceptual(pair: Pair, ids: Tensor, kind: str) -> Tensor:
    """Features that hooks keep, of two calls, through one of which gradients go."""
    kept, teacher = list[Tensor](), pair.teacher
    hooks = [teacher.layers[n].register_forward_hook(lambda m, a, out: kept.append(out)) for n in (1, READ - 1)]
    teacher(ids)
    wanted, kept = kept[:2], kept[2:]
    x = pair.student.embedding(ids)
    for layer in teacher.layers[: LAYERS if kind == "body" else 1]:
        x = layer(x)
    for hook in hooks:
        hook.remove()
    return cast(Tensor, sum(F.l1_loss(x, each) for each in wanted))


def told(loss: Callable[[Pair, Tensor, str], Tensor], kind: str, folder: Path) -> list[Finding]:
    pair = Pair()
    optimizer = torch.optim.SGD(pair.student.parameters(), 0.1)

    def step() -> None:
        loss(pair, from_host(torch.randint(WORDS, (4, 6))), kind).backward()
        optimizer.step()
        optimizer.zero_grad()

    found = recorded(step, pair, __file__, folder, slow=("linear",)).found(folder, "NSX137")
    return [f for f in found if f.remedies and f.remedies[0].name == "cut-behind-feature"]


def test_a_hidden_state_of_a_teacher(tmp_path: Path) -> None:
    (finding,) = told(distilled, "", tmp_path)
    assert "runs Net to its end, and nothing reads what comes behind layers.3" in finding.title
    # The second half of the layers, and the head.
    assert (finding.saving_ns_per_step or 0) > 0.8 * 60_000 * (2 * (LAYERS - READ) + 1)
    assert finding.paste == (
        "pair.teacher.layers = pair.teacher.layers[:4]  # once, behind loading\npair.teacher.head = torch.nn.Identity()"
    )


@pytest.mark.parametrize("kind", ["logits", "last", "another call"])
def test_what_is_read_to_its_end(kind: str, tmp_path: Path) -> None:
    assert [f for f in told(distilled, kind, tmp_path) if "layers" in f.title.partition("behind")[2]] == []


def test_features_that_hooks_keep(tmp_path: Path) -> None:
    (finding,) = told(perceptual, "", tmp_path)
    assert "behind layers.3" in finding.title and "teacher.layers[:4]" in finding.paste


def test_the_paste_keeps_the_features() -> None:
    paste = paste_of("net", "layers.3.down", ["layers.4", "layers.4.up", "layers.5", "head"])
    assert paste is not None
    net, ids = Net(), torch.randint(WORDS, (2, 3))
    wanted = net(ids)[1][READ]
    exec(paste, {"torch": torch, "net": net})
    last, hidden = net(ids)
    assert torch.equal(hidden[READ], wanted) and torch.equal(last, wanted)


def test_no_list_of_layers_and_no_part_behind() -> None:
    assert paste_of("net", "body", ["head"]) == "net.head = torch.nn.Identity()  # once, behind loading"
    assert paste_of("net", "layers.3", ["layers.2"]) is None

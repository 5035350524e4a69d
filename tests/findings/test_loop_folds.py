"""NSX132: a loop over parts of a tensor as one call, in the names of its lines; what it makes is what the rounds' joined results were."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from nsysx.events.operator_flow import flow_of
from nsysx.findings._calls_in_loop import in_names_of_loop
from nsysx.findings._fix import Fix
from nsysx.findings._loop_folds import folded_loop
from nsysx.pipeline import ReadingOptions, gather_job
from tests.findings.recorded_programs import from_host, recorded

WIDTH, ROUNDS = 16, 8

FOLDED = (
    (
        "feats = []\nfor t in range(clip.shape[1]):\n    feats.append(net(clip[:, t]))\ny = torch.stack(feats, dim=1)",
        "y = net(clip.flatten(0, 1)).unflatten(0, clip.shape[:2])",
    ),
    (
        "y = torch.stack([net(clip[:, i]) for i in range(n)], 1)",
        "y = net(clip[:, :n].flatten(0, 1)).unflatten(0, (len(clip), -1))",
    ),
    (
        "b, n = clip.shape[:2]\ny = torch.stack([net(clip[:, i].float()) for i in range(n)], -1)",
        "y = net(clip.flatten(0, 1).float()).unflatten(0, clip.shape[:2]).movedim(1, -1)",
    ),
    (
        "parts = [net(each) for each in clip.unbind(1)]\ny = torch.cat(parts)",
        "y = net(clip.transpose(0, 1).flatten(0, 1))",
    ),
    (
        "y = torch.cat([net(each) for each in torch.unbind(clip, 1)], dim=1)",
        "y = net(clip.flatten(0, 1)).unflatten(0, clip.shape[:2]).flatten(1, 2)",
    ),
    (
        "parts: list[object] = []\nfor each in clip:\n    z = net(each)\n    parts.append(z)\ny = torch.cat(parts, -1)",
        "y = net(clip.flatten(0, 1)).unflatten(0, clip.shape[:2]).movedim(0, -2).flatten(-2, -1)",
    ),
    (
        "y = torch.stack([net(clip[i]) for i in range(2)])",
        "y = net(clip[:2].flatten(0, 1)).unflatten(0, (2, -1))",
    ),
    (
        "x = clip.movedim(-1, 2)\ny = torch.stack([head(net(x.select(3, i))) for i in range(x.size(3))], 2)",
        "y = head(net(x.movedim(3, 1).flatten(0, 1))).unflatten(0, (len(x), -1)).movedim(1, 2)",
    ),
    (
        "feats = []\nfor t in range(clip.size(1)):\n    feats.append(net(clip[:, t]))\ny = torch.stack(feats, 1) + feats[0][:, None]",
        "feats = net(clip.flatten(0, 1)).unflatten(0, clip.shape[:2]).unbind(1)",
    ),
)  # fmt: skip


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.randn(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.movedim(1, -1) @ self.weight[: x.shape[1], : x.shape[1]]).movedim(-1, 1).tanh()


def numbered(text: str) -> dict[int, str]:
    return dict(enumerate(textwrap.indent(text, "    ").splitlines(), 5))


def calling(lines: dict[int, str]) -> int:
    return next(number for number, text in lines.items() if "net(" in text)


@pytest.mark.parametrize(("text", "paste"), FOLDED)
def test_a_loop_is_one_call(text: str, paste: str) -> None:
    lines = numbered(text)
    folded = folded_loop(lines, calling(lines), lines)
    assert folded.partition("  #")[0] == paste
    net = Net()
    before = {"torch": torch, "net": net, "head": net, "clip": torch.randn(2, 3, 3, 3), "n": 2}
    after = dict(before)
    exec(text, before)
    after |= {name: before[name] for name in ("x", "n") if name in before}
    exec(folded, after)
    if "y = " not in folded:
        exec(text.splitlines()[-1], after)
    torch.testing.assert_close(before["y"], after["y"])


@pytest.mark.parametrize(
    "text",
    [
        # More than the parts, the round's number elsewhere, what one round makes of another, other statements in the loop.
        "y = torch.stack([net(clip[:, t], cond) for t in range(n)], 1)",
        "y = torch.stack([net(clip[:, t]) + pos[t] for t in range(n)], 1)",
        "y = torch.stack([net(clip[:, t : t + 2]) for t in range(n)], 1)",
        "y = torch.stack([net(clip[:, t]) for t in range(n) if keep[t]], 1)",
        "feats = []\nfor t in range(n):\n    h = net(h)\n    feats.append(h)\ny = torch.stack(feats, 1)",
        "feats = []\nfor t in range(n):\n    feats.append(net(clip[:, t]))\n    log(t)\ny = torch.stack(feats, 1)",
        # More in the list, or a list of what is no tensor, or of which nothing joins the parts.
        "feats = [first]\nfor t in range(n):\n    feats.append(net(clip[:, t]))\ny = torch.stack(feats, 1)",
        "feats = []\nfor t in range(n):\n    feats.append(net(clip[:, t]))\nfeats.append(z)\ny = torch.stack(feats, 1)",
        "feats = []\nfor t in range(n):\n    feats.append(net(clip[:, t]))\ny = feats",
        "y = torch.stack([F.normalize(net(clip[:, t])) for t in range(n)], 1)",
        "y = torch.stack([net(each) for each in clips], 1)",
        "y = torch.stack([net(clip[:, t]) for t in range(n)], d)",
        "for clip, label in loader:\n    y = net(clip)",
        "y = net(clip)",
    ],
)
def test_other_loops_stay(text: str) -> None:
    lines = numbered(text)
    assert not folded_loop(lines, calling(lines))


class Encoder(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)), norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


class Clips(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = Encoder(norm), nn.Linear(WIDTH, WIDTH)

    def forward(self, clip: torch.Tensor) -> torch.Tensor:
        feats = []
        for frame in clip.unbind(1):
            z = self.encoder(frame)
            feats.append(z)
        x = torch.stack(feats, dim=1)
        return self.head(x)  # type: ignore[no-any-return]


class Prepared(Clips):
    """The same of frames that a list holds."""

    def forward(self, clip: torch.Tensor) -> torch.Tensor:
        return self.joined(list(clip.unbind(1)))

    def joined(self, frames: list[torch.Tensor]) -> torch.Tensor:
        x = torch.stack([self.encoder(frame) for frame in frames], dim=1)
        return self.head(x)  # type: ignore[no-any-return]


def told(net: Clips, folder: Path) -> Fix | None:
    clip = torch.randn(4, ROUNDS, WIDTH)

    def step() -> None:
        net(from_host(clip)).square().mean().backward()

    profile = gather_job([recorded(step, net, __file__, folder).write(folder)], ReadingOptions()).profile
    flow, code = flow_of(profile), profile.code()
    assert flow is not None and code is not None
    calls = [call for call in flow.calls if call.cls == "Encoder"]
    assert len(calls) == ROUNDS
    return in_names_of_loop(profile, code, calls, Fix.by_name("inputs-in-one-call"), trains=True)


@pytest.mark.parametrize(
    ("norm", "counts"), [(nn.LayerNorm(WIDTH), False), (nn.BatchNorm1d(WIDTH), True)], ids=["each", "batch"]
)
def test_frames_are_told_in_the_names_of_their_loop(norm: nn.Module, counts: bool, tmp_path: Path) -> None:
    fix = told(Clips(norm), tmp_path)
    assert fix is not None
    assert fix.paste == "x = self.encoder(clip.flatten(0, 1)).unflatten(0, clip.shape[:2])  # in place of the loop"
    assert ("Batch norm" in fix.condition) is counts


def test_a_list_of_tensors_has_no_dimension_to_fold(tmp_path: Path) -> None:
    assert told(Prepared(nn.LayerNorm(WIDTH)), tmp_path) is None

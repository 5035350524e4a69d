"""NSX131: samples that are copied before a network attends within each, as prompts of a group, and samples that only look like that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsysx.events.copied_rows import copied_rows
from tests.events.traced import traced
from tests.findings.lined import Lined
from tests.findings.recorded_programs import recorded

PROMPTS, GROUP, LONG, HEADS, WIDE, WORDS = 2, 4, 24, 2, 8, 50
torch.manual_seed(0)
DATA = torch.randint(0, WORDS, (PROMPTS, LONG))
ANGLES = torch.randn(LONG, WIDE)
Caches = list[tuple[Tensor, Tensor]]


class Block(nn.Module):
    """Attention by torch's function or, ``eager``, written out, and a network for each token."""

    def __init__(self, *, eager: bool, drop: float) -> None:
        super().__init__()
        width = HEADS * WIDE
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp, self.eager = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)), eager
        self.drop = nn.Dropout(drop)

    def heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], HEADS, WIDE).transpose(1, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q, k, v = (self.heads(each) for each in self.qkv(self.norm(x)).chunk(3, -1))
        q, k = q * ANGLES.cos() + turned(q) * ANGLES.sin(), k * ANGLES.cos() + turned(k) * ANGLES.sin()
        if self.eager:
            y = (q @ k.transpose(2, 3) / WIDE**0.5).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(x.shape)))
        return x + self.mlp(x), (k, v)


def turned(x: Tensor) -> Tensor:
    return torch.cat((-x[..., WIDE // 2 :], x[..., : WIDE // 2]), -1)


class Net(nn.Module):
    def __init__(self, *, eager: bool = False, drop: float = 0.0) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, HEADS * WIDE), nn.Linear(HEADS * WIDE, WORDS)
        self.blocks = nn.ModuleList(Block(eager=eager, drop=drop) for _ in range(2))

    def forward(self, ids: Tensor) -> tuple[Tensor, Caches]:
        x, caches = self.words(ids), list[tuple[Tensor, Tensor]]()
        for block in self.blocks:
            x, cache = block(x)
            caches.append(cache)
        return self.head(x), caches


def sampled(prompts: Tensor, net: Net, copy: Callable[[Tensor], Tensor]) -> tuple[Tensor, Caches]:
    ids = copy(prompts)
    logits, cache = net(ids)
    return torch.multinomial(logits[:, -1].softmax(-1), 1), cache


def drawn(prompts: Tensor) -> Tensor:
    ids = prompts.repeat_interleave(GROUP, 0)
    return torch.where(torch.rand(ids.shape) < 0.1, 0, ids)


COPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "repeat_interleave": lambda prompts: prompts.repeat_interleave(GROUP, dim=0),
    "repeat": lambda prompts: prompts.repeat(GROUP, 1),
    "index": lambda prompts: prompts[torch.arange(PROMPTS).repeat_interleave(GROUP)],
    "cat": lambda prompts: torch.cat([prompts] * GROUP),
}


def longest_work(folder: Path, copy: Callable[[Tensor], Tensor], **how: Any) -> int:
    """Return of how many layers at most the rows are copies."""
    net = Net(**how)

    def step() -> None:
        with torch.no_grad():
            sampled(DATA + 0, net, copy)

    flow, *_ = traced(step, folder)
    return max((sum(flow.names[row] == "aten::linear" for row in each.work) for each in copied_rows(flow)), default=0)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("kind", COPIES)
def test_a_network_that_attends_within_samples_makes_the_same_of_each_copy(
    kind: str, eager: bool, tmp_path: Path
) -> None:
    assert longest_work(tmp_path, COPIES[kind], eager=eager) == 2 * 4 + 1


def test_what_is_drawn_differs(tmp_path: Path) -> None:
    assert longest_work(tmp_path, drawn) <= 1, "rows of the table, up to the first rotation"
    assert longest_work(tmp_path, COPIES["repeat"], drop=0.1) == 2, "up to the first dropout"
    assert (
        longest_work(tmp_path, lambda prompts: torch.cat([prompts, (prompts + 1) % WORDS, (prompts + 2) % WORDS])) <= 1
    )


def test_an_attention_over_the_copies_is_none_within_them(tmp_path: Path) -> None:
    net = Net()

    def step() -> None:
        with torch.no_grad():
            net(DATA[:1, :6].repeat_interleave(GROUP, dim=1) + 0)

    flow, *_ = traced(step, tmp_path)
    assert not any("attention" in flow.names[row] for each in copied_rows(flow) for row in each.work)


def test_the_paste_computes_each_prompt_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Lined.launch
    monkeypatch.setattr(Lined, "launch", lambda program, us, *how, **more: launch(program, 10 * us, *how, **more))
    net = Net()
    train = nn.Linear(WIDE, WIDE)

    def step() -> None:
        prompts = DATA[torch.randperm(PROMPTS)]
        with torch.no_grad():
            sampled(prompts, net, COPIES["repeat_interleave"])
        train(ANGLES).sum().backward()

    program = recorded(step, net, __file__, tmp_path)
    (found,) = [f for f in program.found(tmp_path, "NSX131") if "prompts-once" in [way.name for way in f.remedies]]
    assert found.saving_ns_per_step and "which are copies of 2" in found.title
    names: dict[str, Any] = {"net": net, "prompts": DATA}
    exec(found.paste, names)
    logits, cache = net(DATA.repeat_interleave(GROUP, 0))
    torch.testing.assert_close(names["logits"], logits[:, -1])
    for ours, theirs in zip(names["cache"], cache, strict=True):
        torch.testing.assert_close(ours, theirs)

"""Loops over tensors that are written with lists of them: that gives the same tensors, and loops that do something else stay."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nsysx.findings._listed_updates import in_lists

ZIPPED = "for avg, p in zip(average.parameters(), model.parameters()):"
NAMED = "for name, p in model.named_parameters():"
LOOPS = [
    (ZIPPED, ["avg.mul_(decay).add_(p, alpha=1 - decay)"]),
    (ZIPPED, ["avg.mul_(decay)", "avg.add_((1 - decay) * p.data)"]),
    (ZIPPED, ["avg.copy_(decay * avg + (1 - decay) * p.detach())"]),
    (ZIPPED, ["avg.lerp_(p, 1 - decay)"]),
    (ZIPPED, ["avg.data.copy_(p.data)"]),
    (ZIPPED, ["avg *= decay", "avg += (1 - decay) * p"]),
    (f"{ZIPPED} avg.mul_(decay).add_(p, alpha=2)", []),
    ("for (_, avg), (_, p) in zip(average.named_parameters(), model.named_parameters()):", ["avg.lerp_(p, 0.1)"]),
    ("for avg, p in pairs():", ["avg.mul_(decay).add_(p, alpha=1 - decay)"]),
    (NAMED, ["shadow[name].mul_(decay)", "shadow[name].add_(p.data, alpha=1 - decay)"]),
    ("for p in model.parameters():", ["if p.grad is not None:", "p.grad.mul_(decay)"]),
    ("for p, m in zip(params, moments):", ["m.mul_(0.9).add_(p.grad)", "p -= 0.1 * m"]),
    ("for p, m, v in zip(params, moments, squares):", [
        "m.mul_(0.9).add_(p.grad)", "v.mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)", "p.addcdiv_(m, v, value=-0.1)",
    ]),
    ("for p in params:", ["p.grad.div_(4)"]),
    ("for p in params:", ["p.grad.zero_()"]),
]  # fmt: skip


def names() -> dict[str, Any]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3))
    average = copy.deepcopy(model)
    for p in model.parameters():
        p.data.add_(torch.randn_like(p))
        p.grad = torch.randn_like(p)
    params = list(model.parameters())
    return {
        "torch": torch,
        "model": model,
        "average": average,
        "params": params,
        "pairs": lambda: zip(average.parameters(), params, strict=True),
        "shadow": {name: p.detach().clone() for name, p in average.named_parameters()},
        "moments": [torch.randn_like(p) for p in params],
        "squares": [torch.rand_like(p) + 1 for p in params],
        "decay": 0.75,
        "self": SimpleNamespace(),
    }


def tensors(of: dict[str, Any]) -> list[torch.Tensor]:
    every = [*of["params"], *(p.grad for p in of["params"]), *of["average"].parameters(), *of["shadow"].values()]
    return [*every, *of["moments"], *of["squares"]]


def run(code: str) -> list[torch.Tensor]:
    known = names()
    with torch.no_grad():
        exec(code, known)
    return tensors(known)


@pytest.mark.parametrize(("header", "bodies"), LOOPS)
def test_what_is_written_does_the_same(header: str, bodies: list[str]) -> None:
    inside = [f"    {line}" for line in bodies]
    if bodies and bodies[0].endswith(":"):
        inside[1:] = [f"    {line}" for line in inside[1:]]
    listed = in_lists(header, bodies, split=False)
    assert listed is not None
    before, loop, lists = run("pass"), run("\n".join((header, *inside))), run(listed.paste)
    assert any(not torch.equal(a, b) for a, b in zip(before, loop, strict=True))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(loop, lists, strict=True))


@pytest.mark.parametrize(
    ("header", "bodies"),
    [
        (ZIPPED, ["avg.lerp_(p.full_tensor(), 0.1)"]),  # it computes before
        (ZIPPED, ["total += p.norm()"]),
        (ZIPPED, ["avg.mul_(decay)", "log.append(p)"]),
        (ZIPPED, ["avg.mul_(decay ** len(p))"]),
        (ZIPPED, ["avg = avg * decay + p * (1 - decay)"]),
        (ZIPPED, ["if p.requires_grad: continue", "avg.mul_(decay)"]),
        (NAMED, ["shadow[name] = decay * shadow[name] + (1 - decay) * p"]),
        (ZIPPED, ["avg.mul_(decay).add_(p, alpha=1 -"]),  # cut
        ("while True:", ["avg.mul_(decay)"]),
        (ZIPPED, []),
    ],
)
def test_other_loops_are_not_written(header: str, bodies: list[str]) -> None:
    assert in_lists(header, bodies, split=True) is None


def test_parts_of_tensors_that_are_split_over_the_ranks() -> None:
    listed = in_lists(ZIPPED, ["avg.mul_(decay).add_(p, alpha=1 - decay)"], split=True)
    assert listed is not None and listed[1:] == (2, 2)
    assert listed.paste.splitlines()[0] == "avgs = [avg.to_local() for avg in average.parameters()]"


def test_what_one_iterator_gives_is_kept_where_several_lists_are_made_of_it() -> None:
    listed = in_lists("for avg, p in pairs:", ["avg.lerp_(p, 0.1)"], split=False)
    assert listed is not None
    assert listed.paste.splitlines()[:2] == ["rounds = list(pairs)", "avgs = [avg for avg, p in rounds]"]

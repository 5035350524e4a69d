"""Loops that read a number in each round: augmentations by numbers drawn on the GPU, and ratios of norms that the host decides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsysx.findings._fix import Fix
from nsysx.findings._read_in_rounds import at_once
from tests.findings.recorded_programs import launched_slowly, recorded

ROWS = torch.randn(16, 40, 24)
NET = nn.Sequential(*[nn.Linear(24, 24) for _ in range(12)])
UPDATES = {p: torch.randn_like(p) for p in NET.parameters()}


def rolled(x: Tensor) -> Tensor:
    views = []
    for i in range(x.size(0)):
        first = torch.randint(0, 20, (1,)).item()
        shift = torch.randint(0, 20, (1,)).item()
        row = torch.roll(x[i], shift, -1).clone()
        row[first : first + 8] = 0
        views.append(row + 0.01 * torch.randn_like(row))
    return torch.stack(views)


def masked(x: Tensor) -> Tensor:
    x = x.clone()
    for i in range(len(x)):
        for _ in range(2):
            width = int(torch.randint(0, 8, (1,)))
            first = torch.randint(0, 30, (1,)).item()
            x[i, first : first + width, :] = 0
    return x


def trusted(x: Tensor) -> Tensor:
    for p in NET.parameters():
        w, u = p.norm().item(), UPDATES[p].norm().item()
        ratio = w / u if w > 0 and u > 0 else 1.0
        p.add_(UPDATES[p], alpha=-1e-3 * min(ratio, 10.0))
    return x


@pytest.mark.parametrize(
    ("made", "remedy"), [(rolled, "drawn-for-all"), (masked, "drawn-for-all"), (trusted, "ratios-on-gpu")]
)
def test_all_rounds_at_once(
    made: Callable[[Tensor], Tensor], remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched_slowly(monkeypatch, most_us=3)

    def step() -> None:
        with torch.no_grad():
            x = made(ROWS)
        NET(x).pow(2).mean().backward()

    summary = recorded(step, NET, __file__, tmp_path).summary(tmp_path)
    assert summary.answer is not None
    do = summary.answer.do[0]
    found = [f for f in summary.findings or () if [way.name for way in f.remedies] == [remedy]]
    assert do.paste == found[0].paste and do.code in ("NSX123", "NSX126")
    assert "torchvision" not in "".join(f.paste for f in summary.findings or ())


@pytest.mark.parametrize(
    "lines",
    [
        [
            "for t in range(steps):",
            "    if torch.rand(1).item() < epsilon:",
            "        action = space.sample()",
            "    obs = env.step(action)",
        ],
        ["for _ in range(n):", "    token = torch.multinomial(p, 1).item()", "    text.append(token)"],
        ["for p in model.parameters():", "    total += p.grad.norm().item() ** 2"],
        ["for i in range(n):", "    score = x[i].norm().item()", "    best = max(best, score / n)"],
        ["for i in range(n):", "    x[i, a:b] = 0"],
        ["f = torch.randint(0, 9, (1,)).item()", "x[:, f : f + 8] = 0"],
    ],
)
def test_other_loops_have_advice_of_their_own(lines: list[str]) -> None:
    source = {str(number): text for number, text in enumerate(lines, 1)}
    assert all(at_once(source, number) is None for number in range(1, len(lines) + 1))


def test_the_pasted_masks_do_what_the_loop_does() -> None:
    source = {str(number): text for number, text in enumerate(["for i in range(len(x)):", "    f = torch.randint(0, 9, (1,)).item()",
              "    x[i] = torch.roll(x[i], f, -1)", "    x[i, f : f + 8] = 0"], 1)}  # fmt: skip
    fix = at_once(source, 2)
    assert fix is not None
    names: dict[str, Any] = {"torch": torch, "x": ROWS.clone(), "high": 20, "parts": 1, "width": 8}
    exec(fix.paste, names)
    wanted = ROWS.clone()
    for i, first in enumerate(names["first"].flatten().tolist()):
        wanted[i] = torch.roll(wanted[i], first, -1)
        wanted[i, first : first + 8] = 0
    assert torch.equal(names["x"], wanted)


def test_the_pasted_ratios_are_those_of_the_loop() -> None:
    params, updates = (
        [torch.randn(5, 3), torch.zeros(4), torch.randn(7)],
        [torch.randn(5, 3), torch.randn(4), torch.randn(7) * 1e-3],
    )
    wanted = []
    for p, update in zip(params, updates, strict=True):
        w, u = p.norm().item(), update.norm().item()
        wanted.append(p.add(update, alpha=-0.1 * min(w / u if w > 0 and u > 0 else 1.0, 10.0)))
    exec(Fix.by_name("ratios-on-gpu").paste, {"torch": torch, "params": params, "updates": updates, "lr": 0.1})
    for mine, theirs in zip(params, wanted, strict=True):
        torch.testing.assert_close(mine, theirs)

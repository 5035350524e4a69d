"""NSX126: a network that is asked for one input after the other, as by trees of games: all inputs are collected and asked for at once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from nsysx.findings._asked_one_by_one import asked_at_once
from tests.findings.lined import FILE, Lined, forward

GAMES = [
    "for g in games:",
    "    leaf = g.select()",
    "    p, v = net(leaf.planes[None].to(device))",
    "    g.backup(leaf, p[0].cpu(), v.item())",
]
FRAMES = ["for x in frames:", "    y = net(x.unsqueeze(0))[0]", "    out.append(y.item())"]


def pasted(lines: list[str], line: int) -> str:
    return asked_at_once({FILE: {str(number): text for number, text in enumerate(lines, 1)}}, FILE, line)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.policy, self.value = nn.Linear(6, 3), nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.policy(x), self.value(x)


def played(code: str) -> list[Any]:
    torch.manual_seed(1)
    backed: list[Any] = []

    class Game:
        def __init__(self) -> None:
            self.leaf = SimpleNamespace(planes=torch.randn(6))

        def select(self) -> Any:
            return self.leaf

        def backup(self, leaf: Any, p: torch.Tensor, v: float) -> None:
            backed.append((leaf, p, v))

    with torch.no_grad():
        names = {"torch": torch, "net": Net(), "games": [Game() for _ in range(8)], "device": "cpu"}
        exec(code, names)
    return backed


def test_the_pasted_loop_backs_up_the_same() -> None:
    one_by_one, at_once = played("\n".join(GAMES)), played(pasted(GAMES, 4))
    assert len(one_by_one) == len(at_once) == 8
    for (_, p, v), (_, all_p, all_v) in zip(one_by_one, at_once, strict=True):
        torch.testing.assert_close(p, all_p)
        assert v == pytest.approx(all_v, abs=1e-5)


@pytest.mark.parametrize(
    "lines",
    [
        [
            "for t in range(n):",
            "    action = net(state[None])",
            "    state = env.step(action.item())",
        ],  # each needs the one before it
        [
            "for g in games:",
            "    g.reset()",
            "    leaf = g.select()",
            "    p = net(leaf.planes[None])",
            "    g.backup(p.item())",
        ],
        ["while going:", "    p = net(x[None])", "    out.append(p.item())"],
        ["for x in frames:", "    y = net(x)", "    out.append(y.item())"],
        FRAMES,
    ],
)
def test_other_loops_get_no_code(lines: list[str]) -> None:
    assert pasted(lines, len(lines)) == ""


def test_a_loop_over_games_is_told_with_the_call_for_all(tmp_path: Path) -> None:
    def body(program: Lined, number: int) -> None:
        for _ in range(32):
            with program.line(2, "play"):
                program.host(40)
            with program.line(3, "play"):
                program.copy(2, bytes=4096)
                with program.range("forward"), program.range("net:Net"):
                    for _ in range(20):
                        program.host(6)
                        program.launch(4)
            with program.line(4, "play"):
                for size in (1000, 4):
                    program.copy(2, "DtoH", bytes=size)
                    program.host(10)
        forward(program, 20, 100)
        with program.line(21), program.range("backward"):
            for _ in range(20):
                program.launch(100)
        program.sync()

    summary = Lined(dict(enumerate(GAMES, 1))).run(body).summary(tmp_path)
    assert summary.answer is not None
    do = summary.answer.do[0]
    assert do.code == "NSX126" and do.paste == pasted(GAMES, 4) and "depend on each other" in do.condition

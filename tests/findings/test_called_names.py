"""What a line calls its networks, where it calls several: the advice has the name of the one that is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.test_attached_outputs import (
    FIRST,
    GRAD_D,
    GRAD_G,
    MADE,
    OF_D,
    OF_FIRST,
    SCORE,
    TO_MADE,
    OnTwoThreads,
    back_through_generator,
    backward,
)
from tests.findings.test_unread import gradient

BOTH, LOSS, STEP = 12, 14, 16


def in_one_line(program: OnTwoThreads, number: int, *, trains_first: bool) -> None:
    """A network judges what another one makes of the batch, in one line; the optimizer holds one of them."""
    program.first = 100 * (number + 1)
    with program.line(BOTH, "train"), program.range("forward"):
        with program.range("generator:Generator"):
            with program.range("generator.first:Linear"):
                program.op("linear", FIRST, -1, -1, seq=1, us=200)
            with program.range("generator.last:Linear"):
                program.op("linear", MADE, FIRST, -1, seq=2, us=200)
        with program.range("critic:Critic"):
            program.op("linear", SCORE, MADE, -1, seq=3, us=100)
    with backward(program, LOSS):
        with program.noted_as("LinearBackward0", 22, (SCORE,), seq=3), program.range("critic:Critic"):
            program.op("mm", OF_D, SCORE, -1, us=200)
            program.op("mm", TO_MADE, SCORE, -1, us=100)
        gradient(program, 30, GRAD_D, OF_D)
        back_through_generator(program, TO_MADE, 0)
        gradient(program, 31, GRAD_G, OF_FIRST)
    with program.line(STEP, "train"), program.range("optimizer Adam"):
        program.op("_fused_adam_", 40, -1, GRAD_G if trains_first else GRAD_D, -1, us=20)
    program.sync()


def findings(folder: Path, text: str, *, trains_first: bool) -> list[Finding]:
    networks = [{"class": "Critic", "dtypes": {"float32": 120}}, {"class": "Generator", "dtypes": {"float32": 80}}]
    settings = {"networks": networks, "optimizers": [{"elements": 120}, {"elements": 80}]}

    def body(program: Lined, number: int) -> None:
        assert isinstance(program, OnTwoThreads)
        in_one_line(program, number, trains_first=trains_first)

    return OnTwoThreads({BOTH: text, LOSS: "loss.backward()"}, settings).run(body).found(folder, "NSX127")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("loss = -q_net(states, policy(states)).mean()", "q_net"),
        ("loss = -self.q[0](torch.cat((states, self.pi(states)), 1)).mean()", "self.q[0]"),
        ("loss = weights.mul(q_net(states, policy(states))).mean()", "q_net"),
        ("loss = value_of(policy(states)).mean() + penalty(states)", ""),  # two that may be it
    ],
)
def test_the_network_through_which_another_learns(text: str, name: str, tmp_path: Path) -> None:
    (told,) = findings(tmp_path, text, trains_first=True)
    assert told.where["line"] == BOTH and "Freeze Critic" in told.fix
    assert not name or told.paste.splitlines() == [
        f"{name}.requires_grad_(False)  # before line {BOTH}: {text}",
        f"{name}.requires_grad_(True)  # behind line {LOSS}: loss.backward()",
    ]
    assert name or f"line {BOTH}" not in told.paste


@pytest.mark.parametrize(
    ("text", "paste"),
    [
        ("score = net_d(net_g(noise))", "score = net_d(net_g(noise).detach())"),
        ("score = net_d(torch.cat([real, net_g(noise)]))", "score = net_d(torch.cat([real, net_g(noise).detach()]))"),
        ("score = judge(noise)", ""),
    ],
)
def test_what_a_network_makes_within_the_line_that_uses_it(text: str, paste: str, tmp_path: Path) -> None:
    (told,) = findings(tmp_path, text, trains_first=False)
    assert told.where["line"] == BOTH and told.paste.partition("  #")[0] == paste

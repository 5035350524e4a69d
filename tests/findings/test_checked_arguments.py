"""NSX101: distributions that check their arguments and wait for the answer, and checks of the program's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Normal

from nsysx.findings._line_remedies import Seen, fix_of
from nsysx.model import Finding
from tests.findings.recorded_programs import from_host, recorded

ACTS, ENVS, ACTIONS = 6, 8, 4


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.pi = nn.Linear(8, 16), nn.Linear(16, ACTIONS)

    def forward(self, obs: Tensor) -> Tensor:
        return self.pi(self.trunk(obs).relu())  # type: ignore[no-any-return]


def act(agent: Agent, obs: Tensor, kind: str) -> Tensor:
    logits = agent(obs)
    if kind == "normal":
        dist = Normal(logits, logits.exp())
        return dist.log_prob(logits.detach()).mean()
    if kind == "own check":
        assert torch.isfinite(logits).all()
        return logits.mean()
    policy = Categorical(logits=logits)
    return policy.log_prob(logits.argmax(-1)).mean() + policy.entropy().mean()


def found(kind: str, folder: Path, *, checked: bool = True) -> list[Finding]:
    agent = Agent()

    def step() -> None:
        total = torch.zeros(())
        for _ in range(ACTS):
            total = total + act(agent, from_host(torch.randn(ENVS, 8)), kind)
        total.backward()

    Distribution.set_default_validate_args(checked)
    try:
        return recorded(step, agent, __file__, folder).found(folder, "NSX101")
    finally:
        Distribution.set_default_validate_args(True)


def names(findings: list[Finding]) -> list[str]:
    return [each.remedies[0].name for each in findings if each.remedies]


@pytest.mark.parametrize("kind", ["categorical", "normal"])
def test_checks_of_distributions_are_one_finding(kind: str, tmp_path: Path) -> None:
    findings = found(kind, tmp_path)
    (checked,) = (f for f in findings if "validate-args-off" in names([f]))
    # The scale and the place of a normal distribution, and what it is asked for.
    assert f"arguments {(3 if kind == 'normal' else 2) * ACTS} times per step" in checked.title
    assert (checked.saving_ns_per_step or 0) > 0 and "keep-on-gpu" not in names(findings)


def test_no_checks(tmp_path: Path) -> None:
    assert "validate-args-off" not in names(found("categorical", tmp_path, checked=False))


def test_a_check_of_the_program_is_its_own(tmp_path: Path) -> None:
    assert "validate-args-off" not in names(found("own check", tmp_path))


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("dist = Categorical(logits=self.pi(h))", "validate-args-off"),
        ("logp = policy.log_prob(actions)", "validate-args-off"),
        ("ids = torch.multinomial(probs, num_samples=1)", "drawn-by-noise"),
        ("action = dist.sample()", "drawn-by-noise"),
    ],
)
def test_lines_that_wait(text: str, remedy: str) -> None:
    fix = fix_of(Seen(text, waits=2))
    assert fix is not None and [way.name for way in fix.ways] == [remedy]
    assert fix_of(Seen(text)) is None, "without a wait nothing is checked"


def test_the_paste_draws_as_often() -> None:
    torch.manual_seed(0)
    logits = torch.tensor([0.0, 1.0, 2.0]).expand(20_000, 3)
    noise = torch.empty_like(logits).exponential_().log()
    drawn = (logits - noise).argmax(-1)
    shares = torch.bincount(drawn, minlength=3) / len(drawn)
    assert torch.allclose(shares, logits[0].softmax(-1), atol=0.02)

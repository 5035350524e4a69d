"""Lines that freeze what no optimizer updates run in the program, by the names that it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nsysx.findings import _freezing_pastes
from nsysx.model import Finding
from tests.findings.lined import FILE
from tests.findings.test_unread import GENERATOR_GRAD, LOSS, STEP, findings

MADE = 40
CALLED = {"inputs": [{"class": "Critic", "place": f"{FILE}:{LOSS}"}]}
UNTRAINED = {"class": "Critic", "elements": 60, "of": 120, "parts": ["base.0", "base.1", "norm"], "trained": ["base.2"]}
OPTIMIZER = {"optimizers": [{"parameters": 4, "elements": 60, "made": f"{FILE}:{MADE}"}]}


class Critic(nn.Module):
    """Layers of which the first are not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.norm = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)), nn.LayerNorm(4)


def frozen(folder: Path, settings: dict[str, Any]) -> Finding:
    (found,) = findings(folder, GENERATOR_GRAD, settings=settings)
    return found


def run(paste: str, **names: object) -> list[str]:
    """Return which parameters of a critic still get gradients once the lines have run."""
    critic = Critic()
    opt = torch.optim.SGD(critic.base[2].parameters(), lr=0.1)
    exec(paste, {"critic": critic, "opt": opt, **names})
    return [name for name, p in critic.named_parameters() if p.requires_grad]


def test_parts_that_the_probe_saw_untrained_are_frozen_by_the_programs_name(tmp_path: Path) -> None:
    """To the line that makes the optimizer."""
    found = frozen(tmp_path, {"untrained": [UNTRAINED], **CALLED, **OPTIMIZER})
    assert "Freeze critic.base[:2] and critic.norm, which no optimizer updates" in found.fix
    assert found.where["line"] == MADE
    assert run(found.paste) == ["base.2.weight", "base.2.bias"]


def test_else_what_the_optimizer_holds_says_it(tmp_path: Path) -> None:
    """Parts of layers: no names of modules tell which."""
    found = frozen(tmp_path, {"unheld": {"Critic": [60, 120]}, **CALLED, **OPTIMIZER})
    assert "in critic.parameters()" in found.paste and "opt.param_groups" in found.paste
    assert run(found.paste) == ["base.2.weight", "base.2.bias"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("loss = model(input_ids=ids, labels=labels).loss", "model"),
        ("loss = criterion(self.net(x), len(y))", "self.net"),
        ("with torch.no_grad(): out = vae(x)", "vae"),
        ("loss = criterion(encoder(x), y)", ""),  # either
        ("out = self.model.encoder(x)", ""),  # a part of it
        ("for batch in loader:", ""),
    ],
)
def test_what_a_line_calls_a_network(text: str, name: str) -> None:
    assert _freezing_pastes._called_network(text) == name


def test_several_optimizers_hold_what_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_freezing_pastes, "optimizer_names", lambda profile: ["opt", "other"])
    monkeypatch.setattr(_freezing_pastes, "network_name", lambda profile, cls: "critic")
    critic = Critic()
    other = torch.optim.SGD(critic.norm.parameters(), lr=0.1)
    opt = torch.optim.SGD(critic.base[2].parameters(), lr=0.1)
    paste = _freezing_pastes.frozen_by_optimizers(None)  # type: ignore[arg-type]
    names = run(paste, critic=critic, other=other, opt=opt)
    assert len(names) == 8, "those of another critic, which no line has frozen"
    assert [n for n, p in critic.named_parameters() if p.requires_grad] == [
        "base.2.weight", "base.2.bias", "norm.weight", "norm.bias",
    ]  # fmt: skip


def test_what_steps_besides_an_optimizer_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["self.scaler.step(self.opt)", "self.opt.step()", "scheduler.step()", "profiler.step()", f"# line {STEP}"]
    monkeypatch.setattr(_freezing_pastes, "_lines", lambda profile: lines)
    for rows, names in (([{}], ["self.opt"]), ([{}, {}], ["optimizer"])):
        settings = type("Settings", (), {"rows": lambda self, kind, rows=rows: rows})()
        monkeypatch.setattr(_freezing_pastes, "settings_of", lambda profile, settings=settings: settings)
        assert _freezing_pastes.optimizer_names(None) == names  # type: ignore[arg-type]

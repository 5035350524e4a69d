"""NSX131: heads that make logits for positions whose labels the loss ignores."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nsysx.findings import _enlarged_logits, _ignored_targets
from nsysx.findings._case import Case, way
from nsysx.inject.nsysx_probe.batch_parts import batch_parts
from nsysx.inject.nsysx_probe.changes.matrices import UNTRIED
from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.recorded_programs import recorded
from tests.findings.test_nsx131_line_work import PLAIN, found

ROWS, LENGTH, WIDTH, WORDS = 4, 64, 8, 512
TOKENS = torch.randint(WORDS, (ROWS, LENGTH))


def labels_of(ignored: float) -> Tensor:
    labels = TOKENS.clone()
    labels[:, : round(ignored * LENGTH)] = -100
    return labels


MOSTLY, FEW = labels_of(0.75), labels_of(0.1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        hidden = self.inner(self.table(tokens))
        return cast(Tensor, self.head(hidden if keep is None else hidden.flatten(0, -2).index_select(0, keep)))


def flat(net: Net, labels: Tensor) -> Tensor:
    return F.cross_entropy(net(TOKENS).flatten(0, 1).float(), labels.flatten(), ignore_index=-100)


def shifted(net: Net, labels: Tensor) -> Tensor:
    logits = net(TOKENS)[:, :-1].contiguous().view(-1, WORDS)
    return F.cross_entropy(logits, labels[:, 1:].reshape(-1), ignore_index=-100)


def in_micro_steps(net: Net, labels: Tensor) -> Tensor:
    parts = [
        F.nll_loss(F.log_softmax(net(x).flatten(0, 1), -1), y.flatten())
        for x, y in zip(TOKENS.chunk(2), labels.chunk(2), strict=True)
    ]
    return torch.stack(parts).sum()


def scaled(net: Net, labels: Tensor) -> Tensor:
    logits = net(TOKENS).flatten(0, 1)
    return F.cross_entropy(logits.double().mul(0.5).div(2.0).mul(1.5), labels.flatten(), ignore_index=-100)


def of_rows_that_count(net: Net, labels: Tensor) -> Tensor:
    keep = (labels != -100).flatten().nonzero().squeeze(1)
    return F.cross_entropy(net(TOKENS, keep), labels.flatten()[keep])


def of_one_class(net: Net, labels: Tensor) -> Tensor:
    return F.cross_entropy(net(TOKENS[:, :8]).mean(1), TOKENS[:, 0])


def program_of(loss: Callable[[Net, Tensor], Tensor], labels: Tensor, folder: Path, *, noted: bool = True) -> Lined:
    net = Net()
    program = recorded(lambda: loss(net, labels).backward(), net, __file__, folder)
    if noted:
        parts = json.loads(json.dumps(batch_parts(torch, [("input_ids", TOKENS), ("labels", labels)], 10_000)))
        program.settings = {**(program.settings or {}), "loaders": [{"place": "train.py:1", "parts": [parts]}]}
    return program


def told(loss: Callable[[Net, Tensor], Tensor], labels: Tensor, folder: Path) -> list[Finding]:
    every = program_of(loss, labels, folder).found(folder, "NSX131")
    return [f for f in every if "rows-that-count" in [r.name for r in f.remedies]]


@pytest.mark.parametrize("loss", [flat, shifted, in_micro_steps, scaled])
def test_a_head_makes_logits_that_the_loss_ignores(loss: Callable[[Net, Tensor], Tensor], tmp_path: Path) -> None:
    (finding,) = told(loss, MOSTLY, tmp_path)
    assert "of the labels are ignored" in finding.title and finding.title[:2].isdigit()
    assert 65 <= int(finding.title[:2]) <= 85
    assert finding.saving.bound and finding.saving.error_ns is not None


@pytest.mark.parametrize(
    ("loss", "labels"),
    [(flat, FEW), (of_rows_that_count, MOSTLY), (of_one_class, MOSTLY), (flat, TOKENS)],
)
def test_other_losses_are_silent(loss: Callable[[Net, Tensor], Tensor], labels: Tensor, tmp_path: Path) -> None:
    assert told(loss, labels, tmp_path) == []


@pytest.mark.parametrize(
    ("noted", "line", "says"),
    [
        (False, "loss = F.cross_entropy(x, y, ignore_index=IGNORE)", True),
        (False, "loss = F.cross_entropy(x, y)", False),
        (True, "loss = F.cross_entropy(x, y, ignore_index=IGNORE)", False),
    ],
)
def test_labels_that_were_not_noted_are_told_with_a_condition(
    noted: bool, line: str, says: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = list[Case]()
    monkeypatch.setattr(_enlarged_logits, "findings_of", lambda case, rule: cases.append(case) or [])
    program_of(scaled, MOSTLY, tmp_path, noted=noted).found(tmp_path, "NSX131")
    advised = _ignored_targets.perhaps_ignored(cases[0], [line])
    assert (advised is not None) is says
    assert advised is None or advised.text.startswith("Where many labels are ignored here, ")


def test_a_loss_to_be_compiled_may_have_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = way("rows-that-count", "Where many labels are ignored here, take the others")
    monkeypatch.setattr(_ignored_targets, "perhaps_ignored", lambda case, texts: rows)
    (finding,) = found(tmp_path, PLAIN)
    assert [each.name for each in finding.remedies] == ["compile-function", "rows-that-count"]
    assert finding.fix.endswith(", or where many labels are ignored here, take the others")
    assert finding.paste == "loss_of = torch.compile(loss_of)"


def test_the_paste_gives_the_same_loss_and_gradients() -> None:
    paste = next(r.example for r in UNTRIED if r.name == "rows-that-count").replace(".pin_memory()", "")
    net = Net()
    flat(net, MOSTLY).backward()
    wanted = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    net.zero_grad()
    names: dict[str, Any] = {"F": F, "labels": MOSTLY, "device": "cpu", "head": net.head}
    names["hidden"] = net.inner(net.table(TOKENS))
    exec(paste, names)
    names["loss"].backward()
    assert torch.allclose(names["loss"], flat(net, MOSTLY))
    assert all(
        torch.allclose(p.grad, g, atol=1e-6)
        for p, g in zip(net.parameters(), wanted, strict=True)
        if p.grad is not None
    )

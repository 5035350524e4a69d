"""NSX131: heads that make logits for positions which a mask takes out of the loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nsysx.model import Finding
from tests.findings.recorded_programs import recorded
from tests.findings.test_ignored_targets import LENGTH, ROWS, TOKENS, Net

MASK = (torch.arange(LENGTH) >= LENGTH - 16).repeat(ROWS, 1)


def told(loss: Callable[[Net], Tensor], folder: Path) -> list[Finding]:
    net = Net()
    every = recorded(lambda: loss(net).backward(), net, __file__, folder).found(folder, "NSX131")
    return [f for f in every if f.title.startswith("A mask says")]


def policy(net: Net) -> Tensor:
    logps = F.log_softmax(net(TOKENS)[:, :-1].float(), -1)
    chosen = logps.gather(-1, TOKENS[:, 1:, None]).squeeze(-1)
    entropy = (logps.detach().exp() * logps.detach()).sum(-1)
    mask = MASK[:, 1:].float()
    ratio = (chosen - chosen.detach()).exp()
    per_token = -torch.minimum(ratio, ratio.clamp(0.8, 1.2))
    return (per_token * mask).sum() / mask.sum() + 0.0 * entropy.mean()


def of_losses(net: Net) -> Tensor:
    each = F.cross_entropy(net(TOKENS).flatten(0, 1).float(), TOKENS.flatten(), reduction="none").view(ROWS, LENGTH)
    mask = MASK.float()
    return (mask * each).sum() / mask.sum()


def weighted(net: Net) -> Tensor:
    """Each position counts, by a weight of its own."""
    each = F.cross_entropy(net(TOKENS).flatten(0, 1).float(), TOKENS.flatten(), reduction="none").view(ROWS, LENGTH)
    return (each * (1 + TOKENS.float() / 512)).sum() / each.numel()


def pooled(net: Net) -> Tensor:
    """A mask keeps hidden states, of which one head makes one prediction for each row."""
    hidden, mask = net.inner(net.table(TOKENS)), MASK.float()
    mean = (hidden.mean(-1) * mask).sum() / mask.sum()
    return F.cross_entropy(net.head(hidden.mean(1)) * mean, TOKENS[:, 0])


@pytest.mark.parametrize("loss", [policy, of_losses])
def test_a_mask_keeps_positions_of_all_that_have_logits(loss: Callable[[Net], Tensor], tmp_path: Path) -> None:
    (finding,) = told(loss, tmp_path)
    assert "of GPU work" in finding.title and "how many these are was not noted" in finding.detail
    assert finding.saving.likely_ns is None and [way.name for way in finding.remedies] == ["rows-that-count"]


@pytest.mark.parametrize("loss", [weighted, pooled])
def test_weights_and_masks_of_hidden_states_are_none(loss: Callable[[Net], Tensor], tmp_path: Path) -> None:
    assert told(loss, tmp_path) == []


@pytest.mark.parametrize(
    ("counts", "first", "paste"), [(0.25, 0, "hidden[keep]"), (0.25, 47, "n = 16  # of 63"), (0.98, 0, None)]
)
def test_how_many_positions_a_mask_keeps_is_noted_and_priced(
    counts: float, first: int, paste: str | None, tmp_path: Path
) -> None:
    net = Net()
    program = recorded(lambda: policy(net).backward(), net, __file__, tmp_path)
    noted = {"kind": "mask", "targets": ROWS * (LENGTH - 1), "classes": 0, "tensors": 1, "looked": 1, "counts": counts}
    rows = {"least": 16, "most": 16, "length": LENGTH - 1, "first": first}
    program.settings = {**(program.settings or {}), "targets": [{**noted, **rows}]}
    every = [f for f in program.found(tmp_path, "NSX131") if f.title.startswith("A mask ")]
    assert len(every) == (paste is not None)
    for finding in every:
        assert finding.title.startswith("A mask takes 75 % of") and finding.saving.likely_ns
        assert finding.paste is not None and paste is not None and paste in finding.paste

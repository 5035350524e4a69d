"""NSX131: a student's and a teacher's logits of positions that a mask of labels takes out of their losses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nsysx.findings._masked_pastes import _collated, _with_entry
from nsysx.findings._pieces_in_text import whole_statement
from nsysx.inject.nsysx_probe.batch_parts import batch_parts
from nsysx.model import Finding
from tests.findings.recorded_programs import recorded
from tests.findings.test_ignored_targets import FEW, MOSTLY, TOKENS, WIDTH, Net

IGNORE = -100


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = Net(), Net().requires_grad_(False)
        self.wide, self.narrow = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def logits(self) -> tuple[Tensor, Tensor]:
        return self.student(TOKENS).flatten(0, 1), self.teacher(TOKENS).flatten(0, 1)


def divergence(pair: Pair, labels: Tensor, others: Tensor | None = None) -> Tensor:
    labels = labels.flatten()
    student, teacher = pair.logits()
    answer = labels != IGNORE
    count = answer.sum()
    target = F.log_softmax(teacher.float() / 2.0, -1)
    kl = F.kl_div(F.log_softmax(student.float() / 2.0, -1), target, reduction="none", log_target=True).sum(-1)
    kl = (kl * answer).sum() / count
    every = 0.0 if others is None else F.cross_entropy(student.float(), others.flatten())
    return kl + F.cross_entropy(student.float(), labels, ignore_index=IGNORE) + every


def squared(pair: Pair, labels: Tensor) -> Tensor:
    """Rows and columns, the squared difference of the logits, and a mask of numbers."""
    mask = (labels != IGNORE).float()
    each = F.mse_loss(pair.student(TOKENS), pair.teacher(TOKENS), reduction="none").mean(-1)
    return (mask * each).sum() / mask.sum()


def all_positions_read(pair: Pair, labels: Tensor) -> Tensor:
    """A loss of another kind takes the logits of all positions."""
    return divergence(pair, labels, TOKENS)


def of_hidden_states(pair: Pair, labels: Tensor) -> Tensor:
    """A mask keeps differences of hidden states: no head makes words of them."""
    hidden = pair.student.inner(pair.student.table(TOKENS))
    each = (pair.wide(hidden) - pair.narrow(hidden)).square().mean(-1)
    mask = (labels != IGNORE).float()
    return (each * mask).sum() / mask.sum() + 0.0 * F.cross_entropy(pair.student.head(hidden[:, 0]), TOKENS[:, 0])


def of_rows_that_count(pair: Pair, labels: Tensor) -> Tensor:
    """The healthy twin: positions are taken before the heads."""
    keep = (labels != IGNORE).flatten().nonzero().squeeze(1)
    target = F.log_softmax(pair.teacher(TOKENS, keep), -1)
    return (
        F.kl_div(F.log_softmax(pair.student(TOKENS, keep), -1), target, reduction="none", log_target=True)
        .sum(-1)
        .mean()
    )


def told(loss: Callable[[Pair, Tensor], Tensor], labels: Tensor, folder: Path, *, noted: bool = True) -> list[Finding]:
    pair = Pair()
    program = recorded(lambda: loss(pair, labels).backward(), pair, __file__, folder)
    if noted:
        parts = json.loads(json.dumps(batch_parts(torch, [("input_ids", TOKENS), ("labels", labels)], 10_000)))
        program.settings = {**(program.settings or {}), "loaders": [{"place": "train.py:1", "parts": [parts]}]}
    return [f for f in program.found(folder, "NSX131") if "rows-that-count" in [r.name for r in f.remedies]]


@pytest.mark.parametrize("loss", [divergence, squared])
def test_both_heads_make_logits_that_a_mask_of_labels_drops(
    loss: Callable[[Pair, Tensor], Tensor], tmp_path: Path
) -> None:
    (finding,) = told(loss, MOSTLY, tmp_path)
    assert finding.title.startswith("A mask takes 7") and "of the positions out of a loss" in finding.title
    assert (
        "are masked in the batches that were looked at" in finding.detail and "The layers that make" in finding.detail
    )
    assert finding.saving.likely_ns and finding.saving.bound
    assert finding.paste is not None and "labels.flatten() != IGNORE" in finding.paste
    assert "in collate" in finding.paste and "[keep]" in finding.paste


def test_without_batches_what_is_at_stake_is_told(tmp_path: Path) -> None:
    (finding,) = told(divergence, MOSTLY, tmp_path, noted=False)
    assert finding.saving.likely_ns is None and "how many these are was not noted" in finding.detail


@pytest.mark.parametrize(
    ("loss", "labels"),
    [(all_positions_read, MOSTLY), (of_hidden_states, MOSTLY), (of_rows_that_count, MOSTLY), (divergence, FEW)],
)
def test_programs_that_need_all_positions_are_silent(
    loss: Callable[[Pair, Tensor], Tensor], labels: Tensor, tmp_path: Path
) -> None:
    assert [f for f in told(loss, labels, tmp_path) if f.title.startswith("A mask")] == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("return dict(ids=ids, labels=labels)", "return dict(ids=ids, labels=labels, keep=kept(labels))"),
        ('return {"ids": ids, "labels": labels}', "return {'ids': ids, 'labels': labels, 'keep': kept(labels)}"),
        ("return dict(ids=ids, labels=y)", ""),
        ("return ids, labels", ""),
        ("return Batch(ids=ids, labels=labels)", ""),
    ],
)
def test_a_collate_function_returns_the_positions_too(text: str, says: str) -> None:
    statement = whole_statement(text)
    assert statement is not None and _with_entry(statement, "labels", "keep", "kept(labels)") == says


@pytest.mark.parametrize(("collates", "begins"), [("/train.py:50", "return dict("), (None, "keep = kept")])
def test_the_line_of_the_collate_function_is_named(
    collates: str | None, begins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Settings:
        def rows(self, name: str) -> list[dict[str, Any]]:
            return [{"collates": collates}]

    lines = {"51": "x = stack(items)", "53": "return dict(labels=labels)", "60": "return model"}
    monkeypatch.setattr("nsysx.findings._masked_pastes.settings_of", lambda profile: Settings())
    monkeypatch.setattr("nsysx.findings._masked_pastes.texts", lambda profile: {"/train.py": lines})

    class Stub:
        profile = None

    line = _collated(Stub(), "labels", "keep", "kept(labels)")  # type: ignore[arg-type]
    assert line.startswith(begins) and "nothing waits" in line

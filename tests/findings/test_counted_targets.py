"""NSX131: targets that are filled with what a loss ignores, of which some are written over, and what the probe noted of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nsysx.events.counted_targets import NotedTargets
from nsysx.model import Finding
from tests.findings.recorded_programs import recorded

ROWS, LENGTH, WIDTH, WORDS, COUNTED = 4, 64, 8, 512, 16
IGNORE = -100
TOKENS = torch.randint(1, WORDS, (ROWS, LENGTH))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def encode(self, ids: Tensor) -> Tensor:
        return cast(Tensor, self.inner(self.table(ids)).cumsum(1))

    def score(self, hidden: Tensor) -> Tensor:
        return cast(Tensor, F.linear(F.gelu(self.norm(hidden)), self.out.weight))

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        hidden = self.encode(ids)
        logits = self.score(hidden)
        return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORE)


class Of255(Net):
    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        hidden = self.encode(ids)
        return F.cross_entropy(self.score(hidden).flatten(0, 1), labels.view(-1), ignore_index=255)


class Shifted(Net):
    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        logits = self.score(self.encode(ids))[:, :-1].reshape(-1, WORDS)
        return F.cross_entropy(logits, labels[:, 1:].reshape(-1), ignore_index=IGNORE)


class Segmented(nn.Module):
    """Each number of a dense map is made of those around it: no position can be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 20, 3, padding=1)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(images), labels, ignore_index=255)


def places() -> Tensor:
    return torch.rand(TOKENS.shape).topk(COUNTED, dim=1).indices


def scattered(ids: Tensor) -> Tensor:
    where = places()
    return torch.full_like(ids, IGNORE).scatter_(1, where, ids.gather(1, where))


def put(ids: Tensor) -> Tensor:
    labels, rows, where = torch.full((ROWS, LENGTH), -100), torch.arange(ROWS)[:, None], places()
    labels[rows, where] = ids.gather(1, where)
    return labels


def masked(ids: Tensor) -> Tensor:
    return torch.where(torch.rand(ids.shape) < 0.15, ids, IGNORE)


def background(ids: Tensor) -> Tensor:
    """The others are of a class of their own, which counts."""
    where = places()
    return torch.full_like(ids, 0).scatter_(1, where, ids.gather(1, where))


def nearly_all(ids: Tensor) -> Tensor:
    where = torch.rand(TOKENS.shape).topk(LENGTH - 2, dim=1).indices
    return torch.full_like(ids, IGNORE).scatter_(1, where, ids.gather(1, where))


def given(ids: Tensor) -> Tensor:
    return ids.clone()


def told(
    labels: Callable[[Tensor], Tensor], folder: Path, net: Net | None = None, noted: dict[str, Any] | None = None
) -> list[Finding]:
    net = net or Net()
    program = recorded(lambda: net(TOKENS, labels(TOKENS)).backward(), net, __file__, folder)
    if noted is not None:
        row = {"kind": "loss", "targets": ROWS * LENGTH, "classes": WORDS, "looked": 1, **noted}
        program.settings = {**(program.settings or {}), "targets": [row]}
    return [f for f in program.found(folder, "NSX131") if "rows-that-count" in [way.name for way in f.remedies]]


def run(finding: Finding, net: Net, labels: Tensor) -> Tensor:
    """Return the loss that a paste makes in forward."""
    assert finding.paste is not None
    names = {"self": net, "hidden": net.encode(TOKENS), "labels": labels, "F": F, "IGNORE": IGNORE}
    exec("def loss(self, hidden, labels):\n    " + finding.paste.replace("\n", "\n    "), names)
    return cast(Callable[..., Tensor], names["loss"])(net, names["hidden"], labels)


def same_as_before(finding: Finding, labels: Tensor, net: Net | None = None) -> bool:
    net = net or Net()
    whole, part = net(TOKENS, labels), run(finding, net, labels)
    parameters = [net.table.weight, net.inner.weight, net.out.weight]
    both = zip(torch.autograd.grad(whole, parameters), torch.autograd.grad(part, parameters), strict=True)
    return torch.allclose(whole, part) and all(torch.allclose(a, b, atol=1e-6) for a, b in both)


def test_targets_of_which_as_many_of_each_row_are_written(tmp_path: Path) -> None:
    (finding,) = told(scattered, tmp_path)
    assert finding.title.startswith("75 % of the labels are ignored") and finding.saving.likely_ns
    assert finding.paste is not None and f".topk({COUNTED}, dim=1)" in finding.paste
    assert "nothing waits" in finding.fix and "by the sizes" in finding.detail
    assert same_as_before(finding, scattered(TOKENS))


def test_targets_that_are_put_by_index(tmp_path: Path) -> None:
    (finding,) = told(put, tmp_path)
    assert finding.title.startswith("75 % of the labels are ignored")
    assert finding.paste is not None and "topk" not in finding.paste, "whether rows have as many is not known"
    assert "waits once a step" in finding.condition and same_as_before(finding, put(TOKENS))


def test_targets_that_a_mask_chooses_have_no_saving_as_long_as_none_is_noted(tmp_path: Path) -> None:
    (finding,) = told(masked, tmp_path)
    assert finding.title.startswith("A mask says which labels") and finding.saving.likely_ns is None
    assert same_as_before(finding, masked(TOKENS))
    (finding,) = told(masked, tmp_path, noted={"counts": 0.15, "least": 4, "most": 17, "length": LENGTH, "first": 0})
    assert finding.title.startswith("85 % of the labels") and finding.saving.likely_ns
    assert "the most in a row that was looked at is 17" in finding.condition


def test_targets_behind_prompts_are_cut_where_the_first_one_counts(tmp_path: Path) -> None:
    (finding,) = told(given, tmp_path, noted={"counts": 0.2, "least": 10, "most": 16, "length": LENGTH, "first": 48})
    assert finding.paste is not None and "hidden[:, 48:]" in finding.paste and "labels[:, 48:]" in finding.paste
    assert "48 of 64" in finding.fix
    behind = torch.where(torch.arange(LENGTH) < 48, IGNORE, TOKENS)
    assert same_as_before(finding, behind)


def test_where_few_of_the_last_positions_count_the_others_are_not_cut_off(tmp_path: Path) -> None:
    rows = {"least": 5, "most": 16, "length": LENGTH}
    for first, cut in ((1, False), (48, True)):
        (finding,) = told(given, tmp_path, noted={"counts": 0.2, **rows, "first": first})
        assert finding.paste is not None and ("[:, " in finding.paste) is cut
    few, last = (NotedTargets(0.2, 5, 16, LENGTH, first) for first in (1, 48))
    assert (few.last, few.left, last.last, last.left) == (None, 0.2, 16, 0.25)


def test_lines_of_another_form_get_the_general_paste(tmp_path: Path) -> None:
    (finding,) = told(given, tmp_path, Shifted(), {"counts": 0.2, "targets": ROWS * (LENGTH - 1)})
    assert finding.paste is not None and "index_select" in finding.paste


@pytest.mark.parametrize(
    ("labels", "net", "noted"),
    [
        (nearly_all, None, None),
        (background, None, None),
        (background, Of255(), None),
        (given, None, None),
        (given, None, {"counts": 0.98}),
        (masked, None, {"counts": 0.9}),
        (given, None, {"counts": 0.2, "classes": 7}),
    ],
)
def test_losses_of_which_nearly_all_count_are_silent(
    labels: Callable[[Tensor], Tensor], net: Net | None, noted: dict[str, Any] | None, tmp_path: Path
) -> None:
    assert told(labels, tmp_path, net, noted) == []


def test_dense_maps_are_left_as_they_are(tmp_path: Path) -> None:
    net, labels = Segmented(), torch.randint(20, (2, 8, 8)).masked_fill(torch.rand(2, 8, 8) < 0.5, 255)
    program = recorded(lambda: net(torch.randn(2, 3, 8, 8), labels).backward(), net, __file__, tmp_path)
    noted = {"kind": "loss", "targets": labels.numel(), "classes": 20, "tensors": 1, "looked": 1, "counts": 0.5}
    program.settings = {**(program.settings or {}), "targets": [noted]}
    found = program.found(tmp_path, "NSX131")
    assert "rows-that-count" not in [way.name for finding in found for way in finding.remedies]


def test_small_heads_gain_nothing(tmp_path: Path) -> None:
    class Tagger(Net):
        """Head and loss are few of the many operators of a step."""

        def encode(self, ids: Tensor) -> Tensor:
            hidden = super().encode(ids)
            for _ in range(80):
                hidden = torch.tanh(self.inner(hidden).cumsum(1))
            return hidden

    assert told(scattered, tmp_path, Tagger(), {"counts": 0.25}) == []

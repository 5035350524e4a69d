"""NSX131: caches that a beam search puts in another order for each token, and what is pasted instead."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nsysx.findings._fix import Fix
from nsysx.model import Finding
from tests.findings.recorded_programs import recorded

INPUTS, BEAMS, HEADS, PROMPT, ROUNDS, WORDS, WIDTH = 2, 3, 2, 8, 8, 5, 4
ROWS, ROOM = INPUTS * BEAMS, PROMPT + ROUNDS
BASE = torch.arange(INPUTS)[:, None] * BEAMS


class Layer:
    """Keys of a layer: of the tokens so far, or of an encoder."""

    def __init__(self, keys: torch.Tensor) -> None:
        self.keys = keys


class Search(torch.nn.Module):
    """Puts the caches in order by ``order``; ``same``: rows stay in their order, as in sampling."""

    def __init__(self, kind: str = "") -> None:
        super().__init__()
        self.words, self.kind = torch.nn.Linear(WIDTH, WORDS), kind

    def forward(self, caches: list[Layer], encoder: list[Layer]) -> torch.Tensor:
        for n in range(ROUNDS):
            t = PROMPT + n
            new = torch.sin(torch.arange(ROWS * HEADS * WIDTH) * (n + 1.0)).view(ROWS, HEADS, 1, WIDTH)
            made = torch.zeros(ROWS, WIDTH)
            for layer in caches:
                layer.keys[:, :, t : t + 1] = new
                made = made + (new @ layer.keys[:, :, : t + 1].transpose(2, 3)).sum((1, 3))
            for layer in encoder:
                made = made + (new @ layer.keys.transpose(2, 3)).sum((1, 3))
            beam = torch.topk(self.words(made).view(INPUTS, -1), BEAMS).indices // WORDS + BASE
            if self.kind != "same":
                self.order(caches, encoder, beam.flatten(), t)
        return made

    def order(self, caches: list[Layer], encoder: list[Layer], beam: torch.Tensor, t: int) -> None:
        for layer in (*caches, *encoder):
            layer.keys = layer.keys[beam]


class OwnRows(Search):
    """As pasted."""

    def order(self, caches: list[Layer], encoder: list[Layer], beam: torch.Tensor, t: int) -> None:
        pasted = Fix.by_name("own-rows-ordered").paste
        exec(pasted, {"caches": [layer.keys for layer in caches], "beam": beam, "prompt": PROMPT, "t": t})


def given() -> tuple[list[Layer], list[Layer]]:
    keys = torch.randn(INPUTS, HEADS, PROMPT, WIDTH)
    rows = torch.nn.functional.pad(keys, (0, 0, 0, ROUNDS)).repeat_interleave(BEAMS, 0)
    return [Layer(rows * n) for n in (1, 2)], [Layer(keys.repeat_interleave(BEAMS, 0))]


def found(kind: str, folder: Path, *, layers: int = 2) -> list[Finding]:
    search = Search(kind)

    def step() -> None:
        with torch.no_grad():
            caches, encoder = given()
            search(caches[:layers], encoder)

    findings = recorded(step, search, __file__, folder, slow=("index",)).found(folder, "NSX131")
    return [each for each in findings if each.remedies[0].name in ("own-rows-ordered", "shared-rows-kept")]


def test_caches_in_another_order_for_each_token(tmp_path: Path) -> None:
    (finding,) = found("", tmp_path)
    assert finding.remedies[0].name == "own-rows-ordered" and finding.saving.bound
    assert "24 times per step a copy of 3 tensors" in finding.detail
    assert "nothing is written into 1 of them" in finding.detail and "50 % of one was written" in finding.detail
    assert finding.where["line"] == Search.order.__code__.co_firstlineno + 2
    # Orders of 60 us each: nothing of the encoder's are left, of the others twice what the rounds have written.
    left = 2 * sum(max(3, 60 * min(1, 2 * n / ROOM)) for n in range(1, ROUNDS + 1))
    assert finding.saving_ns_per_step == pytest.approx(1000 * (24 * 60 - left - 8 * 3), rel=0.05)


def test_keys_of_an_encoder_alone(tmp_path: Path) -> None:
    (finding,) = found("", tmp_path, layers=0)
    assert finding.remedies[0].name == "shared-rows-kept"


def test_a_sampling_that_keeps_its_rows(tmp_path: Path) -> None:
    assert not found("same", tmp_path)


def test_the_paste_searches_alike() -> None:
    caches, encoder = given()
    others, same = [Layer(layer.keys.clone()) for layer in caches], [Layer(layer.keys.clone()) for layer in encoder]
    faulty, mended = Search(), OwnRows()
    mended.load_state_dict(faulty.state_dict())
    with torch.no_grad():
        assert torch.equal(faulty(caches, encoder), mended(others, same))
    for layer, other in zip(caches, others, strict=True):
        assert torch.equal(layer.keys, other.keys)

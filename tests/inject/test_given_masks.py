"""What the probe tells of masks in programs without gradients: up to which key they let see; read behind the window."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from nsysx_probe import given_masks
from torch import nn

from tests.inject.saved import assert_unnoticed, recorded

pytestmark = pytest.mark.filterwarnings("ignore")

ROOM = 64


class Layer(nn.Module):
    def forward(self, x: torch.Tensor, *, mask: torch.Tensor | None) -> torch.Tensor:
        k = torch.ones(1, 1, ROOM, 4)
        return x + F.scaled_dot_product_attention(x[:, None], k, k, attn_mask=mask)[:, 0]


class Net(nn.Module):
    """Attention of one query; ``form`` of the mask."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def mask(self, position: int) -> torch.Tensor | None:
        seen = (torch.arange(ROOM) <= position)[None, None, None]
        if self.form == "added":
            return torch.zeros(1, 1, 1, ROOM).masked_fill(~seen, float("-inf"))
        if self.form == "window":
            return seen & (torch.arange(ROOM) > position - 4)
        return None if self.form == "none" else seen if self.form == "truth" else torch.ones_like(seen)

    def forward(self, x: torch.Tensor, position: int) -> torch.Tensor:
        mask = self.mask(position)
        for layer in self.layers:
            x = layer(x, mask=mask)
        return x


def decoded(form: str, mode: type[AbstractContextManager[None]] = torch.no_grad) -> list[float]:
    net = Net(form)
    with mode():
        return [float(net(torch.ones(1, 1, 4), 20 + n).sum()) for n in range(8)]


def told(*given: Any) -> Any:
    return recorded(lambda: decoded(*given), "given_masks")


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("form", ["truth", "added", "window"])
def test_up_to_which_key_masks_let_see(form: str, mode: type[AbstractContextManager[None]]) -> None:
    (row,) = told(form, mode)
    assert row["shape"] == [1, 1, 1, ROOM] and 21 < row["sees"] <= 28


@pytest.mark.parametrize("form", ["none", "all"])
def test_what_masks_nothing_has_no_row(form: str) -> None:
    assert not told(form)


def test_the_program_computes_what_it_computes_without_the_probe() -> None:
    assert_unnoticed(lambda: decoded("truth"))


def test_nothing_is_held_behind_the_window_or_of_other_steps() -> None:
    masks, mask = given_masks.GivenMasks(torch), torch.arange(ROOM)[None] < 9
    masks.called((mask,), {})
    masks.begin(last=False)
    assert not masks.looks
    masks.begin(last=True)
    for _ in range(3):
        masks.looks[0]((torch.zeros(1, 2, 4),), {"mask": mask})
    assert [len(held) for held in masks._held.values()] == [1]
    masks.window_closed()
    assert masks.rows == [{"shape": [1, ROOM], "sees": 9}] and not masks._held and not masks.looks


def test_a_mask_that_was_written_into_is_not_read() -> None:
    masks, mask = given_masks.GivenMasks(torch), torch.arange(ROOM)[None] < 9
    masks.begin(last=True)
    masks.looks[0]((mask,), {})
    mask.logical_not_()
    masks.window_closed()
    assert not masks.rows

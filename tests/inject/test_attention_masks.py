"""What the probe tells of the masks of attention, on CPU torch: it is read behind the window, and the program does not notice."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from nsysx_probe import attention_masks, held_memory, saved_tensors
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.inject.saved import assert_unnoticed, losses_of, recorded
from tests.inject.test_probe import Lab, armed
from tests.inject.test_settings_reader import settings

pytestmark = pytest.mark.filterwarnings("ignore")

LENGTH = 24
Mask = torch.Tensor | None
ONES = torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool)
CAUSAL = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)


class Layer(nn.Module):
    """Attention that autograd sees, through ``call``."""

    def __init__(self, call: Callable[..., Any] = F.scaled_dot_product_attention) -> None:
        super().__init__()
        self.qkv, self.call = nn.Linear(8, 24), call

    def forward(self, x: torch.Tensor, mask: Mask) -> torch.Tensor:
        q, k, v = (part.view(2, LENGTH, 2, 4).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        out: torch.Tensor = self.call(q, k, v, attn_mask=mask)
        return x + out.transpose(1, 2).reshape(2, LENGTH, 8)


class Net(nn.Module):
    """A layer for each mask."""

    def __init__(self, layers: int, call: Callable[..., Any] = F.scaled_dot_product_attention) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(call) for _ in range(layers))

    def forward(self, x: torch.Tensor, masks: list[Mask]) -> torch.Tensor:
        for layer, mask in zip(self.layers, masks, strict=True):
            x = layer(x, mask)
        return x.sum()


def trained(net: nn.Module, *given: Any, steps: int = 8) -> list[float]:
    """Return the losses of some steps."""
    return losses_of(net, lambda: net(torch.randn(2, LENGTH, 8), *given), 0.001, steps)


def told(net: nn.Module, *given: Any) -> Any:
    """Return what is in the record of a window of three steps."""
    return recorded(lambda: trained(net, *given), "masks")


def row(holds: str, shape: list[int], tensors: int, looked: int, masked: float = 0.0) -> dict[str, Any]:
    return {"shape": shape, "tensors": tensors, "looked": looked, "holds": holds, "masked": masked}


def test_masks_that_mask_nothing_are_told_as_such() -> None:
    assert told(Net(5), [ONES] * 5) == [row("nothing", [2, 1, LENGTH, LENGTH], 5, 3)], (
        "of five layers three are looked at"
    )
    zeros = torch.zeros(1, 1, 1, LENGTH)
    (found,) = told(Net(3), [zeros] * 3)
    assert (found["holds"], found["shape"][-1], found["tensors"]) == ("nothing", LENGTH, 1), (
        "all layers are given the same"
    )
    assert told(Net(2), [None, None]) is None


def test_a_causal_mask_is_told_by_its_values() -> None:
    below = sum(LENGTH - 1 - n for n in range(LENGTH)) / LENGTH**2
    for mask in (CAUSAL, CAUSAL == 0, CAUSAL.clamp(min=torch.finfo(torch.float32).min).expand(2, 2, LENGTH, LENGTH)):
        (found,) = told(Net(2), [mask, mask])
        assert (found["holds"], found["masked"]) == ("causal", round(below, 4))


@pytest.mark.parametrize(
    "mask",
    [
        torch.ones(LENGTH, LENGTH).tril(1).bool(),  # each sees the one behind it as well
        CAUSAL.masked_fill(torch.ones(LENGTH, LENGTH).tril(-5) > 0, float("-inf")),  # a window
        torch.where(torch.arange(LENGTH) < LENGTH - 1, 0.0, float("-inf")).expand(LENGTH, LENGTH),  # padding
        CAUSAL - torch.ones(LENGTH, LENGTH).tril() * 0.1,  # and a bias
        torch.full((LENGTH, LENGTH), 1e-3),  # a bias
    ],
)
def test_what_masks_or_adds_anything_is_something_else(mask: torch.Tensor) -> None:
    (found,) = told(Net(1), [mask])
    assert found["holds"] == "other"


def test_one_padded_sequence_is_no_empty_mask() -> None:
    padded = ONES.clone()
    padded[1, :, :, -1] = False
    assert [r["holds"] for r in told(Net(1), [padded])] == ["other"]
    assert [r["holds"] for r in told(Net(2), [ONES, padded])] == ["other"], "one layer of a shape masks"


def test_torchs_own_module_is_seen_too() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0), 2)

        def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.layers(x, src_key_padding_mask=padding)
            return out.sum()

    full = torch.zeros(2, LENGTH, dtype=torch.bool)
    (found,) = told(Encoder(), full)
    assert (found["holds"], found["tensors"], found["shape"][-1]) == ("nothing", 2, LENGTH)
    padded = full.clone()
    padded[0, -3:] = True
    assert [r["holds"] for r in told(Encoder(), padded)] == ["other"]


def test_a_mask_that_learns_is_not_looked_at() -> None:
    """Its zeros are where training began."""

    class Edge:
        def __init__(self, node: Any) -> None:
            self.grad_fn = node

    saved = type("Saved", (), {"unpack_hook": None, "data": torch.zeros(LENGTH, LENGTH)})()
    node = type("ScaledDotProductEfficientAttentionBackward0", (), {"_raw_saved_attn_bias": saved})()
    for learns in (False, True):
        node.next_functions = [(None, 0)] * 3 + ([(type("Leaf", (), {"next_functions": ()})(), 0)] if learns else [])
        masks = attention_masks.AttentionMasks(torch, Mock())
        masks.begin(last=True)
        masks.backward(Edge(node))
        masks.window_closed()
        assert masks.rows is not None and [r.get("holds") for r in masks.rows] == [None if learns else "nothing"]


@pytest.fixture(params=[True, False], ids=["hooks told", "older torch"])
def tells_hooks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(saved_tensors, "hasattr", lambda o, n: n != "unpack_hook" and hasattr(o, n), raising=False)


@pytest.mark.usefixtures("tells_hooks")
@pytest.mark.parametrize("hooks", ["checkpoint", "offloaded", "around all"])
def test_what_a_hook_has_packed_is_not_unpacked(hooks: str) -> None:
    assert told(Net(1), [ONES]) == [row("nothing", [2, 1, LENGTH, LENGTH], 1, 1)]
    unpacked = []
    packing = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: unpacked.append(1) or t)

    class Packed(Net):
        def forward(self, x: torch.Tensor, masks: list[Mask]) -> torch.Tensor:
            if hooks == "checkpoint":
                return checkpoint(super().forward, x, masks, use_reentrant=False)  # type: ignore[no-any-return]
            with packing if hooks == "offloaded" else nullcontext():
                return super().forward(x, masks)

    def run() -> tuple[list[float], int]:
        unpacked.clear()
        torch.manual_seed(0)
        with packing if hooks == "around all" else nullcontext():
            return trained(Packed(2), [ONES] * 2), len(unpacked)

    bare = run()
    code = torch.autograd.graph.saved_tensors_hooks.__enter__.__code__
    lab = Lab(NSYSX_STEPS="2:5")
    try:
        assert run() == bare
        assert settings(lab)["masks"] is None
        assert torch.autograd.graph.saved_tensors_hooks.__enter__.__code__ is code
    finally:
        lab.close()


def test_the_program_computes_what_it_computes_without_the_probe() -> None:
    assert_unnoticed(lambda: trained(Net(3), [ONES, None, CAUSAL]))


def test_masks_are_held_to_the_windows_end_at_most() -> None:
    masks, net = attention_masks.AttentionMasks(torch, Mock()), Net(2)
    for close in (True, False):
        mask = ONES.clone()
        masks.begin(last=True)
        loss = net(torch.randn(2, LENGTH, 8), [mask, mask])
        masks.backward(loss)
        held = [weakref.ref(tensor) for kept in masks._held.values() for tensor, _ in kept]
        loss.backward()
        del loss
        assert held and all(ref() is not None for ref in held)
        masks.window_closed() if close else masks.begin(last=False)
        gc.collect()
        assert not any(ref() for ref in held)
    masks.backward(net(torch.randn(2, LENGTH, 8), [ONES, ONES]))
    assert not masks._held, "not the last step"


def test_large_masks_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_memory, "HELD_BYTES", 1000)
    (found,) = told(Net(1), [ONES])
    assert found == {"shape": [2, 1, LENGTH, LENGTH], "tensors": 1, "looked": 0}


def test_a_mask_that_was_written_into_is_not_read() -> None:
    masks, mask = attention_masks.AttentionMasks(torch, Mock()), torch.zeros(LENGTH, LENGTH)
    masks.begin(last=True)
    loss = Net(1)(torch.randn(2, LENGTH, 8), [mask])
    masks.backward(loss)
    mask.add_(1)
    for kept in masks._held.values():
        for tensor, _ in kept:
            tensor.add_(0)
    masks.window_closed()
    assert masks.rows == [{"shape": masks.rows[0]["shape"], "tensors": 1, "looked": 0}]  # type: ignore[index]


def test_compiled_programs_show_no_mask() -> None:
    assert told(torch.compile(Net(2), backend="aot_eager"), [ONES] * 2) is None


def test_without_a_window_nothing_is_looked_at() -> None:
    with armed() as lab:
        trained(Net(1), [ONES])
        assert settings(lab)["masks"] is None

"""Networks that programs call on sequences that become longer, and calls that only look like it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nsysx.events.growing_calls import GrowingCalls, growing_in
from tests.events.traced import traced

B, D, T = 2, 16, 10


def network() -> nn.Module:
    layer = nn.TransformerEncoderLayer(D, 2, 32, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


class Model(nn.Module):
    """A network that is called by a loop in a module, as programs write it, and layers beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head, self.cell, self.keys = (
            network(),
            nn.Linear(D, D),
            nn.GRUCell(D, D),
            nn.MultiheadAttention(D, 2),
        )

    def called(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        y: Tensor = self.net(x, mask=nn.Transformer.generate_square_subsequent_mask(n), is_causal=True)
        return y

    def rounds(self, first: int = 1) -> Tensor:
        x = torch.randn(B, first, D)
        for _ in range(T):
            x = torch.cat([x, self.head(self.called(x)[:, -1:])], 1)
        return x

    def sampled_then_trained(self) -> Tensor:
        with torch.no_grad():
            x = self.rounds()
        return self.called(x)

    def prefixes(self) -> Tensor:
        x = torch.randn(B, T, D)
        return torch.stack([self.called(x[:, : n + 1])[:, -1] for n in range(T)])

    def batches(self) -> Tensor:
        return torch.stack([self.called(torch.randn(B, n, D)).sum() for n in (4, 9, 5, 7, 6, 4, 8, 5)])

    def same(self) -> Tensor:
        x = torch.randn(B, T, D)
        for _ in range(T):
            x = self.called(x)
        return x

    def attending(self) -> Tensor:
        state = torch.randn(B, D)
        memory = [state]
        for _ in range(T):
            rows = torch.stack(memory)
            state = self.cell(self.keys(state[None], rows, rows)[0][0], state)
            memory.append(state)
        return state

    def levels(self) -> Tensor:
        return torch.stack([self.called(torch.randn(B, 2**n, D)).sum() for n in range(8)])

    def forward(self, kind: str) -> Tensor:
        y: Tensor = getattr(self, kind)()
        return y


def growing(kind: str, folder: Path) -> list[GrowingCalls]:
    model = Model()
    flow, _, trained = traced(lambda: model(kind).sum().backward(), folder, model)
    return growing_in(flow, trained)


@pytest.mark.parametrize("kind", ["rounds", "sampled_then_trained", "prefixes"])
def test_all_rows_are_computed_again(kind: str, tmp_path: Path) -> None:
    (grown,) = growing(kind, tmp_path)
    assert {call.path for call in grown.calls} == {"net"} and len(grown.calls) == T
    assert (grown.rows, grown.new) == (tuple(range(B, B * T + 1, B)), B)


@pytest.mark.parametrize("kind", ["batches", "same", "attending", "levels"])
def test_calls_that_need_all_their_rows(kind: str, tmp_path: Path) -> None:
    assert not growing(kind, tmp_path)


def test_the_remedy_computes_the_same() -> None:
    """All rounds at once, and new rows with the keys and values before, are what calls on longer and longer sequences make."""
    layers, x = nn.ModuleList(nn.Linear(D, 3 * D) for _ in range(2)).double(), torch.randn(B, T, D, dtype=torch.double)

    def attention(layer: Callable[[Tensor], Tensor], y: Tensor, past: list[Tensor], mask: Tensor | None) -> Tensor:
        q, k, v = layer(y)[:, None].chunk(3, -1)
        if past:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        past[:] = [k, v]
        made: Tensor = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)[:, 0]
        return y + made

    def made_of(y: Tensor, pasts: list[list[Tensor]], mask: Tensor | None) -> Tensor:
        for layer, past in zip(layers, pasts, strict=True):
            y = attention(layer, y, past, mask)
        return y

    def causal(n: int) -> Tensor:
        return nn.Transformer.generate_square_subsequent_mask(n, dtype=torch.double)

    results, pasts = list[list[Tensor]](), [list[Tensor](), list[Tensor]()]
    again = torch.cat([made_of(x[:, : n + 1], [[], []], causal(n + 1))[:, -1:] for n in range(T)], 1)
    at_once = made_of(x, [[], []], causal(T))
    kept = torch.cat([made_of(x[:, n : n + 1], pasts, None) for n in range(T)], 1)
    for y in (again, at_once, kept):
        layers.zero_grad()
        y.square().sum().backward()
        results.append([y.detach(), *(p.grad.clone() for p in layers.parameters() if p.grad is not None)])
    torch.testing.assert_close(results[0], results[1])
    torch.testing.assert_close(results[0], results[2])

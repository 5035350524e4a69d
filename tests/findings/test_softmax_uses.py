"""Attention in pieces is told from the softmax of routers, gates and scores of layers by what made its scores and what reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.events.softmax_uses import softmax_apart_from_attention
from tests.findings.lined import Lined
from tests.findings.test_product_forms import Called, flow_of_called
from tests.findings.test_smaller_operators import GEMM, operator

HEADS, SCORES = "[64, 512, 64]", "[64, 512, 512]"
QUERY: Called = ("linear", 1, (-1, -1), "[64, 512, 64], [64, 64]")
TURNED: Called = ("transpose", 2, (1, -1, -1), f"{HEADS}, [], []")
BY_KEYS: Called = ("bmm", 3, (1, 2), f"{HEADS}, [64, 64, 512]")
SOFTMAX: Called = ("softmax", 5, (4, -1, -1), f"{SCORES}, [], []")
BY_VALUES: Called = ("bmm", 9, (5, 1), f"{SCORES}, {HEADS}")


def apart(*called: Called) -> list[str]:
    flow = flow_of_called(*called)
    return [flow.names[row] for row in softmax_apart_from_attention(flow)]


@pytest.mark.parametrize(
    "called",
    [
        [QUERY, TURNED, BY_KEYS, ("div", 4, (3, -1), f"{SCORES}, []"), SOFTMAX, BY_VALUES],
        [QUERY, TURNED, BY_KEYS, ("add", 4, (3, -1, -1), f"{SCORES}, [512, 512], []"), SOFTMAX, BY_VALUES],
        [QUERY, TURNED, BY_KEYS, ("masked_fill", 4, (3, -1, -1), f"{SCORES}, [512, 512], []"), SOFTMAX,
         ("dropout", 6, (5, -1, -1), f"{SCORES}, [], []"), ("bmm", 9, (6, 1), f"{SCORES}, {HEADS}")],
        [QUERY, TURNED, ("baddbmm", 4, (-1, 1, 2), f"{SCORES}, {HEADS}, [64, 64, 512]"), SOFTMAX, BY_VALUES],
        [("softmax", 5, (-1, -1, -1), f"{SCORES}, [], []"), BY_VALUES],
        [QUERY, ("bmm", 4, (1, -1), f"{HEADS}, [64, 64, 512]"), SOFTMAX, ("bmm", 9, (5, -1), f"{SCORES}, {HEADS}")],
    ],
    ids=["scaled", "a bias", "a mask and dropout", "in one call", "scores of before", "keys of before"],
)  # fmt: skip
def test_attention_in_pieces(called: list[Called]) -> None:
    assert not apart(*called)


ROUTES: Called = ("linear", 3, (1, -1), "[32768, 64], [16, 64]")
GATE: Called = ("softmax", 5, (3, -1, -1), "[32768, 16], [], []")


@pytest.mark.parametrize(
    "called",
    [
        [QUERY, ROUTES, GATE, ("max", 6, (5, -1, -1), "[32768, 16], [], []")],
        [
            QUERY,
            ROUTES,
            GATE,
            ("topk", 6, (5, -1), "[32768, 16], []"),
            ("bmm", 9, (6, 1), "[32768, 1, 2], [32768, 2, 64]"),
        ],
        # Experts' rows mixed by it, in a product and by a multiplication, and weights of a pooling by a layer.
        [QUERY, ROUTES, GATE, ("bmm", 9, (5, 1), "[32768, 1, 16], [32768, 16, 64]")],
        [QUERY, ROUTES, GATE, ("mul", 9, (1, 5), "[32768, 16, 64], [32768, 16, 1]")],
        [QUERY, ("mm", 3, (1, -1), "[32768, 64], [64, 1]"), ("view", 4, (3, -1), "[32768, 1], []"), SOFTMAX, BY_VALUES],
        [QUERY, TURNED, BY_KEYS, ("softmax", 5, (3, -1, -1), f"{SCORES}, [], []"), ("log", 6, (5,), SCORES)],
    ],
    ids=["router", "the best", "dense mixture", "scaled rows", "pooling", "a loss"],
)
def test_softmax_of_something_else(called: list[Called]) -> None:
    assert len(apart(*called)) == 1


def layers(program: Lined, step: int, *, routed: bool) -> None:
    """Two layers: a product, a softmax of 300 us, and another product; ``routed``: the softmax is a router's."""
    with program.line(12), program.range("forward"), program.range("net:Net"):
        for layer in range(2):
            at = 1000 * step + 100 * layer + 10
            operator(program, "linear", at, [-1, -1], "[64, 512, 64], [64, 64]", 200)
            operator(program, "transpose", at + 1, [at, -1, -1], f"{HEADS}, [], []")
            if routed:
                operator(program, "linear", at + 2, [at, -1], "[64, 512, 64], [512, 64]", 200)
            else:
                operator(program, "bmm", at + 2, [at, at + 1], f"{HEADS}, [64, 64, 512]", 200)
            operator(
                program, "softmax", at + 3, [at + 2, -1, -1], f"{SCORES}, [], []", 300, "softmax_warp_forward<float>"
            )
            if routed:
                operator(program, "max", at + 4, [at + 3, -1, -1], f"{SCORES}, [], []")
            operator(program, "bmm", at + 5, [at + 3 + routed, at], f"{SCORES}, {HEADS}", 200, GEMM)
    program.sync()


@pytest.mark.parametrize("routed", [False, True])
def test_only_attention_is_to_be_fused(routed: bool, tmp_path: Path) -> None:
    program = Lined({12: "y = self.layer(x)"}).run(lambda program, step: layers(program, step, routed=routed))
    (found,) = program.findings(tmp_path, "NSX118")
    assert found.verdict == ("clear" if routed else "found")

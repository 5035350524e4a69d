"""NSX127: gradients of split layers' inputs that are reduced behind the weights' gradients, and could be beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import distributed as dist

from nsysx.findings._fix import way
from nsysx.model import Finding
from nsysx.replay.replay_bounds import HIDDEN_SLOWS_SHARES
from tests.findings.lined import FILE, all_is_transfer
from tests.findings.test_added_reductions import REDUCING, SIZE, Both, reduced
from tests.findings.test_smaller_operators import operator
from tests.findings.test_whole_tokens import ranks
from tests.ranks.test_rank_table import noted

__all__ = ["ranks"]
LAYERS = 3


def layer(program: Both, at: int, kind: str) -> None:
    """The node of a layer (two products of 150 us), and a function's node that reduces the input's gradient (200 us)."""
    if kind == "made beside":
        begin = program.t
        operator(program, "mm", at, [-1, -1], f"{SIZE}, {SIZE}", 150)
        reduced(program, at + 5, at, "apart", 0)
        operator(program, "mm", at + 1, [-1, -1], f"{SIZE}, {SIZE}", 150)
        program.node(f"ColumnLinearBackward, seq = {at}", begin)
        return
    begin = program.t
    operator(program, "mm", at, [-1, -1], f"{SIZE}, {SIZE}", 150)
    if kind != "frozen":
        operator(program, "mm", at + 1, [-1, -1], f"{SIZE}, {SIZE}", 150)
    program.node(f"MmBackward0, seq = {at}", begin)
    came = at
    if kind == "worked on":
        operator(program, "gelu_backward", at + 3, [at, -1], f"{SIZE}, {SIZE}", 5, "gelu")
        came = at + 3
    elif kind == "viewed":
        operator(program, "view", at + 3, [at, -1], f"{SIZE}, []")
        came = at + 3
    reduced(program, at + 5, came, "apart", 0)


def told(folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> Finding | None:
    def step(program: Both, number: int) -> None:
        at = 1000 * number + 10
        if not number:
            noted(program.main, "ncclCommInitRankConfig", 1, 2, comm=5, of=2, Rank=0)
        with program.line(20, "main"), program.range("forward"), program.range("net:Net"):
            operator(program, "linear", at + 510, [-1, -1], f"{SIZE}, {SIZE}", 300)
        with program.backward():
            for number_of_layer in range(LAYERS):
                layer(program, at + 20 * number_of_layer, kind)
                operator(program, "native_layer_norm_backward", at + 20 * number_of_layer + 12, [-1], SIZE, 50)
        program.sync()

    all_is_transfer(monkeypatch)
    program = Both()
    program.source[str(REDUCING)] = "dist.all_reduce(g, group=self.tp_group)"
    found = program.run(step).found(folder, "NSX127")  # type: ignore[arg-type]
    about = [each for each in found if each.evidence and each.evidence[0]["setting"] == "gradients of inputs in line"]
    return about[0] if about else None


@pytest.mark.parametrize("kind", ["behind", "viewed"])
def test_a_gradient_that_is_reduced_behind_the_weights(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = told(tmp_path, kind, monkeypatch)
    assert found is not None and (found.where["file"], found.where["line"]) == (FILE, REDUCING)
    assert [remedy.name for remedy in found.remedies] == ["reduced-beside-weights"]
    assert "group=self.tp_group, async_op=True" in found.paste
    # Of 200 us each, 150 us beside the weight's product.
    assert found.saving_ns_per_step == pytest.approx((1 - HIDDEN_SLOWS_SHARES[1]) * LAYERS * 150_000, rel=0.05)


@pytest.mark.parametrize("kind", ["made beside", "frozen", "worked on"])
def test_what_has_nothing_to_run_beside_is_silent(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(tmp_path, kind, monkeypatch) is None


@pytest.mark.parametrize("size", [(5, 8), (2, 3, 8)])
def test_the_paste_gives_the_same(size: tuple[int, ...]) -> None:
    given: dict[str, Any] = {"torch": torch, "F": F, "dist": dist, "tp": None}
    exec(way("reduced-beside-weights").paste.partition("\ny = ")[0], given)
    x, w = torch.randn(size, requires_grad=True), torch.randn(4, 8, requires_grad=True)
    results = []
    for call in (F.linear, given["ColumnLinear"].apply):
        y = call(x, w)
        results.append([y, *torch.autograd.grad(y.square().sum(), [x, w])])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*results, strict=True))

"""NSX127: a checkpoint inside of another one, and programs whose backward computes a call once or on purpose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nsysx.findings._nested_checkpoints import without_checkpoint
from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.test_nsx127_costly_settings import CLEAN, changed

OUTER, INNER, MLP = 40, 12, 13
SOURCE = {
    OUTER: "x = checkpoint(block, x, use_reentrant=False)",
    INNER: "x = x + checkpoint(self.attn, self.n1(x), use_reentrant=False)",
    MLP: "return x + checkpoint(self.mlp, self.n2(x), use_reentrant=False)",
}
LAYERS = 4


def step(program: Lined, number: int, again: str, forwards: int = 1) -> None:
    """Layers of attention (300 us) and an MLP (200 us); ``again``: what backward computes of each, in order, "a" or "m"."""
    with program.range("forward"), program.range("net:Net"):
        for _ in range(forwards):
            for layer in range(LAYERS):
                with program.line(OUTER), program.range(f"net.{layer}:Block"):
                    for part, us in (("attn:Attention", 300), ("mlp:Mlp", 200)):
                        with program.line(INNER if us == 300 else MLP), program.range(f"net.{layer}.{part}"):
                            program.host(2)
                            program.launch(us)
    with program.range("backward"):
        for layer in reversed(range(LAYERS)):
            for part in again:
                name, us = {"a": ("attn:Attention", 300), "m": ("mlp:Mlp", 200), "h": ("attn:Attention", 300)}[part]
                with program.range(f"net.{layer}.{name}{' recompute' if part != 'h' else ''}"):
                    program.host(2)
                    program.launch(us)
            program.launch(1000, "backward")
    with program.range("optimizer"):
        program.launch(200, "adam")
    program.sync()


def told(folder: Path, again: str, settings: dict[str, Any] | None = None, **how: int) -> list[Finding]:
    noted = changed(CLEAN, {"checkpoints": 12} if settings is None else settings)
    program = Lined(SOURCE, noted).run(lambda program, number: step(program, number, again, **how))
    return program.found(folder, "NSX127")


def test_what_backward_computes_twice_is_told_at_the_inner_checkpoint(tmp_path: Path) -> None:
    (finding,) = told(tmp_path, "aam")
    assert (
        finding.title
        == "Attention: checkpoint() inside of checkpoint(), so that backward computes the same again and again"
    )
    assert "Calls of Attention are computed three times in each step" in finding.detail
    assert finding.where["line"] == INNER and [way.name for way in finding.remedies] == ["one-checkpoint"]
    assert finding.saving_ns_per_step == pytest.approx(LAYERS * 300_000, rel=0.05)
    assert finding.paste.splitlines() == [
        "x = x + self.attn(self.n1(x))  # not checkpoint(self.attn, ...)",
        "return x + self.mlp(self.n2(x))  # not checkpoint(self.mlp, ...)",
    ]


def test_all_of_a_block_twice(tmp_path: Path) -> None:
    (finding,) = told(tmp_path, "amam")
    assert finding.saving_ns_per_step == pytest.approx(LAYERS * 500_000, rel=0.05)
    assert finding.title.startswith("Attention and Mlp: checkpoint() inside of checkpoint()")


def test_it_comes_before_checkpoints_that_are_meant(tmp_path: Path) -> None:
    free = {"checkpoints": 12, "memory": {"reserved_peak_bytes": 20 << 30}}
    noted = changed(CLEAN, free)
    summary = Lined(SOURCE, noted).run(lambda program, number: step(program, number, "aam")).summary(tmp_path)
    assert summary.answer.do[0].text.startswith("Checkpoint each part once")


@pytest.mark.parametrize(
    ("again", "how", "settings"),
    [
        ("am", {}, None),
        ("", {}, None),
        ("aam", {}, {"checkpoints": 0}),  # a backward of the program's own computes so
        ("aamm", {"forwards": 2}, None),  # layers that are called twice
        ("aaaaaaam", {}, None),  # a solver in backward
    ],
    ids=["once", "none", "no checkpoints", "shared layers", "an iteration"],
)  # fmt: skip
def test_what_is_computed_once_for_each_call(
    again: str, how: dict[str, int], settings: dict[str, Any] | None, tmp_path: Path
) -> None:
    assert "nested checkpoints" not in [f.evidence[0]["setting"] for f in told(tmp_path, again, settings, **how)]


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ("y = checkpoint(f, x)", "y = f(x)  # not checkpoint(f, ...)"),
        ("y = checkpoint.checkpoint(self.f, x, m=m, use_reentrant=True) + x", "y = self.f(x, m=m) + x  # not checkpoint(self.f, ...)"),
        ("y = checkpoint(self.blocks[0], x)", "y = self.blocks[0](x)  # not checkpoint(self.blocks[0], ...)"),
        ("y = checkpoint(lambda t: t, x)", None),
        ("y = checkpoint(*given)", None),
        ("model.gradient_checkpointing_enable()", None),
    ],
)  # fmt: skip
def test_a_line_without_its_checkpoint(text: str, new: str | None) -> None:
    assert without_checkpoint(text) == new


class _Block(nn.Module):
    def __init__(self, inner: bool) -> None:
        super().__init__()
        self.attn, self.mlp, self.inner, self.calls = (
            nn.Linear(8, 8),
            nn.Sequential(nn.Linear(8, 8), nn.GELU()),
            inner,
            0,
        )
        self.attn.register_forward_pre_hook(lambda *_: setattr(self, "calls", self.calls + 1))

    def forward(self, x: Tensor) -> Tensor:
        if self.inner:
            x = x + checkpoint(self.attn, x.sin(), use_reentrant=False)
            return x + checkpoint(self.mlp, x.cos(), use_reentrant=False)
        x = x + self.attn(x.sin())
        return x + self.mlp(x.cos())


def _gradients(make: Callable[[], _Block]) -> tuple[list[Tensor], int]:
    torch.manual_seed(0)
    block, x = make(), torch.randn(4, 8, requires_grad=True)
    checkpoint(block, x, use_reentrant=False).square().sum().backward()
    return [x.grad, *(p.grad for p in block.parameters())], block.calls  # type: ignore[list-item]


def test_torch_computes_the_inner_part_three_times_and_without_it_the_same_twice() -> None:
    (nested, three), (plain, two) = _gradients(lambda: _Block(inner=True)), _gradients(lambda: _Block(inner=False))
    assert (three, two) == (3, 2)
    for one, other in zip(nested, plain, strict=True):
        torch.testing.assert_close(one, other)


def of_stages(program: Lined, number: int, *, nested: bool) -> None:
    """Stages that a wrapper checkpoints, of blocks (400 us) that a line of theirs checkpoints, too."""
    stages = [f"net.layers.{n}" for n in range(2)]
    with program.range("forward"), program.range("net:Net"):
        for path in stages:
            with program.range(f"{path}:CheckpointWrapper"), program.range(f"{path}.{WRAPPED}:Stage"):
                for block in range(2):
                    with program.line(INNER), program.range(f"{path}.{WRAPPED}.blocks.{block}:Block"):
                        program.host(2)
                        program.launch(400)
    with program.range("backward"):
        for path in reversed(stages):
            with program.range(f"{path}.{WRAPPED}:Stage recompute"):
                for block in range(2):
                    with program.range(f"{path}.{WRAPPED}.blocks.{block}:Block recompute"):
                        program.launch(400)
            for block in (1, 0) if nested else ():
                with program.range(f"{path}.{WRAPPED}.blocks.{block}:Block recompute"):
                    program.launch(400)
            program.launch(2000, "backward")
    with program.range("optimizer"):
        program.launch(200, "adam")
    program.sync()


WRAPPED = "_checkpoint_wrapped_module"
BLOCKS = "x = checkpoint(blk, x, use_reentrant=False)"


@pytest.mark.parametrize(
    ("wraps", "where", "paste"),
    [
        ("apply_activation_checkpointing(model, check_fn=is_stage)", "train.py:77", "# train.py:77: no apply_activation_checkpointing()"),
        ("net.layers[i] = ptd_checkpoint_wrapper(layer)", "train.py:77", "# train.py:77: no ptd_checkpoint_wrapper()"),
        ("", "the wrapper around Stage", "# no checkpoint_wrapper()"),
    ],
)  # fmt: skip
def test_blocks_inside_of_stages_that_a_wrapper_checkpoints(wraps: str, where: str, paste: str, tmp_path: Path) -> None:
    program = Lined({INNER: BLOCKS}, changed(CLEAN, {"checkpoints": 6}))
    program.probe["of_ranks"] = {"/job/train.py": {"77": wraps}} if wraps else {}
    (finding,) = program.run(lambda program, number: of_stages(program, number, nested=True)).found(tmp_path, "NSX127")
    assert finding.title.startswith("Block: checkpoint() inside of checkpoint()") and finding.where["line"] == INNER
    assert f"of {where} and train.py:{INNER} one stays" in str(finding.fix)
    assert finding.paste.splitlines() == [f"{paste} around Stage", f"{BLOCKS}  # stays"]
    assert finding.saving_ns_per_step == pytest.approx(4 * 400_000, rel=0.05)


def test_stages_that_a_wrapper_alone_checkpoints(tmp_path: Path) -> None:
    program = Lined({INNER: "x = blk(x)"}, changed(CLEAN, {"checkpoints": 2}))
    assert not program.run(lambda program, number: of_stages(program, number, nested=False)).found(tmp_path, "NSX127")

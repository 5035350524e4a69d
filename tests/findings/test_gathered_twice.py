"""NSX127: units of a sharded model that backward gathers twice, because a reentrant checkpoint lies around each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsysx.findings._gathered_twice import with_option
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined
from tests.findings.test_untrained_gathers import GATHER, SCATTER, ordered, settings, unit

LAYERS, ASKS = 8, 12
SOURCE = {
    ASKS: "x = checkpoint(layer, x, use_reentrant=True)",
    20: "loss = model(x).mean()",
    21: "loss.backward()",
}


def gathered(program: Lined) -> None:
    """Gather parameters that the next kernel waits for."""
    ordered(program, 7, 19)
    program.launch(300, GATHER, stream=19)
    ordered(program, 19, 7)


def step(
    program: Lined, number: int, *, twice: bool = True, again: bool = True, ahead: bool = False, gathers: bool = True
) -> None:
    """A forward and a backward of layers that are gathered; ``again``: backward computes them again; ``twice``: and gathers them for that.

    ``ahead``: the gather for what is computed again is launched before that.
    """
    with program.line(20), program.range("forward Net"), program.range("net:Net"):
        for n in range(LAYERS):
            with program.line(ASKS, "forward"):
                unit(program, n, root="net", kernel_us=200, gathers=True, copies=False, gather_us=300)
    with program.line(21), program.range("backward"):
        for n in range(LAYERS):
            if twice and ahead:
                gathered(program)
            if again:
                with program.range(f"net.blocks.{n}:Block recompute"):
                    if twice and not ahead:
                        gathered(program)
                    program.launch(200)
            if gathers:
                gathered(program)
            program.launch(400)
            program.launch(60, SCATTER, stream=20)
    with program.range("optimizer AdamW"):
        program.launch(50)
    program.sync()


def about(*, kind: str = "FSDP", checkpoints: int = LAYERS, used: float = 0.9) -> dict[str, Any]:
    return {**settings(kind=kind, free=1 - used), "given_again": [], "checkpoints": checkpoints}


def told(folder: Path, noted: dict[str, Any], **how: Any) -> list[Finding]:
    found = Lined(SOURCE, noted).run(lambda p, n: step(p, n, **how)).found(folder, "NSX127")
    return [f for f in found if f.evidence[0]["setting"] == "gathered twice in backward"]


@pytest.mark.parametrize("ahead", [False, True])
def test_a_reentrant_checkpoint_around_each_unit(ahead: bool, tmp_path: Path) -> None:
    (finding,) = told(tmp_path, about(), ahead=ahead)
    assert "8 times in each step and backward 16 times" in finding.detail
    assert (finding.where["file"], finding.where["line"]) == (FILE, ASKS)
    assert finding.paste == "x = checkpoint(layer, x, use_reentrant=False)"
    assert 0 < (finding.saving.likely_ns or 0) <= LAYERS * 320_000


@pytest.mark.parametrize(
    ("noted", "how"),
    [
        (about(), {"twice": False}),  # computed again within the backward of the unit
        (about(), {"gathers": False}),  # gathered for what is computed again, and kept
        (about(checkpoints=0), {}),
        (about(kind="fully_shard"), {}),  # finds them whole
        (about(kind=""), {}),  # what layers exchange
        (about(used=0.3), {}),  # there is room to do without checkpoints
    ],
)
def test_units_that_backward_gathers_once(noted: dict[str, Any], how: dict[str, Any], tmp_path: Path) -> None:
    assert not told(tmp_path, noted, **how)


@pytest.mark.parametrize(
    ("line", "new"),
    [
        ("x = checkpoint(layer, x)", "x = checkpoint(layer, x, use_reentrant=False)"),
        ("x = checkpoint(layer, *f(x))  # saves", "x = checkpoint(layer, *f(x), use_reentrant=False)"),
        (
            "model.gradient_checkpointing_enable()",
            'model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})',
        ),
        ("x = checkpoint(layer, x, use_reentrant=not self.new)", ""),
        ("apply_activation_checkpointing(model, check_fn=is_layer)", ""),
    ],
)
def test_the_line_that_asks_for_checkpoints_gets_an_option(line: str, new: str) -> None:
    assert with_option(line) == new

"""NSX127: exchanges of layers that checkpoints repeat in backward, and what has to be sent there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsysx.findings._kept_exchanges import _with_contexts
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined

EXCHANGE, GATHER = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096>)", "ncclDevKernel_AllGather_RING_LL"
FUNCTIONAL = "_c10d_functional::all_to_all_single"
LAYERS, ASKS, SENDS = 6, 22, 12
SOURCE = {
    SENDS: "dist.all_to_all_single(out, h, back, there)",
    20: "loss = model(x).mean()",
    ASKS: "h = checkpoint(blk, h, use_reentrant=False)",
    30: "loss.backward()",
}


def layer(program: Lined, number: int, kernel: str | None, flag: str = "", *, functional: bool = False) -> None:
    """Experts: what they are sent, products, and what they send back."""
    with program.range(f"net.blocks.{number}:Block{flag}"):
        for us in (300, 100):
            program.launch(us)
            if kernel is not None:
                with program.line(SENDS, "exchange"):
                    begin = program.t
                    program.launch(250, kernel)
                    if program.noted is not None and functional:
                        label = (
                            f"{FUNCTIONAL}, op_id = {program.t}, sizes = [[64, 64], [], []], input_op_ids = [(0,-1)]"
                        )
                        program.main.add_range(label, begin, program.t)


def step(
    program: Lined,
    number: int,
    *,
    kernel: str | None = EXCHANGE,
    again: bool = True,
    kept: bool = False,
    functional: bool = False,
) -> None:
    with program.line(20), program.range("forward Net"), program.range("net:Net"):
        for n in range(LAYERS):
            with program.line(ASKS, "forward"):
                layer(program, n, EXCHANGE, functional=functional)
    with program.line(30), program.range("backward"):
        for n in range(LAYERS):
            if again:
                layer(program, n, None if kept else kernel, " recompute")
            for _ in range(2):
                program.launch(500)
                program.launch(250, EXCHANGE)  # of the gradients
    program.sync()


def settings(*, checkpoints: int = LAYERS, used: float = 0.8, kind: str = "DDP") -> dict[str, Any]:
    return {
        "checkpoints": checkpoints,
        "wrappers": [{"kind": kind, "count": 1}],
        "memory": {"total_bytes": 140 << 30, "reserved_peak_bytes": round(used * (140 << 30))},
    }


def told(folder: Path, about: dict[str, Any], **how: Any) -> list[Finding]:
    found = Lined(SOURCE, about).run(lambda p, n: step(p, n, **how)).found(folder, "NSX127")
    return [f for f in found if f.evidence[0]["setting"] == "exchanges recomputed"]


def test_exchanges_that_backward_repeats_are_left_out_of_the_checkpoint(tmp_path: Path) -> None:
    (finding,) = told(tmp_path, settings())
    assert "sends again what they exchange with other ranks: 12 collectives in each step" in finding.detail
    assert (finding.where["file"], finding.where["line"]) == (FILE, ASKS)
    assert [way.name for way in finding.remedies] == ["exchanges-kept"]
    assert finding.saving.likely_ns == pytest.approx(12 * 250_000, rel=0.1)


@pytest.mark.parametrize(
    ("about", "how"),
    [
        (settings(), {"kept": True}),  # they lie outside
        (settings(), {"again": False}),  # nothing is computed again
        (settings(checkpoints=0), {}),
        (settings(used=0.3), {}),  # there is room to do without checkpoints: another row's
        (settings(used=0.99), {}),  # and none for what is kept
        (settings(kind="fully_shard"), {"kernel": GATHER}),  # parameters, which backward needs
    ],
)
def test_what_backward_has_to_send_is_not_told(about: dict[str, Any], how: dict[str, Any], tmp_path: Path) -> None:
    assert not told(tmp_path, about, **how)


def test_functional_exchanges_are_kept_by_a_policy(tmp_path: Path) -> None:
    (finding,) = told(tmp_path, settings(), functional=True)
    assert "torch.ops._c10d_functional.all_to_all_single.default" in finding.paste
    asks = f"h = checkpoint(blk, h, use_reentrant=False, context_fn=contexts)  # line {ASKS}"
    assert finding.paste.splitlines()[-1] == asks


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        (
            "apply_activation_checkpointing(model, checkpoint_wrapper_fn=wrapper, check_fn=is_layer)",
            "apply_activation_checkpointing(model, check_fn=is_layer, "
            "checkpoint_wrapper_fn=lambda module: wrapper(module, context_fn=contexts))",
        ),
        (
            "apply_activation_checkpointing(model, check_fn=is_layer)",
            "apply_activation_checkpointing(model, check_fn=is_layer, "
            "checkpoint_wrapper_fn=lambda module: checkpoint_wrapper(module, context_fn=contexts))",
        ),
        (
            "apply_activation_checkpointing(model, checkpoint_wrapper_fn=wrapper, check_fn=lambda module: ...)",
            "# apply_activation_checkpointing(..., checkpoint_wrapper_fn=lambda module: wrapper(module, context_fn=contexts)), "
            "its other arguments as they are",
        ),
        ("m[i] = checkpoint_wrapper(layer)", "m[i] = checkpoint_wrapper(layer, context_fn=contexts)"),
        ("h = checkpoint(layer, h, use_reentrant=True)", ""),
        ("h = checkpoint(layer, h, use_reentrant=False, context_fn=mine)", ""),
        ("model.gradient_checkpointing_enable()", ""),
        ("h = checkpoint(", ""),
    ],
)
def test_lines_that_ask_for_checkpoints_take_a_policy(text: str, changed: str) -> None:
    assert _with_contexts(text) == changed

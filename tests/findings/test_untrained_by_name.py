"""NSX127: parts that no optimizer holds, told by the names of the gradients that it is given; sizes tell nothing where all are alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nsysx.model import Finding
from tests.findings.lined import FILE, Lined
from tests.findings.test_leaf_activations import noted
from tests.findings.test_nsx127_costly_settings import CLEAN
from tests.findings.test_smaller_operators import operator
from tests.findings.test_untrained import DDP, NAME, OF_DDP

WEIGHT, ROWS = "[64, 64]", "[8192, 64]"
PARTS = ("body.0", "body.1", "neck", "head")  # from below
#: The optimizer holds the upper two of four weights of 4,096 numbers.
SETTINGS: dict[str, Any] = CLEAN | OF_DDP | {
    "wrappers": [{**DDP, "bucket_bytes": str(4 * 4 * 4096)}],
    "networks": [{"class": "DistributedDataParallel", "dtypes": {"float32": 4 * 4096}}],
    "optimizers": [{**OF_DDP["optimizers"][0], "elements": 2 * 4096}],
}  # fmt: skip


class OnThreads(Lined):
    """A program whose backward runs on a thread of its own, as on a GPU."""

    def __init__(self) -> None:
        super().__init__({}, SETTINGS)
        self.autograd = self.process.thread(150, "pt_autograd_0")

    @contextmanager
    def backward(self) -> Iterator[None]:
        main = self.main
        with self.range("backward"):
            self.main = self.autograd
            yield
            self.main = main


def step(
    program: OnThreads, count: int, *, held: Sequence[str], written: str = ROWS, within: Sequence[str] = PARTS
) -> None:
    """Four layers, to the output of each of which something is added in place; backward, 300 us a layer, and one fused update."""
    at, row = 1000 * count + 10, 0
    with program.range("forward"), program.range("net:Net"):
        for row, part in enumerate(PARTS):
            with program.range(f"net.{part}:Linear"):
                operator(program, "mm", at + 2 * row, [-1, -1], f"{ROWS}, {WEIGHT}", 100)
                operator(program, "add_", at + 2 * row + 1, [at + 2 * row, -1], f"{written}, {written}, []", 10)
    sent = dict[str, int]()
    with program.backward():
        for number in reversed(range(len(PARTS))):
            node = at + 100 + 20 * number
            with program.range(f"net.{within[number]}:Linear"):
                operator(program, "mm", node, [-1, -1], f"{WEIGHT}, {ROWS}", 300)
                adds = f"torch::autograd::AccumulateGrad, op_id = {node + 2}, sizes = [{WEIGHT}], input_op_ids = [({node},0)]"
                around = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
                with noted(program, f"{around}, op_id = {node + 1}"), noted(program, adds):
                    operator(program, "copy_", node + 3, [-1, node], f"{WEIGHT}, {WEIGHT}, []", 5)
                sent[PARTS[number]] = node + 3
    with program.range("optimizer"):
        given = [sent[part] for part in held]
        operator(
            program, "_fused_adamw_", at + 200, [*(-1 for _ in given), *given], ", ".join([WEIGHT] * 2 * len(given)), 20
        )
    program.sync()


def found(folder: Path, **kind: Any) -> list[Finding]:
    program = OnThreads()
    program.run(lambda _, count: step(program, count, **kind))
    return [f for f in program.found(folder, "NSX127") if f.evidence[0]["setting"] == NAME]


def test_parts_whose_gradients_no_optimizer_is_given_are_named(tmp_path: Path) -> None:
    """What is added to activations in place is no update of weights."""
    (told,) = found(tmp_path, held=("neck", "head"))
    assert "50 % of the parameters of Net (body) get gradients in each step" in told.detail
    assert told.paste == "model.body.requires_grad_(False)  # before the network is wrapped"
    assert (told.where["file"], told.where["line"]) == (FILE, 6)
    assert told.saving.likely_ns == pytest.approx(2 * 305_000, rel=0.15)  # all of the backward of both


def test_a_part_between_trained_ones_keeps_half_of_its_backward(tmp_path: Path) -> None:
    (told,) = found(tmp_path, held=("body.0", "head"))
    assert (
        told.paste
        == "for part in [model.body[1:2], model.neck]: part.requires_grad_(False)  # before the network is wrapped"
    )
    assert told.saving.likely_ns == pytest.approx(2 * 150_000, rel=0.3)


def test_what_updates_weights_in_a_forward_is_seen(tmp_path: Path) -> None:
    """An average of weights is moved there, in tensors of their size."""
    assert not found(tmp_path, held=("neck", "head"), written=WEIGHT)


@pytest.mark.parametrize(
    "kind",
    [
        {"held": ("head",)},  # fewer than the optimizer holds: it makes copies first, or scales
        {"held": ("neck", "head"), "within": ("tied", "tied", "tied", "tied")},  # gradients of both kinds in one module
    ],
    ids=["fewer", "one module"],
)
def test_where_names_do_not_tell_no_part_is_named(kind: dict[str, Any], tmp_path: Path) -> None:
    (told,) = found(tmp_path, **kind)
    assert told.paste.startswith("held = {id(p) for g in optimizer.param_groups")

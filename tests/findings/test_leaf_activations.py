"""NSX127: an activation that was made to require a gradient below all that is trained; and backwards that need what they do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.lined import FILE, Lined

NAME = "gradients of activations that nothing reads"
CALL, MADE, READ = 9, 7, 12
SOURCE = {CALL: "loss = criterion(net(ids), y)", READ: "print(x.grad.norm())"}
ROWS, WEIGHT = "[8, 16, 64]", "[64, 64]"
LAYERS, TRAINED = 4, 3  # layers, the first of them that is trained


@contextmanager
def noted(program: Lined, label: str) -> Iterator[None]:
    """A range of an operator, where operators are recorded."""
    begin = program.t
    yield
    if program.noted is not None:
        program.main.add_range(label, begin, program.t)


def operator(program: Lined, name: str, number: int, given: str, sizes: str, us: float, sequence: int = -1) -> None:
    seq = f", seq = {sequence}" if sequence >= 0 else ""
    with noted(
        program, f"aten::{name}{seq}, op_id = {number}, sizes = [{sizes}], input_op_ids = [{given}, (0,-1), (0,-1)]"
    ):
        program.host(5)
        if us:
            program.launch(us)


def evaluated(program: Lined, number: int, sequence: int, us: float) -> None:
    """The node of an operator, which runs a kernel."""
    around = noted(program, f"autograd::engine::evaluate_function: MmBackward0, op_id = {number}")
    with around, noted(program, f"MmBackward0, seq = {sequence}, op_id = {number + 1}, sizes = [{ROWS}]"):
        operator(program, "mm", number + 2, f"({number - 1},0)", f"{ROWS}, {WEIGHT}, []", us)


def accumulated(program: Lined, number: int, made: int, size: str) -> None:
    """A gradient that is kept."""
    with noted(program, f"autograd::engine::evaluate_function: torch::autograd::AccumulateGrad, op_id = {number}"):
        label = f"torch::autograd::AccumulateGrad, op_id = {number + 1}, sizes = [{size}], input_op_ids = [({made},0)]"
        with noted(program, label):
            operator(program, "detach", number + 2, f"({made},0)", f"{size}, [], []", 0)


def step(program: Lined, count: int, *, kind: str = "activation") -> None:
    """An embedding and four layers, the last of which is trained; backward, 300 us a layer, goes down to what ``kind`` says."""
    at, sequence = 1000 * count + 10, 100 * count + 10
    lowest = TRAINED if kind == "nothing" else 0
    with program.line(CALL), program.range("forward"), program.range("net:Net"):
        made = at
        with program.range("net.embed:Embedding"):
            operator(program, "embedding", at, "(0,-1)", f"{WEIGHT}, [8, 16], []", 20)
        if kind == "line":
            with program.line(MADE):
                program.host(5)
        for layer in range(LAYERS):
            with program.range(f"net.layers.{layer}:Layer"):
                given = made if kind != "weights" or layer else -1
                at_row = f"({given},0)" if given >= 0 else "(0,-1)"
                number = sequence + layer if layer >= lowest else -1
                operator(program, "mm", at + 1 + layer, at_row, f"{ROWS}, {WEIGHT}, []", 100, number)
                made = at + 1 + layer
    with program.line(CALL), program.range("backward"):
        for layer in reversed(range(lowest, LAYERS)):
            evaluated(program, at + 100 + 10 * layer, sequence + layer, 300)
            if layer >= TRAINED or (kind in ("weights", "trained below") and layer == 0):
                accumulated(program, at + 200 + 10 * layer, at + 102 + 10 * layer, WEIGHT)
        if kind not in ("nothing", "weights", "trained below"):
            accumulated(program, at + 300, at + 102, ROWS)
    if kind == "read":
        with program.line(READ):
            operator(program, "linalg_vector_norm", at + 400, f"({at + 302},0)", f"{ROWS}, [], []", 5)
    if kind == "asked for":
        evaluated(program, at + 500, sequence + 1, 300)
    if kind == "checkpoint":
        with noted(program, f"autograd::engine::evaluate_function: CheckpointFunctionBackward, op_id = {at + 600}"):
            program.host(5)
    with program.range("optimizer"):
        operator(program, "_fused_adamw_", at + 450, f"({at + 232},0)", f"{WEIGHT}, [], []", 20)
    program.sync()


def told(folder: Path, kind: str, **settings: object) -> list[Finding]:
    source = SOURCE | ({MADE: "x.requires_grad_(True)"} if kind == "line" else {})
    program = Lined(source, {"step": 1, "gradient_readers": [], **settings}).run(
        lambda program, count: step(program, count, kind=kind)
    )
    return program.found(folder, "NSX127")


def test_backward_below_what_is_trained_for_an_activation(tmp_path: Path) -> None:
    (found,) = told(tmp_path, "activation")
    assert found.evidence[0]["setting"] == NAME and found.evidence[0]["leads"]
    assert found.title == "Backward runs on below layers.3, where nothing is trained"
    assert (
        "activation (8 x 16 x 64 of embed) was made to require a gradient, which no operator reads: 900 us"
        in found.detail
    )
    assert 'at = "embed"' in found.paste and "register_forward_hook" in found.paste
    assert (found.where["file"], found.where["line"]) == (FILE, CALL)
    assert found.saving_ns_per_step == pytest.approx(3 * 300_000, rel=0.1)


def test_the_line_that_makes_it_require_one_is_told(tmp_path: Path) -> None:
    (found,) = told(tmp_path, "line")
    assert found.where["line"] == MADE and found.paste == "x = x.detach()"


@pytest.mark.parametrize("kind", ["nothing", "weights", "trained below", "read", "asked for", "checkpoint"])
def test_backwards_that_end_where_something_is_trained_or_read(kind: str, tmp_path: Path) -> None:
    found = told(tmp_path, kind)
    assert NAME not in {each.evidence[0]["setting"] for each in found}


def reentrant(program: Lined, count: int, *, lowest: int = TRAINED, of_embedding: bool = False) -> None:
    """As above, with a checkpoint around each layer: what backward does of it, 400 us, is a backward of its own. From layer ``lowest`` on
    there are weights that are trained; ``of_embedding``: so are the rows of the embedding.
    """
    at, sequence = 1000 * count + 10, 100 * count + 10
    with program.line(CALL), program.range("forward"), program.range("net:Net"):
        with program.range("net.embed:Embedding"):
            operator(program, "embedding", at, "(0,-1)", f"{WEIGHT}, [8, 16], []", 20)
        for layer in range(LAYERS):
            with program.range(f"net.layers.{layer}:Layer"):
                operator(
                    program, "mm", at + 1 + layer, f"({at + layer},0)", f"{ROWS}, {WEIGHT}, []", 100, sequence + layer
                )
    with program.line(CALL), program.range("backward"):
        for layer in reversed(range(LAYERS)):
            with noted(
                program, f"autograd::engine::evaluate_function: CheckpointFunctionBackward, op_id = {at + 600 + layer}"
            ):
                operator(program, "mm", at + 700 + layer, "(0,-1)", f"{ROWS}, {WEIGHT}, []", 100)
                evaluated(program, at + 100 + 10 * layer, sequence + layer, 300)
                if layer >= lowest:
                    accumulated(program, at + 200 + 10 * layer, at + 102 + 10 * layer, WEIGHT)
                accumulated(program, at + 300 + 10 * layer, at + 102 + 10 * layer, ROWS)
        accumulated(program, at + 400, at + 102, WEIGHT if of_embedding else ROWS)
    with program.range("optimizer"):
        operator(program, "_fused_adamw_", at + 450, f"({at + 232},0)", f"{WEIGHT}, [], []", 20)
    program.sync()


def told_of_checkpoints(folder: Path, **kind: object) -> list[Finding]:
    program = Lined(SOURCE, {"step": 1, "gradient_readers": []})
    found = program.run(lambda program, count: reentrant(program, count, **kind)).found(folder, "NSX127")  # type: ignore[arg-type]
    return [each for each in found if each.evidence[0]["setting"] == NAME]


def test_checkpoints_below_what_is_trained_that_need_an_input_with_a_gradient(tmp_path: Path) -> None:
    (found,) = told_of_checkpoints(tmp_path)
    assert '"use_reentrant": False' in found.paste and "no model.enable_input_require_grads()" in found.paste
    assert found.title.startswith("Checkpoints compute again, and backward runs, below all that is trained")
    assert found.saving_ns_per_step == pytest.approx(3 * 400_000, rel=0.1)


@pytest.mark.parametrize("kind", [{"lowest": 0}, {"of_embedding": True}, {"lowest": LAYERS}])
def test_checkpoints_above_something_that_is_trained(kind: dict[str, object], tmp_path: Path) -> None:
    assert not told_of_checkpoints(tmp_path, **kind)

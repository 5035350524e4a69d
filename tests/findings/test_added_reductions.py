"""NSX127: reductions of which only the sum is read, in backward as in forward, and those that are read otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.lined import FILE, Lined, all_is_transfer
from tests.findings.test_smaller_operators import operator
from tests.ranks.test_rank_table import ALL_REDUCE, noted

FIRST, SECOND, REDUCING, BACKWARD = 31, 33, 12, 50
SOURCE = {
    FIRST: "q, k = self.wq(h), self.wk(h)",
    SECOND: "return q, k, self.wv(h)",
    REDUCING: "dist.all_reduce(g)",
    BACKWARD: "loss.backward()",
}
SETTINGS = {"wrappers": [], "checkpoints": 0}
SIZE, HALF, BYTES = "[64, 128]", "[32, 128]", 16_384
LAYERS = 3


class Both(Lined):
    """A program whose backward runs on a thread of autograd's."""

    def __init__(self) -> None:
        super().__init__(SOURCE, SETTINGS)
        self.autograd = self.process.thread(150, "pt_autograd_0")

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Run on autograd's thread."""
        main = self.main
        with self.range("backward"), self.line(BACKWARD):
            self.main = self.autograd
            yield
            self.main = main

    def node(self, text: str, begin: float) -> None:
        """A range that began before, in the steps of which operators are noted."""
        if self.noted is not None:
            self.main.add_range(text, begin, self.t)


def reduced(program: Both, number: int, made: int, kind: str, layer: int) -> int:
    """A function's node that reduces what operator ``made`` made (200 us); return the number that what came has."""
    begin, size = program.t, HALF if (kind, layer) == ("other sizes", 1) else SIZE
    functional = kind == "functional"
    program.host(2)
    start = program.t
    kernel = ALL_REDUCE.replace("Sum", "MinMax") if kind == "largest" else ALL_REDUCE
    program.launch(200, kernel)
    noted(program.main, "ncclAllReduce", start, program.t, comm=6 if (kind, layer) == ("others", 1) else 5, size=BYTES)
    name = "_c10d_functional::all_reduce" if functional else "c10d::allreduce_"
    program.node(f"{name}, op_id = {number}, sizes = [{size}, []], input_op_ids = [({made},0), (0,-1)]", start)
    if functional:
        came = f"_c10d_functional::wait_tensor, op_id = {number + 1}, sizes = [{size}], input_op_ids = [({number},0)]"
        program.host(1)
        program.node(came, program.t - 500)
    if program.noted is not None:
        program.main.line(f"{FILE}:{REDUCING} Entered.backward", start, program.t)
    text = f"EnteredBackward, seq = {number}, op_id = {number + 2}, sizes = [{size}], input_op_ids = [({made},0)]"
    program.node(text, begin)
    program.node("autograd::engine::evaluate_function: EnteredBackward", begin - 1)
    return number + 1 if functional else made


def gradients(program: Both, at: int, kind: str) -> int:
    """The gradients of the layers' common input (100 us each), which autograd adds."""
    total = -1
    for layer in range(LAYERS):
        number = at + 20 * layer
        operator(program, "mm", number, [-1, -1], f"{SIZE}, {SIZE}", 100)
        came = number if kind == "once" else reduced(program, number + 5, number, kind, layer)
        if kind == "viewed":
            operator(program, "view", number + 9, [came, -1], f"{SIZE}, []")
            came = number + 9
        if kind == "worked on":
            operator(program, "gelu_backward", number + 9, [came, -1], f"{SIZE}, {SIZE}", 5, "gelu")
            came = number + 9
        if kind == "also read" and layer != 1:
            operator(program, "sum", number + 10, [came, -1], f"{SIZE}, []", 5, "reduce")
        if kind == "read by a kernel" and layer != 1:
            program.host(5)
            text = f"NormBackward, seq = {9000 + number}, op_id = {number + 12}, sizes = [{SIZE}], input_op_ids = [({came},0)]"
            program.node(text, program.t - 5000)
        if total >= 0:
            size = f"{SIZE}, {HALF}" if kind == "other sizes" and layer == 1 else f"{SIZE}, {SIZE}"
            operator(program, "add" if layer == 1 else "add_", number + 11, [total, came, -1], f"{size}, []", 5)
            came = number + 11
        total = came
    return total


def step(program: Both, number: int, kind: str) -> None:
    """Three layers that are given one input, the gradient of which each reduces."""
    at = 1000 * number + 10
    if not number:
        for comm in (5, 6):
            noted(program.main, "ncclCommInitRankConfig", 1, 2, comm=comm, of=2, Rank=0)
    with program.line(20, "main"), program.range("forward"), program.range("net:Net"):
        for layer in range(LAYERS):
            with program.line(FIRST if layer < 2 else SECOND, "Block.forward"), program.line(40, "Column.forward"):
                text = f"Entered, seq = {at + 20 * layer + 5}, op_id = {at + 500 + layer}, sizes = [{SIZE}], input_op_ids = [(3,0)]"
                program.host(5)
                if kind != "whole layers":
                    program.node(text, program.t - 3000)
                begin = program.t - 3000
                operator(program, "linear", at + 510 + layer, [at + 500 + layer, -1], f"{SIZE}, {SIZE}", 100)
                if kind == "whole layers":  # functions that multiply, too, and not only copy
                    program.node(
                        f"Entered, seq = {at + 20 * layer + 5}, op_id = 0, sizes = [{SIZE}], input_op_ids = []", begin
                    )
    if kind == "in turn":  # of two micro-batches
        total = -1
        for micro in range(2):
            with program.backward():
                number = at + 100 + 40 * micro
                operator(program, "mm", number, [-1, -1], f"{SIZE}, {SIZE}", 100)
                came = reduced(program, number + 5, number, kind, 0)
                if micro:
                    operator(program, "add_", number + 11, [total, came, -1], f"{SIZE}, {SIZE}, []", 5)
                total = came
    else:
        with program.backward():
            total = gradients(program, at, kind)
            if kind == "once":
                total = reduced(program, at + 65, total, kind, 0)
            operator(program, "native_layer_norm_backward", at + 90, [total], f"{SIZE}, {SIZE}", 300)
    program.sync()


def finding(folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> Finding | None:
    all_is_transfer(monkeypatch)
    program = Both()
    program.run(lambda program, number: step(program, number, kind))  # type: ignore[arg-type]
    found = program.found(folder, "NSX127")
    return next((f for f in found if f.evidence[0]["setting"] == "gradients of one input"), None)


@pytest.mark.parametrize("kind", ["apart", "viewed", "functional", "whole layers"])
def test_gradients_of_one_input_are_reduced_once(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = finding(tmp_path, kind, monkeypatch)
    assert found is not None and (found.where["file"], found.where["line"]) == (FILE, FIRST)
    assert [r.name for r in found.remedies] == ["gradient-reduced-once"] and ".apply(h)" in found.paste
    assert ("Entered.apply(h)" in found.paste) is (kind != "whole layers")
    assert "3 reductions of a step" in found.detail and "1 would do" in found.detail
    assert not found.saving.bound and found.saving_ns_per_step == pytest.approx(400_000, rel=0.05)


@pytest.mark.parametrize(
    "kind",
    [
        "once",
        "worked on",
        "also read",
        "read by a kernel",  # a function of autograd with a kernel of its own
        "in turn",
        "largest",
    ],
)
def test_what_is_read_otherwise_is_reduced_by_itself(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert finding(tmp_path, kind, monkeypatch) is None


@pytest.mark.parametrize("kind", ["others", "other sizes"])
def test_only_reductions_of_one_kind_are_one(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = finding(tmp_path, kind, monkeypatch)
    assert found is not None and "2 reductions of a step" in found.detail
    assert found.saving_ns_per_step == pytest.approx(200_000, rel=0.05)

"""NSX137 by conversions: tensors that a step converts again, and conversions that it needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nsysx.model import Finding
from nsysx.replay import engine
from tests.findings.lined import Lined
from tests.findings.test_smaller_operators import operator
from tests.findings.test_unread import Trained

ENTER, CELL, LOSS, QUERY, KEY = 11, 12, 14, 21, 22
SOURCE = {
    ENTER: "with torch.autocast('cuda', torch.bfloat16):",
    CELL: "state = self.cell(state)",
    LOSS: "loss.backward()",
    QUERY: "q = self.q(x.to(torch.bfloat16))",
    KEY: "k = self.k(x.to(torch.bfloat16))",
}
ROUNDS = 6
TO_HALF, TO_FLOAT, SUM = "bfloat16_copy_kernel_cuda", "direct_copy_kernel_cuda", "CUDAFunctor_add"


class Cast(Trained):
    """A program in autocast whose backward runs on a thread of its own."""

    def __init__(self) -> None:
        super().__init__(SOURCE)
        self.autograd = self.process.thread(101, "pt_autograd_0")

    @contextmanager
    def on_autograd(self) -> Iterator[None]:
        main, self.main = self.main, self.autograd
        yield
        self.main = main


def step(program: Lined, number: int, *, weights: int, converts: int, logs: bool = False, waits: bool = False) -> None:
    """Rounds of a cell, 100 us each way; ``converts`` of them convert the weight, 200 us; its gradient is accumulated ``weights`` times.

    ``logs``: the last step of the X-ray, and of all, runs operators besides. ``waits``: kernels take a hundredth of that, and the GPU waits
    for the host: 40 us of the program's code before each cell, 20 us in each operator.
    """
    assert isinstance(program, Cast)
    program.first = 1000 * (number + 1)
    before_us, within_us, part = (40, 20, 0.01) if waits else (1, 0, 1)
    state = 1
    with program.range("forward"):
        program.op("index", state, -1, us=5)
        for r in range(ROUNDS):
            at, seq = 10 * (r + 1), 2 * r
            with program.line(ENTER):
                program.host(before_us)
            with program.line(CELL), program.noted_as("aten::linear", at, (state, -1), seq):
                if r < converts:
                    with (
                        program.noted_as("aten::to", at + 1, (-1,), seq),
                        program.noted_as("aten::_to_copy", at + 2, (-1,), seq),
                    ):
                        program.host(within_us)
                        program.launch(200 * part, TO_HALF)
                program.host(within_us)
                program.op("linear", at + 3, state, at + 1, seq=seq + 1, us=100 * part)
            state = at
    with program.line(LOSS), program.range("backward"), program.on_autograd():
        for r in reversed(range(ROUNDS)):
            with program.noted_as("LinearBackward0", 500 + 10 * r, (-1,), 2 * r + 1):
                program.launch(100 * part, "gemm")
            if r >= converts:
                continue
            with program.noted_as("autograd::engine::evaluate_function: ToCopyBackward0", 501 + 10 * r, ()):
                with program.noted_as("ToCopyBackward0", 502 + 10 * r, (-1,), 2 * r):
                    program.launch(200 * part, TO_FLOAT)
                if r < converts - 1:
                    program.launch(100 * part, SUM)
        for w in range(weights):
            with program.noted_as("torch::autograd::AccumulateGrad", 600 + w, (-1,)):
                program.host(1)
    if logs and number == 10:
        program.op("mean", 700, state, us=1)
        program.op("item", 701, 700)
    program.sync()


def finding(folder: Path, weights: int, converts: int, *, logs: bool = False, waits: bool = False) -> Finding:
    def body(program: Lined, number: int) -> None:
        step(program, number, weights=weights, converts=converts, logs=logs, waits=waits)

    return Cast().run(body).finding(folder, "NSX137")


@pytest.mark.parametrize("logs", [False, True])
def test_autocast_that_is_entered_anew_in_each_round(logs: bool, tmp_path: Path) -> None:
    found = finding(tmp_path, 1, ROUNDS, logs=logs)
    assert found.title.startswith(f"train.py:{ENTER}: 5 of 6 conversions of weights in a step make the same again")
    assert found.where["line"] == ENTER and [way.name for way in found.remedies] == ["autocast-once"]
    # Five conversions go, forward and back; what adds their gradients, of numbers half as long, stays.
    assert found.saving_ns_per_step == pytest.approx(5 * (200_000 + 200_000 + 50_000), rel=0.1)


def test_where_no_replay_comes_near_the_steps_the_time_of_what_goes_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "TRUSTED_ERROR", -1.0)
    found = finding(tmp_path, 1, ROUNDS)
    assert found.verdict == "found" and found.where["line"] == ENTER
    assert found.saving.source == "time" and not found.saving.bound
    # All that goes at most; that it is hidden behind a host that is late is no more likely than the GPU's idle time is long.
    gone = 5 * (200_000 + 200_000 + 50_000)
    assert found.saving.most_ns == pytest.approx(gone, rel=0.05)
    assert 0.8 * gone < (found.saving.likely_ns or 0) < gone


def test_of_the_host_only_what_runs_in_the_conversions_goes(tmp_path: Path) -> None:
    """26 us of host code and launch in each of five conversions, 8 us in backward, and not the 40 us of the program before it."""
    found = finding(tmp_path, 1, ROUNDS, waits=True)
    assert found.title.startswith(f"train.py:{ENTER}: 5 of 6 conversions")
    assert found.saving_ns_per_step == pytest.approx(5 * (26_000 + 8_000), rel=0.1)


@pytest.mark.parametrize(("weights", "converts"), [(ROUNDS, ROUNDS), (1, 1), (0, ROUNDS)])
def test_weights_that_are_converted_once(weights: int, converts: int, tmp_path: Path) -> None:
    """A weight for each round; one that autocast keeps; frozen weights, of which how many there are is not known."""
    assert finding(tmp_path, weights, converts).verdict == "clear"


def projections(program: Lined, number: int, *, kind: str) -> None:
    """Two layers on one tensor, 100 us each, that convert it, 200 us."""
    at = 1000 * number + 10
    size = "[512, 64]"
    with program.range("forward"):
        operator(program, "index", at, [-1], "[4096, 64]", 5, "gather")
        operator(program, "exp", at + 1, [at], size, 5)
        with program.line(QUERY):
            operator(program, "to", at + 2, [at + 1], size, 200, TO_HALF)
            operator(program, "linear", at + 3, [at + 2, -1], f"{size}, [64, 64]", 100)
            if kind == "result written":
                operator(program, "mul_", at + 4, [at + 2, at + 3], f"{size}, {size}", 5)
            if kind == "written between":
                operator(program, "mul_", at + 5, [at + 1, at + 3], f"{size}, {size}", 5)
        with program.line(KEY):
            given = {"another": at, "written between": at + 5}.get(kind, at + 1)
            kernel = "float16_copy_kernel_cuda" if kind == "another type" else TO_HALF
            operator(program, "to", at + 6, [given], size, 200, kernel)
            operator(program, "linear", at + 7, [at + 6, -1], f"{size}, [64, 64]", 100)
            operator(program, "mul", at + 8, [at + 3, at + 7], f"{size}, {size}", 5)
        operator(program, "copy_", at + 9, [-1, at + 8], f"{size}, {size}", 5)
    program.sync()


def test_a_tensor_that_two_lines_convert(tmp_path: Path) -> None:
    found = Lined(SOURCE).run(lambda program, number: projections(program, number, kind="")).finding(tmp_path, "NSX137")
    assert found.title.startswith(f"train.py:{KEY} converts again what train.py:{QUERY} has converted")
    assert [way.name for way in found.remedies] == ["converted-once"]
    assert found.saving_ns_per_step == pytest.approx(200_000, rel=0.1)


@pytest.mark.parametrize("kind", ["another", "another type", "written between", "result written"])
def test_tensors_that_need_converting(kind: str, tmp_path: Path) -> None:
    found = Lined(SOURCE).run(lambda program, number: projections(program, number, kind=kind)).finding(tmp_path, "NSX137")  # fmt: skip
    assert found.verdict == "clear"

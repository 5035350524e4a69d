"""NSX137: networks that are called twice, what is the same in each step or layer, and what nothing reads; and work that only looks so."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.test_smaller_operators import operator

LOSS, METRIC = 12, 30
CALLS, FIRST, SECOND = 13, 14, 15
SOURCE = {LOSS: "loss = criterion(net(x), y)", METRIC: "accuracy = (net(x).argmax(1) == y).float().mean()"}
SIZES = "[64, 128], [128, 128]"


def network(program: Lined, at: int, given: int, name: str = "linear") -> None:
    """A network of two layers, 300 us each, on the tensor that operator ``given`` made."""
    with program.range("forward"), program.range("net:Net"):
        operator(program, name, at, [given, -1], SIZES, 300)
        operator(program, name, at + 1, [at, -1], SIZES, 300)


def step(program: Lined, number: int, *, kind: str) -> None:
    """A network on a batch that is copied, and behind it what ``kind`` says; then a backward, whose node the network made."""
    at = 1000 * number + 10
    with program.line(LOSS):
        operator(program, "randperm", at - 1, [-1], "[]", 5)
        operator(program, "index", at, [-1, at - 1], "[5000, 128], [64]", 100, "gather")  # the batch
        operator(program, "index", at + 1, [-1, at - 1], "[5000, 128], [64]", 10, "gather")  # another one
        network(program, at + 10, at, "rand_like" if kind == "drawn" else "linear")
    with program.line(METRIC):
        if kind == "weights written":
            operator(program, "add_", at + 20, [-1, -1], "[128, 128], []", 5)
        if kind == "fixed" or kind == "drawn anew":
            operator(program, "randn" if kind == "drawn anew" else "arange", at + 40, [-1], "[]", 5)
            operator(program, "exp", at + 41, [at + 40], "[64, 128]", 600)
            operator(program, "mul", at + 42, [at + 11, at + 41], "[64, 128], [64, 128]", 5)
        elif kind in ("unread", "read by the next step"):
            operator(program, "softmax", at + 50, [at + 11, -1, -1], "[64, 128], [], []", 600)
        else:
            network(
                program,
                at + 30,
                at + 1 if kind == "another batch" else at,
                "rand_like" if kind == "drawn" else "linear",
            )
            operator(program, "mul", at + 42, [at + 11, at + 31], "[64, 128], [64, 128]", 5)
        given = at + 50 if kind == "read by the next step" else at + 42
        operator(program, "copy_", at + 60, [-1, given], "[64, 128], [64, 128]", 5)
        if number and kind == "read by the next step":
            operator(program, "copy_", at + 61, [-1, given - 1000], "[64, 128], [64, 128]", 5)
    program.sync()


POINTS, PAIRS, NEAREST = "[64, 3]", "[64, 64]", "[64, 12]"
CALLED, INSIDE, LAYERS = 13, 14, 4


def layers(program: Lined, number: int, *, kind: str = "same") -> None:
    """Layers that each look for the neighbors of the points (400 us and 100 us), then do something of their own (50 us)."""
    at = 1000 * number + 100
    points, x = at + 2, at + 3
    with program.line(LOSS):
        operator(program, "randperm", at, [-1], "[]", 5)
        operator(program, "index", at + 1, [-1, at], "[5000, 3], [64]", 5)
        operator(program, "view", points, [-1 if kind == "buffer refreshed" else at + 1, -1], f"{POINTS}, []")
        operator(program, "index", x, [-1, at], "[5000, 12], [64]", 5)
    backward = program.range("backward") if kind == "in the backward" else nullcontext()
    with backward:
        for layer in range(LAYERS):
            in_one = kind == "in one call"
            with nullcontext() if in_one and layer else program.range(f"blocks.{layer}:Block"):
                for _ in range(LAYERS if in_one and not layer else not in_one):
                    at += 10
                    one_layer(program, at, points, x, kind)
                    points, x = (at + 4 if kind == "moved" else points), at + 3
    with program.line(METRIC):
        operator(program, "copy_", at + 9, [-1, x], f"{NEAREST}, {NEAREST}", 5)
    program.sync()


def one_layer(program: Lined, at: int, points: int, x: int, kind: str) -> None:
    """A layer: ``points`` and ``x`` by the operators that made them; makes its result (``at`` + 3) and, for "moved", other points."""
    with program.line(CALLED):
        if kind == "a number":  # points * scale
            operator(program, "mul", at, [points, -1], f"{POINTS}, []", 400)
            operator(program, "sum", at + 1, [at, -1], f"{POINTS}, []", 400)
        else:
            name = "rand_like" if kind == "drawn" else "cdist"
            operator(program, name, at, [points, points, -1], f"{POINTS}, {POINTS}, []", 400)
            operator(program, "topk", at + 1, [at, -1], f"{PAIRS}, []", 100)
        if kind == "result written":
            operator(program, "add_", at + 5, [at, at], f"{PAIRS}, {PAIRS}", 5)
            operator(program, "add_", at + 6, [at + 1, x], f"{NEAREST}, {NEAREST}", 5)
    with program.line(INSIDE):
        program.host(1500 if kind == "host-bound" else 0)
        operator(program, "mul", at + 3, [at + 1, x], f"{NEAREST}, {NEAREST}", 50)
        if kind == "moved":
            operator(program, "matmul", at + 4, [at + 3, points], f"{NEAREST}, {POINTS}", 50)
        elif kind == "written":  # under the view that the layers are given
            operator(program, "add_", at + 4, [points - 1, at + 3], f"{POINTS}, {NEAREST}", 5)
        elif kind == "buffer refreshed":
            operator(program, "copy_", at + 4, [-1, at + 3], f"{POINTS}, {NEAREST}", 5)


def of_layers(folder: Path, kind: str) -> Finding:
    source = SOURCE | {CALLED: "neighbors = nearest(points, k)", INSIDE: "x = x * neighbors"}
    return Lined(source).run(lambda program, number: layers(program, number, kind=kind)).finding(folder, "NSX137")


def test_layers_that_compute_the_same_of_what_all_are_given(tmp_path: Path) -> None:
    found = of_layers(tmp_path, "same")
    assert found.title.startswith(f"train.py:{CALLED} computes the same {LAYERS} times: ")
    assert found.where["line"] == CALLED and [way.name for way in found.remedies] == ["result-handed-on"]
    assert "cdist (3 times), topk (3 times)" in found.detail
    assert found.saving_ns_per_step == pytest.approx((LAYERS - 1) * 500_000, rel=0.05)


def test_what_layers_compute_again_while_the_gpu_waits_for_the_host(tmp_path: Path) -> None:
    """Hardly any of it is saved as long as the GPU waits; it is told with the time that it takes there."""
    found = of_layers(tmp_path, "host-bound")
    assert found.title.startswith(f"train.py:{CALLED} computes the same {LAYERS} times: 1.50 ms of the GPU per step")
    assert not found.saving.bound
    assert (found.saving_ns_per_step or 0) < 500_000 < (found.cost_ns_per_step or 0)


@pytest.mark.parametrize(
    "kind",
    ["moved", "written", "buffer refreshed", "a number", "drawn", "result written", "in one call", "in the backward"],
)
def test_layers_that_compute_something_of_their_own(kind: str, tmp_path: Path) -> None:
    assert of_layers(tmp_path, kind).verdict == "clear"


def finding(folder: Path, kind: str) -> Finding:
    return Lined(SOURCE).run(lambda program, number: step(program, number, kind=kind)).finding(folder, "NSX137")


def test_a_network_that_is_called_twice_on_the_same_input(tmp_path: Path) -> None:
    found = finding(tmp_path, "twice")
    assert found.verdict == "found"
    assert found.title.startswith(f"train.py:{METRIC} calls Net on the same input as train.py:{LOSS} did again")
    assert found.where["line"] == METRIC and [way.name for way in found.remedies] == ["result-kept"]
    assert found.saving_ns_per_step == pytest.approx(600_000, rel=0.05)


def test_what_is_the_same_in_each_step(tmp_path: Path) -> None:
    found = finding(tmp_path, "fixed")
    assert found.title.startswith(f"train.py:{METRIC} computes the same in each step")
    assert [way.name for way in found.remedies] == ["computed-once"]
    assert found.saving_ns_per_step == pytest.approx(605_000, rel=0.05)


@pytest.mark.parametrize("kind", ["another batch", "weights written", "drawn", "drawn anew", "read by the next step"])
def test_work_that_the_step_needs(kind: str, tmp_path: Path) -> None:
    assert finding(tmp_path, kind).verdict == "clear"


def test_what_can_be_made_once_has_the_place_of_the_call_that_makes_all_of_it(tmp_path: Path) -> None:
    """Two lines of a function below the one that calls it, which calls nothing else; what comes of it is made by the line above that."""

    def spreading(program: Lined, number: int) -> None:
        at = 1000 * number + 100
        with program.line(LOSS):
            operator(program, "randint", at, [-1], "[]", 5)
            with program.line(CALLS):
                for place, line in enumerate((FIRST, SECOND)):
                    with program.line(line):
                        operator(program, "exp", at + 10 + place, [at + 9 + place if place else -1], "[64, 128]", 300)
            operator(program, "mul", at + 20, [at, at + 11], "[64, 128], [64, 128]", 50)
        program.sync()

    source = SOURCE | {CALLS: "stack = features(graph)", FIRST: "a = graph.exp()", SECOND: "return a.exp()"}
    found = Lined(source).run(spreading).finding(tmp_path, "NSX137")
    assert found.where["line"] == CALLS
    assert found.saving_ns_per_step == pytest.approx(600_000, rel=0.05)

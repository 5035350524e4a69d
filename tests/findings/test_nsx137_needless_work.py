"""NSX137: networks that are called twice, what is the same in each step, and what nothing reads; and work that only looks like these."""

from __future__ import annotations

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

"""NSX123: a loop and the lines of the functions that it calls in each round are one finding, worth all rounds but one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.lined import Lined, forward

SOURCE = {
    20: "y = net(x)",
    30: "boxes = assign(y, wanted)",
    31: "check(boxes)",
    40: "c = one(b[i], y)",
    50: "near = (b - points).abs()",
    51: "best = near.amin(1) * near.mean()",
    60: "best = one(b, y)",
}
ROUNDS = 16
Body = Callable[[Lined, int], None]


def launches(program: Lined, count: int, kernel_us: float) -> None:
    for _ in range(count):
        program.host(12)
        program.launch(kernel_us)


def one(program: Lined, kernel_us: float = 2) -> None:
    """What lines 50 and 51 of a function launch: 5 kernels."""
    with program.line(50, "one"):
        launches(program, 2, kernel_us)
    with program.line(51, "one"):
        launches(program, 3, kernel_us)


def looping(
    rounds: int = ROUNDS, *, nested: bool = True, elsewhere: bool = False, network: bool = False, runs: int = 1
) -> Body:
    """Return a step whose line 40 calls a function in each round, and makes two launches itself.

    ``nested``: the lines of the function are noted within the line that calls it. ``elsewhere``: line 60 calls it, too.
    ``network``: the function runs the network. ``runs``: the function that holds the loop is called so often.
    """

    def body(program: Lined, number: int) -> None:
        forward(program)
        for _ in range(runs):
            with program.line(30):
                for _ in range(rounds):
                    with program.line(40, "assign"):
                        launches(program, 2, 2)
                        if nested:
                            one(program)
                        if network:
                            forward(program, 1)
                    if not nested:
                        one(program)
        if elsewhere:
            with program.line(60):
                one(program)
        with program.line(31):
            program.sync()

    return body


def at_once(program: Lined, number: int) -> None:
    """The same in one operation for all rounds."""
    forward(program)
    with program.line(30):
        with program.line(40, "assign"):
            launches(program, 1, 2)
        one(program, 16)
    with program.line(31):
        program.sync()


def found(folder: Path, body: Body) -> dict[object, Finding]:
    """Return what is found, by its line."""
    folder.mkdir(exist_ok=True)
    return {finding.where["line"]: finding for finding in Lined(SOURCE).run(body).found(folder, "NSX123")}


def test_a_loop_and_what_it_calls_are_one_change_that_leaves_one_round(tmp_path: Path) -> None:
    lengths = []
    for name, body in (("loop", looping()), ("once", at_once)):
        (tmp_path / name).mkdir()
        summary = Lined(SOURCE).run(body).summary(tmp_path / name)
        assert summary.unprofiled is not None
        lengths.append(summary.unprofiled.step_ns)
    by_line = found(tmp_path / "loop", looping())
    assert list(by_line) == [40]
    finding = by_line[40]
    assert "`c = one(b[i], y)` and 2 lines that it calls hold the CPU" in finding.title
    assert "in each of 16 rounds, most of it at train.py:51, train.py:50, then runs once" in finding.detail
    assert "112 launches" in finding.detail and "beside it" not in finding.title
    assert [way.name for way in finding.remedies] == ["batched-operation"]
    assert finding.saving.likely_ns == pytest.approx(lengths[0] - lengths[1], rel=0.1)
    assert not found(tmp_path / "once", at_once)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(looping(elsewhere=True), id="another line calls the function, too"),
        pytest.param(looping(nested=False), id="who calls the function was not noted"),
        pytest.param(looping(network=True), id="the function runs the network"),
        pytest.param(looping(1, runs=ROUNDS), id="the line is in no loop of its function"),
    ],
)
def test_a_line_that_is_not_the_only_one_to_call_the_others_in_a_loop_stands_for_itself(
    body: Body, tmp_path: Path
) -> None:
    by_line = found(tmp_path, body)
    assert set(by_line) == {40, 51}, "the lines of the function are one of their own"
    assert "that it calls" not in by_line[40].title and "32 launches" in by_line[40].detail
    assert "1 line beside it" in by_line[51].title


@pytest.mark.parametrize("needed", [False, True], ids=["rounds alone", "rounds that need the one before"])
def test_rounds_that_need_one_another_are_no_one_operation(needed: bool, tmp_path: Path) -> None:
    """Each X-ray step says which operator made what the next one is given."""
    numbers = itertools.count(1)

    def operator(program: Lined, given: int) -> int:
        begin, number = program.t, next(numbers)
        launches(program, 2, 2)
        if program.noted is not None:
            text = f"aten::mul, op_id = {number}, sizes = [[8]], input_op_ids = [({given},{0 if given >= 0 else -1})]"
            program.main.add_range(text, begin, program.t)
        return number

    def body(program: Lined, number: int) -> None:
        forward(program)
        before = -1
        with program.line(30):
            for _ in range(ROUNDS):
                with program.line(40, "assign"):
                    operator(program, -1)
                    for line in (50, 51):
                        with program.line(line, "one"):
                            before = operator(program, before if needed or line == 51 else -1)
        with program.line(31):
            program.sync()

    finding = found(tmp_path, body)[40]
    assert ("that it calls" in finding.title) is not needed
    assert f"{32 if needed else 96} launches" in finding.detail


def test_no_call_is_in_two_findings(tmp_path: Path) -> None:
    """What another line calls as well stays with its function; the rest goes with the loop."""

    def body(program: Lined, number: int) -> None:
        with program.line(60):
            program.host(1)
            with program.line(51, "one"):
                launches(program, 2, 2)
        looping()(program, number)

    by_line = found(tmp_path, body)
    assert set(by_line) == {40, 51}
    assert "1 line that it calls" in by_line[40].title and "64 launches" in by_line[40].detail
    assert "50 launches" in by_line[51].detail


def masked(samples: int, spans: int, *, reads: bool = True, caller: str = "Augment.forward") -> Body:
    """Return a step whose loop over samples reads a length (line 70) and calls a function (lines 50 and 51) for each span (line 71)."""

    def body(program: Lined, number: int) -> None:
        forward(program)
        with program.line(30):
            for _ in range(samples):
                with program.line(70, caller):
                    if reads:
                        program.copy(2, "DtoH", bytes=8)
                for _ in range(spans):
                    with program.line(71, caller):
                        one(program)
        with program.line(31):
            program.sync()

    return body


AUGMENT = {**SOURCE, 70: "n = int(n)", 71: "x = one(x, n)"}


def test_a_function_that_a_loop_elsewhere_calls_is_told_with_the_loop_and_its_reads(tmp_path: Path) -> None:
    (finding,) = Lined(AUGMENT).run(masked(16, 4)).found(tmp_path, "NSX123")
    assert (
        "Augment.forward calls one 64 times per step (train.py:71): 320 launches and 16 waits between" in finding.title
    )
    assert finding.fix.startswith("Do in one call what one does in 64 per step, in the loop of Augment.forward")
    assert "Do without line 70 (`n = int(n)`)" in finding.fix
    assert [way.name for way in finding.remedies] == ["batched-operation"]


def test_a_loop_that_reads_nothing_is_told_without_reads(tmp_path: Path) -> None:
    (finding,) = Lined(AUGMENT).run(masked(16, 4, reads=False)).found(tmp_path, "NSX123")
    assert "320 launches hold the CPU" in finding.title and "Do without" not in finding.fix

"""NSX137: statistics for a log that each step computes and few steps read; and results that something keeps or takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.lined import FILE, Lined
from tests.findings.test_needless_work import backward, trained
from tests.findings.test_smaller_operators import operator
from tests.ranks.test_rank_table import ALL_REDUCE

LOSS, CALL, KEPT, FIRST = 5, 12, 13, 30
LOGITS = "[64, 128]"
LAST = 10
SOURCE = {
    LOSS: "loss = criterion(net(x), y)",
    CALL: "stats = token_stats(logits, y)",
    KEPT: "history.append(stats)",
    FIRST: "p = logits.softmax(-1)",
    FIRST + 1: "entropy = -(p * p.log()).sum(-1).mean()",
    FIRST + 2: "return torch.stack((entropy, p.amax(-1).mean()))",
}


@contextmanager
def collective(program: Lined, number: int, made: int) -> Iterator[None]:
    """An operator of ranks."""
    begin = program.t
    yield
    if program.noted is not None:
        label = f"c10d::allreduce_, op_id = {number}, sizes = [[2]], input_op_ids = [({max(made, 0)},{-1 if made < 0 else 0})]"
        program.main.add_range(label, begin, program.t)


def statistics(program: Lined, at: int, given: int) -> None:
    """The statistics of what operator ``given`` made: 900 us, on lines of a function."""
    with program.line(FIRST, "token_stats"):
        operator(program, "softmax", at, [given, -1, -1], f"{LOGITS}, [], []", 400)
    with program.line(FIRST + 1, "token_stats"):
        operator(program, "log", at + 1, [at], LOGITS, 200)
        operator(program, "mul", at + 2, [at, at + 1], f"{LOGITS}, {LOGITS}", 200)
        operator(program, "sum", at + 3, [at + 2, -1], f"{LOGITS}, []", 90)
    with program.line(FIRST + 2, "token_stats"):
        operator(program, "amax", at + 4, [at, -1], f"{LOGITS}, []", 10)
        operator(program, "stack", at + 5, [at + 3, at + 4, -1], "[64], [64], []")


def step(program: Lined, number: int, *, kind: str = "") -> None:
    """A network of 800 us, its loss and backward (300 us), and statistics of its output, with which ``kind`` does something."""
    at, sequence = 1000 * number + 10, 100 * number + 1
    with program.line(LOSS), program.range("forward"):
        operator(program, "randperm", at - 1, [-1], "[]", 5)
        operator(program, "index", at, [-1, at - 1], "[5000, 128], [64]", 5)
        if kind == "sharded":
            for each in range(4):
                with collective(program, at + 60 + each, -1):
                    program.launch(20, ALL_REDUCE, stream=20)
        with program.range("net:Net"):
            trained(program, at + 1, at, sequence, 800)
        trained(program, at + 2, at + 1, sequence + 1, 20)
    with program.line(LOSS):
        backward(program, sequence + 1, sequence)
    with program.line(CALL):
        statistics(program, at + 10, at if kind == "of the batch" else at + 1)
        if kind == "copied":
            begin = program.t
            program.copy(2, "DtoH", pageable=False, bytes=8)
            operator(program, "_to_copy", at + 20, [at + 15], "[2]", begin=begin)
    with program.line(KEPT if kind == "named" else LOSS):
        program.host(2)
        if kind == "into a buffer":
            operator(program, "add_", at + 20, [-1, at + 15], "[2], [2]", 5)
        if kind == "read by the next step" and number:
            operator(program, "mul", at + 21, [at - 1000 + 15, -1], "[2], []", 5)
        if kind == "reduced":
            with collective(program, at + 70, at + 15):
                program.launch(20, ALL_REDUCE, stream=20)
        if kind == "taken by a package":
            if program.noted is not None:
                label = f"mylib::shown, op_id = {at + 80}, sizes = [[2]], input_op_ids = [({at + 15},0)]"
                program.main.add_range(label, program.t, program.t + 1000)
            program.host(5)
    with program.range("optimizer"):
        operator(program, "_fused_adam_", at + 30, [-1], "[128, 128]", 20)
    if number == LAST:  # another step, so that those before it are like each other
        for each in range(8):
            operator(program, "mul", at + 40 + each, [-1, -1], "[64], []", 20, "elementwise_kernel")
    program.sync()


def told(folder: Path, kind: str, text: str = SOURCE[CALL], kept: str = SOURCE[KEPT]) -> list[Finding]:
    program = Lined(SOURCE | {CALL: text, KEPT: kept}).run(lambda program, number: step(program, number, kind=kind))
    return [
        each for each in program.found(folder, "NSX137") if [way.name for way in each.remedies] == ["statistics-rarely"]
    ]


@pytest.mark.parametrize("kind", ["", "sharded"])
def test_statistics_of_each_step_that_no_recorded_step_reads(kind: str, tmp_path: Path) -> None:
    (found,) = told(tmp_path, kind)
    assert found.title.startswith(f"train.py:{CALL} computes in each step what no recorded step reads: up to ")
    assert (found.where["file"], found.where["line"]) == (FILE, CALL)
    assert found.paste == f"if step % log_every == 0:  # with what reads it\n    {SOURCE[CALL]}"
    assert found.saving.bound
    assert found.saving_ns_per_step == pytest.approx(900_000, rel=0.1)


@pytest.mark.parametrize(
    "kind",
    ["copied", "named", "into a buffer", "read by the next step", "reduced", "taken by a package", "of the batch"],
)
def test_what_is_taken_or_kept(kind: str, tmp_path: Path) -> None:
    assert not told(tmp_path, kind)


@pytest.mark.parametrize(
    ("kept", "found"),
    [
        ("if step % 50 == 0: log(stats.tolist())", True),
        ("if stats.sum() % 2 == 0: log(0)", False),
        ("if step % 50 == 0 and stats[0] > 1: log(0)", False),
        ("if verbose: log(stats)", False),
    ],
)
def test_a_line_that_logs_in_every_so_many_steps_names_them(kept: str, found: bool, tmp_path: Path) -> None:
    assert bool(told(tmp_path, "named", kept=kept)) == found


@pytest.mark.parametrize(
    "text",
    ["history.append(token_stats(logits, y))", "total += token_stats(logits, y)", "return token_stats(logits, y)", ""],
)
def test_lines_that_hand_results_on(text: str, tmp_path: Path) -> None:
    assert not told(tmp_path, "", text)

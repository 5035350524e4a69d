"""NSX137: metrics that each step adds to a sum which few steps read, and sums that something of each step needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.findings import _summed_metrics
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined
from tests.findings.test_needless_work import backward, trained
from tests.findings.test_smaller_operators import operator
from tests.findings.test_unread_results import FIRST, LAST, LOSS, SOURCE, statistics

ADD, COUNT, CHECK, BEHIND = 12, 20, 41, 43
TEXTS = SOURCE | {
    ADD: "        self.totals += token_stats(logits, y)",
    COUNT: "        self.step += 1",
    CHECK: "            if self.step % self.log_every == 0:",
    BEHIND: "            times.append(now())",
}


def step(program: Lined, number: int, *, kind: str = "") -> None:
    """A network of 800 us, its loss and backward (300 us), and metrics of its output (900 us) that are added to a sum; ``kind``: what
    else there is.
    """
    at, sequence = 1000 * number + 10, 100 * number + 1
    before = at - 1000 + 20
    with program.line(LOSS, "Trainer.train_step"), program.range("forward"):
        operator(program, "randperm", at - 1, [-1], "[]", 5)
        operator(program, "index", at, [-1, at - 1], "[5000, 128], [64]", 5)
        with program.range("net:Net"):
            trained(program, at + 1, at, sequence, 800)
        if kind == "weighs the loss":
            operator(program, "mul", at + 40, [before, -1], "[2], []", 5)
        if kind != "in the loss":
            trained(program, at + 2, at + 1, sequence + 1, 20)
    with program.line(ADD, "Trainer.train_step"):
        given = at - 1 if kind == "average of weights" else at + 1
        if kind == "average of weights":
            operator(program, "mul", at + 15, [-1, -1], "[2], [2]", 900)
        else:
            statistics(program, at + 10, given)
        size = "[64, 128]" if kind == "many numbers" else "[2]"
        if kind == "moving average":
            operator(program, "mul_", at + 19, [before, -1], "[2], []", 5)
            operator(program, "add_", at + 20, [at + 19, at + 15, -1], "[2], [2], []", 5)
        else:
            operator(program, "add_", at + 20, [before, at + 15, -1], f"{size}, {size}, []", 5)
    with program.line(LOSS, "Trainer.train_step"):
        if kind == "in the loss":
            trained(program, at + 2, at + 15, sequence + 1, 20)
        backward(program, sequence + 1, sequence)
        if kind == "read in each step":
            operator(program, "item", at + 41, [at + 20], "[2]")
    with program.range("optimizer"):
        operator(program, "_fused_adam_", at + 30, [-1], "[128, 128]", 20)
    with program.line(COUNT, "Trainer.train_step"):
        program.host(2)
    with program.line(CHECK, "Trainer.train"):
        program.host(2)
    with program.line(BEHIND, "Trainer.train"):
        program.host(2)
    if number == LAST:  # another step, so that those before it are like each other
        for each in range(8):
            operator(program, "mul", at + 50 + each, [-1, -1], "[64], []", 20, "elementwise_kernel")
    program.sync()


def told(folder: Path, kind: str = "", texts: dict[int, str] | None = None) -> list[Finding]:
    program = Lined(TEXTS | (texts or {})).run(lambda program, number: step(program, number, kind=kind))
    return [each for each in program.found(folder, "NSX137") if "added to a sum" in each.title]


@pytest.mark.parametrize("kind", ["", "moving average"])
def test_metrics_that_are_added_to_a_sum_that_no_recorded_step_reads(kind: str, tmp_path: Path) -> None:
    (found,) = told(tmp_path, kind)
    lines = f"token_stats, train.py:{FIRST}-{FIRST + 2}"
    assert found.title.startswith(f"train.py:{ADD} computes in each step what is only added to a sum ({lines})")
    assert (found.where["file"], found.where["line"]) == (FILE, ADD)
    assert [way.name for way in found.remedies] == ["statistics-rarely"]
    assert found.saving.bound  # how rarely it is read was not seen
    assert found.saving_ns_per_step == pytest.approx(900_000, rel=0.1)
    assert found.paste == (
        f"if (self.step + 1) % self.log_every == 0:  # line {ADD}\n    self.totals += token_stats(logits, y)"
    )


def test_the_steps_that_log_save_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_summed_metrics, "_reading_steps", lambda case: (1, 12))
    (found,) = told(tmp_path)
    assert "the host read numbers in 1 of 12 steps beyond" in found.detail
    assert not found.saving.bound
    assert found.saving_ns_per_step == pytest.approx(905_000 * 11 / 12, rel=0.02)


@pytest.mark.parametrize(
    "kind",
    ["weighs the loss", "in the loss", "read in each step", "average of weights", "many numbers"],
)
def test_sums_that_a_step_needs_and_averages_of_weights(kind: str, tmp_path: Path) -> None:
    assert not told(tmp_path, kind)


@pytest.mark.parametrize(
    ("texts", "condition"),
    [
        ({CHECK: "            if (self.step + 1) % 20 == 0:"}, "(self.step + 2) % 20 == 0"),
        ({CHECK: "            if self.rank == 0 and self.step % 20 == 0:"}, "(self.step + 1) % 20 == 0"),
        ({CHECK: "            if step % 20 == 0:"}, ""),  # a name of another function
        ({COUNT: "        pass"}, ""),  # counted elsewhere
        (
            {CHECK: "            if self.step % 20 == 0:", BEHIND: "                log(self.totals)"},
            "",
        ),  # ran in this step
        ({CHECK: "            if self.step % self.period() == 0:"}, ""),
    ],
)
def test_the_condition_as_the_line_reads_it(texts: dict[int, str], condition: str, tmp_path: Path) -> None:
    (found,) = told(tmp_path, texts=texts)
    first = (found.paste or "").splitlines()[0]
    head = f"if {condition}:  # line {ADD}" if condition else "if step % log_every == 0:  # a step whose log reads it"
    assert first == head

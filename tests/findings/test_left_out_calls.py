"""A metric that a function computes is left out with its call: all that the function does goes, and the paste guards the call."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.findings import _left_out_calls
from tests.findings.lined import Lined
from tests.findings.test_needless_work import LOSS, backward, trained
from tests.findings.test_nsx135_weights_in_calls import operator

CALL, SAME, MASK, READ, ADDS, COUNT = 8, 21, 22, 23, 24, 9
SOURCE = {
    LOSS: "loss = criterion(net(x))", CALL: "score.update(output.detach(), target)", COUNT: "steps_done += 1",
    SAME: "t = target == c", MASK: "p = output == c", READ: "size = (p | t).sum().item()", ADDS: "self.hits[c] += (p & t).sum()",
}  # fmt: skip
UPDATE = "Score.update"


def step_of(program: Lined, step: int, *, needed: bool = False, alone: bool = False) -> None:
    """A network, and a metric of 20 rounds in a function, of which two lines show by themselves that no gradient needs them.

    ``needed``: the loss takes what the function makes of the targets; ``alone``: the lines stand in the function of the steps.
    """
    first, function = 1000 * step + 10, "step" if alone else UPDATE
    with program.line(LOSS), program.range("forward"), program.range("net:Net"):
        trained(program, first, max(first - 1, 1), 100 * step + 1)

    def metric() -> None:
        for each in range(20):
            same, mask, both = (first + 100 * n + each for n in (1, 2, 3))
            with program.line(SAME, function):
                program.host(20)
                operator(program, "eq", same, [], 2)
            with program.line(MASK, function):
                program.host(20)
                operator(program, "eq", mask, [first], 2)
            with program.line(READ, function):
                program.host(10)
                operator(program, "bitwise_or", both, [same, mask], 2)
                program.copy(2, "DtoH")
            with program.line(ADDS, function):
                program.host(30)
                operator(program, "bitwise_and", both + 100, [same, mask], 2)

    if alone:
        metric()
    else:
        with program.line(CALL):
            metric()
    with program.line(LOSS):
        trained(program, first + 90, first + 100 if needed else first, 100 * step + 2, 10)
    backward(program, 100 * step + 2, 100 * step + 1)
    with program.line(COUNT):
        program.host(1)
    program.sync()


def test_the_whole_call_is_priced_and_guarded(tmp_path: Path) -> None:
    findings = Lined(SOURCE).run(step_of).found(tmp_path, "NSX123")
    metric = next(f for f in findings if "metrics-rarely" in [way.name for way in f.remedies])
    lines = {line for f in findings for line in (SAME, MASK, READ, ADDS) if f.where["line"] == line}
    assert len(lines) == 1, [f.title for f in findings]
    assert "3 lines beside it" in metric.title and "waits 20 times" in metric.detail
    assert metric.paste == "if steps_done % 100 == 0: score.update(output.detach(), target)"
    assert metric.fix.endswith(f"train.py:{CALL} calls all of it")
    # 20 rounds of 126 us and four launches or copies
    assert metric.saving_ns_per_step == pytest.approx(20 * 126_000, rel=0.2)


@pytest.mark.parametrize("kind", [{"needed": True}, {"alone": True}], ids=str)
def test_a_function_that_training_needs_stays(kind: dict[str, bool], tmp_path: Path) -> None:
    findings = Lined(SOURCE).run(lambda program, step: step_of(program, step, **kind)).found(tmp_path, "NSX123")
    assert not [f for f in findings if "calls all of it" in f.fix or "score.update" in f.paste]


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("hits += (p & t).sum()  # of this class", "hits += (p & t).sum()"),
        ("for c in classes:", ""),
        ("return value.item()", ""),
        ("score.update(", ""),
        ("if seen: total += 1", ""),
    ],
)
def test_only_a_statement_by_itself_can_be_guarded(text: str, statement: str) -> None:
    assert _left_out_calls._statement(text) == statement


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("step += 1", "step"),
        ("for n, batch in enumerate(loader):", "n"),
        ("self.global_step += 1", "self.global_step"),
        ("x = 1", "step"),
    ],
)
def test_steps_are_counted_by_the_programs_own_name(text: str, name: str) -> None:
    rows = {("/f.py", 3, "train"): {"file": "/f.py", "line": 3, "function": "train", "text": text}}
    assert _left_out_calls._under(rows, "/f.py", "train", ["f()"]) == f"if {name} % 100 == 0: f()"  # type: ignore[arg-type]

"""NSX101 and NSX129: an optimizer that reads a value of each parameter back, and reads that are something else's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.findings.lined import Lined, forward

PARAMETERS = 40
ADAM: dict[str, Any] = {
    "class": "AdamW",
    "module": "torch",
    "parameters": PARAMETERS,
    "groups": 1,
    "foreach": None,
    "fused": None,
}


def step(program: Lined, *, reads: int, inside: bool, launches: int) -> None:
    """A forward, a backward and an update of each parameter, with so many values that are read."""
    forward(program)
    with program.line(21), program.range("backward"):
        for _ in range(20):
            program.launch(40)
    with program.line(22):
        if not inside:
            for _ in range(reads):
                program.launch(3)
                program.copy(2, "DtoH", bytes=4)
        with program.range("optimizer AdamW"):
            for number in range(PARAMETERS):
                for _ in range(launches):
                    program.launch(2)
                if inside and number < reads:
                    program.copy(2, "DtoH", bytes=4)
    with program.line(30):
        program.sync()


def told(
    folder: Path, optimizer: dict[str, Any], *, reads: int = PARAMETERS, inside: bool = True, launches: int = 9
) -> list[Any]:
    program = Lined({20: "y = net(x)", 21: "loss.backward()", 22: "opt.step()"}, {"optimizers": [optimizer]})
    summary = program.run(lambda p, _: step(p, reads=reads, inside=inside, launches=launches)).summary(folder)
    findings = [f for f in summary.findings or () if "its learning rate, or its count of steps" in (f.fix or "")]
    assert summary.answer is not None
    return [summary.answer.do[0], *findings]


@pytest.mark.parametrize("launches", [9, 1], ids=["long update", "short update"])
def test_a_value_of_each_parameter_that_the_update_reads(launches: int, tmp_path: Path) -> None:
    do, *findings = told(tmp_path, ADAM, launches=launches)
    assert findings and {f.where["line"] for f in findings} == {22}
    assert "NSX105" not in {f.code for f in findings} and f"({PARAMETERS} in a step)" in do.text
    assert "lr=rate(0), fused=True" in do.paste and (do.saving_ns or 0) > 0
    compile(do.paste, "paste", "exec")


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        ({**ADAM, "class": "Lamb", "module": "job"}, {}),  # its own code: it decides by norms
        (ADAM, {"reads": 1}),  # whether a scaled gradient is finite
        (ADAM, {"inside": False}),  # the program's own reads
        ({**ADAM, "parameters": None}, {}),
        ({**ADAM, "parameters": 10 * PARAMETERS}, {}),  # no value of each
    ],
)
def test_reads_of_something_else(optimizer: dict[str, Any], options: dict[str, Any], tmp_path: Path) -> None:
    assert len(told(tmp_path, optimizer, **options)) == 1

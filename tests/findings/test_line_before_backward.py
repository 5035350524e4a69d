"""Where gradients are reduced too often, what has to be around forward and backward begins at the forward of the same function."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx import pipeline
from nsysx.findings._lines import line_before_backward
from tests.findings.lined import FILE, Lined


@pytest.mark.parametrize(
    ("caller", "line"),
    [
        ("accumulate", 15),  # the function that runs backward calls another one for the forward
        ("batch", 17),  # the forward runs in no function that runs backward
    ],
)
def test_the_forward_in_the_function_that_runs_backward(caller: str, line: int, tmp_path: Path) -> None:
    def body(program: Lined, number: int) -> None:
        with program.line(15, caller), program.line(5, "forward"), program.range("forward"), program.range("net:Net"):
            program.launch(100)
        with program.line(17, "accumulate"), program.range("backward"):
            program.launch(200)
        program.sync()

    Lined().run(body).summary(tmp_path)
    profile = pipeline.gather(tmp_path / "r.sqlite", pipeline.ReadingOptions())
    assert line_before_backward(profile) == {"file": FILE, "line": line}


def test_without_lines_there_is_none(tmp_path: Path) -> None:
    def body(program: Lined, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            program.launch(100)
        program.sync()

    Lined().run(body).summary(tmp_path)
    assert line_before_backward(pipeline.gather(tmp_path / "r.sqlite", pipeline.ReadingOptions())) == {}

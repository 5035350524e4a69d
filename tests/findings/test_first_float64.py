"""Float64 on the GPU is told with the line of a step that computes with it first."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.lined import Lined, forward

DOUBLE = "void vectorized_elementwise_kernel<4, MulFunctor<double>, std::array<char *, 3>>"


def lifted(lines: tuple[int, ...], folder: Path, kernel: str = DOUBLE) -> list[Finding]:
    """Return the findings about settings of a program whose lines compute with float64 in this order, before a network."""

    def body(program: Lined, number: int) -> None:
        for line in lines:
            with program.line(line):
                program.launch(600, kernel)
        forward(program, 20)
        with program.line(90):
            program.sync()

    summary = Lined({11: "y = x / scale", 12: "y = y * gain"}, {"step": 4}).run(body).summary(folder)
    return [f for f in summary.findings or () if f.code == "NSX127" and f.verdict == "found"]


@pytest.mark.parametrize(("lines", "first"), [((11, 12, 12), 11), ((12, 12, 11), 12)])
def test_the_first_line_that_computes_with_float64_is_its_place(
    lines: tuple[int, ...], first: int, tmp_path: Path
) -> None:
    (finding,) = lifted(lines, tmp_path)
    assert finding.title == f"Float64 on the GPU, first at train.py:{first}"
    assert finding.where["line"] == first


def test_float32_has_no_such_place(tmp_path: Path) -> None:
    assert lifted((11, 12), tmp_path, DOUBLE.replace("double", "float")) == []

"""Float64 on the GPU is told with the line of a step that computes with it first."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding, Summary
from tests.findings import Program
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

    return Lined({11: "y = x / scale", 12: "y = y * gain"}, {"step": 4}).run(body).found(folder, "NSX127")


@pytest.mark.parametrize(("lines", "first"), [((11, 12, 12), 11), ((12, 12, 11), 12)])
def test_the_first_line_that_computes_with_float64_is_its_place(
    lines: tuple[int, ...], first: int, tmp_path: Path
) -> None:
    (finding,) = lifted(lines, tmp_path)
    assert finding.title == f"Float64 on the GPU, first at train.py:{first}"
    assert finding.where["line"] == first


def test_float32_has_no_such_place(tmp_path: Path) -> None:
    assert lifted((11, 12), tmp_path, DOUBLE.replace("double", "float")) == []


FLOAT = DOUBLE.replace("double", "float")
ADDED = "unrolled_elementwise_kernel<CUDAFunctor_add<double>, std::array<char *, 3>, 4, LoadWithCast<2>>"


def solver(folder: Path, before: tuple[tuple[str, int], ...], message_us: float = 0) -> Summary:
    """Return a simulation of float64 without a network, before whose steps these kernels ran, each in so many blocks."""
    program = Program()
    process = program.report.process(200, name="python")
    program.process, program.main = process, process.thread(200, "python")
    program.launch(20, "void at::native::vectorized_elementwise_kernel<4, FillFunctor<int>>")
    for kernel, blocks in before:
        program.launch(100, kernel, blocks=blocks)
    for number in range(8):
        begin = program.t
        for _ in range(10):
            program.launch(200, DOUBLE)
            program.launch(200, "void regular_fft<4096, double>")
            if message_us:
                program.launch(message_us, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096>)")
        program.main.add_range(f"step {number}", begin, program.t)
    return program.summary(folder)


def of_float64(summary: Summary) -> Finding:
    found = [f for f in summary.findings or () if f.code == "NSX127" and f.verdict == "found"]
    (finding,) = (f for f in found if f.evidence[0]["setting"] == "float64")
    return finding


@pytest.mark.parametrize(
    ("before", "meant"),
    [
        (((FLOAT, 1056), (ADDED, 1056), (DOUBLE, 1056)), False),
        (((FLOAT, 1056),), True),  # a plot of it, say: nothing becomes float64
        (((ADDED, 1056), (DOUBLE, 1056)), True),  # a mask, say: it is float64 from the beginning
        (((DOUBLE, 1056), (FLOAT, 1056), (ADDED, 1056)), True),  # noise of float32 on a state of float64
        (((FLOAT, 8), (ADDED, 8), (DOUBLE, 1056)), True),  # small tensors say nothing of the state
    ],
)
def test_what_begins_in_float32_is_float64_by_oversight(
    before: tuple[tuple[str, int], ...], meant: bool, tmp_path: Path
) -> None:
    whole = solver(tmp_path, before)
    finding = of_float64(whole)
    assert [c.state for c in finding.conditions] == (["violated"] if meant else [])
    assert ("meets" in finding.fix) == (not meant)
    assert finding.where.get("near") == (None if meant else "float32 first meets float64 in add")
    assert (whole.answer.do[0].code == "NSX127") == (not meant)


def test_messages_of_float64_are_halved_if_long(tmp_path: Path) -> None:
    saved = []
    for us in (0, 50, 400):
        (tmp_path / str(us)).mkdir()
        saved.append(of_float64(solver(tmp_path / str(us), ((FLOAT, 1056), (ADDED, 1056)), us)).saving.likely_ns)
    alone, short, long = saved
    assert alone == pytest.approx(2_000_000, rel=0.1) and short == pytest.approx(alone, rel=0.1)
    assert long == pytest.approx(alone + 2_000_000, rel=0.1)

"""The line of a finding about GPU work: the one that calls what launches it, unless that calls everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.findings.lined import Lined

SGEMM = "ampere_sgemm_128x128_tn"


@pytest.mark.parametrize(("beside", "line"), [(0, 21), (1000, 20)], ids=["calls everything", "calls half"])
def test_a_line_that_calls_everything_is_no_place(tmp_path: Path, beside: float, line: int) -> None:
    """Line 20 calls line 21, which launches 550 us of FP32 products, and line 22 with 450 us; line 40 launches what is beside."""

    def body(program: Lined, number: int) -> None:
        with program.line(20, "step"):
            for inner, us in ((21, 275), (22, 225)):
                with program.line(inner, "score"):
                    program.launch(us, SGEMM)
                    program.launch(us, SGEMM)
        if beside:
            with program.line(40, "step"):
                program.launch(beside, "nvjet_gemm")
        program.sync()

    (finding,) = Lined().run(body).found(tmp_path, "NSX116")
    assert finding.where["line"] == line


@pytest.mark.parametrize(("callers", "told"), [((12,), 12), ((12, 12, 13), 12), ((12, 13, 14), 30)])
def test_what_is_captured_or_compiled_has_the_line_that_calls_the_network(
    callers: tuple[int, ...], told: int, tmp_path: Path
) -> None:
    """Not the line in the network that launches most, unless no single line calls it."""

    def body(program: Lined, number: int) -> None:
        for caller in callers:
            with program.line(caller, "advance"), program.range("forward"), program.range("net:Net"):
                for line, launches in ((30, 60), (31, 40)):
                    with program.line(line, "Net.forward"):
                        for _ in range(launches):
                            program.host(10)
                            program.launch(3)
        with program.line(20, "advance"):
            program.sync()

    (bound,) = Lined({12: "out = self.net(x)"}).run(body).found(tmp_path, "NSX102")
    assert bound.where["line"] == told, bound.where

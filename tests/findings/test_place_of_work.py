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

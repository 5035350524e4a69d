"""NSX127: padding of captions that a text encoder and cross attention compute with, and a larger network that has no such rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.findings.lined import Lined
from tests.findings.test_nsx127_costly_settings import CLEAN, changed
from tests.findings.test_smaller_operators import operator

ROWS, LENGTH, LONGEST = 8, 512, 64
PADDING = {"name": "attention_mask", "rows": ROWS, "length": LENGTH, "longest": LONGEST, "real": ROWS * 40}


def step(program: Lined, number: int, *, others_us: float) -> None:
    """A text encoder (400 us, 200 us of it on flat rows), and the network that reads its context (100 us) in ``others_us`` of work."""
    at = 1000 * number + 10
    with program.line(20), program.range("forward"), program.range("text:Encoder"):
        operator(program, "linear", at, [-1, -1], f"[{ROWS}, {LENGTH}, 768], [768, 768]", 200)
        operator(program, "mm", at + 1, [at, -1], f"[{ROWS * LENGTH}, 768], [768, 768]", 200)
    with program.line(21), program.range("forward"), program.range("net:Net"):
        operator(program, "linear", at + 2, [-1, -1], f"[{ROWS}, 1350, 768], [768, 768]", others_us)
        key = f"[{ROWS}, 12, {LENGTH}, 64]"
        operator(
            program,
            "scaled_dot_product_attention",
            at + 3,
            [at + 2, at + 1, at + 1],
            f"[8, 12, 1350, 64], {key}, {key}",
            100,
        )
    program.sync()


@pytest.mark.parametrize(("others_us", "padded_us"), [(2_000, 500), (200, 700)])
def test_work_on_rows_of_other_lengths_stays(others_us: float, padded_us: float, tmp_path: Path) -> None:
    settings = changed(CLEAN, {"padding": PADDING})
    program = Lined({20: "context = text(**tokens)", 21: "y = net(x, context)"}, settings)
    program.run(lambda program, number: step(program, number, others_us=others_us))
    (finding,) = (f for f in program.found(tmp_path, "NSX127") if f.evidence[0]["setting"] == "padding")
    assert finding.saving.bound
    assert finding.saving_ns_per_step == pytest.approx(1_000 * padded_us * (1 - LONGEST / LENGTH), rel=0.05)

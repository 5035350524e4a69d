"""Matrices made for each row, to multiply one vector by each: told where a formula gives the product, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.test_smaller_operators import operator

LINE = 7
WHOLE, COLUMN, ROW, ONE = "[512, 64, 64]", "[512, 64, 1]", "[512, 1, 64]", "[512, 1, 1]"
MADE = (("mul", f"{COLUMN}, {ROW}", 100), ("div", f"{WHOLE}, {ONE}", 200), ("sub", f"{WHOLE}, {WHOLE}", 300))


def found(folder: Path, *operators: tuple[str, str, int], product: str = f"{WHOLE}, {COLUMN}") -> list[Finding]:
    """Return what is found of a step of 1,000 us of other work, these operators (name, sizes, us) and a product of 100 us."""

    def step(program: Lined, number: int) -> None:
        at = 1000 * number + 10
        with program.range("forward"), program.range("net:Net"):
            operator(program, "linear", at, [-1, -1], "[4096, 4096], [4096, 4096]", 1_000)
        with program.line(LINE, "jacobian"):
            for i, (name, sizes, us) in enumerate((*operators, ("bmm", product, 100))):
                operator(program, name, at + 1 + i, [at + i, -1], sizes, us, "vectorized_elementwise_kernel<float>")
        program.sync()

    program = Lined({LINE: "return torch.bmm(outer(s) / n, g)"}).run(step)
    return [f for f in program.found(folder, "NSX131") if f.remedies and f.remedies[0].name == "product-by-formula"]


def test_a_product_with_a_diagonal_and_outer_products_has_a_formula(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, *MADE)
    assert finding.where["line"] == LINE and finding.where["file"] == "/job/train.py"
    assert "64 x 64 for each of 512 rows" in finding.title
    assert finding.cost_ns_per_step == pytest.approx(700_000, rel=0.02)
    assert finding.saving.likely_ns == pytest.approx(700_000 * (1 - 8 / 64), rel=0.03)


@pytest.mark.parametrize(
    ("operators", "product"),
    [
        ((*MADE, ("exp", WHOLE, 100)), f"{WHOLE}, {COLUMN}"),
        ((*MADE, ("mul", f"{WHOLE}, {WHOLE}", 100)), f"{WHOLE}, {COLUMN}"),
        ((*MADE, ("bmm", f"{WHOLE}, {WHOLE}", 100)), f"{WHOLE}, {COLUMN}"),
        (MADE[1:], f"{WHOLE}, {COLUMN}"),
        (MADE, f"{WHOLE}, [512, 64, 8]"),
        (tuple((name, sizes.replace("64", "8"), us) for name, sizes, us in MADE), "[512, 8, 8], [512, 8, 1]"),
    ],
    ids=["not linear", "one times another", "product of them", "made elsewhere", "many vectors", "small"],
)
def test_any_other_matrix_has_none(tmp_path: Path, operators: tuple[tuple[str, str, int], ...], product: str) -> None:
    assert not found(tmp_path, *operators, product=product)

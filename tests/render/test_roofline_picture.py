"""The picture of the roofline: an operator a circle, below the lines of the limits."""

from __future__ import annotations

from pathlib import Path

from nsysx.render.charts import roofline_chart
from tests.analyses.test_operators import Torch, summary
from tests.analyses.test_roofline import body
from tests.findings import US, Program


def test_operators_stand_below_the_limits(tmp_path: Path) -> None:
    found = summary(Torch().steps(body), tmp_path)
    drawn = roofline_chart.chart(found)
    assert drawn is not None
    (axes,) = drawn.figure.axes
    circles = [place for collection in axes.collections for place in collection.get_offsets()]
    assert len(circles) == 2, "the product and the sum"
    memory = 4.3e12
    assert all(tflops * 1e12 <= intensity * memory for intensity, tflops in circles)
    texts = [text.get_text() for text in axes.texts]
    assert any(text.startswith("addmm") for text in texts) and any(
        "bf16 products 788 TFLOP/s" in text for text in texts
    )
    # 400 + 1000 + 50 + 30 us; the product needs 174 us and the sum 187.
    assert "1.48 ms" in drawn.alt and "5.4 % of it without a limit" in drawn.alt


def test_without_operators_there_is_no_picture(tmp_path: Path) -> None:
    def plain(program: Program, number: int) -> None:
        with program.range("forward"):
            program.launch(20 * US, "kernel")

    assert roofline_chart.chart(summary(Torch().steps(plain), tmp_path)) is None

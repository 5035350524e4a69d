"""The picture of the roofline: an operator a circle, below the lines of the limits."""

from __future__ import annotations

import itertools
from pathlib import Path

from nsysx.render.charts import roofline_chart
from nsysx.render.charts.roofline_chart import RooflineLimits, RooflinePoint
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


def test_names_near_the_upper_edge_are_written_across_and_beside_those_of_limits() -> None:
    """A product that the memory limits stands as high as the limits do: upward its name was cut."""
    limits = RooflineLimits(4.3e12, (("fp32", 67.0), ("bf16", 788.0)))
    points = [
        RooflinePoint("attention_of_a_long_name", 60, 1.2e12, 0.071, "memory"),
        RooflinePoint("another_of_a_long_name", 150, 0.4e12, 0.07, "products"),
        RooflinePoint("add", 0.004, 2e12, 0.2, "memory"),
    ]
    (axes,) = roofline_chart.roofline(points, limits).axes
    axes.figure.draw_without_rendering()
    texts = {text.get_text().split()[0]: text for text in axes.texts}
    assert {name for name, text in texts.items() if text.get_rotation()} == {"add"}
    boxes = {name: texts[name].get_window_extent() for name in texts}
    for name, other in itertools.combinations(boxes, 2):
        assert not boxes[name].padded(0, -1).overlaps(boxes[other]), (name, other)
    top = axes.figure.bbox.y1
    assert all(box.y1 <= top for box in boxes.values())


def test_without_operators_there_is_no_picture(tmp_path: Path) -> None:
    def plain(program: Program, number: int) -> None:
        with program.range("forward"):
            program.launch(20 * US, "kernel")

    assert roofline_chart.chart(summary(Torch().steps(plain), tmp_path)) is None

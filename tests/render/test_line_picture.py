"""The picture of the lines that the GPU waits for: boxes that conserve, names without folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nsysx.answer import others
from nsysx.reading.schema import PYTHON_SAMPLING_DOMAINS as SAMPLING
from nsysx.render import html_page
from nsysx.render.charts.canvas import svg
from nsysx.render.charts.host_icicle import IcicleTime, boxes_of, chart, icicle
from tests.findings import Program
from tests.render.shapes import texts

ADAM = "/home/ann/venv/lib/python3.12/site-packages/torch/optim/adam.py:3 _fused_adam"


def body(program: Program, number: int) -> None:
    """A step with two lines, one of them in a framework's function, and time without a sample."""
    with program.range("forward"), program.range("net:Net"):
        program.python(1_000, "/home/ann/secret/train.py:12 <b>augment</b>")
        program.launch(20)
    program.python(500, ADAM, "/home/ann/secret/train.py:20 main")
    program.launch(20)
    program.host(2_000)
    program.launch(20)
    program.sync()


def test_each_box_is_as_wide_as_what_stands_below_it() -> None:
    parts = [IcicleTime(("a", "x"), 3), IcicleTime(("a", "y"), 5), IcicleTime(("b",), 4), IcicleTime(("c", "z"), 0)]
    found = boxes_of(parts)
    assert [(b.level, b.start, b.end, b.name) for b in found] == [
        (0, 0, 8, "a"), (1, 0, 5, "y"), (1, 5, 8, "x"), (0, 8, 12, "b"),
    ]  # fmt: skip
    for level in (0, 1):
        assert sum(b.end - b.start for b in found if b.level == level) == (12, 8)[level]


def test_the_picture_says_what_the_table_says(tmp_path: Path) -> None:
    summary = Program().steps(body, 12).summary(tmp_path)
    drawn = chart(summary)
    assert drawn is not None
    words = drawn.caption
    said = " | ".join(texts(drawn.figure))
    assert "train.py:12 <b>augment</b>  1.00 ms" in said
    assert "torch/optim/adam.py:_fused_adam" in said
    assert "(not sampled)" in said
    assert "rows from above: phase, module, line, framework" in said
    assert "Most is in " in words and "ann" not in said + words
    page = html_page.render(summary)
    assert "Host time by line" in page and "<b>augment" not in page and "/home/ann" not in page


def test_nothing_sampled_has_no_picture(tmp_path: Path) -> None:
    def silent(program: Program, number: int) -> None:
        program.host(100)
        program.launch(20)
        program.sync()

    assert chart(Program().steps(silent).summary(tmp_path)) is None


@pytest.mark.parametrize("count", [0, 1, 400])
def test_any_number_of_boxes_is_the_same_picture_every_time(count: int) -> None:
    parts = [IcicleTime((f"p{i % 7}", f"line {i}"), 1 + i % 5, unknown=i % 9 == 0) for i in range(count)]
    assert svg(icicle(parts, ["phase", "line"])) == svg(icicle(parts, ["phase", "line"]))


def test_the_answer_says_how_to_see_the_lines(tmp_path: Path) -> None:
    program = Program().steps(body, 12)
    seen = program.summary(tmp_path)
    marks = [r for r in program.report.rows["NVTX_EVENTS"] if r["eventType"] == 34 or r["text"] in SAMPLING]
    program.report.rows["NVTX_EVENTS"] = [r for r in program.report.rows["NVTX_EVENTS"] if r not in marks]
    unseen = program.summary(tmp_path)
    for summary, said in ((seen, False), (unseen, True)):
        ours = replace(summary, capture=replace(summary.capture, probe=({"pid": 100},)))
        assert ("nsysx run --xray all -- CMD" in others.ask_next(ours, None)) is said
    lacking = {"pid": 100, "backend": "torch", "nvtx": None, "reason": "nvtx: No module named nvtx"}
    without = replace(unseen, capture=replace(unseen.capture, probe=({"pid": 99, "backend": "off"}, lacking)))
    assert "pip install nvtx && nsysx run -- CMD" in others.ask_next(without, None)
    assert "nsysx run --xray all -- CMD" not in others.ask_next(unseen, None), "a stranger's report may hold no Python"

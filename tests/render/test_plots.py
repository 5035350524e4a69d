"""The pictures of a report for notebooks, slides and papers: figures of matplotlib, and files."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from nsysx.events.profile import NotRecorded
from nsysx.model import Summary
from nsysx.pictures import Lane, Span, Timeline
from nsysx.render import charts, plots, view
from nsysx.render.charts.canvas import svg
from nsysx.render.ledgers import StepBar
from nsysx.render.plots import Plots
from tests.findings import Program
from tests.render import factory
from tests.render.shapes import shapes, texts
from tests.test_one_file import body

MS = factory.MS


@pytest.fixture(scope="module")
def job() -> Summary:
    """A Summary that has all pictures."""
    full = factory.summary()
    return replace(full, tables={**full.tables, "ranks": factory.ranks(4, 2)})


def test_each_picture_is_a_figure_that_says_what_the_summary_says(job: Summary) -> None:
    plot = Plots(job)
    step = texts(plot.step())
    assert {"compute", "the step"} <= set(step) or "one step, ms" in step
    assert "GPU 0 stream 7" in texts(plot.timeline())
    assert {"rank 0", "rank 2 (last)"} <= set(texts(plot.ranks()))
    assert any(text.startswith("GPU time of one step") for text in texts(plot.flame()))
    assert any(
        text.startswith("work: ") for text in texts(plot.flame({"main;work": 3e6, "main": 1e6}, words="CPU time"))
    )
    assert "CPU time, ms" in texts(plot.flame({"main;work": 3e6, "main": 1e6}, words="CPU time"))


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        ((9 * MS, 5 * MS), "1 of them steady: 5.00 ms (step 1)."),
        ((9 * MS, 5 * MS, 6 * MS), "2 of them steady: from 5.00 ms (step 1) to 6.00 ms (step 2)."),
    ],
)
def test_the_lengths_of_steady_steps_are_a_range_only_where_there_are_several(
    job: Summary, lengths: tuple[int, ...], said: str
) -> None:
    steps = tuple(StepBar(i, ns, ns, i > 0, {"compute": ns}) for i, ns in enumerate(lengths))
    drawn = plots.steps_chart(replace(view.build(job, top=5), steps=steps), len(lengths))
    assert drawn is not None and drawn.caption.endswith(said)


def test_a_picture_on_the_axes_of_somebody_else_leaves_their_settings(job: Summary) -> None:
    before = dict(mpl.rcParams)
    figure = Figure(figsize=(8, 6))
    left, right = figure.subplots(1, 2)
    assert Plots(job).ranks(ax=left) is figure
    assert Plots(job).flame(ax=right) is figure
    assert figure.axes == [left, right]
    assert left.get_xlabel().startswith("mean steady step on the GPU") and right.get_xlabel().startswith("GPU time")
    assert dict(mpl.rcParams) == before
    assert "rank 2 (last)" in texts(figure)


def test_what_was_not_recorded_has_no_picture(job: Summary) -> None:
    bare = factory.bare()
    for draw in (Plots(bare).memory, Plots(bare).flame, Plots(bare).timeline, Plots(bare).step):
        with pytest.raises(NotRecorded) as error:
            draw()
        assert len(error.value.reason) > 10
    with pytest.raises(NotRecorded, match="timelines"):
        Plots(job).timeline(9)


def test_every_picture_is_a_file_of_each_kind(job: Summary) -> None:
    written = plots.files(job)
    names = {name.rpartition(".")[0] for name in written}
    assert {"step", "ledger", "steps", "timeline", "ranks", "modules"} <= names
    assert set(written) == {f"{name}.{kind}" for name in names for kind in ("svg", "png", "pdf")}
    for name, data in written.items():
        start = {"svg": b"<svg ", "png": b"\x89PNG", "pdf": b"%PDF"}[name.rpartition(".")[2]]
        assert data.startswith(start)
        if name.endswith(".svg"):
            root = ET.fromstring(data)
            title = root.find("{http://www.w3.org/2000/svg}title")
            assert root.get("role") == "img" and title is not None and len(title.text or "") > 10
            assert b"/home/" not in data
    assert plots.files(job) == written, "the same bytes every time"


def test_a_picture_loads_nothing_and_has_no_name_of_a_group_twice(job: Summary) -> None:
    for chart in plots.every(job):
        text = svg(chart.figure).decode()
        assert not [part for part in text.split('href="')[1:] if not part.startswith(("#", "data:image/png;base64,"))]
        assert text.count("http") == text.count("http://www.w3.org/"), "names of XML alone"
        ids = [part.partition('"')[0] for part in text.split(' id="')[1:]]
        assert len(ids) == len(set(ids))


def test_a_longer_step_is_drawn_longer() -> None:
    """The boxes of a timeline have the length of their time, whatever the width of the axes."""
    spans = (Span(0, 20 * MS, "compute", "a"), Span(20 * MS, 80 * MS, "copy", "b"))
    window = Timeline("t", 0, 100 * MS, (Lane("stream", "GPU", spans),))
    figure = Figure(figsize=(5, 2), dpi=72)
    charts.timeline(window, ax=figure.add_axes((0, 0, 1, 1)))
    drawn = {s.fill: s.span for s in shapes(figure) if s.area > 200}
    kinds = charts.colors.KIND_COLORS
    assert drawn[kinds["compute"]] == pytest.approx((0, 72), abs=0.1)
    assert drawn[kinds["copy"]] == pytest.approx((72, 288), abs=0.1)


def test_the_command_writes_them_beside_the_other_outputs(tmp_path: Path) -> None:
    Program().steps(body, 10).report.write(tmp_path / "a.sqlite")
    words = ["report", "a.sqlite", "--plots", "drawn", "--csv", "tables", "--json", "a.json"]
    done = subprocess.run(
        [sys.executable, "-m", "nsysx", *words], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300
    )
    drawn = {path.name for path in (tmp_path / "drawn").iterdir()}
    assert {"steps.svg", "steps.png", "steps.pdf", "timeline.svg"} <= drawn
    assert f"wrote drawn ({len(drawn) // 3} pictures)" in done.stderr
    assert "tables (" in done.stderr and (tmp_path / "a.json").is_file()
    again = subprocess.run(
        [sys.executable, "-m", "nsysx", *words[:4]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert again.returncode == 2 and "exists already" in again.stderr
    assert {path.name for path in (tmp_path / "drawn").iterdir()} == drawn

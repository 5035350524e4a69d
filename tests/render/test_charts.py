"""Pictures: well formed, repeatable, blind to the user's settings, and true: nothing looks longer than it was."""

from __future__ import annotations

import io
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from nsysx.pictures import Lane, Span, Strip, Timeline
from nsysx.render import charts, live_timeline, view
from nsysx.render.charts import colors
from nsysx.render.charts.kernel_strips import strips
from nsysx.render.charts.rank_bars import RANK_PARTS, ranks
from nsysx.render.ledgers import StepBar
from tests.render import factory

MS = factory.MS


def pixels(picture: charts.Picture) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(picture.data)).convert("RGB")).astype(int)


def near(image: np.ndarray, color: str, tolerance: int = 24) -> np.ndarray:
    wanted = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)])
    return (np.abs(image - wanted) <= tolerance).all(axis=2)


def texts(picture: charts.Picture) -> list[str]:
    root = ET.fromstring(picture.data)
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


def shown(summary) -> view.View:
    return view.build(summary, top=10)


def test_bars_are_text_and_the_same_bytes_every_time(full):
    ledgers = shown(full).ledgers
    picture = charts.ledger(ledgers)
    assert "GPU 0 (NVIDIA H200): 69.25 ms" in texts(picture)
    assert "compute: 56.00 ms, 81 %" in texts(picture)
    assert charts.ledger(ledgers).data == picture.data
    assert b"<dc:date>" not in picture.data


def test_no_idle_part_is_a_white_slab_on_a_dark_page(full):
    """Hatched parts stand on a pattern whose paper is an attribute, not a style: both are made dark."""
    text = charts.ledger(shown(full).ledgers).data.decode()
    papers = set(re.findall(r'<rect [^>]*fill="(#[ef][0-9a-f]{5})"', text))
    assert papers
    assert all(f"[fill='{paper}']" in text for paper in papers)


def test_the_users_settings_do_not_matter(full):
    bars = shown(full).steps
    picture = charts.steps(bars, False)
    with mpl.rc_context({"font.size": 30, "svg.fonttype": "path", "axes.facecolor": "red", "text.usetex": False}):
        assert charts.steps(bars, False).data == picture.data
        assert mpl.rcParams["font.size"] == 30


def test_bars_have_the_length_of_their_numbers(full):
    """Each visible rectangle of the GPU bar is as wide as its part of the step."""
    entry = shown(full).ledgers[0]
    root = ET.fromstring(charts.ledger([entry]).data)
    widths = {}
    for path in root.iter("{http://www.w3.org/2000/svg}path"):
        style = path.get("style") or ""
        for part in entry.parts:
            color = colors.KIND_COLORS[part.kind].lower()
            if not part.idle and f"fill: {color}" in style:
                x = [float(number) for number in re.findall(r"[ML] ([\d.]+)", path.get("d"))]
                widths[part.kind] = max(widths.get(part.kind, 0.0), max(x) - min(x))
    assert widths["compute"] / widths["copy"] == pytest.approx(560 / 30, rel=0.02)


def test_hostile_names_give_pictures_all_the_same(hostile):
    view_ = shown(hostile)
    for picture in (charts.ledger(view_.ledgers), charts.steps(view_.steps, False)):
        ET.fromstring(picture.data)
    for entry in hostile.timelines:
        assert charts.timeline(entry).data.startswith(b"\x89PNG")


def test_a_timeline_has_two_pixels_for_each_css_pixel(full):
    picture = charts.timeline(full.timelines[0])
    image = Image.open(io.BytesIO(picture.data))
    assert image.size == (2 * picture.width, 2 * picture.height)
    assert len(picture.data) < 150_000


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("merged", [False, True])
def test_a_busy_looking_lane_was_busy(share, merged):
    """Kernels narrower than a pixel fill as much of the picture as of the time, also where they were merged before."""
    window, period = 100 * MS, 20_000
    if merged:
        spans = tuple(Span(i * MS, (i + 1) * MS, "compute", "several", covered_ns=int(share * MS)) for i in range(100))
    else:
        spans = tuple(
            Span(i * period, i * period + int(period * share), "compute", "k") for i in range(window // period)
        )
    picture = charts.timeline(Timeline("t", 0, window, (Lane("stream", "GPU 0", spans),)))
    full = charts.timeline(Timeline("t", 0, window, (Lane("stream", "GPU 0", (Span(0, window, "compute", ""),)),)))
    drawn = (
        near(pixels(picture), colors.KIND_COLORS["compute"]).sum()
        / near(pixels(full), colors.KIND_COLORS["compute"]).sum()
    )
    assert drawn == pytest.approx(max(share, 0.05), abs=0.06)


def test_waits_are_hatched_and_arrows_start_inside_the_window():
    api = Lane("api", "main", (Span(0, 50 * MS, "sync", "cudaStreamSynchronize", backlog_ns=50 * MS),))
    plain = Lane("api", "main", (Span(0, 50 * MS, "sync", "cudaStreamSynchronize"),))
    gpu = Lane(
        "stream",
        "GPU",
        (
            Span(0, 40 * MS, "compute", "k", launch_ns=-20 * MS, launch_lane=0),
            Span(60 * MS, 90 * MS, "compute", "k", launch_ns=55 * MS, launch_lane=0),
        ),
    )
    hatched = pixels(charts.timeline(Timeline("t", 0, 100 * MS, (api, gpu))))
    flat = pixels(charts.timeline(Timeline("t", 0, 100 * MS, (plain, gpu))))
    sync = colors.KIND_COLORS["sync"]
    assert near(hatched, sync).sum() < 0.95 * near(flat, sync).sum()
    dark = near(flat, "#333333", 10)
    left_of_lanes = dark[:, : 2 * 176]
    assert left_of_lanes.sum() < 400  # the lane's name only, no arrow from outside


def test_many_steps_stay_few_shapes(full):
    bars = tuple(StepBar(i, 69e6 + i, 69e6, i > 5, {"compute": 60e6, "idle": 9e6 + i}) for i in range(5000))
    picture = charts.steps(bars, True)
    assert len(picture.data) < 250_000
    assert any("neighbors" in text for text in texts(picture))


def test_one_long_warm_up_step_is_cut_and_labeled(full):
    bars = tuple(StepBar(i, 2e9 if i == 0 else 50e6, 50e6, i > 0, {"compute": 40e6}) for i in range(8))
    assert "2.00 s" in texts(charts.steps(bars, True))


def test_ink_can_be_read_on_every_color():
    for color in {*colors.KIND_COLORS.values(), *colors.PHASE_COLORS.values()}:
        light, ink = colors.luminance(color), colors.luminance(colors.ink_on(color))
        high, low = max(light, ink), min(light, ink)
        assert (high + 0.05) / (low + 0.05) >= 4.5, color


def test_a_label_never_becomes_a_formula(full):
    entry = replace(shown(full).ledgers[0], label="$\\frac{a}{b")
    assert any("$\\frac{a}{b" in text for text in texts(charts.ledger([entry])))


def rank_rows(count: int, late: int | None = None) -> list[dict]:
    parts = {"exposed transfer": 0.05, "communication on no other rank": 0, "copy": 0, "memset": 0.01, "idle": 1}
    rows = []
    for r in range(count):
        compute, wait = (8, 0) if r == late else (5, 3)
        own = {"compute": compute, "waiting for another rank": wait, **parts}
        rows.append({"rank": r, "straggler": r == late, **{k: v * MS for k, v in own.items()}})
    return rows


def test_few_ranks_are_bars():
    picture = ranks(rank_rows(4, late=3))
    assert picture.mime == "image/svg+xml"
    assert {"rank 0", "rank 3 (last)", "waiting for another rank"} <= set(texts(picture))
    assert "copy" not in texts(picture)


@pytest.mark.parametrize("count", [33, 64, 1024])
def test_many_ranks_are_a_heat_map(count):
    """One column per rank: that of the straggler is light in compute and dark in waiting, and its neighbors are not."""
    late = count // 2 + 5
    picture = ranks(rank_rows(count, late))
    assert picture.mime == "image/png"
    assert len(picture.data) < 100_000, "the page stays small"
    assert ranks(rank_rows(count, late)).data == picture.data
    # compute, waiting, idle: neither what is nowhere, nor what is nowhere a hundredth of the step.
    assert picture.height == 26 * 3 + 82
    image = pixels(picture)
    left, width = 0.19 * image.shape[1], 0.71 * image.shape[1]
    bottom = image.shape[0] - 2 * 44

    def color(rank: int, line: int) -> np.ndarray:
        return image[int(bottom - 2 * 26 * (2.5 - line)), int(left + width * (rank + 0.5) / count)]

    light = [int(color(r, 0).sum()) for r in (late, late - 2, late + 2)]
    assert light[0] > light[1] == light[2]
    dark = [int(color(r, 1).sum()) for r in (late, late - 2, late + 2)]
    assert dark[0] < dark[1] == dark[2]


def test_ranks_that_did_nothing_can_be_drawn():
    rows = [{**r, **dict.fromkeys((p.label for p in RANK_PARTS), 0)} for r in rank_rows(40)]
    assert ranks(rows).data


def test_the_middle_of_the_dots_is_the_median_of_the_table():
    """The strip holds some of the executions only: a middle of its own would differ from the table beside it."""
    row = {"median_ns": 25_000.0, "verdict": "cannot_tell"}
    said = texts(strips([Strip("k", "", "", 4000, (10_000, 20_000, 30_000, 90_000))], [row]))
    assert any("4,000 runs, median 25.0 µs: cannot tell" in text for text in said), said


def test_what_is_looked_at_closely_is_what_the_still_shows(full):
    """Box for box: begin, length and text; the color is that of the kind."""
    picture = full.timelines[0]
    data = json.loads(live_timeline.data(picture))
    assert data["ns"] == picture.end_ns - picture.start_ns
    for lane, drawn in zip(picture.lanes, data["lanes"], strict=True):
        at, boxes = 0, []
        for gap, long, color, text in zip(*(drawn["at"][i::4] for i in range(4)), strict=True):
            boxes.append((at + gap, at + gap + long, data["text"][text]))
            assert re.fullmatch("#[0-9A-F]{6}", data["color"][color], re.IGNORECASE)
            at += gap + long
        assert [b[:2] for b in boxes] == sorted((s.start_ns, s.end_ns) for s in lane.spans)


def test_a_page_that_is_large_already_gets_no_data_of_timelines(monkeypatch):
    page = f"<p>{live_timeline.token(0)}|{live_timeline.token(1)}</p>"
    assert live_timeline.fill(page, ['{"a":1}', "{}"]) == "<p>{&quot;a&quot;:1}|{}</p>"
    monkeypatch.setattr(live_timeline, "MOST_BYTES", 30)
    assert live_timeline.fill(page, ["x" * 20, "{}"]) == "<p>|</p>"

"""Pictures: well formed, repeatable, and true: nothing looks longer than it was."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise

import pytest

from nsysx.pictures import Lane, Span, Strip, Timeline
from nsysx.render import charts, cut_timeline, live_timeline, view
from nsysx.render.charts import colors
from nsysx.render.charts.canvas import Room, draw, name_axes, svg
from nsysx.render.charts.flame_graph import flame
from nsysx.render.charts.kernel_strips import strips
from nsysx.render.charts.rank_bars import RANK_PARTS, ranks
from nsysx.render.ledgers import StepBar
from tests.render import factory
from tests.render.shapes import shapes, size, texts

MS = factory.MS


def shown(summary) -> view.View:
    return view.build(summary, top=10)


def test_bars_are_text_and_the_same_bytes_every_time(full):
    ledgers = shown(full).ledgers
    picture = charts.ledger(ledgers)
    assert "GPU 0 (NVIDIA H200): 69.25 ms" in texts(picture)
    assert "compute: 56.00 ms, 81 %" in texts(picture)
    assert svg(charts.ledger(ledgers)) == svg(picture)


def test_no_idle_part_is_a_white_slab_on_a_dark_page(full):
    """Hatched parts stand on a pattern whose paper is an attribute, not a style: both are made dark."""
    text = svg(charts.ledger(shown(full).ledgers)).decode()
    papers = set(re.findall(r'<rect [^>]*fill="(#[ef][0-9a-f]{5})"', text))
    assert papers
    assert all(f"[fill='{paper}']" in text for paper in papers)


def test_bars_have_the_length_of_their_numbers(full):
    """Each visible rectangle of the GPU bar is as wide as its part of the step."""
    entry = shown(full).ledgers[0]
    widths = {s.fill: s.span[1] - s.span[0] for s in shapes(charts.ledger([entry]))}
    assert widths[colors.KIND_COLORS["compute"]] / widths[colors.KIND_COLORS["copy"]] == pytest.approx(
        560 / 30, rel=1e-3
    )


@pytest.mark.parametrize("low", [0.0, -0.59, 3.31, 1e-4])
@pytest.mark.parametrize("long", [1e-6, 0.3, 1.0, 2.44, 9.0, 78.6, 160, 5003])
def test_numbers_on_an_axis_are_round_apart_and_where_they_belong(low, long):
    def on(axes):
        axes.set_xlim(low, low + long)
        name_axes(axes, "s")

    picture = draw(Room(1120, 60, 50, 5), on)
    assert "s" in texts(picture)
    (axes,) = picture.axes
    marks = [
        (tick.get_loc(), tick.label1.get_text()) for tick in axes.xaxis.get_major_ticks() if tick.label1.get_text()
    ]
    marks = [(at, text) for at, text in marks if low - 1e-9 <= at <= low + long + 1e-9]
    places = [axes.transData.transform((at, 0))[0] for at, _ in marks]
    assert all(50 - 1e-6 <= p <= 1115 + 1e-6 for p in places)
    assert all(b - a >= 32 for a, b in pairwise(places))
    assert all(
        float(text.replace("\u2212", "-")) == pytest.approx(at, abs=1e-9 * max(1, abs(at))) for at, text in marks
    )
    assert len({text for _, text in marks}) == len(marks) <= 12
    assert len(marks) >= 3


def test_an_axis_without_length_can_be_drawn():
    def on(axes):
        axes.set_xlim(2, 2)
        name_axes(axes, "s")

    assert "s" in texts(draw(Room(100, 50), on))


def test_hostile_names_give_pictures_all_the_same(hostile):
    view_ = shown(hostile)
    for picture in (charts.ledger(view_.ledgers), charts.steps(view_.steps, False)):
        ET.fromstring(svg(picture))
    for entry in hostile.timelines:
        ET.fromstring(svg(charts.timeline(entry)))


def test_a_timeline_of_thousands_of_boxes_is_a_small_file():
    """What is narrower than two pixels is drawn as columns, whatever their number."""
    kinds = ("compute", "copy", "comm", "memset")
    spans = tuple(Span(i * 1000, i * 1000 + 300 + i % 7 * 100, kinds[i % 4], "k") for i in range(50_000))
    lanes = tuple(Lane("stream", f"GPU 0 stream {n}", spans) for n in range(6))
    picture = charts.timeline(Timeline("t", 0, 50 * MS, lanes))
    assert picture.get_figwidth() * 72 == 1120
    assert size(picture) < 350_000


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
    drawn, whole = (
        sum(s.area for s in shapes(p) if s.fill == colors.KIND_COLORS["compute"]) - 12 * 7.4 for p in (picture, full)
    )  # without the box of the legend
    assert drawn / whole == pytest.approx(max(share, 0.05), abs=0.02)


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
    hatched, flat = (charts.timeline(Timeline("t", 0, 100 * MS, (lane, gpu))) for lane in (api, plain))
    (lines,) = (s for s in shapes(hatched) if s.fill.startswith("url(") and s.area > 1000)
    (box,) = (s for s in shapes(flat) if s.fill == colors.KIND_COLORS["sync"] and s.area > 1000)
    assert lines.outlines == box.outlines
    assert not any(s.fill.startswith("url(") for s in shapes(flat))
    (head,) = (s for s in shapes(flat) if s.fill == "#333333")
    assert head.span[0] > box.span[1], "no arrow from outside"


def test_kinds_in_one_pixel_stand_on_each_other():
    """A pixel filled by several kinds shows as much of each as it held; what is drawn later hides what it is a part of."""
    spans = tuple(
        Span(i * 1000 + 500 * n, i * 1000 + 500 * n + 400 - 200 * n, kind, "k")
        for i in range(10_000)
        for n, kind in enumerate(("comm", "compute"))
    )
    picture = charts.timeline(Timeline("t", 0, 10 * MS, (Lane("stream", "GPU", spans),)))
    areas = [(s.fill, s.area) for s in shapes(picture) if s.area > 500 and s.fill not in ("#f6f6f6", "#ffffff")]
    assert [fill for fill, _ in areas] == [colors.KIND_COLORS[k] for k in ("compute", "comm")]
    whole = 932 * 21.6
    assert areas[1][1] == pytest.approx(0.4 * whole, rel=0.02)
    assert areas[0][1] - areas[1][1] == pytest.approx(0.2 * whole, rel=0.02)


def test_many_steps_stay_few_shapes(full):
    bars = tuple(StepBar(i, 69e6 + i, 69e6, i > 5, {"compute": 60e6, "idle": 9e6 + i}) for i in range(5000))
    picture = charts.steps(bars, True)
    assert size(picture) < 250_000
    assert any("neighbors" in text for text in texts(picture))


def test_one_long_warm_up_step_is_cut_and_labeled(full):
    bars = tuple(StepBar(i, 2e9 if i == 0 else 50e6, 50e6, i > 0, {"compute": 40e6}) for i in range(8))
    assert "2.00 s" in texts(charts.steps(bars, True))


def test_the_axis_of_few_steps_names_no_step_that_is_not_there(full):
    """Few bars leave room beside them: the axis went on to steps 6 and 8 of a capture of four."""
    (axes,) = charts.steps(tuple(StepBar(i, 50e6, 50e6, True, {"compute": 40e6}) for i in range(1, 5)), True).axes
    assert [round(tick) for tick in axes.get_xticks()] == [1, 2, 3, 4]


def test_ink_can_be_read_on_every_color():
    for color in {*colors.KIND_COLORS.values(), *colors.PHASE_COLORS.values()}:
        light, ink = colors.luminance(color), colors.luminance(colors.ink_on(color))
        high, low = max(light, ink), min(light, ink)
        assert (high + 0.05) / (low + 0.05) >= 4.5, color


def test_boxes_of_a_flame_graph_are_read_on_a_white_page_and_on_a_dark_one():
    for page, ink in ((colors.FLAME, colors.INK), (colors.FLAME_DARK, "#e8e8e8")):
        for color in page:
            high, low = sorted((colors.luminance(color), colors.luminance(ink)), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 4.5, color
    text = svg(flame({"a;b": 1.0, "a": 3.0})).decode()
    drawn = {s.fill for s in shapes(flame({"a;b": 1.0, "a": 3.0}))} & set(colors.FLAME)
    assert drawn and all(f"[style*='fill: {color}']" in text for color in drawn)


def test_of_the_map_of_waiting_the_longest_stands_out_from_a_white_page_and_from_a_dark_one():
    for tones, sign in ((colors.WAITING, -1), (colors.WAITING_DARK, 1)):
        light = [sign * colors.luminance(color) for color in tones]
        assert light == sorted(light)
    assert not set(colors.WAITING) & {*colors.KIND_COLORS.values(), *colors.FLAME}, "in the dark these are others"


def test_a_label_never_becomes_a_formula(full):
    entry = replace(shown(full).ledgers[0], label="$\\frac{a}{b")
    assert any("$\\frac{a}{b" in text for text in texts(charts.ledger([entry])))


def rank_rows(count: int, late: int | None = None) -> list[dict]:
    parts = {p.label: 0 for p in RANK_PARTS} | {"exposed transfer": 0.05, "memset": 0.01, "idle": 1}
    rows = []
    for r in range(count):
        compute, wait = (8, 0) if r == late else (5, 3)
        own = {**parts, "compute": compute, "waiting for another rank": wait}
        rows.append({"rank": r, "straggler": r == late, **{k: v * MS for k, v in own.items()}})
    return rows


def test_few_ranks_are_bars():
    picture = ranks(rank_rows(4, late=3))
    assert {"rank 0", "rank 3 (last)", "waiting for another rank"} <= set(texts(picture))
    assert "copy" not in texts(picture)


@pytest.mark.parametrize("count", [33, 64, 1024])
def test_many_ranks_are_a_heat_map(count):
    """One column per rank: that of the straggler is light in compute and dark in waiting, and its neighbors are not."""
    late = count // 2 + 5
    picture = ranks(rank_rows(count, late))
    assert size(picture) < 100_000, "the page stays small"
    assert svg(ranks(rank_rows(count, late))) == svg(picture)
    # compute, waiting, idle: neither what is nowhere, nor what is nowhere a hundredth of the step.
    assert picture.get_figheight() * 72 == pytest.approx(26 * 3 + 82)
    (axes,) = picture.axes
    (scale,) = axes.child_axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["compute", "waiting for another rank", "idle"]
    assert svg(picture).count(b"<image") == 2, "the map, and what its colors stand for"
    assert f"rank {late}" in texts(picture) and scale.get_ylabel().endswith(" per step")
    (image,) = axes.images
    cells = image.cmap(image.norm(image.get_array()))
    assert cells.shape[:2] == (3, count)

    def light(rank: int, line: int) -> float:
        return colors.luminance("#" + "".join(f"{round(255 * channel):02x}" for channel in cells[line, rank][:3]))

    compute = [light(r, 0) for r in (late, late - 2, late + 2)]
    assert compute[0] > compute[1] == compute[2]
    waiting = [light(r, 1) for r in (late, late - 2, late + 2)]
    assert waiting[0] < waiting[1] == waiting[2]


def test_ranks_that_all_differ_are_still_a_small_picture():
    rows = [{**r, "compute": (r["rank"] * 37 % 101) * MS} for r in rank_rows(1024)]
    assert size(ranks(rows)) < 100_000


def test_the_parts_of_a_rank_sum_to_its_step_and_communication_on_the_host_is_one_of_them():
    row = {
        "compute_ns": 50,
        "comm_ns": 20,
        "copy_ns": 5,
        "memset_ns": 1,
        "idle_ns": 24,
        "idle_causes": {"host_comm": 9},
    }
    parts = {p.label: p.ns({**row, "exposed_transfer_ns": 8, "exposed_wait_ns": 10}) for p in RANK_PARTS}
    assert (parts["communication on the host"], parts["idle"]) == (9, 15)
    assert sum(parts.values()) == 100


def test_ranks_that_did_nothing_can_be_drawn():
    rows = [{**r, **dict.fromkeys((p.label for p in RANK_PARTS), 0)} for r in rank_rows(40)]
    assert svg(ranks(rows))


def test_the_middle_of_the_dots_is_the_median_of_the_table():
    """The strip holds some of the executions only: a middle of its own would differ from the table beside it."""
    row = {"median_ns": 25_000.0, "verdict": "cannot_tell"}
    said = texts(strips([Strip("k", "", "", 4000, (10_000, 20_000, 30_000, 90_000))], [row]))
    assert any("4,000 runs, median 25.0 µs: cannot tell" in text for text in said), said


def test_every_execution_inside_the_axis_is_a_dot_at_its_time():
    """The dots of a strip lie where their times are, also where thousands of them are one shape; a dot has a length."""
    times = tuple(20_000 + 10 * n for n in range(1000))
    picture = strips([Strip("k", "", "", 1000, times)], [{"median_ns": 25_000.0, "verdict": "steady"}])
    dots = [o for s in shapes(picture) if s.edge == colors.KIND_COLORS["compute"].lower() for o in s.outlines]
    assert len(dots) == 1000 and all(len(o) == 2 and o[1][0] > o[0][0] for o in dots)
    left, right = min(o[0][0] for o in dots), max(o[0][0] for o in dots)
    wide = 660 - 2 * 26
    place = [26 + wide * (0.5 + 0.5 * math.log(ns / 25_000) / math.log(1.5)) for ns in (times[0], times[-1])]
    assert (left, right) == pytest.approx(place, abs=0.03)


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
    assert live_timeline.fill(page, [['{"a":1}'], ["{}"]]) == "<p>{&quot;a&quot;:1}|{}</p>"
    monkeypatch.setattr(live_timeline, "LIVE_PAGE_BYTES", 30)
    assert live_timeline.fill(page, [["x" * 20], ["{}"]]) == "<p>|</p>"
    assert live_timeline.fill(page, [["x" * 20, "y"], ["{}"]]) == "<p>y|{}</p>", "with fewer boxes it fits"


def test_a_thinned_timeline_covers_the_same_time_with_fewer_boxes():
    calls = tuple(Span(1_000 * i, 1_000 * i + 300, ("launch", "other")[i % 2], f"call {i % 2}") for i in range(20_000))
    lanes = (Lane("api", "python", (*calls, Span(30 * MS, 32 * MS, "sync", "wait"))), Lane("idle", "GPU 0 idle", calls))
    thin = cut_timeline.thinned(Timeline("t", 0, 40 * MS, lanes))
    spans = thin.lanes[0].spans
    covered = sum(s.end_ns - s.start_ns if s.covered_ns is None else s.covered_ns for s in spans)
    assert covered == 20_000 * 300 + 2 * MS and len(spans) < 1600
    assert spans[-1].label == "wait" and spans[0].label == "several", "what is long stays itself"
    assert thin.lanes[1] == lanes[1], "idle time keeps its causes"

"""Where a finding is marked in the timeline: where it is, or nowhere."""

from __future__ import annotations

import pytest

from nsysx.events.attribute import IN_STEP
from nsysx.model import Finding
from nsysx.pictures import Lane, LongestStretch, Span, Timeline
from nsysx.render import charts, live_timeline
from tests.render import factory
from tests.render.shapes import shapes

#: Each stretch is longer than the one before it, so that the longest of all is never right by chance.
PLACES = (
    LongestStretch(0, 10, "blocks.3.qkv", "forward", "host"),
    LongestStretch(10, 30, "0.1", "forward", "work"),
    LongestStretch(30, 60, "(optimizer)", "optimizer", "host"),
    LongestStretch(60, 100, "(clip)", "clip", "host"),
    LongestStretch(100, 150, IN_STEP, "", "copy"),
    LongestStretch(150, 210, IN_STEP, "", "sync"),
    LongestStretch(210, 280, IN_STEP, "", "input"),
    LongestStretch(280, 360, "head", "backward", "sync"),
    LongestStretch(360, 450, "head", "backward", "comm"),
    LongestStretch(450, 550, "head", "backward", "work"),
    LongestStretch(550, 660, "head", "backward", "host"),
    LongestStretch(660, 780, "head", "backward", "copy"),
)


def marked(code: str, **where: object) -> tuple[int, int] | None:
    picture = Timeline("step", 0, 1000, (), places=PLACES)
    finding = Finding(code, "cause", "found", "a title", "a detail", where=where)
    found = live_timeline.marks((picture,), (finding,))[0]
    return found[0][1:] if found else None


@pytest.mark.parametrize(
    ("code", "where", "place"),
    [
        ("NSX102", {"module": "Net.forward and backward, AdamW.step"}, (550, 660)),
        ("NSX106", {"module": "DataLoader", "phase": "data"}, (210, 280)),
        ("NSX114", {"module": "(optimizer)", "phase": "optimizer"}, (30, 60)),
        ("NSX114", {"module": "(clip)", "phase": "clip"}, (60, 100)),
        ("NSX114", {"module": "blocks.*.qkv", "phase": "forward"}, (0, 10)),
        ("NSX117", {"module": "*.*"}, (10, 30)),
        ("NSX101", {"near": "after AdamW.step, before Net.forward"}, (150, 210)),
        ("NSX105", {"near": "after AdamW.step, before Net.forward"}, (100, 150)),
        ("NSX101", {"module": "head", "phase": "backward"}, (280, 360)),
        ("NSX111", {"near": "rank 3"}, (360, 450)),
    ],
)
def test_a_finding_is_marked_where_it_is(code, where, place):
    assert marked(code, **where) == place


def test_a_finding_about_a_line_is_marked_where_that_runs_for_longest() -> None:
    runs = tuple(
        Span(a, b, "", text) for a, b, text in ((0, 9, "/a/x.py:7"), (20, 70, "/a/x.py:7"), (80, 900, "/a/x.py:8"))
    )
    picture = Timeline("step", 0, 1000, (Lane("lines", "main", runs),), places=PLACES)
    findings = [
        Finding("NSX123", "line", "found", "", "", where={"file": "/a/x.py", "line": 7}),
        Finding("NSX123", "line", "found", "", "", where={"file": "/b/x.py", "line": 7}),  # another file
        Finding(
            "NSX114",
            "idle",
            "found",
            "",
            "",
            where={"module": "head", "phase": "backward", "file": "/a/x.py", "line": 8},
        ),
        Finding("NSX114", "idle", "found", "", "", where={"module": "elsewhere", "file": "/a/x.py", "line": 7}),
    ]
    assert live_timeline.marks((picture,), findings) == (((1, 20, 70), (3, 550, 660), (4, 20, 70)),)


@pytest.mark.parametrize(
    ("code", "where"),
    [
        ("NSX114", {"module": "elsewhere", "phase": "forward"}),
        ("NSX114", {"module": "head", "phase": "forward"}),
        ("NSX123", {"file": "train.py", "line": 12}),
        ("NSX190", {}),
        ("NSX108", {}),
    ],
)
def test_what_the_picture_does_not_show_has_no_mark(code, where):
    assert marked(code, **where) is None


def test_the_legend_names_the_colors_of_every_window_that_is_shown():
    first, second = (
        Timeline("step", 0, 100, (Lane("stream", "GPU 0 stream 7", (Span(0, 50, kind, "k"),)),))
        for kind in ("compute", "comm")
    )
    assert [words for *_, words in live_timeline.legend((first, second))] == ["compute", "communication"]


def test_each_kind_keeps_its_color_in_the_still():
    spans = tuple(Span(i * 10, i * 10 + 9, kind, "k") for i, kind in enumerate(("compute", "copy", "comm", "memset")))
    still = charts.timeline(Timeline("step", 0, 40, (Lane("stream", "GPU 0 stream 7", spans),)))
    drawn = {s.fill: s.span for s in reversed(shapes(still))}  # the legend comes last
    for span in spans:
        left, right = drawn[charts.colors.KIND_COLORS[span.kind]]
        assert (left, right) == pytest.approx([176 + 932 / 40 * ns for ns in (span.start_ns, span.end_ns)], abs=0.02)


def test_a_summary_of_every_kind_of_row_has_marks():
    summary = factory.summary()
    assert any(live_timeline.marks(summary.timelines[:1], summary.findings or ()))

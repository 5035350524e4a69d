"""Pictures inside of the closed lines: what they show adds up, and repeated blocks are one box."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsysx.model import Summary
from nsysx.render import step_waterfall
from nsysx.render.charts.flame_graph import FlameBox, flame, frames
from nsysx.render.charts.module_flame import chart, stacks
from tests.render import factory
from tests.render.shapes import shapes, texts

MS = factory.MS


def test_a_waterfall_begins_each_part_where_the_last_one_ends(full: Summary) -> None:
    parts = {"work": 40 * MS, "host": 20 * MS, "copy": 5 * MS, "launch": 4 * MS}
    verdict = replace(full.verdict, step_ns=69 * MS, parts=parts)
    *falls, whole = step_waterfall.build(factory.changed(full, verdict=verdict))
    assert [f.label for f in falls] == ["compute", "exposed copies", "waiting for kernel launches"]
    assert falls[-1].value == "24.00 ms", "launches on their way are part of it"
    at = 0.0
    for fall in falls:
        assert fall.box.left == pytest.approx(at)
        at += fall.box.width
    assert at == pytest.approx(100)
    assert (whole.value, whole.box.width) == ("69.00 ms", 100)


def row(path: str, parent: str | None, own_ns: int, cls: str = "Block") -> dict[str, object]:
    return {"path": path, "parent": parent, "cls": cls, "self_gpu_ns": own_ns}


def levels_of(summary: Summary, rows: list[dict[str, object]]) -> list[list[FlameBox]]:
    """Return the boxes of these modules by level, from the left."""
    table = replace(summary.tables["modules"], rows=tuple(rows))
    drawn = frames(stacks(replace(summary, tables={**summary.tables, "modules": table})))
    depth = max((f.level for f in drawn), default=-1) + 1
    return [sorted((f for f in drawn if f.level == n), key=lambda f: f.start_ns) for n in range(depth)]


def wide(frame: FlameBox) -> float:
    return frame.end_ns - frame.start_ns


def test_repeated_blocks_are_one_box_and_lie_under_what_calls_them(full: Summary) -> None:
    rows = [row("(Net)", None, 2 * MS, "Net"), row("head", "(Net)", 8 * MS, "Linear")]
    for i in range(8):
        rows += [row(f"blocks.{i}", "(Net)", 1 * MS), row(f"blocks.{i}.attn", f"blocks.{i}", 10 * MS, "Attention")]
    top, middle, bottom = levels_of(full, rows)
    whole = (2 + 8 + 8 * 11) * MS
    assert [b.name for b in top] == ["(Net)"]
    assert [b.name for b in middle] == ["blocks x 8", "head"], "what takes most stands first"
    assert [b.name for b in bottom] == ["attn x 8"]
    drawn = wide(top[0])
    assert wide(middle[0]) == pytest.approx(drawn * 88 * MS / whole)
    assert bottom[0].start_ns == middle[0].start_ns and wide(bottom[0]) < wide(middle[0])
    assert sum(map(wide, middle)) == pytest.approx(drawn * (whole - 2 * MS) / whole), "the rest is its own"
    assert sum(f.own_ns for level in (top, middle, bottom) for f in level) == pytest.approx(drawn)


def test_modules_that_call_each_other_end(full: Summary) -> None:
    """Names come from a report: a circle of callers is drawn as nothing rather than for ever."""
    rows = [row("a", "b", MS), row("b", "a", MS), row("c", None, MS), row("d", "c", MS)]
    assert [b.name for level in levels_of(full, rows) for b in level] == ["c", "d"]


def test_work_of_no_module_is_not_below_itself(full: Summary) -> None:
    """It has no path, as what stands at the top has no caller."""
    rows = [row("pair", None, MS), {**row("", None, 9 * MS), "path": None}]
    (top,) = levels_of(full, rows)
    assert [b.name for b in top] == ["(not attributed)", "pair"]
    assert wide(top[0]) == pytest.approx(9 * wide(top[1]))
    assert not levels_of(full, [row("pair", None, 0), rows[1]]), "one box says nothing"


def test_a_flame_graph_is_as_wide_as_its_stacks() -> None:
    """Folded stacks as other tools write them: what is called lies below its caller, and boxes have the length of their time."""
    times = {
        "main;step;forward": 30.0 * MS,
        "main;step;backward": 60.0 * MS,
        "main;step": 4.0 * MS,
        "main;load": 6.0 * MS,
    }
    picture = flame(times)
    assert {"main: 100.0 ms", "step: 94.00 ms", "backward: 60.00 ms", "forward: 30.00 ms"} <= set(texts(picture))
    left = {x for s in shapes(picture) for o in s.outlines for x, _ in o if len(s.outlines) < 4}
    assert max(left) - min(left) == pytest.approx(1120 - 12, abs=0.02)
    widths = sorted(o[1][0] - o[0][0] for s in shapes(picture) for o in s.outlines if len(o) == 4)
    assert widths == pytest.approx([1108 * share for share in (0.06, 0.3, 0.6, 0.94, 1.0)], abs=0.02)
    assert frames({("a", "b"): 1.0, ("a",): 2.0}) == frames({"a;b": 1.0, "a": 2.0, "c": 0.0})


def test_the_picture_of_the_modules_says_the_time_of_the_module_that_takes_most(full: Summary) -> None:
    rows = [row("(Net)", None, 2 * MS, "Net"), row("head", "(Net)", 8 * MS, "Linear")]
    table = replace(full.tables["modules"], rows=tuple(rows))
    said = chart(replace(full, tables={**full.tables, "modules": table}))
    assert said is not None
    assert "most alone takes head" in said.alt and "80 %" in said.alt
    assert any(text.startswith("head: ") for text in texts(said.figure))

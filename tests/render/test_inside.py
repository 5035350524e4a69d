"""Pictures inside of the closed lines: what they show adds up, and repeated blocks are one box."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsysx.model import Summary
from nsysx.render import module_icicle, step_waterfall
from tests.render import factory

MS = factory.MS


def test_a_waterfall_begins_each_part_where_the_last_one_ends(full: Summary) -> None:
    parts = {"work": 40 * MS, "host": 20 * MS, "copy": 5 * MS, "launch": 4 * MS}
    verdict = replace(full.verdict, step_ns=69 * MS, parts=parts)
    *falls, whole = step_waterfall.build(factory.changed(full, verdict=verdict))
    assert [f.label for f in falls] == ["computes", "only copies", "waits for Python"]
    assert falls[-1].value == "24.00 ms", "launches on their way are part of it"
    at = 0.0
    for fall in falls:
        assert fall.box.left == pytest.approx(at)
        at += fall.box.width
    assert at == pytest.approx(100)
    assert (whole.value, whole.box.width) == ("69.00 ms", 100)


def row(path: str, parent: str | None, own_ns: int, cls: str = "Block") -> dict[str, object]:
    return {"path": path, "parent": parent, "cls": cls, "self_gpu_ns": own_ns}


def test_repeated_blocks_are_one_box_and_lie_under_what_calls_them(full: Summary) -> None:
    rows = [row("(Net)", None, 2 * MS, "Net"), row("head", "(Net)", 8 * MS, "Linear")]
    for i in range(8):
        rows += [row(f"blocks.{i}", "(Net)", 1 * MS), row(f"blocks.{i}.attn", f"blocks.{i}", 10 * MS, "Attention")]
    table = replace(full.tables["modules"], rows=tuple(rows))
    top, middle, bottom = module_icicle.build(replace(full, tables={**full.tables, "modules": table}))
    whole = (2 + 8 + 8 * 11) * MS
    assert [b.text for b in top.boxes] == ["(Net)"]
    assert [b.text for b in middle.boxes] == ["blocks x 8", "head"], "what takes most stands first"
    assert [b.text for b in bottom.boxes] == ["attn x 8"]
    assert sum(b.width for b in top.boxes) == pytest.approx(100)
    assert middle.boxes[0].width == pytest.approx(100 * 88 * MS / whole)
    assert bottom.boxes[0].left == middle.boxes[0].left and bottom.boxes[0].width < middle.boxes[0].width
    assert sum(b.width for b in middle.boxes) == pytest.approx(100 * (whole - 2 * MS) / whole), "the rest is its own"


def test_modules_that_call_each_other_end(full: Summary) -> None:
    """Names come from a report: a circle of callers is drawn as nothing rather than for ever."""
    rows = (row("a", "b", MS), row("b", "a", MS), row("c", None, MS), row("d", "c", MS))
    table = replace(full.tables["modules"], rows=rows)
    levels = module_icicle.build(replace(full, tables={**full.tables, "modules": table}))
    assert [b.text for level in levels for b in level.boxes] == ["c", "d"]


def test_work_of_no_module_is_not_below_itself(full: Summary) -> None:
    """It has no path, as what stands at the top has no caller."""
    rows = [row("pair", None, MS), {**row("", None, 9 * MS), "path": None}]
    table = replace(full.tables["modules"], rows=tuple(rows))
    (top,) = module_icicle.build(replace(full, tables={**full.tables, "modules": table}))
    assert [b.text for b in top.boxes] == ["(not attributed)", "pair"]
    assert sum(b.width for b in top.boxes) == pytest.approx(100)
    alone = replace(table, rows=({**row("pair", None, 0)}, rows[1]))
    assert not module_icicle.build(replace(full, tables={**full.tables, "modules": alone})), "one box says nothing"

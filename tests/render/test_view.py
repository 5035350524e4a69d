"""What all outputs share: order, scaling, folding, names of places, and what is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsysx.gpus import Gpu
from nsysx.model import Check, Column, Table
from nsysx.ranks import rank_table
from nsysx.render import grids, labels, view
from tests.render import factory
from tests.render.factory import MS


def modules(*rows: tuple[str | None, str | None, int]) -> list[dict]:
    return [
        {"path": path, "parent": parent, "forward_gpu_ns": ns, "backward_gpu_ns": None} for path, parent, ns in rows
    ]


def paths(rows: list[dict], top: int = 99) -> list:
    return [row["path"] for row in grids._tree(rows, top)]


def test_the_tree_puts_children_under_their_caller_heaviest_first():
    rows = modules(
        ("(Net)", None, 100),
        ("a", "(Net)", 40),
        ("b", "(Net)", 60),
        ("b.x", "b", 10),
        ("b.y", "b", 50),
        (None, None, 5),
    )
    assert paths(rows) == ["(Net)", "b", "b.y", "b.x", "a", None]
    assert paths(rows, 3) == ["(Net)", "b", "b.y"]


def test_a_tree_that_bites_its_tail_still_ends():
    rows = modules(("a", "b", 3), ("b", "a", 2), ("c", "gone", 1))
    assert sorted(paths(rows)) == ["a", "b", "c"]


def test_sums_over_steady_steps_are_shown_per_step_and_others_are_not():
    shown = {grid.key: grid for grid in view.build(factory.summary(), top=5).grids}
    assert shown["phases"].scope == "per step, mean of 10 steady steps"
    assert shown["phases"].rows[0][1].text == "16.00 ms"
    assert shown["kernels"].scope == "in the whole capture"
    assert shown["kernels"].rows[0][1].text == "200.0 ms"


def test_parts_of_a_ledger_sum_to_its_window_even_when_causes_are_missing():
    full = factory.summary()
    row = {**factory.gpu_row(), "idle_causes": {"sync": 60 * MS}}
    tables = {**full.tables, "gpu_ledger": replace(full.tables["gpu_ledger"], rows=(row,))}
    ledger = view.build(replace(full, tables=tables), top=5).ledgers[0]
    assert sum(part.ns for part in ledger.parts) == pytest.approx(ledger.window_ns)
    assert [part.label for part in ledger.parts if part.idle] == ["host sync", "cause not known"]


def test_an_unknown_cause_keeps_its_own_name():
    full = factory.summary()
    row = {**factory.gpu_row(), "idle_causes": {"moon_phase": 100 * MS}}
    tables = {**full.tables, "gpu_ledger": replace(full.tables["gpu_ledger"], rows=(row,))}
    assert "moon phase" in view.build(replace(full, tables=tables), top=5).ledgers[0].sentence()


def test_threads_that_hardly_call_cuda_are_counted_not_drawn():
    full = factory.summary()
    quiet = {**factory.cpu_row(1, "pin"), "outside_api_ns": 689 * MS}
    tables = {**full.tables, "cpu_ledger": replace(full.tables["cpu_ledger"], rows=(factory.cpu_row(), quiet, quiet))}
    shown = view.build(replace(full, tables=tables), top=5)
    assert [ledger.label for ledger in shown.ledgers] == ["GPU 0 (NVIDIA H200)", "CPU thread main"]
    assert shown.quiet_threads == 2


def test_several_processes_are_told_apart():
    full = factory.summary()
    gpus = (Gpu(1, 11, 0, "NVIDIA H100"), Gpu(2, 22, 0, "NVIDIA H100"))
    rows = (factory.gpu_row(1), factory.gpu_row(2))
    tables = {**full.tables, "gpu_ledger": replace(full.tables["gpu_ledger"], rows=rows)}
    shown = view.build(replace(full, tables=tables, capture=replace(full.capture, gpus=gpus)), top=5)
    assert [ledger.label for ledger in shown.ledgers][:2] == [
        "process 11 GPU 0 (NVIDIA H100)",
        "process 22 GPU 0 (NVIDIA H100)",
    ]
    assert next(grid.scope for grid in shown.grids if grid.key == "waits") == "per step, mean of 10 steady steps"
    ranked = replace(full.capture, gpus=gpus, processes=({"process": 1, "rank": 0}, {"process": 2, "rank": 1}))
    shown = view.build(replace(full, tables=tables, capture=ranked), top=5)
    assert shown.ledgers[1].label == "rank 1 GPU 0 (NVIDIA H100)"


@pytest.mark.parametrize(
    ("value", "name", "unit", "text"),
    [
        (None, "x_ns", "ns", "-"),
        (0, "x_ns", "ns", "0 ns"),
        (1_500, "x_ns", "", "1.5 us"),
        (999_499, "x_ns", "", "999 us"),
        (999_500, "x_ns", "", "1.00 ms"),  # never 1000 us
        (999_950_000, "x_ns", "", "1.00 s"),
        (3 * 1024, "bytes", "", "3.0 KiB"),
        (11.6e9, "speed", "bytes/s", "11.6 GB/s"),
        (2.8e6, "speed", "bytes/s", "2.8 MB/s"),
        (0.5, "share", "", "50 %"),
        (0.0001, "share", "", "<0.1 %"),
        (12, "load", "%", "12 %"),
        (1980, "clock", "MHz", "1,980 MHz"),
        (0.25, "calls", "", "0.25"),
        (float("nan"), "x_ns", "ns", "-"),
    ],
)
def test_numbers_carry_their_unit(value, name, unit, text):
    assert labels.number(value, name, unit) == text


def test_a_table_of_tomorrow_needs_no_code():
    columns = (
        Column("what", "String", "", "the thing"),
        Column("wait_ns", "Int64", "ns", "its wait"),
        Column("tags", "Object", "", "tags"),
    )
    rows = ({"what": "a", "wait_ns": 5_000, "tags": {"x_ns": 3}}, {"what": None, "wait_ns": None, "tags": ["p", "q"]})
    grid = grids.grid(Table("later", "Later", columns, rows), top=5, redact=False, width=80)
    assert [[cell.text for cell in row] for row in grid.rows] == [["a", "5.0 us", "x 3 ns"], ["-", "-", "p, q"]]
    assert [head.numeric for head in grid.heads] == [False, True, False]


def test_only_the_wanted_sections_are_made():
    shown = view.build(factory.summary(), top=5, sections=["kernels"])
    assert [grid.key for grid in shown.grids] == ["kernels"]
    assert shown.ledgers == ()


def test_of_many_ranks_those_that_are_waited_for_are_shown():
    columns = tuple(Column(n, "Int64", u, "") for n, u in (("rank", ""), ("delay_ns", "ns"), ("steps", "")))
    rows = tuple({"rank": r, "delay_ns": {50: 9_000, 3: 10, 40: 800}.get(r, 0), "steps": 1} for r in range(64))
    grid = grids.grid(Table("ranks", "Ranks", columns, rows, shown=rank_table.SHOWN_MANY), top=4, redact=True, width=80)
    assert [line[0].text for line in grid.rows] == ["50", "40", "3", "0"]
    assert grid.folded == 60


def test_what_the_profiler_said_several_times_is_told_once(full):
    said = [{"text": "Buffers: 49 of 50."}, {"text": "Buffers: 48 of 50."}, {"text": "Not all events."}]
    capture = replace(full.capture, diagnostics=tuple(said))
    assert view.build(replace(full, capture=capture), top=5).diagnostics == (
        "Buffers: 49 of 50. (2 times)",
        "Not all events.",
    )


def test_a_line_under_any_column_is_shown_without_its_folders_when_redacted():
    columns = tuple(Column(name, "String", "", "") for name in ("by", "name"))
    rows = (
        {"by": "line", "name": "/srv/alice/work/train.py:12"},
        {"by": "file", "name": "/srv/alice/work/train.py"},
        {"by": "operator", "name": "aten::mm"},
    )
    hidden, shown = (
        [
            [cell.text for cell in row]
            for row in grids.grid(Table("t", "T", columns, rows), top=5, redact=redact, width=80).rows
        ]
        for redact in (True, False)
    )
    assert hidden == [["line", "work/train.py:12"], ["file", "work/train.py"], ["operator", "aten::mm"]]
    assert shown == [
        ["line", "/srv/alice/work/train.py:12"],
        ["file", "/srv/alice/work/train.py"],
        ["operator", "aten::mm"],
    ]


def test_names_of_checks_are_written_as_people_write_them(full):
    quality = (Check("gpu ops without call", "ok", "all of it"), Check("cuda tracing", "warn", "none"))
    shown = view.build(replace(full, quality=quality), top=5).quality
    assert [c.check for c in shown] == ["CUDA tracing", "GPU work without call"]

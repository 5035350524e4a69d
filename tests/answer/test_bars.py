"""Bars whose parts are their whole, also where what is drawn does not fit together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsysx import units
from nsysx.advice import Bar, BarPart
from nsysx.analyses import alloc_flushes, data_loader, event_windows, stopwatch
from nsysx.answer import bars, clock_bars
from nsysx.answer.answer_bounds import OUTLYING_READING_TIMES
from nsysx.catalogue import Paint
from nsysx.findings.nsx107_inflated_event import AT_LAUNCH
from nsysx.model import Finding, Summary, Table
from nsysx.saving import Saving
from tests.render import factory
from tests.samples import Samples


@pytest.mark.parametrize(
    ("kernel", "copies", "launches", "parts"),
    [
        (60, 10, 0, {"kernels": 60, "copies": 10, "other": 30}),
        (60, 10, 25, {"kernels": 60, "copies": 10, AT_LAUNCH: 25, "other": 5}),
        (60, 10, 30, {"kernels": 60, "copies": 10, AT_LAUNCH: 30}),
        (60, 10, 70, {"kernels": 60, "copies": 10, AT_LAUNCH: 30}),
        (150, 10, 9, {"kernels": 100}),
        (60, 70, 9, {"kernels": 60, "copies": 40}),
    ],
)
def test_what_is_in_a_window_is_no_longer_than_it(
    kernel: float, copies: float, launches: float, parts: dict[str, float]
) -> None:
    reading = 100.0
    bar = clock_bars._window_bar("place 1 of 3", clock_bars._ClockWindow(reading, kernel, copies, launches))
    assert {p.label: p.ns for p in bar.parts} == parts
    assert sum(p.ns for p in bar.parts) == bar.total_ns == reading


def test_without_work_in_the_shown_step_recorded_work_is_told_as_recorded() -> None:
    summary: Summary = factory.summary()
    assert summary.verdict.parts and bars._to_shown(summary) > 0
    assert bars._to_shown(replace(summary, verdict=replace(summary.verdict, parts={}))) == 1.0


def test_bars_of_readings_are_of_the_kernel_that_the_finding_is_about(recorded: Samples) -> None:
    """A program may time several kernels: here one of 2 ms stands first in the table."""
    summary = recorded.summary("custom_add")
    finding = next(f for f in summary.findings or () if f.code == "NSX115")
    assert finding.verdict == "found"
    table = summary.tables[stopwatch.KEY]
    assert table.rows
    other = {**table.rows[0], "kernel_ns": 2_000_000.0, "both_ns": None}
    several = replace(summary, tables={**summary.tables, stopwatch.KEY: replace(table, rows=(other, *table.rows))})
    assert clock_bars.pictured(several, finding, "readings") == clock_bars.pictured(summary, finding, "readings")


def test_bars_of_batches_hold_what_the_gpu_waits_for_each(recorded: Samples) -> None:
    summary = recorded.summary("masked_slow_loader")
    rows = {f"step {r['index']}": r for r in summary.typed_rows(data_loader.ROWS) if r["steady"]}
    drawn = bars._loader_bars(summary)
    assert drawn
    for bar in drawn:
        waits = {p.label: p.ns for p in bar.parts}["waiting for input data"]
        assert waits == min(rows[bar.label]["gpu_idle_ns"] or 0, bar.total_ns) > 0
        assert sum(p.ns for p in bar.parts) == bar.total_ns == rows[bar.label]["step_ns"]


def test_where_few_steps_wait_a_usual_one_and_those_that_wait_longest_are_drawn(recorded: Samples) -> None:
    """The first three of a loader that runs dry now and then do not wait, and would say the contrary of the answer."""
    summary = recorded.summary("masked_slow_loader")
    table = summary.tables[data_loader.KEY]
    steady = [r for r in table.rows or () if r["steady"]]
    waits = {steady[-1]["index"]: 90_000_000, steady[-3]["index"]: 70_000_000}
    rows = tuple(
        {**r, "gpu_idle_ns": waits.get(r["index"], 0), "step_ns": 30_000_000 + waits.get(r["index"], r["index"])}
        for r in steady
    )
    drawn = bars._loader_bars(replace(summary, tables={**summary.tables, data_loader.KEY: replace(table, rows=rows)}))
    usual = [bar for bar in drawn if bar.label not in {f"step {index}" for index in waits}]
    assert len(drawn) == 3 and len(usual) == 1 and usual[0].total_ns < 31_000_000
    numbers = [int(bar.label.removeprefix("step ")) for bar in drawn]
    assert numbers == sorted(numbers) and set(waits) < set(numbers)


def test_without_a_step_that_frees_or_one_that_does_not_no_two_are_compared(recorded: Samples) -> None:
    freeing, even = recorded.summary("varlen"), recorded.summary("tiny_stack")
    assert [bar.label for bar in bars._flush_bars(freeing)][:1] == ["a usual step"]
    assert bars._flush_bars(even) == ()
    flushes = freeing.tables[alloc_flushes.KEY]
    steps = {row["step"] for row in flushes.rows or ()}
    alone = replace(freeing.steps, rows=tuple(r for r in freeing.steps.rows if r["index"] in steps))
    assert bars._flush_bars(replace(freeing, steps=alone)) == ()


@pytest.mark.parametrize(("total", "overlaps"), [(80.7, False), (80.9, True), (60, False)])
def test_work_that_is_longer_than_the_gpu_works_overlaps(total: float, overlaps: bool) -> None:
    """What the GPU does of a step, small parts included, against the sum of its kernels: 1 % more is the same."""
    parts = (
        BarPart("compute", 70, Paint.COMPUTE), BarPart("other", 10, Paint.OTHER, True), BarPart("waiting", 20, Paint.OUTSIDE, True),
    )  # fmt: skip
    drawn = bars._overlapping(Bar("by kernel", total, ()), Bar("GPU 0", 100, parts))
    assert drawn is not None and drawn.label == "by kernel" + ", overlapping" * overlaps
    assert bars._overlapping(None, Bar("GPU 0", 100, parts)) is None


@pytest.mark.parametrize(
    ("sites", "first", "labels"),
    [
        ((0, 0, 0), 100 * OUTLYING_READING_TIMES, ["window 1", "window 2", "window 3"]),
        ((0, 0, 0), 100 * OUTLYING_READING_TIMES + 1, ["window 2", "window 3"]),
        ((0, 1), 100, ["window 1, pair 1", "window 2, pair 2"]),
    ],
)
def test_windows_are_numbered_from_one_and_one_that_reads_far_more_is_left_out(
    sites: tuple[int, ...], first: int, labels: list[str]
) -> None:
    rows = [
        {
            "start_ns": 10 * i,
            "reading_ns": 100 if i else first,
            "site": site,
            "kernel_ns": 60,
            "copy_ns": 0,
            "memset_ns": 0,
            "launch_wait_ns": 0,
        }
        for i, site in enumerate(sites)
    ]
    summary: Summary = factory.summary()
    table = Table(event_windows.KEY, "", (), tuple(reversed(rows)))
    drawn = clock_bars._window_bars(replace(summary, tables={**summary.tables, event_windows.KEY: table}))
    assert drawn is not None and drawn.first is labels[0].startswith("window 1")
    assert [bar.label for bar in drawn.bars] == labels


def step_row(index: int, gpu_ns: int, idle_ns: int, *, steady: bool = True) -> dict[str, object]:
    return {"index": index, "gpu_ns": gpu_ns, "gpu_idle_ns": idle_ns, "steady": steady}


def test_the_step_that_loses_most_to_the_allocator_stands_beside_the_median_of_the_others() -> None:
    """Of what it lost no more is drawn than it idles; a step that is not steady and a flush between steps are neither."""
    rows = (step_row(0, 900, 800, steady=False), step_row(1, 100, 10), step_row(2, 130, 40), step_row(3, 300, 90),
            step_row(4, 110, 20), step_row(5, 120, 30), step_row(6, 400, 60))  # fmt: skip
    flushes = [{"step": at, "idle_caused_ns": ns} for at, ns in ((3, 50), (3, 30), (6, 70), (0, 700), (None, 600))]
    summary: Summary = factory.summary()
    table = Table(alloc_flushes.KEY, "", (), tuple(flushes))
    summary = replace(
        summary,
        steps=replace(summary.steps, rows=rows),
        tables={**summary.tables, alloc_flushes.KEY: table},
    )
    drawn = bars._flush_bars(summary)
    assert [(bar.label, bar.total_ns) for bar in drawn] == [("a usual step", 120), ("step 3", 300)]
    assert [{p.label: p.ns for p in bar.parts} for bar in drawn] == [
        {"busy": 90, "other idle time": 30},
        {"busy": 210, "allocator calls": 80, "other idle time": 10},
    ]


@pytest.mark.parametrize(
    ("of_module", "label"), [(10_000, "Loss"), (10_099, "Loss"), (10_102, "masks in Loss"), (0, "masks in Loss")]
)
def test_mask_work_is_the_module_where_that_does_nothing_else(
    monkeypatch: pytest.MonkeyPatch, of_module: int, label: str
) -> None:
    """Within 1 % it is all of its work. The parts sum to what the masks cost, with a rest that no operation is known of."""
    monkeypatch.setattr(bars, "_to_shown", lambda _: 2.0)
    monkeypatch.setattr(bars, "module_sums", lambda _: [("Loss", of_module, 0)] if of_module else [])
    evidence = [
        {"from": "sort", "total_ns": 3_000},
        {"from": "nonzero", "total_ns": 5_000},
        {"from": None, "total_ns": 9},
    ]
    finding = Finding(
        "NSX120", "", "found", "", "", {"module": "Loss"}, 10_000, Saving(1), evidence=tuple(evidence)
    )  # fmt: skip
    drawn = bars._opened(factory.summary(), finding)
    assert drawn is not None and (drawn.label, drawn.total_ns) == (label, 20_000)
    assert {p.label: p.ns for p in drawn.parts} == {"nonzero": 10_000, "sort": 6_000, "the rest of it": 4_000}
    assert bars._opened(factory.summary(), replace(finding, cost_ns_per_step=3_000)) is None  # more than they cost
    assert bars._opened(factory.summary(), replace(finding, where={})) is None


def test_bars_of_windows_and_the_sentence_tell_one_share_of_waiting_for_launches(recorded: Samples) -> None:
    """Start latency and work of other streams are parts of their own: 41 % stood beside 42 % of "waits"."""
    summary = recorded.summary("event_linear")
    said = next(f for f in summary.findings or () if f.code == "NSX107" and f.verdict == "found")
    drawn = clock_bars.pictured(summary, said, "windows")
    assert drawn is not None
    part = next(p for p in drawn.bars[0].parts if p.label == AT_LAUNCH)
    assert f"{units.share(part.ns, drawn.bars[0].total_ns)} {AT_LAUNCH}" in said.because


@pytest.mark.parametrize("count", [8, 64])
def test_the_title_says_that_not_every_rank_has_a_bar(count: int) -> None:
    full = factory.summary()
    job = replace(full, tables={**full.tables, "ranks": factory.ranks(count, 5)}, unprofiled=None)
    picture = bars.pictured(job, None)
    assert len([bar for bar in picture.bars if bar.label.startswith("rank ")]) == 8
    assert ("(8 of 64)" in picture.title) is (count == 64)

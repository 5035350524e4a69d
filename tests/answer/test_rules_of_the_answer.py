"""Each condition and bound of the answer where it alone decides: on either side of it, and where what it reads is not known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nsysx.advice import Alternative, Answer, Bar, BarPart, Certainty, Condition, Sure, Tried
from nsysx.analyses import data_loader, kernel_families, kernel_limits, kernels, modules, roofline, stopwatch
from nsysx.analyses.helpers import limits_of_work
from nsysx.answer import (
    bars,
    certainty,
    change_savings,
    clock_bars,
    factors,
    first_action,
    measured,
    near_limits,
    others,
    remarks,
    unnamed,
)
from nsysx.catalogue import Paint, StepLimit
from nsysx.model import Check, Finding, Row, Summary, Table
from nsysx.saving import Saving
from tests.answer.test_factors import job
from tests.render import factory

MS = 1_000_000


def found(code: str, ms: float | None = 4, **changes: Any) -> Finding:
    """Return a finding of a rule that saves so many ms; ``changes`` are fields of it or of its saving."""
    of_saving = {k: changes.pop(k) for k in list(changes) if k in Saving.__dataclass_fields__}
    saving = Saving(None if ms is None else round(ms * MS), **{"error_ns": 0, **of_saving})
    return replace(Finding(code, "", "found", code, "", saving=saving, paste="change()"), **changes)


def of_20_ms(code: StepLimit, *findings: Finding, **changes: Any) -> Summary:
    """Return a Summary of a step of 20 ms that is limited by this."""
    summary: Summary = factory.summary()
    verdict = replace(summary.verdict, code=code.value, step_ns=20 * MS, parts={}, late_rank=None)
    given = {"quality": (), "replay": {"trusted": True}, **changes}
    return replace(summary, verdict=verdict, findings=findings, **given)


def with_rows(summary: Summary, key: str, rows: list[Any]) -> Summary:
    return replace(summary, tables={**summary.tables, key: Table(key, "", (), tuple(rows), scope=factory.SCOPE)})


# --- bars -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "classes", "label"),
    [
        ("blocks.*", ["Block"], "blocks.*"),
        ("blocks.1", ["Block", "Block"], "blocks.1"),
        ("blocks.*", ["Block", "Block"], "2 x Block (blocks.*)"),
        ("blocks.*", ["Block", "Other"], "2 x blocks.*"),
        ("blocks.*", ["", ""], "2 x blocks.*"),
        ("blocks.*", [None, None, None], "3 x blocks.*"),
        ("blocks.*.attn", ["Attn", "Attn"], "2 x blocks.*.attn"),
        ("*", ["Linear", "Linear"], "2 x Linear"),
        ("*", ["Linear", "Conv2d"], "2 x module"),
    ],
)
def test_repeated_modules_are_one(pattern: str, classes: list[str | None], label: str) -> None:
    assert bars.folded_label(pattern, [{"cls": each} for each in classes]) == label


def part(label: str, ns: float, *, idle: bool = False) -> BarPart:
    return BarPart(label, ns, Paint.COMPUTE, idle)


@pytest.mark.parametrize(
    ("parts", "labels", "idle"),
    [
        ([part("a", 960), part("b", 20), part("c", 19), part("d", 1)], ["a", "b", "other"], False),
        ([part("a", 960), part("c", 19, idle=True), part("d", 1, idle=True)], ["a", "other"], True),
        ([part("a", 960), part("c", 19, idle=True), part("d", 1)], ["a", "other"], False),
        ([part("a", 960), part("c", 19)], ["a", "c"], False),
        ([part("a", 960), part("none", 0), part("less", -5), part("c", 19)], ["a", "c"], False),
    ],
)
def test_parts_below_a_fiftieth_are_one_where_there_are_two(
    parts: list[BarPart], labels: list[str], idle: bool
) -> None:
    drawn = bars.merged(parts, 1000)
    assert [p.label for p in drawn] == labels and drawn[-1].idle == idle
    assert sum(p.ns for p in drawn) == sum(p.ns for p in parts if p.ns > 0)
    assert bars.merged([part("none", 0)], 0) == ()


@pytest.mark.parametrize(
    ("sums", "labels"),
    [
        ([("a", 60), ("other", 30), ("b", 9), ("c", 1)], ["a", "b", "rest"]),
        ([("b", 40), ("a", 60)], ["a", "b"]),
        ([("a", 60), ("b", 39.6), ("c", 0.4)], ["a", "b"]),
        ([("a", 50), ("other", 50)], ["a", "rest"]),
        ([("a", 49), ("other", 51)], None),
        ([("other", 100)], None),
        ([], None),
        ([(name, 10 + i) for i, name in enumerate("abcdefg")], ["g", "f", "e", "d", "c", "rest"]),
    ],
)
def test_a_bar_names_what_is_large_and_says_nothing_where_most_has_no_name(
    sums: list[tuple[str, float]], labels: list[str] | None
) -> None:
    drawn = bars._bar_of_largest(sums, "by kind", "rest")
    assert (None if drawn is None else [p.label for p in drawn.parts]) == labels
    if drawn is not None:
        assert sum(p.ns for p in drawn.parts) == pytest.approx(drawn.total_ns, abs=0.5)
        assert drawn.total_ns == sum(ns for _, ns in sums)


def rank_row(rank: int, wait: int | None, **changes: Any) -> Row:
    busy = {"compute_ns": 50, "copy_ns": 5, "memset_ns": 1, "comm_ns": 30, "idle_ns": 14, "window_ns": 100}
    return {"rank": rank, **busy, "exposed_wait_ns": wait, "exposed_transfer_ns": 15, **changes}


def test_the_bar_of_a_rank_sums_to_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Communication is transfers, but for what the rank waits: of 30 ns 10; what is not known of both is a transfer."""
    monkeypatch.setattr(bars, "each", lambda *_: float)
    rows = [rank_row(0, 10), rank_row(1, None, exposed_transfer_ns=None), rank_row(2, 30)]
    summary = with_rows(factory.summary(), "ranks", rows)
    (late,) = (r for r in summary.tables["ranks"].rows or () if r["rank"] == 2)
    first, second, third = bars._rank_bars(summary, late)  # type: ignore[arg-type]
    assert {p.label: p.ns for p in first.parts} == {
        "compute": 50, "copies": 6, "transfers": 20, "waiting for rank 2": 10, "idle": 14,
    }  # fmt: skip
    assert [p.label for p in first.parts if p.idle] == ["waiting for rank 2", "idle"]
    assert {p.label: p.ns for p in second.parts} == {"compute": 50, "copies": 6, "transfers": 30, "idle": 14}
    assert {p.label: p.ns for p in third.parts}["waiting for others"] == 30
    assert [bar.total_ns for bar in (first, second, third)] == [100, 100, 100]


def test_a_rank_that_communicates_on_the_host_is_not_drawn_as_idle_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars, "each", lambda *_: float)
    rows = [
        rank_row(0, 10, idle_causes={"host_comm": 9, "host_code": 5}),
        rank_row(1, 10, idle_causes={"host_code": 14}),
    ]
    first, second = bars._rank_bars(with_rows(factory.summary(), "ranks", rows), None)
    assert [(p.label, p.ns) for p in first.parts if p.idle] == [
        ("waiting for others", 10), ("communication on the host", 9), ("idle", 5),
    ]  # fmt: skip
    assert [(p.label, p.ns) for p in second.parts if p.idle] == [("waiting for others", 10), ("idle", 14)]
    assert sum(p.ns for p in first.parts) == sum(p.ns for p in second.parts) == 100


@pytest.mark.parametrize(
    ("late", "ranks"), [(None, [0, 1, 2, 3, 6, 7, 8, 9]), (9, [0, 1, 2, 3, 4, 5, 6, 9]), (0, [1, 2, 3, 4, 5, 6, 7, 0])]
)
def test_of_many_ranks_the_late_one_or_those_that_differ_most_are_drawn(
    monkeypatch: pytest.MonkeyPatch, late: int | None, ranks: list[int]
) -> None:
    monkeypatch.setattr(bars, "each", lambda *_: float)
    rows: list[Any] = [rank_row(rank, None if rank == 0 else rank) for rank in range(10)]
    drawn = bars._rank_bars(with_rows(factory.summary(), "ranks", rows), None if late is None else rows[late])
    assert [bar.label for bar in drawn] == [f"rank {rank}" for rank in ranks]
    eight = with_rows(factory.summary(), "ranks", rows[:8])
    assert len(bars._rank_bars(eight, None)) == 8


def loader_row(index: int, idle: int | None, step: int | None = 100, *, steady: bool = True) -> Row:
    return {"index": index, "gpu_idle_ns": idle, "step_ns": step, "steady": steady}


def test_steady_steps_are_drawn_with_their_wait_for_a_batch() -> None:
    """The first three where all of these wait, else a usual one and the two that wait longest."""
    rows = [loader_row(0, 90, steady=False), loader_row(1, 30), loader_row(2, None), loader_row(3, 10, None), loader_row(4, 130),
            loader_row(5, 20), loader_row(6, None), loader_row(7, None)]  # fmt: skip
    drawn = bars._loader_bars(with_rows(factory.summary(), data_loader.KEY, rows))
    assert [bar.label for bar in drawn] == ["step 1", "step 4", "step 7"]
    assert [{p.label: p.ns for p in bar.parts} for bar in drawn] == [
        {"waiting for input data": 30, "the rest": 70}, {"waiting for input data": 100}, {"the rest": 100},
    ]  # fmt: skip
    waiting = bars._loader_bars(with_rows(factory.summary(), data_loader.KEY, [rows[1], rows[5], rows[4], rows[1]]))
    assert [bar.label for bar in waiting] == ["step 1", "step 5", "step 4"]


@pytest.mark.parametrize(("known_ns", "label"), [(50, "by kind of work"), (49, "by kernel")])
def test_work_of_no_known_kind_is_drawn_by_kernel(monkeypatch: pytest.MonkeyPatch, known_ns: int, label: str) -> None:
    monkeypatch.setattr(bars, "_to_shown", lambda _: 1.0)
    monkeypatch.setattr(bars, "each", lambda *_: float)
    families = [{"family": "gemm", "total_ns": known_ns}, {"family": "other", "total_ns": 100 - known_ns}]
    kernels = [
        {"name": "mine", "total_ns": 60},
        {"name": "mine", "total_ns": 20},
        {"name": f"(3 {kernel_limits.REST})", "total_ns": 20},
    ]
    summary = with_rows(with_rows(factory.summary(), kernel_families.KEY, families), kernel_limits.KEY, kernels)
    drawn = bars._family_bar(summary)
    assert drawn is not None and drawn.label == label
    if label == "by kernel":
        assert [(p.label, p.ns) for p in drawn.parts] == [
            ("mine", 80),
            ("other kernels", 20),
        ] and drawn.names == "kernel"
    table = summary.tables[kernel_limits.KEY]
    for scope in (None, factory.WHOLE):  # a kernel's part of a step is not known there
        assert (
            bars._kernel_bar(
                replace(summary, tables={**summary.tables, kernel_limits.KEY: replace(table, scope=scope)})
            )
            is None
        )


def test_a_bar_by_module_is_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars, "_to_shown", lambda _: 2.0)
    monkeypatch.setattr(bars, "each", lambda *_: float)
    rows = [
        {"path": "a", "cls": "A", "self_gpu_ns": 30},
        {"path": None, "cls": "", "self_gpu_ns": 10},
        {"path": "b", "self_gpu_ns": 0},
    ]
    drawn = bars._module_bar(with_rows(factory.summary(), modules.KEY, rows))
    assert drawn is not None and [(p.label, p.ns) for p in drawn.parts] == [("a", 60), (bars.NO_MODULE, 20)]
    assert bars._module_bar(with_rows(factory.summary(), modules.KEY, rows[:1])) is None


@pytest.mark.parametrize(("shown_ns", "paused"), [(679 * MS, False), (678 * MS, True), (None, False)])
def test_pauses_are_named_where_the_window_is_shorter_by_a_fiftieth(shown_ns: int | None, paused: bool) -> None:
    summary: Summary = factory.summary()
    summary = replace(summary, verdict=replace(summary.verdict, step_ns=shown_ns))
    assert ("without long pauses" in bars.whole_words(summary)) == paused
    assert "pauses" not in bars.whole_words(with_rows(summary, "gpu_ledger", []))


def test_without_gpu_work_or_a_step_there_is_no_bar() -> None:
    summary: Summary = factory.summary()
    assert bars.step_bar(summary) is not None
    assert bars.step_bar(with_rows(summary, "gpu_ledger", [])) is None
    assert bars.step_bar(replace(summary, verdict=replace(summary.verdict, step_ns=None))) is None
    empty = replace(summary.verdict, parts={"work": 5, "copy": 0, "elsewhere": 9})
    assert [p.ns for p in bars.step_parts(replace(summary, verdict=empty))] == [5]


@pytest.mark.parametrize(
    ("line", "label"), [({}, "waiting for kernel launches"), ({"file": "a.py", "line": 3}, "waiting for host code")]
)
def test_what_a_gpu_waits_for_at_a_line_is_not_called_launches(line: dict[str, object], label: str) -> None:
    summary: Summary = factory.summary()
    held = replace(summary.verdict, parts={"host": 5, "launch": 2}, idle_at=line)
    assert [(p.label, p.ns) for p in bars.step_parts(replace(summary, verdict=held))] == [(label, 7)]


@pytest.mark.parametrize(("custom", "kernel"), [((True, False), 10), ((False, True), 20), ((False, False), 10)])
def test_readings_are_of_a_kernel_of_the_programs_own_where_there_is_one(
    custom: tuple[bool, bool], kernel: int
) -> None:
    rows = [
        {"kernel_ns": ns, "both_ns": ns + 5, "before_ns": None, "after_ns": ns + 3, "none_ns": 1, "custom": each}
        for ns, each in zip((10, 20), custom, strict=True)
    ]
    unread = {**rows[0], "kernel_ns": 99, "both_ns": None, "after_ns": None, "custom": True}
    drawn = clock_bars._reading_bars(with_rows(factory.summary(), stopwatch.KEY, [unread, *rows]), None)
    assert [bar.total_ns for bar in drawn] == [kernel, kernel + 5, kernel + 3, 1]
    assert clock_bars._reading_bars(with_rows(factory.summary(), stopwatch.KEY, [unread]), None) == ()


# --- certainty ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("letters", "end"), [(150, "a"), (151, "…")])
def test_a_long_check_is_quoted_by_its_beginning(letters: int, end: str) -> None:
    quoted = certainty._quoted("a" * letters)
    assert len(quoted) == 150 and quoted.endswith(end)


def limited(idle: list[int], code: StepLimit = StepLimit.LAUNCH, gpu_ns: int = 100, **changes: Any) -> Summary:
    rows = [{"steady": True, "gpu_ns": gpu_ns, "gpu_idle_ns": ns, "gpu_comm_ns": ns} for ns in idle]
    rows += [{"steady": False, "gpu_ns": 100, "gpu_idle_ns": 99}, {"steady": True, "gpu_ns": 0, "gpu_idle_ns": 99}]
    summary = of_20_ms(code, **changes)
    return replace(summary, steps=replace(summary.steps, rows=tuple(rows)), unprofiled=None)


WARNED = Check("clocks", "warn", "Clocks fell.", doubt="cause")


@pytest.mark.parametrize(
    ("summary", "level", "reason"),
    [
        (limited([10, 20, 30]), "certain", "GPU idle 10 % to 30 % in all 3 steps"),
        (limited([20, 20, 20]), "certain", "GPU idle 20 % in all 3 steps"),
        (limited([10, 20]), "likely", "GPU idle 10 % to 20 %, in only 2 steady steps."),
        (limited([10]), "likely", "GPU idle 10 %, in only 1 steady step."),
        (limited([]), "unknown", "No GPU work lies in steady steps."),
        (limited([10, 20, 30], StepLimit.UNKNOWN), "unknown", "The capture lacks what it takes"),
        (limited([10, 20, 30], StepLimit.COMM), "likely", "Exposed communication 10 % to 30 % in all 3 steps. One report cannot"),
        (limited([10, 20, 30], quality=(WARNED,)), "likely", "But: Clocks fell."),
        (limited([10, 20, 30], quality=(replace(WARNED, short="clocks"),)), "likely", "But: clocks"),
        (limited([10, 20, 30], quality=(replace(WARNED, status="ok"),)), "certain", "in all 3 steps"),
        (limited([10, 20, 30], quality=(replace(WARNED, doubt="findings"),)), "certain", "in all 3 steps"),
        (limited([10, 20, 30], quality=(replace(WARNED, doubt="everything"),)), "unknown", "The capture lacks"),
    ],
)  # fmt: skip
def test_how_sure_the_cause_is(summary: Summary, level: str, reason: str) -> None:
    sure = certainty._cause(summary, None)
    assert sure.level == level and reason in sure.reason
    assert ("But:" in sure.reason) == ("But:" in reason)


@pytest.mark.parametrize(("longest", "uneven"), [(299, False), (302, True)])
def test_steps_of_very_different_lengths_make_the_cause_less_sure(longest: int, uneven: bool) -> None:
    rows = tuple(
        {"steady": True, "gpu_ns": ns, "gpu_idle_ns": ns // 2}
        for ns in (1, 100, 100, 100, 100, longest, longest, 9_000)
    )
    summary = limited([])
    sure = certainty._cause(replace(summary, steps=replace(summary.steps, rows=rows[1:-1])), None)
    assert ("lengths and perhaps work differ" in sure.reason) == uneven
    assert sure.level == ("likely" if uneven else "certain")


def test_without_a_size_the_answer_is_as_sure_as_its_cause() -> None:
    summary = limited([10, 20, 30])
    assert [s.about for s in certainty.certainty_of_advice(summary, found("NSX102", None)).parts] == ["What limits it"]
    whole = certainty.certainty_of_advice(summary, found("NSX102"))
    assert [s.about for s in whole.parts] == ["What limits it", "How much"] and whole.level == "unknown"


def test_a_striking_line_whose_cause_is_not_known_has_lost_time_alone() -> None:
    parts = certainty.certainty_of_advice(limited([10, 20, 30]), found("NSX136")).parts
    assert [s.about for s in parts] == ["Where time is lost", "What this change wins"]


@pytest.mark.parametrize(
    ("remedy", "generic"),
    [
        ("compile", True),
        ("batched-operation", True),
        ("out-of-the-loop", True),
        ("autocast-once", False),
        ("frozen", False),
    ],
)
def test_of_a_change_for_whatever_stands_there_only_the_lost_time_is_certain(remedy: str, generic: bool) -> None:
    """A program that loses time for certain may win it by another change than by fewer launches."""
    advised = found("NSX102", remedies=(Alternative(remedy, "Do this"),))
    parts = certainty.certainty_of_advice(limited([10, 20, 30]), advised).parts
    halves = ["Where time is lost", "What this change wins"] if generic else ["What limits it", "How much"]
    assert [s.about for s in parts] == halves


@pytest.mark.parametrize(
    ("measured_steps", "high_ms", "slower"), [(20, 20.7, True), (20, 20.5, False), (0, 20.7, False)]
)
def test_a_host_that_was_slower_without_the_profiler_is_told(measured_steps: int, high_ms: float, slower: bool) -> None:
    summary = job(20, high_ms)
    assert summary.unprofiled is not None
    summary = replace(summary, unprofiled=replace(summary.unprofiled, measured_steps=measured_steps))
    summary = replace(summary, verdict=replace(summary.verdict, recorded_ns=None))
    if not summary.step.marked:
        assert ("the host was slower then" in certainty._size(summary, found("NSX102")).reason) == slower


# --- what leads -----------------------------------------------------------------------------------------------------------


def led(code: StepLimit, *findings: Finding, **changes: Any) -> str:
    first = first_action.first(of_20_ms(code, *findings, **changes))
    return "" if first is None else first.code


def loop(between_ms: float) -> Finding:
    evidence = ({"between_ns": round(between_ms * MS)}, {"between_ns": None}, {})
    return found("NSX130", None, evidence=evidence)


@pytest.mark.parametrize(
    ("between_ms", "others", "first"),
    [
        (3, [found("NSX105", 2)], "NSX130"),
        (2, [found("NSX105", 2)], "NSX105"),
        (1, [found("NSX105", 2)], "NSX105"),
        (1, [], "NSX130"),
        (0, [], ""),
        (9, [found("NSX123", 3)], "NSX123"),  # a line that costs 15 % of each step runs between steps, too
        (9, [found("NSX123", 2.9)], "NSX130"),
        (9, [found("NSX105", 3)], "NSX130"),
    ],
)
def test_what_runs_between_steps_leads_where_it_takes_longer(
    between_ms: float, others: list[Finding], first: str
) -> None:
    assert first_action.between_ns(loop(between_ms)) == between_ms * MS
    assert led(StepLimit.LAUNCH, *others, loop(between_ms)) == first


@pytest.mark.parametrize(
    ("replay", "costs_ms", "first"),
    [
        (None, [("NSX101", 6), ("NSX101", 5.9)], "NSX101"),
        (None, [("NSX101", 5.9)], ""),
        (None, [("NSX105", 19)], ""),  # not about the cause
        (None, [("NSX101", None)], ""),
        ({"trusted": False}, [("NSX101", 6)], "NSX101"),
        ({"trusted": True}, [("NSX101", 6)], ""),  # it could be priced, and was not
        ({}, [("NSX101", 6)], ""),
    ],
)
def test_where_nothing_can_be_priced_the_costliest_finding_about_the_cause_leads(
    replay: Row | None, costs_ms: list[tuple[str, float | None]], first: str
) -> None:
    findings = [found(code, None, cost_ns_per_step=None if ms is None else round(ms * MS)) for code, ms in costs_ms]
    assert led(StepLimit.SYNC, *findings, replay=replay) == first
    dearest = first_action._unpriced(of_20_ms(StepLimit.SYNC, replay=None), findings, 20 * MS)
    assert dearest is (findings[0] if costs_ms[0] == ("NSX101", 6) else None)


@pytest.mark.parametrize(
    ("leads", "ms", "certain"), [(True, None, True), (True, 1, True), (True, 0.9, False), (False, None, False)]
)
def test_a_setting_that_gives_nothing_comes_first(leads: bool, ms: float | None, certain: bool) -> None:
    setting = found("NSX127", ms, evidence=({"leads": leads},))
    assert first_action._certain(setting, 20 * MS) == certain
    assert (led(StepLimit.GPU, found("NSX116", 9), setting) == "NSX127") == certain


@pytest.mark.parametrize(
    ("oversight", "ms", "layout_at", "first"),
    [
        (True, 3, {}, "NSX127"),
        (True, 0.9, {}, "NSX117"),  # too little to lead
        (True, 1.9, {}, "NSX117"),  # the layout promises more than three times as much
        (False, 3, {}, "NSX117"),
        (True, 3, {"file": "net.py", "line": 7}, "NSX117"),  # a line's own layout is a cause, too
    ],
)
def test_what_nobody_meant_goes_before_a_change_of_the_whole_network(
    oversight: bool, ms: float, layout_at: Row, first: str
) -> None:
    setting = found("NSX127", ms, evidence=({"leads": False, "oversight": oversight},))
    assert led(StepLimit.GPU, found("NSX117", 6, where=layout_at), setting) == first


@pytest.mark.parametrize(
    ("oversight", "line", "bound", "overlaps", "first"),
    [
        (True, 7, True, (), "NSX127"),
        (True, 8, True, (), "NSX110"),
        (True, 8, True, (1,), "NSX127"),  # of the same messages, which another line sends
        (True, 8, False, (1,), "NSX110"),  # what that change saves is known
        (False, 7, True, (), "NSX110"),
        (False, 8, True, (1,), "NSX110"),
    ],
)
def test_what_nobody_meant_goes_before_what_is_exposed_at_its_line(
    oversight: bool, line: int, bound: bool, overlaps: tuple[int, ...], first: str
) -> None:
    evidence = ({"leads": False, "oversight": oversight},)
    setting = found("NSX127", 3, evidence=evidence, bound=True, where={"file": "net.py", "line": line})
    exposed = found("NSX110", 6, bound=bound, where={"file": "net.py", "line": 7}, overlaps=overlaps)
    assert led(StepLimit.COMM, exposed, setting) == first


@pytest.mark.parametrize(
    ("oversight", "ms", "bound", "remedy", "first"),
    [
        (True, 2.1, False, "compile", "NSX127"),
        (True, 2.1, False, "replicated", "NSX127"),
        (True, 2.1, False, "data-parallel", "NSX127"),
        (True, 1.9, False, "replicated", "NSX110"),  # less than a tenth of the step
        (True, 2.1, True, "replicated", "NSX110"),  # no more is known of it
        (True, 2.1, False, "even-stages", "NSX110"),  # a change of what was found
    ],
)
def test_what_nobody_meant_goes_before_the_most_that_another_whole_program_may_save(
    oversight: bool, ms: float, bound: bool, remedy: str, first: str
) -> None:
    evidence = ({"leads": False, "oversight": oversight},)
    setting = found("NSX127", ms, evidence=evidence, bound=bound, where={"file": "net.py", "line": 7})
    exposed = found("NSX110", 14, bound=True, remedies=(Alternative(remedy, "", ""),))
    assert led(StepLimit.COMM, exposed, setting) == first


@pytest.mark.parametrize(
    ("oversight", "remedy", "first"),
    [
        (True, "compile-function", "NSX127"),
        (True, "sums-by-product", "NSX131"),  # a change of a line, whose saving is known
        (False, "compile-function", "NSX131"),
    ],
)
@pytest.mark.parametrize("bound", [True, False])
def test_what_nobody_meant_goes_before_what_a_compiler_makes_of_lines(
    bound: bool, oversight: bool, remedy: str, first: str
) -> None:
    evidence = ({"leads": False, "oversight": oversight},)
    there = {"file": "md.py", "line": 107}
    remedies = (Alternative("float32", "", ""),)
    of_saving = {"bound": True} if bound else {"error_ns": 2 * MS}  # they cannot be told apart
    setting = found("NSX127", 6, evidence=evidence, where=there, remedies=remedies, **of_saving)
    lines = found("NSX131", 5, remedies=(Alternative(remedy, "", ""),))
    assert led(StepLimit.GPU, lines, setting) == first


@pytest.mark.parametrize(
    ("limit", "code", "cost_ms", "ms", "replay", "alone"),
    [
        (StepLimit.LAUNCH, "NSX102", 10, None, {"trusted": True}, True),
        (StepLimit.LAUNCH, "NSX102", 10, None, {}, True),
        (StepLimit.LAUNCH, "NSX102", 9.9, None, {}, False),
        (StepLimit.LAUNCH, "NSX102", None, None, {}, False),
        (StepLimit.LAUNCH, "NSX102", 10, 1, {}, False),  # it is priced
        (StepLimit.LAUNCH, "NSX113", 10, None, {}, False),  # a part of the program
        (StepLimit.SYNC, "NSX102", 10, None, {}, False),
        (StepLimit.LAUNCH, "NSX112", 10, None, {}, False),
        (StepLimit.LAUNCH, "NSX102", 10, None, {"trusted": False}, False),
        (StepLimit.LAUNCH, "NSX102", 10, None, None, False),
    ],
)
def test_launches_that_no_replay_can_price_lead_where_they_take_half_of_the_step(
    limit: StepLimit, code: str, cost_ms: float | None, ms: float | None, replay: Row | None, alone: bool
) -> None:
    finding = found(code, ms, cost_ns_per_step=None if cost_ms is None else round(cost_ms * MS))
    summary = of_20_ms(limit, finding, replay=replay)
    assert first_action._of_the_cause_alone(summary, finding, 20 * MS) == alone


VIOLATED, HOLDS = Condition("a", "violated", "seen"), Condition("b", "holds", "")


@pytest.mark.parametrize(
    ("conditions", "mended_ms", "advised"),
    [
        ((HOLDS,), None, True),
        ((VIOLATED,), None, False),
        ((VIOLATED,), 3, False),
        ((replace(VIOLATED, mend="mend it"),), 3, True),
        ((replace(VIOLATED, mend="mend it"),), None, False),
        ((replace(VIOLATED, mend="mend it"), VIOLATED), 3, False),
    ],
)
def test_a_change_whose_need_is_not_met_is_advised_where_that_can_be_mended(
    conditions: tuple[Condition, ...], mended_ms: int | None, advised: bool
) -> None:
    finding = found("NSX116", 4, conditions=conditions, mended=None if mended_ms is None else Saving(mended_ms * MS))
    assert first_action._advisable(of_20_ms(StepLimit.GPU, finding), finding) == advised


def test_what_was_tried_in_vain_is_not_advised() -> None:
    gone, left = (Alternative(name, name, refuted=name == "gone") for name in ("gone", "left"))
    for remedies, advised in (((gone,), False), ((gone, left), True), ((), True)):
        finding = found("NSX116", 4, remedies=remedies)
        assert first_action._advisable(of_20_ms(StepLimit.GPU, finding), finding) == advised


@pytest.mark.parametrize(
    ("placed_ms", "first"), [(3, "NSX116"), (2.9, "NSX112"), (5, "NSX116")],
)  # fmt: skip
def test_work_of_a_place_goes_before_a_compiler_that_promises_less_than_twice_as_much(
    placed_ms: float, first: str
) -> None:
    """From 15 % of the step on; where the compiler promises 10 ms, from 5 on."""
    assert led(StepLimit.GPU, found("NSX112", 5.5), found("NSX116", placed_ms)) == first
    assert led(StepLimit.GPU, found("NSX112", 10), found("NSX116", 4.9)) == "NSX112"
    assert led(StepLimit.GPU, found("NSX112", 10), found("NSX116", 5)) == "NSX116"


# --- what a change saves --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bound", "conditions", "source", "is_bound"),
    [
        (False, (), "", False),
        (True, (), "", True),
        (True, (), "time", True),
        (True, (), "replay", False),  # what is likely is known
        (False, (VIOLATED,), "replay", True),
        (False, (HOLDS,), "replay", False),
    ],
)
def test_a_saving_is_a_bound_where_nothing_likely_is_known(
    bound: bool, conditions: tuple[Condition, ...], source: str, is_bound: bool
) -> None:
    finding = found("NSX116", 4, bound=bound, conditions=conditions, source=source)
    assert change_savings.is_bound(of_20_ms(StepLimit.GPU, finding), finding) == is_bound
    assert not change_savings.is_bound(of_20_ms(StepLimit.GPU), None)


@pytest.mark.parametrize(
    ("ours", "theirs", "part"),
    [("a", "a,b", True), ("a,b", "a,b", True), ("a,c", "a,b", False), ("a", "", False), ("", "a", False)],
)
def test_a_change_is_a_part_of_another_by_its_names(ours: str, theirs: str, part: bool) -> None:
    one, other = (found("NSX113", remedies=(Alternative(n, n),) if n else ()) for n in (ours, theirs))
    assert change_savings._part_of(one, other) == part


def test_of_exact_changes_the_two_largest_come_before_one_for_the_whole() -> None:
    graph = found("NSX102", 15, bound=True)
    lines = [found("NSX113", ms) for ms in (3, 2, 1)]
    told = change_savings.changes_before(of_20_ms(StepLimit.LAUNCH, graph, *lines), graph)
    assert [f.saving.likely_ns for f in told] == [3 * MS, 2 * MS]
    small, unsure = found("NSX113", 0.1), found("NSX101", 2, error_ns=2 * MS, paste="")
    assert change_savings.changes_before(of_20_ms(StepLimit.LAUNCH, graph, small, unsure), graph) == []
    in_model = found("NSX101", 2, where={"phase": "forward"}, paste="")
    beside = found("NSX101", 2, where={"phase": "loss"}, paste="")
    assert change_savings.changes_before(of_20_ms(StepLimit.LAUNCH, graph, in_model, beside), graph) == [beside]


#: What a change that likely saves 4 of 20 ms may save less and more (ms), by what was tried.
LESS, MORE = 4 - 20 * (1 - 0.8**0.6), 20 * (1 - 0.8**1.5) - 4


@pytest.mark.parametrize(
    ("given", "margins_ms"),
    [
        ({"error_ns": MS // 2}, (LESS, MORE)),  # computed from recorded times: the larger of error and what was tried
        ({"error_ns": 2 * MS}, (2, 2)),
        ({"error_ns": MS, "source": "replay"}, (LESS + 1, MORE + 1)),
        ({"error_ns": MS, "source": "replay", "most_ns": 9 * MS}, (LESS + 1, 5.22)),  # a replay that leaves more open
        (
            {"error_ns": MS, "source": "replay", "bound": True, "most_ns": 5 * MS},
            (LESS + 1, 1.3),
        ),  # never more than the best
        ({"error_ns": MS, "bound": True}, (1, 1)),
        ({"error_ns": None, "bound": True}, None),
        ({"error_ns": None}, (LESS, MORE)),
    ],
)
def test_how_much_less_and_more_a_change_may_save(
    given: dict[str, Any], margins_ms: tuple[float, float] | None
) -> None:
    """Of 4 ms of 20, a factor of 1.25: from its power of 0.6 to that of 1.5, and of the work that is left 2 % come and go."""
    finding = found("NSX116", 4, **given)
    summary = replace(of_20_ms(StepLimit.GPU, finding), unprofiled=None)
    margins = change_savings.margins_ns(summary, finding)
    assert margins == (None if margins_ms is None else pytest.approx([ms * MS for ms in margins_ms]))
    assert change_savings.margins_ns(summary, None) is None


@pytest.mark.parametrize(("remedy", "longest_ms"), [("sharded-blocks", 21), ("compile", 20)])
def test_a_change_with_work_of_its_own_may_make_the_step_longer(remedy: str, longest_ms: int) -> None:
    finding = found("NSX110", 4, error_ns=5 * MS, remedies=(Alternative(remedy, ""),))
    summary = of_20_ms(StepLimit.COMM, finding)
    then = change_savings.after(summary, finding)
    assert (then.ns, then.high_ns) == (16 * MS, longest_ms * MS)
    times = factors.factor_bounds(summary, finding, 4 * MS, change_savings.margins_ns(summary, finding))
    assert not times or (times[0] < 1) == (longest_ms > 20)


def test_a_wait_that_goes_saves_no_work_of_the_gpu() -> None:
    """Of 20 ms the GPU works 8: of a wait of 11.5 ms no more than 12 can go."""
    summary = job()
    for bound, more in ((False, 0.5), (True, 0)):
        finding = found("NSX101", 11.5, bound=bound)
        margins = change_savings.margins_ns(replace(summary, findings=(finding,)), finding)
        assert margins is not None and margins[1] == pytest.approx(more * MS)


def test_the_step_that_the_replay_gives_is_told_beside_a_bound_that_is_another() -> None:
    """15 of 20 ms at best, 9 by the replay: 11 is told beside 5; not where the two differ by less than a tenth."""
    for likely_ms, told in ((9.0, 11 * MS), (14.6, None), (14.4, round(5.6 * MS))):
        finding = found("NSX102", likely_ms, bound=True, most_ns=15 * MS)
        summary = of_20_ms(StepLimit.LAUNCH, finding)
        then = change_savings.after(summary, finding)
        assert then.ns == 5 * MS
        assert change_savings.replayed_ns(summary, finding, then) == told
    exact = found("NSX102", 9)
    assert change_savings.replayed_ns(of_20_ms(StepLimit.LAUNCH, exact), exact, change_savings.After(5 * MS)) is None


# --- what was tried -------------------------------------------------------------------------------------------------------


def tried(then_ms: float | None, code: str = "NSX102", verdict: Any = "faster", **changes: Any) -> Tried:
    then = None if then_ms is None else round(then_ms * MS)
    low, high = (None, None) if then is None else (then - MS // 10, then + MS // 10)
    return replace(Tried("fused", verdict, 10 * MS, then, low, high, (code,), False, "", ""), **changes)


@pytest.mark.parametrize(
    ("trials", "chosen", "predicted_ms", "won"),
    [
        ([tried(6), tried(5)], None, None, 1),
        ([tried(6), tried(5, other_results=True)], None, None, 0),
        ([tried(6), tried(5, verdict="same")], None, None, 0),
        ([tried(None, verdict="faster")], None, None, None),
        ([tried(6)], "NSX102", 19, 0),
        ([tried(6)], "NSX105", 8, 0),  # what was not tried promises no more
        ([tried(6)], "NSX105", 8.1, None),
        ([tried(6)], "NSX105", None, 0),
        ([tried(6), tried(7, "NSX105")], "NSX105", 19, 0),
    ],
)
def test_what_was_measured_wins_unless_what_was_not_tried_promises_more(
    trials: list[Tried], chosen: str | None, predicted_ms: float | None, won: int | None
) -> None:
    summary = of_20_ms(StepLimit.LAUNCH, tried=tuple(trials))
    finding = None if chosen is None else found(chosen)
    predicted = None if predicted_ms is None else round(predicted_ms * MS)
    assert measured.winner(summary, finding, predicted, 20 * MS) is (None if won is None else trials[won])
    assert measured.winner(summary, finding, predicted, None) is None


@pytest.mark.parametrize(
    ("verdicts", "remedy", "gone"),
    [
        ([("a", "slower")], "a", True), ([("a", "same")], "a", True), ([("a", "cannot_tell")], "a", False),
        ([("a", "same")], "a,b", False), ([("a", "slower")], "a,b", True), ([("a", "fails"), ("a", "faster")], "a,b", False),
        ([("a", "slower"), ("a,b", "faster")], "a,b", False), ([("a,b", "slower")], "a", False), ([], "a", False),
    ],
)  # fmt: skip
def test_a_remedy_is_refuted_by_itself_or_by_a_part_that_made_it_slower(
    verdicts: list[tuple[str, str]], remedy: str, gone: bool
) -> None:
    trials = tuple(tried(5, verdict=verdict, change=change) for change, verdict in verdicts)
    assert measured.refuted(of_20_ms(StepLimit.LAUNCH, tried=trials), Alternative(remedy, remedy)) == gone


@pytest.mark.parametrize(
    ("changes", "text", "where", "how"),
    [
        (
            {"does": "fused=True in Adam", "place": "train.py:3"},
            "Use fused=True in Adam",
            {"file": "train.py", "line": "3"},
            "without the",
        ),
        (
            {"does": "compile the model", "by": "compare"},
            "Compile the model",
            {"module": "net"},
            "from a recording before",
        ),
        ({}, "Fused", {"module": "net"}, "without the profiler"),
    ],
)
def test_a_change_that_won_is_told_with_what_was_measured(changes: Any, text: str, where: Row, how: str) -> None:
    """Of a step of 20 ms as much as of the measured one of 10: 5, between 4.9 and 5.1."""
    known = Certainty("likely", "", (Sure("What limits it", "certain", ""), Sure("How much", "unknown", "")))
    answer: Answer = replace(factory.summary().answer, now_ns=20 * MS, certainty=known)
    adviser = found("NSX102", where={"module": "net"})
    told = measured.with_measured_change(answer, tried(5, **changes), adviser, 7)
    assert (told.then_ns, told.then_low_ns, told.then_high_ns) == (10 * MS, round(9.8 * MS), round(10.2 * MS))
    assert told.times == pytest.approx((20 / 10.2, 20 / 9.8)) and told.worth == "saves 10.00 ms"
    (do,) = told.do
    assert (do.text, do.code, do.finding, do.where, do.saving_ns) == (text, "NSX102", 7, where, 10 * MS)
    assert how in told.certainty.reason and "10.00 ms to 5.00 ms a step" in told.certainty.reason
    assert [s.about for s in told.certainty.parts] == ["What limits it", "How much"] and told.certainty.parts[
        1
    ].level == "certain"
    assert measured.with_measured_change(replace(answer, now_ns=None), tried(5), None, None).do == answer.do
    alone = measured.with_measured_change(answer, tried(5), None, None).do[0]
    assert (alone.code, alone.where) == ("", {})


def test_who_advises_a_change_is_the_chosen_finding_before_the_others() -> None:
    other, chosen, clear = found("NSX102"), found("NSX102"), replace(found("NSX102"), verdict="clear")
    summary = of_20_ms(StepLimit.LAUNCH, clear, other)
    assert measured.adviser(summary, tried(5), chosen) is chosen
    assert measured.adviser(summary, tried(5), found("NSX105")) is other
    assert measured.adviser(summary, tried(5, "NSX999"), chosen) is None
    assert measured.adviser(replace(summary, findings=None), tried(5), None) is None


# --- how near the limits --------------------------------------------------------------------------------------------------


def roof(by: str, name: str | None, gpu_ms: float, share: float | None, **changes: Any) -> Row:
    limit = None if share is None else round(gpu_ms * share * MS)
    could = None if limit is None else round(gpu_ms * MS) - limit
    return {"by": by, "name": name, "gpu_ns": round(gpu_ms * MS), "limit_ns": limit, "could_go_ns": could, "limit_share": share,
            "unknown_ns": 0, "counters_ns": 0, **changes}  # fmt: skip


STEP = roof(roofline.STEP, None, 1000, 0.5)
ROOFS = [
    roof(roofline.ROOF, "products", 700, 0.9),
    roof(roofline.ROOF, "memory", 49, 0.4),
    roof(roofline.ROOF, "link", 251, 0.1),
]
OPS = [
    roof(roofline.OPERATOR, "addmm", 700, 0.9),
    roof(roofline.OPERATOR, "add", 300, 0.1),
    roof(roofline.OPERATOR, None, 9, None),
]


@pytest.mark.parametrize(
    ("step", "operators", "text"),
    [
        (
            STEP,
            OPS,
            "is compute-bound (at 90 % of peak). "
            "Kernels at full rates would take 50.00 ms less than 100.0 ms of kernels that overlap, 27.00 ms of it in add.",
        ),
        ({**STEP, "unknown_ns": 50 * MS}, OPS, "27.00 ms of it in add; for 5.0 % no limit is known."),
        ({**STEP, "unknown_ns": 49 * MS}, OPS, "27.00 ms of it in add."),
        ({**STEP, "unknown_ns": 500 * MS}, OPS, "27.00 ms of it in add; for 50 % no limit is known."),
        ({**STEP, "unknown_ns": 501 * MS}, OPS, ""),
        (STEP, OPS[2:], "kernels that overlap."),
        (
            {**STEP, "limit_share": 0.8},
            OPS,
            "would take 50.00 ms less than 100.0 ms of kernels that overlap.",
        ),  # near them no operator is named
        ({**STEP, "limit_ns": None}, OPS, ""),
        ({**STEP, "could_go_ns": None}, OPS, ""),
    ],
)
def test_what_could_go_is_told_where_limits_are_known(step: Row, operators: list[Row], text: str) -> None:
    """Ten steps: each has a tenth. A roof of less than 5 % of the work, and what is no roof of the device, are not named."""
    summary = with_rows(of_20_ms(StepLimit.GPU), roofline.KEY, [step, *ROOFS, *operators])
    told = near_limits.sentence(summary)
    assert told.endswith(text) and bool(told) == bool(text)
    assert near_limits.sentence(of_20_ms(StepLimit.GPU)) == ""


@pytest.mark.parametrize(("far_ms", "told"), [(900, True), (400, False), (0, False)])
def test_work_far_from_both_roofs_by_counters_has_no_bound(far_ms: int, told: bool) -> None:
    """By sizes alone it may move more than it must: what could go is told then."""
    far = roof(roofline.NOT_KNOWN, limits_of_work.FAR_FROM_ROOFS, far_ms, None) | {"counted_share": 0.09}
    step = {**STEP, "unknown_ns": far_ms * MS, **({"limit_ns": None, "could_go_ns": None} if far_ms == 900 else {})}
    summary = with_rows(of_20_ms(StepLimit.GPU), roofline.KEY, [step, *ROOFS, *([far] if far_ms else []), *OPS])
    text = near_limits.sentence(summary)
    assert ("at full rates" not in text) == told
    assert (text.startswith("90 % of the GPU time is bound by latency") and "reach 9.0 % of" in text) == told
    assert ("no limit is known: its counters reach 9.0 %" in text) == (far_ms == 400)


@pytest.mark.parametrize(
    ("share", "unknown_ms", "near"),
    [(0.8, 0, True), (0.79, 0, False), (0.9, 199, True), (0.9, 200, False), (None, 0, False)],
)
def test_work_is_near_its_limits_at_four_fifths_of_them(share: float | None, unknown_ms: int, near: bool) -> None:
    row = {**STEP, "limit_share": share, "unknown_ns": unknown_ms * MS}
    assert near_limits.near(with_rows(of_20_ms(StepLimit.GPU), roofline.KEY, [row])) == near
    assert not near_limits.near(of_20_ms(StepLimit.GPU))


@pytest.mark.parametrize(
    ("code", "verdict", "fix", "named"),
    [("NSX128", "cannot_tell", "sample it", True), ("NSX128", "found", "sample it", False), ("NSX128", "cannot_tell", "", False),
     ("NSX116", "cannot_tell", "sample it", False)],
)  # fmt: skip
def test_a_kernel_of_which_nothing_is_known_is_named_with_what_would_tell(
    code: str, verdict: Any, fix: str, named: bool
) -> None:
    finding = replace(found(code, None), verdict=verdict, fix=fix, detail="the kernel takes most")
    told = near_limits.unseen_kernel(of_20_ms(StepLimit.GPU, finding))
    assert told == ("The kernel takes most: sample it, or nsysx ncu REPORT." if named else "")
    assert near_limits.unseen_kernel(replace(of_20_ms(StepLimit.GPU), findings=None)) == ""


@pytest.mark.parametrize(
    ("rows", "alone"),
    [
        ([("mine", 6), ("other", 4)], True),
        ([("mine", 4), ("third", 3), ("other", 3)], False),
        ([("other", 6), ("mine", 4)], False),
        ([], False),
    ],
)
def test_a_kernel_is_what_to_look_at_where_it_is_half_of_the_work(rows: list[tuple[str, int]], alone: bool) -> None:
    found = with_rows(of_20_ms(StepLimit.GPU), kernels.KEY, [{"name": name, "total_ns": ms * MS} for name, ms in rows])
    assert unnamed._works_on_one_kernel(found, "The kernel mine takes most") is alone


def test_a_bar_that_is_longer_is_no_other_bar() -> None:
    assert bars._overlapping(Bar("a", 102, ()), Bar("b", 100, (part("x", 100),))) == Bar("a, overlapping", 102, ())


@pytest.mark.parametrize(("least_ms", "leads"), [(1, True), (0.9, False)])
def test_a_compiler_leads_where_it_saves_a_twentieth_of_the_step_at_least(least_ms: float, leads: bool) -> None:
    """Else it is an option of a program without a fault, and told as that."""
    compiled = (Alternative("compile", "torch.compile(model)"),)
    fusion = found("NSX112", 4, error_ns=round((4 - least_ms) * MS), most_ns=6 * MS, source="limits", remedies=compiled)
    summary = of_20_ms(StepLimit.GPU, replace(fusion, fix="Fuse kernels"))
    chosen = first_action.first(summary)
    assert (chosen is not None) is leads
    if not leads:
        assert "What may help: fuse kernels; nsysx try" in first_action.to_do(summary, chosen)[0].text
        also = others.also(summary, None, ())
        worth = remarks.worth(summary, None, change_savings.After(), also)
        assert worth == "Nothing for sure. NSX112 may save up to 4.00 ms of 20.00 ms.", "no answer beside what is told"


@pytest.mark.parametrize(("bound", "told"), [(True, False), (False, True)])
def test_a_bound_for_whatever_stands_there_is_no_option_of_a_healthy_program(bound: bool, told: bool) -> None:
    """Every program has kernels that more blocks, or a larger batch, might make shorter; a likely saving is worth a try."""
    batches = (Alternative("larger-batches", "a larger batch"),)
    small = found("NSX122", 4, error_ns=4 * MS, most_ns=4 * MS, remedies=batches)
    small = replace(
        small, paste="", fix="Give them more blocks", saving=replace(small.saving, bound=bound, source="replay")
    )
    summary = of_20_ms(StepLimit.GPU, small)
    assert first_action.first(summary) is None
    assert ("What may help: give them" in first_action.to_do(summary, None)[0].text) is told


@pytest.mark.parametrize(
    ("other", "ms", "remedy", "leads"),
    [
        (None, 0, "", "NSX136"),
        ("NSX112", 5.9, "compile", "NSX136"),  # a compiler explains other time
        ("NSX112", 6.1, "compile", "NSX112"),
        ("NSX131", 2.1, "largest-for-sort", "NSX131"),  # a change that is known goes before a bound
        ("NSX131", 1.9, "largest-for-sort", "NSX136"),
    ],
)
def test_a_striking_line_leads_where_no_cause_explains_as_much(
    other: str | None, ms: float, remedy: str, leads: str
) -> None:
    line = found("NSX136", 6, bound=True, source="time")
    more = [found(other, ms, source="replay", remedies=(Alternative(remedy, remedy),))] if other else []
    summary = of_20_ms(StepLimit.GPU, line, *more)
    chosen = first_action.first(summary)
    assert chosen is not None and chosen.code == leads


@pytest.mark.parametrize(
    ("ms", "bound", "leads"), [(1.1, False, "NSX137"), (0.9, False, "NSX136"), (1.1, True, "NSX136")]
)
def test_a_line_of_an_operator_without_a_known_limit_stands_behind_a_cause_that_is_known(
    ms: float, bound: bool, leads: str
) -> None:
    """As if all of it were gone: that is no change, however much it promises. A cause has to be worth a twentieth of the step."""
    line = replace(found("NSX136", 6, bound=True, source="time"), evidence=({"unlimited": True},))
    remedies = (Alternative("computed-once", "make it once"),)
    cause = found("NSX137", ms, bound=bound, source="time" if bound else "replay", remedies=remedies)
    chosen = first_action.first(of_20_ms(StepLimit.GPU, line, cause))
    assert chosen is not None and chosen.code == leads


def test_a_striking_line_that_saves_nothing_leads_nowhere() -> None:
    line = found("NSX136", 0.9, bound=True, source="time")
    assert first_action.first(of_20_ms(StepLimit.LAUNCH, line)) is None


def test_a_cause_with_a_wide_interval_leads_all_the_same() -> None:
    cause = found("NSX131", 4, error_ns=4 * MS, source="time", remedies=(Alternative("shorter-side", "turn it"),))
    assert first_action.first(of_20_ms(StepLimit.GPU, cause)) is not None

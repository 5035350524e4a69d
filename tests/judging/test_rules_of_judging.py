"""Each condition and bound of the checks and of the verdict on ranks where it alone decides, on either side of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from nsysx import records
from nsysx.catalogue import Call, StepLimit, StepPart
from nsysx.frames.intervals import StepFunction
from nsysx.judging import (
    capture_checks,
    gpu_work,
    gpu_work_checks,
    growth,
    idle_parts,
    limit_causes,
    limit_words,
    limits,
    line_of_most,
    probe_checks,
    program,
    rank_verdict,
    rank_waiting,
    row_checks,
    step_checks,
    tracing_checks,
)
from nsysx.judging.judging_bounds import GPU_AT_LINE_SHARE, IDLE_AT_LINE_SHARE, WHOLE_AT_LINE_SHARE
from nsysx.model import Row, Scope, Table, Verdict
from nsysx.reading import schema
from tests.judging.test_limits import window

MS = 1_000_000


# --- ranks ----------------------------------------------------------------------------------------------------------------


def rank(number: int, **changes: Any) -> Row:
    """Return the row of a rank: ten steps of 10 ms in which it waits for nobody."""
    known = {"rank": number, "process": number, "steps": 10, "window_ns": 100 * MS, "compute_ns": 50 * MS, "exposed_wait_ns": 0,
             "exposed_transfer_ns": 0, "delay_ns": 0, "last_share": 0.0, "straggler": False, "bubble_ns": None, "late_by_work": False,
             "late_cause": None, "late_ns": None, "late_because": {}, "idle_causes": {}}  # fmt: skip
    return {**known, **changes}


@pytest.mark.parametrize(
    ("steps", "ns", "each"), [(10, 100, 10.0), (1, 100, 100.0), (0, 100, 100.0), (None, 100, 100.0), (10, None, 0.0)]
)
def test_a_sum_of_a_rank_is_told_per_step_where_it_has_some(steps: int | None, ns: int | None, each: float) -> None:
    assert rank_waiting.per_step({"steps": steps, "ns": ns}, "ns") == each


LAST = {"delay_ns": 75, "last_share": 0.75}
WAITS = {"delay_ns": 25, "exposed_wait_ns": MS}


@pytest.mark.parametrize(
    ("rows", "waited_for"),
    [
        ([rank(0, **WAITS), rank(1, **LAST)], 1),
        ([rank(0, **WAITS), rank(1, **{**LAST, "delay_ns": 74})], None),
        ([rank(0, **WAITS), rank(1, **{**LAST, "last_share": 0.74})], None),
        ([rank(0, **{**WAITS, "exposed_wait_ns": MS - 1}), rank(1, **LAST)], None),  # below 1 % of a step
        ([rank(0, **{**WAITS, "delay_ns": None}), rank(1, **LAST)], 1),
        ([rank(0, **WAITS), rank(1, **LAST, bubble_ns=3)], None),
        ([rank(0, straggler=True), rank(1, **LAST)], 0),
        ([rank(0, straggler=True, bubble_ns=3), rank(1, **LAST)], 0),
        ([rank(0, delay_ns=None), rank(1)], None),
        ([], None),
    ],
)
def test_who_is_waited_for(rows: list[Row], waited_for: int | None) -> None:
    late = rank_waiting.waited_for(rows)
    assert (None if late is None else late["rank"]) == waited_for


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([rank(0), rank(1, straggler=True)], "The others wait for rank 1"),
        (
            [rank(0), rank(1, straggler=True, late_by_work=True)],
            "The others wait for rank 1 without the profiler, which hides it",
        ),
        (
            [rank(0, bubble_ns=10 * MS), rank(1, bubble_ns=20 * MS), rank(2)],
            "its bubble is up to 20 % of the step (rank 1)",
        ),
        ([rank(0, exposed_wait_ns=MS - 1), rank(1)], "No rank waits for another for 1 % of the step"),
        (
            [rank(0, exposed_wait_ns=2 * MS), rank(1, delay_ns=5)],
            "in turn, up to 200 us a step as recorded: none is always",
        ),
        (
            [rank(0, **WAITS), rank(1, **LAST)],
            "Rank 1 comes last in 75 % of the collectives, and the others wait up to 100 us a step for it",
        ),
    ],
)
def test_who_waits_for_whom_is_said(rows: list[Row], words: str) -> None:
    assert words in rank_waiting.sentence(rows)


@pytest.mark.parametrize(
    ("collectives", "words"),
    [
        ((80, 80), "; 2 equal stages with 4 micro-batches have 20 % by themselves, without interleaving"),
        ((80, 160, 80), "; 3 equal stages with 4 micro-batches have 33 % by themselves, without interleaving"),
        ((90, 90), ""),  # a sum over all stages, too
        ((0, 80), ""),
    ],
)
def test_the_bubble_of_the_schedule_is_told_beside_that_of_the_step(collectives: tuple[int, ...], words: str) -> None:
    """Ten steps: the stages at both ends send and receive each micro-batch once in each direction."""
    rows = [rank(i, bubble_ns=10 * MS, collectives=count) for i, count in enumerate(collectives)]
    assert rank_waiting.sentence(rows).endswith(f"(rank 0){words}")


VERDICT = Verdict(StepLimit.COMM.value, "It waits.", scope=Scope("steady", (0,)), step_ns=10 * MS)


def of_ranks(*rows: Row, shown: int | None = None, **changes: Any) -> Verdict:
    return rank_verdict.of_ranks(replace(VERDICT, **changes), Table("ranks", "", (), rows), shown)


STRAGGLER = {"straggler": True, "late_cause": "host", "late_ns": MS, "late_because": {"compute": 2 * MS}}


@pytest.mark.parametrize(
    ("wait", "shown", "words"),
    [
        (15 * MS, None, "Straggler: rank 0 waits 1.5 of 10.0 ms for rank 1, which"),
        (15 * MS - 1, None, ""),  # below 15 % of its steps
        (15 * MS, 1, "Straggler: rank 0 waits 1.5 of 10.0 ms for rank 1, which"),
        (15 * MS, 7, ""),
    ],
)
def test_a_straggler_is_named_where_the_shown_rank_waits_for_it_or_is_it(
    wait: int, shown: int | None, words: str
) -> None:
    told = of_ranks(rank(0, exposed_wait_ns=wait), rank(1, **STRAGGLER), rank(2), shown=shown)
    assert told.sentence.startswith(words or "It waits.") and told.late_rank == (1 if words else None)
    assert of_ranks(rank(0, exposed_wait_ns=wait), rank(1, **STRAGGLER), step_ns=None).sentence == "It waits."


@pytest.mark.parametrize(("transfer", "said"), [(2 * MS - 1, True), (2 * MS, False), (None, True)])
def test_the_network_is_no_problem_where_transfers_take_less_than_a_fiftieth(transfer: int | None, said: bool) -> None:
    told = of_ranks(rank(0, exposed_wait_ns=20 * MS, exposed_transfer_ns=transfer), rank(1, **STRAGGLER))
    assert ("The network is not the problem." in told.sentence) == said
    assert "(as recorded)" not in told.sentence
    assert (
        "(as recorded)"
        in of_ranks(rank(0, exposed_wait_ns=20 * MS), rank(1, **STRAGGLER), recorded_ns=11 * MS).sentence
    )


def test_more_work_on_a_rank_is_compared_with_the_rank_that_has_least() -> None:
    rows = (rank(0, compute_ns=40 * MS), rank(1, straggler=True, late_by_work=True, compute_ns=90 * MS), rank(2))
    told = of_ranks(*rows)
    assert told.sentence.startswith("Straggler: rank 1 computes 9.00 ms a step, rank 0 4.00 ms (as recorded)")
    assert (
        told.sentence.endswith("work of rank 1 is all of a step of 10.00 ms, and the others wait for it.")
        and told.late_rank == 1
    )
    assert of_ranks(*rows, shown=9).sentence == "It waits."


HOST, GPU = (
    {"late_because": {"idle: host_code": 9, "compute": 8}},
    {"late_because": {"idle: host_code": 8, "compute": 9}},
)


@pytest.mark.parametrize(
    ("rows", "by_hosts"),
    [
        ([rank(0, delay_ns=51, **HOST), rank(1, delay_ns=49, **GPU)], True),
        ([rank(0, delay_ns=50, **HOST), rank(1, delay_ns=50, **GPU)], False),
        ([rank(0, delay_ns=None, **HOST), rank(1, delay_ns=1, **HOST)], True),
        ([rank(0, delay_ns=51, straggler=True, **HOST)], False),
        ([rank(0, delay_ns=51, bubble_ns=0, **HOST)], False),
        ([rank(0, delay_ns=9, exposed_wait_ns=10, idle_causes={"host_code": 3, "launch_latency": 3, "sync": 9})], True),
        ([rank(0, delay_ns=9, exposed_wait_ns=10, idle_causes={"host_code": 3, "launch_latency": 2, "sync": 9})], False),
        ([], False),
    ],
)  # fmt: skip
def test_ranks_that_are_late_in_turn_wait_for_hosts_where_these_idle(rows: list[Row], by_hosts: bool) -> None:
    assert rank_verdict.wait_for_hosts(rows) == by_hosts


@pytest.mark.parametrize(
    ("code", "wait", "transfer", "share"),
    [
        (StepLimit.COMM, 51, 49, "51 %"), (StepLimit.COMM, 50, 50, ""), (StepLimit.COMM, 66, 34, "66 %"),
        (StepLimit.GPU, 51, 49, ""), (StepLimit.COMM, None, 49, ""),
    ],
)  # fmt: skip
def test_communication_that_is_a_wait_for_late_hosts_is_said_to_be(
    code: StepLimit, wait: int | None, transfer: int | None, share: str
) -> None:
    rows = (rank(0, exposed_wait_ns=wait, exposed_transfer_ns=transfer), rank(1, delay_ns=60, **HOST))
    told = of_ranks(*rows, code=code.value).sentence
    assert told == "It waits." + (
        f" {share} of the exposed communication is waiting for ranks whose host launches later." if share else ""
    )


# --- what the probe counted -----------------------------------------------------------------------------------------------


def counted(recorded: int, *probes: Row, run: Row | None = None, sampled: Any = None, elsewhere: bool = False) -> Any:
    trace = SimpleNamespace(
        capture=SimpleNamespace(probe=probes), run=run or {}, sampled=sampled, cold_missing=elsewhere
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe_checks.window_checks, "steps_elsewhere", lambda _: elsewhere)
        (check,) = probe_checks._against_count(SimpleNamespace(trace=trace), recorded)  # type: ignore[arg-type]
    return check


def pushed(count: Any, **changes: Any) -> Row:
    return {"ranges": {"module": count, "info": 50, "pause": True}, "backend": "nvtx", **changes}


WINDOWS = {"window_pauses_ns": [1]}


@pytest.mark.parametrize(
    ("recorded", "probes", "status", "words"),
    [
        (998, [pushed(1000)], "ok", "pushed 1,000, in the report 998"),
        (997, [pushed(1000)], "warn", "the probe pushed 1,000 ranges, the report holds 997"),
        (1002, [pushed(1000)], "ok", "in the report 1,002"),
        (1003, [pushed(1000)], "warn", "the report holds 1,003"),
        (4_995, [pushed(5_000)], "ok", "in the report 4,995"),
        (4_994, [pushed(5_000)], "warn", "the report holds 4,994"),
        (0, [pushed(1000)], "missing", "and none is in the report"),
        (0, [pushed(0)], "warn", "the probe saw no module"),
        (0, [pushed(0, backend="off", reason="no nvtx")], "missing", "the probe was off: no nvtx"),
        (0, [pushed(True), {"ranges": None}], "warn", "the probe saw no module"),
        (5, [pushed(9, ended=False)], "ok", "did not exit through Python"),
        (9, [pushed(9), pushed(0, ended=False, backend="off")], "ok", "pushed 9, in the report 9"),
        (950, [pushed(500, **WINDOWS), pushed(500, **WINDOWS)], "ok", "a window ends in the middle of other ranks' steps"),
        (949, [pushed(500, **WINDOWS), pushed(500, **WINDOWS)], "warn", "the report holds 949"),
        (1001, [pushed(500, **WINDOWS), pushed(500, **WINDOWS)], "ok", "pushed 1,000, in the report 1,001"),
        (950, [pushed(500, **WINDOWS), pushed(500)], "warn", "the report holds 950"),
        (900, [pushed(1000, windows_of=3)], "ok", "other processes went on while no window was open"),
        (1000, [pushed(1000, windows_of=3)], "ok", "pushed 1,000, in the report 1,000"),
    ],
)  # fmt: skip
def test_ranges_that_arrived_are_held_against_those_that_were_pushed(
    recorded: int, probes: list[Row], status: str, words: str
) -> None:
    check = counted(recorded, *probes)
    assert check.status == status and words in check.detail


def test_a_report_that_is_read_in_parts_or_cut_holds_fewer() -> None:
    assert "in the parts that were read" in counted(3, pushed(1000), sampled=object()).detail
    assert "others lie in that of the first window" in counted(3, pushed(1000), elsewhere=True).detail


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        ({"median_ns": 5_000, "marked_steps": 7}, "; a step with marks took 5.0 us more (7 steps)"),
        ({"median_ns": 0, "marked_steps": 7}, "more (7 steps)"),
        ({"median_ns": -5_000, "marked_steps": 7}, "; a step with marks took 5.0 us less (7 steps)"),
        ({"median_ns": None}, ""), ({"median_ns": "x"}, ""), (None, ""), ([1], ""),
    ],
)  # fmt: skip
def test_what_marks_cost_is_told_as_it_was_measured(cost: Any, words: str) -> None:
    told = probe_checks._marks_cost({"marks_cost_ns_per_step": cost})
    assert told.endswith(words) and bool(told) == bool(words)


@pytest.mark.parametrize(
    ("thinned", "words"),
    [({"level": "ranges", "from_step": 3}, "from step 3 on, modules without children have no ranges"),

     ({"level": "backward", "from_step": True}, "from step 0 on, modules without children have no marks in backward"),
     (None, ""), ([], "")],
)  # fmt: skip
def test_what_the_probe_left_out_is_told(thinned: Any, words: str) -> None:
    checks = probe_checks._thinned({"thinned": thinned})
    assert len(checks) == bool(words) and all(words in c.detail for c in checks)


@pytest.mark.parametrize(
    ("xray", "status"),
    [
        ({"folds": 2, "stopped": None}, ["ok"]),
        ({"folds": 8, "stopped": "20,000 lines in one step"}, ["ok", "warn"]),
        ({"folds": 0, "stopped": None}, []),
        ({"stopped": None}, []),
        (None, []),
    ],
)
def test_lines_that_were_not_noted_are_said(xray: dict[str, Any] | None, status: list[str]) -> None:
    capture = SimpleNamespace(probe=[{"pid": 1, "xray": xray}])
    profile = SimpleNamespace(trace=SimpleNamespace(capture=capture), steps=SimpleNamespace(process=1))
    assert [check.status for check in probe_checks.lines_left_out(profile)] == status  # type: ignore[arg-type]


@pytest.mark.parametrize(("unmatched", "status"), [(3, "ok"), (4, "warn")])
def test_modules_by_sequence_are_weak_where_more_than_3_percent_has_no_match(unmatched: int, status: str) -> None:
    repeats = SimpleNamespace(launches=100, unmatched=unmatched, marked=3, steps=20, exact=19)
    (check,) = probe_checks.modules_by_sequence(SimpleNamespace(ranges=SimpleNamespace(repeats=repeats)))  # type: ignore[arg-type]
    assert check.status == status and f"{100 - unmatched} of 100 launches" in check.detail
    assert probe_checks.modules_by_sequence(SimpleNamespace(ranges=SimpleNamespace(repeats=None))) == []  # type: ignore[arg-type]


def test_only_whole_numbers_are_counts() -> None:
    assert [records.count_or_zero(n) for n in (3, -3, True, 2.5, "3", None)] == [3, -3, 0, 0, 0, 0]


# --- what the capture lacks -----------------------------------------------------------------------------------------------


def launched(kinds: list[str], with_work: list[int | None]) -> Any:
    calls = pl.DataFrame({"call": range(len(kinds)), "kind": kinds})
    return SimpleNamespace(
        steps=SimpleNamespace(lost=1),
        steady_calls=calls,
        steady_ops=pl.DataFrame({"call": with_work}, schema={"call": pl.Int64}),
        trace=SimpleNamespace(capture=SimpleNamespace(probe=[])),
    )


@pytest.mark.parametrize(
    ("kinds", "with_work", "doubt"),
    [
        ([Call.LAUNCH, Call.SYNC], [0, None], "numbers"),
        ([Call.LAUNCH, Call.LAUNCH], [0], "everything"),
        ([Call.SYNC], [], "everything"),
    ],
)
def test_launches_that_lost_their_work_make_all_doubtful_unless_the_steady_steps_are_whole(
    monkeypatch: pytest.MonkeyPatch, kinds: list[str], with_work: list[int | None], doubt: str
) -> None:
    monkeypatch.setattr(tracing_checks, "by_hardware", lambda _: False)
    profile = launched(kinds, with_work)
    check = gpu_work_checks._lost_work_check(profile, 3, 9)
    assert check.doubt == doubt and "1 step with such launches is left out" in check.detail
    assert "waits for the GPU" in check.fix and "of waiting" not in check.detail
    rests = [
        {"rested": False, "ns": 4 * MS},
        {"rested": True, "ns": 9 * MS},
        {"rested": False, "ns": 2 * MS},
        {"rested": False},
    ]
    profile.trace.capture.probe = [{"device_waits": rests}, {"device_waits": None}, {}]
    profile.steps.lost = 2
    waited = gpu_work_checks._lost_work_check(profile, 3, 9)
    assert "after 4.00 ms of waiting for it: 2 steps with such launches are left out" in waited.detail
    assert waited.fix.startswith("record fewer steps")


@pytest.mark.parametrize(
    ("version", "newer"),
    [("3.25.0", False), ("4.0.1", True), ("2.9", False), ("none", False), (None, False), ("4", False)],
)
def test_an_export_of_a_newer_major_version_is_a_warning(version: str | None, newer: bool) -> None:
    trace: Any = SimpleNamespace(capture=SimpleNamespace(schema_version=version))
    assert bool(capture_checks._newer(trace)) == newer


@pytest.mark.parametrize(("none_ns", "status"), [(10, "ok"), (11, "warn")])
def test_work_that_is_tied_to_nothing_is_a_doubt_from_a_hundredth_on(none_ns: int, status: str) -> None:
    ops = pl.DataFrame({"start_ns": [0, 0], "end_ns": [1000 - none_ns, none_ns], "grade": ["thread", "none"]})
    ranges = SimpleNamespace(ranges=pl.DataFrame({"x": [1]}))
    (check,) = capture_checks._attribution(SimpleNamespace(steady_ops=ops, ranges=ranges))  # type: ignore[arg-type]
    assert check.status == status
    assert check.detail.endswith(" by the range open on the launching thread, " + check.detail.rpartition(", ")[2])
    for lacking in (SimpleNamespace(steady_ops=ops.clear(), ranges=ranges),
                    SimpleNamespace(steady_ops=ops, ranges=SimpleNamespace(ranges=pl.DataFrame({"x": []})))):  # fmt: skip
        assert capture_checks._attribution(lacking) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(("bars", "empty", "names"), [
    (0, 0, []), (2, 0, ["opaque graphs"]), (0, 1, ["graphs without work"]), (1, 1, ["opaque graphs", "graphs without work"]),
])  # fmt: skip
def test_graphs_that_hide_their_kernels_are_told(bars: int, empty: int, names: list[str]) -> None:
    assert [c.check for c in gpu_work_checks._graphs(bars, 5 * MS, empty)] == names


@pytest.mark.parametrize(
    ("begins", "words"),
    [([], ""), ([None], "1 that takes more than half as long again (the longest of them were read)"),
     ([3, 4], "2 that take more than half as long again (read as well)"),
     ([3, None], "2 that take more than half as long again (the longest")],
)  # fmt: skip
def test_which_steps_of_a_long_capture_were_read(begins: list[int | None], words: str) -> None:
    """Steps 3 to 5 in a row: 100, 110, 120 ns, where 100 are usual."""
    lengths = np.array([900, 100, 100, 100, 110, 120, 100], np.int64)
    sampled: Any = SimpleNamespace(
        lengths_ns=lengths,
        usual_ns=100,
        parts=[(0, 2)],
        long=[(b, 9) for b in begins],
        totals=SimpleNamespace(work=None),
    )
    profile: Any = SimpleNamespace(step_of_capture=lambda i: i + 1, steps=SimpleNamespace(steady=(2, 4)))
    detail = step_checks._read(profile, sampled, 6).detail
    assert "of 7 steps 6 were read: the first 2, the last, and 3 in a row whose mean is within 10 % of" in detail
    assert words in detail and ("half as long again" in detail) == bool(words)


# --- parts and words of the sentence --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "whole", "scaled"),
    [({"work": 30, "comm": 60, "copy": 10}, 50, [15, 30, 5]), ({"work": 1, "comm": 1, "copy": 1}, 100, [34, 33, 33]),
     ({"work": 0, "comm": 0, "copy": 0}, 7, [7, 0, 0])],
)  # fmt: skip
def test_scaled_parts_sum_to_the_whole(parts: dict[str, int], whole: int, scaled: list[int]) -> None:
    of = limits._to_sum({StepPart.named(name): ns for name, ns in parts.items()}, whole)
    assert list(of.values()) == scaled and sum(scaled) == whole


@pytest.mark.parametrize(("worth", "sync", "host"), [(10, 10, 25), (50, 30, 5), (0, 0, 35)])
def test_waits_are_worth_no_more_than_their_removal(
    monkeypatch: pytest.MonkeyPatch, worth: int, sync: int, host: int
) -> None:
    monkeypatch.setattr(idle_parts, "_worth_of_waits", lambda _: worth)
    profile: Any = None
    assert idle_parts._capped(profile, {StepPart.SYNC: 30, StepPart.HOST: 5}) == {
        StepPart.SYNC: sync,
        StepPart.HOST: host,
    }
    assert idle_parts._capped(profile, {StepPart.HOST: 5}) == {StepPart.HOST: 5}
    assert idle_parts._capped(profile, {StepPart.SYNC: 30}) == {StepPart.SYNC: sync, StepPart.HOST: 30 - sync}


def test_without_a_replay_waits_are_worth_all_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the shown process: what it waits for before, in and beside the call."""
    monkeypatch.setattr(idle_parts, "replay_of", lambda _: None)
    sites = pl.DataFrame(
        {"process": [1, 1, 2], "backlog_ns": [1, 2, 90], "own_op_ns": [10, 20, 90], "host_ns": [100, 200, 90]}
    )
    profile: Any = SimpleNamespace(wait_sites=lambda: sites, steps=SimpleNamespace(process=1))
    assert idle_parts._worth_of_waits(profile) == 333
    profile.wait_sites = lambda: sites.clear()
    assert idle_parts._worth_of_waits(profile) == 0


def steady(**columns: list[Any]) -> Any:
    frame = pl.DataFrame(columns)
    return SimpleNamespace(
        steady_calls=frame, calls=frame.clear(), steady_ops=frame, ops=frame.clear(), steps=SimpleNamespace(process=1)
    )


def test_the_two_functions_that_take_most_time_are_named() -> None:
    profile = steady(
        name=["a", "b", "a", "c", "d", "e"], kind=[*[Call.ALLOC] * 5, Call.SYNC], process=[1, 1, 1, 1, 2, 1],
        start_ns=[0] * 6, end_ns=[3, 5, 3, 4, 99, 99],
    )  # fmt: skip
    assert limit_causes.calls(profile, Call.ALLOC) == " (a, b)"
    assert limit_causes.calls(profile, Call.COPY) == ""


@pytest.mark.parametrize(
    ("ways", "words"),
    [
        ({"HtoD": 95, "DtoH": 5}, " from the host to the GPU"),
        ({"HtoD": 94, "DtoH": 6}, " (mostly from the host to the GPU)"),
        ({"HtoD": 50, "DtoH": 30, "DtoD": 20}, " (mostly from the host to the GPU)"),
        ({"HtoD": 49, "DtoH": 31, "DtoD": 20}, ""),
        ({"DtoH": 50, "HtoD": 50}, " (mostly from the GPU to the host)"),
        ({"PtoP": 100}, ""),
        ({}, ""),
    ],
)  # fmt: skip
def test_which_way_most_copies_go(ways: dict[str, int], words: str) -> None:
    """In two copies each; kernels and another process's copies are none of them."""
    rows = [(name, "memcpy", 1, ns) for name, whole in ways.items() for ns in (whole - whole // 2, whole // 2)]
    rows += [("DtoD", "kernel", 1, 900), ("DtoD", "memcpy", 2, 900)]
    assert limit_causes.direction(copies(rows), window(work=1)) == words


def copies(rows: list[tuple[str, str, int, int]], kinds: list[tuple[int | None, int | None]] | None = None) -> Any:
    """Return steps with copies (way, kind, process, ns) between memory of kinds, pinned (1) and of the device (2) by default."""
    names, op_kinds, processes, ends = (list(column) for column in zip(*rows, strict=True))
    source, target = (list(column) for column in zip(*(kinds or [(1, 2)] * len(rows)), strict=True))
    return steady(
        name=names, op_kind=op_kinds, process=processes, start_ns=[0] * len(rows), end_ns=ends, src_kind=source, dst_kind=target
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ways", "kinds", "words"),
    [
        ([("HtoD", 95), ("HtoD", 5)], [(0, 2), (1, 2)], " from pageable host memory to the GPU"),
        ([("HtoD", 94), ("HtoD", 6)], [(0, 2), (1, 2)], " from the host to the GPU"),
        ([("DtoH", 100)], [(2, 0)], " from the GPU to pageable host memory"),
        ([("DtoH", 100)], [(0, 1)], " from the GPU to the host"),
        ([("HtoD", 100)], [(None, None)], " from the host to the GPU"),
        ([("HtoD", 80), ("DtoH", 20)], [(0, 2), (2, 1)], " (mostly from pageable host memory to the GPU)"),
        ([("DtoD", 100)], [(0, 0)], " inside the GPU"),
    ],
)  # fmt: skip
def test_memory_of_the_host_that_is_pageable_is_named(
    ways: list[tuple[str, int]], kinds: list[tuple[int | None, int | None]], words: str
) -> None:
    profile = copies([(way, "memcpy", 1, ns) for way, ns in ways], kinds)
    assert limit_causes.direction(profile, window(work=1)) == words


@pytest.mark.parametrize(
    ("kernels", "words"),
    [
        ({"ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)": 95, "ncclDevKernel_AllGather_RING_LL(x)": 5}, " (all-reduce)"),
        ({"ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)": 94, "ncclDevKernel_AllGather_RING_LL(x)": 6}, " (mostly all-reduce)"),
        ({"a_AllGather": 50, "b_AllGather": 10, "ncclKernel_SendRecv": 40}, " (mostly all-gather)"),
        ({"a_AllGather": 40, "ncclKernel_SendRecv": 30, "ReduceScatter": 30}, ""),
        ({"some_kernel": 100}, ""),
        ({}, ""),
    ],
)  # fmt: skip
def test_the_collective_that_takes_most_is_named(kernels: dict[str, int], words: str) -> None:
    """Compute, and what runs on another device or for another process, is none of it."""
    rows = [*((name, "comm", 1, 0, ns) for name, ns in kernels.items()),
            ("Broadcast", "compute", 1, 0, 900), ("Broadcast", "comm", 1, 1, 900), ("Broadcast", "comm", 2, 0, 900)]  # fmt: skip
    name, cls, process, device, ends = (list(column) for column in zip(*rows, strict=True))
    profile = steady(name=name, cls=cls, process=process, device=device, start_ns=[0] * len(rows), end_ns=ends)
    assert limit_causes.collective(profile, window(work=1)) == words


@pytest.mark.parametrize(
    ("loaders", "words"),
    [
        ([{"workers": 8, "iterators": 3}, {"workers": 0, "iterators": 1}], " (DataLoader with 8 workers)"),
        ([{"workers": 0, "iterators": 3}, {"workers": 8, "iterators": 1}], " (DataLoader without workers)"),
        ([{"workers": None}], ""),
        ([], ""),
        (None, ""),
    ],
)  # fmt: skip
def test_the_workers_of_the_loader_that_is_used_most(
    monkeypatch: pytest.MonkeyPatch, loaders: list[dict[str, Any]] | None, words: str
) -> None:
    read = None if loaders is None else SimpleNamespace(rows=lambda kind: loaders if kind == "loaders" else None)
    monkeypatch.setattr(limit_causes, "settings_of", lambda _: read)
    profile: Any = None
    assert limit_causes.loader(profile) == words


def test_launches_are_those_of_the_shown_process_in_a_step() -> None:
    profile = steady(kind=[next(iter(Call.LAUNCHES))] * 7 + [Call.SYNC], process=[1] * 6 + [2, 1])
    assert limit_causes.launches(profile, window(steps=3, work=1)) == " (2 a step)"
    assert limit_causes.launches(profile, window(steps=3, work=1), "launches") == " (2 launches a step)"
    assert limit_causes.launches(profile, window(whole=True, work=1)) == " (6)"
    assert limit_causes.launches(steady(kind=[Call.SYNC], process=[1]), window(work=1)) == ""


@pytest.mark.parametrize(
    ("ns", "place"),
    [
        # Lines 3, 5 and 9 of one function: together enough, though none alone; line 9 has too little to be named.
        ({0: 250, 1: 200, 2: 10, 3: 300, -1: 240}, "net.py:3-5 (Norm.forward)"),
        ({0: 410, 1: 200, 3: 390}, "net.py:3"),
        ({0: 250, 1: 130, 2: 10, 3: 300, -1: 310}, None),
        # Code at the top of a file, and lines a screen apart, are no place.
        ({4: 300, 5: 300, 3: 390}, None),
        ({6: 300, 7: 300, 3: 390}, None),
        ({0: 390, 1: 20, 3: 390, -1: 200}, "net.py:3 (Norm.forward)"),
        ({0: 500, 1: 450, 3: 50}, "net.py:3"),
    ],
)  # fmt: skip
def test_a_function_is_named_where_no_line_has_much(ns: dict[int, int], place: str | None) -> None:
    places = pl.DataFrame(
        [("/a/net.py", 3, "Norm.forward"), ("/a/net.py", 5, "Norm.forward"), ("/a/net.py", 9, "Norm.forward"), ("/a/net.py", 20, "f"),
         ("/a/top.py", 1, "<module>"), ("/a/top.py", 2, "<module>"), ("/a/far.py", 1, "main"), ("/a/far.py", 42, "main")],
        schema=["file", "line", "function"], orient="row",
    )  # fmt: skip
    lines: Any = SimpleNamespace(places=places, places_of=lambda stacks: stacks)
    stack, times = np.array(list(ns)), np.array(list(ns.values()))
    sites = line_of_most._at_sites(lines, stack, times)
    found = line_of_most._place_with_share(sites, int(times.sum()), 0.4)
    assert (found.short if found else None) == place
    assert found is None or found.line == 3


def test_the_line_that_makes_most_copies_is_named() -> None:
    places = pl.DataFrame({"file": ["/job/train.py", "/job/net.py"], "line": [3, 7], "function": ["f", "g"]})
    rows = {"op": [0, 1, 2, 3], "process": 1, "device": [0, 0, 0, 1], "op_kind": ["memcpy", "memcpy", "kernel", "memcpy"],
            "start_ns": 0, "end_ns": [30, 70, 900, 900]}  # fmt: skip
    profile: Any = SimpleNamespace(
        code=lambda: SimpleNamespace(places=places, places_of=lambda stacks: stacks, op=np.array([0, 1, 0, 0])),
        recorded=lambda _: True,
        steady_ops=pl.DataFrame(rows),
    )
    assert line_of_most.copies(profile, 1, 0) == ("/job/net.py", 7, 0.7)
    profile.code = lambda: None
    assert line_of_most.copies(profile, 1, 0) is None


@pytest.mark.parametrize(
    ("meanwhile_ms", "words"), [(13, "while another GPU works and Python waits"), (12.5, "after host syncs")]
)
def test_waits_for_another_gpu_are_named_where_it_works_for_half_of_them(
    monkeypatch: pytest.MonkeyPatch, meanwhile_ms: float, words: str
) -> None:
    monkeypatch.setattr(limit_words, "program_of", lambda _: SimpleNamespace(host="Python"))
    monkeypatch.setattr(limit_words, "other_gpus", lambda _: SimpleNamespace(meanwhile_ns=meanwhile_ms * MS))
    monkeypatch.setattr(limit_causes, "site", lambda _: "")
    profile: Any = None
    assert words in limit_words._clause(profile, window(work=10, sync=25), StepLimit.SYNC)


def work(*rows: tuple[str, str | None, str, str, int]) -> Any:
    family, module, kind, name, ns = (list(column) for column in zip(*rows, strict=True))
    frame = pl.DataFrame(
        {"family": family, "module": module, "op_kind": kind, "name": name, "start_ns": [7] * len(rows),
         "end_ns": [7 + each for each in ns], "process": [1] * len(rows), "device": [0] * len(rows),
         "cls": ["comm" if f == "communication" else "compute" for f in family]},
        schema_overrides={"family": pl.Categorical, "cls": pl.Categorical, "module": pl.Categorical, "name": pl.Categorical},
    )  # fmt: skip
    other = frame.with_columns(process=pl.lit(2, pl.Int64), end_ns=pl.lit(9_999, pl.Int64))
    return SimpleNamespace(
        steady_ops=pl.concat([frame, other]), attributed=SimpleNamespace(without_path=("(outside)",))
    )


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([("gemm", "net.1", "kernel", "a", 20), ("gemm", "net.2", "kernel", "a", 14), ("other", None, "kernel", "b", 66)],
         "34 % of GPU time is net.* (2 modules, mostly GEMM)"),
        ([("gemm", "net", "kernel", "a", 33), ("other", None, "kernel", "b", 33), ("other", None, "kernel", "c", 34)],
         "34 % of GPU time is the kernel c"),
        ([("gemm", "net", "kernel", "a", 50), ("norm", "net", "kernel", "n", 10), ("gemm", "head", "kernel", "b", 20),
          ("other", None, "kernel", "c", 20)],
         "60 % of GPU time is net (mostly GEMM) and 20 % head (mostly GEMM)"),
        ([("gemm", "net", "kernel", "a", 50), ("gemm", "head", "kernel", "b", 19), ("other", None, "kernel", "c", 31)],
         "50 % of GPU time is net (mostly GEMM)"),
        ([("gemm", "(outside)", "kernel", "a", 60), ("norm", "12", "kernel", "b", 40)], "60 % of GPU time is GEMM and 40 % normalization"),
        ([("gemm", None, "kernel", "a", 80), ("norm", None, "kernel", "b", 10), ("other", None, "kernel", "c", 10)],
         "80 % of GPU time is GEMM and 10 % normalization"),
        ([("gemm", None, "kernel", "a", 91), ("norm", None, "kernel", "b", 9)], "91 % of GPU time is GEMM"),
        ([("gemm", None, "kernel", "a", 40), ("other", None, "kernel", "mine", 60)], "60 % of GPU time is the kernel mine"),
        ([("other", None, "kernel", f"k{i}", 9) for i in range(12)], ""),
        ([("gemm", None, "kernel", "a", 0)], ""),
        ([("communication", "net", "kernel", "n", 60), ("gemm", "net", "kernel", "a", 30), ("norm", "net", "kernel", "b", 10)],
         "100 % of GPU time without communication is net (mostly GEMM)"),
        ([("communication", "net", "kernel", "n", 100)], ""),
    ],
)  # fmt: skip
def test_what_most_of_the_work_is(rows: list[Any], words: str) -> None:
    assert gpu_work.most(work(*rows), 1, 0) == words


def test_kernels_are_counted_with_their_median() -> None:
    profile = work(
        ("gemm", None, "kernel", "a", 10), ("gemm", None, "kernel", "a", 30), ("copies", None, "memcpy", "HtoD", 900)
    )
    assert gpu_work.kernels(profile, 1, 0) == (2, 20.0)
    assert gpu_work.kernels(profile, 5, 0) == (0, None)


def grids(*sides: tuple[int, int, int]) -> pl.DataFrame:
    packed = []
    for side in sides:
        bits = np.cumsum([0, *(n for _, n in schema.GRID)]).tolist()
        packed.append(sum(each << bit for each, bit in zip(side, bits, strict=False)))
    return pl.DataFrame({"name": ["a"] * len(sides), "grid": packed}, schema_overrides={"name": pl.Categorical})


@pytest.mark.parametrize(
    ("early", "late", "words"),
    [((8, 4, 1), (16, 6, 1), ", with 8 to 16 blocks along x"), ((8, 4, 1), (8, 12, 1), ", with 4 to 12 blocks along y"),
     ((8, 4, 1), (4, 4, 1), "")],
)  # fmt: skip
def test_the_side_of_the_grid_that_grows_most_is_named(early: Any, late: Any, words: str) -> None:
    assert growth._grid(grids(early), grids(late), "a") == words
    assert growth._grid(grids(early), grids(late), "b") == ""


# --- what kind of program it is -------------------------------------------------------------------------------------------


def settings(*optimizers: Row) -> Any:
    return SimpleNamespace(rows=lambda _: optimizers)


@pytest.mark.parametrize(
    ("optimizers", "fused", "cls"),
    [
        ([{"fused": True, "module": "torch", "class": "Adam"}], "fused", "Adam"),
        ([{"fused": True, "module": "torch", "class": "Adam"}, {"fused": False, "module": "torch", "class": "Adam"}], None, "Adam"),
        ([{"fused": True, "module": "torch", "class": "Adam"}, {"fused": True, "module": "torch", "class": "SGD"}], "fused", None),
        ([{"fused": 1, "module": "apex", "class": "Adam"}], None, "apex.Adam"),
        ([], None, None),
    ],
)  # fmt: skip
def test_settings_say_how_parameters_are_updated(optimizers: list[Row], fused: str | None, cls: str | None) -> None:
    assert program._fused_by_setting(settings(*optimizers)) == fused
    assert program._class_by_setting(settings(*optimizers)) == cls
    assert program._fused_by_setting(None) is None and program._class_by_setting(None) is None


@pytest.mark.parametrize(
    ("names", "phases", "fused", "foreach", "kind"),
    [
        (["x"], ["optimizer"], True, False, "fused"),
        (["multi_tensor_apply_kernel", "x"], ["optimizer", "optimizer"], False, False, "foreach"),
        (["multi_tensor_apply_kernel", "x", "y"], ["optimizer"] * 3, False, True, "loop"),
        (["multi_tensor_apply_kernel", "x"], ["backward", "optimizer"], False, True, "loop"),
        (["x"], ["backward"], False, True, "foreach"),
        (["x"], ["backward"], False, False, None),
    ],
)  # fmt: skip
def test_kernels_say_how_parameters_are_updated(
    names: list[str], phases: list[str], fused: bool, foreach: bool, kind: str | None
) -> None:
    kernels = pl.DataFrame({"name": names, "phase": phases}, schema={"name": pl.Categorical, "phase": pl.Categorical})
    assert program._optimizer(kernels, fused, foreach) == kind


def own_ranges(*rows: tuple[str, str, bool, int]) -> pl.DataFrame:
    name, cls, own, ns = (list(column) for column in zip(*rows, strict=True))
    return pl.DataFrame(
        {"name": name, "cls": cls, "own": own, "start_ns": [5] * len(rows), "end_ns": [5 + each for each in ns]}
    )


@pytest.mark.parametrize(
    ("rows", "cls"),
    [
        ([("optimizer", "Adam", True, 1), ("optimizer", "Adam", True, 1), ("forward", "Net", True, 1)], "Adam"),
        ([("optimizer", "Adam", True, 1), ("optimizer", "SGD", True, 1)], None),
        ([("optimizer", "Adam", False, 1)], None),
        ([("optimizer", "", True, 1)], None),
    ],
)
def test_one_optimizer_has_a_class(rows: list[Any], cls: str | None) -> None:
    assert program._optimizer_class(own_ranges(*rows)) == cls


def test_networks_are_those_that_the_program_calls_the_longest_first() -> None:
    ranges = own_ranges(
        ("forward", "Small", True, 10), ("forward", "Large", True, 30), ("evaluation", "Small", True, 10), ("data", "Loader", True, 99),
        ("forward", "Theirs", False, 99), ("forward", "", True, 99),
    )  # fmt: skip
    listed = pl.DataFrame({"module": ["(Net)", "net.1", None], "cls": ["Net", "Linear", "Gone"]})
    profile: Any = SimpleNamespace(attributed=SimpleNamespace(modules=listed))
    assert program._networks(profile, ranges) == ("Large", "Small")
    assert program._networks(profile, ranges.clear()) == ("Net",)


# --- whose steps, ranges and lines ----------------------------------------------------------------------------------------


def growing(late_ns: int, *, other_ns: int = 0, steps: int = 8) -> Any:
    """Return steps in which the kernel a takes 100 ns at first and ``late_ns`` in the last quarter, b 100 and then ``other_ns`` more.

    Another process, and a step that is not steady, launch it, too, for much longer.
    """
    cpu = [(1, True, 1_000 * i) for i in range(steps)] + [(1, False, 1_000 * steps), (2, True, 0)]
    ops: list[tuple[int, str, str, int, int]] = []
    for i in range(steps):
        late = i >= steps - steps // 4
        ops += [
            (1, "kernel", "a", 1_000 * i + 5, late_ns if late else 100),
            (1, "kernel", "b", 1_000 * i + 6, 100 + late * other_ns),
        ]
        ops += [(2, "kernel", "c", 1_000 * i + 7, 9_000 * late), (1, "memcpy", "d", 1_000 * i + 8, 9_000 * late)]
    columns = [list(column) for column in zip(*ops, strict=True)]
    frame = pl.DataFrame(
        {"process": columns[0], "op_kind": columns[1], "name": columns[2], "call_start_ns": columns[3],
         "start_ns": [0] * len(ops), "end_ns": columns[4], "grid": [1] * len(ops)},
        schema_overrides={"name": pl.Categorical},
    )  # fmt: skip
    table = pl.DataFrame(cpu, schema=["process", "steady", "start_ns"], orient="row")
    return SimpleNamespace(steps=SimpleNamespace(process=1, cpu=table), steady_ops=frame)


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        (growing(300), " 100 % of the growth is the kernel a, 100 ns to 300 ns a step."),
        (growing(115, other_ns=85), " 85 % of the growth is the kernel b, 100 ns to 185 ns a step."),
        (growing(300, steps=7), ""),
        (growing(100), ""),
        (growing(50, other_ns=150), " 100 % of the growth is the kernel b, 100 ns to 250 ns a step."),
    ],
)
def test_what_grows_is_the_kernel_of_the_shown_process_that_grows_most(
    monkeypatch: pytest.MonkeyPatch, profile: Any, words: str
) -> None:
    monkeypatch.setattr(growth, "_allocator", lambda _: "")
    assert growth.words(profile) == words


@pytest.mark.parametrize(
    ("rows", "count"),
    [
        ([(1, "op", False, 10), (1, "op", False, 20)], 2),
        ([(1, "op", False, 9), (1, "op", False, 21)], 0),  # outside of the steady steps
        ([(2, "op", False, 15), (1, "module", False, 15), (1, "op", True, 15)], 0),
        ([(2, "op", False, 15), (1, "op", False, 15)], 1),
    ],
)
def test_operators_cost_that_were_recorded_in_the_steady_steps(rows: list[Any], count: int) -> None:
    frame = pl.DataFrame(rows, schema=["process", "kind", "repeated", "start_ns"], orient="row")
    windows = pl.DataFrame({"process": [2, 1], "start_ns": [0, 10], "end_ns": [99, 20]})
    profile: Any = SimpleNamespace(
        steps=SimpleNamespace(cpu_windows=windows, process=1), ranges=SimpleNamespace(ranges=frame)
    )
    checks = probe_checks.operator_cost(profile)
    assert [c.detail.split()[0] for c in checks] == [str(count)] * bool(count)
    profile.steps.cpu_windows = windows.head(1)
    assert probe_checks.operator_cost(profile) == []


#: The least time of 1,000 ns at which a line is named.
LEAST = int(np.ceil(1_000 * IDLE_AT_LINE_SHARE))


@pytest.mark.parametrize(
    ("stacks", "own_ns", "line"),
    [
        ({0: LEAST, 1: 300, -1: 700 - LEAST}, 0, "train.py:3"),
        ({0: LEAST - 1, 1: 300, -1: 701 - LEAST}, 0, None),
        ({0: LEAST, 1: 300}, 700 - LEAST, "train.py:3"),
        ({0: LEAST - 1, 1: 300}, 701 - LEAST, None),
        ({-1: 1_000}, 0, None),
        ({}, 0, None),
        ({1: LEAST + 1, 0: 300, -1: 699 - LEAST}, 0, "net.py:7"),
    ],
)  # fmt: skip
def test_the_line_with_much_of_the_idle_time_is_named(
    monkeypatch: pytest.MonkeyPatch, stacks: dict[int, int], own_ns: int, line: str | None
) -> None:
    """Without tracing: as recorded, the first line has all of it."""
    ns, real = [stack == 0 for stack in stacks], [float(each) for each in stacks.values()]
    idle = pl.DataFrame(
        {"stack": list(stacks), "ns": ns, "real_ns": real},
        schema={"stack": pl.Int64, "ns": pl.Int64, "real_ns": pl.Float64},
    )
    monkeypatch.setattr(line_of_most, "by_line", lambda _: idle)
    places = pl.DataFrame({"file": ["/job/train.py", "/job/net.py"], "line": [3, 7], "function": ["f", "g"]})
    code = SimpleNamespace(places=places, places_of=lambda stack: stack)
    pieces = pl.DataFrame({"real_ns": [*stacks.values(), own_ns]})
    profile: Any = SimpleNamespace(code=lambda: code, recorded=lambda _: True, once=lambda _: pieces)
    share = max(stacks.values(), default=0) / 1_000
    found = line_of_most.idle(profile)
    assert found == line or (found is not None and (found.short, found.share) == (line, share))
    profile.recorded = lambda _: False
    assert line_of_most.idle(profile) is None
    profile.recorded, profile.code = lambda _: True, lambda: None
    assert line_of_most.idle(profile) is None


@pytest.mark.parametrize(
    ("turned", "line", "share"),
    [(0.0, "net.py:7", 0.6), (0.1, "net.py:7", 0.54), (0.6, "train.py:3", 0.54 + 0.016), (1.0, "train.py:3", 0.9)],
)
def test_what_was_waiting_for_a_later_rank_is_idle_at_its_lines(
    monkeypatch: pytest.MonkeyPatch, turned: float, line: str, share: float
) -> None:
    """Of the shown idle time 4 % are at the first line and 60 % at the second; the later rank has 90 % at the first, by another row."""

    def rank(stacks: dict[int, int], files: list[tuple[str, int]]) -> Any:
        places = pl.DataFrame([(*file, "f") for file in files], schema=["file", "line", "function"], orient="row")
        pieces = pl.DataFrame({"stack": list(stacks), "real_ns": [float(ns) for ns in stacks.values()]})
        return SimpleNamespace(
            code=lambda: SimpleNamespace(places=places, places_of=lambda stack: stack),
            recorded=lambda _: True,
            once=lambda _: pieces,
            pieces=pieces,
        )

    replay = object.__new__(line_of_most.Replay)
    monkeypatch.setattr(line_of_most.Replay, "turned_share", turned)
    files = [("/job/train.py", 3), ("/job/net.py", 7)]
    here, late = rank({0: 40, 1: 600, -1: 360}, files), rank({1: 180, -1: 20}, files[::-1])
    monkeypatch.setattr(line_of_most, "by_line", lambda profile: profile.pieces)
    monkeypatch.setattr(line_of_most, "replay_of", lambda _: replay)
    monkeypatch.setattr(line_of_most, "late_rank_of", lambda _: late)
    found = line_of_most.idle(here)
    assert found is not None and (found.short, round(found.share, 6)) == (line, round(share, 6))


WORK, WHOLE = int(np.ceil(1_000 * GPU_AT_LINE_SHARE)), int(1_000 * WHOLE_AT_LINE_SHARE)


@pytest.mark.parametrize(
    ("ns", "line"),
    [({0: WORK, 1: 300, -1: 700 - WORK}, "train.py:3"), ({0: WORK - 1, 1: 300, -1: 701 - WORK}, None),
     ({0: WHOLE - 1, 1: 1_001 - WHOLE}, "train.py:3"), ({0: WHOLE, 1: 1_000 - WHOLE}, None), ({-1: 1_000}, None), ({}, None)],
)  # fmt: skip
def test_the_line_with_much_of_the_gpu_work_is_named_unless_it_calls_the_whole_model(
    ns: dict[int, int], line: str | None
) -> None:
    """The work of another device counts for nothing."""
    places = pl.DataFrame({"file": ["/job/train.py", "/job/net.py"], "line": [3, 7], "function": ["f", "g"]})
    stack = np.array([*ns, 1])
    rows = {
        "op": range(len(stack)),
        "cls": "compute",
        "process": 1,
        "device": [*[0] * len(ns), 1],
        "start_ns": 0,
        "end_ns": [*ns.values(), 9_000],
    }
    profile: Any = SimpleNamespace(
        code=lambda: SimpleNamespace(places=places, places_of=lambda stacks: stacks, op=stack),
        recorded=lambda _: True,
        steady_ops=pl.DataFrame(rows),
    )
    share = max(ns.values(), default=0) / 1_000
    found = line_of_most.gpu_work(profile, 1, 0)
    assert found == line or (found is not None and (found.short, found.share) == (line, share))
    profile.recorded = lambda _: False
    assert line_of_most.gpu_work(profile, 1, 0) is None


def test_the_line_with_most_of_the_communication_that_nothing_hides_is_named() -> None:
    """That of line 3 is longer and hidden, that of line 7 is not; what two of them share is the first one's, and counts once."""
    places = pl.DataFrame({"file": ["/job/train.py", "/job/net.py"], "line": [3, 7], "function": ["f", "g"]})
    rows = {
        "op": [0, 1, 2, 3], "process": 1, "device": 0, "cls": ["comm", "compute", "comm", "comm"],
        "start_ns": [0, 0, 100, 130], "end_ns": [90, 80, 150, 160],
    }  # fmt: skip
    comm, compute = 2, 1  # bits of the ledger's classes
    activity = StepFunction(np.array([0, 80, 90, 100, 160]), np.array([comm | compute, comm, 0, comm]))
    profile: Any = SimpleNamespace(
        code=lambda: SimpleNamespace(places=places, places_of=lambda stacks: stacks, op=np.array([0, 0, 1, 0])),
        recorded=lambda _: True,
        steady_ops=pl.DataFrame(rows),
        ledgers=SimpleNamespace(activity={(1, 0): activity}),
    )
    assert line_of_most.communication(profile, 1, 0) == ("/job/net.py", 7, 50 / 70)
    profile.steady_ops = profile.steady_ops.filter(pl.col("cls") == "compute")
    assert line_of_most.communication(profile, 1, 0) is None


@pytest.mark.parametrize(
    ("text", "ranges", "ops", "of_others"),
    [("No NVTX events collected", 1, 0, True), ("No NVTX events collected", 0, 1, False), ("No CUDA events collected", 0, 1, True),
     ("No CUDA events collected", 1, 0, False), ("Events are missing", 1, 1, False)],
)  # fmt: skip
def test_what_nsys_says_of_other_processes_is_no_alarm(text: str, ranges: int, ops: int, of_others: bool) -> None:
    profile: Any = SimpleNamespace(
        steady_ops=pl.DataFrame({"x": [0] * ops}), ranges=SimpleNamespace(ranges=pl.DataFrame({"x": [0] * ranges}))
    )
    assert row_checks._of_others(profile, text) == of_others


@pytest.mark.parametrize(
    ("kinds", "with_work", "settled"),
    [([Call.LAUNCH, Call.SYNC], [0, None], True), ([Call.LAUNCH, Call.LAUNCH], [0], False), ([Call.SYNC], [], False)],
)
def test_events_that_nsys_calls_possibly_missing_are_there_where_each_launch_has_work(
    kinds: list[str], with_work: list[int | None], settled: bool
) -> None:
    profile = launched(kinds, with_work)
    profile.once = lambda asked: asked(profile)
    assert bool(row_checks._settled(profile, "Not all CUDA events might have been collected")) == settled
    assert row_checks._settled(profile, "nobody knows this message") == ""


@pytest.mark.parametrize(
    ("status", "probe", "settled"), [("ok", True, True), ("warn", True, False), ("ok", False, False)]
)
def test_ranges_are_all_there_where_the_probe_counted_as_many(
    monkeypatch: pytest.MonkeyPatch, status: str, probe: bool, settled: bool
) -> None:
    counted_ranges = [SimpleNamespace(check="other", status="ok"), SimpleNamespace(check="probe ranges", status=status)]
    monkeypatch.setattr(probe_checks, "probe_ranges", lambda _: counted_ranges)
    profile = launched([Call.LAUNCH], [0])
    profile.trace.capture.probe = [{}] * probe
    assert bool(row_checks._settled(profile, "Not all NVTX events might have been collected")) == settled

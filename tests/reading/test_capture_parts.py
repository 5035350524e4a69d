"""Of a long capture some steps are read: they tell what all of them tell, and what they cannot tell is counted or all is read."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsysx import pipeline
from nsysx.events import sampling
from nsysx.model import Summary
from nsysx.reading import load, schema
from nsysx.reading.capture_parts import Clock
from tests.builder import Report

US, MS = 1_000, 1_000_000
STEPS, LONG, STALL_NS = 640, 301, 30 * MS


def run_of(
    count: int = STEPS,
    *,
    lag_ns: int = 0,
    stall_ns: int = STALL_NS,
    length_ns: Callable[[int], int] = lambda i: 1 * MS + (i % 7) * 20 * US,
    processes: int = 1,
) -> Report:
    """``count`` steps of 1.06 ms on average in one epoch; the loader of step LONG stalls, and GPU work runs ``lag_ns`` late."""
    report = Report()
    report.gpu(pids=[(100, 0)])
    for pid in range(100, 100 + processes):
        process = report.process(pid)
        main, autograd = process.thread(pid, "python"), process.thread(pid + 50, "pt_autograd_0")
        main.call("cuLibraryLoadData", 1 * US, 9 * US)
        start = 20 * US
        for i in range(count):
            wait = stall_ns if i == LONG else 0
            end = start + length_ns(i) + wait
            at = start + wait
            main.add_range(f"step {i}", start, end, domain="nsysx")
            main.add_range("data DataLoader", start + 1 * US, at + 8 * US, domain="nsysx")
            main.memcpy(
                at + 9 * US, 4 * US, kind="HtoD", bytes=1 << 16, gpu_start=at + 20 * US + lag_ns, gpu_dur=9 * US
            )
            main.add_range("forward", at + 15 * US, at + 80 * US, domain="nsysx")
            main.add_range(":Net", at + 16 * US, at + 79 * US, domain="nsysx")
            main.launch(
                at + 30 * US, 5 * US, kernel="gemm", gpu_start=at + 60 * US + lag_ns, gpu_dur=(200 + i % 7) * US
            )
            main.add_range("backward", at + 90 * US, at + 190 * US, domain="nsysx")
            autograd.launch(
                at + 100 * US, 5 * US, kernel="gemm_bwd", gpu_start=at + 300 * US + lag_ns, gpu_dur=300 * US
            )
            main.event_record(1, at=at + 195 * US, stream=7)
            main.add_range("optimizer AdamW", at + 200 * US, at + 250 * US, domain="nsysx")
            main.launch(at + 210 * US, 5 * US, kernel="adam", gpu_start=at + 620 * US + lag_ns, gpu_dur=100 * US)
            main.sync("cudaStreamSynchronize_v3020", at=at + 260 * US, dur=(640 * US if not lag_ns else 9 * US))
            start = end
        main.add_range("epoch", 15 * US, start + 5 * US)
        main.launch(start + 10 * US, 5 * US, kernel="eval", gpu_start=start + lag_ns + 40 * US, gpu_dur=50 * US)
    return report


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of().write(tmp_path_factory.mktemp("long") / "r.sqlite")


@pytest.fixture(autouse=True)
def every_report_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "LONG_CAPTURE_ROWS", 0)


@pytest.fixture(scope="module")
def both(path: Path) -> tuple[Summary, Summary]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "LONG_CAPTURE_ROWS", 0)
        return pipeline.summarize([path], every_step=True), pipeline.summarize([path])


def test_a_few_steps_tell_what_all_of_them_tell(both: tuple[Summary, Summary]) -> None:
    whole, parts = both
    assert whole.steps.sampled is None and parts.steps.sampled is not None
    assert len(parts.steps.rows) == parts.steps.sampled["read"] < whole.steps.count // 3
    assert parts.steps.count == whole.steps.count == STEPS
    (before,), (after,) = (s.rows("gpu_ledger") for s in both)
    usual = [r for r in whole.steps.rows if r["steady"] and r["number"] not in (LONG - 1, LONG)]
    mean = np.mean([r["gpu_ns"] for r in usual])
    assert after["window_ns"] / parts.steps.scope.steps == pytest.approx(mean, rel=0.002)
    assert after["busy_ns"] / parts.steps.scope.steps == pytest.approx(
        np.mean([r["gpu_compute_ns"] + r["gpu_copy_ns"] for r in usual]), rel=0.002
    )
    assert after["window_ns"] == after["busy_ns"] + after["idle_ns"]
    assert sum(after["idle_causes"].values()) == after["idle_ns"]
    assert before["idle_causes"].keys() == after["idle_causes"].keys()
    modules = [{r["path"]: r["kernels"] / s.steps.scope.steps for r in s.rows("modules")} for s in both]
    assert modules[0] == modules[1]


def test_the_error_is_told_and_is_the_true_one(both: tuple[Summary, Summary]) -> None:
    whole, parts = both
    told = parts.steps.sampled
    assert told is not None
    lengths = np.diff([r["start_ns"] for r in whole.steps.rows])
    first, last = parts.steps.steady or (0, 0)
    read = lengths[first : last + 1]
    others = np.delete(lengths, LONG)[48:]
    assert told["usual_ns"] == pytest.approx(others.mean(), abs=1)
    assert told["error"] == pytest.approx(read.mean() / others.mean() - 1, abs=1e-6)
    assert abs(told["error"]) < 0.001
    (check,) = [c for c in parts.quality if c.check == "steps read"]
    assert f"of {STEPS} steps {told['read']} were read" in check.detail and "--every-step" in check.fix
    assert not [c for c in whole.quality if c.check == "steps read"]


def test_what_is_called_a_total_counts_every_row(both: tuple[Summary, Summary]) -> None:
    whole, parts = both
    unknown = ("gpu_ops_without_call", "api_by_kind")
    assert {k: v for k, v in parts.totals.items() if k not in unknown} == {
        k: v for k, v in whole.totals.items() if k not in unknown
    }
    kinds = whole.totals["api_by_kind"]
    assert parts.totals["api_by_kind"] == {k: {**v, "self_ns": None} for k, v in kinds.items()}


def test_the_time_of_the_loop_is_that_of_all_steps(both: tuple[Summary, Summary]) -> None:
    whole, parts = (s.steps.coverage for s in both)
    assert whole is not None and parts is not None
    assert parts["wall_ns"] == parts["steady_ns"] + sum(r["ns"] for r in parts["rest"])
    assert parts["wall_ns"] == pytest.approx(whole["wall_ns"], rel=0.001)
    assert parts["share"] == pytest.approx(whole["share"], abs=0.001)
    every, rows = both[1].steps.all_steady, both[0].steps.rows
    assert every is not None
    assert every["steps"] == sum(not r["warmup"] for r in rows) - 1
    assert every["high_ns"] == max(r["cpu_ns"] for r in rows)


def test_a_rare_long_step_is_read_and_explained(both: tuple[Summary, Summary]) -> None:
    whole, parts = (next(f for f in s.findings if f.code == "NSX109") for s in both)
    assert parts.title == whole.title and "data loading" in parts.title
    assert parts.cost_ns_per_step == pytest.approx(whole.cost_ns_per_step, rel=0.03)
    assert parts.saving_ns_per_step is None, "the steps that the figures are of have no such step"


def test_a_range_across_the_parts_is_one(path: Path) -> None:
    trace = load.load(path, choice=sampling.CHOICE)
    assert trace.sampled is not None and len(trace.seams) >= 2
    epochs = trace.nvtx.filter(pl.col("text").cast(pl.String) == "epoch")
    assert epochs.height == 1
    assert epochs["start_ns"][0] < trace.seams[0] and epochs["end_ns"][0] > trace.seams[-1]
    every = load.load(path)
    for name in ("runtime", "kernel", "memcpy", "event", "sync"):
        assert 0 < trace.frames[name].height < every.frames[name].height / 2, name
    assert trace.nvtx["text"].cast(pl.String).str.contains("^step").sum() == sum(b - a for a, b in trace.sampled.parts)
    assert "eval" in trace.kernel["name"].cast(pl.String).to_list(), "what follows the last step is read"


def test_every_step_reads_all_and_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = pipeline.summarize([path], every_step=True).to_json()
    monkeypatch.setattr(load, "LONG_CAPTURE_ROWS", 1 << 40)
    assert every == pipeline.summarize([path]).to_json()


@pytest.mark.parametrize(
    "chosen", [{"steps": "10:40"}, {"steps": "all"}, {"step_range": "^step"}, {"time_range": "0:0.3"}], ids=str
)
def test_who_names_steps_gets_them(path: Path, chosen: dict[str, str]) -> None:
    assert pipeline.summarize([path], **chosen).steps.sampled is None  # type: ignore[arg-type]


def test_work_that_runs_late_belongs_to_its_step(tmp_path: Path) -> None:
    """The host is five steps ahead: work of the last step of a part runs when its calls are long over."""
    path = run_of(lag_ns=5 * MS, stall_ns=0).write(tmp_path / "r.sqlite")
    whole, parts = pipeline.summarize([path], every_step=True), pipeline.summarize([path])
    assert parts.steps.sampled is not None
    per_step = [s.rows("gpu_ledger")[0]["busy_ns"] / s.steps.scope.steps for s in (whole, parts)]
    assert per_step[1] == pytest.approx(per_step[0], rel=0.002)
    assert all(r["index"] == r["number"] for r in parts.steps.rows), "steps are numbered as in the capture"
    counts = {r["number"]: r["gpu_compute_ns"] for r in whole.steps.rows if not r["cut"]}
    same = [r for r in parts.steps.rows if not r["cut"]]
    assert all(r["gpu_compute_ns"] == counts[r["number"]] for r in same)


@pytest.mark.parametrize(
    "unlike",
    [
        {"count": 300},
        {"processes": 2, "stall_ns": 0},  # each has its own
        {"stall_ns": 900 * MS},  # the long step is what the report is about
        {"stall_ns": 0, "length_ns": lambda i: 1 * MS + 3 * MS * (i // 220) ** 2},  # no stretch has lengths as all have
        {"stall_ns": 0, "length_ns": lambda i: 1 * MS + i * 4 * US},
    ],
    ids=["few", "two processes", "one long step", "three regimes", "growing"],
)
def test_where_some_steps_do_not_stand_for_all_every_step_is_read(unlike: dict[str, Any], tmp_path: Path) -> None:
    assert pipeline.summarize([run_of(**unlike).write(tmp_path / "r.sqlite")]).steps.sampled is None


@pytest.mark.parametrize(
    "fault",
    ["a kernel that ends before it begins", "a call that ends before it begins", "a call with an impossible name"],
)
def test_rows_that_must_be_looked_at_are_all_read(fault: str, tmp_path: Path) -> None:
    """One call in the middle, of a step that would not be read."""
    path = run_of(stall_ns=0).write(tmp_path / "r.sqlite")
    assert pipeline.summarize([path]).steps.sampled is not None
    with closing(sqlite3.connect(path)) as base:
        table = (
            "CUPTI_ACTIVITY_KIND_KERNEL"
            if fault == "a kernel that ends before it begins"
            else "CUPTI_ACTIVITY_KIND_RUNTIME"
        )
        change = "nameId = -4" if fault == "a call with an impossible name" else '"end" = "start" - 5'
        middle = f"(SELECT max(rowid) / 2 FROM {table})"
        base.execute(f"UPDATE {table} SET {change} WHERE rowid = {middle}")
        base.commit()
    assert pipeline.summarize([path]).steps.sampled is None


def test_steps_that_differ_on_the_device_are_all_read(path: Path) -> None:
    profile = pipeline.gather(path, pipeline.ReadingOptions())
    assert profile.trace.sampled is not None and sampling.stands(profile)
    other = replace(profile.trace.sampled, lengths_ns=profile.trace.sampled.lengths_ns * 11 // 10)
    assert not sampling.stands(replace(profile, trace=replace(profile.trace, sampled=other)))
    (begin, behind), *rest = profile.trace.sampled.parts
    fewer = replace(profile.trace.sampled, parts=((begin, behind - 1), *rest))
    assert not sampling.stands(replace(profile, trace=replace(profile.trace, sampled=fewer))), (
        "not the steps that were chosen"
    )


def test_work_that_only_other_steps_have_is_noticed(tmp_path: Path) -> None:
    """Every third step of the middle has kernels of three times the length, behind which nobody waits."""
    report = run_of(stall_ns=0, lag_ns=5 * MS)
    path = report.write(tmp_path / "r.sqlite")
    assert pipeline.summarize([path]).steps.sampled is not None
    with closing(sqlite3.connect(path)) as base:
        table = "CUPTI_ACTIVITY_KIND_KERNEL"
        low, high = base.execute(f"SELECT max(rowid) / 8, max(rowid) / 3 FROM {table}").fetchone()
        base.execute(
            f'UPDATE {table} SET "end" = "end" + 90000 WHERE rowid BETWEEN ? AND ? AND rowid % 3 = 0', (low, high)
        )
        base.commit()
    assert pipeline.summarize([path]).steps.sampled is None


def test_a_text_that_is_no_utf8_hides_no_step(tmp_path: Path) -> None:
    path = run_of(stall_ns=0).write(tmp_path / "r.sqlite")
    with closing(sqlite3.connect(path)) as base:
        top = base.execute("SELECT max(id) FROM StringIds").fetchone()[0]
        base.execute("INSERT INTO StringIds (id, value) VALUES (?, CAST(x'ff73746570' AS TEXT))", (top + 1,))
        base.commit()
    assert pipeline.summarize([path]).steps.sampled is not None


spans = st.lists(st.integers(1, 50), min_size=3, max_size=11).filter(lambda gaps: len(gaps) % 2 == 1)


@settings(max_examples=60, deadline=None)
@given(spans, st.lists(st.tuples(st.integers(-20, 300), st.integers(0, 300)), max_size=30))
def test_the_clock_keeps_order_and_lengths_within_a_part(gaps: list[int], rows: list[tuple[int, int]]) -> None:
    borders = np.cumsum(gaps).tolist()
    windows = [(-(1 << 60), borders[0]), *zip(borders[1::2], borders[2::2], strict=True)]
    shifts, end = [0], borders[0]
    for a, b in windows[1:]:
        shifts.append(end + 1 - a)
        end += 1 + b - a
    clock = Clock(windows, shifts)
    frame = pl.DataFrame(
        {"start_ns": [a for a, _ in rows], "end_ns": [a + d for a, d in rows]},
        schema={"start_ns": pl.Int64, "end_ns": pl.Int64},
    ).sort("start_ns")
    within = clock.within(frame)
    kept = [(a, e) for a, e in frame.iter_rows() if any(w <= a < b for w, b in windows)]
    assert within.height == len(kept)
    assert within["start_ns"].is_sorted()
    for (start, stop), (a, e) in zip(within.iter_rows(), kept, strict=True):
        until = next(b for w, b in windows if w <= a < b)
        assert stop - start == min(e, until) - a
    nvtx = frame.with_columns(event_type=pl.lit(schema.NVTX_PUSH_POP, dtype=pl.Int64))
    ranges = clock.ranges(nvtx)
    shared = [sum(max(0, min(e, b) - max(a, w)) for w, b in windows) for a, e in frame.iter_rows()]
    seams = sum(1 for _ in clock.seams)
    assert ranges.height >= sum(ns > 0 for ns in shared)
    assert (ranges["end_ns"] >= ranges["start_ns"]).all()
    total = int((ranges["end_ns"] - ranges["start_ns"]).sum())
    assert sum(shared) <= total <= sum(shared) + seams * ranges.height

"""What checks count of launches, work and messages, and what evidence stands beside a verdict, on random small frames."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from nsysx import units
from nsysx.catalogue import Call, StepLimit, StepPart
from nsysx.judging import gpu_work_checks, other_work, probe_checks, tracing_checks, verdict, waiting
from nsysx.judging.idle_parts import MIGRATIONS
from nsysx.judging.judging_bounds import GPU_IS_LIMIT_SHARE, LIMITING_SHARE, MOST_SKEW_NS, OTHERS_WORK_SHARE
from nsysx.judging.other_work import OtherWork
from tests.judging.test_references_of_limits import OTHER, PROCESS, limits_of
from tests.random_tables import always, columns, profile, rounds, rows


def test_launches_graphs_and_work_without_calls_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    for source in rounds(120):
        of = columns(source, 8).names("kind", (Call.LAUNCH, Call.GRAPH_LAUNCH, Call.COPY)).add("gpu_ops", (0, 1, 2))
        calls = of.frame()
        ops = columns(source, 8).times().names("op_kind", ("kernel", "graph", "memcpy"))
        frame = ops.add("call", (None, 0, 1)).add("copy_kind", (None, 1, *MIGRATIONS)).frame()
        early = [source.choice((None, 0, 5, MOST_SKEW_NS + 5)) for _ in range(frame.height)]
        frame = frame.with_columns(
            call_start_ns=pl.Series(
                [None if e is None else r["start_ns"] + e for e, r in zip(early, rows(frame), strict=True)],
                dtype=pl.Int64,
            )
        )
        lost = [source.random() < 0.3 for _ in range(calls.height)]
        captured, cut, of_steps = source.random() < 0.3, source.random() < 0.3, source.choice((0, 0, 2))
        monkeypatch.setattr(gpu_work_checks.lost_kernels, "lost", always(pl.Series(lost, dtype=pl.Boolean)))
        monkeypatch.setattr(gpu_work_checks, "_cut_at_limit", always(cut))
        told: dict[str, Any] = {}
        monkeypatch.setattr(
            gpu_work_checks,
            "_without_kernel",
            lambda _, cut, single, launches, told=told: told.update(cut=cut, single=single, launches=launches) or [],
        )
        monkeypatch.setattr(
            gpu_work_checks,
            "_graphs",
            lambda bars, ns, empty, told=told: told.update(bars=bars, bars_ns=ns, empty=empty) or [],
        )
        monkeypatch.setattr(
            gpu_work_checks,
            "_lost_work_check",
            lambda _, missing, launches, told=told: told.update(missing=missing, launches=launches),
        )
        shown = profile(
            attributed=SimpleNamespace(gpu_ops=frame, api_calls=calls),
            steps=SimpleNamespace(lost=of_steps),
            trace=SimpleNamespace(graph_node=pl.DataFrame({"x": [1] * captured}), capture=SimpleNamespace(probe=[])),
        )
        if not frame.height:
            continue
        checks = {c.check: c for c in gpu_work_checks.checks(shown) if c is not None}
        launches = sum(r["kind"] in Call.LAUNCHES for r in rows(calls))
        empty = sum(r["kind"] == Call.GRAPH_LAUNCH and r["gpu_ops"] == 0 for r in rows(calls))
        bars = [r for r in rows(frame) if r["op_kind"] == "graph"]
        assert (told["bars"], told["bars_ns"]) == (len(bars), sum(r["end_ns"] - r["start_ns"] for r in bars))
        assert told["empty"] == (0 if of_steps else empty)
        if of_steps:
            assert (told["missing"], told["launches"]) == (sum(lost) + empty, launches)
        else:
            assert ("single" in told) == (any(lost) and (cut or not captured))
            assert told.get("single", sum(lost)) == sum(lost) and told.get("launches", launches) == launches
        orphans = sum(r["call"] is None and r["copy_kind"] not in MIGRATIONS for r in rows(frame))
        moves = sum(r["copy_kind"] in MIGRATIONS for r in rows(frame))
        check = checks["gpu ops without call"]
        assert (check.status == "warn") == bool(orphans)
        if orphans:
            assert f" ({units.share(orphans, frame.height)}) is not in the capture" in check.detail
        else:
            assert ("page migration" in check.detail) == bool(moves)
        ahead = [e for e in early if e]
        assert ("clock skew" in checks) == bool(ahead)
        if ahead:
            assert checks["clock skew"].status == ("warn" if max(ahead) > MOST_SKEW_NS else "ok")
            assert f"({units.several(len(ahead), 'time')})" in checks["clock skew"].detail
        seen |= {*told, check.status}
    assert len(seen) > 7


def test_who_else_works_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = 0
    for source in rounds(120):
        places = [(PROCESS, 0), (PROCESS, 1), (OTHER, 0), (9, 0)]
        known = [
            None,
            SimpleNamespace(gpu=None),
            SimpleNamespace(gpu=3),
            SimpleNamespace(gpu=3),
            SimpleNamespace(gpu=4),
        ]
        limits = {p: g for p in places if (g := source.choice(known)) is not None}
        busy = source.choice((0, 9, 10, 400))
        asked: list[Any] = []
        monkeypatch.setattr(
            other_work,
            "_work_at",
            lambda _, others, busy=busy, asked=asked: asked.append(others) or OtherWork(busy if others else 0, 5),
        )
        shown = profile(
            process=PROCESS,
            device=source.choice((0, 0, None)),
            window=(100, 1_100),
            trace=SimpleNamespace(limits=limits),
            ledgers=SimpleNamespace(activity=dict.fromkeys(places)),
        )
        checks = other_work.shared_gpu(shown)
        own = limits.get((PROCESS, 0))
        if shown.device is None or own is None or own.gpu is None:
            assert checks == []
            continue
        others = [p for p in places[2:] if p in limits and limits[p].gpu == own.gpu]
        assert asked == [others]
        assert bool(checks) == (bool(others) and busy >= OTHERS_WORK_SHARE * 1_000)
        if checks:
            seen += 1
            assert units.share(busy, 1_000) in checks[0].detail and checks[0].detail.startswith(
                "process " if len(others) == 1 else f"{len(others)} other processes"
            )
    assert seen > 5


def test_synchronizes_right_after_a_copy_from_pageable_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = 0
    for source in rounds(120):
        count = source.randrange(1, 12)
        kinds = [source.choice((Call.SYNC, Call.COPY, Call.LAUNCH, Call.GRAPH_LAUNCH)) for _ in range(count)]
        first = source.choice((0, 0, count // 2))  # of another thread
        calls = pl.DataFrame({"call": range(count), "kind": kinds}, schema={"call": pl.Int64, "kind": pl.Categorical})
        of = (
            columns(source)
            .add("call", (None, *range(count)))
            .add("copy_kind", (None, 1, 1, 2))
            .add("src_kind", (None, 0, 0, 1))
        )
        ops = of.frame()
        gpu = SimpleNamespace(
            row=np.arange(count),
            call=np.arange(count),
            previous=lambda row, first=first: np.where((row == 0) | (row == first), -1, row - 1),
        )
        monkeypatch.setattr(waiting, "gpu_calls", always(gpu))
        shown = profile(steady_calls=calls, steady_ops=ops, attributed=SimpleNamespace(api_calls=calls))
        copies = {r["call"] for r in rows(ops) if r["copy_kind"] == 1 and r["src_kind"] == 0 and r["call"] is not None}
        told = [
            (c, c - 1)
            for c in range(count)
            if kinds[c] == Call.SYNC and c not in (0, first) and kinds[c - 1] == Call.COPY and c - 1 in copies
        ]
        seen += len(told)
        assert waiting.uploads(shown).rows() == told
    assert seen > 3


@pytest.mark.parametrize(
    ("text", "explained"),
    [
        ("CUDA hardware tracing used", True),
        ("CUDA trace: Legacy (software) tracing", True),
        ("incomplete CUPTI events dropped: 3", True),
        ("Could not parse 2 CUPTI activity records", False),
        ("No NVTX events collected", False),
        ("something else", False),
    ],
)
def test_what_a_check_of_its_own_says_of_a_message_is_said_once(text: str, explained: bool) -> None:
    assert tracing_checks.is_explained(text) == explained


@pytest.mark.parametrize("parts", [1, 2])
def test_parts_of_a_step_are_not_compared_with_steps(parts: int) -> None:
    steps = SimpleNamespace(parts=parts, process=PROCESS)
    shown = profile(trace=SimpleNamespace(run={"calibration": {"error": "it failed"}}), steps=steps)
    assert bool(probe_checks.profiling_cost(shown)) == (parts == 1)


# --- the verdict's words --------------------------------------------------------------------------------------------------


def test_what_a_verdict_is_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel, launches of others, and the profiler's own time leave it unknown; launches carry what profiling does to them."""
    monkeypatch.setattr(verdict, "_evidence", always(("evidence",)))
    for name in ("without_kernels", "untraced", "profiled", "unknown"):
        monkeypatch.setattr(verdict.limit_words, name, always(name))
    monkeypatch.setattr(verdict.limit_words, "headline", lambda _, __, code, average: f"headline {code} {average}")
    seen = set()
    for source in rounds(200):
        of = limits_of(source)
        if source.random() < 0.2:
            part = source.choice((StepPart.UNTRACED, StepPart.PROFILER))
            of.parts[part] = of.idle_ns
            of = verdict.replace(of, window_ns=sum(of.parts.values()))
        unprofiled, kernels = source.random() < 0.5, source.random() < 0.9
        of = verdict.replace(of, unprofiled=unprofiled, kernels=kernels)
        code = source.choice((StepLimit.GPU, StepLimit.LAUNCH, StepLimit.UNKNOWN, StepLimit.SYNC))
        blamed, course = source.choice(("", "blamed")), source.choice(("", "course"))
        monkeypatch.setattr(verdict, "_limit", always(code))
        monkeypatch.setattr(verdict, "_blamed", always(blamed))
        monkeypatch.setattr(verdict, "_course", always(course))
        found = verdict._judged(profile(), of)
        idle = of.idle_ns
        profiler = of.parts[StepPart.PROFILER] >= GPU_IS_LIMIT_SHARE * idle
        told: Any
        if not kernels:
            told = (StepLimit.UNKNOWN, "without_kernels", ("evidence",))
        elif of.parts[StepPart.UNTRACED] > GPU_IS_LIMIT_SHARE * of.real_ns:
            told = (StepLimit.UNKNOWN, "untraced", ("evidence",))
        elif profiler and idle > LIMITING_SHARE * of.window_ns:
            told = (StepLimit.UNKNOWN, "profiled", ("evidence",))
        else:
            more = [verdict._CAVEAT] * (code == StepLimit.LAUNCH and not unprofiled)
            more += [blamed] * (code != StepLimit.GPU and bool(blamed))
            words = "unknown" if code == StepLimit.UNKNOWN else f"headline {code} {bool(course)} {course}".rstrip()
            told = (code, words, ("evidence", *more))
        assert found == told
        seen.add(told[1].split()[0])
    assert len(seen) == 5


def test_evidence_tells_the_window_its_parts_and_what_lies_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for source in rounds(80):
        of = limits_of(source)
        of = verdict.replace(of, recorded_ns=source.choice((None, 5_000_000)))
        note, course = source.choice(("", "Each 4th step is longer")), source.choice(("", "It grows"))
        passes, divided = source.choice(("", "two passes")), source.choice(("", "work 3 ms"))
        monkeypatch.setattr(verdict, "_course", always(course))
        monkeypatch.setattr(verdict.step_passes, "in_words", always(passes))
        monkeypatch.setattr(verdict, "divided", always(divided))
        where, length = source.choice(("probe", "capture")), source.choice((None, of.window_ns, of.window_ns + 7_000))
        shown = profile(
            steps=SimpleNamespace(trend=SimpleNamespace(note=note), source=where),
            trace=SimpleNamespace(capture=SimpleNamespace(duration_ns=length)),
        )
        lines = verdict._evidence(shown, of)
        busy = sum(of.parts[p] for p in verdict.GPU_PARTS)
        over = "the whole capture" if of.whole else f"{of.steps} steady step{'s' if of.steps > 1 else ''}"
        first = f"GPU 0 busy {units.share(busy, of.window_ns)} of {over} ({units.duration(of.window_ns)})"
        first += ", without the profiler; as recorded: 5.00 ms" if of.recorded_ns else ""
        told = [first]
        told += [f"{'By part: ' if of.whole else 'Each step: '}{divided}"] * bool(divided)
        told += [note] * (bool(note) and not course) + [passes] * bool(passes)
        if where == "capture":
            told += ["The other 7.0 us of the capture are before the first or after the last GPU work"] * (
                length is not None and length > of.window_ns
            )
            told.append(verdict._MARK_STEPS)
        assert list(lines) == told

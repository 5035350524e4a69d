"""The trace: read by Perfetto's own schema it holds what the report holds, each slice once, at its time, under its call."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given as property_of
from hypothesis import strategies as st

from nsysx import pipeline
from nsysx.export import lanes, perfetto
from tests.builder import Report
from tests.export.perfetto_reader import Read, read
from tests.reports import MS, US

Sample = Callable[[str], Path]


def traced(path: Path, **options: object) -> tuple[perfetto.PerfettoTrace, Read, pipeline.Profile]:
    given = pipeline.gather(path, pipeline.ReadingOptions(**options))  # type: ignore[arg-type]
    trace = perfetto.trace(given)
    found = read(b"".join(trace.parts))
    assert not +found.wrong, found.wrong
    assert len(found.slices) == trace.slices
    assert len(found.flows) == trace.flows
    return trace, found, given


def times(frame: pl.DataFrame) -> Counter[tuple[int, int]]:
    return Counter(frame.select("start_ns", "end_ns").iter_rows())


@pytest.mark.parametrize("name", ["masked_nonzero", "gpt_graph", "ddp", "varlen_memory", "tiny_stack"])
def test_what_perfetto_counts_is_what_the_summary_says(sample: Sample, name: str) -> None:
    path = sample(name)
    totals = pipeline.summarize([path], every_table=False).totals
    _, found, given = traced(path)
    by_kind = {"kernel": "kernels", "memcpy": "memcpys", "memset": "memsets", "graph": "opaque_graphs"}
    assert {k: len(found.of(k)) for k in by_kind} == {k: totals[n] for k, n in by_kind.items()}
    assert sum(s.end_ns - s.start_ns for s in found.of("kernel")) == totals["kernel_ns"]  # type: ignore[operator]
    assert len(found.of("api")) == totals["api_calls"]
    assert sum(s.end_ns - s.start_ns for s in found.of("api")) == totals["api_ns"]  # type: ignore[operator]
    assert len(found.flows) == sum(totals[n] for n in by_kind.values()) - totals["gpu_ops_without_call"]
    kernels = given.ops.filter(pl.col("op_kind").cast(pl.String) == "kernel")
    assert Counter((s.start_ns, s.end_ns) for s in found.of("kernel")) == times(kernels)
    assert Counter((s.start_ns, s.end_ns) for s in found.of("api")) == times(given.calls)
    steps = given.ranges.ranges.filter(pl.col("kind").cast(pl.String) == "step")
    assert Counter((s.start_ns, s.end_ns) for s in found.of("step")) == times(steps)


def test_an_arrow_leads_from_the_call_to_its_work(sample: Sample) -> None:
    _, found, given = traced(sample("masked_nonzero"))
    launched = given.ops.drop_nulls("call").select("call_start_ns", "start_ns")
    assert Counter((a.start_ns, b.start_ns) for a, b in found.flows) == Counter(launched.iter_rows())
    assert {b.category for _, b in found.flows} <= {"kernel", "memcpy", "memset"}
    assert {a.category for a, _ in found.flows} == {"api"}


def test_tracks_are_what_an_engineer_looks_for(sample: Sample) -> None:
    _, found, given = traced(sample("masked_nonzero"))
    tracks = {found.track(s.track) for s in found.slices}
    assert {
        "python3",
        "pt_autograd_0 / modules",
        "python3 / modules",
        "python3 / steps and phases",
        "python3 / GPU 0 (NVIDIA H200) / stream 7",
    } <= tracks
    kernel = next(s for s in found.of("kernel") if s.args.get("module") == "hidden.4")
    assert kernel.args["phase"] in {"forward", "backward"}
    assert {"family", "grid", "block"} <= set(kernel.args)
    modules = [s for s in found.slices if found.track(s.track) == "python3 / modules"]
    assert {s.depth for s in modules} >= {0, 1}, "modules lie in the module that calls them"
    names = {d.thread.thread_name for d in found.tracks.values() if d.HasField("thread")}  # type: ignore[attr-defined]
    assert {"python3", "pt_autograd_0"} <= names
    (pid,) = {d.process.pid for d in found.tracks.values() if d.HasField("process")}  # type: ignore[attr-defined]
    assert pid == given.trace.capture.processes[0]["pid"]


def test_counters(sample: Sample) -> None:
    _, found, given = traced(sample("varlen_memory"))
    queue = next(v for k, v in found.counters.items() if "queue" in k)
    assert queue[-1][1] == 0, "everything that was launched has run"
    assert min(v for _, v in queue) >= 0
    rows = given.trace.memory_usage.filter(pl.col("memory_kind") == 2).sort("time_ns")
    assert rows.height
    size = pl.when(pl.col("freed") != 0).then(-pl.col("bytes").abs()).otherwise(pl.col("bytes").abs())
    memory = next(v for k, v in found.counters.items() if k.endswith("device memory of GPU 0"))
    assert memory[-1][1] == rows.select(size.sum()).item()


def test_chosen_steps_alone(sample: Sample) -> None:
    path = sample("masked_nonzero")
    _, whole, _ = traced(path)
    _, found, given = traced(path, steps="4:6")
    assert len(found.of("kernel")) == given.ops.filter(pl.col("op_kind").cast(pl.String) == "kernel").height
    assert 0 < len(found.of("kernel")) < len(whole.of("kernel")) / 4
    assert {int(s.name.split()[-1]) for s in found.of("step")} <= {3, 4, 5, 6}
    assert {4, 5} <= {int(s.name.split()[-1]) for s in found.of("step")}


HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e\x00 /home/jane/secret.py"


def hostile(tmp_path: Path) -> Path:
    report = Report()
    main = report.process(100, name=HOSTILE).thread(100, HOSTILE)
    main.add_range(HOSTILE, 0, 10 * MS)
    main.launch(at=1 * MS, dur=5 * US, kernel=HOSTILE, gpu_start=2 * MS, gpu_dur=MS)
    return report.write(tmp_path / "r.sqlite")


def test_nothing_invisible_and_no_home_folder_in_a_name(tmp_path: Path) -> None:
    given = pipeline.gather(hostile(tmp_path), pipeline.ReadingOptions())
    for redact in (True, False):
        found = read(b"".join(perfetto.trace(given, redact=redact).parts))
        names = {s.name for s in found.slices} | {found.track(t) for t in found.tracks}
        assert any("alert(1)" in n for n in names)
        assert not [n for n in names for c in n if unicodedata.category(c) in ("Cc", "Cf")]
        assert any("jane" in n for n in names) is not redact


def test_what_overlaps_without_nesting_stands_beside(tmp_path: Path) -> None:
    report = Report()
    process = report.process(100)
    main = process.thread(100, "python")
    main.launch(at=10 * US, dur=5 * US, kernel="one", gpu_start=100 * US, gpu_dur=100 * US)
    main.launch(at=20 * US, dur=5 * US, kernel="two", gpu_start=150 * US, gpu_dur=100 * US)
    main.launch(at=30 * US, dur=5 * US, kernel="empty", gpu_start=250 * US, gpu_dur=0)
    _, found, _ = traced(report.write(tmp_path / "r.sqlite"))
    assert {s.name: (found.track(s.track).split(" / ")[-1], s.end_ns - s.start_ns) for s in found.of("kernel")} == {  # type: ignore[operator]
        "one": ("stream 7", 100 * US),
        "two": ("stream 7 (2)", 100 * US),
        "empty": ("stream 7", 0),
    }


def test_work_before_its_call_and_before_the_session(tmp_path: Path) -> None:
    """Clocks of CPU and GPU differ by some microseconds: an arrow still joins the two, and every time is one."""
    report = Report()
    main = report.process(100).thread(100, "python")
    main.launch(at=10 * US, dur=5 * US, kernel="early", gpu_start=8 * US, gpu_dur=US)
    main.call("cudaGetDevice", -5 * US, 2 * US)
    _, found, _ = traced(report.write(tmp_path / "r.sqlite"))
    (pair,) = found.flows
    assert {s.name for s in pair} == {"early", "cudaLaunchKernel"}
    assert sorted(s.start_ns for s in found.slices) == [0, 13 * US, 15 * US]


intervals = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 8)), max_size=12)


@property_of(intervals)
def test_lanes_nest_and_use_no_more_than_they_need(spans: list[tuple[int, int]]) -> None:
    start = np.array([a for a, _ in spans], np.int64)
    end = start + np.array([d for _, d in spans], np.int64)
    lane = lanes.assign(start, end)
    for n in set(lane.tolist()):
        mine = [(int(a), int(b)) for a, b, of in zip(start, end, lane, strict=True) if of == n]
        for i, (a, b) in enumerate(mine):
            for c, d in mine[:i]:
                assert b <= c or d <= a or (c <= a and b <= d) or (a <= c and d <= b)
    crossing = any(a < c < b < d for a, b in zip(start, end, strict=True) for c, d in zip(start, end, strict=True))
    assert bool(lane.any()) is crossing

"""The package against the independent oracle: the same totals, ledgers, idle causes and waits, to the nanosecond."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsysx.errors import NsysxError
from nsysx.events import attribute, correlate, families, ledger, nvtx_ranges, steps
from nsysx.pipeline import summarize
from nsysx.reading.load import load
from tests import builder, oracle, samples, strategies
from tests.builder import Report
from tests.examples import examples

slow = settings(max_examples=examples(30), deadline=None, suppress_health_check=list(HealthCheck))
#: When the sessions of the builder's reports start.
EPOCH_NS = 1_795_228_332_660_273_255
few = settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck))


class Read:
    """Everything that the package makes of a report before it picks windows."""

    def __init__(self, path: Path) -> None:
        self.trace = load(path)
        self.ranges = nvtx_ranges.read(self.trace)
        self.attributed = attribute.attribute(self.trace, correlate.correlate(self.trace), self.ranges)
        self.ledgers = ledger.build(self.trace, self.attributed, self.ranges)
        self.steps = steps.find(self.ranges, self.attributed)


def is_data(r: oracle.Range) -> bool:
    found: bool = nvtx_ranges.meaning(r.name, r.domain == "nsysx")[:2] == ("phase", "data")
    return found


def is_comm(op: oracle.Op) -> bool:
    return op.kind == "kernel" and families.family(op.name) == families.COMMUNICATION


def totals(read: Read) -> dict[str, Any]:
    ns = (pl.col("end_ns") - pl.col("start_ns")).alias("ns")
    calls = read.attributed.api_calls.with_columns(ns, pl.col("name", "kind").cast(pl.String))
    ops = read.attributed.gpu_ops.with_columns(ns, pl.col("name", "op_kind").cast(pl.String))
    result: dict[str, Any] = {}
    for kind, count in (("kernel", "kernels"), ("memcpy", "memcpys"), ("memset", "memsets"), ("graph", "graphs")):
        mine = ops.filter(pl.col("op_kind") == kind)
        result[count], result[f"{kind}_ns"] = mine.height, int(mine["ns"].sum())
    result["api_calls"], result["api_ns"] = calls.height, int(calls["ns"].sum())
    result["gpu_ops_without_call"] = ops["call"].null_count()
    for key, column in (("api", "name"), ("api_by_kind", "kind")):
        grouped = calls.group_by(column).agg(pl.len(), pl.col("ns").sum(), pl.col("self_ns").sum())
        result[key] = {name: tuple(rest) for name, *rest in grouped.iter_rows()}
    kernels = ops.filter(pl.col("op_kind") == "kernel").group_by("name").agg(pl.len(), pl.col("ns").sum())
    result["kernels_by_name"] = {name: tuple(rest) for name, *rest in kernels.iter_rows()}
    return result


def windows(start: int, end: int) -> list[tuple[int, int]]:
    third = (end - start) // 3
    return [(start, end), (start, start + third), (start + third, end)]


def compare(path: Path) -> None:
    read, data = Read(path), oracle.read(path)
    assert totals(read) == oracle.totals(data)
    for (process, device), activity in read.ledgers.activity.items():
        if not len(activity.times):  # a process in which everything happens in one instant
            continue
        for t0, t1 in windows(int(activity.times[0]), int(activity.times[-1])):
            mine = ledger.gpu_parts(activity, np.array([t0]), np.array([t1]))
            truth = oracle.ledger(data, process, device, t0, t1, communication=is_comm)
            assert {k: int(mine[f"{k}_ns"][0]) for k in truth} == truth
            causes = ledger.idle_in(read.ledgers.idle_of(process, device), t0, t1)
            expected = oracle.idle_causes(data, process, device, t0, t1, data_range=is_data)
            assert causes == {k: v for k, v in expected.items() if v}
            assert sum(causes.values()) == truth["idle"]
    calls = read.attributed.api_calls.select(
        "call", "process", "correlation_id", pl.col("name").cast(pl.String), "start_ns", "end_ns"
    )
    waits = read.ledgers.waits.join(calls, on="call")
    split = waits.select("process", "correlation_id", "name", "start_ns", "backlog_ns", "own_op_ns", "host_ns")
    if len({call.key for call in data.calls}) == len(data.calls):
        assert {row[:4]: row[4:] for row in split.iter_rows()} == oracle.wait_split(data)
    for thread, function in read.ledgers.threads.items():
        kinds = calls.join(read.attributed.api_calls.select("call", pl.col("kind").cast(pl.String)), on="call").sort(
            "call"
        )
        names = kinds["kind"].to_list()
        if not len(function.times):  # a thread whose calls all have no length
            continue
        t0, t1 = int(function.times[0]), int(function.times[-1])
        found: dict[str, int] = {}
        for label, ns in zip(function.labels.tolist(), np.diff(function.times).tolist(), strict=True):
            key = names[label] if label >= 0 else "outside"
            found[key] = found.get(key, 0) + ns
        assert {k: v for k, v in found.items() if v} == {
            k: v for k, v in oracle.cpu_ledger(data, thread, t0, t1).items() if v
        }


def innermost(path: Path) -> None:
    """The module of each call is the innermost module range of its thread at its start."""
    read, data = Read(path), oracle.read(path)
    if not read.ranges.ranges.filter(pl.col("own") & (pl.col("kind") == "module")).height:
        return

    def is_module(r: oracle.Range) -> bool:
        own = r.domain == "nsysx"
        return own and r.end_tid == r.global_tid and nvtx_ranges.meaning(r.name, own)[0] == "module"

    rows = read.attributed.api_calls.select("thread", "start_ns", pl.col("module").cast(pl.String), "grade")
    for thread, start, module, _ in rows.iter_rows():
        truth = oracle.innermost(data, thread, start, is_module)
        if truth is not None and truth.end > truth.start:
            kind, name, cls, *_ = nvtx_ranges.meaning(truth.name, True)
            assert module == (name or f"({cls})"), (thread, start, kind)


@pytest.mark.parametrize("name", sorted(builder.CASES))
def test_case(name: str, tmp_path: Path) -> None:
    path = builder.CASES[name]().write(tmp_path / "r.sqlite")
    compare(path)
    innermost(path)


def begun(path: Path, calls: int) -> None:
    """Leave the first so many API calls of a report, with what began by then: the oracle looks at everything for each."""
    with closing(sqlite3.connect(path)) as report, report:
        last = report.execute(
            "SELECT start FROM CUPTI_ACTIVITY_KIND_RUNTIME ORDER BY start LIMIT 1 OFFSET ?", (calls,)
        ).fetchone()
        for (table,) in (
            report.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall() if last else ()
        ):
            if "start" in {column for _, column, *_ in report.execute(f"PRAGMA table_info({table})")}:
                report.execute(f"DELETE FROM {table} WHERE start > ?", last)


@pytest.mark.parametrize("name", samples.KINDS)
def test_sample(name: str, tmp_path: Path) -> None:
    path = samples.unpack(name, tmp_path)
    begun(path, 4_000)
    compare(path)
    innermost(path)


def of(report: Report) -> Path:
    return report.write(Path(tempfile.mkdtemp()) / "r.sqlite")


@slow
@given(strategies.programs())
def test_random_program(report: Report) -> None:
    path = of(report)
    compare(path)
    innermost(path)


@slow
@given(strategies.adversarial())
def test_random_rows(report: Report) -> None:
    compare(of(report))


@few
@given(strategies.programs(schema="3.7.2"))
def test_older_schema(report: Report) -> None:
    compare(of(report))


def essence(path: Path, shift: int = 0) -> Any:
    """The Summary without what a shift or a new numbering may change: names of files, absolute times."""
    summary = summarize([path]).to_json()
    for key in ("capture", "quality"):
        del summary[key]
    for row in summary["steps"]["rows"]:
        for key in ("start_ns", "end_ns", "gpu_start_ns", "gpu_end_ns"):
            row[key] = None if row[key] is None else row[key] - shift
    # A session begins at 0 wherever its events lie, and what lies before the first is told.
    told = summary["verdict"]["evidence"]
    summary["verdict"]["evidence"] = [line for line in told if not line.startswith("The other ")]
    return summary


@few
@given(strategies.reports(), st.integers(0, 5))
def test_order_of_rows_changes_nothing(report: Report, seed: int) -> None:
    try:
        before = essence(of(report))
    except NsysxError:
        return
    report.shuffle(seed)
    assert essence(of(report)) == before


@few
@given(strategies.reports(), st.sampled_from([-7, 1, 1000, EPOCH_NS]))
def test_shifting_all_times_changes_nothing(report: Report, by: int) -> None:
    report.shift(8)  # work from 0 to 0 got no time stamp, and would have one elsewhere
    try:
        before = essence(of(report))
    except NsysxError:
        return
    report.shift(by)
    # An export that counts from 1970 is read as one that counts from the session's start.
    after = essence(of(report), 0 if by == EPOCH_NS else by)
    if any(advice["text"].startswith("Record more") for told in (before, after) for advice in told["answer"]["do"]):
        del (
            before["answer"],
            after["answer"],
        )  # how little the GPU does of a capture depends on the time before the first event
    assert after == before


@few
@given(strategies.programs(), st.integers(0, 5))
def test_renumbering_ids_changes_nothing(report: Report, seed: int) -> None:
    try:
        before = essence(of(report))
    except NsysxError:
        return
    report.renumber(seed)
    assert essence(of(report)) == before

"""Perfetto's own trace processor counts what the frames hold. It is no package: NSYSX_TRACE_PROCESSOR names a binary to run."""

from __future__ import annotations

import csv
import io
import os
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from nsysx import pipeline
from nsysx.export import perfetto

BINARY = os.environ.get("NSYSX_TRACE_PROCESSOR", "")
pytestmark = pytest.mark.skipif(not BINARY, reason="NSYSX_TRACE_PROCESSOR names no trace_processor_shell")


def asked(trace: Path, sql: str) -> list[tuple[str, ...]]:
    """Return the rows of a query."""
    query = trace.with_suffix(".sql")
    query.write_text(sql)
    words = [BINARY, "-q", str(query), str(trace)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return [tuple(row) for row in csv.reader(io.StringIO(done.stdout))][1:]


@pytest.mark.parametrize("name", ["ddp", "gpt", "gpt_graph", "tiny_stack", "varlen_memory"])
def test_it_counts_the_same(sample: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    given = pipeline.gather(sample(name), pipeline.ReadingOptions())
    made = perfetto.trace(given)
    trace = tmp_path / "r.pftrace"
    trace.write_bytes(b"".join(made.parts))
    assert asked(trace, "select name from stats where severity in ('error', 'data_loss') and value != 0;") == []
    ops = given.ops.with_columns(pl.col("op_kind").cast(pl.String))
    wanted = {
        **{kind: ops.filter(pl.col("op_kind") == kind) for kind in ("kernel", "memcpy", "memset")},
        "api": given.calls,
        "step": given.ranges.ranges.filter(pl.col("kind").cast(pl.String) == "step"),
        "module": given.ranges.ranges.filter(pl.col("kind").cast(pl.String) == "module"),
    }
    for category, rows in wanted.items():
        found = asked(trace, f"select ts, dur from slice where category = '{category}';")
        times = rows.select("start_ns", pl.col("end_ns") - pl.col("start_ns")).iter_rows()
        assert Counter((int(ts), int(dur)) for ts, dur in found) == Counter(times), category
    assert asked(trace, "select count(*) from slice;") == [(str(made.slices),)]
    arrows = "select a.ts, b.ts from flow join slice a on a.id = flow.slice_out join slice b on b.id = flow.slice_in;"
    launched = ops.drop_nulls("call").select("call_start_ns", "start_ns").iter_rows()
    assert Counter((int(a), int(b)) for a, b in asked(trace, arrows)) == Counter(launched)
    for what, key in (("process where pid", "process"), ("thread where tid", "thread")):
        tables = (
            (given.ops, given.calls, given.ranges.ranges) if key == "process" else (given.calls, given.ranges.ranges)
        )
        named = {k for t in tables for k in t[key].drop_nulls().to_list()}
        assert asked(trace, f"select count(*) from {what} != 0;") == [(str(len(named)),)]

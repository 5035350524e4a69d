"""The folder of frames: read by polars and by duckdb it gives what the Summary says, and every column is described."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import duckdb
import polars as pl
import pytest

from nsysx import pipeline
from nsysx.export import frames, parquet, to_files
from tests.comparing.test_commands import call
from tests.export.test_perfetto import hostile
from tests.reports import training

Sample = Callable[[str], Path]


def exported(path: Path, folder: Path, **options: object) -> Path:
    chosen = pipeline.ReadingOptions(**options)  # type: ignore[arg-type]
    to_files.write(path, chosen, to=folder, perfetto=None, force=False, redact=True)
    return folder


@pytest.mark.parametrize("name", ["masked_nonzero", "ddp", "varlen_memory"])
def test_polars_and_duckdb_count_what_the_summary_says(sample: Sample, tmp_path: Path, name: str) -> None:
    path = sample(name)
    totals = pipeline.summarize([path], every_table=False).totals
    folder = exported(path, tmp_path / "frames")
    ops, calls = pl.read_parquet(folder / "ops.parquet"), pl.read_parquet(folder / "calls.parquet")
    kernels = ops.filter(pl.col("op_kind") == "kernel")
    assert (kernels.height, calls.height) == (totals["kernels"], totals["api_calls"])
    assert kernels.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item() == totals["kernel_ns"]
    sql = f"""SELECT count(*), sum(o.end_ns - o.start_ns), count(c.call)
        FROM '{folder}/ops.parquet' o LEFT JOIN '{folder}/calls.parquet' c ON o.call = c.call AND o.call_start_ns = c.start_ns
        WHERE op_kind = 'kernel'"""
    (row,) = duckdb.sql(sql).fetchall()
    assert row[:2] == (totals["kernels"], totals["kernel_ns"])
    assert row[2] == kernels["call"].count()
    described = pl.read_parquet(folder / parquet.DICTIONARY)
    for name_ in described.drop_nulls("rows")["frame"].unique():
        file = folder / f"{name_}.parquet"
        mine = described.filter(pl.col("frame") == name_)
        frame = pl.read_parquet(file)
        assert frame.columns == mine["column"].to_list()
        assert [str(t) for t in frame.dtypes] == mine["type"].to_list()
        counted = duckdb.sql(f"SELECT count(*) FROM '{file}'").fetchall()
        assert counted == [(frame.height,)] == [(mine["rows"][0],)]
    assert json.loads((folder / parquet.SUMMARY).read_text())["totals"] == totals


def test_each_step_of_calls_and_ops_is_where_they_were_called(tmp_path: Path) -> None:
    folder = exported(training(6).write(tmp_path / "r.sqlite"), tmp_path / "frames")
    joined = duckdb.sql(f"""SELECT count(*), count(*) FILTER (c.start_ns >= s.start_ns AND c.start_ns < s.end_ns)
        FROM '{folder}/calls.parquet' c JOIN '{folder}/cpu_steps.parquet' s ON c.step = s.index AND c.process = s.process""")
    ((count, inside),) = joined.fetchall()
    assert count == inside > 50
    ops = pl.read_parquet(folder / "ops.parquet").filter(pl.col("op_kind") == "kernel").drop_nulls("step")
    assert ops.group_by("step").len()["len"].unique().to_list() == [4]


def test_codes_are_words_and_what_is_packed_is_unpacked(sample: Sample, tmp_path: Path) -> None:
    path = sample("copies")
    folder = exported(path, tmp_path / "frames")
    ops = pl.read_parquet(folder / "ops.parquet")
    copies = ops.filter(pl.col("op_kind") == "memcpy")
    assert {"HtoD", "DtoH"} <= set(copies["copy_direction"].drop_nulls())
    assert "pageable" in set(copies["source_memory"])
    columns = (
        'gridX, gridY, gridZ, blockX, blockY, blockZ, registersPerThread, "staticSharedMemory" + "dynamicSharedMemory"'
    )
    import sqlite3

    with closing(sqlite3.connect(path)) as base, base:
        truth = sorted(base.execute(f"SELECT start, {columns} FROM CUPTI_ACTIVITY_KIND_KERNEL"))
    shape = [c for c in ops.columns if c.startswith(("grid_", "block_", "registers_", "shared_"))]
    found = ops.filter(pl.col("op_kind") == "kernel").select("start_ns", *shape)
    assert sorted(found.iter_rows()) == truth


def test_units_stand_in_names(sample: Sample, tmp_path: Path) -> None:
    folder = exported(sample("gpt"), tmp_path / "frames")
    described = pl.read_parquet(folder / parquet.DICTIONARY)
    assert not described.filter(pl.col("meaning").str.len_chars() < 4).height
    flat = described.filter(~pl.col("type").str.starts_with("List"))
    for unit, ending in (("ns", "_ns"), ("bytes", "bytes")):
        mine = flat.filter(pl.col("unit") == unit)
        assert mine.height
        assert mine.filter(~pl.col("column").str.ends_with(ending)).height == 0
    nested = described.filter(pl.col("type").str.starts_with("List(Struct"))
    assert nested["type"].unique().to_list() == ["List(Struct({'name': String, 'ns': Int64}))"]
    ledger = pl.read_parquet(folder / "table_gpu_ledger.parquet").explode("idle_causes").unnest("idle_causes")
    assert ledger["ns"].sum() == ledger["idle_ns"][0]


def test_what_was_not_recorded_is_described_with_its_reason(tmp_path: Path) -> None:
    folder = exported(hostile(tmp_path), tmp_path / "frames")
    described = pl.read_parquet(folder / parquet.DICTIONARY).filter(pl.col("frame") == "memory_events")
    assert described["rows"].null_count() == described.height > 3
    assert "not recorded" in described["reason"][0]
    assert not (folder / "memory_events.parquet").exists()
    readme = (folder / parquet.README).read_text()
    assert "Not recorded" in readme
    assert "alert" not in readme


def test_every_declared_frame_is_what_it_declares(tmp_path: Path) -> None:
    given = pipeline.gather(training(4).write(tmp_path / "r.sqlite"), pipeline.ReadingOptions())
    for frame in frames.FRAMES:
        made = frames.event_frame(given, frame.name)
        assert made.columns == [c.name for c in frame.columns]
        assert made.height, frame.name


def test_the_command_writes_all_or_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = training(4).write(tmp_path / "r.sqlite")
    before = report.read_bytes()
    folder, trace = tmp_path / "frames", tmp_path / "t.pftrace"
    code, _, err = call(capsys, monkeypatch, "export", report, "--to", folder, "--perfetto", trace)
    assert code == 0
    assert "ui.perfetto.dev" in err
    assert "described in" in err
    known = {f.name: f.read_bytes() for f in folder.iterdir()}
    assert call(capsys, monkeypatch, "export", report, "--to", folder)[0] == 2, "nothing is overwritten unasked"
    assert {f.name: f.read_bytes() for f in folder.iterdir()} == known
    assert call(capsys, monkeypatch, "export", report, "--to", folder, "--perfetto", trace, "-f")[0] == 0
    assert call(capsys, monkeypatch, "export", report)[0] == 2
    assert call(capsys, monkeypatch, "export", report, "--perfetto", report, "-f")[0] == 2
    assert call(capsys, monkeypatch, "export", report, "--perfetto", "/dev/null", "-f")[0] == 2
    new = tmp_path / "new"
    (trace.parent / "other.pftrace").mkdir()
    assert (
        call(capsys, monkeypatch, "export", report, "--to", new, "--perfetto", trace.parent / "other.pftrace")[0] == 2
    )
    assert not new.exists()
    assert call(capsys, monkeypatch, "export", tmp_path / "no.sqlite", "--to", new)[0] == 3
    assert not new.exists()
    assert report.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["frames", "other.pftrace", "r.sqlite", "t.pftrace"]


def test_a_failure_while_writing_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = training(4).write(tmp_path / "r.sqlite")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    with pytest.raises(Exception, match="could not be written"):
        exported(report, tmp_path / "frames")
    assert [p.name for p in tmp_path.iterdir()] == ["r.sqlite"]

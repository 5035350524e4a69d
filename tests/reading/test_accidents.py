"""Reading strangers' files: whatever happened to them, the report says what it left out, or one line says why there is none."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import lzma
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from nsysx import pipeline
from nsysx.errors import EXIT_INPUT, NsysxError
from nsysx.events import correlate
from nsysx.reading import report_files, selecting
from nsysx.reading.load import load
from nsysx.reading.reading_bounds import LONGEST_RANGE_NS, MOST_DEVICES
from nsysx.reading.trace import LeftOut
from nsysx.render import csv_text, html_page, markdown
from tests import reports
from tests.builder import Report

RUNTIME, KERNEL = "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reports.training(4).write(tmp_path_factory.mktemp("good") / "good.sqlite")


def refused(path: Path, slug: str) -> str:
    with pytest.raises(NsysxError) as caught:
        load(path)
    assert (caught.value.slug, caught.value.exit_code) == (slug, EXIT_INPUT)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def said(path: Path, check: str) -> str:
    (found,) = [c for c in pipeline.summarize([path]).quality if c.check == check]
    return found.detail


# --- cells ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["correlationId", "start", "globalTid", "nameId", "returnValue"])
@pytest.mark.parametrize("share", ["rowid = 5", "rowid % 2 = 0", "1 = 1"])
def test_bytes_that_are_no_text_in_a_column_of_integers(good: Path, tmp_path: Path, column: str, share: str) -> None:
    # Arrow takes the column for text then, and its conversion of such bytes aborts the process.
    path = reports.edited(good, tmp_path, f"UPDATE {RUNTIME} SET {column} = CAST(x'a3c2' AS TEXT) WHERE {share}")
    trace, whole = load(path), load(good)
    rows = {"rowid = 5": 1, "rowid % 2 = 0": whole.runtime.height // 2, "1 = 1": whole.runtime.height}[share]
    lost = sum(n.rows for n in trace.left_out if n.table == RUNTIME and n.effect == "left out")
    assert trace.runtime.height + lost == whole.runtime.height
    assert lost == (rows if column in ("start", "globalTid") else 0)
    if column in ("correlationId", "nameId"):
        assert sum(n.rows for n in trace.left_out if n.table == RUNTIME and n.effect == "kept") == rows


def test_the_id_of_a_name_beyond_32_bits_is_no_other_name(good: Path, tmp_path: Path) -> None:
    path = reports.edited(good, tmp_path, f"UPDATE {RUNTIME} SET nameId = nameId + 4294967296 WHERE rowid = 3")
    trace = load(path)
    assert trace.runtime["name"].null_count() == 1
    reason = "the id of a name that is not in the report"
    assert trace.left_out == (LeftOut(RUNTIME, reason, 1, "kept"),)
    assert said(path, "mended rows").endswith(f"1 of {RUNTIME} with {reason}")


def test_a_type_of_range_beyond_8_bits_is_no_other_type(good: Path, tmp_path: Path) -> None:
    path = reports.edited(good, tmp_path, "UPDATE NVTX_EVENTS SET eventType = eventType + 256 WHERE eventType = 59")
    assert not (load(path).nvtx["event_type"] == 59).any()


def test_a_shape_that_does_not_fit_is_no_other_shape(good: Path, tmp_path: Path) -> None:
    path = reports.edited(
        good, tmp_path, f"UPDATE {KERNEL} SET gridX = -1 WHERE rowid = 1", f"UPDATE {KERNEL} SET gridY = 70000"
    )
    assert load(path).kernel["grid"].null_count() == load(good).kernel.height


def test_sums_never_overflow(good: Path, tmp_path: Path) -> None:
    # Each length alone is possible; together they are more than 64 bits hold.
    report = reports.training(2)
    for i in range(3000):
        report.processes[0].kernel("long", 1000 + i, (1 << 50) - 10)
    path = report.write(tmp_path / "r.sqlite")
    trace = load(path)
    assert sum(n.rows for n in trace.left_out if n.table == KERNEL) == 3000
    assert any(n.reason == "an impossible length" for n in trace.left_out)
    assert 0 < pipeline.summarize([path]).totals["kernel_ns"] < 1 << 40


def test_sizes_never_overflow(tmp_path: Path) -> None:
    report = reports.training(2)
    for i in range(2000):
        report.processes[0].copy("HtoD", 1000 + i, 10, bytes=(1 << 53) - 1)
    trace = load(report.write(tmp_path / "r.sqlite"))
    assert trace.memcpy["bytes"].sum() < 1 << 53
    assert any(n.reason == "an impossible size" and n.rows == 2000 for n in trace.left_out)


def test_a_time_far_from_all_others_is_left_out(good: Path, tmp_path: Path) -> None:
    far = LONGEST_RANGE_NS * 2
    path = reports.edited(
        good, tmp_path, f'UPDATE {KERNEL} SET start = start + {far}, "end" = "end" + {far} WHERE rowid = 1'
    )
    assert load(path).left_out == (LeftOut(KERNEL, "an impossible time", 1),)
    assert load(path).kernel.height == load(good).kernel.height - 1


def test_gpu_work_that_was_not_timed_is_left_out(good: Path, tmp_path: Path) -> None:
    path = reports.edited(good, tmp_path, f'UPDATE {KERNEL} SET start = 0, "end" = 0 WHERE rowid = 2')
    assert load(path).left_out == (LeftOut(KERNEL, "both times zero", 1),)


def test_devices_that_no_machine_has_are_left_out(tmp_path: Path) -> None:
    """Each device costs time of its own: 2,000 of them took half a minute."""
    report = Report()
    main = report.process(100).thread(100, "python")
    for i in range(2_000):
        main.launch(at=50_000 * i, dur=5_000, gpu_start=50_000 * i + 10_000, gpu_dur=20_000, device=3 * i - 300)
    trace = load(report.write(tmp_path / "r.sqlite"))
    assert trace.kernel["device"].unique().sort().to_list() == list(range(0, MOST_DEVICES, 3))
    assert trace.left_out == (LeftOut(KERNEL, "a device that no machine has", 2_000 - trace.kernel.height),)


def test_work_of_no_named_process_is_said(good: Path, tmp_path: Path) -> None:
    path = reports.edited(good, tmp_path, f"UPDATE {KERNEL} SET globalPid = NULL")
    rows = load(good).kernel.height
    assert load(path).left_out == (LeftOut(KERNEL, "no process: counted for the only one", rows, "merged"),)
    assert f"{rows} of {KERNEL} with no process" in said(path, "merged rows")


def test_a_program_of_windows_is_called_by_its_file(good: Path, tmp_path: Path) -> None:
    path = reports.edited(good, tmp_path, r"UPDATE PROCESSES SET name = 'C:\Users\ann\env\python.exe'")
    assert {p["name"] for p in load(path).capture.processes} == {"python.exe"}


# --- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("far", [9 * 10**18, 10**10, -(10**18)])
def test_a_far_rowid_costs_nothing(good: Path, tmp_path: Path, far: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selecting, "PIECE_ROWS", 7)
    path = reports.edited(good, tmp_path, f"UPDATE {KERNEL} SET rowid = {far} WHERE rowid = 1")
    with contextlib.closing(sqlite3.connect(path)) as base:
        assert len(selecting.borders(base, KERNEL)) <= load(good).kernel.height // 7
    assert load(path).kernel.sort("start_ns").equals(load(good).kernel.sort("start_ns"))


def test_every_row_is_in_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selecting, "PIECE_ROWS", 10)
    for numbers in (range(1, 101), range(-50, 51), [1, 10**12, *range(500, 540)], [5], [], [-(1 << 63), (1 << 63) - 1]):
        with contextlib.closing(sqlite3.connect(":memory:")) as base:
            base.execute("CREATE TABLE t (x)")
            base.executemany("INSERT INTO t (rowid, x) VALUES (?, 0)", [(n,) for n in numbers])
            ends = [None, *selecting.borders(base, "t"), None]
            counted = 0
            for after, last in itertools.pairwise(ends):
                where = [f"rowid > {after}"] * (after is not None) + [f"rowid <= {last}"] * (last is not None)
                counted += base.execute("SELECT count(*) FROM t WHERE " + " AND ".join(["1", *where])).fetchone()[0]
            assert counted == len(numbers)


def test_a_table_without_rowids_is_read(good: Path, tmp_path: Path) -> None:
    columns = 'start INTEGER, "end" INTEGER, globalTid INTEGER, nameId INTEGER, overheadType INTEGER'
    path = reports.edited(
        good,
        tmp_path,
        "DROP TABLE IF EXISTS PROFILER_OVERHEAD",
        f"CREATE TABLE PROFILER_OVERHEAD ({columns}, PRIMARY KEY (start)) WITHOUT ROWID",
        "INSERT INTO PROFILER_OVERHEAD VALUES (5, 6, 7, 0, 0), (8, 9, 7, 0, 0)",
    )
    assert load(path).overhead["start_ns"].to_list() == [5, 8]


def test_calls_that_share_an_id_are_all_counted(tmp_path: Path) -> None:
    report = Report()
    main = report.process(1).thread(1)
    for i in range(10):
        main.launch(at=1000 * i, dur=100, kernel=f"k{i}", gpu_start=1000 * i + 200, gpu_dur=300)
    path = report.write(tmp_path / "r.sqlite")
    with contextlib.closing(sqlite3.connect(path)) as base:
        for table in (RUNTIME, KERNEL):
            base.execute(f"UPDATE {table} SET correlationId = 7")
        base.commit()
    trace = load(path)
    found = correlate.correlate(trace)
    assert found.api_calls.height == 10
    assert found.left_out == ()
    # Each kernel belongs to the call that had begun last before it.
    assert (found.gpu_ops["start_ns"] - found.gpu_ops["call_start_ns"]).to_list() == [200] * 10
    assert found.api_calls["gpu_ops"].to_list() == [1] * 10
    assert pipeline.summarize([path]).totals["api_calls"] == 10


def test_one_call_under_two_names_is_one_and_said(tmp_path: Path) -> None:
    report = Report()
    main = report.process(1).thread(1)
    call = main.launch(at=1000, dur=100, kernel="k", gpu_start=2000, gpu_dur=300)
    alias = dict(report.rows[RUNTIME][-1])
    alias |= {"start": 1010, "end": 1090, "nameId": report.string("cudaLaunchKernel")}
    report.rows[RUNTIME].append(alias)
    found = correlate.correlate(load(report.write(tmp_path / "r.sqlite")))
    assert found.api_calls["start_ns"].to_list() == [call.start]
    assert found.left_out == (LeftOut(RUNTIME, "the alias of a call", 1, "merged"),)


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["xz", "gz", "zst"])
def test_a_packed_report_reads_as_the_report(good: Path, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"r.sqlite.{ending}"
    if ending == "zst":
        if sys.version_info < (3, 14) and not shutil.which("zstd"):
            pytest.skip("no zstd here")
        subprocess.run(["zstd", "-q", str(good), "-o", str(path)], check=True)
    else:
        path.write_bytes({"xz": lzma, "gz": gzip}[ending].compress(good.read_bytes()))
    (tmp_path / "r.run.json").write_text('{"exit_code": 5}')
    trace, plain = load(path), load(good)
    for name, frame in plain.frames.items():
        assert frame.equals(trace.frames[name]), name
    assert trace.capture.content_id == plain.capture.content_id
    assert (trace.capture.files, trace.capture.exit_code) == ((path.name,), 5)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(NsysxError) as caught:
        load(path)
    assert caught.value.slug in ("input-damaged", "input-empty")


def test_a_log_beside_the_report_leaves_no_other_file(good: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(good, tmp_path / "r.sqlite"))
    base = sqlite3.connect(path)
    base.execute("PRAGMA journal_mode = WAL")
    base.execute("PRAGMA wal_autocheckpoint = 0")
    base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET SELECT * FROM CUPTI_ACTIVITY_KIND_MEMSET")
    base.commit()
    other = tmp_path / "copy"
    other.mkdir()
    for name in ("r.sqlite", "r.sqlite-wal"):
        shutil.copy(tmp_path / name, other / name)
    base.close()
    before = {p.name: p.read_bytes() for p in other.iterdir()}
    assert load(other / "r.sqlite").memset.height == 2 * load(good).memset.height
    assert {p.name: p.read_bytes() for p in other.iterdir()} == before


def test_a_hot_journal_is_not_ignored(good: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(good, tmp_path / "r.sqlite"))
    (tmp_path / "r.sqlite-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(504))
    assert "journal" in refused(path, "input-busy")
    (tmp_path / "r.sqlite-journal").write_bytes(bytes(512))  # one that was finished with
    assert load(path).kernel.height


def test_a_report_that_is_being_written_is_waited_for_then_refused(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsysx.reading.opening.LOCKED_FILE_S", 0.1)
    path = Path(shutil.copy(good, tmp_path / "r.sqlite"))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as base:
        base.execute("PRAGMA journal_mode = OFF")
        base.execute("BEGIN EXCLUSIVE")
        assert "being written" in refused(path, "input-busy")
        base.execute("COMMIT")
    assert load(path).kernel.height


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p.sqlite")
    assert "pipe" in refused(tmp_path / "p.sqlite", "input-special")


def test_links_in_a_circle_and_names_too_long(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    refused(tmp_path / "a", "input-unreadable")
    refused(tmp_path / ("x" * 300), "input-unreadable")


def test_a_byte_less_is_said(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    path.write_bytes(good.read_bytes()[:-1])
    assert "is cut off" in refused(path, "input-damaged")


def test_what_sqlite_quotes_stays_one_line(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    content = good.read_bytes()
    at = (
        content.index(b'CREATE TABLE "NVTX_EVENTS"')
        if b'CREATE TABLE "NVTX_EVENTS"' in content
        else content.index(b"CREATE")
    )
    path.write_bytes(content[: at + 20] + b"`\n\n" + content[at + 23 :])
    assert len(refused(path, "input-damaged")) < 300


# --- folders ----------------------------------------------------------------------------------------------------------


def test_a_folder_of_ranks_is_its_reports(good: Path, tmp_path: Path) -> None:
    for name in ("rank1.sqlite", "rank0.sqlite", "rank0.sqlite.gz", ".rank2.sqlite", "rank0.html"):
        (tmp_path / name).write_bytes(good.read_bytes() if name.endswith(".sqlite") else b"x")
    assert [p.name for p in report_files.reports([tmp_path])] == ["rank0.sqlite", "rank1.sqlite"]
    assert report_files.reports([good]) == [good]
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(NsysxError, match="without a report"):
        report_files.reports([empty])


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrow stream"])
def test_an_export_as_a_folder_reads_as_the_report(good: Path, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "r_dir"
    folder.mkdir()
    with contextlib.closing(sqlite3.connect(good)) as base:
        base.text_factory = lambda raw: raw.decode("utf-8", "replace")
        for (table,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            kinds = {r[1]: r[2] for r in base.execute(f'PRAGMA table_info("{table}")')}
            rows = base.execute(f'SELECT * FROM "{table}"').fetchall()
            columns = {}
            for i, (name, sql) in enumerate(kinds.items()):
                dtype = pl.String if "TEXT" in sql else pl.Float64 if "REAL" in sql else pl.Int64
                columns[name] = pl.Series([r[i] for r in rows], dtype=dtype, strict=False)
            columns |= {c: s.cast(pl.UInt64) for c, s in columns.items() if c in ("globalTid", "globalPid")}
            frame = pl.DataFrame(columns)
            if kind == "parquet":
                frame.write_parquet(folder / f"{table}.parquet")
            elif kind == "arrow stream":  # what nsys writes
                frame.write_ipc_stream(folder / f"{table}.arrow")
            else:
                frame.write_ipc(folder / f"{table}.arrow")
    trace, plain = load(folder), load(good)
    for name, expected in plain.frames.items():
        assert expected.equals(trace.frames[name]), name
    assert trace.capture.content_id == plain.capture.content_id
    assert report_files.reports([folder]) == [folder]
    (folder / f"{KERNEL}.{kind.split()[0]}").write_bytes(b"PAR1 and no more")
    refused(folder, "input-damaged")


# --- what is said and shown -------------------------------------------------------------------------------------------


def test_a_pattern_that_would_match_for_ever(good: Path) -> None:
    with pytest.raises(NsysxError) as caught:
        pipeline.summarize([good], step_range=r"^(([a-z])+.)+\x01$|^(.|..)+\x01$|(.*)*\x01(.*)*\x02")
    assert caught.value.slug == "step-range-empty"
    with pytest.raises(NsysxError, match="look-around"):
        pipeline.summarize([good], step_range=r"(?<!x)step")


def test_a_part_in_which_nothing_is(good: Path) -> None:
    with pytest.raises(NsysxError, match="nothing was recorded then") as caught:
        pipeline.summarize([good], time_range="1000:1001")
    assert "The session lasts" in caught.value.hint


def test_no_home_folder_and_no_markup_in_what_is_handed_on(tmp_path: Path) -> None:
    report = Report()
    main = report.process(1, name="/home/ann/bin/python").thread(1, "/home/ann/t")
    names = (
        "/home/ann/secret/train.py",
        "<img src=x onerror=alert(1)>",
        "\uff1dcmd|x",
        "[a](javascript:1)",
        "\x1b[31mred",
    )
    for i, name in enumerate(names * 3):
        with main.range(name):
            main.launch(at=1000 * (i + 1), dur=100, kernel=name, gpu_start=1000 * (i + 1) + 200, gpu_dur=60 + 50 * i)
    report.diagnostic("Some CUPTI events might be missing in /home/ann/x", severity=2)
    summary = pipeline.summarize([report.write(tmp_path / "r.sqlite")], timelines=True)
    for text in (markdown.render(summary, redact=True), html_page.render(summary, redact=True)):
        assert "ann" not in text.replace("annot", "").replace("chann", "").replace("cann", "").replace("plann", "")
        assert "<img src=x" not in text
        assert 'href="javascript' not in text
        assert "\x1b" not in text
    assert "](javascript:" not in markdown.render(summary, redact=True)
    for table in summary.tables.values():
        assert not any(line.lstrip('" ').startswith("\uff1d") for line in csv_text.render(table).splitlines())


@pytest.mark.parametrize(
    ("home", "program", "system"),
    [
        ("C:\\Users\\ann\\", "C:\\Users\\ann\\env\\python.exe", "Windows 11 Pro"),
        ("/mnt/c/Users/ann/", "/bin/python3", "Ubuntu 22.04, 5.15.90.1-microsoft-standard-WSL2"),
    ],
    ids=["Windows", "WSL"],
)
def test_a_capture_of_windows_or_wsl(tmp_path: Path, home: str, program: str, system: str) -> None:
    report = Report("3.25.1")
    for name, value in (("Hostname", "ANNS-LAPTOP"), ("OsVersion", system)):
        report.add("TARGET_INFO_SYSTEM_ENV", globalVid=1 << 48, devStateName="CollectionStart", name=name, value=value)
    process = report.process(4660, name=program)
    main = process.thread(22136, f"{home}train.py")
    for i in range(6):
        with main.range(f"step {i}"):
            t = i * 1_000_000
            stack = [("cudaLaunchKernel", f"{home}cudart64_12.dll")]
            main.launch(t, 9_000, kernel="gemm", gpu_start=t + 20_000, gpu_dur=700_000, backtrace=stack)
    report.diagnostic(f"Loaded CUPTI library: {home}cupti64_132.dll", severity=1)
    summary = pipeline.summarize([report.write(tmp_path / "r.sqlite")], timelines=True)
    assert (summary.steps.count, summary.totals["kernels"]) == (6, 6)
    assert summary.capture.processes[0]["name"] in ("python.exe", "python3")
    for text in (markdown.render(summary, redact=True), html_page.render(summary, redact=True)):
        assert "Users" not in text
        assert "ANNS-LAPTOP" not in text


# --- a real nsys ------------------------------------------------------------------------------------------------------


def test_every_export_of_one_capture_is_that_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nsys = os.environ.get("NSYSX_TEST_NSYS", "")
    assert nsys, "set NSYSX_TEST_NSYS to a real nsys; scripts/test does, scripts/install_nsys gets one"

    def run(*words: str) -> None:
        done = subprocess.run([nsys, *words], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, (words, done.stdout, done.stderr)

    for _ in range(3):  # on a busy machine nsys loses its agent now and then, and may say that all is well
        run("profile", "-t", "osrt", "--sample=none", "--cpuctxsw=none", "-o", "a", sys.executable, "-c", "print()")
        if (tmp_path / "a.nsys-rep").exists():
            break
    run("export", "-t", "sqlite", "--lazy=false", "-o", "full.sqlite", "a.nsys-rep")
    run("export", "-t", "parquetdir", "-o", "parquet", "a.nsys-rep")
    run("export", "-t", "arrowdir", "-o", "arrow", "a.nsys-rep")
    monkeypatch.setenv("PATH", f"{Path(nsys).parent}:{os.environ['PATH']}")
    traces = [load(tmp_path / name) for name in ("a.nsys-rep", "full.sqlite", "parquet", "arrow")]
    assert len({t.capture.content_id for t in traces}) == 1
    assert all(t.thread_name.height for t in traces)
    assert (tmp_path / "a.sqlite").exists(), "what was exported once is kept beside the report"
    assert load(tmp_path / "a.nsys-rep").capture.content_id == traces[0].capture.content_id

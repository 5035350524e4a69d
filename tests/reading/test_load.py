"""Reading: every bad input ends in one clear error, every damaged report in a Summary or in that error."""

from __future__ import annotations

import contextlib
import gzip
import json
import lzma
import os
import random
import shutil
import sqlite3
from pathlib import Path

import polars as pl
import pytest

from nsysx import pipeline
from nsysx.errors import EXIT_EMPTY, EXIT_INPUT, NsysxError
from nsysx.reading import capture_facts, schema, selecting, table_rows
from nsysx.reading.load import load
from nsysx.render import json_text
from tests import reports
from tests.builder import Report

INT64 = (-(1 << 63), (1 << 63) - 1)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reports.training(4).write(tmp_path_factory.mktemp("good") / "good.sqlite")


def refused(path: Path, slug: str, *words: str) -> NsysxError:
    """The file is refused with one line that names it and says what to do."""
    with pytest.raises(NsysxError) as caught:
        load(path)
    error = caught.value
    assert (error.slug, error.exit_code) == (slug, EXIT_INPUT)
    assert path.name in str(error)
    assert error.hint
    assert "\n" not in str(error)
    for word in words:
        assert word in str(error), str(error)
    return error


def survives(path: Path) -> str:
    """Return the JSON of the Summary, or the slug of the one error; anything else is a bug."""
    try:
        text = json_text.render(pipeline.summarize([path]))
    except NsysxError as error:
        assert "\n" not in error.message
        assert error.exit_code in (EXIT_INPUT, EXIT_EMPTY)
        return error.slug
    json.loads(text, parse_constant=lambda c: pytest.fail(f"{c} in the JSON"))
    return text


# --- files that are no report --------------------------------------------------------------------------------------------


def test_missing(tmp_path: Path) -> None:
    refused(tmp_path / "none.sqlite", "input-missing")
    assert list(tmp_path.iterdir()) == []  # sqlite3.connect alone would have made the file
    (tmp_path / "link.sqlite").symlink_to("gone.sqlite")
    refused(tmp_path / "link.sqlite", "input-missing", "is a link to gone.sqlite")


def test_folder(tmp_path: Path) -> None:
    refused(tmp_path, "input-folder")


def test_empty(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    path.touch()
    refused(path, "input-empty", "export")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable(good: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(good, tmp_path))
    path.chmod(0)
    refused(path, "input-unreadable", "permission")


def test_open_that_fails(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", broken)
    refused(good, "input-unreadable", "Permission denied", "permissions")


@pytest.mark.parametrize(
    ("name", "content", "slug", "word"),
    [
        ("r.txt", b"hello", "input-not-sqlite", ".sqlite"),
        ("r.sqlite", b"S", "input-not-sqlite", ".sqlite"),
        ("r.sqlite", b"sqlite format 3\x00" + bytes(100), "input-not-sqlite", ".sqlite"),
        ("r.sqlite", bytes(4096), "input-not-sqlite", ".sqlite"),
        ("r.nsys-rep", b"NSYS" + bytes(100), "input-nsys-rep", "nsys export --type sqlite"),
        ("r.qdrep", b"QD" + bytes(100), "input-nsys-rep", "nsys export"),
        ("r.sqlite.xz", lzma.compress(b"SQLite format 3\x00"), "input-damaged", "again"),
        ("r.sqlite.gz", gzip.compress(b"hello", mtime=0), "input-not-sqlite", "holds no SQLite"),
        ("r.sqlite.gz", gzip.compress(b"SQLite format 3\x00" * 99, mtime=0)[:-9], "input-damaged", "does not unpack"),
        ("r.sqlite.xz", lzma.compress(b"SQLite format 3\x00" * 99)[:-9], "input-damaged", "does not unpack"),
        ("r.sqlite.xz", lzma.compress(b""), "input-empty", "holds nothing"),
        (
            "r.json",
            b'{"schemaVersion": 1, "deviceProperties": [], "traceEvents": []}',
            "input-kineto",
            "torch.profiler",
        ),
        ("r.json.gz", gzip.compress(b'{"traceEvents": [{"ph": "X"}]}', mtime=0), "input-kineto", "torch.profiler"),
        ("r.json", b'[{"a": 1}]', "input-json", ".sqlite"),
        ("r.qdstrm", b"x", "input-foreign-format", "QdstrmImporter"),
        ("r.ncu-rep", b"x", "input-foreign-format", "Nsight Compute"),
        ("r.h5", b"x", "input-foreign-format", "SQLite"),
        (
            "r.sqlite",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
            "input-lfs",
            "git lfs pull",
        ),
    ],
)
def test_other_files(tmp_path: Path, name: str, content: bytes, slug: str, word: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    refused(path, slug, word)


def test_an_export_named_like_a_report_is_read(good: Path, tmp_path: Path) -> None:
    assert load(Path(shutil.copy(good, tmp_path / "odd.nsys-rep"))).kernel.height


def test_database_without_tables(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as base:
        base.execute("CREATE TABLE x (y)")
        base.execute("DROP TABLE x")
        base.commit()
    refused(path, "input-empty")


def test_foreign_database(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as base:
        base.execute('CREATE TABLE "moz ""places" (url TEXT)')
        base.execute("CREATE TABLE places (url TEXT)")
        base.commit()
    refused(path, "input-foreign", "nsys export")


def test_strings_alone_are_nothing_to_analyse(tmp_path: Path) -> None:
    path = Report().write(tmp_path / "r.sqlite")
    assert load(path).recorded == frozenset()
    with pytest.raises(NsysxError) as caught:
        pipeline.summarize([path])
    assert caught.value.exit_code == EXIT_EMPTY


# --- damage --------------------------------------------------------------------------------------------------------------


def test_truncated_at_every_sixteenth(good: Path, tmp_path: Path) -> None:
    content, path = good.read_bytes(), tmp_path / "r.sqlite"
    for part in range(1, 16):
        path.write_bytes(content[: len(content) * part // 16])
        assert survives(path) == "input-damaged", part
    for length in (15, 16, 17, 99, 100, 101):
        path.write_bytes(content[:length])
        refused(path, "input-not-sqlite" if length < 16 else "input-damaged" if length != 0 else "")
    path.write_bytes(content[:-1])
    survives(path)


def test_flipped_bits(good: Path, tmp_path: Path) -> None:
    path, dice = tmp_path / "r.sqlite", random.Random(1)
    content = good.read_bytes()
    ends = set()
    for _ in range(24):
        broken = bytearray(content)
        for _ in range(dice.choice((1, 3, 40))):
            broken[dice.randrange(16, len(broken))] ^= 1 << dice.randrange(8)
        path.write_bytes(broken)
        ends.add(survives(path)[:40])
    assert "input-damaged" in ends


def test_zeroed_pages(good: Path, tmp_path: Path) -> None:
    path, content = tmp_path / "r.sqlite", good.read_bytes()
    for page in range(1, len(content) // 4096, 3):
        path.write_bytes(content[: page * 4096] + bytes(4096) + content[(page + 1) * 4096 :])
        survives(path)


def test_a_file_that_changes_while_it_is_read(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(shutil.copy(good, tmp_path))
    original = capture_facts.capture_of

    def touched(*given: object) -> object:
        os.utime(path, ns=(1, 1))
        return original(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(capture_facts, "capture_of", touched)
    refused(path, "input-busy", "Wait")


def test_rows_that_are_only_in_the_log_beside_the_file_are_read(good: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(good, tmp_path))
    with contextlib.closing(sqlite3.connect(path)) as base:
        base.execute("PRAGMA journal_mode = WAL")
        base.execute("PRAGMA wal_autocheckpoint = 0")
        base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET SELECT * FROM CUPTI_ACTIVITY_KIND_MEMSET")
        base.commit()
        assert path.with_name(path.name + "-wal").stat().st_size
        assert load(path).memset.height == 2 * load(good).memset.height


def test_reading_leaves_nothing_beside_the_file(good: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(good, tmp_path))
    before = path.read_bytes()
    load(path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["a b;$(x) 'q'.sqlite", "q?mode=rwc#x%20", "ä\n核.sqlite", "-rf", "%s%d"])
def test_odd_file_names(good: Path, tmp_path: Path, name: str) -> None:
    path = Path(shutil.copy(good, tmp_path / name))
    assert load(path).kernel.height == 4 * 4
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_link_is_followed(good: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.sqlite"
    link.symlink_to(good)
    assert load(link).kernel.height


# --- tables and columns that are not there ------------------------------------------------------------------------------


def tables_of(path: Path) -> dict[str, list[str]]:
    with contextlib.closing(sqlite3.connect(path)) as base:
        names = [t for (t,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {t: [row[1] for row in base.execute(f'PRAGMA table_info("{t}")')] for t in names}


def loosened(table: str, *statements: str) -> list[str]:
    """Edit a copy of the table that has no constraints, then put it in its place."""
    return [
        f'CREATE TABLE loose AS SELECT * FROM "{table}"',
        *statements,
        f'DROP TABLE "{table}"',
        f'ALTER TABLE loose RENAME TO "{table}"',
    ]


FULL = reports.training(1)
WRITTEN = sorted(t for t, rows in FULL.rows.items() if rows)
READ = {s.table: s for s in schema.SOURCES.values()}


@pytest.mark.parametrize("table", WRITTEN)
def test_each_table_dropped(good: Path, tmp_path: Path, table: str) -> None:
    text = survives(reports.edited(good, tmp_path, f'DROP TABLE "{table}"'))
    assert text.startswith("{"), text


@pytest.mark.parametrize("first", range(0, len(WRITTEN), 3))
def test_tables_emptied(good: Path, tmp_path: Path, first: int) -> None:
    """Three at a time, neighbors in the alphabet: most tables that belong together have names that begin alike."""
    text = survives(reports.edited(good, tmp_path, *(f'DELETE FROM "{t}"' for t in WRITTEN[first : first + 3])))
    assert text.startswith("{"), text


def test_a_report_of_each_table_alone(tmp_path: Path) -> None:
    for table in WRITTEN:
        report = reports.training(2)
        for other in WRITTEN:
            if other not in (table, "StringIds"):
                report.drop(other)
        text = survives(report.write(tmp_path / "r.sqlite"))
        assert text.startswith("{") or text == "nothing-recorded", (table, text)


REQUIRED = [(s.table, c.sql) for s in schema.SOURCES.values() for c in s.columns if c.required]
OPTIONAL = sorted(
    {(s.table, n) for s in schema.SOURCES.values() for c in s.columns if not c.required for n in (c.parts or (c.sql,))}
)
ESSENTIAL = {schema.SOURCES[f].table for f in ("runtime", "kernel", "memcpy", "memset", "graph", "nvtx")}


def test_each_required_column_is_named_when_it_is_missing(good: Path, tmp_path: Path) -> None:
    present = tables_of(good)
    lesser: dict[str, list[str]] = {}
    for table, column in REQUIRED:
        if column not in present.get(table, ()):
            continue
        if table not in ESSENTIAL:
            lesser.setdefault(table, []).append(column)
            continue
        path = reports.edited(good, tmp_path, *loosened(table, f'ALTER TABLE loose DROP COLUMN "{column}"'))
        refused(path, "input-columns", table, column)
    for table, columns in lesser.items():
        path = reports.edited(good, tmp_path, *loosened(table, f'ALTER TABLE loose DROP COLUMN "{columns[-1]}"'))
        assert READ[table].frame not in load(path).recorded
        assert survives(path).startswith("{"), table


def test_optional_columns_may_be_missing(good: Path, tmp_path: Path) -> None:
    """Each alone, of all tables in turn; and all at once."""
    present, recorded = tables_of(good), load(good).recorded
    by_table: dict[str, list[str]] = {}
    for table, column in OPTIONAL:
        if column in present.get(table, ()):
            by_table.setdefault(table, []).append(column)
    for turn in range(max(map(len, by_table.values()))):
        statements: list[str] = []
        for table, columns in by_table.items():
            if turn < len(columns):
                statements += loosened(table, f'ALTER TABLE loose DROP COLUMN "{columns[turn]}"')
        path = reports.edited(good, tmp_path, *statements)
        assert load(path).recorded == recorded
        assert survives(path).startswith("{"), turn
    statements = []
    for table, columns in by_table.items():
        statements += loosened(table, *(f'ALTER TABLE loose DROP COLUMN "{c}"' for c in columns))
    assert survives(reports.edited(good, tmp_path, *statements)).startswith("{")


def test_what_is_not_read_does_not_matter(good: Path, tmp_path: Path) -> None:
    """Tables and columns that no room reads may be missing, added or full of nonsense."""
    read = {t: {n for c in s.columns for n in (c.parts or (c.sql,))} for t, s in READ.items()}
    statements = ["CREATE TABLE NEW_IN_9 (a, b)", "INSERT INTO NEW_IN_9 VALUES (1, x'ff')", "CREATE VIEW v AS SELECT 1"]
    for table, columns in tables_of(good).items():
        if table in read:
            drop = [f'ALTER TABLE loose DROP COLUMN "{c}"' for c in columns if c not in read[table] and c != "jsonText"]
            statements += loosened(table, *drop, 'ALTER TABLE loose ADD COLUMN "new ""one" TEXT DEFAULT \'?\'')
    statements.append('DROP TABLE "CUDA_CALLCHAINS"')
    before = json.loads(survives(good))
    after = json.loads(survives(reports.edited(good, tmp_path, *statements)))
    before["capture"]["files"] = after["capture"]["files"] = []
    assert after == before


# --- the mutation corpus -------------------------------------------------------------------------------------------------

MUTANTS = ("NULL", "-1", str(INT64[0]), str(INT64[1]), "'abc'", "1.5", "x'ff00'")


def columns_read(good: Path) -> list[tuple[str, str]]:
    more = {
        "TARGET_INFO_GPU": ("id", "name", "l2CacheSize", "totalMemory", "memoryBandwidth", "smCount", "cuDevice"),
        "TARGET_INFO_CUDA_DEVICE": ("gpuId", "cudaId", "pid"),
        "META_DATA_EXPORT": ("name", "value"),
        "META_DATA_CAPTURE": ("name", "value"),
        "PROCESSES": ("pid", "name"),
        "DIAGNOSTIC_EVENT": ("severity", "text"),
        "ANALYSIS_DETAILS": ("duration",),
        "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs",),
        "StringIds": ("id", "value"),
    }
    present = tables_of(good)
    wanted = [(t, n) for t, s in READ.items() for c in s.columns for n in (c.parts or (c.sql,))]
    wanted += [("NVTX_EVENTS", "jsonText"), *((t, c) for t, columns in more.items() for c in columns)]
    return sorted({(t, c) for t, c in wanted if c in present.get(t, ())})


def test_the_corpus_covers_what_is_read(good: Path) -> None:
    assert len(columns_read(good)) > 80


@pytest.mark.parametrize("turn", range(3))
def test_columns_full_of_nonsense(good: Path, tmp_path: Path, turn: int) -> None:
    """Three columns at a time, far apart in the list; the kinds of nonsense take turns, in all rows or in one."""
    columns = columns_read(good)
    third = -(-len(columns) // 3)
    runs = survived = 0
    for i in range(turn, third, 3):
        statements: list[str] = []
        for k, (table, column) in enumerate(columns[i::third]):
            value = MUTANTS[(i * 3 + i // len(MUTANTS) + 2 * k) % len(MUTANTS)]
            where = " WHERE rowid = 2" if (i + k) % 3 == 0 else ""
            statements += loosened(table, f'UPDATE loose SET "{column}" = {value}{where}')
        runs += 1
        survived += survives(reports.edited(good, tmp_path, *statements)).startswith("{")
    # Nearly all nonsense is survived with a report, not refused.
    assert survived > 0.9 * runs > 9


# --- rows ----------------------------------------------------------------------------------------------------------------


def test_rows_without_a_possible_place_are_counted_and_left_out(tmp_path: Path) -> None:
    report = reports.training(2)
    before = load(report.write(tmp_path / "a.sqlite"))
    process = report.processes[0]
    for start, end in ((INT64[0], 0), (0, INT64[1]), (INT64[1] - 5, INT64[1]), (0, 1 << 56)):
        process.kernel("bad", start, end - start)
    trace = load(report.write(tmp_path / "b.sqlite"))
    assert sum(n.rows for n in trace.left_out) == 4
    assert trace.kernel.equals(before.kernel)
    summary = pipeline.summarize([tmp_path / "b.sqlite"])
    (check,) = [c for c in summary.quality if c.check == "bad rows"]
    assert check.status == "warn"
    assert check.detail.startswith("4 rows")


def test_what_ends_before_it_begins_is_counted_and_left_out(tmp_path: Path) -> None:
    report = reports.training(2)
    report.processes[0].kernel("backwards", 1000, -10)
    summary = pipeline.summarize([report.write(tmp_path / "a.sqlite")])
    assert "backwards" not in {r["name"] for r in summary.rows("kernels")}
    (check,) = [c for c in summary.quality if c.check == "bad times"]
    assert check.detail.startswith("1 row ")


def test_times_before_the_session_are_times(tmp_path: Path) -> None:
    report = Report()
    report.process(1).thread(1).launch(-1000, 10, gpu_start=-500, gpu_dur=100)
    trace = load(report.write(tmp_path / "a.sqlite"))
    assert not trace.left_out
    assert trace.kernel["start_ns"].to_list() == [-500]


def test_a_missing_correlation_id_is_no_id(tmp_path: Path) -> None:
    report = Report()
    main = report.process(1).thread(1)
    main.call("cudaFree_v3020", 0, 10)
    report.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][0]["correlationId"] = None
    report.processes[0].kernel("k", 20, 10, correlation=None)
    trace = load(report.write(tmp_path / "a.sqlite"))
    assert trace.runtime["correlation_id"].to_list() == [0]
    totals = pipeline.summarize([trace.path]).totals
    assert (totals["api_calls"], totals["kernels"], totals["gpu_ops_without_call"]) == (1, 1, 1)


def test_a_string_id_that_stands_twice_multiplies_nothing(good: Path, tmp_path: Path) -> None:
    path = reports.edited(good, tmp_path, *loosened("StringIds", "INSERT INTO loose SELECT * FROM loose"))
    assert load(path).runtime.height == load(good).runtime.height


# --- names ---------------------------------------------------------------------------------------------------------------


def test_names_as_they_come(tmp_path: Path) -> None:
    report = Report()
    main = report.process(1).thread(1)
    odd = [b"caf\xe9 \xff", "x" * 1_000_000, "nul\x00inside", "\x1b[31m", "{{7*7}}<script>", "\u202eevil", "=1+1"]
    for i, name in enumerate(odd):
        main.launch(100 * i, 10, kernel=name, gpu_start=100 * i + 20, gpu_dur=10)
        main.add_range(name, 100 * i - 5, 100 * i + 50)
    path = report.write(tmp_path / "a.sqlite")
    trace = load(path)
    expected = ["caf\ufffd \ufffd", *odd[1:]]
    assert trace.kernel["name"].to_list() == expected
    texts = [str(t) for t in trace.nvtx["text"].to_list()]
    assert [t.split("\x00")[0] for t in texts] == [t.split("\x00")[0] for t in expected]
    assert survives(path).startswith("{")


# --- the two readers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", [False, True])
def test_both_readers_give_the_same_frames(good: Path, monkeypatch: pytest.MonkeyPatch, split: bool) -> None:
    if split:
        monkeypatch.setattr(selecting, "PIECE_ROWS", 4)
    fast = load(good)
    used = []
    monkeypatch.setattr(table_rows.Reader, "series", lambda *_: used.append(1) or 1 / 0)
    slow = load(good)
    assert used
    for name, frame in fast.frames.items():
        assert frame.equals(slow.frames[name]), name
        assert frame.schema == slow.frames[name].schema, name
    assert (fast.recorded, fast.capture, fast.left_out) == (slow.recorded, slow.capture, slow.left_out)
    assert fast.python_lines is not None
    assert slow.python_lines is not None
    assert fast.python_lines.equals(slow.python_lines)


def parquet_beside(report: Path, folder: Path, *, leave_out: int = 0) -> Path:
    """Copy the report into the folder with what ``nsys export --type parquetdir`` writes beside it."""
    copy = Path(shutil.copy(report, folder / "a.sqlite"))
    (folder / "a_pqtdir").mkdir()
    with contextlib.closing(sqlite3.connect(copy)) as base:
        base.text_factory = bytes
        for (table,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            name = table.decode()
            kinds = {r[1].decode(): r[2] for r in base.execute(f'PRAGMA table_info("{name}")')}
            rows = base.execute(f'SELECT * FROM "{name}"').fetchall()
            columns = {
                column: pl.Series([r[i] for r in rows], dtype=pl.Binary, strict=False).cast(pl.String)
                if b"TEXT" in kind
                else pl.Series([r[i] for r in rows], dtype=pl.Int64, strict=False)
                for i, (column, kind) in enumerate(kinds.items())
            }
            # nsys writes keys of processes and threads without a sign.
            columns |= {c: s.cast(pl.UInt64) for c, s in columns.items() if c in ("globalTid", "globalPid")}
            frame = pl.DataFrame(columns)
            frame.head(frame.height - leave_out).write_parquet(folder / "a_pqtdir" / f"{name}.parquet")
    return copy


def test_a_parquet_export_beside_is_read_instead(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selecting, "PIECE_ROWS", 4)
    plain = load(good)
    beside = parquet_beside(good, tmp_path)
    asked: list[str] = []
    real = table_rows.Reader.series
    monkeypatch.setattr(table_rows.Reader, "series", lambda self, query: asked.append(query) or real(self, query))
    fast = load(beside)
    assert not any("KIND_RUNTIME" in q or "KIND_KERNEL" in q or "NVTX_EVENTS" in q for q in asked)
    assert plain.frames["kernel"].height > 4
    for name, frame in plain.frames.items():
        assert frame.equals(fast.frames[name]), name
        assert frame.schema == fast.frames[name].schema, name


@pytest.mark.parametrize("broken", ["shorter", "other", "damaged"])
def test_a_parquet_export_of_something_else_is_not(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.setattr(selecting, "PIECE_ROWS", 4)
    beside = parquet_beside(good, tmp_path, leave_out=1 if broken == "shorter" else 0)
    for file in (tmp_path / "a_pqtdir").glob("*.parquet"):
        if broken == "damaged":
            file.write_bytes(file.read_bytes()[:-20])
        elif broken == "other" and "start" in (frame := pl.read_parquet(file)).columns:
            frame.with_columns(pl.col("start") + 1).write_parquet(file)
    for name, frame in load(good).frames.items():
        assert frame.equals(load(beside).frames[name]), name


def test_the_fast_reader_is_the_one_that_is_used(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "rows", lambda *_: pytest.fail("fell back"))
    load(good)


def test_frames_are_typed_as_declared(good: Path) -> None:
    trace = load(good)
    for name, source in schema.SOURCES.items():
        frame = trace.frames[name]
        for column in source.columns:
            if column.name != "global_pid":
                assert frame.schema[column.name] == schema.dtype(column), (name, column.name)


# --- what stands beside ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"probe": 1, "exit_code": "x"}', "\xff", '{"probe": [1, {"pid": 2}]}']
)
def test_a_run_json_of_any_kind(good: Path, tmp_path: Path, text: str) -> None:
    path = Path(shutil.copy(good, tmp_path / "r.sqlite"))
    path.with_suffix(".run.json").write_text(text, encoding="latin-1")
    trace = load(path)
    assert isinstance(trace.run, dict)
    assert trace.capture.exit_code is None
    assert survives(path).startswith("{")


def test_capture_facts(tmp_path: Path) -> None:
    report = reports.training(1)
    report.capture("PROCESS_0:ENVIRONMENT", "TOKEN=secret")
    report.capture("COLLECT_NVTX_EVENTS", "true")
    report.diagnostic("chatter", severity=2)
    report.diagnostic("buffer overflow", severity=1)
    report.diagnostic("Number of CUPTI events produced: \t961346. Some CUPTI events might be missing.\n", severity=2)
    trace = load(report.write(tmp_path / "a.sqlite"))
    capture = trace.capture
    assert [(g.process, g.pid, g.device, g.name) for g in capture.gpus] == [(1 << 24 | 100, 100, 0, "NVIDIA H200")]
    assert capture.options == {"CUDA_GRAPH_TRACE_OPTIONS:MODE": "Node", "COLLECT_NVTX_EVENTS": "true"}
    assert "secret" not in repr(capture)
    # nsys sets a tab into its sentence, which a page would show as an escape.
    missing = "Number of CUPTI events produced: 961346. Some CUPTI events might be missing."
    assert [d["text"] for d in capture.diagnostics] == ["Some CUPTI events were dropped", missing]
    assert capture.schema_version == "3.24.7"
    assert trace.python_lines is not None
    assert trace.python_lines["frames"].to_list() == [["/home/me/train.py:12 main"]]


def test_what_a_run_noted_of_driver_and_clocks(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    path.write_bytes(good.read_bytes())
    devices = [{"sm_mhz": [345, 345]}, {"sm_mhz": [1980, 1965, None, 1980, "x"]}, {"sm_mhz": None}, 3]
    noted = {"driver_version": "580.95.05", "clocks": {"devices": devices}}
    path.with_suffix(".run.json").write_text(json.dumps(noted))
    capture = load(path).capture
    assert (capture.driver_version, capture.sm_clock_mhz) == ("580.95.05", 1980)
    path.with_suffix(".run.json").write_text(json.dumps({"driver_version": "<b>", "clocks": [1]}))
    capture = load(path).capture
    assert (capture.driver_version, capture.sm_clock_mhz) == (None, None)


def test_an_export_of_every_table_reads_as_one_of_those_with_rows(tmp_path: Path) -> None:
    """``nsys export --lazy=false`` writes what was never recorded too: an empty table is no zero."""

    def read(*, every: bool) -> str:
        report = Report()
        report.process(100).thread(100).add_range("step", 0, 1_000)
        if every:
            report.keep_empty(*report.layout)
        return json_text.render(pipeline.summarize([report.write(tmp_path / "r.sqlite")]))

    assert read(every=True) == read(every=False)
    assert json.loads(read(every=True))["totals"]["kernels"] is None

"""The book-keeping of scripts/make_samples: what it counts, times, packs and goes on from."""

from __future__ import annotations

import ast
import dataclasses
import importlib.machinery
import importlib.util
import json
import lzma
import sqlite3
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from nsysx.replay.requested_edits import Changes

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "make_samples"


def load() -> object:
    sys.path.insert(0, str(SCRIPT.parent))
    loader = importlib.machinery.SourceFileLoader("make_samples", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("make_samples", loader))
    sys.modules["make_samples"] = module  # dataclasses look their module up
    loader.exec_module(module)
    return module


make_samples = load()


def options(out: Path, **changes: object) -> SimpleNamespace:
    defaults = {
        "resume": None,
        "anyway": True,
        "time_limit": 0,
        "capture_only": False,
        "bare_only": False,
        "pairs": False,
    }
    more = {"repeat": 1, "bundle": False, "timeout": 60, "out": out}
    return SimpleNamespace(**{**defaults, **more, **changes})


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose `nsysx run` runs the command and leaves a made-up report; its programs print a step time."""
    project = tmp_path / "project"
    (project / "nsysx").mkdir(parents=True)
    (project / "sample_reports").mkdir()
    (project / "sample_reports" / "good.py").write_text("""print('{"steps": 3, "step_ms": 4.5, "loss": 1.0}')\n""")
    (project / "sample_reports" / "bad.py").write_text("raise SystemExit('no GPU today')\n")
    (project / "nsysx" / "__init__.py").touch()
    (project / "nsysx" / "__main__.py").write_text("""
import json, sqlite3, subprocess, sys
out, command = sys.argv[sys.argv.index("-o") + 1], sys.argv[sys.argv.index("--") + 1 :]
code = subprocess.run(command).returncode
for out in [out + ".rank0", out + ".rank1"] if "--per-rank" in sys.argv else [out]:
    con = sqlite3.connect(out + ".sqlite")
    con.executescript('''
CREATE TABLE StringIds (id INTEGER, value TEXT);
INSERT INTO StringIds VALUES (1, 'nsysx'), (2, 'cudaLaunchKernel');
CREATE TABLE NVTX_EVENTS (eventType INTEGER, text TEXT, textId INTEGER, domainId INTEGER, globalTid INTEGER);
INSERT INTO NVTX_EVENTS VALUES (75, 'nsysx', NULL, 1, 16777217), (59, 'step 0', NULL, 1, 16777217);
INSERT INTO NVTX_EVENTS VALUES (59, 'nsysx:forward', NULL, 0, 16777217), (59, 'mine', NULL, 0, 16777217);
INSERT INTO NVTX_EVENTS VALUES (39, 'a thread', NULL, 1, 16777217);
INSERT INTO NVTX_EVENTS VALUES (75, NULL, 1, 2, 33554433), (34, 'bwd x:Y', NULL, 2, 33554433), (59, 'other', NULL, 1, 33554433);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, globalPid INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 16777216), (2, 16777216);
CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
INSERT INTO META_DATA_CAPTURE VALUES ('X:ENVIRONMENT_VARIABLE', 'A=b'), ('X:COMMAND', '%s');
''' % out)
    con.close()
    run = {"nsys": {"version": "2025.3.2"}, "command": [out], "probe": [{"ranges_pushed": 3, "backend": "nvtx"}]}
    open(out + ".run.json", "w").write(json.dumps(run))
sys.exit(code)
""")
    monkeypatch.setattr(make_samples, "PROJECT", project)
    monkeypatch.setattr(make_samples, "PROGRAMS", {n: make_samples.Program(n) for n in ("good", "bad")})
    monkeypatch.setattr(make_samples, "machine", dict)
    return project


def test_one_program_s_failure_costs_no_other(stub: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert make_samples.record_all(["bad", "good"], options(out)) == 1
    table = json.loads((out / "make_samples.json").read_text())
    bad, good = table["programs"]["bad"], table["programs"]["good"]
    assert "no GPU today" in bad["error"]
    assert bad["captured"]["exit_code"] == 1
    assert "error" not in good
    assert good["bare"][0]["step_ms"] == good["captured"]["step_ms"] == 4.5
    assert (good["kernels"], good["memcpys"]) == (2, None), "a table that is missing is unknown, not zero"


def test_ranges_are_counted_by_domain_of_their_own_process(stub: Path, tmp_path: Path) -> None:
    make_samples.record_all(["good"], options(tmp_path / "out"))
    good = json.loads((tmp_path / "out" / "make_samples.json").read_text())["programs"]["good"]
    assert (good["ranges_pushed"], good["ranges_found"]) == (3, 3)


def test_the_packed_report_is_scrubbed(stub: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make_samples.record_all(["good"], options(out))
    plain = tmp_path / "plain.sqlite"
    plain.write_bytes(lzma.decompress((out / "good.sqlite.xz").read_bytes()))
    con = sqlite3.connect(plain)
    rows = con.execute("SELECT name, value FROM META_DATA_CAPTURE").fetchall()
    con.close()
    assert rows == [("X:COMMAND", "/home/user/reports/good")]
    assert json.loads((out / "good.run.json").read_text())["command"] == ["/home/user/reports/good"]


def test_a_report_per_rank_is_packed_each(stub: Path, tmp_path: Path, monkeypatch) -> None:
    per_rank = make_samples.Program("good", nsysx=("--per-rank",))
    monkeypatch.setattr(make_samples, "PROGRAMS", {"ranks": per_rank})
    out = tmp_path / "out"
    assert make_samples.record_all(["ranks"], options(out)) == 0
    row = json.loads((out / "make_samples.json").read_text())["programs"]["ranks"]
    assert [row[f"ranks.rank{i}"]["kernels"] for i in range(2)] == [2, 2]
    assert {"ranks.rank0.sqlite.xz", "ranks.rank1.sqlite.xz", "ranks.rank1.run.json"} <= {f.name for f in out.iterdir()}


def test_a_report_that_still_holds_a_secret_is_not_published(stub: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(make_samples.scrub, "secrets_here", lambda project: {"cudaLaunchKernel", "step 0"})
    assert make_samples.record_all(["good"], options(tmp_path / "out")) == 1
    assert not (tmp_path / "out" / "good.sqlite.xz").exists()


def test_goes_on_from_a_table(stub: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    make_samples.record_all(["bad", "good"], options(first))
    (stub / "sample_reports" / "good.py").unlink()  # would fail if it were run again
    (stub / "sample_reports" / "bad.py").write_text("""print('{"steps": 3, "step_ms": 9.0}')\n""")
    assert make_samples.record_all(["bad", "good"], options(second, resume=first / "make_samples.json")) == 0
    rows = json.loads((second / "make_samples.json").read_text())["programs"]
    assert [make_samples.step_ms(rows[name]) for name in ("good", "bad")] == [4.5, 9.0]


def test_the_time_limit_stops_new_programs_only(stub: Path, tmp_path: Path) -> None:
    make_samples.record_all(["good", "bad"], options(tmp_path / "out", time_limit=1e-9))
    rows = json.loads((tmp_path / "out" / "make_samples.json").read_text())["programs"]
    assert "time limit" in rows["bad"]["skipped"]


def test_a_hanging_program_is_killed(tmp_path: Path) -> None:
    ran = make_samples.run([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log", timeout=0.5)
    assert ran.timed_out
    assert ran.seconds < 10
    assert ran.code != 0


def test_bundles_hold_every_program_file_and_stay_small(stub: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(make_samples, "MAX_FILE_BYTES", 40_000)
    for name in ("good.sqlite.xz", "bad.sqlite.xz", "good.run.json"):
        (tmp_path / name).write_bytes(b"x" * 18_000)
    (tmp_path / "make_samples.json").write_text("{}")
    (tmp_path / "log").write_text("being written by somebody else")
    make_samples.bundle(tmp_path)
    bundles = sorted(tmp_path.glob("bundle-*.tar"))
    names = []
    for path in bundles:
        with tarfile.open(path) as tar:
            names += tar.getnames()
    assert len(bundles) == 2
    assert sorted(names) == ["bad.sqlite.xz", "good.run.json", "good.sqlite.xz"]
    assert {f.name for f in tmp_path.iterdir() if f.is_file()} == {
        "make_samples.json",
        "log",
        *(b.name for b in bundles),
    }


def test_a_pair_is_timed_in_one_process_and_each_side_recorded(stub: Path, tmp_path: Path, monkeypatch) -> None:
    program = """import sys; print('{"before_ms": 2.0, "after_ms": 1.0}' if "--bare" in sys.argv else sys.argv[3])"""
    (stub / "sample_reports" / "pairs").mkdir()
    (stub / "sample_reports" / "pairs" / "file.py").write_text(program)
    monkeypatch.setattr(make_samples.pairs, "PAIRS", {"good": make_samples.pairs.Pair("file", "a change", {})})
    out = tmp_path / "out"
    assert make_samples.record_all(["good"], options(out, pairs=True)) == 0
    row = json.loads((out / "make_samples.json").read_text())["programs"]["good"]
    assert (row["change"], row["before_ms"], row["after_ms"]) == ("a change", 2.0, 1.0)
    assert [row[side]["kernels"] for side in ("before", "after")] == [2, 2]
    made = {f.name for f in out.iterdir()}
    assert {"good.before.sqlite.xz", "good.after.sqlite.xz", "good.before.run.json", "good.after.run.json"} <= made


def test_every_pair_and_program_exists() -> None:
    module = load()
    for program in module.PROGRAMS.values():
        assert (module.SAMPLES / f"{program.script}.py").is_file()
    asked = {field.name for field in dataclasses.fields(Changes)} - {"keep_cache"} | {"no_empty_cache"}
    for name, pair in module.pairs.PAIRS.items():
        program = ast.parse((module.SAMPLES / "pairs" / f"{pair.file}.py").read_text())
        assert name in {node.name for node in program.body if isinstance(node, ast.FunctionDef)}
        assert set(pair.edits) <= asked, name

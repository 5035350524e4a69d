"""Planted host work, sampled by a real nsys, against the time that the program itself took for it.

There is no GPU here: the program marks where it would launch, and a kernel of 20 us is put behind each mark. nsys 2023.4 samples,
and exports the stacks as JSON only; they are put into its SQLite export in the form of the versions that export them there. Its
sampler needs Python's lock for each sample, so the planted lines let go of it.
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from nsysx import pipeline
from nsysx.analyses import gpu_ledger, host_lines
from nsysx.recording.commands import INJECT
from tests.builder import layout

US = 1_000
PROGRAM = """
import json, sys, time
sys.path.append(sys.argv[1])
import nsysx_backend

nvtx = nsysx_backend.choose(None, "nvtx")[0]  # what this nsys records of every version of the package
launch = nvtx.prepare("launch")
spent = {"augment": [], "log": []}

def augment():
    began = time.perf_counter()
    time.sleep(0.009)  # AUGMENT
    spent["augment"].append(time.perf_counter() - began)

def log():
    began = time.perf_counter()
    time.sleep(0.006)  # LOG
    spent["log"].append(time.perf_counter() - began)

for step in range(70):
    nvtx.push(nvtx.prepare(f"step {step}"))
    augment()
    nvtx.mark(launch)
    log()
    nvtx.mark(launch)
    nvtx.pop()
with open("spent.json", "w") as file:
    json.dump(spent, file)
"""


def nsys(*words: str) -> None:
    path = os.environ.get("NSYSX_TEST_NSYS", "")
    assert path and os.access(path, os.X_OK), "set NSYSX_TEST_NSYS to a real nsys; scripts/test does"
    done = subprocess.run([path, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]


def stacks(exported: Path) -> dict[int, tuple[int, str]]:
    """Return time -> (number of the sampled thread, JSON as newer versions write it)."""
    found = {}
    for line in exported.read_text(encoding="utf-8", errors="replace").splitlines():
        if not line.startswith('{"Type":34') or "Payload" not in line:  # or a mark of the program
            continue
        event = json.loads(line)["NvtxEvent"]
        data = base64.b64decode(event["Payload"]["BinaryData"][0]["Data"])
        # State, count, then function, file and line; this version leaves the upper half of some numbers unwritten.
        frames = [struct.unpack_from("<QQI", data, at) for at in range(16, len(data), 24)]
        listed = [{"Function": f, "File": file, "Line": line} for f, file, line in frames]
        said = json.dumps({"Python Periodic Sampling": {"Frames": listed}})
        found[int(event["Timestamp"])] = int(event["Category"]), said
    return found


#: The marks of the program; nvtx registers their text.
MARKS = "coalesce(text, (SELECT value FROM StringIds WHERE id = textId)) = 'launch'"


def give_a_gpu(base: sqlite3.Connection, thread: int) -> None:
    """Put a launch and a kernel of 20 us behind each mark of a launch."""
    tables = layout("3.7.2")
    name = base.execute("SELECT max(id) FROM StringIds").fetchone()[0] + 1
    base.executemany("INSERT INTO StringIds VALUES (?, ?)", [(name, "cudaLaunchKernel_v7000"), (name + 1, "gemm")])
    launches = [t for (t,) in base.execute(f"SELECT start FROM NVTX_EVENTS WHERE {MARKS} ORDER BY start")]
    common = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": thread & ~0xFFFFFF}
    rows: dict[str, list[dict[str, Any]]] = {"CUPTI_ACTIVITY_KIND_RUNTIME": [], "CUPTI_ACTIVITY_KIND_KERNEL": []}
    for number, at in enumerate(launches, 1):
        call = {"start": at, "end": at + 5 * US, "eventClass": 0, "globalTid": thread, "nameId": name}
        rows["CUPTI_ACTIVITY_KIND_RUNTIME"].append(call | {"correlationId": number})
        kernel = {"start": at + 8 * US, "end": at + 28 * US, "demangledName": name + 1, "shortName": name + 1}
        rows["CUPTI_ACTIVITY_KIND_KERNEL"].append(kernel | common | {"correlationId": number})
    for table, added in rows.items():
        columns = tables[table]
        base.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
        values = [[row.get(c, 0 if "NOT NULL" in kind else None) for c, kind in columns.items()] for row in added]
        base.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", values)


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a sampled run: r.sqlite, spent.json."""
    folder = tmp_path_factory.mktemp("sampled")
    (folder / "train.py").write_text(PROGRAM)
    sampling = ("--python-sampling=true", "--python-sampling-frequency=2000")
    before = Path.cwd()
    os.chdir(folder)
    try:
        nsys(
            "profile",
            "-t",
            "nvtx",
            "--sample=none",
            "--cpuctxsw=none",
            *sampling,
            "-o",
            "r",
            sys.executable,
            "train.py",
            str(INJECT),
        )
    finally:
        os.chdir(before)
    for kind, name in (("sqlite", "r.sqlite"), ("json", "r.json")):
        nsys("export", f"--type={kind}", f"--output={folder / name}", str(folder / "r.nsys-rep"))
    said = stacks(folder / "r.json")
    with closing(sqlite3.connect(folder / "r.sqlite")) as base:
        (thread,) = base.execute(f"SELECT DISTINCT globalTid FROM NVTX_EVENTS WHERE {MARKS}").fetchone()
        rows = [(thread, text, at) for at, (_, text) in said.items()]
        base.executemany("UPDATE NVTX_EVENTS SET globalTid = ?, jsonText = ? WHERE eventType = 34 AND start = ?", rows)
        give_a_gpu(base, thread)
        base.execute(f"DELETE FROM NVTX_EVENTS WHERE {MARKS}")
        base.commit()
    return folder


def test_planted_lines_have_the_time_that_the_program_took_for_them(sampled: Path) -> None:
    profile = pipeline.gather(sampled / "r.sqlite", pipeline.Options(steps="5:65"))
    spent = json.loads((sampled / "spent.json").read_text())
    source = PROGRAM.splitlines()
    first, last = profile.scope.first, profile.scope.last
    assert (first, last) == (5, 64)
    for name, seconds in spent.items():
        line = next(i for i, text in enumerate(source, 1) if text.endswith(f"# {name.upper()}"))
        assert _below(profile, line) == pytest.approx(sum(seconds[first : last + 1]) * 1e9, rel=0.1), name


def _below(profile: Any, line: int) -> float:
    """Return the idle time of host code with a line of train.py anywhere in the stack (ns)."""
    lines = host_lines.host_lines(profile)
    frames = profile.trace.stacks.filter(
        (pl.col("line") == line) & pl.col("file").cast(pl.String).str.ends_with("train.py")
    )
    return float(lines.seen.filter(pl.col("stack").is_in(frames["stack"].unique().to_list()))["ns"].sum())


def test_their_parts_sum_to_the_ledger(sampled: Path) -> None:
    profile = pipeline.gather(sampled / "r.sqlite", pipeline.Options())
    (row,) = gpu_ledger.table(profile).to_dicts()
    table = host_lines.table(profile)
    whole = row["idle_causes"]["host_code"]
    assert table["idle_ns"].sum() == whole
    rest = table.filter(pl.col("function") == host_lines.NOT_SAMPLED)["idle_ns"].sum()
    assert rest < 0.15 * whole


def test_what_this_version_exports_is_no_stack(sampled: Path, tmp_path: Path) -> None:
    (tmp_path / "r.sqlite").write_bytes((sampled / "r.sqlite").read_bytes())
    with closing(sqlite3.connect(tmp_path / "r.sqlite")) as base:
        base.execute("UPDATE NVTX_EVENTS SET jsonText = NULL")
        base.commit()
    trace = pipeline.gather(tmp_path / "r.sqlite", pipeline.Options()).trace
    (note,) = [n for n in trace.left_out if n.table == "Python samples"]
    assert note.rows > 500 and "--include-json" in note.reason

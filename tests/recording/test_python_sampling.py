"""Planted host work, sampled by a real nsys, against the time that the program itself took for it.

There is no GPU here: the program marks where it would launch, and a kernel of 20 us is put behind each mark. nsys 2023.4 samples,
and exports the stacks as JSON only; they are put into its SQLite export in the form of the versions that export them there. Its
sampler needs Python's lock for each sample, so the planted lines let go of it.

Times are held against a recording (data/planted.json): a busy machine samples late, and its figures would say nothing about ours.
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
from nsysx.reading.load import load
from nsysx.recording.environment import INJECT
from tests.builder import Report

US = 1_000
PLANTED = Path(__file__).parent / "data" / "planted.json"
PROGRAM = """
import json, sys, time
sys.path.append(sys.argv[1])
import nsysx_probe.backend

nvtx = nsysx_probe.backend.choose(None, "nvtx")[0]  # what this nsys records of every version of the package
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


def nsys(*words: str, makes: Path | None = None) -> None:
    """Run nsys until it succeeds, and until the file that it ``makes`` is there: one without its agent may say that all is well."""
    path = os.environ.get("NSYSX_TEST_NSYS", "")
    assert path and os.access(path, os.X_OK), "set NSYSX_TEST_NSYS to a real nsys; scripts/test does"
    for _ in range(3):  # on a busy machine its agent is lost now and then
        done = subprocess.run(
            [path, words[0], "--force-overwrite=true", *words[1:]], capture_output=True, text=True, timeout=300
        )
        if done.returncode == 0 and (makes is None or makes.exists()):
            return
    raise AssertionError(done.stdout[-2_000:] + done.stderr[-2_000:])


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


def recorded(folder: Path) -> Path:
    """Record the program in ``folder``: r.sqlite with its stacks, spent.json with the time that each line took."""
    (folder / "train.py").write_text(PROGRAM)
    sampling = ("--python-sampling=true", "--python-sampling-frequency=2000")
    profile = ("profile", "-t", "nvtx", "--sample=none", "--cpuctxsw=none", *sampling, "-o", "r")
    before = Path.cwd()
    os.chdir(folder)
    try:
        nsys(*profile, sys.executable, "train.py", str(INJECT), makes=folder / "r.nsys-rep")
    finally:
        os.chdir(before)
    for kind, name in (("sqlite", "r.sqlite"), ("json", "r.json")):
        nsys("export", f"--type={kind}", f"--output={folder / name}", str(folder / "r.nsys-rep"))
    said = stacks(folder / "r.json")
    with closing(sqlite3.connect(folder / "r.sqlite")) as base:
        (thread,) = base.execute(f"SELECT DISTINCT globalTid FROM NVTX_EVENTS WHERE {MARKS}").fetchone()
        rows = [(thread, text, at) for at, (_, text) in said.items()]
        base.executemany("UPDATE NVTX_EVENTS SET globalTid = ?, jsonText = ? WHERE eventType = 34 AND start = ?", rows)
        base.commit()
    return folder / "r.sqlite"


def _public(file: str | None) -> str:
    """Return a file's name without the folders of the machine that it was recorded on."""
    name = file or "?"
    return (
        name
        if name.startswith("<")
        else f"/home/me/{Path(name).name}"
        if "/lib/" not in name
        else f"/usr/lib/{Path(name).name}"
    )


def facts(path: Path) -> dict[str, Any]:
    """Return what was recorded, as plain values: times of the launches and steps, samples with their stacks, the program's times."""
    trace = load(path)
    nvtx = trace.nvtx.with_columns(pl.col("text").cast(pl.String))
    steps = nvtx.filter(pl.col("text").str.starts_with("step ")).sort("start_ns")
    # What Python imports before the first step is not told.
    samples = trace.samples.sort("time_ns").filter(pl.col("time_ns") >= steps["start_ns"].item(0))
    used = trace.stacks.filter(pl.col("stack").is_in(samples["stack"].unique().to_list()))
    number = {stack: i for i, stack in enumerate(used["stack"].unique(maintain_order=True).to_list())}
    samples = samples.with_columns(pl.col("stack").replace_strict(number))
    return {
        "nsys": trace.capture.nsys_version,
        "launches": nvtx.filter(pl.col("text") == "launch")["start_ns"].sort().to_list(),
        "steps": steps.select("start_ns", "end_ns").rows(),
        "stacks": [
            [
                f"{_public(file)}:{line or 0} {function}"
                for file, line, function in part.select("file", "line", "function").iter_rows()
            ]
            for _, part in used.with_columns(pl.col("function", "file").cast(pl.String)).group_by(
                "stack", maintain_order=True
            )
        ],
        "samples": samples.select("time_ns", "stack").rows(),
        "spent": json.loads((path.parent / "spent.json").read_text()),
    }


def report_of(said: dict[str, Any]) -> Report:
    """Return a report of these facts, with a launch where the program marked one and a kernel of 20 us behind it."""
    report = Report()
    report.gpu(pids=[(100, 0)])
    process = report.process(100)
    process.context()
    main = process.thread(100, "python")
    for number, (start, end) in enumerate(said["steps"]):
        main.add_range(f"step {number}", start, end, domain="nsysx")
    for at in said["launches"]:
        main.launch(at, 5 * US, kernel="gemm", gpu_start=at + 8 * US, gpu_dur=20 * US)
    for at, stack in said["samples"]:
        main.sample(at, said["stacks"][stack])
    return report


def test_planted_lines_have_the_time_that_the_program_took_for_them(tmp_path: Path) -> None:
    """What a real nsys recorded, once, on a machine that was not too busy to sample: two samples are 1 ms apart in 19 of 20 cases."""
    said = json.loads(PLANTED.read_text())
    profile = pipeline.gather(report_of(said).write(tmp_path / "r.sqlite"), pipeline.ReadingOptions(steps="5:65"))
    first, last = profile.scope.first or 0, profile.scope.last or 0
    assert (first, last) == (5, 64)
    table = host_lines.table(profile)
    for name, seconds in said["spent"].items():
        line = next(i for i, text in enumerate(PROGRAM.splitlines(), 1) if text.endswith(f"# {name.upper()}"))
        found = table.filter((pl.col("line") == line) & (pl.col("function") == name))["idle_ns"].sum()
        assert found == pytest.approx(sum(seconds[first : last + 1]) * 1e9, rel=0.1), name
    (row,) = gpu_ledger.table(profile).to_dicts()
    whole = row["idle_causes"]["host_code"]
    assert table["idle_ns"].sum() == whole
    assert table.filter(pl.col("function") == host_lines.NOT_SAMPLED)["idle_ns"].sum() < 0.15 * whole


def test_a_real_nsys_samples_the_lines_and_its_stacks_are_read(tmp_path: Path) -> None:
    """However busy this machine is: both lines are seen, nothing is lost in reading, and what has no stack is counted."""
    path = recorded(tmp_path)
    if sys.version_info >= (3, 13) and not stacks(path.with_suffix(".json")):
        pytest.skip("this nsys is older than this Python and takes no samples of it")
    said = facts(path)
    seen = {frame for _, stack in said["samples"] for frame in said["stacks"][stack][:1]}
    for name in said["spent"]:
        assert any(frame.endswith(f" {name}") for frame in seen), name
    profile = pipeline.gather(report_of(said).write(tmp_path / "made.sqlite"), pipeline.ReadingOptions())
    (row,) = gpu_ledger.table(profile).to_dicts()
    assert host_lines.table(profile)["idle_ns"].sum() == row["idle_causes"]["host_code"]
    with closing(sqlite3.connect(path)) as base:
        (marks,) = base.execute(
            "SELECT count(*) FROM NVTX_EVENTS WHERE eventType = 34 AND jsonText IS NOT NULL"
        ).fetchone()
        assert load(path).samples.height == marks
        base.execute("UPDATE NVTX_EVENTS SET jsonText = NULL")
        base.commit()
    (note,) = [n for n in load(path).left_out if n.table == "Python samples"]
    assert note.rows == marks and "--include-json" in note.reason


if __name__ == "__main__":  # python -m tests.recording.test_python_sampling: records it again, with NSYSX_TEST_NSYS
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        PLANTED.write_text(json.dumps(facts(recorded(Path(name))), separators=(",", ":")) + "\n")

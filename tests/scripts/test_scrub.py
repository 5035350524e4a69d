"""What scripts/scrub.py lets through: nothing of the machine and its owner, everything of the program."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import scrub  # noqa: E402

TRACED = 0x0001_0003_4E00_0000  # global process id, thread bits zero
OTHER = 0x0001_0000_0100_0000
KERNEL = "void at::native::vectorized_elementwise_kernel<4, alice::Functor>(int, T1)"
SECRETS = {
    "sk-very-secret-token",
    "WANDB_API_KEY",
    "gpubox17",
    "gpubox17.lab.example",
    "/home/alice",
    "/srv/checkouts/secret-model",
    "password: hunter2",
    "firefox",
    "mlx5_0",
    "/proc/cpuinfo",
    "def proprietary_model",
    "openat64",
    "mining-daemon",
    "alice-s-workstation",
}


@pytest.fixture
def scrubber() -> scrub.Scrubber:
    return scrub.Scrubber(
        project="/srv/checkouts/secret-model", home="/home/alice", host="gpubox17.lab.example", user="alice"
    )


def report(path: Path, *, comments: bool = True) -> Path:
    """Write a small report of the shape that nsys exports, with a secret in every place where one was ever seen."""
    refers = "-- REFERENCES StringIds(id)" if comments else ""
    con = sqlite3.connect(path)
    con.executescript(f"""
        CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
        CREATE TABLE META_DATA_CAPTURE (name TEXT NOT NULL, value TEXT);
        CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
        CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum INTEGER, value TEXT);
        CREATE TABLE TARGET_INFO_NIC_INFO (GUID INTEGER, name TEXT);
        CREATE TABLE ProcessStreams (
            globalPid INTEGER NOT NULL,
            filenameId INTEGER NOT NULL, {refers}
            contentId INTEGER NOT NULL {refers}
        );
        CREATE TABLE ANALYSIS_FILE (id INTEGER PRIMARY KEY, filename TEXT, content BLOB, contentId INTEGER, globalPid INTEGER);
        CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
        CREATE TABLE ThreadNames (
            nameId INTEGER NOT NULL, {refers}
            globalTid INTEGER
        );
        CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, text TEXT);
        CREATE TABLE OSRT_API (
            start INTEGER,
            nameId INTEGER NOT NULL {refers}
        );
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
            start INTEGER NOT NULL, "end" INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER,
            nameId INTEGER NOT NULL {refers}
        );
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
            start INTEGER NOT NULL, "end" INTEGER NOT NULL, globalPid INTEGER, correlationId INTEGER,
            demangledName INTEGER NOT NULL, {refers}
            shortName INTEGER NOT NULL {refers}
        );
        CREATE TABLE NVTX_EVENTS (
            start INTEGER, "end" INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER,
            textId INTEGER, {refers}
            jsonText TEXT
        );
    """)
    strings = {
        1: "cudaLaunchKernel_v7000",
        2: KERNEL,
        3: "vectorized_elementwise_kernel",
        4: "/home/alice/logs/stdout.log",
        5: "login ok, password: hunter2",
        6: "/srv/checkouts/secret-model/train.py",
        7: "forward",
        8: "registered by the user",
        9: "left over from gpubox17",
        10: "openat64",
        11: "pt_autograd_0",
        12: "mining-daemon",
    }
    con.executemany("INSERT INTO StringIds VALUES (?, ?)", strings.items())
    con.executemany(
        "INSERT INTO META_DATA_CAPTURE VALUES (?, ?)",
        [
            ("PROCESS_0:ENVIRONMENT_VARIABLE", "WANDB_API_KEY=sk-very-secret-token"),
            ("PROCESS_0:ENVIRONMENT_VARIABLE", "HOSTNAME=gpubox17"),
            ("PROCESS_0:COMMAND", "/home/alice/venv/bin/python"),
            ("PROCESS_0:ARGUMENT_0", "/srv/checkouts/secret-model/train.py"),
            ("PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE", "Node"),
            ("DEVICE_DISPLAY_NAME", "gpubox17"),
        ],
    )
    con.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PARAM_INPUT_FILE', '/home/alice/out.nsys-rep')")
    con.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (1, 'x', 'Hostname', 2, 'gpubox17.lab.example')")
    con.execute("INSERT INTO TARGET_INFO_NIC_INFO VALUES (77, 'mlx5_0')")
    con.execute("INSERT INTO ProcessStreams VALUES (?, 4, 5)", (TRACED,))
    con.execute(
        "INSERT INTO ANALYSIS_FILE VALUES (1, '/proc/cpuinfo', 'def proprietary_model(): ...', 5, ?)", (TRACED,)
    )
    con.executemany("INSERT INTO PROCESSES VALUES (?, ?, ?)", [(TRACED, 846, "python3"), (OTHER, 1, "firefox")])
    con.executemany("INSERT INTO ThreadNames VALUES (?, ?)", [(11, TRACED | 900), (12, OTHER | 1)])
    con.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_HOST', 'alice-s-workstation')")
    con.execute("INSERT INTO DIAGNOSTIC_EVENT VALUES (1, 'launched by alice@gpubox17, see /home/alice/log')")
    con.execute("INSERT INTO OSRT_API VALUES (5, 10)")
    con.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (10, 20, ?, 1, 1)", (TRACED | 846,))
    con.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (15, 30, ?, 1, 2, 3)", (TRACED,))
    frames = {"Python Backtrace on CUDA": {"Frames": [{"Function": 7, "File": 6, "Line": 12}]}}
    con.executemany(
        "INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (1, 2, 59, "load /home/alice/data/train.bin", TRACED | 846, None, None),
            (1, 2, 59, None, TRACED | 846, 8, None),
            (12, None, 34, "Python Backtrace on CUDA", TRACED | 846, None, json.dumps(frames)),
        ],
    )
    con.commit()
    con.close()
    return path


def rows(path: Path, query: str) -> list[tuple]:
    con = sqlite3.connect(path)
    try:
        return con.execute(query).fetchall()
    finally:
        con.close()


def dump(path: Path) -> str:
    con = sqlite3.connect(path)
    try:
        return "\n".join(con.iterdump())
    finally:
        con.close()


@pytest.mark.parametrize("comments", [True, False])
def test_nothing_private_survives_in_the_file_s_bytes(tmp_path: Path, scrubber: scrub.Scrubber, comments: bool) -> None:
    path = report(tmp_path / "r.sqlite", comments=comments)
    assert set(scrub.survivors(path, SECRETS)) == SECRETS, "the test's own report must hold every secret first"
    scrub.scrub_sqlite(path, scrubber)
    assert scrub.survivors(path, SECRETS) == []


def test_what_the_report_is_about_stays(tmp_path: Path, scrubber: scrub.Scrubber) -> None:
    path = report(tmp_path / "r.sqlite")
    scrub.scrub_sqlite(path, scrubber)
    assert rows(path, "SELECT start, end, correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME") == [(10, 20, 1)]
    kernel = "SELECT s.value FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName"
    assert rows(path, kernel) == [(KERNEL,)], (
        "a kernel's name is never rewritten, not even where it holds the user's name"
    )
    assert rows(path, "SELECT name FROM PROCESSES") == [("python3",)]
    threads = "SELECT s.value FROM ThreadNames t JOIN StringIds s ON s.id = t.nameId"
    assert rows(path, threads) == [("pt_autograd_0",)]
    assert rows(path, "SELECT value FROM META_DATA_CAPTURE WHERE name LIKE '%MODE'") == [("Node",)]
    assert rows(path, "SELECT value FROM META_DATA_CAPTURE WHERE name = 'DEVICE_DISPLAY_NAME'") == [("host",)]
    assert rows(path, "SELECT value FROM StringIds WHERE id = 8") == [("registered by the user",)]


def test_python_lines_keep_their_file_and_function(tmp_path: Path, scrubber: scrub.Scrubber) -> None:
    path = report(tmp_path / "r.sqlite")
    scrub.scrub_sqlite(path, scrubber)
    assert rows(path, "SELECT value FROM StringIds WHERE id IN (6, 7) ORDER BY id") == [
        ("/home/user/project/train.py",),
        ("forward",),
    ]


def test_scrubbing_twice_changes_nothing_more(tmp_path: Path, scrubber: scrub.Scrubber) -> None:
    path = report(tmp_path / "r.sqlite")
    scrub.scrub_sqlite(path, scrubber)
    once = dump(path)
    scrub.scrub_sqlite(path, scrubber)
    assert dump(path) == once


def test_bytes_that_are_no_utf8_do_not_stop_it(tmp_path: Path, scrubber: scrub.Scrubber) -> None:
    path = report(tmp_path / "r.sqlite")
    con = sqlite3.connect(path)
    con.execute("INSERT INTO META_DATA_EXPORT VALUES ('TZ', CAST(x'ff2f686f6d652f616c6963652f7a' AS TEXT))")
    con.commit()
    con.close()
    scrub.scrub_sqlite(path, scrubber)
    assert scrub.survivors(path, SECRETS) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/srv/checkouts/secret-model", "/home/user/project"),
        ("/srv/checkouts/secret-model/a b.py", "/home/user/project/a b.py"),
        ("/srv/checkouts/secret-models/x", "/srv/checkouts/secret-models/x"),
        ("PATH=/home/bob/bin:/root/bin:/usr/bin", "PATH=/home/user/bin:/home/user/bin:/usr/bin"),
        ("/Users/carol/x", "/home/user/x"),
        ("/root", "/home/user"),
        ("/rooted/x and a/root", "/rooted/x and a/root"),
        ("ssh alice@gpubox17: malice, alice's", "ssh user@host: malice, user's"),
        ("gpubox17.lab.example and gpubox170", "host and gpubox170"),
    ],
)
def test_texts(scrubber: scrub.Scrubber, text: str, expected: str) -> None:
    assert scrubber.text(text) == expected


def test_root_is_no_name_worth_hiding() -> None:
    text = scrub.Scrubber(home="/root", user="root", host="localhost").text("LAUNCH_AS_ROOT root localhost /root/x")
    assert text == "LAUNCH_AS_ROOT root localhost /home/user/x"


def test_run_json(tmp_path: Path, scrubber: scrub.Scrubber) -> None:
    path = tmp_path / "r.run.json"
    run = {
        "schema": "nsysx.run/1",
        "command": ["/home/alice/venv/bin/python", "/srv/checkouts/secret-model/train.py"],
        "exit_code": 0,
        "environment": {"WANDB_API_KEY": "sk-very-secret-token"},
        "probe": [{"ranges_pushed": 12, "reason": None, "errors": ["on gpubox17"]}],
    }
    path.write_text(json.dumps(run))
    scrub.scrub_run_json(path, scrubber)
    assert scrub.survivors(path, SECRETS) == []
    back = json.loads(path.read_text())
    assert back["command"] == ["/home/user/venv/bin/python", "/home/user/project/train.py"]
    assert back["probe"] == [{"ranges_pushed": 12, "reason": None, "errors": ["on host"]}]


def test_command_line(tmp_path: Path) -> None:
    path = report(tmp_path / "r.sqlite")
    done = subprocess.run([sys.executable, SCRIPTS / "scrub.py", path], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert scrub.survivors(path, {"sk-very-secret-token", "hunter2", "/home/alice"}) == []
    missing = subprocess.run(
        [sys.executable, SCRIPTS / "scrub.py", tmp_path / "no.sqlite"], capture_output=True, text=True
    )
    assert missing.returncode == 2
    assert "no such file" in missing.stderr

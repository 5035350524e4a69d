#!/usr/bin/env python3
"""Makes an nsys SQLite report, and the run.json beside it, fit to be published. Standard library only.

    scripts/scrub.py REPORT.sqlite      in place; REPORT.run.json too, where there is one

What goes: the environment, the program's output, the contents of files, operating system calls, network cards, processes
and threads that were not traced, and strings that nothing refers to any more. What is rewritten: host, user, home and project paths.
Kernel, API and range names stay as they are.
"""

import getpass
import json
import os
import re
import socket
import sqlite3
import sys
from pathlib import Path

#: Tables whose rows say something about the machine or its owner and nothing about the GPU.
EMPTIED = ("TARGET_INFO_SYSTEM_ENV", "ProcessStreams", "ANALYSIS_FILE")
#: Tables dropped whole: a report without them is a report that did not record them.
DROPPED = re.compile(
    r"^(OSRT_.*|SCHED_EVENTS|TARGET_INFO_(NIC|NETWORK|WDDM|SYSTEM_INFO).*|NIC_.*|NET_.*|PROCESS_INFO.*)$", re.IGNORECASE
)
ENVIRONMENT = re.compile(r"ENVIRONMENT|ENV_VAR", re.IGNORECASE)
OWNER = re.compile(r"(?:^|[:_])(DEVICE_DISPLAY_NAME|HOST(?:_?NAME)?|USER(?:_?NAME)?)$", re.IGNORECASE)
#: A globalTid is a globalPid with the thread in its low bits.
THREAD_BITS = (1 << 24) - 1
#: nsys marks the columns that hold string ids in its own CREATE TABLE text.
STRING_COLUMN = re.compile(r"^\s*\"?(\w+)\"?\s+INTEGER\b.*--\s*REFERENCES StringIds\(id\)", re.MULTILINE)
#: The same for exports without those comments.
STRING_NAMES = {"nameId", "textId", "jsonTextId", "demangledName", "shortName", "mangledName", "symbol", "module"}
HOME = re.compile(r"/(?:home|Users)/[^/\s:;,'\"<>|]+")
ROOT_HOME = re.compile(r"(?<![\w.-])/root(?=[/\s:;,'\"<>|]|$)")


class Scrubber:
    """Rewrites texts: the project folder, home folders, the host's name and the user's name."""

    def __init__(self, *, project: str = "", home: str = "", host: str = "", user: str = "") -> None:
        self.paths = [
            (p.rstrip("/"), to)
            for p, to in ((project, "/home/user/project"), (home, "/home/user"))
            if len(p.rstrip("/")) > 1
        ]
        names = [n for n in {host, host.split(".")[0]} if n and n != "localhost"]
        self.names = [
            (re.compile(rf"(?<![\w.-]){re.escape(n)}(?![\w-])"), "host") for n in sorted(names, key=len, reverse=True)
        ]
        if user and user not in ("root", "user"):
            self.names.append((re.compile(rf"(?<![\w-]){re.escape(user)}(?![\w-])"), "user"))

    @classmethod
    def here(cls, project: Path) -> "Scrubber":
        """Return the scrubber for reports made by this user on this machine."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):
            user = ""
        return cls(project=str(project), home=str(Path.home()), host=socket.gethostname(), user=user)

    def path(self, text: str) -> str:
        """Return ``text`` without private folders in it."""
        for old, new in self.paths:
            text = re.sub(rf"(?<![\w.-]){re.escape(old)}(?![\w.-])", new, text)
        return ROOT_HOME.sub("/home/user", HOME.sub("/home/user", text))

    def text(self, text: str) -> str:
        """Return ``text`` without private folders and names in it."""
        text = self.path(text)
        for pattern, new in self.names:
            text = pattern.sub(new, text)
        return text

    def value(self, value: object) -> object:
        """Return a JSON value with every string in it scrubbed and every environment gone."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(v) for v in value]
        if isinstance(value, dict):
            return {
                k: self.value(v)
                for k, v in value.items()
                if k.lower() not in ("env", "environ", "environment", "hostname", "user")
            }
        return value


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _tables(con: sqlite3.Connection) -> dict[str, str]:
    return dict(
        con.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'").fetchall()
    )


def _columns(con: sqlite3.Connection, table: str) -> dict[str, str]:
    return {row[1]: row[2].upper() for row in con.execute(f"PRAGMA table_info({_quote(table)})")}


def _json_ids(value: object) -> set[int]:
    """Return the string ids in a JSON value: Python backtraces name functions and files, but not lines, by id."""
    if isinstance(value, list):
        return set().union(*map(_json_ids, value))
    if isinstance(value, dict):
        named = (str(v) for k, v in value.items() if k in ("Function", "File", "Module"))
        here = {int(v) for v in named if v.isascii() and v.isdigit()}
        return here.union(*map(_json_ids, value.values()))
    return set()


def _referenced_strings(con: sqlite3.Connection, tables: dict[str, str]) -> set[int]:
    used: set[int] = set()
    for table, sql in tables.items():
        if table == "StringIds" or table.startswith("ENUM_"):
            continue
        columns = _columns(con, table)
        marked = set(STRING_COLUMN.findall(sql)) | STRING_NAMES
        for column in marked & set(columns):
            if columns[column].startswith("INT"):
                query = f"SELECT DISTINCT {_quote(column)} FROM {_quote(table)} WHERE {_quote(column)} IS NOT NULL"
                used.update(row[0] for row in con.execute(query))
    if "jsonText" in _columns(con, "NVTX_EVENTS"):
        for (text,) in con.execute("SELECT DISTINCT jsonText FROM NVTX_EVENTS WHERE jsonText IS NOT NULL"):
            try:
                used |= _json_ids(json.loads(text))
            except ValueError:
                continue
    return used


def _traced(con: sqlite3.Connection, tables: dict[str, str]) -> set[int]:
    """Return the global process ids that have events."""
    seen: set[int] = set()
    for table in tables:
        if not table.startswith(("CUPTI_", "NVTX_EVENTS", "CUDA_GPU_MEMORY")):
            continue
        columns = _columns(con, table)
        for column, sql in (("globalPid", "globalPid"), ("globalTid", f"globalTid & ~{THREAD_BITS}")):
            if column in columns:
                seen.update(
                    row[0] for row in con.execute(f"SELECT DISTINCT {sql} FROM {_quote(table)}") if row[0] is not None
                )
    return seen


def scrub_sqlite(path: Path, scrubber: Scrubber) -> None:
    """Scrub the report at ``path`` in place; sqlite3.Error when it is not a report."""
    con = sqlite3.connect(path)
    con.text_factory = lambda b: b.decode("utf-8", "replace")
    try:
        con.execute("PRAGMA secure_delete = ON")
        for table in [t for t in _tables(con) if DROPPED.match(t)]:
            con.execute(f"DROP TABLE {_quote(table)}")
        tables = _tables(con)
        for table in set(EMPTIED) & set(tables):
            con.execute(f"DELETE FROM {_quote(table)}")
        if "META_DATA_CAPTURE" in tables:
            rows = con.execute("SELECT rowid, name, value FROM META_DATA_CAPTURE").fetchall()
            gone = [(row[0],) for row in rows if ENVIRONMENT.search(row[1] or "")]
            con.executemany("DELETE FROM META_DATA_CAPTURE WHERE rowid = ?", gone)
        for table in {"META_DATA_CAPTURE", "META_DATA_EXPORT", "EXPORT_META_DATA"} & set(tables):
            for rowid, name, value in con.execute(f"SELECT rowid, name, value FROM {table}").fetchall():
                owner = OWNER.search(name or "")
                if owner and value:
                    new = "user" if owner[1].startswith("USER") else "host"
                    con.execute(f"UPDATE {table} SET value = ? WHERE rowid = ?", (new, rowid))
        traced = _traced(con, tables)
        for table, column in (("PROCESSES", "globalPid"), ("ThreadNames", "globalTid")):
            if table in tables and column in _columns(con, table):
                ids = [row[0] for row in con.execute(f"SELECT DISTINCT {column} FROM {table}")]
                others = [(i,) for i in ids if i is None or i & ~THREAD_BITS not in traced]
                con.executemany(f"DELETE FROM {table} WHERE {column} IS ?", others)
        if "StringIds" in tables:
            used = _referenced_strings(con, tables)
            unused = [(i,) for (i,) in con.execute("SELECT id FROM StringIds") if i not in used]
            con.executemany("DELETE FROM StringIds WHERE id = ?", unused)
        for table in tables:
            if not table.startswith("ENUM_"):
                _rewrite(con, table, scrubber)
        con.commit()
        con.execute("VACUUM")
    finally:
        con.close()


def _rewrite(con: sqlite3.Connection, table: str, scrubber: Scrubber) -> None:
    # A name in the code being measured may well equal the host's name; only metadata is searched for names.
    names_too = table.startswith(("META_DATA", "EXPORT_META", "TARGET_INFO", "DIAGNOSTIC", "PROCESSES", "ANALYSIS"))
    change = scrubber.text if names_too else scrubber.path
    for column, dtype in _columns(con, table).items():
        if "INT" in dtype or "REAL" in dtype:
            continue
        c, t = _quote(column), _quote(table)
        # By bytes: text that is not UTF-8 would not be found again by its decoded form.
        query = f"SELECT DISTINCT CAST({c} AS BLOB) FROM {t} WHERE typeof({c}) = 'text'"
        for (raw,) in con.execute(query).fetchall():
            old = raw.decode("utf-8", "replace")
            new = change(old)
            if new != old:
                con.execute(f"UPDATE {t} SET {c} = ? WHERE CAST({c} AS BLOB) = ?", (new, raw))


def scrub_run_json(path: Path, scrubber: Scrubber) -> None:
    """Scrub a NAME.run.json in place."""
    path.write_text(json.dumps(scrubber.value(json.loads(path.read_text())), indent=1) + "\n")


def survivors(path: Path, secrets: "list[str] | set[str]") -> list[str]:
    """Return the ``secrets`` whose bytes are still anywhere in the file."""
    data = path.read_bytes()
    return sorted(s for s in secrets if s and s.encode() in data)


def secrets_here(project: Path) -> set[str]:
    """Return texts of this machine that no published file may hold: folders, host, and telling environment values."""
    private = {str(project), socket.gethostname()}
    if str(Path.home()) != "/root":
        private.add(f"{Path.home()}/")
    telling = re.compile(r"TOKEN|SECRET|PASSW|KEY|CREDENTIAL|AUTH|COOKIE|HOSTNAME|SSH", re.IGNORECASE)
    private |= {v for k, v in os.environ.items() if telling.search(k)}
    return {s for s in private if len(s) >= 6}


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    report = Path(sys.argv[1])
    if not report.is_file():
        print(f"scrub: no such file: {report}", file=sys.stderr)
        return 2
    scrubber = Scrubber.here(Path.cwd())
    scrub_sqlite(report, scrubber)
    run_json = report.with_suffix(".run.json")
    if run_json.is_file():
        scrub_run_json(run_json, scrubber)
    return 0


if __name__ == "__main__":
    sys.exit(main())

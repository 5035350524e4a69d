"""Tells what a file is, and opens SQLite files read-only without leaving anything beside the user's report."""

from __future__ import annotations

import difflib
import errno
import json
import os
import re
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from nsysx.errors import EXIT_INPUT, NsysxError
from nsysx.reading.reading_bounds import FILE_HEAD_BYTES, LOCKED_FILE_S, MOST_BESIDE_BYTES, SQLITE_MESSAGE_LETTERS

_SQLITE_MAGIC = b"SQLite format 3\x00"
_LFS_MAGIC = b"version https://git-lfs"
#: First bytes of a compressed file -> the ending of its format.
PACKED_MAGIC = {b"\xfd7zXZ": ".xz", b"\x1f\x8b": ".gz", b"(\xb5/\xfd": ".zst"}
#: Keys near the beginning of a trace of torch.profiler, or of anything else in Chrome's format.
_TRACE_EVENTS = re.compile(rb'"(schemaVersion|deviceProperties|traceEvents|distributedInfo|displayTimeUnit)"\s*:')

#: File name ending of other formats -> what the file is, and what to do with it.
_FOREIGN = {
    ".qdstrm": ("is what nsys collected, not yet imported", "Import it with nsys's QdstrmImporter, then export that"),
    ".ncu-rep": ("is a report of Nsight Compute", "nsysx reads Nsight Systems: nsysx run -- CMD"),
    ".parquet": ("is one table of an export", "Give the folder that nsys export --type parquetdir wrote"),
    ".h5": ("is nsys's HDF5 export", "Export it as SQLite: nsys export --type sqlite"),
    ".arrow": ("is nsys's Arrow export", "Export it as SQLite: nsys export --type sqlite"),
    ".arrows": ("is nsys's Arrow export", "Export it as SQLite: nsys export --type sqlite"),
}


def fail(path: Path, what: str, hint: str, slug: str) -> NsysxError:
    """Return the error for a file that cannot be read; ``what`` completes the sentence "FILE: ..."."""
    return NsysxError(f"{path.name or path}: {what}", slug=slug, hint=hint, exit_code=EXIT_INPUT)


def damaged(path: Path, what: str) -> NsysxError:
    """Return the error for a report that is no longer what nsys wrote."""
    return fail(path, what, "Export the report again", "input-damaged")


def real(path: Path) -> Path:
    """Return the absolute path with all links resolved; links in a circle are kept."""
    return Path(os.path.realpath(path))


def _hint_of_like_name(path: Path) -> str:
    """Return a hint that names the report whose name is most like this one."""
    try:
        names = [p.name for p in path.parent.iterdir() if ".sqlite" in p.name or p.suffix in (".nsys-rep", ".json")]
    except OSError:
        return f"There is no folder {path.parent}"
    close = difflib.get_close_matches(path.name, [name for name in names if name != path.name], n=1)
    return f"Did you mean {path.with_name(close[0])}?" if close else "Check the path; `nsysx run` writes NAME.sqlite"


def kind_of(path: Path) -> str:
    """Return "sqlite", "nsys-rep", "folder", or the ending of a compressed format. Raises NsysxError for everything else."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        what = f"is a link to {path.readlink()}, which does not exist" if path.is_symlink() else "no such file"
        raise fail(path, what, _hint_of_like_name(path), "input-missing") from None
    except (OSError, ValueError) as error:
        raise fail(path, f"cannot be read ({_reason_of_error(error)})", "Check the path", "input-unreadable") from None
    if stat.S_ISDIR(mode):
        return "folder"
    if not stat.S_ISREG(mode):  # opening a pipe would wait for someone to write into it
        raise fail(path, "is a pipe or a device", "Write it into a file first, and give that", "input-special")
    try:
        with path.open("rb") as file:
            head = file.read(FILE_HEAD_BYTES)
    except OSError as error:
        raise fail(
            path, f"cannot be read ({_reason_of_error(error)})", "Check its permissions", "input-unreadable"
        ) from None
    return _by_content(path, head)


def _reason_of_error(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error)


def _by_content(path: Path, head: bytes) -> str:
    if not head:
        raise fail(path, "is empty: the export did not finish", "Export the report again", "input-empty")
    if head.startswith(_SQLITE_MAGIC):
        return "sqlite"
    for magic, ending in PACKED_MAGIC.items():
        if head.startswith(magic):
            return ending
    if head.startswith(_LFS_MAGIC):
        raise fail(path, "is a Git LFS pointer, not the file", "Run: git lfs pull", "input-lfs")
    if path.suffix in {".nsys-rep", ".qdrep"}:
        return "nsys-rep"
    if path.suffix in _FOREIGN:
        raise fail(path, *_FOREIGN[path.suffix], "input-foreign-format")
    if head.lstrip(b"\xef\xbb\xbf \r\n\t")[:1] in (b"{", b"["):
        if is_trace_events(head):
            refuse_trace_events(path)
        raise fail(path, "is JSON", "Give the .sqlite file that nsys export wrote", "input-json")
    raise fail(path, "is not a SQLite database", "Give the .sqlite file that nsys export wrote", "input-not-sqlite")


def is_sqlite(head: bytes) -> bool:
    """Return whether the first bytes are those of a SQLite file."""
    return head.startswith(_SQLITE_MAGIC)


def is_trace_events(head: bytes) -> bool:
    """Return whether the first bytes are those of a trace in Chrome's format."""
    return _TRACE_EVENTS.search(head[:FILE_HEAD_BYTES]) is not None


def refuse_trace_events(path: Path) -> NoReturn:
    """Raise the NsysxError for a trace of torch.profiler, with the tools that read it."""
    what = "is a trace of torch.profiler (Kineto, Chrome's trace format), not of Nsight Systems"
    hint = "ui.perfetto.dev and HTA read it; nsysx reads what nsysx run -- CMD captures"
    raise fail(path, what, hint, "input-kineto")


def json_beside(path: Path) -> object:
    """Return what a JSON file beside a report holds, None if there is none or nothing usable in it.

    Only a file is read: a device or a pipe of that name may have no end, or never begin.
    """
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode) or about.st_size > MOST_BESIDE_BYTES:
            return None
        return json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, RecursionError):
        return None


def json_lines_beside(path: Path) -> list[object]:
    """Return what the lines of a file beside a report hold, [] if there is none; lines that are no JSON are left out."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode) or about.st_size > MOST_BESIDE_BYTES:
            return []
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    values: list[object] = []
    for line in lines:
        with suppress(ValueError, RecursionError):
            values.append(json.loads(line))
    return values


def beside(path: Path, ending: str) -> int:
    """Return the size (bytes) of the file that SQLite keeps beside a database with this ending, 0 without one."""
    try:
        return path.with_name(path.name + ending).stat().st_size
    except OSError:
        return 0


def check_finished(path: Path) -> None:
    """Raise NsysxError if another process is writing the export, or if one was interrupted while writing it.

    SQLite takes no lock on a file that is opened as immutable, so the lock is tried here.
    """
    resolved = real(path)
    if beside(resolved, "-journal") and _is_hot(resolved.with_name(resolved.name + "-journal")):
        what = f"has a journal beside it ({path.name}-journal): it is being written, or its export was interrupted"
        raise fail(path, what, "Wait for the export to finish, or export the report again", "input-busy")
    with resolved.open("rb") as file:
        header = file.read(100)
    check_length(path, resolved)
    if header[18:20] != b"\x01\x01":  # one with a log uses other locks, and opening it makes a file
        return
    try:
        address = f"{resolved.as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=LOCKED_FILE_S)) as connection:
            connection.execute("PRAGMA schema_version").fetchone()
    except sqlite3.Error as error:
        if "locked" in str(error):
            raise fail(path, "is being written", "Wait for the export to finish", "input-busy") from None
    except UnicodeDecodeError:
        pass


def check_length(path: Path, database: Path) -> None:
    """Raise NsysxError if a database is shorter than its header says; SQLite would notice only if it read a missing page."""
    with database.open("rb") as file:
        header = file.read(100)
    if len(header) < 100 or header[24:28] != header[92:96]:  # an old SQLite wrote it last, without updating the length
        return
    page_bytes, pages = int.from_bytes(header[16:18], "big"), int.from_bytes(header[28:32], "big")
    expected, actual = (65_536 if page_bytes == 1 else page_bytes) * pages, database.stat().st_size
    if actual < expected:
        raise damaged(path, f"is cut off: {actual:,} of {expected:,} bytes are there")


def _is_hot(journal: Path) -> bool:
    """Return whether a journal holds pages to be rolled back: a finished one is empty or begins with zeros."""
    try:
        with journal.open("rb") as file:
            return any(file.read(8))
    except OSError:
        return True


def uri(path: Path) -> str:
    """Return a read-only URI with ``immutable``, which leaves no -shm or -wal file beside a report and needs no lock."""
    return f"{real(path).as_uri()}?mode=ro&immutable=1"


def connect(path: Path) -> sqlite3.Connection:
    """Return a connection whose text never fails to decode and that runs no code from the file's schema."""
    connection = sqlite3.connect(uri(path), uri=True, check_same_thread=False)
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _first_line(error: BaseException) -> str:
    """Return the first line of SQLite's message, shortened: it may quote pages of a damaged schema."""
    return next(iter(str(error).splitlines()), "")[:SQLITE_MESSAGE_LETTERS]


@contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite, of decoding its messages and of the disk into a NsysxError with one line about the file."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise fail(path, "is being written", "Wait for the export to finish", "input-busy") from None
        if "full" in str(error):
            raise no_room(path, Path(tempfile.gettempdir())) from None
        raise damaged(path, f"cannot be read ({_first_line(error)})") from None
    except sqlite3.Error as error:
        raise damaged(path, f"is damaged ({_first_line(error)})") from None
    except UnicodeDecodeError:  # SQLite's message quotes the bytes that it could not parse
        raise damaged(path, "is damaged") from None
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise no_room(path, Path(tempfile.gettempdir())) from None
        raise fail(path, f"cannot be read ({_reason_of_error(error)})", "Check the disk", "input-unreadable") from None


def no_room(path: Path, folder: Path) -> NsysxError:
    """Return the error for a report that must be copied to be read, for which there is no space."""
    return fail(path, f"no room in {folder} for a copy", "Make room, or set TMPDIR to another folder", "input-no-room")

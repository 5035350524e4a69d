"""What a file is, and how SQLite opens it: read only, and leaving nothing beside somebody else's report."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NoReturn

from nsysx.errors import EXIT_INPUT, NsysxError

_SQLITE_MAGIC = b"SQLite format 3\x00"
_LFS_MAGIC = b"version https://git-lfs"
#: How compressed files begin, by the ending that names the packer.
PACKED_MAGIC = {b"\xfd7zXZ": ".xz", b"\x1f\x8b": ".gz", b"(\xb5/\xfd": ".zst"}
#: How much of a file is looked at to tell what it is.
_HEAD_BYTES = 4096
#: Keys that stand early in a trace of torch.profiler, or of anything else that writes Chrome's format.
_TRACE_EVENTS = re.compile(rb'"(schemaVersion|deviceProperties|traceEvents|distributedInfo|displayTimeUnit)"\s*:')
_LONGEST_WORD = 120
#: How long a writer is waited for.
_BUSY_PATIENCE_S = 5.0

#: Other people's formats by the end of the name, and what to do with them.
_FOREIGN = {
    ".qdstrm": ("is what nsys collected, not yet imported", "Import it with nsys's QdstrmImporter, then export that"),
    ".ncu-rep": ("is a report of Nsight Compute", "nsysx reads Nsight Systems: nsysx run -- CMD"),
    ".parquet": ("is one table of an export", "Give the folder that nsys export --type parquetdir wrote"),
    ".h5": ("is nsys's HDF5 export", "Export it as SQLite: nsys export --type sqlite"),
    ".arrow": ("is nsys's Arrow export", "Export it as SQLite: nsys export --type sqlite"),
    ".arrows": ("is nsys's Arrow export", "Export it as SQLite: nsys export --type sqlite"),
}


def fail(path: Path, what: str, hint: str, slug: str) -> NsysxError:
    """Return the one error for a file that cannot be read."""
    return NsysxError(f"{path.name or path}: {what}", slug=slug, hint=hint, exit_code=EXIT_INPUT)


def damaged(path: Path, what: str) -> NsysxError:
    """Return the error for a report that is no longer what nsys wrote."""
    return fail(path, what, "Export the report again", "input-damaged")


def real(path: Path) -> Path:
    """Return the absolute path of what a link leads to; links in a circle stay as they are."""
    return Path(os.path.realpath(path))


def kind_of(path: Path) -> str:
    """Return "sqlite", "nsys-rep", "folder" or the ending of the packer. Raises NsysxError for everything else."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise fail(path, "no such file", "Check the path; `nsysx run` writes NAME.sqlite", "input-missing") from None
    except (OSError, ValueError) as error:
        raise fail(path, f"cannot be read ({_why(error)})", "Check the path", "input-unreadable") from None
    if stat.S_ISDIR(mode):
        return "folder"
    if not stat.S_ISREG(mode):  # to open a pipe is to wait for whoever may write into it
        raise fail(path, "is a pipe or a device", "Write it into a file first, and give that", "input-special")
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise fail(path, f"cannot be read ({_why(error)})", "Check its permissions", "input-unreadable") from None
    return _by_content(path, head)


def _why(error: BaseException) -> str:
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
    """Say whether the first bytes are of a SQLite file."""
    return head.startswith(_SQLITE_MAGIC)


def is_trace_events(head: bytes) -> bool:
    """Say whether the first bytes are of a trace in Chrome's format."""
    return _TRACE_EVENTS.search(head[:_HEAD_BYTES]) is not None


def refuse_trace_events(path: Path) -> NoReturn:
    """Say what a trace of torch.profiler is, and who reads it."""
    what = "is a trace of torch.profiler (Kineto, Chrome's trace format), not of Nsight Systems"
    hint = "ui.perfetto.dev and HTA read it; nsysx reads what nsysx run -- CMD captures"
    raise fail(path, what, hint, "input-kineto")


def beside(path: Path, ending: str) -> int:
    """Return the size of the file that SQLite keeps beside a database under this ending, 0 without one."""
    try:
        return path.with_name(path.name + ending).stat().st_size
    except OSError:
        return 0


def check_finished(path: Path) -> None:
    """Raise NsysxError where another process is writing the export, or where one that was writing it did not finish.

    A file that is opened as immutable asks for no lock, so the lock is asked for here.
    """
    resolved = real(path)
    if beside(resolved, "-journal") and _is_hot(resolved.with_name(resolved.name + "-journal")):
        what = f"has a journal beside it ({path.name}-journal): it is being written, or its export was interrupted"
        raise fail(path, what, "Wait for the export to finish, or export the report again", "input-busy")
    with resolved.open("rb") as file:
        header = file.read(100)
    check_length(path, resolved)
    if header[18:20] != b"\x01\x01":  # one with a log locks otherwise, and would get a file beside it
        return
    try:
        address = f"{resolved.as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=_BUSY_PATIENCE_S)) as connection:
            connection.execute("PRAGMA schema_version").fetchone()
    except sqlite3.Error as error:
        if "locked" in str(error):
            raise fail(path, "is being written", "Wait for the export to finish", "input-busy") from None
    except UnicodeDecodeError:
        pass


def check_length(path: Path, database: Path) -> None:
    """Raise NsysxError where a database is shorter than it says: what is missing may be pages that nobody asks for."""
    with database.open("rb") as file:
        header = file.read(100)
    if len(header) < 100 or header[24:28] != header[92:96]:  # an old SQLite wrote it last, and did not note its length
        return
    page_bytes, pages = int.from_bytes(header[16:18], "big"), int.from_bytes(header[28:32], "big")
    whole, there = (65_536 if page_bytes == 1 else page_bytes) * pages, database.stat().st_size
    if there < whole:
        raise damaged(path, f"is cut off: {there:,} of {whole:,} bytes are there")


def _is_hot(journal: Path) -> bool:
    """Say whether a journal holds pages to be put back: a finished one is empty, or begins with zeros."""
    try:
        with journal.open("rb") as file:
            return any(file.read(8))
    except OSError:
        return True


def uri(path: Path) -> str:
    """Return a read-only URI. ``immutable`` leaves no -shm or -wal file beside a report, and needs no lock."""
    return f"{real(path).as_uri()}?mode=ro&immutable=1"


def connect(path: Path) -> sqlite3.Connection:
    """Return a connection whose text never fails to decode, and that runs nothing that the file's schema asks for."""
    connection = sqlite3.connect(uri(path), uri=True, check_same_thread=False)
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _first_line(error: BaseException) -> str:
    """Return what SQLite says, without the pages of a damaged schema that it may quote."""
    return next(iter(str(error).splitlines()), "")[:_LONGEST_WORD]


@contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Turn whatever SQLite, Python's view of it, or the disk says into one line about the file."""
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
    except UnicodeDecodeError:  # SQLite's own message quotes the bytes that it stumbled over
        raise damaged(path, "is damaged") from None
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise no_room(path, Path(tempfile.gettempdir())) from None
        raise fail(path, f"cannot be read ({_why(error)})", "Check the disk", "input-unreadable") from None


def no_room(path: Path, folder: Path) -> NsysxError:
    """Return the error for a report that has to be copied to be read, and cannot be."""
    return fail(path, f"no room in {folder} for a copy", "Make room, or set TMPDIR to another folder", "input-no-room")

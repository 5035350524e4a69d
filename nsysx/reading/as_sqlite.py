"""Makes a finished SQLite file of any form of a report: packed, not yet exported, exported as Parquet, or with a write-ahead log.

A copy is made in its own folder under TMPDIR and is deleted when the report has been read.
"""

from __future__ import annotations

import gzip
import lzma
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, cast

from nsysx import units
from nsysx.errors import EXIT_USAGE, NsysxError
from nsysx.reading import columnar, opening
from nsysx.reading.reading_bounds import COPY_BLOCK_BYTES, EXPORT_LIMIT_S, SPARE_DISK_BYTES
from nsysx.selection import Selection

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdError

    _ZSTD_ERRORS: tuple[type[Exception], ...] = (ZstdError,)
else:
    _ZSTD_ERRORS = ()

Say = Callable[[str], None]


@contextmanager
def opened(path: Path, progress: Say | None = None, most_bytes: int | None = None) -> Iterator[Path]:
    """Yield the path of a finished SQLite file with the report at ``path``, which is not changed. Raises NsysxError.

    No more than ``most_bytes`` are unpacked: by default what `Selection` says.
    """
    most_bytes = bytes_of(Selection.max_size) if most_bytes is None else most_bytes

    def say(stage: str) -> None:
        if progress:
            progress(stage)

    kind = opening.kind_of(path)
    with (
        tempfile.TemporaryDirectory(prefix="nsysx-", ignore_cleanup_errors=True)
        if kind != "sqlite" or opening.beside(opening.real(path), "-wal") > 0
        else _here(path) as folder
    ):
        room = Path(folder)
        if kind == "folder":
            say("reading the tables of the folder")
            yield columnar.as_sqlite(path, room / "report.sqlite")
        elif kind == "nsys-rep":
            say("exporting with nsys")
            yield _exported(path, room)
        elif kind != "sqlite":
            say("unpacking")
            copy = _unpacked(path, room / "report.sqlite", kind, most_bytes)
            opening.check_length(path, copy)
            yield copy
        elif opening.beside(opening.real(path), "-wal"):
            say("copying the report with its log")
            yield _with_log(path, room)
        else:
            opening.check_finished(path)
            yield path


@contextmanager
def _here(path: Path) -> Iterator[str]:
    yield str(path.parent)


def _with_log(path: Path, folder: Path) -> Path:
    """Return a copy of a database into which its write-ahead log has been merged."""
    source = opening.real(path)
    copy = folder / "report.sqlite"
    _room_for(path, folder, source.stat().st_size + opening.beside(source, "-wal"))
    for ending in ("", "-wal"):
        shutil.copyfile(source.with_name(source.name + ending), copy.with_name(copy.name + ending))
    with opening.sqlite_errors(path), closing(sqlite3.connect(copy)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE").fetchone()
    return copy


def _room_for(path: Path, folder: Path, size: int) -> None:
    if shutil.disk_usage(folder).free < size + SPARE_DISK_BYTES:
        raise opening.no_room(path, folder)


@contextmanager
def _packed(path: Path, ending: str) -> Iterator[IO[bytes]]:
    """Yield a file of the unpacked bytes. Zstandard needs Python 3.14 or the tool zstd. Raises EOFError if the tool fails."""
    if ending == ".xz":
        with lzma.open(path) as source:
            yield source
    elif ending == ".gz":
        with gzip.open(path) as source:
            yield cast("IO[bytes]", source)
    elif sys.version_info >= (3, 14):
        from compression import zstd

        with zstd.open(path) as source:
            yield source
    else:
        tool = shutil.which("zstd")
        if tool is None:
            hint = f"Unpack it first: zstd -d {path.name}"
            raise opening.fail(
                path, "is packed with zstd, and the tool zstd is not installed", hint, "input-compressed"
            )
        command = [tool, "-dcq", "--", str(path.absolute())]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout is not None
            yield process.stdout
        if process.returncode:
            raise EOFError


def bytes_of(size: str) -> int:
    """Return the bytes of a size such as ``64G`` or ``500M``. Raises NsysxError, exit code 2."""
    match = re.fullmatch(r"(\d{1,12})([KMGT]?)(?:i?B)?", size.strip(), re.IGNORECASE)
    if not match or not int(match[1]):
        hint = "Give a number of bytes, or one with K, M, G or T: 64G"
        raise NsysxError(f"--max-size {size[:40]}: not a size", slug="bad-size", hint=hint, exit_code=EXIT_USAGE)
    return int(match[1]) << 10 * " KMGT".index(match[2].upper() or " ")


def _unpacked(path: Path, target: Path, ending: str, most_bytes: int) -> Path:
    """Unpack a report; its first block must be that of a SQLite file, so anything else is refused early. Raises NsysxError.

    A few kB can unpack to more than any disk holds, so there is a bound.
    """
    written = 0
    try:
        with _packed(path, ending) as source, target.open("wb") as sink:
            block = source.read(COPY_BLOCK_BYTES)
            _check_inside(path, block)
            while block:
                written += len(block)
                if written > most_bytes:
                    what = f"unpacks to more than {units.size(most_bytes)}"
                    hint = "If it is a report that you trust, give --max-size a larger size, such as 200G"
                    raise opening.fail(path, what, hint, "input-too-large")
                _room_for(path, target.parent, len(block))
                sink.write(block)
                block = source.read(COPY_BLOCK_BYTES)
    except (EOFError, OSError, lzma.LZMAError, zlib.error, *_ZSTD_ERRORS) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the disk, not of the packed data
        what = "is cut off or damaged: it does not unpack"
        raise opening.fail(path, what, "Copy or download it again", "input-damaged") from None
    return target


def _check_inside(path: Path, head: bytes) -> None:
    if opening.is_sqlite(head):
        return
    if opening.is_trace_events(head):
        opening.refuse_trace_events(path)
    if not head:
        raise opening.fail(path, "holds nothing", "Copy or download it again", "input-empty")
    raise opening.fail(path, "holds no SQLite database", "Pack the .sqlite file alone", "input-not-sqlite")


def _exported(path: Path, folder: Path) -> Path:
    """Return nsys's export of a report: the one beside it if that is newer, else a new one, kept beside it if possible."""
    from nsysx.outputs import move_into_place
    from nsysx.recording.commands import export_command
    from nsysx.recording.find_nsys import find_nsys

    kept = path.with_suffix(".sqlite")
    by_hand = f"Run: nsys export --type sqlite --output {kept.name} {path.name}"
    with suppress(OSError):
        if kept.stat().st_mtime_ns >= path.stat().st_mtime_ns and opening.kind_of(kept) == "sqlite":
            opening.check_finished(kept)
            return kept
    try:
        nsys = find_nsys()
    except NsysxError as error:
        what = f"is a report of nsys, not its SQLite export, and no nsys works here ({error.message})"
        raise opening.fail(path, what, by_hand, "input-nsys-rep") from None
    made = folder / "report.sqlite"
    command = export_command(nsys, path.absolute(), made)
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=EXPORT_LIMIT_S)
        lines = (done.stdout + done.stderr).decode(errors="replace").split("\n")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise opening.fail(path, f"nsys could not export it ({error})", by_hand, "input-nsys-rep") from None
    if done.returncode or not made.exists():
        last = " / ".join([line.strip() for line in lines if line.strip()][-3:])[:500]
        what = f"nsys {nsys.version} could not export it: {last.rstrip('.') or f'exit code {done.returncode}'}"
        hint = f"With an nsys as new as the one that made it, run: nsys export --type sqlite {path.name}"
        raise opening.fail(path, what, hint, "input-nsys-rep")
    with suppress(OSError, NsysxError):
        beside = kept.with_name(f".{kept.name[:100]}-exported")
        try:
            shutil.copyfile(made, beside)
            move_into_place(beside, kept, force=False)
            return kept
        finally:
            beside.unlink(missing_ok=True)
    return made

"""Writing results: never over an existing file unasked, never half a file, and of several files all or none."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from nsysx.errors import EXIT_INPUT, EXIT_USAGE, NsysxError


def check_output(path: Path, *, force: bool, exit_code: int = EXIT_USAGE) -> None:
    """Raise NsysxError unless ``path`` can be written: its folder exists, takes files, and nothing is overwritten unasked.

    ``force`` allows replacing a file, or a link itself (its target stays); never a device or a pipe.
    """
    folder = path.parent

    def refuse(message: str, slug: str, hint: str) -> NsysxError:
        return NsysxError(message, slug=slug, hint=hint, exit_code=exit_code)

    if not path.is_absolute() and working_folder_is_gone():
        raise refuse("the working folder has been deleted", "output-folder", "Name outputs by their whole path, or cd")
    if not os.path.isdir(folder):  # noqa: PTH112 - pathlib raises for a cycle of links
        problem = "is not a folder" if os.path.lexists(folder) else "does not exist"
        raise refuse(f"{folder}: {problem}", "output-folder", "Create it or choose another output")
    if os.path.isdir(path):  # noqa: PTH112
        raise refuse(f"{path}: is a folder", "output-folder", "Give the name of a file")
    try:
        mode: int | None = path.lstat().st_mode
        leads_to = stat.S_IFMT(path.stat().st_mode) if stat.S_ISLNK(mode or 0) else stat.S_IFREG
    except FileNotFoundError:
        mode, leads_to = (path.lstat().st_mode if path.is_symlink() else None), stat.S_IFREG
    except OSError as error:
        raise refuse(f"{path}: cannot be a file ({error.strerror})", "output-name", "Choose another output") from None
    if (mode is not None and not (stat.S_ISREG(mode) or stat.S_ISLNK(mode))) or leads_to != stat.S_IFREG:
        hint = "Name a file; --json - and --markdown - write to stdout"
        raise refuse(f"{path}: is a device or a pipe, not a file", "output-special", hint)
    if not force and mode is not None:
        raise refuse(f"{path}: exists already", "output-exists", "Use --force (-f) or another name")
    try:
        # Only writing can tell: permission bits mean nothing for root, on read-only mounts and on network drives.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise refuse(
            f"{folder}: cannot write there ({error.strerror})", "output-folder", "Choose another output"
        ) from error


def working_folder_is_gone() -> bool:
    """Return whether the folder in which this process was started has been deleted."""
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        return True
    return False


def check_folder(path: Path) -> None:
    """Raise NsysxError unless ``path`` is a folder that takes files, or can be created as one."""
    if path.is_dir():
        check_output(path / "table.csv", force=True)
    else:
        check_output(path, force=False)


@contextlib.contextmanager
def folder_for(path: Path) -> Iterator[None]:
    """Create the folder ``path`` if it does not exist, and remove it again if writing into it fails."""
    made = not path.exists()
    path.mkdir(exist_ok=True)
    try:
        yield
    except BaseException:
        if made:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


def check_apart(outputs: Sequence[Path], inputs: Sequence[Path]) -> None:
    """Raise NsysxError if two outputs are the same file, or an output is an input report, under whatever names."""
    seen: dict[object, Path] = {}
    for path in inputs:
        seen |= dict.fromkeys(_identities(path), path)
    for path in outputs:
        for identity in _identities(path):
            if identity in seen:
                other = seen[identity]
                message = f"{path}: is the report that is read" if other in inputs else f"{path}: is asked for twice"
                raise NsysxError(message, slug="output-twice", hint="Choose another output", exit_code=EXIT_USAGE)
        seen |= dict.fromkeys(_identities(path), path)


def _identities(path: Path) -> Iterator[object]:
    """Yield what identifies a file: the place of its name, the place that it leads to, and the file itself."""
    yield os.path.realpath(path.parent), path.name
    yield os.path.realpath(path)
    with contextlib.suppress(OSError):
        stat = path.stat()
        yield stat.st_dev, stat.st_ino


def move_into_place(source: Path, target: Path, *, force: bool) -> None:
    """Rename ``source`` to ``target`` in the same folder tree; without ``force`` never over a file, not even one made just now.

    A ``target`` that is a symbolic link is itself replaced; the file that it points to stays as it is.
    """
    if not force:
        try:
            os.link(source, target)
        except FileExistsError:
            raise NsysxError(
                f"{target}: exists already",
                slug="output-exists",
                hint="Use --force (-f) or another name",
                exit_code=EXIT_USAGE,
            ) from None
        except OSError:  # file systems without hard links
            check_output(target, force=False)
        else:
            source.unlink()
            return
    source.replace(target)


def write_text(path: Path, text: str, *, force: bool) -> None:
    """Write ``text`` to ``path`` as UTF-8, whole or not at all. Raises NsysxError."""
    write_texts({path: text}, force=force)


def write_texts(texts: Mapping[Path, str], *, force: bool) -> None:
    """Write each text to its path as UTF-8: all are completely on disk before the first gets its name. Raises NsysxError."""
    write_files(texts, force=force)


#: The content of a file: a text, or a function that writes bytes.
Content = str | Callable[[BinaryIO], object]


def write_files(contents: Mapping[Path, Content], *, force: bool) -> None:
    """Write each content to its path: all are completely on disk before the first gets its name. Raises NsysxError."""
    for path in contents:
        check_output(path, force=force)
    written: dict[Path, Path] = {}
    named: list[Path] = []
    path = next(iter(contents), Path())
    try:
        for path, content in contents.items():
            handle, name = tempfile.mkstemp(prefix=".nsysx-", dir=path.parent)
            written[path] = Path(name)
            with os.fdopen(handle, "wb") as file:
                if isinstance(content, str):
                    file.write(content.encode("utf-8", "backslashreplace"))
                else:
                    content(file)
                file.flush()
                os.fsync(file.fileno())
            umask = os.umask(0)
            os.umask(umask)
            written[path].chmod(0o666 & ~umask)
        for path, temporary in written.items():
            new = not os.path.lexists(path)
            move_into_place(temporary, path, force=force)
            if new:
                named.append(path)
    except (OSError, NsysxError) as error:
        for done in named:
            with contextlib.suppress(OSError):
                done.unlink()
        if isinstance(error, NsysxError):
            raise
        message = f"{path}: could not be written ({error.strerror})"
        raise NsysxError(message, slug="output-write", hint="Nothing was left behind") from error
    finally:
        for temporary in written.values():
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def stdout_fails(error: OSError) -> NsysxError:
    """Return the error for a stdout that cannot be written to."""
    # The rest of the buffer would fail again at exit, with a message from Python.
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
    message = f"stdout: could not be written ({error.strerror})"
    return NsysxError(message, slug="output-write", hint="Write to a file instead", exit_code=EXIT_INPUT)


def is_of_stdout(error: OSError) -> bool:
    """Return whether an error comes from a stream, which has no file name."""
    return error.filename is None and error.errno in (errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EBADF, errno.EDQUOT)


@contextlib.contextmanager
def to_stdout() -> Iterator[None]:
    """Turn any failure to write to stdout, up to its last byte, into NsysxError."""
    try:
        yield
        sys.stdout.flush()
        if isinstance(sys.stdout, _Closed) and sys.stdout.lost:
            raise OSError(errno.EBADF, "it is closed")
    except OSError as error:
        raise stdout_fails(error) from None


class _Closed(io.StringIO):
    """A stdout that was closed before the program began. ``lost``: something was written to it."""

    lost = False

    def write(self, text: str) -> int:
        self.lost = self.lost or bool(text)
        return len(text)


def open_streams() -> None:
    """Replace closed standard streams, so that no file opened later takes their number; stderr then stays silent.

    Programs that this one starts need that too: otherwise a file that nsys opens would receive what the command prints.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            with contextlib.suppress(OSError):
                opened = os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
                os.set_inheritable(opened, True)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115 - open for as long as the process lives
    if sys.stdout is None:
        sys.stdout = _Closed()

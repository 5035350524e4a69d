"""Writing results: never over somebody's file without being asked, never half a file."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from nsysx.errors import EXIT_USAGE, NsysxError


def check_output(path: Path, *, force: bool, exit_code: int = EXIT_USAGE) -> None:
    """Raise NsysxError unless ``path`` can be written: its folder exists, takes files, and nothing is overwritten unasked."""
    folder = path.parent
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise NsysxError(
            f"{folder}: {what}", slug="output-folder", hint="Create it or choose another output", exit_code=exit_code
        )
    if path.is_dir():
        raise NsysxError(
            f"{path}: is a folder", slug="output-folder", hint="Give the name of a file", exit_code=exit_code
        )
    if not force and os.path.lexists(path):
        raise NsysxError(
            f"{path}: exists already", slug="output-exists", hint="Use --force or another name", exit_code=exit_code
        )
    try:
        # Only writing tells: permission bits mean nothing to root, on read-only mounts and on network drives.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise NsysxError(
            f"{folder}: cannot write there ({error.strerror})",
            slug="output-folder",
            hint="Choose another output",
            exit_code=exit_code,
        ) from error


def check_folder(path: Path) -> None:
    """Raise NsysxError unless ``path`` is a folder that takes files, or can be made into one."""
    if path.is_dir():
        check_output(path / "table.csv", force=True)
    else:
        check_output(path, force=False)


def move_into_place(source: Path, target: Path, *, force: bool) -> None:
    """Rename ``source`` to ``target`` in the same folder tree; without ``force`` never over a file, not even one made just now.

    A ``target`` that is a symbolic link is replaced itself; what it points to stays as it is.
    """
    if not force:
        try:
            os.link(source, target)
        except FileExistsError:
            raise NsysxError(
                f"{target}: exists already",
                slug="output-exists",
                hint="Use --force or another name",
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
    check_output(path, force=force)
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:100]}-", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        move_into_place(temporary, path, force=force)
    except OSError as error:
        raise NsysxError(
            f"{path}: could not be written ({error.strerror})", slug="output-write", hint="Nothing was left behind"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)

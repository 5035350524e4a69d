"""Finds the reports that the command line names: files, or folders with the reports of all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nsysx.reading import columnar, opening

#: Endings of reports in a folder, best first: an export counts in place of its packed copy and of the report it was made from.
_REPORTS = (".sqlite", ".sqlite.xz", ".sqlite.gz", ".sqlite.zst", ".nsys-rep")


def reports(named: Iterable[Path]) -> list[Path]:
    """Return the named reports in the given order, with each folder replaced by the reports in it, sorted by name.

    Raises NsysxError with exit code 3 for a path that is not a report and for a folder without one.
    """
    files: list[Path] = []
    for path in named:
        if opening.kind_of(path) != "folder" or columnar.tables_of(path):
            files.append(path)
            continue
        inside = _in_folder(path)
        if not inside:
            hint = "Give .sqlite files, a folder of them, or one that nsys export --type parquetdir wrote"
            raise opening.fail(path, "is a folder without a report in it", hint, "input-folder")
        files += inside
    return files


def _in_folder(folder: Path) -> list[Path]:
    """Return the reports of a folder, one for each capture."""
    chosen: dict[str, tuple[int, Path]] = {}
    try:
        files = sorted(folder.iterdir())
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
        raise opening.fail(folder, what, "Check its permissions", "input-unreadable") from None
    for file in files:
        for preference, ending in enumerate(_REPORTS):
            if file.name.endswith(ending) and not file.name.startswith(".") and file.is_file():
                name = file.name.removesuffix(ending)
                chosen[name] = min(chosen.get(name, (preference, file)), (preference, file))
    for name in [n for n in chosen if n.endswith(".cold") and n.removesuffix(".cold") in chosen]:
        del chosen[name]  # it is read together with that one
    return [file for _, file in chosen.values()]

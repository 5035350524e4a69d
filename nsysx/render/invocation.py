"""How a shell in any folder names the reports and starts the recorded program: for the commands that an answer proposes."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nsysx import redaction
from nsysx.errors import NsysxError
from nsysx.reading import report_files
from nsysx.reading.sidecar_files import report_name, run_json
from nsysx.render.render_bounds import MOST_FILES
from nsysx.render.safe_text import clean


@dataclass(frozen=True, slots=True)
class Invocation:
    """The words of a shell's command, quoted: ``reports``, the recorded ``program`` and the ``folder`` that it is started in.

    ``program`` is "" where it is not known, ``folder`` where the program runs from any. ``after`` is the name for the
    report of a changed program, as ``nsysx run -o`` takes it: the first report's path without its endings, and "-after".
    """

    reports: str
    program: str = ""
    folder: str = ""
    after: str = ""

    def run(self, command: str) -> str:
        """Return a command for REPORT, AFTER and CMD as it is typed; CMD stays where the program is not known."""
        runs = " -- CMD" in command
        words = command.replace("REPORT", self.reports).replace("AFTER", self.after)
        if not runs or not self.program:
            return words
        inside = f"cd {self.folder} && " if self.folder else ""
        return inside + words.replace(" -- CMD", f" -- {self.program}")


def recorded_program(report: Path) -> str:
    """Return the command that ``nsysx run`` recorded a report of, as a shell takes it, "" where it is not known.

    Of a rank that records itself, it is the command of the launcher: what the rank runs alone is no job.
    """
    record = run_json(report)
    options, words = record.get("options"), record.get("launcher") or record.get("command")
    if isinstance(options, dict) and options.get("per_rank") and not record.get("launcher"):
        return ""
    return clean(redaction.shell([*map(str, words)]), 300) if isinstance(words, list) else ""


def of_files(files: Sequence[Path], *, redact: bool = True) -> Invocation:
    """Return how these reports and the program of the first one are typed in any folder.

    ``redact``: the caller's own home stands as ``~``, which a shell makes its path again.
    """
    absolute = [Path(os.path.abspath(file)) for file in files]  # noqa: PTH100 - resolve() would follow links
    first = absolute[0]
    program = recorded_program(first)
    # A program starts in a folder that holds one of its words, as its script is where the report was written beside it.
    words = [word for word in shlex.split(program) if not word.startswith("-") and not Path(word).is_absolute()]
    return Invocation(
        " ".join(_quoted(path, redact) for path in _folder_or_files(absolute)),
        program,
        _quoted(first.parent, redact) if any((first.parent / word).is_file() for word in words) else "",
        _quoted(first.with_name(f"{report_name(first)}-after"), redact),
    )


def typed_here(files: Sequence[Path], reports: Sequence[Path]) -> Invocation:
    """Return the same for the folder in which this process runs: as ``files`` were named, if the program starts here.

    ``reports`` are those that the files stand for.
    """
    anywhere = of_files(reports, redact=False)
    if anywhere.folder and Path(os.path.abspath(reports[0])).parent != Path.cwd():  # noqa: PTH100
        return anywhere
    named = _folder_or_files(files) if list(files) == list(reports) else files
    return replace(anywhere, reports=clean(shlex.join(map(str, named)), 1000), folder="")


def _folder_or_files(files: Sequence[Path]) -> Sequence[Path]:
    """Return the folder of many files where it holds them and no others, else the files."""
    folder = files[0].parent
    if len(files) <= MOST_FILES or any(file.parent != folder for file in files):
        return files
    try:
        return [folder] if sorted(report_files.reports([folder])) == sorted(files) else files
    except NsysxError:
        return files


def _quoted(path: Path, redact: bool) -> str:
    home = Path.home()
    if redact and home != Path("/") and path != home and path.is_relative_to(home):
        return f"~/{shlex.quote(str(path.relative_to(home)))}"
    return shlex.quote(str(path))

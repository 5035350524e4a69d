"""What ``nsysx run`` writes and ends with: the names of its files, and its result."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nsysx.errors import EXIT_RUN_FAILED, NsysxError
from nsysx.recording.run_options import RunOptions, failed

ENDINGS = (".nsys-rep", ".sqlite", ".html", ".run.json")

#: Programs that start a script in several processes; the results are named after the script.
LAUNCHERS = frozenset(("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed"))


@dataclass(frozen=True, slots=True)
class Outputs:
    """The files of one run, all in one folder."""

    report: Path
    sqlite: Path
    html: Path
    run: Path

    @classmethod
    def named(cls, name: Path) -> Outputs:
        """Return the files for ``-o name``, with or without one of their endings. Raises NsysxError."""
        stem = name.name
        for ending in ENDINGS:
            stem = stem.removesuffix(ending)
        if not stem or stem == "..":
            raise NsysxError(f"-o {name}: no file name", slug="output-name", exit_code=EXIT_RUN_FAILED)
        return cls(*(name.with_name(stem + ending) for ending in ENDINGS))

    @property
    def stem(self) -> Path:
        """Return the path that all files share, without their endings."""
        return self.report.with_name(self.report.name.removesuffix(ENDINGS[0]))

    @property
    def cold(self) -> tuple[Path, Path]:
        """Return the report and the export of the first of two windows; the others are those of the second, or of the only one."""
        name = self.stem.name
        return self.report.with_name(f"{name}.cold.nsys-rep"), self.report.with_name(f"{name}.cold.sqlite")

    def all(self) -> tuple[Path, ...]:
        """Return every file that a run may write."""
        return (self.report, self.sqlite, self.html, self.run, *self.cold)

    def taken(self) -> bool:
        """Return whether any of the files exists."""
        return any(os.path.lexists(path) for path in self.all())


@dataclass(slots=True)
class RunResult:
    """The result of a run: the exit code to end with, the files that it wrote, and the messages for the user, in order.

    ``ended_by``: the signal to end with in place of the exit code, 0 for none. A shell's loop ends only if its command died of
    Ctrl-C. ``launcher``: the command that started this rank, where it is one of a job.
    """

    exit_code: int
    outputs: Outputs
    sqlite: Path | None = None
    report: Path | None = None
    cold: Path | None = None  # the export of the first of two windows
    written: list[Path] = field(default_factory=list)
    problems: list[NsysxError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ended_by: int = 0
    launcher: tuple[str, ...] = ()

    def ends_as(self, status: int) -> None:
        """End as a command did: with its exit code, or if ``status`` is negative by that signal."""
        self.exit_code, self.ended_by = status if status >= 0 else 128 - status, max(-status, 0)


def default_name(command: Sequence[str]) -> str:
    """Return the name of the results if ``-o`` gives none: the script's name, else the program's."""
    words = list(command)
    program = Path(words[0]).name
    if re.fullmatch(r"python[\d.]*", program):
        script = next((word for word in words[1:] if word.endswith(".py")), None)
        if "-m" in words[1:-1]:
            program = words[words.index("-m") + 1]
            script = script if program in LAUNCHERS else program
        if script:
            return Path(script).name.removesuffix(".py")
    elif program in LAUNCHERS and (script := next((word for word in words[1:] if word.endswith(".py")), None)):
        return Path(script).name.removesuffix(".py")
    return Path(words[0]).name.removesuffix(".sh").removesuffix(".py") or "command"


def free_outputs(folder: Path, name: str) -> Outputs:
    """Return the files of the first of name, name-2, name-3 ... in ``folder`` that is not taken."""
    number = 1
    while True:
        outputs = Outputs.named(folder / (name if number == 1 else f"{name}-{number}"))
        if not outputs.taken():
            return outputs
        number += 1


def wanted_outputs(command: Sequence[str], options: RunOptions) -> Outputs:
    """Return the files to write: ``-o NAME``, or names after the command in ``-o FOLDER`` or here, free ones without ``--force``.

    Raises NsysxError.
    """
    output = options.output
    if output is not None and output.exists() and not (output.is_dir() or output.is_file()):
        raise failed(
            f"-o {output}: is a device or a pipe, not a name for files", "output-name", "Name the results: -o NAME"
        )
    if output is None or output.is_dir():
        folder, name = output or Path(), default_name(command)
        return Outputs.named(folder / name) if options.force else free_outputs(folder, name)
    return Outputs.named(output)

"""What nsys left: moved into place, imported again where nsys failed at it, exported; and what to say about the rest."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from nsysx.errors import NsysxError
from nsysx.outputs import move_into_place
from nsysx.recording.commands import export_command
from nsysx.recording.find_nsys import Nsys, importer_of
from nsysx.recording.follow import stop
from nsysx.recording.inbox import ENDING, STOPPING, Inbox
from nsysx.recording.nsys_process import NsysProcess
from nsysx.recording.options import Options, Outputs, Result, failed, free_outputs
from nsysx.recording.record import Recording, progress_of
from nsysx.recording.talk import Passing

_FULL_BYTES = 1 << 20


def keep(folder: Path, recording: Recording, options: Options, nsys: Nsys, inbox: Inbox, result: Result) -> None:
    """Move the report into place and export it, noting what went wrong."""
    if not options.force and result.outputs.taken():
        taken = result.outputs.stem
        result.outputs = free_outputs(taken.parent, taken.name)
        result.notes.append(f"{taken.name}.nsys-rep or its like appeared meanwhile, so the results have another name")
    made = [path for path in sorted(folder.glob("report*.nsys-rep")) if path.stat().st_size]
    stopped = bool(recording.interrupted)
    if not made and not stopped:
        made = _import_again(folder, recording.said, nsys, inbox)
    if not made:
        result.problems.append(_no_report(folder, recording, options, nsys, result.outputs))
        return
    for stale in result.outputs.all():  # with --force: no page of another run may stay beside this capture
        stale.unlink(missing_ok=True)
    _publish(made[0], result.outputs.report, options, result)
    result.report = result.outputs.report
    if stopped:
        again = shlex.join([str(nsys.path), "export", "--type=sqlite", str(result.outputs.report)])
        result.problems.append(failed("interrupted before the export", "interrupted", f"Later: {again}"))
    else:
        result.sqlite = _export(nsys, folder, options, inbox, result)


def _publish(made: Path, target: Path, options: Options, result: Result) -> None:
    """Move a file into place, readable for whom the user's umask lets read it: nsys writes with its own."""
    umask = os.umask(0o77)
    os.umask(umask)
    made.chmod(0o666 & ~umask)
    move_into_place(made, target, force=options.force)
    result.written.append(target)


def write_run(folder: Path, text: str, options: Options, result: Result) -> None:
    """Write NAME.run.json, whole or not at all."""
    written = folder / "run.json"
    written.write_text(text, encoding="utf-8", errors="backslashreplace")
    _publish(written, result.outputs.run, options, result)


# --- what nsys did not finish -----------------------------------------------------------------------------------------


def _collected(folder: Path, said: str) -> Path | None:
    """Return what nsys collected and did not make a report of, or the report that it could not write where it should."""
    # A .nsys-rep that it could not write here lies in the system's temporary folder, under another name.
    named = re.findall(r"[^\s'\"]+\.(?:nsys-rep|qdstrm)", said)
    return next((path for path in [*folder.glob("*.qdstrm"), *map(Path, named)] if path.is_file()), None)


def _run_quietly(words: Sequence[str], log: Path, inbox: Inbox, what: str) -> int | None:
    """Run a helper of nsys while it works and the user waits; return its exit code, None when the user did not wait."""
    process = NsysProcess(words, log, inbox)
    process.log.touch()
    with Passing() as line:
        while process.look():
            came = inbox.wait(0.05)
            if came is not None and came.number in STOPPING:
                stop()
                process.wakes()
            ended = came is not None and came.number in ENDING
            if ended or process.hangs():
                process.kill()
                return None if ended else process.process.returncode
            line.show(f"{what} {progress_of(process.said()).partition(':')[2].strip()}".rstrip())
    return process.process.wait()


def _import_again(folder: Path, said: str, nsys: Nsys, inbox: Inbox) -> list[Path]:
    """Return the report made of what nsys collected, [] when there is none. Its own import fails once in thousands of times."""
    raw, importer = _collected(folder, said), importer_of(nsys.path)
    if raw is None or raw.suffix != ".qdstrm" or importer is None:
        return []
    made = folder / "report.nsys-rep"
    words = [str(importer), "-i", str(raw), "-o", str(made)]
    code = _run_quietly(words, folder / "import.log", inbox, "nsys makes its report")
    if code != 0 or not made.is_file() or not made.stat().st_size:
        made.unlink(missing_ok=True)
        return []
    raw.unlink(missing_ok=True)
    return [made]


def _no_report(folder: Path, recording: Recording, options: Options, nsys: Nsys, outputs: Outputs) -> NsysxError:
    """Return what to say when nsys left no report; what it collected and could not import is kept."""
    said = recording.said
    why = "interrupted: nsys did not finish its report" if recording.interrupted else "nsys could not finish its report"
    if raw := _collected(folder, said):
        kept = outputs.stem.with_name(outputs.stem.name + raw.suffix)
        try:
            shutil.move(raw, kept)
        except OSError:  # no room there: it stays where nsys left it
            kept.unlink(missing_ok=True)
            kept = raw
        hint = f"Kept what it collected in {kept}: {_later(kept, nsys)}. {last_words(said)}".rstrip()
        return failed(why + _if_full(folder), "nsys-import", hint)
    hint = last_words(said)
    if options.steps is not None and "Capture range started" not in said and not recording.trouble:
        manual = "the program never came to `with nsysx.capture():`, or has no CUDA"
        why_not = manual if options.steps == "manual" else "fewer steps, no CUDA, or no probe"
        hint = f"The window --steps {options.steps} never opened: {why_not}. {hint}"
    why = "interrupted, there is no report" if recording.interrupted else "nsys wrote no report"
    return failed((recording.trouble or why) + _if_full(folder), "nsys-no-report", hint)


def _later(kept: Path, nsys: Nsys) -> str:
    """Return how to make a report of what was kept."""
    importer = importer_of(nsys.path)
    if kept.suffix == ".nsys-rep":
        return f"export it with {shlex.join([str(nsys.path), 'export', '--type=sqlite', str(kept)])}"
    if importer is None:
        return "nsys-ui of the same version opens it"
    report = kept.with_suffix(".nsys-rep")
    first = shlex.join([str(importer), "-i", str(kept), "-o", str(report)])
    second = shlex.join([str(nsys.path), "export", "--type=sqlite", str(report)])
    return f"if it is whole, {first} && {second} makes of it what nsysx report reads"


def _if_full(folder: Path) -> str:
    return ", the disk is full" if shutil.disk_usage(folder).free < _FULL_BYTES else ""


def lines_said(said: str) -> list[str]:
    """Return what nsys said without its progress bars."""
    lines = [part.strip() for line in said.splitlines() for part in line.split("\r")]
    return [line for line in lines if line and "%" not in line[:80] and not line.startswith(("Generat", "/"))]


def last_words(said: str) -> str:
    """Return the last lines of nsys in one, for an error message."""
    lines = lines_said(said)
    return "nsys said: " + " / ".join(lines[-4:]) if lines else ""


# --- export -----------------------------------------------------------------------------------------------------------


def _export(nsys: Nsys, folder: Path, options: Options, inbox: Inbox, result: Result) -> Path | None:
    """Export the report that was moved into place; None, with a problem noted, when that failed."""
    made, log = folder / "report.sqlite", folder / "export.log"
    command = export_command(nsys, result.outputs.report.absolute(), made)
    # nsys fails at this or hangs now and then, once in thousands of times; nothing is lost by asking again.
    for _ in range(2):
        code = _run_quietly(command, log, inbox, "nsys exports its report")
        exported = code == 0 and _whole(made)
        if exported or code is None:
            break
    if not exported:
        again = shlex.join([str(nsys.path), "export", "--type=sqlite", str(result.outputs.report)])
        what = f"{result.outputs.report}: export {'was stopped' if code is None else 'failed'}{_if_full(folder)}"
        said = last_words(log.read_text(errors="replace"))
        result.problems.append(failed(what, "nsys-export", f"Try: {again}. {said}".rstrip()))
        return None
    _publish(made, result.outputs.sqlite, options, result)
    return result.outputs.sqlite


def _whole(sqlite: Path) -> bool:
    """Say whether an export is complete: nsys exits with 0 on a full disk too."""
    try:
        with contextlib.closing(sqlite3.connect(f"{sqlite.as_uri()}?mode=ro", uri=True)) as connection:
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            (size,) = connection.execute("PRAGMA page_size").fetchone()
    except sqlite3.Error:
        return False
    return bool(tables) and pages * size == sqlite.stat().st_size

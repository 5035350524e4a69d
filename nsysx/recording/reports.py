"""Moves nsys's report into place and exports it, repeats an import that failed, and explains what is missing."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nsysx.errors import NsysxError
from nsysx.outputs import move_into_place
from nsysx.recording import default_counters, window_plan
from nsysx.recording.commands import export_command
from nsysx.recording.find_nsys import Nsys, importer_of
from nsysx.recording.follow import stop
from nsysx.recording.inbox import ENDING, STOPPING, Inbox
from nsysx.recording.nsys_process import NsysProcess
from nsysx.recording.probes import no_cuda, read_probe
from nsysx.recording.record import Recording, progress_of
from nsysx.recording.recording_bounds import FULL_DISK_BYTES
from nsysx.recording.run_messages import StatusLine
from nsysx.recording.run_options import RunOptions, failed
from nsysx.recording.run_outputs import Outputs, RunResult, free_outputs


def keep(folder: Path, recording: Recording, options: RunOptions, nsys: Nsys, inbox: Inbox, result: RunResult) -> None:
    """Move the report into place and export it; failures go into ``result``. Raises OSError or NsysxError if a move fails."""
    if not options.force and result.outputs.taken():
        taken = result.outputs.stem
        result.outputs = free_outputs(taken.parent, taken.name)
        result.notes.append(f"files of the name {taken.name} appeared meanwhile, so the results have another name")
    made = [path for path in sorted(folder.glob("report*.nsys-rep"), key=_number) if path.stat().st_size]
    stopped = bool(recording.interrupted)
    if not made and not stopped:
        made = _import_again(folder, recording.output, nsys, inbox)
    if not made:
        result.problems.append(_no_report(folder, recording, options, nsys, result.outputs))
        return
    for stale in result.outputs.all():  # with --force: no page of an earlier run may stay beside this capture
        stale.unlink(missing_ok=True)
    # With two windows nsys numbers its reports: the last goes by the run's name, the first of the same process is the cold start. Any
    # before that are of processes that ended before their second window, any between of steps that took less time than others later.
    cold = None
    if options.steps == window_plan.WINDOWS and len(made) > 1:
        of_process = min(max(2, *map(_windows, read_probe(folder / "probe"))), len(made))
        cold = made[-of_process]
        what = "a process that ended before its steps were measured, and others came after it"
        _leave_out(result, len(made) - of_process, made, what)
        _leave_out(result, of_process - 2, made, "steps of another kind, which took less of the run's time")
    _publish(made[0] if cold is None else made[-1], result.outputs.report, options, result)
    result.report = result.outputs.report
    if cold is not None:
        _publish(cold, result.outputs.cold[0], options, result)
    if stopped:
        again = shlex.join([str(nsys.path), "export", "--type=sqlite", str(result.outputs.report)])
        result.problems.append(failed("interrupted before the export", "interrupted", f"Later: {again}"))
    else:
        result.sqlite = _export(nsys, folder, options, inbox, result, (result.report, result.outputs.sqlite))
        if cold is not None and result.sqlite is not None:
            result.cold = _export(nsys, folder, options, inbox, result, result.outputs.cold)
        elif cold is not None:  # what is left is the cold start
            left = (result.outputs.cold[0], result.outputs.sqlite)
            result.sqlite = _export(nsys, folder, options, inbox, result, left)
            result.notes += [f"{left[1].name} is the export of {left[0].name}"] if result.sqlite else []


def _windows(probe: Mapping[str, Any]) -> int:
    """Return how many windows a process opened, as its probe says."""
    count = probe.get("windows")
    return count if isinstance(count, int) else 0


def _leave_out(result: RunResult, count: int, made: Sequence[Path], what: str) -> None:
    if count:
        result.notes.append(f"left out: {count} of {len(made)} recordings, of {what}")


def _number(report: Path) -> int:
    """Return the number that nsys gave to a report, 0 without."""
    last = report.name.removesuffix(".nsys-rep").rpartition(".")[2]
    return int(last) if last.isdecimal() else 0


def _publish(made: Path, target: Path, options: RunOptions, result: RunResult) -> None:
    """Move a file into place with the permissions of the user's umask; nsys applies its own."""
    umask = os.umask(0o77)
    os.umask(umask)
    made.chmod(0o666 & ~umask)
    move_into_place(made, target, force=options.force)
    result.written.append(target)


def write_run(folder: Path, text: str, options: RunOptions, result: RunResult) -> None:
    """Write NAME.run.json completely or not at all."""
    written = folder / "run.json"
    written.write_text(text, encoding="utf-8", errors="backslashreplace")
    _publish(written, result.outputs.run, options, result)


# --- what nsys did not finish -----------------------------------------------------------------------------------------


def _collected(folder: Path, output: str) -> Path | None:
    """Return the raw data that nsys did not turn into a report, or a report that nsys wrote elsewhere; None without either."""
    # If nsys could not write the .nsys-rep here, it put it into the system's temporary folder, under another name.
    named = re.findall(r"[^\s'\"]+\.(?:nsys-rep|qdstrm)", output)
    return next((path for path in [*folder.glob("*.qdstrm"), *map(Path, named)] if path.is_file()), None)


def _run_quietly(words: Sequence[str], log: Path, inbox: Inbox, what: str) -> int | None:
    """Run an nsys helper, and kill it if it hangs; return its exit code, or None if the user ended the wait."""
    process = NsysProcess(words, log, inbox)
    process.log.touch()
    with StatusLine() as line:
        while process.look():
            received = inbox.wait(0.05)
            if received is not None and received.number in STOPPING:
                stop()
                process.wakes()
            interrupted = received is not None and received.number in ENDING
            if interrupted or process.hangs():
                process.kill()
                return None if interrupted else process.process.returncode
            line.show(f"{what} {progress_of(process.output()).partition(':')[2].strip()}".rstrip())
    return process.process.wait()


def _import_again(folder: Path, output: str, nsys: Nsys, inbox: Inbox) -> list[Path]:
    """Import what nsys collected and return the report, or [] if that fails. About one import in thousands fails in nsys."""
    raw, importer = _collected(folder, output), importer_of(nsys.path)
    if raw is None or raw.suffix != ".qdstrm" or importer is None:
        return []
    made = folder / "report.nsys-rep"
    words = [str(importer), "-i", str(raw), "-o", str(made)]
    code = _run_quietly(words, folder / "import.log", inbox, "nsys is writing its report")
    if code != 0 or not made.is_file() or not made.stat().st_size:
        made.unlink(missing_ok=True)
        return []
    raw.unlink(missing_ok=True)
    return [made]


def _no_report(folder: Path, recording: Recording, options: RunOptions, nsys: Nsys, outputs: Outputs) -> NsysxError:
    """Return the error for a run without a report; raw data that nsys could not import is kept beside the outputs."""
    output = recording.output
    why = "interrupted: nsys did not finish its report" if recording.interrupted else "nsys could not finish its report"
    if raw := _collected(folder, output):
        kept = outputs.stem.with_name(outputs.stem.name + raw.suffix)
        try:
            shutil.move(raw, kept)
        except OSError:  # no space there: it stays where nsys left it
            kept.unlink(missing_ok=True)
            kept = raw
        hint = f"What it collected is in {kept}: {_how_to_import(kept, nsys)}. {last_words(output)}".rstrip()
        return failed(why + _if_full(folder), "nsys-import", hint)
    hint = last_words(output)
    if options.steps is not None and "Capture range started" not in output and not recording.trouble:
        if why_not := no_cuda(read_probe(folder / "probe")):
            what = f"nsys wrote no report: the window --steps {options.steps} needs CUDA, and {why_not}"
            return failed(what, "nsys-no-report", "Leave --steps out: what is recorded then needs no CUDA")
        manual = "the program never came to `with nsysx.capture():`, or has no CUDA"
        why_not = manual if options.steps == "manual" else "fewer steps, no CUDA, or no probe"
        hint = f"The window --steps {options.steps} never opened: {why_not}. {hint}"
    why = "interrupted, there is no report" if recording.interrupted else "nsys wrote no report"
    return failed((recording.trouble or why) + _if_full(folder), "nsys-no-report", hint)


def _how_to_import(kept: Path, nsys: Nsys) -> str:
    """Return how the user can turn the kept file into an export."""
    importer = importer_of(nsys.path)
    if kept.suffix == ".nsys-rep":
        return f"export it with {shlex.join([str(nsys.path), 'export', '--type=sqlite', str(kept)])}"
    if importer is None:
        return "nsys-ui of the same version opens it"
    report = kept.with_suffix(".nsys-rep")
    first = shlex.join([str(importer), "-i", str(kept), "-o", str(report)])
    second = shlex.join([str(nsys.path), "export", "--type=sqlite", str(report)])
    return f"if it is complete, {first} && {second} turns it into an export for nsysx report"


def _if_full(folder: Path) -> str:
    return ", the disk is full" if shutil.disk_usage(folder).free < FULL_DISK_BYTES else ""


def output_lines(output: str) -> list[str]:
    """Return the lines of nsys's output without its progress bars."""
    lines = [part.strip() for line in output.splitlines() for part in line.split("\r")]
    return [line for line in lines if line and "%" not in line[:80] and not line.startswith(("Generat", "/"))]


def last_words(output: str) -> str:
    """Return the last lines that nsys printed, joined for an error message."""
    lines = output_lines(output)
    return "nsys said: " + " / ".join(lines[-4:]) if lines else ""


# --- export -----------------------------------------------------------------------------------------------------------


def _export(
    nsys: Nsys, folder: Path, options: RunOptions, inbox: Inbox, result: RunResult, names: tuple[Path, Path]
) -> Path | None:
    """Export a report; ``names`` are it and the SQLite file, which is returned. If that fails, note the problem, return None."""
    report, sqlite = names
    made, log = folder / "report.sqlite", folder / "export.log"
    command = export_command(nsys, report.absolute(), made)
    # About one export in thousands fails or hangs; trying again costs nothing.
    for _ in range(2):
        code = _run_quietly(command, log, inbox, "nsys is exporting its report")
        exported = code == 0 and _is_complete(made)
        if exported or code is None:
            break
    if not exported:
        again = shlex.join([str(nsys.path), "export", "--type=sqlite", str(report)])
        what = f"{report}: export {'was stopped' if code is None else 'failed'}{_if_full(folder)}"
        output = last_words(log.read_text(errors="replace"))
        result.problems.append(failed(what, "nsys-export", f"Try: {again}. {output}".rstrip()))
        return None
    if options.counters and not options.gpu_metrics:
        with contextlib.suppress(sqlite3.Error):
            default_counters.keep_few(made, cold=report == result.outputs.cold[0])
    _publish(made, sqlite, options, result)
    return sqlite


def _is_complete(sqlite: Path) -> bool:
    """Return whether an export is complete: nsys exits with 0 even if the disk is full."""
    try:
        with contextlib.closing(sqlite3.connect(f"{sqlite.as_uri()}?mode=ro", uri=True)) as connection:
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            (size,) = connection.execute("PRAGMA page_size").fetchone()
    except sqlite3.Error:
        return False
    return bool(tables) and pages * size == sqlite.stat().st_size

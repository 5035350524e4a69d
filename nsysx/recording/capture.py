"""``nsysx run``: profile a command with nsys, export the report, and leave the command itself undisturbed.

Standard library only, so that it works where the analysis cannot be installed. Who does what:

* `options` checks what was asked for, `find_nsys` finds an nsys that works, and `commands` decides what to run
* `record` runs the command under nsys; it uses `inbox` for signals, `target` for the command, `nsys_process` for nsys, and
  `stand_in_link` to talk to the stand-in that nsys starts in place of the command
* `reports` exports or repairs what nsys left, `run_record` makes NAME.run.json, and `ranks` gives each rank its own nsys

Three measured facts shape the design:

* nsys exits with 0 even when it could not write its report, and then leaves the report elsewhere. So nsys works in a private
  folder beside the result, and only files that exist count.
* nsys puts its child into a session without a terminal, with umask 0 and pipes, and forgets it when its agent dies. So the
  command is a child of nsysx, not of nsys, and gets the environment that nsys would have given it.
* SIGHUP kills nsys before it has written a report, and SIGTERM kills its agent. So both run in a session of their own with
  signals blocked.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nsysx import redaction
from nsysx.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_RUN_FAILED, EXIT_USAGE, NsysxError
from nsysx.inject.nsysx_probe import capture_range
from nsysx.outputs import check_output
from nsysx.recording import default_counters, window_plan
from nsysx.recording import limit as limits
from nsysx.recording.commands import (
    check_nsys,
    export_command,
    gpu_metrics_words,
    profile_command,
)
from nsysx.recording.environment import probe_environment, users_environment
from nsysx.recording.find_nsys import Nsys, find_nsys
from nsysx.recording.follow import run_alone
from nsysx.recording.inbox import ENDING, Inbox
from nsysx.recording.per_rank import launcher, launches, rank_of, rank_outputs, run_ranks
from nsysx.recording.probes import read_probe
from nsysx.recording.record import Recorder, Recording
from nsysx.recording.recording_bounds import ASKED_COUNTERS_HZ, LOW_DISK_BYTES, SHOWN_COMMAND
from nsysx.recording.reports import keep, last_words, write_run
from nsysx.recording.run_messages import say
from nsysx.recording.run_options import RunOptions, check_options, failed, gone
from nsysx.recording.run_outputs import Outputs, RunResult, wanted_outputs
from nsysx.recording.run_record import (
    driver_version,
    note_html,
    other_processes,
    probe_off,
    run_record,
    window_missed,
)
from nsysx.recording.typed_command import check_command, keeps_probe_out
from nsysx.recording.windows_link import holder_words

__all__ = ["Outputs", "RunOptions", "RunResult", "dry_run", "find_nsys", "note_html", "run", "say"]


def _check_tries(options: RunOptions) -> None:
    """Raise NsysxError if remedies are to be tried of what gives no report of the whole job."""
    if options.tries and (options.per_rank or not options.report):
        other = "--per-rank" if options.per_rank else "--no-report"
        hint = "Record first, then: nsysx try REPORT -- CMD"
        raise NsysxError(f"--try does not go with {other}", slug="run-try", hint=hint, exit_code=EXIT_USAGE)


def _prepare(command: Sequence[str], options: RunOptions) -> tuple[Nsys, Outputs]:
    """Check everything that can be checked before the command runs; return the nsys and the files. Raises NsysxError."""
    check_options(options)
    _check_tries(options)
    check_command(command)
    nsys = find_nsys(options.nsys)
    check_nsys(nsys, options)
    rank = rank_of(os.environ) if options.per_rank else None
    outputs = rank_outputs(command, options, rank) if rank is not None else wanted_outputs(command, options)
    for path in outputs.all():
        check_output(path, force=options.force, exit_code=EXIT_RUN_FAILED)
    return nsys, outputs


def run(command: Sequence[str], options: RunOptions) -> RunResult:
    """Profile ``command``, export the report and write NAME.run.json.

    Raises NsysxError only before the command starts; later failures are in the result, so that nothing recorded is lost.
    """
    check_options(options)
    _check_tries(options)
    check_command(command)
    if options.per_rank and rank_of(os.environ) is None:
        if launches(command):
            nsys = find_nsys(options.nsys)
            check_nsys(nsys, options)
            return run_ranks(command, replace(options, nsys=nsys.path) if options.nsys else options)
        say("--per-rank: this command is one process, so there is one report")
        options = replace(options, per_rank=False)
    started_by = launcher()
    nsys, outputs = _prepare(command, options)
    result = RunResult(EXIT_RUN_FAILED, outputs, launcher=started_by)
    with tempfile.TemporaryDirectory(prefix=".nsysx-", dir=outputs.report.parent, ignore_cleanup_errors=True) as name:
        _run_in(Path(name).absolute(), command, options, nsys, result)
    return result


def _announce(command: Sequence[str], options: RunOptions, nsys: Nsys, outputs: Outputs, why_all: str) -> None:
    """Say in one line what is about to run, with why it is recorded as a whole, and warn of what will be missing."""
    page = " and reports" if options.report else ""
    command_line = " ".join(redaction.shell(command).split())  # a program in a word may have lines
    shown = command_line if len(command_line) <= SHOWN_COMMAND else command_line[: SHOWN_COMMAND - 3] + "..."
    whole = f" (everything: {why_all})" if why_all else ""
    say(f"nsys {nsys.version} records{page}: {shown} -> {outputs.stem}.*{whole}")
    if options.probe and (how := keeps_probe_out(command)):
        say(f"warning: {how} keeps the probe out of Python: the report will have no steps and no modules")
    for line in gone(options):
        say(line)
    for folder in {outputs.report.parent.absolute(), Path(tempfile.gettempdir())}:
        with contextlib.suppress(OSError):
            if (free := shutil.disk_usage(folder).free) < LOW_DISK_BYTES:
                say(f"warning: only {free >> 20} MiB free for {folder}; a report may need more")


def _run_in(folder: Path, command: Sequence[str], options: RunOptions, nsys: Nsys, result: RunResult) -> None:
    """Do the whole run in a private folder and put the outcome into ``result``."""
    probe_dir = folder / "probe"
    probe_dir.mkdir()
    if options.gpu_metrics and not gpu_metrics_words(nsys, ASKED_COUNTERS_HZ):
        result.notes.append("--gpu-metrics: this nsys does not sample the GPU's counters")
    wanted = options
    options, added, why_all = _decided(command, options, nsys, probe_dir)
    options, no_counters = default_counters.decided(options)
    limit = limits.limit_of_run(options.limit, None if why_all else wanted.steps, options.nsys_args)
    environment = users_environment() | added
    _announce(command, options, nsys, result.outputs, why_all)
    if no_counters:
        say(f"no GPU counters: {no_counters}")
    if options.then and options.steps is None and limit is None:
        say("warning: without a window and a limit, --then stop has nothing to wait for: the command runs to its end")
    with Inbox() as inbox:
        recording = Recorder(
            folder, command, options=options, nsys=nsys, inbox=inbox, environment=environment, limit=limit
        ).run()
        if not recording.started:
            if not (recording.interrupted or recording.cannot_execute or options.nsys_args):
                _run_unrecorded(command, recording, inbox, result)
            else:
                _note_not_started(command, recording, result)
            return
        options = options if recording.windows else replace(options, steps=None)
        # The command has run. From here on no failure may lose what was recorded.
        try:
            keep(folder, recording, options, nsys, inbox, result)
            probes = read_probe(probe_dir)
            recording.metrics_refused = recording.metrics_refused or no_counters
            record = run_record(command, options, nsys, recording, result) | {"probe": probes}
            record["probe_off"] = probe_off(probes, command, options)
            if record["probe_off"] and options.probe:
                result.notes.append("no ranges from the probe: {reason}; {fix}".format(**record["probe_off"]))
            if limit is not None:
                record["limit"] = {**limit._asdict(), "reached": recording.reached}
            if recording.clocks and recording.clocks["error"]:
                result.notes.append(f"--clocks: no GPU clocks were sampled: {recording.clocks['error']}")
            if missed := window_missed(probes):
                result.notes.append(missed)
            if others := other_processes(probes):
                result.notes.append(others)
            if options.calibrate and result.sqlite and recording.code == 0:
                record["calibration"] = _calibrate(folder, command, options, inbox)
            write_run(folder, json.dumps(record, indent=1), options, result)
        except (OSError, NsysxError) as error:
            result.problems.append(failed(f"results are not complete: {error}", "results-incomplete"))
    _set_exit_code(recording, result)


def _decided(
    command: Sequence[str], options: RunOptions, nsys: Nsys, probe_dir: Path
) -> tuple[RunOptions, dict[str, str], str]:
    """Return the options as they are carried out, the variables that the command gets beside the user's, and why there is no window
    although one was wanted ("" if there is).
    """
    users = users_environment()
    given = users | probe_environment(options, users, probe_dir)
    options, why = window_plan.decided(command, options, nsys, given)
    added = probe_environment(options, users, probe_dir)
    added |= window_plan.detaching(options, nsys, users, driver_version())
    return options, added, why


def _run_unrecorded(command: Sequence[str], recording: Recording, inbox: Inbox, result: RunResult) -> None:
    """Run the command although nsys does not start here: a job that waited in a queue must not end because of a profiler."""
    what = recording.trouble or last_words(recording.output) or "it did not say why"
    say(f"warning: nsys did not start ({what}); the command runs without being recorded. nsysx doctor tells more")
    try:
        result.ends_as(run_alone(command, users_environment(), inbox).status or 0)
    except OSError as error:
        recording.cannot_execute, recording.trouble = error.errno or 0, error.strerror or "it cannot be started"
        _note_not_started(command, recording, result)


def _note_not_started(command: Sequence[str], recording: Recording, result: RunResult) -> None:
    """Put into ``result`` why the command did not run, and the exit code for it."""
    if recording.interrupted:
        result.exit_code, result.ended_by = 128 + recording.interrupted, recording.interrupted
        result.problems.append(failed("interrupted before the command was started", "interrupted"))
    elif recording.cannot_execute:
        missing = recording.cannot_execute == 2
        result.exit_code = EXIT_NOT_FOUND if missing else EXIT_NOT_EXECUTABLE
        result.problems.append(failed(f"cannot execute {command[0]}: {recording.trouble}", "command-not-executable"))
    else:
        what = "nsys did not start the command" + (f": {recording.trouble}" if recording.trouble else "")
        result.problems.append(failed(what, "nsys-failed", last_words(recording.output) or "nsysx doctor tells more"))


def _set_exit_code(recording: Recording, result: RunResult) -> None:
    """Set the exit code: the command's own, but a failure's if the command ended with 0 and the recording failed.

    Where the recording failed, a note says how the command itself ended.
    """
    if recording.trouble and not any(recording.trouble in problem.message for problem in result.problems):
        result.problems.insert(0, failed(recording.trouble, "nsys-failed", "What was recorded may end early"))
    if recording.code is None:
        result.exit_code = EXIT_RUN_FAILED
        result.notes.append("how the command ended is not known: nsys was killed together with what it had started")
        return
    own_failure = 128 + recording.interrupted if recording.interrupted else EXIT_RUN_FAILED
    code, ended_by = (0, 0) if recording.stopped else (recording.code, recording.ended_by)
    result.exit_code = code or (own_failure if result.problems else 0)
    result.ended_by = ended_by or (recording.interrupted if not code else 0)
    if result.problems:
        result.notes.append(f"the command itself ended with {recording.code}")


def dry_run(command: Sequence[str], options: RunOptions) -> str:
    """Return the commands and environment that `run` would use, as shell lines that can be run. Raises NsysxError.

    Everything is checked that can be checked without running the command. In these lines the command is a child of nsys.
    """
    if options.per_rank and rank_of(os.environ) is None and launches(command):
        what = "--dry-run does not go with --per-rank: each rank's commands are made when it starts"
        raise NsysxError(what, slug="dry-run", exit_code=EXIT_USAGE)
    nsys, outputs = _prepare(command, options)
    folder = outputs.report.parent.absolute() / f".nsysx-{outputs.stem.name}"
    options, environment, _ = _decided(command, options, nsys, folder)
    options, _ = default_counters.decided(options)
    stem = outputs.stem.absolute()
    if options.steps == window_plan.WINDOWS:
        environment[capture_range.ADDRESS] = address = f"nsysx-windows-{secrets.token_hex(16)}"
        command = [*holder_words(address, folder), *command]
    lines = [f"mkdir -p {shlex.quote(str(folder))}"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    lines.append(redaction.shell(profile_command(nsys, options, stem, command)))
    lines.append(shlex.join(export_command(nsys, outputs.report.absolute(), outputs.sqlite.absolute())))
    return "\n".join(lines)


def _calibrate(folder: Path, command: Sequence[str], options: RunOptions, inbox: Inbox) -> dict[str, Any]:
    """Run the command once more without nsys; return its exit code, an error or None, and the ns of each step by number."""
    timing_dir = folder / "timing"
    environment = users_environment()
    environment |= probe_environment(options, environment, timing_dir)
    environment |= {"NSYSX_TIMING": "1", "NSYSX_FORCE": "1"}
    say("--calibrate: running the command once more, without the profiler and without its output")
    nothing = subprocess.DEVNULL
    mask = signal.pthread_sigmask(signal.SIG_SETMASK, inbox.inherited.blocked)
    try:
        timing_dir.mkdir()
        process = subprocess.Popen(
            command, stdin=nothing, stdout=nothing, stderr=nothing, env=environment, start_new_session=True
        )
    except OSError as error:  # what the profiled run left is still written
        return {"exit_code": None, "error": f"it could not be started: {error}"}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    while process.poll() is None:
        received = inbox.wait(0.25)
        if received is not None and received.number in ENDING:  # the profiled run is kept
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
    code = process.wait()
    timed = [p for p in read_probe(timing_dir) if isinstance(p.get("timing"), dict) and p["timing"].get("steps_ns")]
    # One rank is enough, since a step ends for all ranks when it ends for one: rank 0, else the one with the most steps.
    best = min(timed, key=lambda p: (str(p.get("rank") or "0") != "0", -len(p["timing"]["steps_ns"])), default=None)
    if code != 0 or best is None:
        why = f"it ended with {code}" if code else "no step was seen"
        return {"exit_code": code, "error": why}
    steps = dict(best["timing"]["steps_ns"])
    borders = best.get("steps", {})
    if borders.get("last_closed_by") == "exit":  # the last step also contains the end of the program
        steps.pop(str(borders.get("count", 0) - 1), None)
    return {"exit_code": code, "error": None, "clock": best["timing"].get("clock"), "steps_ns": steps}

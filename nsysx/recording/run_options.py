"""The options of ``nsysx run``, checked before anything starts."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from nsysx.errors import EXIT_RUN_FAILED, EXIT_USAGE, NsysxError
from nsysx.option import Option, declared
from nsysx.recording import limit

_DEFAULT = "on by default now, in the X-ray steps (--xray)"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of ``nsysx run``, each declared here alone; each default is what most people want."""

    output: Annotated[
        Path | None,
        Option(
            "Name of the results, or a folder for them. Default: CMD's script, here.",
            "NAME",
            ("-o", "--output"),
            typed_only=True,
        ),
    ] = None
    force: Annotated[bool, Option("Overwrite results of the same name.", names=("--force", "-f"), typed_only=True)] = (
        False
    )
    report: Annotated[bool, Option("Only capture and export; works without polars.", names=("--no-report",))] = True
    probe: Annotated[
        bool,
        Option(
            "Add no ranges: only the steps, phases and modules that CMD marks itself.",
            names=("--no-probe",),
            hidden=True,
        ),
    ] = True
    steps: Annotated[
        str | None,
        Option(
            "Capture only steps A to B-1, or (auto) 24 steps once they repeat, or (manual) what the program itself puts in "
            "`with nsysx.capture():`, or (all) the whole run. Default (windows): the cold start and, after up to 3 s of steps that "
            "are timed without the profiler, 24 steady ones; all where that is not possible.",
            "A:B|auto|manual|windows|all",
            variable="NSYSX_STEPS",
        ),
    ] = None
    limit: Annotated[
        str | None,
        Option(
            "Where there are no steps, record at most S seconds or about EVENTS events; none: no limit. CMD goes on. "
            "Default: 120:5000000, or none with --steps all.",
            "S[:EVENTS]",
        ),
    ] = None
    then: Annotated[
        str | None,
        Option(
            "End CMD once the last window of steps is recorded, as Ctrl-C does: for a training of hours.",
            "stop",
            words=("stop",),
            variable="NSYSX_THEN",
        ),
    ] = None
    xray: Annotated[
        str,
        Option(
            "What the window's last three steps carry: modules, operators with shapes and the program's lines (all), no operators "
            "(lines), or none of these (none). The other steps inherit it.",
            "none|lines|all",
            words=("none", "lines", "all"),
            variable="NSYSX_XRAY",
        ),
    ] = "all"
    source: Annotated[
        tuple[str, ...],
        Option(
            "Record the lines of this package or path, too, or with ! before it leave them out (repeatable). "
            "Default: all but torch and Python's own.",
            "[!]PREFIX",
            variable="NSYSX_SOURCE",
        ),
    ] = ()
    texts: Annotated[
        bool,
        Option(
            "Keep no text of the program's lines in NAME.run.json.", names=("--no-source",), variable="NSYSX_NO_SOURCE"
        ),
    ] = True
    tries: Annotated[
        bool, Option("Then try the first three remedies: CMD runs again and again.", names=("--try",), typed_only=True)
    ] = False
    memory: Annotated[bool, Option("Record device memory allocations.")] = False
    gil: Annotated[
        bool,
        Option("Record who holds Python's lock, and who waits for it. Its cost was too small to measure.", hidden=True),
    ] = False
    gpu_metrics: Annotated[
        bool,
        Option(
            "Sample the GPU's counters ten times as often as by default and keep all of them, with any --steps. If refused, the "
            "run goes on without them.",
            hidden=True,
        ),
    ] = False
    counters: Annotated[
        bool,
        Option(
            "Do not sample the GPU's counters (SMs, tensor cores, memory bandwidth), as two windows do where the driver allows it.",
            names=("--no-counters",),
            hidden=True,
        ),
    ] = True
    per_rank: Annotated[bool, Option("Under torchrun and launchers built on it: one report per rank.")] = False
    nsys: Annotated[
        Path | None,
        Option("The nsys to use. Default: the one on PATH, else the newest found.", "PATH", typed_only=True),
    ] = None
    nsys_args: Annotated[
        tuple[str, ...],
        Option("Pass ARG on to nsys profile (repeatable).", "ARG", names=("--nsys-arg",), hidden=True, typed_only=True),
    ] = ()
    graphs: Annotated[
        str,
        Option(
            "Trace each node of a CUDA graph, or only each graph launch.",
            "node|graph",
            words=("node", "graph"),
            hidden=True,
        ),
    ] = "node"
    osrt: Annotated[bool, Option("Also record operating system calls; slows the host.", hidden=True)] = False
    mpi: Annotated[bool, Option("Also record the calls of MPI and UCX.", hidden=True)] = False
    clocks: Annotated[bool, Option("Sample GPU clocks, power and temperature; needs nsysx[clocks].", hidden=True)] = (
        False
    )
    depth: Annotated[
        int | None,
        Option("Mark modules down to this depth. Default: all.", least=0, variable="NSYSX_DEPTH", hidden=True),
    ] = None
    only: Annotated[
        str | None,
        Option("Mark only modules whose path matches. Default: all.", "REGEX", variable="NSYSX_ONLY", hidden=True),
    ] = None
    calibrate: Annotated[
        bool,
        Option("Run CMD once more without the profiler, to measure what profiling costs.", hidden=True),
    ] = False
    lines: Annotated[bool, Option("As --xray lines.", gone=_DEFAULT)] = False
    ops: Annotated[bool, Option("As --xray all.", gone=_DEFAULT)] = False
    python: Annotated[bool, Option("As --xray lines.", gone=_DEFAULT)] = False
    marks: Annotated[str | None, Option("As --xray.", gone=_DEFAULT)] = None
    backward: Annotated[str | None, Option("As --xray.", gone=_DEFAULT)] = None


def failed(message: str, slug: str, hint: str = "") -> NsysxError:
    """Return an error with the exit code of a failed run."""
    return NsysxError(message, slug=slug, hint=hint, exit_code=EXIT_RUN_FAILED)


def check_steps(steps: str) -> str:
    """Return ``steps`` if it is A:B with 0 <= A < B or one of the known words, else raise NsysxError."""
    if steps in ("auto", "manual", "windows", "all"):
        return steps
    match = re.fullmatch(r"(\d+):(\d+)", steps)
    if not match or int(match.group(1)) >= int(match.group(2)):
        raise NsysxError(
            f"--steps {steps}: expected A:B, auto, manual, windows or all",
            slug="bad-steps",
            hint="For example --steps 10:15 for steps 10, 11, 12, 13 and 14",
            exit_code=EXIT_USAGE,
        )
    return steps


def check_limit(options: RunOptions) -> None:
    """Raise NsysxError if ``--limit`` cannot be read, or another option says when the recording ends."""
    try:
        limit.parsed(options.limit or "")
    except ValueError:
        what, hint = f"--limit {options.limit}: expected S, S:EVENTS or none", "For example --limit 60"
        raise NsysxError(what, slug="bad-limit", hint=hint, exit_code=EXIT_USAGE) from None
    if options.steps not in (None, "windows", "all"):
        what = f"--limit does not go with --steps {options.steps}"
        raise NsysxError(what, slug="limit-steps", hint="That window ends by itself", exit_code=EXIT_USAGE)


def check_options(options: RunOptions) -> None:
    """Raise NsysxError if an option is invalid or two options exclude each other."""
    for option in declared(RunOptions):
        value = getattr(options, option.field)
        if option.option.words and value is not None and value not in option.option.words:
            what, choices = f"{option.names[-1]} {value}", ", ".join(option.option.words)
            raise NsysxError(f"{what}: expected {choices}", slug="bad-option", exit_code=EXIT_USAGE)
    if options.steps is not None:
        check_steps(options.steps)
    if options.limit is not None:
        check_limit(options)
    if options.then is not None and (options.steps in ("all", "manual") or options.per_rank or not options.probe):
        other = "--no-probe" if not options.probe else "--per-rank" if options.per_rank else f"--steps {options.steps}"
        hint = "The probe of one job tells when the last window of steps has closed"
        raise NsysxError(f"--then does not go with {other}", slug="then-steps", hint=hint, exit_code=EXIT_USAGE)
    if options.only is not None:
        try:
            re.compile(options.only)
        except re.error as error:
            what = f"--only {options.only}: not a regular expression, {error}"
            hint = f"To look for the text itself: --only {shlex.quote(re.escape(options.only))}"
            raise NsysxError(what, slug="bad-only", hint=hint, exit_code=EXIT_USAGE) from None
    if any(re.match(r"-o|--output\b", word) for word in options.nsys_args):
        raise failed("--nsys-arg: use nsysx's own -o", "nsys-output")
    if any(os.pathsep in prefix for prefix in options.source):
        raise NsysxError("--source: one package or path each time", slug="bad-source", exit_code=EXIT_USAGE)
    if options.calibrate and (options.per_rank or not options.probe):
        other = "--per-rank" if options.per_rank else "--no-probe"
        hint = "It runs the whole command once more and needs the probe's step borders"
        what = f"--calibrate does not go with {other}"
        raise NsysxError(what, slug="calibrate", hint=hint, exit_code=EXIT_USAGE)


def gone(options: RunOptions) -> list[str]:
    """Return what to say of each option given that has no effect any more."""
    given = [o for o in declared(RunOptions) if o.option.gone and getattr(options, o.field) != o.default]
    return [f"{option.names[-1]}: {option.option.gone}" for option in given]

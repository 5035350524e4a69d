"""The environment of the command: the user's own, and what is declared here. Nothing else may differ from a bare run."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nsysx.option import Declared, declared
from nsysx.recording import limit, window_plan
from nsysx.recording.run_options import RunOptions, failed

INJECT = Path(__file__).parents[1] / "inject"


class VariableDifference(NamedTuple):
    """Variables that a command has under ``nsysx run`` and not without it: a pattern of their names, and why."""

    names: str
    why: str


#: Every variable in which the environment of the command differs. `/proc/PID/environ` of a program under nsys 2023.4 has no other.
DIFFERENCES = (
    VariableDifference(
        "PYTHONPATH", "the probe's folder stands first, so that Python runs its sitecustomize; the rest is the user's"
    ),
    VariableDifference("NSYSX_.*", "options of the probe, and where it leaves what it found"),
    VariableDifference("PYTHON_EXEC", "only with --per-rank: what torchrun starts as each rank"),
    VariableDifference("LD_PRELOAD", "nsys's libraries, after the user's, catch the start of each process"),
    VariableDifference(
        "LD_LIBRARY_PATH", "folders of nsys itself, after the user's; none with the versions that are known"
    ),
    VariableDifference("(CUDA|NVTX)_INJECTION64_PATH", "the library that CUDA and NVTX load to be recorded"),
    VariableDifference("NVTX_INJECTION32_PATH", "the same for 32-bit programs"),
    VariableDifference("(NSYS|QUADD)_.*", "nsys's own settings for that library"),
    VariableDifference("CUPTI_.*|TRACE_START_IMMEDIATELY|USE_AGENT_API", "the same"),
    VariableDifference("__GL_CONSTANT_FRAME_RATE_HINT", "nsys sets it for OpenGL in every program"),
)
#: Lists of folders or files, each with what separates its entries.
_LISTS = {b"LD_LIBRARY_PATH": rb":", b"LD_PRELOAD": rb"[: ]"}


def is_declared(name: str) -> bool:
    """Return whether a variable may differ from a bare run."""
    return any(re.fullmatch(difference.names, name) for difference in DIFFERENCES)


def of_command(command: Sequence[str], users: Mapping[str, str], of_nsys: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the environment of the command: the user's with the probe's variables (``users``), and what nsys adds to it.

    ``of_nsys`` is the environment that nsys gave to its child. From a list that the user has, too, nothing is taken away.
    An empty entry in LD_LIBRARY_PATH means the working folder, so libraries there would be loaded; and other folders than
    nsys's own (it adds those of the CUDA toolkit) could replace libraries that the program brings.
    """
    environment = {os.fsencode(name): os.fsencode(value) for name, value in users.items()}
    own_folder = os.path.dirname(of_nsys.get(b"NVTX_INJECTION64_PATH", b""))  # noqa: PTH120 - bytes
    for name, value in of_nsys.items():
        if name in _LISTS:
            before = environment.get(name)
            earlier = re.split(_LISTS[name], before or b"")
            added = [entry for entry in re.split(_LISTS[name], value) if entry and entry not in earlier]
            if name == b"LD_LIBRARY_PATH":
                added = [entry for entry in added if own_folder and (entry + b"/").startswith(own_folder + b"/")]
            if added:
                environment[name] = b":".join([before, *added] if before else added)
        elif name == b"TMPDIR":  # that of nsys may be another
            continue
        elif name not in environment or is_declared(os.fsdecode(name)):
            environment[name] = value
    shells_word = environment.get(b"_")
    if shells_word in (os.fsencode(sys.executable), os.fsencode(sys.argv[0])):  # bash names here what it starts
        environment[b"_"] = os.fsencode(shutil.which(command[0]) or command[0])
    return environment


def probe_environment(
    options: RunOptions, environ: Mapping[str, str], probe_dir: Path, *, inject: Path = INJECT
) -> dict[str, str]:
    """Return the variables to add to the command's environment so that the probe starts with its Python.

    Raises NsysxError if nsysx is installed in a path that PYTHONPATH cannot hold.
    """
    if not options.probe:
        return {"NSYSX_PROBE": "0"}
    if os.pathsep in str(inject):
        raise failed(
            f"{inject}: a path with ':' cannot stand in PYTHONPATH",
            "probe-path",
            "Install nsysx elsewhere or use --no-probe",
        )
    before = environ.get("PYTHONPATH")
    added = {
        "PYTHONPATH": f"{inject}{os.pathsep}{before}" if before else str(inject),
        "NSYSX_PROBE_DIR": str(probe_dir),
    }
    values = {
        o.option.variable: _variable_value(o, getattr(options, o.field))
        for o in declared(RunOptions)
        if o.option.variable
    }
    if options.steps == "manual":  # without a window the program opens its own
        values.pop("NSYSX_STEPS")
    if options.steps == window_plan.WINDOWS:
        added |= window_plan.ENVIRONMENT
    if limit.limit_of_run(options.limit, options.steps, options.nsys_args):
        added["NSYSX_LIMIT"] = "1"
    return added | {name: value for name, value in values.items() if value is not None}


def _variable_value(option: Declared, value: Any) -> str | None:
    """Return what a variable tells the probe of an option, None if it is not set."""
    if option.flag:
        return "1" if value != option.default else None
    if isinstance(value, tuple):
        return os.pathsep.join(value) or None
    return None if value is None else str(value)


def users_environment() -> dict[str, str]:
    """Return the environment that this process was given, without the LC_CTYPE that Python adds in the C locale (PEP 538)."""
    environment = dict(os.environ)
    try:
        first = Path("/proc/self/environ").read_bytes()
    except OSError:
        return environment
    if not first.startswith(b"LC_CTYPE=") and b"\0LC_CTYPE=" not in first:
        environment.pop("LC_CTYPE", None)
    return environment

"""Decides whether a run can have two capture windows, one over the cold start and one over steady steps, with bare steps between.

nsys opens and closes the windows where a process of ``nsysx run`` begins and ends an NVTX range (``range_holder``). It opens the first
one before the command starts, and closes it when the probe of the process asks that makes steps first
(``inject.nsysx_probe.capture_range``): so any command may have two, and one without steps is recorded up to the limit.

Between the windows nothing of nsys may slow the program down. By itself it does: CUPTI stays in every CUDA call once it was there.
So nsys is told to take CUPTI out of the process at a window's end and to bring it back for the next (``detaching``).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from nsysx.inject.nsysx_probe import capture_range
from nsysx.recording.find_nsys import Nsys, version_key
from nsysx.recording.limit import OF_CAPTURE
from nsysx.recording.recording_bounds import CUDA_STARTS_S, DRIVER_OF_CUDA_12_6, MOST_WINDOWS, NO_CUDA_EXIT
from nsysx.recording.run_options import RunOptions
from nsysx.recording.typed_command import keeps_probe_out

#: What ``--steps`` says for two windows.
WINDOWS = capture_range.MODE
#: nsys compares only names that were registered in advance, unless this variable says otherwise.
ENVIRONMENT = {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
#: Settings of nsys that it reads from this variable, and those with which a step is as short after a window as before the first: on
#: an H100 (nsys 2025.3, CUDA 13, 1,000 launches a step, two processes each) 9.5 and 11.6 ms where it was 9.5 and 11.7. Without
#: them 8.9 and 10.9 became 12.5 and 14.1, to the program's end. nsys says so in a report: "The CUPTI was finalized".
DIRECTIVES = "NSYS_CONFIG_DIRECTIVES"
_DETACHING = ("CuptiSubscribeOnStart=true", capture_range.DETACHED)
#: The first nsys with the CUPTI of CUDA 12.6: older ones crash where CUDA graphs are replayed when CUPTI comes back
#: (pytorch/pytorch#146604).
_CAN_DETACH = (2024, 5)


#: Ends with this code if there is no driver, or if it finds no device; in a process of its own, because a driver's start stays.
_STARTS_CUDA = f"""import ctypes, sys
try:
    failed = ctypes.CDLL("libcuda.so.1").cuInit(0)
except OSError:
    failed = True
sys.exit({NO_CUDA_EXIT} if failed else 0)"""


def profile_words() -> list[str]:
    """Return the options of ``nsys profile`` for two windows."""
    range_ = f"{capture_range.TEXT}@{capture_range.DOMAIN}"
    return ["--capture-range=nvtx", f"--nvtx-capture={range_}", f"--capture-range-end=repeat:{MOST_WINDOWS}"]


def detaching(options: RunOptions, nsys: Nsys, users: Mapping[str, str], driver: str | None) -> dict[str, str]:
    """Return the variable that takes CUPTI out of the program between windows, {} where that is of no use or not safe.

    The settings of the user's environment stay and win. ``driver`` is the version of NVIDIA's kernel driver, None if unknown.
    """
    if options.steps != WINDOWS or version_key(nsys.version) < _CAN_DETACH:
        return {}
    if driver is None or version_key(driver)[0] < DRIVER_OF_CUDA_12_6:
        return {}
    of_user = [word for word in users.get(DIRECTIVES, "").split(";") if word.strip()]
    named = {word.split("=")[0].strip() for word in of_user}
    ours = [word for word in _DETACHING if word.split("=")[0] not in named]
    return {DIRECTIVES: ";".join([*of_user, *ours])}


def decided(
    command: Sequence[str], options: RunOptions, nsys: Nsys, environment: Mapping[str, str]
) -> tuple[RunOptions, str]:
    """Return the options with ``steps`` None if everything is recorded, and why that is so although windows were wanted."""
    if options.steps == "all":
        return replace(options, steps=None), ""
    if options.steps not in (None, WINDOWS):
        why = "" if cuda_starts(environment) else f"--steps {options.steps} needs CUDA, which does not start here"
        return replace(options, steps=None) if why else options, why
    why = obstacle(command, options, nsys)
    return replace(options, steps=None if why else WINDOWS), why


def cuda_starts(environment: Mapping[str, str]) -> bool:
    """Return whether the driver of CUDA can be used with this environment; also where that is not known."""
    words, quiet = [sys.executable, "-I", "-S", "-c", _STARTS_CUDA], subprocess.DEVNULL
    try:
        done = subprocess.run(
            words, env=dict(environment), stdin=quiet, stdout=quiet, stderr=quiet, timeout=CUDA_STARTS_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return True
    return done.returncode != NO_CUDA_EXIT


def obstacle(command: Sequence[str], options: RunOptions, nsys: Nsys) -> str:
    """Return why this run cannot have two windows, "" if it can."""
    if not options.probe:
        return "the probe is off"
    if how := keeps_probe_out(command):
        return f"{how} keeps the probe out"
    if not (nsys.profile_has("--nvtx-capture") and "repeat" in nsys.profile_help):
        return f"nsys {nsys.version} cannot record two windows"
    if any(OF_CAPTURE.match(word) for word in options.nsys_args):
        return "--nsys-arg says when to record"
    return "--calibrate goes with one window only" if options.calibrate else ""

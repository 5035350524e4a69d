"""Decides whether a run can have two capture windows, one over the cold start and one over steady steps, with bare steps between.

nsys opens and closes the windows where the probe begins and ends an NVTX range (``inject.nsysx_probe.capture_range``). With
``-c cudaProfilerApi`` instead, steps after the first window run 10 to 40 % slower (H100, nsys 2025.3), so they tell nothing.
Where the range might not come, everything is recorded: a window that nothing opens records nothing.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nsysx.inject.nsysx_probe import capture_range
from nsysx.recording.find_nsys import Nsys
from nsysx.recording.options import LAUNCHERS, Options, keeps_probe_out

#: What ``--steps`` says for two windows.
WINDOWS = capture_range.MODE
#: nsys compares only names that were registered in advance, unless this variable says otherwise.
ENVIRONMENT = {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}

#: Whether the Python that runs the command finds the probe, and what it needs to send the range.
_CHECK = "import sys, ctypes, sitecustomize, nsysx_probe.capture_range; raise SystemExit(sys.version_info < (3, 9))"
_CHECK_S = 20.0
#: Environment variables with which a launcher says how many processes a job has.
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
_OF_CAPTURE = re.compile(r"-c|--capture-range|-d|--duration|-p|--nvtx-capture|-y|--delay|-x|--stop-on-exit")


def profile_words() -> list[str]:
    """Return the options of ``nsys profile`` for two windows."""
    range_ = f"{capture_range.TEXT}@{capture_range.DOMAIN}"
    return ["--capture-range=nvtx", f"--nvtx-capture={range_}", "--capture-range-end=repeat:2"]


def decided(
    command: Sequence[str], options: Options, nsys: Nsys, environment: Mapping[str, str]
) -> tuple[Options, str]:
    """Return the options with ``steps`` None if everything is recorded, and why that is so although two windows were wanted."""
    if options.steps == "all":
        return replace(options, steps=None), ""
    if options.steps not in (None, WINDOWS):
        return options, ""
    why = obstacle(command, options, nsys, environment)
    return replace(options, steps=None if why else WINDOWS), why


def obstacle(command: Sequence[str], options: Options, nsys: Nsys, environment: Mapping[str, str]) -> str:
    """Return why this run cannot have two windows, "" if it can. ``environment`` is that of the command, with the probe's."""
    if not options.probe:
        return "the probe is off"
    if how := keeps_probe_out(command):
        return f"{how} keeps the probe out"
    if not (nsys.profile_has("--nvtx-capture") and "repeat" in nsys.profile_help):
        return f"nsys {nsys.version} cannot record two windows"
    if any(_OF_CAPTURE.match(word) for word in options.nsys_args):
        return "--nsys-arg says when to record"
    if options.per_rank or any(environment.get(name, "1") not in ("", "0", "1") for name in _SIZES):
        return "there are several processes"
    of_one = ("clocks", "calibrate", "gpu_metrics", "memory", "python", "gil", "lines")
    other = {"--" + name.replace("_", "-"): getattr(options, name) for name in of_one}
    if used := next((name for name, on in other.items() if on), ""):
        return f"{used} goes with one window only"
    words = list(command)
    if not re.fullmatch(r"python[\d.]*", Path(words[0]).name):
        return f"{Path(words[0]).name} is not Python"
    if words[1:2] == ["-m"] and words[2:3] and words[2] in LAUNCHERS:
        return "there are several processes"
    return "" if _can_send(words[0], environment) else "its Python does not start the probe"


def _can_send(python: str, environment: Mapping[str, str]) -> bool:
    """Return whether this Python can send the range that opens a window: ask it, without a trace of the question."""
    asked = {n: v for n, v in environment.items() if n not in ("NSYSX_PROBE_DIR", "NSYSX_STEPS")}
    nothing = subprocess.DEVNULL
    try:
        done = subprocess.run(
            [python, "-c", _CHECK], env=asked, stdin=nothing, stdout=nothing, stderr=nothing, timeout=_CHECK_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0

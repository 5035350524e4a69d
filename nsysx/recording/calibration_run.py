"""``nsysx calibrate``: what tracing adds to each class of call on this machine, and how fast the GPU multiplies matrices.

It is measured once. The result is a JSON file in the user's cache, one per GPU, driver and nsys version. ``nsysx run`` gets it
from ``known`` and puts it into NAME.run.json as ``machine_profile``. The report subtracts those costs, and compares matrix
products with the fastest rate measured here.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sqlite3
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nsysx.catalogue import Call
from nsysx.errors import EXIT_RUN_FAILED, NsysxError
from nsysx.inject.nsysx_probe import calibration
from nsysx.recording.recording_bounds import CALIBRATION_COMMAND_S, CALIBRATION_PROCESSES, MOST_IN_PLACE_TIMES

SCHEMA = "nsysx.tracing_costs/1"
#: Classes of CUDA runtime calls, each with a text that its names contain; the first that matches counts.
_CLASSES = (
    (Call.LAUNCH, "LaunchKernel"),
    (Call.COPY, "Memcpy"),
    (Call.MEMSET, "Memset"),
    (Call.SYNC, "Synchronize"),
    (Call.EVENT, "Event"),
)
_CALLS = (*(name for name, _ in _CLASSES), Call.OTHER)


def folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder in which machine profiles are kept."""
    cache = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".cache")
    return Path(cache) / "nsysx"


def gpu_and_driver() -> tuple[str, str] | None:
    """Return the name and driver version of the first GPU, or None if there is none."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        output = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout
        name, _, version = output.partition("\n")[0].rpartition(",")
        if name.strip():
            return name.strip(), version.strip()
    return None


def profile_path(gpu: str, driver_version: str, nsys_version: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the profile for one GPU, driver and nsys version."""
    key = re.sub(r"[^\w.]+", "-", f"{gpu}-{driver_version}-nsys-{nsys_version}")
    return folder(environ) / f"tracing-{key}.json"


def profile_of_machine(nsys_version: str, environ: Mapping[str, str] = os.environ) -> dict[str, Any] | None:
    """Return the profile measured on this machine with this nsys, or None if there is none. Never raises."""
    if not any(folder(environ).glob("tracing-*.json")):  # without a profile, no run has to start nvidia-smi
        return None
    machine = gpu_and_driver()
    if machine is None:
        return None
    with contextlib.suppress(OSError, ValueError):
        profile = json.loads(profile_path(*machine, nsys_version, environ).read_text(encoding="utf-8"))
        if isinstance(profile, dict) and profile.get("schema") == SCHEMA:
            return profile
    return None


def calibrate(nsys: Path, nsys_version: str, say: Callable[[str], object], python: str | None = None) -> Path:
    """Measure this machine, save the profile and return its path.

    Raises NsysxError (exit code 125) if nothing could be measured, and OSError if the profile cannot be written.
    """
    machine = gpu_and_driver()
    if machine is None:
        raise _failed("no NVIDIA GPU answers here", "nsysx doctor says what is missing")
    interpreter = python or shutil.which("python") or shutil.which("python3") or "python3"
    runs = []
    with tempfile.TemporaryDirectory(prefix="nsysx-calibrate-") as scratch:
        for number in range(CALIBRATION_PROCESSES):
            say(f"calibrate: process {number + 1} of {CALIBRATION_PROCESSES}")
            runs.append(_measure(nsys, interpreter, Path(scratch) / str(number)))
    gpu, version = machine
    header = {"schema": SCHEMA, "gpu": gpu, "driver": version, "nsys": nsys_version, "torch": runs[0]["torch"]}
    target = profile_path(gpu, version, nsys_version)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch_file = target.with_suffix(f".{os.getpid()}.tmp")
    scratch_file.write_text(json.dumps({**header, **costs(runs)}, indent=1), encoding="utf-8")
    scratch_file.replace(target)
    return target


def _failed(what: str, hint: str) -> NsysxError:
    return NsysxError(f"calibrate: {what}", slug="calibrate", hint=hint, exit_code=EXIT_RUN_FAILED)


def _measure(nsys: Path, python: str, stem: Path) -> dict[str, Any]:
    """Run the measuring program once under nsys; return its timings and the calls that its traced steps made."""
    result, report, sqlite = (stem.with_suffix(s) for s in (".json", ".nsys-rep", ".sqlite"))
    program = [python, str(Path(calibration.__file__)), str(result)]
    options = "--trace=cuda,nvtx --sample=none --cpuctxsw=none --cuda-graph-trace=node"
    window = "--capture-range=cudaProfilerApi --capture-range-end=stop --force-overwrite=true"
    _call([str(nsys), "profile", *options.split(), *window.split(), f"--output={report}", *program])
    if not result.exists():
        raise _failed("the measuring program did not finish", f"Try it alone: {' '.join(program)}")
    _call([str(nsys), "export", "--type=sqlite", "--force-overwrite=true", f"--output={sqlite}", str(report)])
    timings: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    try:
        with contextlib.closing(sqlite3.connect(f"file:{sqlite}?mode=ro", uri=True)) as export:
            return {**timings, **traced_calls(export)}
    except sqlite3.Error as error:
        raise _failed(f"the export cannot be read: {error}", "nsysx doctor tries a capture") from error


def _call(words: Sequence[str]) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=CALIBRATION_COMMAND_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise _failed(f"{Path(words[0]).name} {words[1]}: {error}", "nsysx doctor says what is missing") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1][:300]
        raise _failed(f"{Path(words[0]).name} {words[1]} ended with {done.returncode}: {last}", "See nsysx doctor")


def traced_calls(export: sqlite3.Connection) -> dict[str, Any]:
    """Return ``counts`` (calls per class in the traced steps) and the median ``launch_ns`` and ``other_ns``.

    Raises NsysxError if the export lacks the range of the traced steps, or launches inside it.
    """
    window = "SELECT start, end FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId WHERE coalesce(text, value) = ?"
    spans = export.execute(window, (calibration.STEPS_RANGE,)).fetchall()
    if not spans:
        raise _failed("the capture has no NVTX range", "nsysx doctor tries a capture")
    start, end = spans[-1]
    calls = (
        "SELECT value, r.end - r.start FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds ON id = nameId "
        "WHERE r.start >= ? AND r.start < ?"
    )
    counts = dict.fromkeys(_CALLS, 0)
    launches, others = [], []
    for name, ns in export.execute(calls, (start, end)):
        kind = next((k for k, part in _CLASSES if part in name), Call.OTHER)
        counts[kind] += 1
        if kind == Call.LAUNCH:
            launches.append(ns)
        elif kind == Call.OTHER:
            others.append(ns)
    if not launches:
        raise _failed("the capture has no launches", "nsysx doctor tries a capture")
    other = statistics.median(others) if others else 0
    return {"counts": counts, "launch_ns": statistics.median(launches), "other_ns": other}


def costs(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what tracing adds to each class of event (ns): the median over the runs, with the lowest and the highest.

    The untraced time of each run is first scaled to the host's speed during tracing. A call in a program costs more than one
    in a loop; the factor is what tracing added to the steps, divided by the sum over their calls.
    """
    added_per_run: dict[str, list[float]] = {}
    for run in runs:
        added = {name: _added(pair) for name, pair in run["calls"].items()}
        added["range"] = added.pop("range_pair") / 2
        added["graph_node"] = max(added.pop("graph_nodes") - added[Call.GRAPH_LAUNCH], 0.0) / calibration.NODES
        added["nested"] = added[Call.OTHER]
        counts = {name: n / run["steps"] for name, n in run["counts"].items()}
        whole = sum(added[name] * n for name, n in counts.items())
        in_place = min(max(_added(run["step"]) / whole, 1.0), MOST_IN_PLACE_TIMES) if whole > 0 else 1.0
        for name, ns in added.items():
            added_per_run.setdefault(name, []).append(ns * (in_place if name in _CALLS else 1.0))
    return {
        "launch_ns": statistics.median(run["launch_ns"] for run in runs),
        "other_ns": statistics.median(run["other_ns"] for run in runs),
        "products": _fastest(runs),
        "costs": {
            name: {"ns": round(statistics.median(ns)), "low_ns": round(min(ns)), "high_ns": round(max(ns))}
            for name, ns in added_per_run.items()
        },
    }


def _fastest(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return number format -> FLOP/s of a large GEMM in the fastest run: what slows a run is not the device."""
    fastest: dict[str, float] = {}
    for run in runs:
        for name, rate in run.get("products", {}).items():
            fastest[name] = max(rate, fastest.get(name, 0.0))
    return fastest


def _added(pair: Mapping[str, Sequence[float]]) -> float:
    """Return what tracing added to one call, at the host's speed during tracing (in the unit of ``pair``)."""
    (off, slow_off), (on, slow_on) = pair["off"], pair["on"]
    return max(on - off * slow_on / slow_off, 0.0) if slow_off else max(on - off, 0.0)

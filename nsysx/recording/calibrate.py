"""``nsysx calibrate``: what tracing adds to each class of call on this machine, and how fast it multiplies; measured once and kept.

The result is a JSON file in the user's cache, one per GPU, driver and nsys version. ``known`` gives it to ``nsysx run``, which
puts it into NAME.run.json as ``machine_profile``; the reader takes those costs out of what it reports, and holds products
against the fastest.
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

from nsysx.errors import EXIT_RUN_FAILED, NsysxError
from nsysx.inject import nsysx_calibration

SCHEMA = "nsysx.tracing_costs/1"
#: Processes, each of which is timed without and with tracing; one more does not change the median.
_PROCESSES = 3
#: A process starts, measures and is exported in a quarter of this.
_PATIENCE_S = 120
#: Calls between other work cost more than calls in a loop that is all in the cache, up to this many times.
_MOST_IN_PLACE = 3.0
#: The classes whose calls the traced steps are made of, by patterns of their names (SQL LIKE); the first that matches counts.
_NAMES = (
    ("launch", "%LaunchKernel%"),
    ("copy", "%Memcpy%"),
    ("memset", "%Memset%"),
    ("sync", "%Synchronize%"),
    ("event", "%Event%"),
)
_CALLS = (*(name for name, _ in _NAMES), "other")


def folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where profiles of machines are kept."""
    cache = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".cache")
    return Path(cache) / "nsysx"


def driver() -> tuple[str, str] | None:
    """Return name and driver version of the first GPU, None where there is none."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        said = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout
        name, _, version = said.partition("\n")[0].rpartition(",")
        if name.strip():
            return name.strip(), version.strip()
    return None


def place(gpu: str, driver_version: str, nsys_version: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the file of one machine."""
    key = re.sub(r"[^\w.]+", "-", f"{gpu}-{driver_version}-nsys-{nsys_version}")
    return folder(environ) / f"tracing-{key}.json"


def known(nsys_version: str, environ: Mapping[str, str] = os.environ) -> dict[str, Any] | None:
    """Return what was measured on this machine with this nsys, None when nothing was. Never raises."""
    if not any(folder(environ).glob("tracing-*.json")):  # spares every run the question to the driver
        return None
    gpu_and_driver = driver()
    if gpu_and_driver is None:
        return None
    with contextlib.suppress(OSError, ValueError):
        told = json.loads(place(*gpu_and_driver, nsys_version, environ).read_text(encoding="utf-8"))
        if isinstance(told, dict) and told.get("schema") == SCHEMA:
            return told
    return None


def calibrate(nsys: Path, nsys_version: str, say: Callable[[str], object], python: str | None = None) -> Path:
    """Measure, keep the result and return its file. Errors: NsysxError, exit code 125, when nothing could be measured."""
    gpu_and_driver = driver()
    if gpu_and_driver is None:
        raise _failed("no NVIDIA GPU answers here", "nsysx doctor says what is missing")
    interpreter = python or shutil.which("python") or shutil.which("python3") or "python3"
    runs = []
    with tempfile.TemporaryDirectory(prefix="nsysx-calibrate-") as scratch:
        for number in range(_PROCESSES):
            say(f"calibrate: process {number + 1} of {_PROCESSES}")
            runs.append(_measure(nsys, interpreter, Path(scratch) / str(number)))
    gpu, version = gpu_and_driver
    told = {"schema": SCHEMA, "gpu": gpu, "driver": version, "nsys": nsys_version, "torch": runs[0]["torch"]}
    target = place(gpu, version, nsys_version)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch_file = target.with_suffix(f".{os.getpid()}.tmp")
    scratch_file.write_text(json.dumps({**told, **costs(runs)}, indent=1), encoding="utf-8")
    scratch_file.replace(target)
    return target


def _failed(what: str, hint: str) -> NsysxError:
    return NsysxError(f"calibrate: {what}", slug="calibrate", hint=hint, exit_code=EXIT_RUN_FAILED)


def _measure(nsys: Path, python: str, stem: Path) -> dict[str, Any]:
    """Run the program under nsys once; return what it measured and which calls its traced steps made."""
    result, report, sqlite = (stem.with_suffix(s) for s in (".json", ".nsys-rep", ".sqlite"))
    program = [python, str(Path(nsysx_calibration.__file__)), str(result)]
    options = "--trace=cuda,nvtx --sample=none --cpuctxsw=none --cuda-graph-trace=node"
    window = "--capture-range=cudaProfilerApi --capture-range-end=stop --force-overwrite=true"
    _call([str(nsys), "profile", *options.split(), *window.split(), f"--output={report}", *program])
    if not result.exists():
        raise _failed("the program that measures did not come to its end", f"Try it alone: {' '.join(program)}")
    _call([str(nsys), "export", "--type=sqlite", "--force-overwrite=true", f"--output={sqlite}", str(report)])
    told: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    try:
        with contextlib.closing(sqlite3.connect(f"file:{sqlite}?mode=ro", uri=True)) as rows:
            return {**told, **traced_calls(rows)}
    except sqlite3.Error as error:
        raise _failed(f"the export cannot be read: {error}", "nsysx doctor tries a capture") from error


def _call(words: Sequence[str]) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise _failed(f"{Path(words[0]).name} {words[1]}: {error}", "nsysx doctor says what is missing") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1][:300]
        raise _failed(f"{Path(words[0]).name} {words[1]} ended with {done.returncode}: {last}", "See nsysx doctor")


def traced_calls(rows: sqlite3.Connection) -> dict[str, Any]:
    """Return the calls of each class in the traced steps, and how long launches and trivial calls are (ns)."""
    window = "SELECT start, end FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId WHERE coalesce(text, value) = ?"
    spans = rows.execute(window, (nsysx_calibration.STEPS_RANGE,)).fetchall()
    if not spans:
        raise _failed("the capture has no NVTX range", "nsysx doctor tries a capture")
    start, end = spans[-1]
    calls = (
        "SELECT value, r.end - r.start FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds ON id = nameId "
        "WHERE r.start >= ? AND r.start < ?"
    )
    counts = dict.fromkeys(_CALLS, 0)
    launches, others = [], []
    for name, ns in rows.execute(calls, (start, end)):
        kind = next((k for k, pattern in _NAMES if pattern.strip("%") in name), "other")
        counts[kind] += 1
        if kind == "launch":
            launches.append(ns)
        elif kind == "other":
            others.append(ns)
    if not launches:
        raise _failed("the capture has no launches", "nsysx doctor tries a capture")
    other = statistics.median(others) if others else 0
    return {"counts": counts, "launch_ns": statistics.median(launches), "other_ns": other}


def costs(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what each class of event adds (ns): the median of the runs, and their lowest and highest.

    Of each run the time without tracing is first brought to the host's speed while it traced. Calls in a program cost more
    than calls in a loop; how much more is what the traced steps took beyond the sum over their calls.
    """
    seen: dict[str, list[float]] = {}
    for run in runs:
        added = {name: _added(pair) for name, pair in run["calls"].items()}
        added["range"] = added.pop("range_pair") / 2
        added["graph_node"] = max(added.pop("graph_nodes") - added["graph_launch"], 0.0) / nsysx_calibration.NODES
        added["nested"] = added["other"]
        counts = {name: n / run["steps"] for name, n in run["counts"].items()}
        whole = sum(added[name] * n for name, n in counts.items())
        in_place = min(max(_added(run["step"]) / whole, 1.0), _MOST_IN_PLACE) if whole > 0 else 1.0
        for name, ns in added.items():
            seen.setdefault(name, []).append(ns * (in_place if name in _CALLS else 1.0))
    return {
        "launch_ns": statistics.median(run["launch_ns"] for run in runs),
        "other_ns": statistics.median(run["other_ns"] for run in runs),
        "products": _fastest(runs),
        "costs": {
            name: {"ns": round(statistics.median(ns)), "low_ns": round(min(ns)), "high_ns": round(max(ns))}
            for name, ns in seen.items()
        },
    }


def _fastest(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return number format -> FLOP/s of a large product: of the fastest run, for what slows a run is not the device."""
    fastest: dict[str, float] = {}
    for run in runs:
        for name, rate in run.get("products", {}).items():
            fastest[name] = max(rate, fastest.get(name, 0.0))
    return fastest


def _added(pair: Mapping[str, Sequence[float]]) -> float:
    """Return what tracing added to one call, at the host's speed while it traced."""
    (off, slow_off), (on, slow_on) = pair["off"], pair["on"]
    return max(on - off * slow_on / slow_off, 0.0) if slow_off else max(on - off, 0.0)

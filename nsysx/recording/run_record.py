"""Makes NAME.run.json: what was run and how, and what the probe of each process reported. The report reads it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from nsysx import __version__
from nsysx.inject.nsysx_probe import bootstrap
from nsysx.inject.nsysx_probe import ranges as vocabulary
from nsysx.recording import calibration_run, default_counters
from nsysx.recording.find_nsys import Nsys
from nsysx.recording.probes import armed, final
from nsysx.recording.record import Recording
from nsysx.recording.reports import output_lines
from nsysx.recording.run_options import RunOptions
from nsysx.recording.run_outputs import Outputs, RunResult
from nsysx.recording.typed_command import keeps_probe_out
from nsysx.redaction import redacted

RUN_SCHEMA = "nsysx.run/1"


#: Matches "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build ...".
_DRIVER = re.compile(r"Kernel Module\b.*?\s(\d+(?:\.\d+)+)")


def _text(word: str) -> str:
    """Return a command-line word as text, with bytes that are not UTF-8 as \\xNN."""
    return os.fsencode(word).decode("utf-8", "backslashreplace")


def driver_version(version_file: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Return the version of NVIDIA's kernel driver, which nsys does not record; None where it is unknown."""
    try:
        match = _DRIVER.search(version_file.read_text(errors="replace"))
    except OSError:
        return None
    return match[1] if match else None


def run_record(
    command: Sequence[str], options: RunOptions, nsys: Nsys, recording: Recording, result: RunResult
) -> dict[str, Any]:
    """Return the content of NAME.run.json, without what the probes reported."""
    started = datetime.fromtimestamp(recording.start_ns / 1e9, timezone.utc)
    warnings = [line for line in output_lines(recording.output) if re.match(r"(?i)warning|error|fatal", line)]
    record: dict[str, Any] = {
        "schema": RUN_SCHEMA,
        "tool": {"version": __version__},
        "command": [_text(word) for word in redacted(command)],
        **({"launcher": [_text(word) for word in redacted(result.launcher)]} if result.launcher else {}),
        "exit_code": recording.code,
        **({"stopped": True} if recording.stopped else {}),
        "target_started": recording.started,
        "wall_ns": recording.end_ns - recording.start_ns,
        "started_utc": started.isoformat(timespec="milliseconds"),
        "nsys": {
            "path": str(nsys.path),
            "version": nsys.version,
            "command": redacted(recording.nsys_command),
            "said": warnings[:20],
            "trouble": recording.trouble or None,
            "stand_in": recording.stand_in,  # the process that nsys started in place of the command: not part of the program
            **({"range_holder": recording.range_holder} if recording.range_holder else {}),  # nor is this one
        },
        "options": {
            name: _text(str(v)) if isinstance(v, Path | str) else redacted(v) if name == "nsys_args" else v
            for name, v in asdict(options).items()
        },
        "files": {
            "report": result.report.name if result.report else None,
            "sqlite": result.sqlite.name if result.sqlite else None,
            "html": None,
            **({"cold": result.cold.name} if result.cold else {}),
        },
    }
    if version := driver_version():
        record["driver_version"] = version
    if machine := calibration_run.profile_of_machine(nsys.version):
        record["machine_profile"] = machine
    if (hz := default_counters.frequency(options)) or recording.metrics_refused:
        record["gpu_metrics"] = {
            "refused": recording.metrics_refused or None,
            "hz": None if recording.metrics_refused else hz,
        }
    return record if recording.clocks is None else record | {"clocks": recording.clocks}


#: What helps if the probe lacks a package.
_FIXES = {
    "nvtx": "pip install nvtx, in the Python that runs the command",
    "spawn": "start it by spawn: multiprocessing.set_start_method('spawn')",
    "torch": "the probe follows PyTorch only; for the rest use NVTX ranges of your own",
}


def probe_off(
    probes: Sequence[Mapping[str, Any]], command: Sequence[str], options: RunOptions
) -> dict[str, str] | None:
    """Return why no process has ranges from the probe, and what helps, as ``reason`` and ``fix``; None if one has them."""
    counts = [probe["ranges"] for probe in probes if isinstance(probe.get("ranges"), dict)]
    if any(isinstance(n := count.get(kind), int) and n > 0 for count in counts for kind in vocabulary.WORK):
        return None
    if not options.probe:
        return {"reason": "turned off by --no-probe", "fix": "run without --no-probe"}
    if not probes:
        if how := keeps_probe_out(command):
            return {"reason": f"{how} keeps the probe out of Python", "fix": f"run without {how.option}"}
        reason = "no Python with the probe was started (python -I, -E, -S, env -i and a sitecustomize that comes first keep it out)"
        return {"reason": reason, "fix": "if the program is not Python, add NVTX ranges to it"}
    if not all(final(p) for p in probes):  # its last counts are missing, not its ranges
        return None
    reasons = [
        (str(p.get("reason") or "; ".join(map(str, p.get("errors") or ())) or ""), p.get("lacks")) for p in probes
    ]
    reason, lacks = next(((text, lacks) for text, lacks in reasons if text and lacks != "torch"), reasons[0])
    lacks = "spawn" if reason == bootstrap.FORKED else lacks
    forked: int = sum(n for p in probes if isinstance(n := p.get("forks"), int))
    if not reason and forked:
        reason = f"no step and no module was seen outside of {forked} forked processes, of which nsys records nothing"
        lacks = "spawn"
    return {
        "reason": reason or "no step and no module was seen",
        "fix": _FIXES.get(str(lacks), "nsysx doctor tells more"),
    }


def note_html(outputs: Outputs) -> None:
    """Enter the name of the HTML page into NAME.run.json. Raises OSError or ValueError if that file cannot be read or written."""
    record = json.loads(outputs.run.read_text(encoding="utf-8"))
    record["files"]["html"] = outputs.html.name
    temporary = outputs.run.with_name(f".{outputs.run.name}.new")
    temporary.write_text(json.dumps(record, indent=1), encoding="utf-8")
    temporary.chmod(outputs.run.stat().st_mode & 0o777)
    temporary.replace(outputs.run)


def _steps(probe: Mapping[str, Any]) -> int:
    return int(probe["steps"].get("count", 0)) if isinstance(probe.get("steps"), dict) else 0


def window_missed(probes: Sequence[Mapping[str, Any]]) -> str | None:
    """Return why a window of steps never opened, and what would open it; None if a process opened it or none was asked for."""
    senders = [p for p in probes if armed(p)]
    missed = [p for p in senders if isinstance(p.get("window_missed"), str)]
    missed = [p for p in missed if final(p)]  # of another one nothing is known after torch's import
    opened = [
        p for p in senders if not isinstance(p.get("window_missed"), str) and _steps(p)
    ]  # a launcher makes no steps
    if not missed or opened or any(not final(p) for p in senders):
        return None
    steps = [_steps(p) for p in missed]
    return str(missed[steps.index(max(steps))]["window_missed"])


def other_processes(probes: Sequence[Mapping[str, Any]]) -> str | None:
    """Return that processes made steps beside the one that has the windows; None if none did."""
    others = [p for p in probes if p.get("windows_of") and isinstance(p.get("steps"), dict) and p["steps"].get("count")]
    if not others:
        return None
    which = f"process {others[0].get('pid')}" if len(others) == 1 else f"{len(others)} processes"
    owner = f"process {others[0]['windows_of']}, which made them first"
    return f"{which} made steps outside of the windows, which are those of {owner}; nsysx run one training at a time records it"

"""What ``act`` runs: nsysx itself in a process of its own, which ends with the request or with the server."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio

from nsysx.errors import EXIT_BUDGET, EXIT_INCONCLUSIVE, NsysxError
from nsysx.reading.sidecar_files import run_json
from nsysx.render.safe_text import clean
from nsysx.render.small_json import Json, cut, text_of
from nsysx.serving.serving_bounds import GRACE_S, LAST_LINES_BYTES, PROGRESS_EACH_S
from nsysx.serving.shelf import LoadedReport
from nsysx.serving.tools import READS, RUNS, WRITES, wrong

#: What is told of one change that was tried, and of a comparison.
_OF_TRIAL = ("change", "outcome", "verdict", "step_ns", "low_ns", "high_ns", "reason", "where", "paste")
_OF_COMPARISON = ("verdict", "sentence", "before_ns", "after_ns", "difference_ns", "low_ns", "high_ns", "notes")
#: How a line begins in which ``nsysx run`` names its files, above its answer, and one with an error.
_WROTE, _PROBLEM = "nsysx: wrote ", "nsysx: error: "

Tell = Callable[[float, str], Awaitable[None]]


def refuse_unless_allowed(what: str, allowed: Sequence[str]) -> None:
    """Raise NsysxError unless the user lets the server do this."""
    if what not in READS and what not in allowed:
        hint = f"The user starts the server with: nsysx mcp --allow {what}"
        raise NsysxError(f"act {what} runs programs, which is not allowed here", slug="mcp-not-allowed", hint=hint)


def words_of(what: str, loaded: LoadedReport | None, asked: Mapping[str, Any]) -> list[str]:
    """Return the words after ``nsysx`` for an action. Raises NsysxError for what it lacks."""
    options = [str(word) for word in asked.get("options", ())]
    if "--" in options:
        raise wrong("options: -- begins a command", "Give it as command")
    writes = [word for word in options if word.partition("=")[0] in WRITES or re.match(r"-\w*f", word)]
    if what in READS and writes:
        raise wrong(f"options: {clean(writes[0], 60)} writes files", f"The answer of {what} is the result")
    if what in RUNS:
        command = _command(loaded, asked)
        if what == "record":
            output = ["-o", asked["output"]] if asked.get("output") else []
            return ["run", *output, *options, "--", *command]
    if loaded is None:
        raise wrong("no report is loaded", "Call load(path) first")
    changes = [word for name in asked.get("change", ()) for word in ("--change", name)]
    report = str(loaded.path)
    if what == "try":
        return ["try", "--yes", "--json", "-", *changes, *options, report, "--", *_command(loaded, asked)]
    if what == "compare":
        if not asked.get("after"):
            raise wrong("compare needs after", "The report of the changed program")
        return ["compare", report, asked["after"], "--json", "-", *changes, *options]
    if not asked.get("budget"):
        raise wrong("check needs budget", f"nsysx check {shlex.quote(report)} --init writes one")
    return ["check", report, "--budget", asked["budget"], "--json", "-", *options]


def _command(loaded: LoadedReport | None, asked: Mapping[str, Any]) -> list[str]:
    words = [str(word) for word in asked.get("command", ())]
    if len(words) == 1:
        words = shlex.split(words[0])
    if not words and loaded is not None:
        record = run_json(loaded.files[0])
        words = [str(word) for word in record.get("launcher") or record.get("command") or ()]
    if not words:
        raise wrong("which command?", 'Give it as command, such as ["python", "train.py"]')
    return words


async def run(what: str, words: Sequence[str], folder: Path | None, tell: Tell) -> str:
    """Run ``nsysx WORDS`` and return what came of it as JSON. It is ended with the request. Raises NsysxError if it failed."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "nsysx.serving.ends_with_server", str(os.getpid()), *words], stdin=subprocess.DEVNULL,
            stdout=out, stderr=errors, start_new_session=True, cwd=folder,
        )  # fmt: skip
        began = time.monotonic()
        try:
            while process.poll() is None:
                await anyio.sleep(PROGRESS_EACH_S if time.monotonic() - began > PROGRESS_EACH_S else 0.05)
                await tell(round(time.monotonic() - began, 1), _last_line(errors) or f"nsysx {what} runs")
        finally:
            _end(process)
        out.seek(0)
        text = out.read().decode("utf-8", "replace")
        last_line, problem, wrote = _last_line(errors), _last_line(errors, _PROBLEM), _last_line(errors, _WROTE)
    recorded = what == "record" and ".nsys-rep" in wrote
    # 1 and 5 are answers of check; a recorded command has its own exit code.
    if (
        process.returncode
        and not (what == "check" and process.returncode in (EXIT_BUDGET, EXIT_INCONCLUSIVE))
        and not recorded
    ):
        message = problem or last_line or f"nsysx {what} ended with {process.returncode}"
        raise NsysxError(clean(message, 600), slug="mcp-act", exit_code=process.returncode)
    return _shortened(what, text, f"wrote {wrote}" if recorded else last_line, process.returncode)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started: it is asked first, because it ends the programs that it runs itself."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_line(errors: Any, begin: str = "") -> str:
    """Return the last line on stderr that begins so, without that; "" where there is none."""
    size = os.fstat(errors.fileno()).st_size
    end = os.pread(errors.fileno(), LAST_LINES_BYTES, max(0, size - LAST_LINES_BYTES)).decode("utf-8", "replace")
    lines = (line.strip() for line in reversed(end.splitlines()))
    return next((clean(line.removeprefix(begin), 600) for line in lines if line and line.startswith(begin)), "")


def _shortened(what: str, text: str, last_line: str, code: int) -> str:
    """Return the result of an action in 2.5 kB."""
    content: Json = {"act": what, "exit_code": code, "said": cut(last_line, 300)}
    try:
        result = json.loads(text)
    except ValueError:
        lines = [cut(line, 160) for line in text.splitlines() if line.strip()]
        return text_of({**content, "lines": lines[:12]})
    if what == "try":
        trials = [*result["trials"], *([result["together"]] if result["together"] else [])]
        content["unchanged_step_ns"] = result["baseline"]["step_ns"]
        content["trials"] = [
            {k: _brief_value(t[k]) for k in _OF_TRIAL if t.get(k) not in (None, "")} for t in trials[:5]
        ]
        content["trials_in_all"] = len(trials)
    elif what == "compare":
        content |= {k: _brief_value(result[k]) for k in _OF_COMPARISON if k in result}
        content["parts"] = [
            {k: p[k] for k in ("kind", "name", "difference_ns", "verdict")} for p in result["parts"][:5]
        ]
    else:
        content["answer"] = {k: _brief_value(v) for k, v in result.items() if not isinstance(v, dict)}
    return text_of(content)


def _brief_value(value: Any) -> Any:
    if isinstance(value, float):
        return round(value)
    if isinstance(value, list):
        return [_brief_value(v) for v in value[:6]]
    if isinstance(value, dict):
        return {k: _brief_value(v) for k, v in value.items() if v not in (None, "", [])}
    return cut(value, 240) if isinstance(value, str) else value

"""Runs each program of the table bare and under the probe, or under a real ``nsysx run``, and tells what is not the same.

Held are output, exit status (death by a signal included), files, and through the output also weights, tracebacks and environment;
further the growth of memory, and the probe's number of steps against the program's own.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import os
import pty
import re
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.starts.cases import ANY, HERE, LAB, Case

ROOT = HERE.parent.parent
INJECT = ROOT / "nsysx" / "inject"
#: ``python -m nsysx`` of this checkout. PYTHONPATH stays the program's own: torch shortens paths in its log by what is in it.
NSYSX = f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r}); runpy.run_module('nsysx', run_name='__main__', alter_sys=True)"
SECONDS = 400
#: Memory may grow by this much more than in the bare run: what the allocator takes at a time, and bytes a step. So 100 bytes a step are
#: seen in a program of 60,000 steps, of which the last 40,000 count.
SLACK_BYTES, BYTES_PER_STEP = 1_500_000, 50
#: So many ranges may be recorded and not counted, or the other way around, where a signal's exception strikes; a report allows as many.
STRUCK_RANGES = 2
#: What Python or nsys writes beside a program.
NOT_ITS_FILES = ("__pycache__", ".tmp")


@dataclass
class Result:
    """What one run left."""

    code: int
    out: bytes
    err: bytes
    files: dict[str, str]
    own: list[int]
    growth: list[tuple[int, int]]
    records: list[dict[str, Any]] = field(default_factory=list)
    #: Ranges and marks of the probe that nsys recorded; None without nsys.
    captured: int | None = None
    trouble: str = ""


@dataclass(frozen=True)
class Deviation:
    """``kind``: changed, lost, miscounted, or seen (changed in what a program sees that looks for the probe, as documented)."""

    case: str
    kind: str
    what: str


class Zygote:
    """A process that has imported torch and forks."""

    def __init__(self) -> None:
        (read, self._write), (self._read, write) = os.pipe(), os.pipe()
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("NSYSX_", "PYTHON"))}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "zygote.py"), str(read), str(write)],
            pass_fds=(read, write), env={**environment, "OMP_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read)
        os.close(write)
        self._answers = os.fdopen(self._read)

    def run(self, **task: Any) -> int:
        """Run a task and return its exit status as `subprocess` does."""
        os.write(self._write, (json.dumps(task) + "\n").encode())
        return os.waitstatus_to_exitcode(int(self._answers.readline()))

    def close(self) -> None:
        """End the process."""
        os.close(self._write)
        self._process.wait()
        self._answers.close()


class Bench:
    """One worker: a folder to run in, and a zygote when the first program needs one. ``nsys``: use real captures with it."""

    def __init__(self, folder: Path, nsys: str = "", fresh: bool = False) -> None:
        self.folder, self.side = folder / "program", folder / "beside"
        self.nsys, self.fresh = nsys, fresh
        self._zygote: Zygote | None = None

    def close(self) -> None:
        """End the zygote."""
        if self._zygote is not None:
            self._zygote.close()

    def _prepare(self, case: Case, probed: bool) -> dict[str, str]:
        for folder in (self.folder, self.side):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        for name, text in {"lab.py": LAB, "main.py": case.program, **case.files}.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        (self.side / "probe").mkdir()
        base = {k: v for k, v in os.environ.items() if not k.startswith(("NSYSX_", "PYTHON"))}
        base |= {"OMP_NUM_THREADS": "1", "PYTHON": sys.executable, "OWN_STEPS": str(self.side / "own"), **case.env}
        path = str(self.folder)
        if probed and not self.nsys:
            path = f"{INJECT}{os.pathsep}{path}"
            base |= {"NSYSX_FORCE": "1", "NSYSX_PROBE_DIR": str(self.side / "probe")}
        return {**base, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, case: Case, probed: bool) -> Result:
        """Run a case once."""
        environment = self._prepare(case, probed)
        out, err = self.side / "out", self.side / "err"
        if not case.command and not self.fresh and not self.nsys:
            self._zygote = self._zygote or Zygote()
            site = str(INJECT / "sitecustomize.py") if probed else ""
            code = self._zygote.run(
                folder=str(self.folder), environment=environment, sitecustomize=site, out=str(out), err=str(err),
                seconds=SECONDS,
            )  # fmt: skip
        else:
            code = self._start(case, probed, environment, out, err)
        result = self._result(code, out.read_bytes(), err.read_bytes())
        if probed and self.nsys:
            _add_capture(result, self.side / "r", case.terminal)
        return result

    def _start(self, case: Case, probed: bool, environment: dict[str, str], out: Path, err: Path) -> int:
        packages = repr([p for p in sys.path if p.endswith("site-packages")])
        known = {"{python}": sys.executable}
        command = [known.get(w, w.replace("{packages}", packages)) for w in case.command or ("{python}", "main.py")]
        if self.nsys and probed:
            run = [sys.executable, "-c", NSYSX, "run", "--no-report", "--nsys", self.nsys, "-o", str(self.side / "r")]
            environment = {**environment, "NSYSX_KEEP": "1"}
            command = [*run, *case.options, "--", *command]
        if case.terminal:
            return _in_terminal(command, self.folder, environment, out, err)
        by_nsysx = bool(probed and self.nsys)
        with out.open("wb") as o, err.open("wb") as e:
            process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdin=subprocess.PIPE, stdout=o, stderr=e,
                preexec_fn=_ignore_interrupts if case.background else None,
            )  # fmt: skip
            try:
                if case.signal and not (by_nsysx and "--then" in case.options):
                    pid = _ready(process, self.side / "own.ready")
                    with contextlib.suppress(ProcessLookupError):  # what it has printed tells why it has ended
                        os.kill(process.pid if by_nsysx else pid, case.signal)
                process.communicate(case.stdin.encode(), timeout=SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return process.returncode

    def _result(self, code: int, out: bytes, err: bytes) -> Result:
        files = {}
        for path in sorted(self.folder.rglob("*")):
            name = str(path.relative_to(self.folder))
            if path.is_file() and not any(part in name for part in NOT_ITS_FILES):
                files[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        own, growth = self.side / "own", self.side / "own.memory"
        records = [json.loads(p.read_text()) for p in sorted((self.side / "probe").glob("probe-*.json"))]
        return Result(
            code, out, err, files,
            _sums(own.read_text()) if own.exists() else [],
            [(int(a), int(b)) for a, b in map(str.split, growth.read_text().splitlines())] if growth.exists() else [],
            records,
        )  # fmt: skip


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _ready(process: subprocess.Popen[bytes], path: Path) -> int:
    """Wait until a program has written its process number to a file, and return it; that of ``process`` if it does not."""
    until = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < until:
        if path.exists() and (text := path.read_text()).endswith("\n"):
            return int(text)
        time.sleep(0.05)
    return process.pid


def _add_capture(result: Result, base: Path, terminal: bool) -> None:
    """Add what a real run left: the probes' reports, and how many of their ranges and marks nsys recorded.

    The lines that nsysx itself says are taken out of the output.
    """
    said = re.compile(rb"(?:^|\r\x1b\[K)nsysx: [^\r\n]*(?:\r*\n)?|\r\x1b\[K", re.MULTILINE)
    result.err = said.sub(b"", result.err)
    if terminal:
        result.out = said.sub(b"", result.out)
    try:
        record = json.loads(base.with_suffix(".run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        result.trouble = f"no run.json: {error}"
        return
    result.records = record["probe"]
    result.trouble = str(record["nsys"]["trouble"] or "")
    sqlite = base.with_suffix(".sqlite")
    if not sqlite.exists():
        result.trouble = result.trouble or "no SQLite export"
        return
    result.captured = sum(_sent_in(path) for path in (sqlite, base.with_suffix(".cold.sqlite")) if path.exists())


def _sent_in(sqlite: Path) -> int:
    """Return how many ranges and marks of the probe a report holds."""
    with contextlib.closing(sqlite3.connect(f"file:{sqlite}?mode=ro", uri=True)) as database:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'NVTX_EVENTS'").fetchone():
            return 0
        domain = "SELECT DISTINCT domainId FROM NVTX_EVENTS WHERE eventType = 75 AND text = 'nsysx'"
        # The range that opens a capture window is none of the program's.
        text = "coalesce(text, (SELECT value FROM StringIds WHERE id = textId), '')"
        which = f"eventType IN (34, 59, 60) AND domainId IN ({domain}) AND {text} <> 'capture-window'"
        return int(database.execute(f"SELECT count(*) FROM NVTX_EVENTS WHERE {which}").fetchone()[0])


def _sums(notes: str) -> list[int]:
    """Return the steps of each process from lines of process and steps."""
    sums: collections.Counter[str] = collections.Counter()
    for process, steps in map(str.split, notes.splitlines()):
        sums[process] += int(steps)
    return sorted(sums.values())


def _in_terminal(command: list[str], folder: Path, environment: dict[str, str], out: Path, err: Path) -> int:
    """Run a command in a terminal of its own; all that it shows goes to ``out``."""
    outside, inside = pty.openpty()
    process = subprocess.Popen(command, cwd=folder, env=environment, stdin=inside, stdout=inside, stderr=inside)
    os.close(inside)
    shown, until = b"", time.monotonic() + SECONDS
    while time.monotonic() < until:
        if select.select([outside], [], [], 0.5)[0]:
            try:
                piece = os.read(outside, 65536)
            except OSError:  # nobody has the terminal open any more
                break
            shown += piece
        elif process.poll() is not None:
            break
    process.wait(timeout=10)
    os.close(outside)
    out.write_bytes(shown)
    err.write_bytes(b"")
    return process.returncode


def _plain(case: Case, text: bytes) -> str:
    shown = text.decode("utf-8", "backslashreplace")
    for pattern, by in case.varies:
        shown = re.sub(pattern, by, shown)
    return shown


def _first_difference(a: str, b: str) -> str:
    """Return where two texts first differ, and some characters of both from there."""
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    begin = max(0, at - 40)
    return f"line {a.count(chr(10), 0, at) + 1}: {a[begin : at + 200]!r} became {b[begin : at + 200]!r}"


def _differs(case: Case, bare: Result, probed: Result) -> list[str]:
    found = []
    for name in ("out", "err"):
        a, b = _plain(case, getattr(bare, name)), _plain(case, getattr(probed, name))
        if a != b:
            found.append(f"std{name} {_first_difference(a, b)}")
    if bare.code != probed.code:
        found.append(f"exit {bare.code} became {probed.code}: {probed.err[-300:]!r}")
    if bare.files != probed.files:
        found.append(f"files: {sorted(set(bare.files.items()) ^ set(probed.files.items()))}"[:300])
    if collections.Counter(bare.own) != collections.Counter(probed.own):
        found.append(f"its own steps {bare.own} became {probed.own}")
    for (before, steps), (after, _) in zip(bare.growth, probed.growth, strict=False):
        if steps and after - before > SLACK_BYTES + BYTES_PER_STEP * steps:
            found.append(f"memory grew by {before} bytes in {steps} steps, and now by {after}")
    return found


def counts(result: Result) -> list[int]:
    """Return the number of steps of each process that has any."""
    return sorted(r["steps"]["count"] for r in result.records if r.get("steps") and r["steps"]["count"])


def judge(case: Case, bare: Result, probed: Result) -> list[Deviation]:
    """Return what deviates between a bare run and one under the probe."""
    differences = _differs(case, bare, probed)
    seen = bool(case.seen) and all(what.startswith("stdout") for what in differences)
    found = [Deviation(case.name, "seen" if seen else "changed", what) for what in differences]
    if seen and not differences:
        found = [Deviation(case.name, "changed", f"it no longer sees the probe: {case.seen}")]
    armed = [r for r in probed.records if r["backend"] != "off"]
    wrong = [r["errors"] for r in probed.records if r["errors"]]
    found += [Deviation(case.name, "lost", f"errors of the probe: {errors}") for errors in wrong]
    wanted = sorted(n for n in bare.own if n)
    if case.ends and wanted and not case.told and not armed:
        reasons = [r["reason"] for r in probed.records]
        return [*found, Deviation(case.name, "lost", f"no process has the probe: {reasons}")]
    if probed.trouble:
        found.append(Deviation(case.name, "lost", probed.trouble))
    if case.windows and probed.captured is not None:  # after the second one it counts no more
        if not any(len(r.get("window_pauses_ns") or ()) == 2 for r in armed):
            pauses = [r.get("window_pauses_ns") for r in armed]
            found.append(Deviation(case.name, "lost", f"no process has two windows: {pauses}"))
        return found  # one that is started anew has ended before it could send all
    if not case.ends:  # the program dies before the probe can write its last counts
        return found
    sent = sum(r["ranges_pushed"] for r in armed)
    # A process that was replaced by another program has sent its last ones in vain, for all that anybody can do.
    least = sum(r["ranges_pushed"] for r in armed if r["ended"])
    slack = STRUCK_RANGES if case.struck else 0
    if probed.captured is not None and not least - slack <= probed.captured <= sent + slack:
        found.append(Deviation(case.name, "lost", f"{probed.captured} of {sent} ranges and marks were recorded"))
    expected = [case.told[0]] if case.told and case.told[0] else [] if case.told else wanted
    if case.name.startswith(("odd", "ways")) and not wanted and not case.told:
        return found
    left = any(
        len(r.get("window_pauses_ns") or ()) == 2 for r in armed
    )  # after its second window the probe counts no more
    if counts(probed) != expected and not left and not (case.told and case.told[0] == ANY):
        rules = [r["steps"]["rule"] for r in armed if r.get("steps")]
        found.append(Deviation(case.name, "miscounted", f"{counts(probed)} for {expected}, by {rules}"))
    return found


def compare(bench: Bench, case: Case) -> list[Deviation]:
    """Run a case bare and under the probe, and return what deviates."""
    return judge(case, bench.run(case, False), bench.run(case, True))


def steady(bench: Bench, case: Case, times: int) -> list[Deviation]:
    """Run a case bare again and again, and return what deviates from its first run: no probe can be blamed for that."""
    first = bench.run(case, False)
    runs = (bench.run(case, False) for _ in range(times - 1))
    return [Deviation(case.name, "unsteady", what) for run in runs for what in _differs(case, first, run)]

"""One run of the program: started in a session of its own, watched step by step, and ended completely once it is measured."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nsysx.errors import EXIT_EMPTY, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, NsysxError
from nsysx.inject.nsysx_probe.changes import Change
from nsysx.recording.environment import probe_environment, users_environment
from nsysx.recording.run_options import RunOptions as RecordingOptions
from nsysx.redaction import redacted
from nsysx.trying.failure import of_log
from nsysx.trying.trial_bounds import (
    FEWEST_BLOCK_PAIRS,
    FEWEST_PROGRAM_STEPS,
    KEPT_LOG_BYTES,
    OTHER_RANKS_END_S,
    RUN_POLL_S,
)
from nsysx.trying.trial_steps import measured_steps, pairs_of, step_of
from nsysx.units import several


@dataclass(frozen=True)
class RunPlan:
    """How many steps warm up and how many are measured; ``seconds``: fewer once they took this long, 0 for never.

    After them changes that can be turned off are, in ``pairs`` pairs of blocks of ``block_steps`` steps. At ``until_s`` (since
    1970, 0: never) the run ends with what it has. ``turning_s``: the changes are turned off after the warm-up, if that is possible,
    and a block has as many steps as take so long; 0: they stay, and ``block_steps`` holds.
    """

    warm: int
    steps: int
    seconds: float = 0.0
    pairs: int = 0
    block_steps: int = 0
    until_s: float = 0.0
    turning_s: float = 0.0

    @property
    def words(self) -> str:
        """Return the plan as the probe reads it."""
        blocks = f"{self.pairs}:{self.block_steps}"
        return f"{self.warm}:{self.steps}:{self.seconds:g}:{blocks}:{self.until_s:.2f}:{self.turning_s:g}"


@dataclass(frozen=True)
class RunTimeouts:
    """How long a run may take (s): to its first step, between steps while it warms up, and between later steps."""

    start_s: float
    warm_up_s: float
    step_s: float
    deadline: float


@dataclass
class TrialRun:
    """What became of one run. ``records`` are those of all ranks that made steps, ``record`` stands for the job.

    ``begun``: steps that began, also if the run was ended before it left a record; ``waited_s``: how long ago the last of them was then.

    It has the times of the slowest rank, the weights and losses of the first one, which is the same in each run, and the peak
    memory of the rank that took most.
    """

    outcome: Literal["measured", "ended", "failed", "hangs", "late"]
    record: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]]
    reason: str
    where: str
    wall_s: float
    start_s: float
    no_torch: bool
    begun: int = 0
    waited_s: float = 0.0

    @property
    def step_ns(self) -> float:
        """Return the step: the median over the means of five blocks of measured steps."""
        return step_of(self.record)

    @property
    def block_pairs(self) -> list[tuple[float, float]]:
        """Return the mean step (ns) of each pair of blocks of this run: without the changes, with them."""
        return pairs_of(self.record)

    @property
    def has_blocks(self) -> bool:
        """Return whether its changes were turned off and on often enough to tell what they do."""
        return len(self.block_pairs) >= FEWEST_BLOCK_PAIRS

    @property
    def turned_off(self) -> bool:
        """Return whether changes were made in its warm-up and turned off then: its step is the unchanged one, its early results are not."""
        return bool(self.record.get("turned_off"))

    @property
    def start_ns(self) -> float:
        """Return what the first steps took more than later ones, by the host's clock."""
        return float(self.record["warm_up_ns"] - self.record["warm"] * self.step_ns)

    @property
    def silence(self) -> str:
        """Return why a run has no measured steps, also where it does not say so itself."""
        if self.outcome == "hangs":
            return f"it hangs: no step for {self.waited_s:.0f} s after {several(self.begun, 'step')}"
        return self.reason or f"it ended after {several(self.begun, 'step')}, with exit code 0"

    @property
    def spread(self) -> tuple[float, float]:
        """Return the 10th and the 90th percentile of the measured steps (ns)."""
        tenths = statistics.quantiles(measured_steps(self.record), n=10, method="inclusive")
        return tenths[0], tenths[-1]


def peak_memory_of(runs: Sequence[TrialRun]) -> int | None:
    """Return the most memory that any of the runs took (bytes), None if none tells it."""
    peaks = [r.record["peak_memory_bytes"] for r in runs if r.record.get("peak_memory_bytes") is not None]
    return max(peaks, default=None)


def require_steps(run: TrialRun) -> None:
    """Raise NsysxError if a run of the unchanged program has no steps that can be measured."""
    if run.outcome == "failed":
        raise _no_steps(f"the unchanged program fails: {run.reason}", f"At {run.where}" if run.where else "")
    steps = run.record.get("steps", 0)
    if run.outcome in ("late", "hangs"):
        what = f"made only {several(run.begun, 'step')}" if run.begun else "made no step"
        raise _no_steps(f"the unchanged program {what} within the budget", "Give it more: --budget")
    if run.no_torch:
        raise _no_steps("the program imports no torch", "Is CMD started with the right Python?")
    if not steps:
        raise _no_steps("the program made no step that the probe can see", "Call nsysx.step() at each step's start")
    if run.outcome == "ended" and steps < FEWEST_PROGRAM_STEPS:
        more = f"the program made {steps} step{'s' if steps != 1 else ''}, too few to measure"
        raise _no_steps(more, f"Let it make at least {FEWEST_PROGRAM_STEPS}")


def _no_steps(message: str, hint: str) -> NsysxError:
    return NsysxError(message, slug="try-steps", hint=hint, exit_code=EXIT_EMPTY)


class Runner:
    """Runs one command, never twice at the same time."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = list(command)
        self.users = users_environment()

    def run(self, changes: Sequence[Change], plan: RunPlan, limits: RunTimeouts) -> TrialRun:
        """Run the command with the changes made. Raises NsysxError if it cannot be started."""
        with tempfile.TemporaryDirectory(prefix="nsysx-try-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            began = time.time()
            process = None
            try:
                process = self._start(folder, changes, plan)
                outcome, waited_s = self._watch(process, folder, plan, limits)
            finally:  # a signal may come between the program's start and its name here, or in the end of the program itself
                try:
                    end_completely(process, folder)
                except KeyboardInterrupt:
                    end_completely(process, folder)
                    raise
            return self._result(process, folder, outcome, began, waited_s)

    def environment(self, folder: Path, changes: Sequence[Change], plan: RunPlan) -> dict[str, str]:
        """Return the environment of a run: that of ``nsysx run`` without a profiler, and the changes."""
        environment = {
            **self.users,
            **probe_environment(RecordingOptions(), self.users, folder),
            "NSYSX_FORCE": "1",
            "NSYSX_TIMING": "1",
            "NSYSX_TRIAL": plan.words,
            "NSYSX_CHANGE": ",".join(change.name for change in changes),
        }
        for change in changes:
            for name, value in change.environment.items():
                environment[name] = value(environment.get(name, ""))
        return environment

    def _start(self, folder: Path, changes: Sequence[Change], plan: RunPlan) -> subprocess.Popen[bytes]:
        with (folder / "output").open("wb") as output:
            try:
                return subprocess.Popen(
                    self.command, env=self.environment(folder, changes, plan), stdin=subprocess.DEVNULL, stdout=output,
                    stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            except FileNotFoundError as error:
                raise NsysxError(
                    f"{redacted(self.command)[0]}: command not found", slug="not-found", exit_code=EXIT_NOT_FOUND
                ) from error
            except OSError as error:
                message = f"{redacted(self.command)[0]}: {error.strerror}"
                raise NsysxError(message, slug="not-executable", exit_code=EXIT_NOT_EXECUTABLE) from error

    def _watch(
        self, process: subprocess.Popen[bytes], folder: Path, plan: RunPlan, limits: RunTimeouts
    ) -> tuple[str, float]:
        """Wait until the steps are measured, the program has ended, or a limit is reached; return which, and s since the last step."""
        steps, moved = 0, time.monotonic()
        while True:
            now = time.monotonic()
            if _all_ranks(folder):
                return "measured", now - moved
            if process.poll() is not None:
                return "ended", now - moved
            if (seen := _steps_begun(folder)) != steps:
                steps, moved = seen, now
            limit = limits.start_s if not steps else limits.warm_up_s if steps <= plan.warm else limits.step_s
            if now - moved > limit:
                return "hangs", now - moved
            if now > limits.deadline:
                return "late", now - moved
            time.sleep(RUN_POLL_S)

    def _result(
        self, process: subprocess.Popen[bytes], folder: Path, outcome: str, began: float, waited_s: float
    ) -> TrialRun:
        records = _records(folder)
        reason = where = ""
        kind: Any = outcome
        status = process.returncode
        if any(r["ended"] in ("measured", "so far") for r in records):
            kind = "measured"  # whatever became of it in its blocks
        elif outcome == "ended" and status:
            kind = "failed"
            reason, where = of_log(_tail(folder / "output"), status)
        elif outcome == "ended" and not records:
            reason = of_log(_tail(folder / "output"), status).reason
        record = _of_job(records)
        first = record.get("first_step_s") or time.time()
        lacks = not records and _no_torch(folder)
        begun = _steps_begun(folder)
        return TrialRun(
            kind,
            record,
            records=records,
            reason=reason,
            where=where,
            wall_s=time.time() - began,
            start_s=first - began,
            no_torch=lacks,
            begun=begun,
            waited_s=waited_s,
        )


def _records(folder: Path) -> list[dict[str, Any]]:
    records = []
    for file in sorted(folder.glob("trial-*.json")):
        with contextlib.suppress(OSError, ValueError):
            records.append(json.loads(file.read_text(encoding="utf-8")))
    return records


def _of_job(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if not records:
        return {}
    first = min(records, key=lambda r: int(r.get("rank") or 0))
    peaks = [peak for r in records if (peak := r.get("peak_memory_bytes")) is not None]
    results = {key: first.get(key) for key in ("weights", "losses")}
    slowest = max(records, key=step_of)
    return {**slowest, **results, "peak_memory_bytes": max(peaks, default=None)}


def _all_ranks(folder: Path) -> bool:
    """Return whether all ranks have measured their steps, or the first one did some time ago."""
    files = list(folder.glob("trial-*.json"))
    records = [r for r in _records(folder) if r["ended"] == "measured"] if files else []
    if not records:
        return False
    return (
        len(records) >= records[0]["ranks"] or time.time() - min(f.stat().st_mtime for f in files) > OTHER_RANKS_END_S
    )


def _steps_begun(folder: Path) -> int:
    """Return the sum over all processes of the steps that they have begun."""
    steps = 0
    for file in folder.glob("beat-*"):
        with contextlib.suppress(OSError, struct.error):
            steps += struct.unpack("=q", file.read_bytes())[0]
    return steps


def _no_torch(folder: Path) -> bool:
    """Return whether Python ran, and no process imported torch."""
    lacking = []
    for file in folder.glob("probe-*.json"):
        with contextlib.suppress(OSError, ValueError):
            lacking.append(json.loads(file.read_text(encoding="utf-8")).get("lacks") == "torch")
    return bool(lacking) and all(lacking)


def _tail(file: Path) -> str:
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - KEPT_LOG_BYTES))
        return opened.read().decode("utf-8", "replace")


def end_completely(process: subprocess.Popen[bytes] | None, folder: Path) -> None:
    """Kill the run's process group and every process that has its environment, such as workers in a session of their own."""
    if process is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for _ in range(20):
        left = list(_with_environment(f"NSYSX_PROBE_DIR={folder}".encode()))
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(RUN_POLL_S)


def _with_environment(entry: bytes) -> list[int]:
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entry in (folder / "environ").read_bytes().split(b"\0") and int(folder.name) != os.getpid():
                pids.append(int(folder.name))
    return pids

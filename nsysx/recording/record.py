"""Runs the command under nsys. nsys may fail at the start, while the command runs, and at the end.

The command is a child of this process wherever possible, so its exit code is known whatever happens to nsys. nsys learns of
the command's end from the stand-in that it started. Nothing here waits for an nsys that does nothing.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nsysx.inject.nsysx_probe import capture_range
from nsysx.recording import default_counters, window_plan
from nsysx.recording.commands import must_descend, profile_command, stand_in_words
from nsysx.recording.environment import of_command
from nsysx.recording.find_nsys import Nsys
from nsysx.recording.follow import Follower, stop
from nsysx.recording.inbox import ENDING, STOPPING, Inbox, ReceivedSignal
from nsysx.recording.limit import RecordingLimit
from nsysx.recording.limiter import Limiter, stop_recording
from nsysx.recording.news import News
from nsysx.recording.nsys_process import NsysProcess
from nsysx.recording.recording_bounds import CTRL_C_GRACE_S, LEAST_TEMPORARY_BYTES, SESSION_LOCK_S, STAND_IN_START_S
from nsysx.recording.run_messages import StatusLine, say
from nsysx.recording.run_options import RunOptions
from nsysx.recording.stand_in_link import StandIn
from nsysx.recording.target import DirectChild, StandInChild, Target
from nsysx.recording.then_stop import Stopper
from nsysx.recording.windows_link import WindowsLink


@dataclass(slots=True)
class Recording:
    """What happened to the command. ``code`` is its exit code as a shell gives it, None if unknown; times are ns since 1970."""

    nsys_command: list[str] = field(default_factory=list)
    code: int | None = None
    ended_by: int = 0  # the signal that ended the command
    started: bool = False
    cannot_execute: int = 0  # errno
    stand_in: int = 0  # process id of the stand-in
    range_holder: int = 0  # that of the process that holds the range of the capture windows
    start_ns: int = 0
    end_ns: int = 0
    output: str = ""
    clocks: dict[str, Any] | None = None
    trouble: str = ""
    metrics_refused: str = ""  # why there are no GPU metrics although they are asked for, or sampled by default
    interrupted: int = 0  # the signal with which the user ended the wait for nsys
    reached: list[dict[str, Any]] = field(default_factory=list)  # what ended at the limit: after_s, by, window
    windows: bool = True  # no second attempt without windows was necessary
    stopped: bool = False  # it ended because its last window was recorded, as --then stop asks


class Recorder:
    """Records one command with one nsys; `run` does everything."""

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        options: RunOptions,
        nsys: Nsys,
        inbox: Inbox,
        environment: Mapping[str, str],
        limit: RecordingLimit | None = None,
    ) -> None:
        self.folder, self.command, self.options, self.nsys, self.inbox = folder, command, options, nsys, inbox
        self.environment, self.limit = dict(environment), limit
        self._for_nsys = dict(environment) if _temporary_folder_serves() else {**environment, "TMPDIR": str(folder)}
        self.recording = Recording()
        self._early: list[ReceivedSignal] = []
        self._link = WindowsLink()

    def run(self) -> Recording:
        """Run nsys around the command until both are done."""
        recording = self.recording
        sampler = None
        if self.options.clocks:
            from nsysx.recording.clock_sampler import Sampler

            sampler = Sampler()
            sampler.start()
        stand_in = StandIn()
        try:
            words = stand_in_words(stand_in.address, self.command)
            # Now and then nsys fails to reach its own agent. Trying again is safe, because the command has not run yet.
            attempts = 2
            while attempts:
                recording.trouble = ""  # that of a failed attempt is no fault of the next one
                recording.nsys_command = profile_command(self.nsys, self.options, self.folder / "report", words)
                profile = NsysProcess(recording.nsys_command, self.folder / "nsys.log", self.inbox, self._for_nsys)
                if self._wait_for_start(profile, stand_in):
                    if self._window_opens(stand_in):
                        self._run_command(profile, stand_in)
                        break
                    stand_in.exit(0)
                    profile.kill()
                    self._without_windows()
                    continue
                recording.output = profile.output()
                profile.kill()
                if recording.interrupted:
                    break
                attempts -= 1
                # The driver may refuse its counters, or another process may hold them.
                if default_counters.frequency(self.options) and (not attempts or _OF_METRICS.search(recording.output)):
                    self.options, attempts = self._without_metrics(recording.output), 2
            recording.output = profile.output()
        finally:
            self._link.close()
            stand_in.close()
            if sampler is not None:
                recording.clocks = sampler.stop()
        return recording

    def _without_metrics(self, output: str) -> RunOptions:
        """Warn why nsys does not sample the GPU's counters, and return the options of a run without them."""
        self.recording.metrics_refused = why = refusal(output)
        asked = "warning: --gpu-metrics" if self.options.gpu_metrics else "no GPU counters"
        say(f"{asked}: {why}; recording without")
        return replace(self.options, gpu_metrics=False, counters=False)

    def _window_opens(self, stand_in: StandIn) -> bool:
        """Open the first of two windows, if there are two; return False where nsys does not take the range that opens it."""
        if self.options.steps != window_plan.WINDOWS:
            return True
        probe_dir = Path(self.environment["NSYSX_PROBE_DIR"])
        opened = self._link.open(stand_in.environment, probe_dir, self.inbox)
        self.recording.range_holder = self._link.pid
        return opened

    def _without_windows(self) -> None:
        """Record everything: without the range, nothing would be."""
        say("this nsys does not take the range that opens its windows; everything is recorded")
        self.options, self.recording.windows = replace(self.options, steps=None), False
        of_windows = {"NSYSX_STEPS", *window_plan.ENVIRONMENT}
        self.environment = {name: value for name, value in self.environment.items() if name not in of_windows}

    def _wait_for_start(self, profile: NsysProcess, stand_in: StandIn) -> bool:
        """Wait until nsys has started the stand-in; False if nsys ended or hangs, or the user ended the wait."""
        began = time.monotonic()
        while profile.process.poll() is None:
            if stand_in.connected(0.01):
                return True
            received = self.inbox.wait(0.01)
            if received is not None and received.number in ENDING:
                self.recording.interrupted = received.number
                return False
            if received is not None and received.number in STOPPING:
                stop()
                profile.wakes()
            elif received is not None and received.number != signal.SIGCONT:
                self._early.append(received)
            profile.look()
            if profile.hangs() or time.monotonic() - began > STAND_IN_START_S:
                what = "does nothing" if profile.hangs() else "is not ready"
                waited = time.monotonic() - began
                self.recording.trouble = f"nsys {what} after {waited:.0f} s"
                return False
        return stand_in.connected(0.0)

    def _start_command(self, stand_in: StandIn) -> Target:
        """Start the command. Raises OSError."""
        given = self.environment | ({capture_range.ADDRESS: self._link.address} if self._link.address else {})
        environment = of_command(self.command, given, stand_in.environment)
        if must_descend(self.options):
            return StandInChild(self.command, environment, stand_in, self.inbox.inherited)
        target = DirectChild(self.command, environment, self.inbox.inherited)
        stand_in.wait(target.pid)
        return target

    def _run_command(self, profile: NsysProcess, stand_in: StandIn) -> None:
        recording = self.recording
        recording.start_ns, recording.stand_in = time.time_ns(), stand_in.pid
        try:
            target = self._start_command(stand_in)
        except OSError as error:
            recording.cannot_execute = error.errno or 0
            recording.trouble = error.strerror or "it cannot be started"
            stand_in.exit(126)
            profile.kill()
            return
        recording.started = True
        profile.not_ours |= {target.pid, self._link.pid}
        for early in self._early:
            target.receive(ReceivedSignal(early.number, by_all=False, from_terminal=False))
        nsys_left = self._attend(target, profile, stand_in)
        recording.end_ns = target.end_ns or time.time_ns()
        status = target.status or 0
        recording.code = None if target.lost else status if status >= 0 else 128 - status
        recording.ended_by = max(-status, 0)
        stand_in.exit(status)
        self._wait_for_report(profile)
        if nsys_left and (code := profile.process.returncode):
            how = f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"
            recording.trouble = f"nsys {how} while the command ran"
        elif nsys_left:
            recording.trouble = "nsys ended while the command ran"

    def _attend(self, target: Target, profile: NsysProcess, stand_in: StandIn) -> bool:
        """Wait for the command's end and pass signals on to it; return whether nsys ended first."""
        nsys_left, follower = False, Follower(target, self.inbox)
        probe_dir = Path(self.environment.get("NSYSX_PROBE_DIR", ""))
        stopper = Stopper(probe_dir) if self.options.then else None
        windows = self.options.steps == window_plan.WINDOWS
        news = News(probe_dir) if windows else None
        limiter = Limiter(self.limit, probe_dir, self.nsys, windows=windows) if self.limit else None
        while target.poll() is None:
            follower.step()
            if news is not None:
                news.look()
            if limiter is not None and not nsys_left:
                limiter.look(profile)
            if stopper is not None:
                stopper.look(target, all_recorded=limiter is not None and limiter.stopped)
            list(stand_in.listen())
            while stand_in.signals:  # sent by nsys itself (--duration), unless a scheduler sent it to every process
                number = stand_in.signals.pop()
                if number not in self.inbox.received:
                    target.receive(ReceivedSignal(number, by_all=False, from_terminal=False))
            stopped = limiter is not None and limiter.stopped
            if not (nsys_left or stopped) and profile.process.poll() is not None and target.poll() is None:
                nsys_left = True
                say("warning: nsys has ended; the command goes on without being recorded")
        while stopper is not None and stopper.waits():
            follower.step()
            stopper.look(target)
        if limiter is not None:
            self.recording.reached = limiter.end()
        self.recording.stopped = stopper is not None and stopper.ended(target.status or 0)
        return nsys_left

    def _wait_for_report(self, profile: NsysProcess) -> None:
        """Wait while nsys and its agent work on the report, until they end or the user ends the wait."""
        recording, ended = self.recording, time.monotonic()
        asked: subprocess.Popen[bytes] | None = None
        profile.wakes()
        with StatusLine() as line:
            while profile.look():
                received = self.inbox.wait(0.05)
                if received is not None and received.number in STOPPING:
                    stop()
                    profile.wakes()
                elif received is not None and received.number in ENDING:
                    if time.monotonic() - ended > CTRL_C_GRACE_S:
                        recording.interrupted = received.number
                        break
                    say("the command has ended; finishing the report. Interrupt again to stop that")
                if profile.hangs():
                    # The report is complete if nsys ended by itself (its agent sometimes stays for some seconds), or if nsys
                    # has printed that it wrote the report, even if it then hung or was killed.
                    if profile.ended_by_itself() or _GENERATED.search(profile.output()):
                        break
                    # One that waits for ever after the command's end may still hold all that it recorded.
                    if asked is None and profile.process.poll() is None:
                        asked = stop_recording(self.nsys, profile)
                        profile.wakes()
                        if asked is not None:
                            continue
                    recording.trouble = "nsys did not come to an end after the command and was stopped"
                    break
                line.show(progress_of(profile.output()))
        profile.kill()  # whatever is left of it
        if asked is not None:
            asked.kill()
            asked.wait()


def _temporary_folder_serves() -> bool:
    """Return whether nsys can work in the temporary folder; if not, it gets the folder beside the results."""
    folder = os.environ.get("TMPDIR") or "/tmp"
    if not Path(folder).is_absolute():  # processes of nsys work in other folders
        return False
    try:
        has_room = shutil.disk_usage(folder).free > LEAST_TEMPORARY_BYTES and os.access(folder, os.W_OK | os.X_OK)
        return has_room and not _is_locked(Path(folder, "nvidia", "nsight_systems"))
    except OSError:
        return False


def _is_locked(folder: Path) -> bool:
    """Return whether an nsys that hangs or was stopped, or another user's, holds what every nsys of this machine waits for in a folder.

    Each nsys locks a file there again and again, for a moment, and waits for it without an end.
    """
    until = time.monotonic() + SESSION_LOCK_S
    for path in folder.glob(f"NSys-SessionManager.lock-{Path('/proc/self/ns/pid').stat().st_ino}-*"):
        with path.open("r+b") as file:
            while True:
                try:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except (BlockingIOError, PermissionError):
                    if time.monotonic() > until:
                        return True
                    time.sleep(0.05)
    return False


#: The last line that nsys prints, after it has written and closed its report.
_GENERATED = re.compile(r"^Generated:\s+\S.*\.nsys-rep\s*$", re.MULTILINE)
#: What nsys prints if it cannot have the counters: its option, the driver's error, missing rights, or DCGM holding them.
_OF_METRICS = re.compile(r"gpu.?metrics|NVGPUCTRPERM|privilege|permission|DCGM", re.IGNORECASE)
#: A line of nsys about what went wrong, and a line about its usage.
_TROUBLE = re.compile(r"illegal|error|insufficient|fail|support|unavailable|gpu.?metrics", re.IGNORECASE)
_USAGE = re.compile(r"^(usage:|Try '|See )")


def refusal(output: str) -> str:
    """Return why nsys did not start, in its own words and on one line."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and not _USAGE.match(line.strip())]
    first = next((i for i, line in enumerate(lines) if _TROUBLE.search(line)), 0)
    lines = lines[first:]
    return " ".join(lines)[:300] or "nsys did not start with this option and did not say why"


def progress_of(output: str) -> str:
    """Return what nsys is doing now, from its output."""
    share = re.findall(r"(\d+)%", output[-400:])
    return f"nsys is writing its report: {share[-1]} %" if share else "nsys is collecting what was recorded"

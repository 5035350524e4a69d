"""Runs the command under nsys: start, the time in which it runs, and the end, each of which may fail on nsys's side.

The command is a child of this process wherever that is possible, so its fate is known whatever becomes of nsys. nsys is told
of its end by the stand-in that it started. Nothing here waits for an nsys that does nothing.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nsysx.recording.commands import must_descend, profile_command, stand_in_words
from nsysx.recording.find_nsys import Nsys
from nsysx.recording.follow import Follower, stop
from nsysx.recording.inbox import ENDING, STOPPING, Came, Inbox
from nsysx.recording.nsys_process import NsysProcess
from nsysx.recording.options import Options
from nsysx.recording.stand_in_link import StandIn
from nsysx.recording.talk import Passing, say
from nsysx.recording.target import Below, Own, Target

#: nsys takes half a second to start the stand-in, several from a cold network drive; it is given this if it works on it.
START_S = 60.0
#: A second Ctrl-C that comes so soon after the command's end was meant for the command.
_GRACE_S = 1.0


@dataclass(slots=True)
class Recording:
    """How the profiled command went. ``code`` is its own, as a shell gives it, None when it is not known; times are ns since 1970."""

    nsys_command: list[str] = field(default_factory=list)
    code: int | None = None
    started: bool = False
    cannot_execute: int = 0  # errno
    stand_in: int = 0  # its process id
    start_ns: int = 0
    end_ns: int = 0
    said: str = ""
    clocks: dict[str, Any] | None = None
    trouble: str = ""
    metrics_refused: str = ""  # why there are no GPU metrics although they were asked for
    interrupted: int = 0  # the signal with which the user ended the wait for nsys


class Recorder:
    """One command under one nsys; `run` does it all."""

    def __init__(self, folder: Path, command: Sequence[str], options: Options, nsys: Nsys, inbox: Inbox) -> None:
        self.folder, self.command, self.options, self.nsys, self.inbox = folder, command, options, nsys, inbox
        self.recording = Recording()
        self._early: list[Came] = []

    def run(self, environment: Mapping[str, str]) -> Recording:
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
            options = self.options
            # nsys now and then fails to reach its own agent; that is safe to repeat, for nothing has run.
            attempts = 2
            while attempts:
                recording.nsys_command = profile_command(self.nsys, options, self.folder / "report", words)
                profile = NsysProcess(recording.nsys_command, self.folder / "nsys.log", self.inbox, environment)
                if self._wait_for_start(profile, stand_in):
                    self._run_command(profile, stand_in)
                    break
                recording.said = profile.said()
                profile.kill()
                if recording.interrupted:
                    break
                attempts -= 1
                # A driver may give its counters to nobody, or have given them to somebody else.
                if options.gpu_metrics and (not attempts or _OF_METRICS.search(recording.said)):
                    options, attempts = self._without_metrics(recording.said), 2
            recording.said = profile.said()
        finally:
            stand_in.close()
            if sampler is not None:
                recording.clocks = sampler.stop()
        return recording

    def _without_metrics(self, said: str) -> Options:
        """Say why nsys does not sample the GPU's counters, and return the options of a run without."""
        self.recording.metrics_refused = why = refusal(said)
        self.recording.trouble = ""
        say(f"warning: --gpu-metrics: {why}; recording without")
        return replace(self.options, gpu_metrics=False)

    def _wait_for_start(self, profile: NsysProcess, stand_in: StandIn) -> bool:
        """Wait until nsys has started the stand-in; False when it ended, does nothing, or the user ended the wait."""
        began = time.monotonic()
        while profile.process.poll() is None:
            if stand_in.came(0.01):
                return True
            came = self.inbox.wait(0.01)
            if came is not None and came.number in ENDING:
                self.recording.interrupted = came.number
                return False
            if came is not None and came.number in STOPPING:
                stop()
                profile.wakes()
            elif came is not None and came.number != signal.SIGCONT:
                self._early.append(came)
            profile.look()
            if profile.hangs() or time.monotonic() - began > START_S:
                what = "does nothing" if profile.hangs() else "is not ready"
                waited = time.monotonic() - began
                self.recording.trouble = f"nsys {what} after {waited:.0f} s (is the disk of TMPDIR full?)"
                return False
        return stand_in.came(0.0)

    def _start_command(self, stand_in: StandIn) -> Target:
        """Start the command. Raises OSError."""
        if must_descend(self.options, self.nsys):
            return Below(self.command, stand_in, self.inbox.mask)
        target = Own(self.command, stand_in.environment, self.inbox.mask)
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
        profile.not_ours.add(target.pid)
        for came in self._early:
            target.receive(Came(came.number, by_all=False, from_terminal=False))
        nsys_left = self._attend(target, profile, stand_in)
        recording.end_ns = target.end_ns or time.time_ns()
        status = target.status or 0
        recording.code = None if target.lost else status if status >= 0 else 128 - status
        stand_in.exit(status)
        self._wait_for_report(profile)
        if nsys_left and profile.process.returncode:
            recording.trouble = f"nsys was ended (by signal {-profile.process.returncode}) while the command ran"
        elif nsys_left:
            recording.trouble = "nsys gave up while the command ran"

    def _attend(self, target: Target, profile: NsysProcess, stand_in: StandIn) -> bool:
        """Wait for the end of the command, giving it its signals; say whether nsys ended before it."""
        nsys_left, follower = False, Follower(target, self.inbox)
        while target.poll() is None:
            follower.step()
            list(stand_in.listen())
            while stand_in.signals:  # nsys's own wish (--duration); not what a scheduler sent to everybody
                number = stand_in.signals.pop()
                if number not in self.inbox.came:
                    target.receive(Came(number, by_all=False, from_terminal=False))
            if not nsys_left and profile.process.poll() is not None and target.poll() is None:
                nsys_left = True
                say("warning: nsys has ended; the command goes on without being recorded")
        return nsys_left

    def _wait_for_report(self, profile: NsysProcess) -> None:
        """Wait until nsys and its agent have written the report, as long as they work on it and the user waits."""
        recording, ended = self.recording, time.monotonic()
        profile.wakes()
        with Passing() as line:
            while profile.look():
                came = self.inbox.wait(0.05)
                if came is not None and came.number in STOPPING:
                    stop()
                    profile.wakes()
                elif came is not None and came.number in ENDING:
                    if time.monotonic() - ended > _GRACE_S:
                        recording.interrupted = came.number
                        break
                    say("the command has ended; finishing the report, once more stops that")
                if profile.hangs():
                    # Where nsys came to its own end its report is whole; its agent then stays for some seconds now and then.
                    # So it is where nsys has said so and died of a signal or stayed after that.
                    if not profile.ended_by_itself() and not _GENERATED.search(profile.said()):
                        recording.trouble = "nsys did not come to an end after the command and was stopped"
                    break
                line.show(progress_of(profile.said()))
        profile.kill()  # what is left of it, if anything


#: nsys's last words, after it has written and closed its report.
_GENERATED = re.compile(r"^Generated:\s+\S.*\.nsys-rep\s*$", re.MULTILINE)
#: What nsys says where it cannot have the counters: its option, the driver's error, a lack of rights, DCGM that holds them.
_OF_METRICS = re.compile(r"gpu.?metrics|NVGPUCTRPERM|privilege|permission|DCGM", re.IGNORECASE)
#: The first line of nsys that is about what went wrong, and lines about its own usage.
_TROUBLE = re.compile(r"illegal|error|insufficient|fail|support|unavailable|gpu.?metrics", re.IGNORECASE)
_USAGE = re.compile(r"^(usage:|Try '|See )")


def refusal(said: str) -> str:
    """Return in nsys's own words, on one line, why it did not start."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not _USAGE.match(line.strip())]
    first = next((i for i, line in enumerate(lines) if _TROUBLE.search(line)), 0)
    lines = lines[first:]
    return " ".join(lines)[:300] or "nsys did not start with it and did not say why"


def progress_of(said: str) -> str:
    """Return what nsys does now, from what it has said."""
    share = re.findall(r"(\d+)%", said[-400:])
    return f"nsys makes its report: {share[-1]} %" if share else "nsys collects what was recorded"

"""``--limit``: ends a recording that nothing else ends, so that an hour of a program without steps is no report of an hour.

A run with two windows closes its own at the border of a step. Without a step, or if none comes for as long again, and where everything
is recorded, it ends in the middle of something. nsys drops what the devices have not done by then, so each process with the probe first
brings its devices to rest, and stands still until the recording has ended (``inject.nsysx_probe.at_limit``). What holds the range of a
window then ends it, so that another one may be opened later; where it does not, and where everything is recorded, ``nsys stop`` ends the
recording. The program goes on either way.

nsys does not tell how many events it has. Its agent writes what it gets to one file, whose size tells about how many they are:
43 bytes for a range of NVTX (nsys 2023.4). What a process still holds back is not in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from nsysx.inject.nsysx_probe.at_limit import BUSY, DRAINS, OPEN, REST, WATCHES
from nsysx.inject.nsysx_probe.capture_range import CUT, LIMIT, STEPPED
from nsysx.recording.find_nsys import Nsys
from nsysx.recording.limit import RecordingLimit
from nsysx.recording.nsys_process import NsysProcess, words_of
from nsysx.recording.process_activity import stat_of
from nsysx.recording.recording_bounds import (
    BYTES_PER_EVENT,
    LIMIT_LOOK_S,
    RESTS_S,
    SEES_S,
    STEP_END_PATIENCE_S,
    STOPS_S,
    WINDOW_CLOSING_S,
    WITHOUT_STEPS_TIMES,
)
from nsysx.recording.run_messages import say

#: What nsys prints when it records no more.
_STOPPED = "Generating "


class _Rest:
    """Asks all processes with the probe to bring their devices to rest, and holds them so until it is closed."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._since = folder, time.monotonic()
        self._file = -1
        with contextlib.suppress(OSError):  # without a file nobody is asked, without a lock nobody held
            self._file = os.open(folder / REST, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC)
            fcntl.flock(self._file, fcntl.LOCK_EX)

    def come(self) -> bool:
        """Return whether no device needs to be waited for any more. If one cannot come to rest, nobody is held any longer."""
        waited = time.monotonic() - self._since
        if (self._runs(WATCHES) and waited < SEES_S) or (self._runs(DRAINS) and waited < RESTS_S):
            return False
        if self._runs(BUSY):
            self._unlock()
        return True

    def _unlock(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _runs(self, sign: str) -> bool:
        """Return whether a process runs that has a file of this kind."""
        stats = [stat_of(int(path.name.removeprefix(sign))) for path in self._folder.glob(f"{sign}[0-9]*")]
        return any(stat is not None and stat[0] not in "ZX" for stat in stats)

    def close(self) -> None:
        """Let all processes go on."""
        for path in self._folder.glob("limit-*-[0-9]*"):
            path.unlink(missing_ok=True)
        (self._folder / REST).unlink(missing_ok=True)
        self._unlock()


class Limiter:
    """Is asked again and again by who waits for the command. ``reached`` says what it has ended, in order."""

    def __init__(self, limit: RecordingLimit, probe_dir: Path, nsys: Nsys, *, windows: bool) -> None:
        self._limit, self._folder, self._nsys, self._windows = limit, probe_dir, nsys, windows
        self._since: float | None = None if windows else time.monotonic()
        self._asked = self._cut = self._stopping = 0.0
        self._rest: _Rest | None = None
        self._looked = 0.0
        self._collects: Path | None = None
        self._stop: subprocess.Popen[bytes] | None = None
        self.reached: list[dict[str, Any]] = []
        if not windows:
            self._sign(OPEN)

    def look(self, profile: NsysProcess) -> None:
        """End the recording if it is time for it."""
        if self._stop is not None:
            self._after_stop(self._stop, profile)
        if self._stop is not None or not self._is_open():
            return
        now = time.monotonic()
        if not self._asked and not self._reaches(profile, now):
            return
        at_once = not self._windows or not self._has_steps() or now - self._asked > self._patience()
        if at_once and self._rest is None:
            self._rest = _Rest(self._folder)
        if self._rest is None or not self._rest.come():
            return
        if self._windows and not self._cut:
            self._cut = now
            self._sign(CUT)
        elif not self._windows or now - self._cut > WINDOW_CLOSING_S:
            self._stop_nsys(profile)

    def _after_stop(self, stop: subprocess.Popen[bytes], profile: NsysProcess) -> None:
        """Let the program go on once nsys records no more."""
        ended = stop.poll() is not None or _STOPPED in profile.output()
        if self._rest is not None and (ended or time.monotonic() - self._stopping > STOPS_S):
            self._let_go()
            if not self._windows:
                (self._folder / OPEN).unlink(missing_ok=True)

    def _let_go(self) -> None:
        if self._rest is not None:
            self._rest.close()
            self._rest = None

    def _reaches(self, profile: NsysProcess, now: float) -> bool:
        """Return whether the limit is reached; if so, say it, and ask an open window to close."""
        spent = now - (self._since or 0.0)
        by = "time" if spent >= self._limit.seconds else "events" if self._too_many(profile, now) else ""
        if by:
            self._asked = now
            self.reached.append({"after_s": round(spent, 1), "by": by, "window": self._windows})
            self._say(by)
            if self._windows:
                self._sign(LIMIT)
        return bool(by)

    def _has_steps(self) -> bool:
        return (self._folder / STEPPED).exists()

    def _patience(self) -> float:
        """Return how long a window with steps may wait for the end of one (s)."""
        return (WITHOUT_STEPS_TIMES - 1) * max(self._limit.seconds, STEP_END_PATIENCE_S)

    def _is_open(self) -> bool:
        """Note when the window opened; once it has closed, forget it. What is recorded as a whole is open."""
        if not self._windows or (self._folder / OPEN).exists():
            self._since = self._since if self._since is not None else time.monotonic()
            return True
        if self._since is not None:
            self._let_go()
            self._since, self._asked, self._cut = None, 0.0, 0.0
            for name in (LIMIT, CUT):
                (self._folder / name).unlink(missing_ok=True)
        return False

    def _sign(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self._folder / name).touch()

    def _say(self, by: str) -> None:
        what = (
            f"the limit of {self._limit.seconds:g} s" if by == "time" else f"the limit of {self._limit.events:,} events"
        )
        if not self._windows:
            then = "nothing more is recorded (--limit none records everything)"
        elif self._has_steps():
            then = "this recording ends with a step"
        else:
            then = "nothing more is recorded until steps repeat"
        say(f"{what} is reached: {then}; the command goes on")

    def _too_many(self, profile: NsysProcess, now: float) -> bool:
        """Return whether nsys has about as many events as it may have."""
        if now - self._looked < LIMIT_LOOK_S:
            return False
        self._looked = now
        try:
            size = self._collects.stat().st_size if self._collects else 0
        except OSError:
            self._collects, size = None, 0
        if self._collects is None:
            self._collects = collected_by(profile)
        return size > self._limit.events * BYTES_PER_EVENT

    def _stop_nsys(self, profile: NsysProcess) -> None:
        """Tell nsys to stop; what it has becomes a report while the command goes on."""
        self._stopping = time.monotonic()
        self._stop = stop_recording(self._nsys, profile)

    @property
    def stopped(self) -> bool:
        """Return whether nsys records nothing any more, and will not."""
        return self._stop is not None

    def end(self) -> list[dict[str, Any]]:
        """Return what has ended at the limit, in order: after_s, by (time or events), window; the command has ended."""
        self._let_go()
        if self._stop is not None and self._stop.poll() is None:
            self._stop.kill()
            self._stop.wait()
        return self.reached


def collected_by(profile: NsysProcess) -> Path | None:
    """Return the file that nsys's agent writes what it gets to, None if there is none now."""
    for pid in profile.members():
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if (target := link.readlink()).suffix == ".qdstrm":
                        return target
    return None


def stop_recording(nsys: Nsys, profile: NsysProcess) -> subprocess.Popen[bytes] | None:
    """Start another nsys that tells this one to record no more and to make its report; None if it cannot be started."""
    session = session_of(profile) or f"profile-{profile.process.pid}"
    try:
        return profile.helper([str(nsys.path), "stop", f"--session={session}"])
    except OSError:
        return None


def session_of(profile: NsysProcess) -> str:
    """Return the name of nsys's session, "" if its agent does not show it."""
    names = (w for pid in profile.members() for w in words_of(pid) if w.startswith(b"--session-name="))
    return os.fsdecode(next(names, b"").partition(b"=")[2])

"""What processes do, from /proc: whether one that gives no answer works or hangs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


def stat_of(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name: state, parent, ...; None when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


class SessionActivity(NamedTuple):
    """What the processes of a session do: whether one runs or waits for a disk, and the time of each (ticks) by process id."""

    working: bool
    ticks: tuple[tuple[int, int], ...]


def activity_of_session(session: int) -> SessionActivity:
    """Return what the processes of a session do now."""
    stats = [(int(entry.name), stat_of(int(entry.name))) for entry in Path("/proc").glob("[0-9]*")]
    members = [(pid, stat) for pid, stat in stats if stat is not None and int(stat[3]) == session]
    ticks = tuple((pid, int(stat[11]) + int(stat[12])) for pid, stat in members)
    return SessionActivity(any(stat[0] in "DR" for _, stat in members), ticks)

"""Process, pid and tid in the keys that Nsight Systems writes: virtual machine, pid (24 bits), tid (24 bits).

A process key is ``globalTid >> 24``, the same for all threads of a process and different from every other process of a report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

_Record = TypeVar("_Record", bound=Mapping[str, Any])

#: Bits of the tid, and of the pid above it. For a column: ``thread >> TID_BITS`` is the process key.
TID_BITS = 24
_LOW = (1 << TID_BITS) - 1


def process_of(thread: int) -> int:
    """Return the process key of a thread key."""
    return thread >> TID_BITS


def pid_of(process: int) -> int:
    """Return the pid, as the operating system knows it, of a process key."""
    return process & _LOW


def tid_of(thread: int) -> int:
    """Return the tid, as the operating system knows it, of a thread key."""
    return thread & _LOW


def records_of(records: Iterable[_Record], process: int) -> list[_Record]:
    """Return which of the records that the probes of processes wrote are those of a process key."""
    pid = pid_of(process)
    return [record for record in records if record.get("pid") == pid]

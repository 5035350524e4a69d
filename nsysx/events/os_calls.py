"""Calls of the operating system's library in the idle time that is the host's doing."""

from __future__ import annotations

import polars as pl

from nsysx.events.host_pieces import host_pieces, split
from nsysx.events.profile import Profile
from nsysx.frames import lookup

#: What a call waits for, by how its name begins; the first that matches.
KINDS = {
    "futex": "lock or signal",
    "pthread_": "lock or signal",
    "sem_": "lock or signal",
    "poll": "file or socket",
    "ppoll": "file or socket",
    "select": "file or socket",
    "pselect": "file or socket",
    "epoll": "file or socket",
    "read": "file or socket",
    "pread": "file or socket",
    "fread": "file or socket",
    "fget": "file or socket",
    "recv": "file or socket",
    "accept": "file or socket",
    "write": "file or socket",
    "pwrite": "file or socket",
    "fwrite": "file or socket",
    "send": "file or socket",
    "open": "file or socket",
    "fopen": "file or socket",
    "ioctl": "device",
    "nanosleep": "sleep",
    "clock_nanosleep": "sleep",
    "usleep": "sleep",
    "sleep": "sleep",
    "sched_yield": "sleep",
    "mmap": "memory",
    "munmap": "memory",
    "mprotect": "memory",
    "wait": "process",
    "fork": "process",
}


def kind_of(name: str) -> str:
    """Return what a call of this name waits for."""
    return next((kind for begin, kind in KINDS.items() if name.startswith(begin)), "other")


def os_idle(profile: Profile) -> pl.DataFrame:
    """Return the host's idle pieces cut by the call that their thread was in: columns of ``host_pieces``, span, name, kind.

    name and kind are null where it was in none. Of calls inside calls the outermost counts.
    """
    spans = profile.trace.osrt
    parts = split(host_pieces(profile), spans)
    row = parts["span"].fill_null(-1).to_numpy()
    name = lookup.at(spans["name"], row)
    return parts.with_columns(name.alias("name"), lookup.changed(name, kind_of).alias("kind"))

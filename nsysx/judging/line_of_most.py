"""The line of the program that has most of the idle time, GPU work or exposed communication of the steady steps, for the headline."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nsysx.catalogue import DeviceActivity
from nsysx.events.code_lines import CodeLines
from nsysx.events.device_activity import CLASSES
from nsysx.events.line_shares import shares
from nsysx.events.profile import Profile
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.judging.judging_bounds import GPU_AT_LINE_SHARE, IDLE_AT_LINE_SHARE, WHOLE_AT_LINE_SHARE


class LineShare(NamedTuple):
    """A line of the program, and its share of the whole."""

    file: str
    line: int
    share: float

    @property
    def short(self) -> str:
        """The line as "train.py:31"."""
        return f"{self.file.rpartition('/')[2][:80]}:{self.line}"


def idle(profile: Profile) -> LineShare | None:
    """Return the line at which the device idles most, of all its idle time.

    None where no line has 40 % of it, or lines were not recorded.
    """
    lines = profile.code()
    if lines is None or not profile.recorded("runtime"):
        return None
    divided = profile.once(shares)
    stack, ns = divided.idle["stack"].to_numpy(), divided.idle["ns"].to_numpy()
    return _line_with_share(lines, stack, ns, int(ns.sum()) + divided.own_idle_ns, IDLE_AT_LINE_SHARE)


def gpu_work(profile: Profile, process: int, device: int) -> LineShare | None:
    """Return the line that launches most of the work of a device, backward included, communication excluded, and its share of all.

    None where no line has 40 % of it or one has all but 10 %, which is the call of the whole model, or lines were not recorded.
    """
    lines = profile.code()
    if lines is None or not profile.recorded("runtime"):
        return None
    ops = lookup.having(profile.steady_ops, process=process, device=device)
    ns = (ops["end_ns"] - ops["start_ns"]).to_numpy()
    compute = (ops["cls"] != DeviceActivity.COMM.value).to_numpy()
    most = _line_with_share(
        lines, lines.op[ops["op"].to_numpy()][compute], ns[compute], int(ns.sum()), GPU_AT_LINE_SHARE
    )
    return most if most is not None and most.share < WHOLE_AT_LINE_SHARE else None


def communication(profile: Profile, process: int, device: int) -> LineShare | None:
    """Return the line that launches most of the communication of a device that no compute hides, and its share of that.

    Where several run at once the time is that of the first. None where no line has 40 % of it, or lines were not recorded.
    """
    lines = profile.code()
    if lines is None or not profile.recorded("runtime"):
        return None
    ops = lookup.having(profile.steady_ops, process=process, device=device)
    ops = ops.filter(ops["cls"] == DeviceActivity.COMM.value).sort("start_ns", "end_ns")
    start, end = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
    begin = np.maximum(start, np.concatenate((start[:1], np.maximum.accumulate(end)[:-1])))
    activity = profile.ledgers.activity[process, device]
    comm, compute = (1 << CLASSES.index(name) for name in (DeviceActivity.COMM, DeviceActivity.COMPUTE))
    alone = ((activity.labels & comm) > 0) & ((activity.labels & compute) == 0)
    exposed = activity.within(alone, begin, np.maximum(begin, end))
    return _line_with_share(lines, lines.op[ops["op"].to_numpy()], exposed, int(exposed.sum()), GPU_AT_LINE_SHARE)


def _line_with_share(lines: CodeLines, stack: I64, ns: I64, whole: int, least_share: float) -> LineShare | None:
    row = lines.places_of(stack)
    noted = row >= 0
    if not whole or not noted.any():
        return None
    sums = lookup.totals(row[noted], ns[noted], lines.places.height)
    most = int(np.argmax(sums))
    if sums[most] < least_share * whole:
        return None
    file, line = lines.places.select("file", "line").row(most)
    return LineShare(file, line, float(sums[most] / whole))

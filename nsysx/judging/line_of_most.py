"""The line of the program that has most of the idle time or of the GPU work of the steady steps, for the headline."""

from __future__ import annotations

import numpy as np

from nsysx.events.code_lines import CodeLines
from nsysx.events.line_shares import shares
from nsysx.events.profile import Profile
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.judging.judging_bounds import GPU_AT_LINE_SHARE, IDLE_AT_LINE_SHARE, WHOLE_AT_LINE_SHARE

#: A line as "file.py:31", and its share of the whole.
LineShare = tuple[str, float]


def idle(profile: Profile) -> LineShare | None:
    """Return the line at which the device idles most, of all its idle time.

    None where no line has 40 % of it, or lines were not recorded.
    """
    lines = profile.code()
    if lines is None or not profile.recorded("runtime"):
        return None
    divided = profile.once(shares)
    stack, ns = divided.idle["stack"].to_numpy(), divided.idle["ns"].to_numpy()
    return _most(lines, stack, ns, int(ns.sum()) + divided.own_idle_ns, IDLE_AT_LINE_SHARE)


def gpu_work(profile: Profile, process: int, device: int) -> LineShare | None:
    """Return the line that launches most of the work of a device, backward included.

    None where no line has 40 % of it or one has all but 10 %, which is the call of the whole model, or lines were not recorded.
    """
    lines = profile.code()
    if lines is None or not profile.recorded("runtime"):
        return None
    ops = lookup.having(profile.steady_ops, process=process, device=device)
    ns = (ops["end_ns"] - ops["start_ns"]).to_numpy()
    most = _most(lines, lines.op[ops["op"].to_numpy()], ns, int(ns.sum()), GPU_AT_LINE_SHARE)
    return most if most is not None and most[1] < WHOLE_AT_LINE_SHARE else None


def _most(lines: CodeLines, stack: I64, ns: I64, whole: int, least_share: float) -> LineShare | None:
    row = lines.places_of(stack)
    noted = row >= 0
    if not whole or not noted.any():
        return None
    sums = lookup.totals(row[noted], ns[noted], lines.places.height)
    most = int(np.argmax(sums))
    if sums[most] < least_share * whole:
        return None
    file, line = lines.places.select("file", "line").row(most)
    return f"{str(file).rpartition('/')[2][:80]}:{line}", float(sums[most] / whole)

"""The steps as they run without a profiler: the chain with what tracing added taken out, replayed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64
from nsysx.model import Unprofiled
from nsysx.replay import costs as tables
from nsysx.replay.chain import LAUNCH, Chain, Item
from nsysx.replay.overhead import Added
from nsysx.replay.simulate import Arrays, Trail, run
from nsysx.replay.window import Window

#: Of a recorded time this part always stays: tracing is never all of it.
_STAYS = 0.2
#: A modelled step is never surer than this: GPU-bound programs, whose work no model changes, were off by up to 2 %.
_LEAST_BAR = 0.02
#: How far costs are scaled to meet a measured step, and how closely it is met.
_MOST_SCALE, _CLOSE = 4.0, 0.002
#: Halvings of that range until a scale is good enough.
_HALVINGS = 9
#: A host that is still slower than the measured step says is slower in all it does, at most by this.
_LEAST_HOST = 0.3


def without(chain: Chain, scale: float, host: float = 1.0) -> Chain:
    """Return the chain without ``scale`` times what tracing added; all other host time times ``host``."""
    if (scale == 0 and host == 1) or not any(item.added_before or item.added_inside for item in chain.items):
        return chain
    return replace(chain, items=[_relieved(item, scale, host) for item in chain.items])


def _relieved(item: Item, scale: float, host: float) -> Item:
    before, inside = item.added_before * scale, item.added_inside * scale
    code = item.gap - item.loading  # waiting for data is not what tracing stretches
    # What finds no room in the host code lies in the call, and the other way round.
    room_before, room_inside = code * (1 - _STAYS), item.cost * (1 - _STAYS)
    more_inside, more_before = max(before - room_before, 0.0), max(inside - room_inside, 0.0)
    less_code = min(before + more_before, room_before)
    less_cost = min(inside + more_inside, room_inside)
    ops = item.ops
    if ops and inside:
        first = ops[0]
        gap = tables.KERNEL_GAP_NS if item.kind == LAUNCH and len(ops) == 1 else 0
        ops = (
            first._replace(
                latency=round(first.latency - min(inside, first.latency * (1 - _STAYS))),
                pause=round(first.pause - min(gap * min(scale, 1), first.pause * (1 - _STAYS))),
            ),
            *ops[1:],
        )
    return item._replace(
        gap=item.loading + round((code - less_code) * host), cost=round((item.cost - less_cost) * host), ops=ops
    )


def unprofiled(profile: Profile, chain: Chain, window: Window, added: Added) -> tuple[Unprofiled, Chain]:
    """Return the step without tracing, and the chain that yields it."""
    steps = window.steps

    def step_of(scale: float, host: float = 1.0) -> int:
        return run(without(chain, scale, host)).round_ns // steps - window.between_ns

    told = tables.measured(profile, window.numbers)
    if told is None:
        bare, scale = without(chain, 1.0, added.host), 1.0
        step = run(bare).round_ns // steps - window.between_ns
        # The low bound is also that of a host which was slow while it was recorded, as hosts are now and then.
        drift = tables.HOST_DRIFT if added.totals else 0.0
        low, high = min(step_of(added.high, min(1 - drift, added.host)), step), max(step_of(added.low), step)
        if added.totals:
            low, high = min(low, round(step * (1 - _LEAST_BAR))), max(high, round(step * (1 + _LEAST_BAR)))
        source, count = added.source, 0
    else:
        scale, host = _meeting(told.step_ns, step_of)
        bare = without(chain, scale, host)
        step, low, high, source, count = told.step_ns, told.low_ns, told.high_ns, told.source, told.count
    shown = seen(bare)
    # Where something lies between steps, its work and idle time are told by the same shares as those of the steps.
    part = 1.0 if not window.between_ns else step / max(step + window.between_ns, 1)
    return (
        Unprofiled(
            step_ns=step,
            low_ns=low,
            high_ns=high,
            source=source,
            measured_steps=count,
            recorded_ns=window.recorded_ns,
            process=profile.steps.process,
            device=window.device,
            steps=steps,
            gpu_busy=shown.busy_ns / max(shown.whole_ns, 1),
            gpu_busy_ns=round(shown.busy_ns * part) // steps,
            gpu_idle_ns=round((shown.whole_ns - shown.busy_ns) * part) // steps,
            idle_causes={cause: round(ns * part) // steps for cause, ns in shown.causes.items() if ns >= steps},
            overhead={name: round(ns * scale) // steps for name, ns in added.totals.items()},
        ),
        bare,
    )


def _meeting(step_ns: int, step_of: Callable[..., int]) -> tuple[float, float]:
    """Return by what to scale the costs, and the rest of the host's time, so that the step becomes the measured one."""
    if abs(step_of(1.0) - step_ns) <= _CLOSE * step_ns:
        return 1.0, 1.0
    if step_of(0.0) <= step_ns:
        return 0.0, 1.0
    if step_of(_MOST_SCALE) < step_ns:
        return _halved(0.0, _MOST_SCALE, step_ns, step_of), 1.0
    if step_of(_MOST_SCALE, _LEAST_HOST) > step_ns:
        return 1.0, 1.0  # what is left is the GPU's: the host says nothing about it
    # Even without all of it the host is slower than it was then.
    host = 1.0 - _halved(0.0, 1.0 - _LEAST_HOST, step_ns, lambda less: step_of(_MOST_SCALE, 1.0 - less))
    return _MOST_SCALE, host


def _halved(low: float, high: float, step_ns: int, step_of: Callable[[float], int]) -> float:
    """Return where ``step_of``, which falls, meets the step."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        step = step_of(middle)
        if abs(step - step_ns) <= _CLOSE * step_ns:
            return middle
        low, high = (middle, high) if step > step_ns else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True)
class Seen:
    """One round of a chain on its device: its length, the union of its GPU work, idle time by cause (ns, over all steps)."""

    whole_ns: int
    busy_ns: int
    causes: dict[str, int]


#: What a device idles for while the CPU is in a call of this kind; names as in the recorded ledger.
_CAUSE_OF_KIND = {
    "sync": "sync",
    "alloc": "alloc",
    "free": "alloc",
    "host_alloc": "alloc",
    "load": "load",
    "copy": "copy_call",
    "memset": "copy_call",
}
_HOST, _LOADER = "host_code", "data_loader"
#: Work that was launched before its device idled, and that no pause explains, waited for other work.
_PAUSES = "kernel_gap"


def seen(chain: Chain) -> Seen:
    """Return what a replay of the chain shows on the device. Causes sum to the idle time."""
    trail = Trail()
    ends = run(chain, trail=trail).ends
    start, end = ends[-3] if len(ends) > 2 else 0, ends[-2]
    at = trail.arrays()
    order = np.argsort(at.op_begin, kind="stable")
    begin, finish, item = at.op_begin[order], at.op_end[order], at.op_item[order]
    reach = np.maximum.accumulate(np.append(start, finish))[:-1]
    gaps = np.flatnonzero((begin > reach) & (begin > start) & (reach < end))
    g0, g1 = np.maximum(reach[gaps], start), np.minimum(begin[gaps], end)
    idle = int((g1 - g0).sum())
    called = at.called[item[gaps]]
    split = np.clip(called, g0, g1)
    causes = _host_causes(chain, at, g0, split)
    late = called >= g0
    queued = begin[gaps] - called > at.op_latency[order][gaps]
    after = g1 - split
    causes["launch_latency"] = int(after[late | ~queued].sum())
    short = ~late & queued & (after <= at.op_pause[order][gaps])
    causes[_PAUSES] = int(after[short].sum())
    causes["dependency"] = int(after[~late & queued & ~short].sum())
    causes[_HOST] = causes.get(_HOST, 0) + idle - sum(causes.values())
    return Seen(end - start, end - start - idle, {cause: ns for cause, ns in causes.items() if ns > 0})


def _host_causes(chain: Chain, at: Arrays, g0: I64, g1: I64) -> dict[str, int]:
    """Return what the CPU did in the disjoint windows [g0, g1), by cause (ns)."""
    names, number = list[str](), dict[str, int]()
    borders, label = list[int](), list[int]()

    def stretch(start: int, cause: str) -> None:
        borders.append(start)
        label.append(number.setdefault(cause, len(number)))
        if label[-1] == len(names):
            names.append(cause)

    for i, free, called in zip(at.item.tolist(), at.free_at.tolist(), at.called.tolist(), strict=True):
        item = chain.items[i]
        if item.loading:
            stretch(free, _LOADER)
        stretch(free + item.loading, _HOST)
        stretch(called, _CAUSE_OF_KIND.get(item.api, "other_api"))
    if not borders:
        return {}
    ns = np.diff(borders, append=max(int(at.left[-1]), borders[-1]))
    causes = {}
    for cause, n in number.items():
        upto = np.append(0, np.cumsum(np.where(np.array(label) == n, ns, 0)))
        edges = np.append(borders, borders[-1] + ns[-1])
        within = np.interp(g1, edges, upto) - np.interp(g0, edges, upto)
        causes[cause] = int(np.rint(within.sum()))
    return causes

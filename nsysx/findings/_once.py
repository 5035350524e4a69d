"""The time of the steps, given to findings once: each nanosecond counts with the finding that has the most direct evidence of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, fields
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx.catalogue import Cause, StepPart
from nsysx.findings._finding_bounds import OVERLAP_SHARE
from nsysx.frames import lookup
from nsysx.model import Finding
from nsysx.replay.edits import RemoveCalls, RemoveHost, RemoveOps, RemoveWaits
from nsysx.replay.engine import Edit

Shares = npt.NDArray[np.float64]


class Takes(NamedTuple):
    """What a finding is about, of the time of the shown device in the steady steps.

    ``ops`` are GPU ops; ``idle`` says of each row of ``Case.idle`` which share of it (0 to 1), None for none of it.
    """

    ops: frozenset[int] = frozenset()
    idle: npt.NDArray[np.float64] | npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Claim(Finding):
    """A finding that claims time of the steps: what it takes, and how direct its evidence is (``Rule.direct``)."""

    takes: Takes = field(default_factory=Takes, compare=False, repr=False)
    direct: int = field(default=2, compare=False)

    @property
    def cost_ns(self) -> int:
        """What the finding costs per step (ns)."""
        return self.cost_ns_per_step or 0

    @property
    def saving_ns(self) -> int:
        """What its change saves per step (ns)."""
        return self.saving.likely_ns or 0

    def counted(self, own_ns: int | None = None, overlaps: tuple[int, ...] = ()) -> Finding:
        """Return the finding with what was given to it (ns per step), and the places of those about the same time; it claims no more."""
        values = {f.name: getattr(self, f.name) for f in fields(Finding)}
        return Finding(**values | {"own_ns_per_step": own_ns, "overlaps": overlaps})


def taken_by(finding: Finding) -> Takes:
    """Return what a finding takes; nothing where it claims none."""
    return finding.takes if isinstance(finding, Claim) else Takes()


class CountedOnce(NamedTuple):
    """What a claim was given: the time per step (ns) that counts with it alone, and the other claims that are about the same."""

    own_ns: int
    overlaps: tuple[int, ...]


class Pieces(NamedTuple):
    """The time of the steps in pieces: idle time first (rows of ``Case.idle``), then the GPU ops. ``ns`` sum to the steps.

    ``idle`` is how many are idle time, ``op`` the op of each of the others.
    """

    ns: Shares
    idle: int
    op: npt.NDArray[np.int64]

    def share_of(self, takes: Takes) -> Shares:
        """Return which share of each piece something takes."""
        share = np.zeros(len(self.ns))
        if takes.idle is not None:
            share[: self.idle] = takes.idle
        if takes.ops:
            share[self.idle :] = np.isin(self.op, list(takes.ops))
        return share


_PARTS = {part: number for number, part in enumerate(StepPart)}
_PART_OF_CAUSE = np.array([_PARTS[cause.part] for cause in Cause])


def pieces(idle: pl.DataFrame, ops: pl.DataFrame, device: int | None) -> Pieces:
    """Return the time of the steps in pieces, of the idle time (``Case.idle``) and the GPU ops (``Case.ops``) of a device.

    Where ops run at the same time, the time is that of the one that began first.
    """
    ops = ops["op", "device", "start_ns", "end_ns"]
    ops = ops.clear() if device is None else lookup.having(ops, device=device)
    ops = lookup.ordered(ops, "start_ns", ["op"])
    start, end, reach = ops["start_ns"], ops["end_ns"], ops["end_ns"].cum_max().shift(1)
    begin = pl.select(pl.max_horizontal(start, reach.fill_null(0))).to_series()
    alone = (end - begin).clip(0).to_numpy()
    return Pieces(
        np.concatenate((idle["real_ns"].to_numpy(), alone)).astype(np.float64),
        idle.height,
        ops["op"].to_numpy(),
    )


def of_parts(idle: pl.DataFrame, parts: Iterable[StepPart]) -> npt.NDArray[np.bool_]:
    """Return which idle pieces belong to these parts of the verdict."""
    return np.isin(_PART_OF_CAUSE[idle["cause"].to_numpy()], [_PARTS[p] for p in parts])


def began_in(idle: pl.DataFrame, calls: frozenset[int]) -> npt.NDArray[np.bool_]:
    """Return which idle pieces began in these calls."""
    return np.asarray(idle["began_in"].is_in(list(calls)).fill_null(value=False).to_numpy(), np.bool_)


class _Claimed(NamedTuple):
    """The share of each piece that a claim wants: ``of_each`` times ``part``. Most take a piece whole or not at all."""

    of_each: npt.NDArray[Any]
    part: float = 1.0

    @staticmethod
    def wanting(of_each: Shares) -> _Claimed:
        whole = of_each == 1
        return _Claimed(whole if (whole | (of_each == 0)).all() else of_each)

    def share(self) -> Shares:
        result: Shares = self.of_each * self.part
        return result


def _shared(first: _Claimed, second: _Claimed, ns: Shares) -> float:
    """Return the time (ns) that two claims want both."""
    if first.of_each.dtype == np.bool_ and second.of_each.dtype == np.bool_:
        return float(ns[first.of_each & second.of_each].sum()) * min(first.part, second.part)
    return float(np.minimum(first.share(), second.share()) @ ns)


def give(time: Pieces, claims: Sequence[Claim], step_ns: int, steps: int) -> tuple[CountedOnce, ...]:
    """Give each piece of ``steps`` steps of ``step_ns`` to one claim, or none: what they are given never sums above the step.

    The most direct evidence comes first, and of equally direct the claim on least time: the more particular one. A claim on more
    than its cost is one on that share of its time. Two claims overlap where they want the same time, or where together they
    save more than all the time that they are about.
    """
    scale = step_ns / max(float(time.ns.sum()), 1.0)
    claimed, about = [], []
    for claim in claims:
        wanted = _Claimed.wanting(time.share_of(claim.takes))
        if whole := float(wanted.share() @ time.ns) * scale:
            wanted = wanted._replace(part=min(1.0, claim.cost_ns / whole))
        claimed.append(wanted)
        about.append(float(wanted.share() @ time.ns) * scale)
    left, counted = np.ones(len(time.ns)), [0] * len(claims)
    for i in sorted(range(len(claims)), key=lambda i: (-claims[i].direct, about[i], claims[i].code, i)):
        got = np.minimum(claimed[i].share(), left)
        left -= got
        counted[i] = int(float(got @ time.ns) * scale)

    def overlap(i: int, j: int) -> bool:
        saved, least = claims[i].saving_ns + claims[j].saving_ns, OVERLAP_SHARE * step_ns
        if min(about[i], about[j]) < least and saved <= max(about[i], about[j]) + least:
            return False  # whatever they share, which is the less of both at most
        shared = _shared(claimed[i], claimed[j], time.ns) * scale
        both = about[i] + about[j] - shared
        return min(shared, about[i], about[j]) >= least or saved > both + least

    every = range(len(claims))
    pairs = {(i, j) for i, j in combinations(every, 2) if overlap(i, j)}
    return tuple(CountedOnce(counted[i], tuple(j for j in every if (i, j) in pairs or (j, i) in pairs)) for i in every)


def calls_of(frame: pl.DataFrame) -> frozenset[int]:
    """Return the calls of a frame, as edits want them."""
    return frozenset(frame["call"].drop_nulls().to_list())


def ops_of(frame: pl.DataFrame) -> frozenset[int]:
    """Return the GPU ops of a frame, as edits want them."""
    return frozenset(frame["op"].to_list())


def calls_that_launch(gpu_ops: pl.DataFrame, ops: Iterable[int]) -> frozenset[int]:
    """Return the calls that launch some GPU ops: of ``gpu_ops`` those with these numbers."""
    return calls_of(gpu_ops.filter(gpu_ops["op"].is_in(list(ops))))


def edits_without(
    calls: pl.DataFrame, ops: pl.DataFrame, *, leading: bool = False, shared: Collection[int] = (), theirs: float = 1.0
) -> list[Edit]:
    """Return the edits after which calls are not made: their waits, time, host code before them, and GPU work of ``ops``.

    ``leading``: the host code before them is torch's own, as in a backward, and lies before the queries that lead to a launch, too. Of
    that before ``shared`` ones, the share ``theirs`` is: the rest belongs to what runs before them and stays.
    """
    gone = calls_of(calls)
    launched = ops_of(ops.filter(ops["call"].is_in(list(gone)).fill_null(value=False)))
    edits: list[Edit] = [RemoveWaits(gone), RemoveCalls(gone), RemoveHost(gone - frozenset(shared), leading)]
    if shared:
        edits.append(RemoveHost(gone & frozenset(shared), leading, theirs))
    return [*edits, RemoveOps(launched)] if launched else edits

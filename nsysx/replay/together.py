"""Several ranks replayed together: a collective begins on each rank when that rank arrives, and ends on all when the last has come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64
from nsysx.frames.statistics import F64
from nsysx.replay import job_changes, rank_alone, tracing_costs
from nsysx.replay.chain_columns import Columns, Flags
from nsysx.replay.held_lines import Unheld
from nsysx.replay.removed_work import without_calls, without_launches, without_ops
from nsysx.replay.replay_bounds import REPLAYED_ROUNDS
from nsysx.replay.simulate import Machine


@dataclass(frozen=True)
class ReplayedRank:
    """One rank of a joint replay: its columns, the number of the collective that each op is (-1: none), and where steps begin.

    ``left``, ``unheld``: see ``Played``.
    """

    cols: Columns
    joint: I64
    borders: tuple[int, ...]
    left: Mapping[str, F64] = field(default_factory=dict)
    unheld: Mapping[str, Unheld] = field(default_factory=dict)

    def alone(self, transfer: Mapping[int, int]) -> ReplayedRank:
        """Return this rank as it is if no other was ever late: each of its collectives takes its transfer."""
        length = self.cols.op_duration.copy()
        for op in np.flatnonzero(self.joint >= 0).tolist():
            length[op] = transfer[int(self.joint[op])]
        return replace(self, cols=replace(self.cols, op_duration=length), joint=np.full_like(self.joint, -1))

    def without_host(self) -> ReplayedRank:
        """Return this rank with neither host code nor time for its calls: what is left is what its GPU does and waits for."""
        cols = replace(self.cols, gap=self.cols.loading, cost=np.zeros_like(self.cols.cost))
        return replace(self, cols=cols)

    @property
    def own(self) -> Flags:
        """Which of its ops are work of its own, in no collective with others."""
        return self.joint < 0

    @property
    def step_of_op(self) -> I64:
        """The step, from 0, that each op is launched in."""
        first = self.cols.first_op[list(self.borders)]
        return np.maximum(np.searchsorted(first, np.arange(len(self.joint)), side="right") - 1, 0)

    @property
    def own_work_ns(self) -> F64:
        """How long the ops of its own take in each step (ns)."""
        ns = np.where(self.own, self.cols.op_duration, 0)
        return np.bincount(self.step_of_op, ns, minlength=len(self.borders)).astype(np.float64)

    def scaled(self, factor: float | F64) -> ReplayedRank:
        """Return this rank with so many times its own GPU work, in all of its steps or in each."""
        return self.lengthened(np.broadcast_to(factor, len(self.borders))[self.step_of_op])

    def lengthened(self, of_op: F64) -> ReplayedRank:
        """Return this rank with each op of its own so many times as long."""
        length = np.where(self.own, np.rint(self.cols.op_duration * of_op).astype(np.int64), self.cols.op_duration)
        return replace(self, cols=replace(self.cols, op_duration=length))

    def changed(self, name: str) -> ReplayedRank:
        """Return this rank with a change made, see ``job_changes``; as it is if there is nothing to change."""
        left, unheld = self.left.get(name), self.unheld.get(name)
        if left is None and unheld is None:
            return self
        cols, joint = self.cols, self.joint
        if unheld is not None:
            goes = np.rint(unheld.code * (cols.gap - cols.loading)).astype(np.int64)
            cols = without_calls(replace(cols, gap=cols.gap - goes), unheld.calls, between=False)
        if left is not None:
            gone = left == 0
            length = np.rint(cols.op_duration * left).astype(np.int64)
            cols = without_launches(without_ops(replace(cols, op_duration=length), gone), gone)
            joint = np.where(gone, -1, joint)
        return replace(self, cols=cols, joint=joint)


@dataclass(frozen=True)
class Played:
    """The replayed steps of one rank: ``bare`` without tracing and ``recorded`` with it.

    ``numbers`` are those of its steps and ``borders`` the items with which they begin; ``recorded_ns`` is its recorded step on
    ``device``, ``measured_ns`` the one that its process measured without a profiler, None if it did not, and ``apart_ns`` how far such
    steps lie apart. ``op`` is the GPU op of each op
    of the columns; in the record of a rank, the row of the collective that it is, -1 if it is none. ``left`` is, by the name of
    a change that all ranks can make, what it leaves of each op (share), ``unheld`` the items that hold the host no more, and how much of
    the code before them does not, see ``job_changes``.
    """

    bare: Columns
    recorded: Columns
    numbers: tuple[int, ...]
    borders: tuple[int, ...]
    recorded_ns: int
    device: int
    op: I64
    measured_ns: int | None = None
    apart_ns: int | None = None
    left: Mapping[str, F64] = field(default_factory=dict)
    unheld: Mapping[str, Unheld] = field(default_factory=dict)

    @property
    def changes(self) -> tuple[str, ...]:
        """The changes for which it has something to change, see ``job_changes``."""
        return tuple(dict.fromkeys((*self.left, *self.unheld)))

    def over(self, numbers: Sequence[int], cols: Columns, joint: I64) -> ReplayedRank:
        """Return this rank over some consecutive ones of its steps, with its ``bare`` or ``recorded`` columns."""
        first, last = self.numbers.index(numbers[0]), self.numbers.index(numbers[-1]) + 1
        begin = self.borders[first] if first else 0
        end = self.borders[last] if last < len(self.borders) else len(cols.kind)
        a, b = cols.first_op[begin], cols.first_op[end]
        borders = tuple(border - begin for border in self.borders[first:last])
        left = {name: of_op[a:b] for name, of_op in self.left.items()}
        unheld = {name: of_item.only(begin, end) for name, of_item in self.unheld.items()}
        return ReplayedRank(cols.only(begin, end), joint[a:b], borders, left, unheld)


def played(profile: Profile) -> Played | None:
    """Return the replayed steps of the shown process on its busiest device; None where they cannot be replayed."""
    model = rank_alone.by_itself(profile)
    if model is None:
        return None
    window = model.window
    borders = sorted(model.chain.borders)
    if len(borders) != window.steps:
        return None
    ops = np.array([op.op for item in model.chain.items for op in item.ops], np.int64)
    bare = model.relieved.columns(1.0, near=model.added.near)
    measured = tracing_costs.measured(profile, window.numbers)
    return Played(
        bare,
        model.relieved.recorded,
        numbers=window.numbers,
        borders=tuple(borders),
        recorded_ns=window.recorded_ns,
        device=window.device,
        op=ops,
        measured_ns=None if measured is None else measured.step_ns,
        apart_ns=tracing_costs.apart_ns(profile),
        left=job_changes.left_by(profile, ops),
        unheld=job_changes.unheld_by(profile, bare.call),
    )


def step_lengths(members: Sequence[ReplayedRank], transfer: Mapping[int, int]) -> list[I64] | None:
    """Return the length of each step (ns) on each rank, from its first GPU work to that of the next step.

    ``transfer`` is collective -> how long it takes once all its ranks are there. None if the ranks wait for each other in a circle.
    """
    machines = [Machine(m.cols, None, m.joint) for m in members]
    if not _run(machines, members, transfer):
        return None
    lengths = []
    for machine, member in zip(machines, members, strict=True):
        begins = np.array(machine.begins, np.int64).reshape(REPLAYED_ROUNDS, -1)
        first = member.cols.first_op[list(member.borders)]
        rounds = begins[REPLAYED_ROUNDS - 2 :, first]
        lengths.append(np.diff(np.append(rounds[0], rounds[1, 0])))
    return lengths


def _run(machines: Sequence[Machine], members: Sequence[ReplayedRank], transfer: Mapping[int, int]) -> bool:
    """Run all ranks to their end; return whether they got there."""
    takes_part = Counter(number for member in members for number in np.unique(member.joint).tolist())
    runs = [_rounds(machine) for machine in machines]
    arrived: dict[int, dict[int, int]] = {}
    ready: list[tuple[int, int | None]] = [(r, None) for r in range(len(runs))]
    done = 0
    while ready:
        r, end = ready.pop()
        try:
            number, begin = next(runs[r]) if end is None else runs[r].send(end)
        except StopIteration:
            done += 1
            continue
        here = arrived.setdefault(number, {})
        here[r] = begin
        if len(here) == takes_part[number]:
            end = max(here.values()) + transfer[number]
            ready += [(other, end) for other in arrived.pop(number)]
    return done == len(runs)


def _rounds(machine: Machine) -> Generator[tuple[int, int], int, None]:
    for _ in range(REPLAYED_ROUNDS):
        yield from machine.play()

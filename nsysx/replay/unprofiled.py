"""The steps as they run without a profiler: a replay of the chain from which the time that tracing added is removed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from nsysx.events.other_ranks import Modelled
from nsysx.events.profile import Profile
from nsysx.model import Unprofiled
from nsysx.replay import bare_loading, held_streams, overhead, peers
from nsysx.replay import chain as chains
from nsysx.replay import tracing_costs as tables
from nsysx.replay.chain_columns import Columns, WithoutTracing
from nsysx.replay.device_round import DeviceRound, on_device
from nsysx.replay.late_causes import as_late_rank_idles
from nsysx.replay.replay_bounds import (
    CLOSE_TO_MEASURED_SHARE,
    FASTER_WHILE_RECORDED,
    GRAPH_NODES_BAR_SHARE,
    LEAST_HOST_TIMES,
    LEAST_MEASURED_BAR_SHARE,
    LEAST_WORK_TIMES,
    MODEL_BAR_ABOVE_SHARE,
    MODEL_BAR_BELOW_SHARE,
    MOST_COST_SCALE,
    MOST_HOST_TIMES,
    MOST_RANK_WAITING_TIMES,
    MOST_WORK_TIMES,
    SCALE_HALVINGS,
    SLOWER_ELSEWHERE,
    SLOWER_WHILE_RECORDED,
    VALIDATED_ERROR_SHARE,
)
from nsysx.replay.replayed_window import ReplayedWindow, Withheld, choose
from nsysx.replay.simulate import run, traced


@dataclass(frozen=True)
class _Chained:
    """The replayed steps of one rank as a chain, and what tracing added to them: whatever its collectives wait for."""

    window: ReplayedWindow
    added: overhead.Added
    chain: chains.Chain


def _chained(profile: Profile) -> _Chained | Withheld:
    window = choose(profile)
    if isinstance(window, Withheld):
        return window
    added = overhead.added(profile, window)
    return _Chained(window, added, held_streams.held_by_collectives(profile, chains.chain(profile, window, added)))


def model_of(profile: Profile, waiting: peers.Waiting | None = None) -> Model | Withheld:
    """Return the model of the shown rank, whose collectives wait so long, or as the other ranks show; or why there is none.

    All models of a rank have one chain, which is most of their cost.
    """
    chained = profile.once(_chained)
    if isinstance(chained, Withheld):
        return chained
    return Model(chained, waiting or peers.waiting(profile, *chained.window.gpu_span))


class Model:
    """One rank, whose step can be computed for any cost of tracing. For the factors see `WithoutTracing`."""

    def __init__(self, chained: _Chained, waiting: peers.Waiting) -> None:
        self.window, self.added, self.chain = chained.window, chained.added, chained.chain
        #: Whether the other ranks show the waiting for them; if not, all communication may be waiting.
        self.with_peers = waiting.by_peers
        self.relieved = WithoutTracing(self.chain, waiting.ns, waiting.whole_ns)
        self._known: dict[tuple[float, ...], int] = {}

    def step(self, scale: float, host: float = 1.0, waits: float = 1.0, work: float = 1.0, near: float = 1.0) -> int:
        """Return the step (ns) at these factors."""
        asked = (scale, host, waits if self.relieved.waits else 1.0, work, near)
        if asked not in self._known:
            self._known[asked] = self.window.step_ns(run(self.relieved.columns(*asked)).round_ns)
        return self._known[asked]

    @property
    def fed_ns(self) -> int:
        """The step at the likely costs of tracing if data were always ready (ns)."""
        cols = self.relieved.columns(1.0, near=self.added.near)
        ready = replace(cols, gap=cols.gap - cols.loading, loading=np.zeros_like(cols.loading))
        return self.window.step_ns(run(ready).round_ns)

    def wait_less(self, ns: int) -> None:
        """Let the steps wait so much less for their batches than recorded (ns a step), each wait by the same share."""
        waits_ns = int(self.relieved.recorded.loading.sum()) // self.window.steps
        self.relieved.with_loading(max(1 - ns / max(waits_ns, 1), 0.0))
        self._known.clear()

    @property
    def error(self) -> float:
        """The relative error of the replay with all of tracing."""
        return abs(self.step(0.0) - self.window.recorded_ns) / self.window.recorded_ns

    def at(self, waits: float) -> Modelled:
        """Return the step by the known or assumed costs, with ``waits`` times the recorded waiting."""
        added = self.added
        step = self.step(1.0, 1.0, waits, near=added.near)
        if not added.totals:
            return Modelled(step, step, step)
        # The bounds also allow for a host that was slower or faster than usual during the recording, as hosts sometimes are.
        low = self._at_least(waits)
        high = min(self.step(added.low, 1 + FASTER_WHILE_RECORDED, waits, near=added.near), self.most(waits))
        graphs = tables.GRAPH_NODE in added.totals
        below, above = (GRAPH_NODES_BAR_SHARE,) * 2 if graphs else (MODEL_BAR_BELOW_SHARE, MODEL_BAR_ABOVE_SHARE)
        off = max(
            self.error - VALIDATED_ERROR_SHARE, 0.0
        )  # a replay that does not meet the recorded step may miss the other one as far
        return Modelled(step, min(low, round(step * (1 - below - off))), max(high, round(step * (1 + above + off))))

    def most(self, waits: float = 1.0) -> int:
        """Return the longest step (ns): as tracing makes none shorter, the recorded one on a host as slow as in another process."""
        elsewhere = self.step(0.0, 1 + SLOWER_ELSEWHERE, waits)
        return max(elsewhere, round(self.step(0.0, 1.0, waits) * (1 + MODEL_BAR_BELOW_SHARE)))

    def alone(self) -> Modelled:
        """Return this rank's step if it never waited for another rank; as recorded if the others do not show the waiting."""
        return replace(self.at(0.0), by_step=self.by_step()) if self.with_peers else self.as_recorded()

    def as_recorded(self) -> Modelled:
        """Return this rank's step if it waits for other ranks as recorded.

        The lower bound assumes that tracing made the other ranks as much slower as this one.
        """
        with_waits = self.at(1.0)
        if not self.relieved.waits or not self.added.totals:
            return with_waits
        least = self._at_least(0.0)
        low = max(least, with_waits.step_ns - (self.step(0.0, 1.0, 0.0) - least))
        return replace(with_waits, low_ns=min(with_waits.low_ns, low))

    def by_step(self, cols: Columns | None = None) -> dict[int, int]:
        """Return number of a step -> its length (ns); {} if a step's start is not known.

        Of these columns of the chain; without them, as it is if this rank never waited for another.
        """
        cols = cols or self.relieved.columns(1.0, 1.0, 0.0, near=self.added.near)
        first = cols.first_op[sorted(self.chain.borders)]
        if len(first) != self.window.steps or first[-1] >= len(cols.op_item):
            return {}
        _, times = traced(cols)
        _, measured, following = times.op_begin
        lengths = np.diff(np.append(measured[first], following[first[0]]))
        return dict(zip(self.window.numbers, np.maximum(lengths, 0).tolist(), strict=True))

    def _at_least(self, waits: float) -> int:
        """Return the step (ns) on the slowest host during the recording, at the highest costs of tracing."""
        return self.step(self.added.high, 1 - SLOWER_WHILE_RECORDED, waits, near=self.added.near)


def of_job(ranks: Sequence[Modelled]) -> Modelled:
    """Return the step of ranks that wait for each other in every step: that of the slowest, which never waits."""
    more = _in_turn(ranks)
    return Modelled(
        *(round(max(bounds) * more) for bounds in zip(*((r.step_ns, r.low_ns, r.high_ns) for r in ranks), strict=True))
    )


def _in_turn(ranks: Sequence[Modelled]) -> float:
    """Return the factor by which steps are longer than those of the slowest rank, because a different rank is slowest in each.

    This happens, for example, with batches of different length.
    """
    numbers = sorted(set[int].intersection(*(set(r.by_step) for r in ranks)))
    lengths = np.array([[r.by_step[number] for number in numbers] for r in ranks], np.float64)
    slowest = lengths.mean(axis=1).max() if numbers else 0.0
    return float(lengths.max(axis=0).mean() / slowest) if slowest else 1.0


def unprofiled(profile: Profile, model: Model) -> tuple[Unprofiled, Columns, DeviceRound]:
    """Return the step without tracing, the columns of the chain that yields it, and what a round of it does on the device."""
    window, added, relieved = model.window, model.added, model.relieved
    steps = window.steps
    measured: tables.Measured | None = tables.measured(profile, window.numbers)
    # No host time, no waiting, and the device as much faster as was ever observed.
    least = model.step(MOST_COST_SCALE, 0.0, 0.0, LEAST_WORK_TIMES) if measured is not None else 0
    if (
        measured is not None and measured.step_ns < least
    ):  # not the recorded step: it holds more, or the host only ran ahead of the device
        measured = _with_pauses(profile, model, least)
    work, near, loading = 1.0, 1.0, 0
    if measured is None:
        scale, host, near, count, source = 1.0, 1.0, added.near, 0, added.source
        others = _other_ranks(profile) if model.with_peers else None
        estimate = model.as_recorded() if others is None else of_job([model.alone(), *others])
        waits, most = 1.0, estimate.high_ns
        if others is not None:  # tracing makes no step shorter
            recorded = model.step(0.0)
            waits = _waiting(min(estimate.step_ns, recorded), lambda part: model.step(1.0, 1.0, part, near=near))
            most = min(most, model.most())
        step = model.step(1.0, 1.0, waits, near=near)
        low, high = min(estimate.low_ns, step), max(most, step)
    else:
        # Tracing makes no step shorter: if the measured steps were longer, the host was slower then. But a mean of all steps
        # counts what only some of them do, and so it is the step.
        if measured.mean:
            waits_ns = int(relieved.recorded.loading.sum()) // steps
            loading = bare_loading.more_ns(profile, model.step(1.0, near=added.near), waits_ns, model.fed_ns)
            if loading < 0:  # or fewer kernels would have to make up for it
                model.wait_less(-loading)
                loading = 0
        worked = measured.step_ns - loading
        slower = _slower(worked, model, waits=1.0) if measured.mean else None
        worked = worked if slower else min(worked, model.step(0.0))
        step = worked + loading
        low, high = min(max(measured.low_ns, least), step), measured.high_ns
        source, count = measured.source, measured.count
        waits = _less_waiting(worked, lambda part: model.step(1.0, 1.0, part)) if relieved.waits else 1.0
        usual = _by_device(worked, model, waits)
        near = added.near if usual else 1.0
        scale, host, work = (
            slower or usual or _meeting(worked, lambda scale, host=1.0, work=1.0: model.step(scale, host, waits, work))
        )
    cols = relieved.columns(scale, host, waits, work, near)
    shown = on_device(model.chain, cols, peers.communication(profile))
    if relieved.waits:
        shown = as_late_rank_idles(profile, model.chain, relieved.recorded, shown)
    shown = shown.waiting_longer(loading * steps)
    # If something lies between steps, it is assumed to have the same shares of work and idle time as the steps.
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
            exposed_comm_ns=round(shown.exposed_comm_ns * part) // steps,
            **tables.beside(profile),
        ),
        cols,
        shown,
    )


def _with_pauses(profile: Profile, model: Model, least_ns: int) -> tables.Measured | None:
    """Return the loop's mean as measured, for the replayed steps, which hold what runs between bare ones; None if it is not theirs.

    They may hold one pause of the loop in fewer steps than it comes in, so it is scaled as the recorded steps are. Tracing makes none
    shorter, and no device is faster than `least_ns`.
    """
    loop = tables.of_loop(profile)
    mean_ns = _mean_recorded(profile, profile.steps.process, model.window.device, profile.scope.steps)
    if loop is None or mean_ns is None:
        return None
    times = model.window.recorded_ns / mean_ns
    step, low, high = (round(times * ns) for ns in (loop.step_ns, loop.low_ns, loop.high_ns))
    return replace(loop, step_ns=step, low_ns=low, high_ns=high) if least_ns <= step <= model.step(0.0) else None


def steady_lengths(profile: Profile, real: Unprofiled, steps: int) -> tuple[int, int]:
    """Return the mean steady step without a profiler and as recorded (ns); ``steps`` are steady.

    A modeled step is the mean of the replayed steps. If the steady steps are more than those, it is scaled by the ratio of the
    two recorded means.
    """
    mean = _mean_recorded(profile, real.process, real.device, steps)
    if real.steps == steps or mean is None or not real.recorded_ns:
        return real.step_ns, real.recorded_ns
    # No mean step is longer than the loop per step: if it is, more of the loop's pauses are in the replayed steps than in others.
    measured = min(real.step_ns, real.loop_ns or real.step_ns)
    return measured if real.measured_steps else real.step_ns * mean // real.recorded_ns, mean


def _mean_recorded(profile: Profile, process: int, device: int, steps: int) -> int | None:
    """Return the mean of the steady steps of a GPU as recorded (ns), None unless it has so many."""
    first, last = profile.steps.steady or (0, -1)
    of_gpu = (pl.col("process") == process) & (pl.col("device") == device)
    tiles = profile.steps.gpu.filter(of_gpu & pl.col("index").is_between(first, last))
    return int((tiles["end_ns"] - tiles["start_ns"]).sum()) // tiles.height if steps and tiles.height == steps else None


def _other_ranks(profile: Profile) -> list[Modelled] | None:
    """Return the step of each other rank of the job by itself; None if one cannot be replayed, which may be the slowest."""
    elsewhere = profile.other_ranks.alone if profile.other_ranks else ()
    if elsewhere is None:
        return None
    models = [model_of(other) for other in peers.others(profile)]
    if any(isinstance(model, Withheld) for model in models):
        return None
    return [*(model.alone() for model in models if isinstance(model, Model)), *elsewhere]


def _less_waiting(step_ns: int, step_of: Callable[[float], int]) -> float:
    """Return the share of the recorded waiting for other ranks, at most 1, with which ``step_of`` gives the step."""
    if step_of(1.0) <= step_ns * (1 + CLOSE_TO_MEASURED_SHARE):
        return 1.0
    if step_of(0.0) >= step_ns:
        return 0.0
    return 1.0 - _bisected(0.0, 1.0, step_ns, lambda less: step_of(1.0 - less))


def _waiting(step_ns: int, step_of: Callable[[float], int]) -> float:
    """Return the factor of the recorded waiting for other ranks with which ``step_of`` gives the job's step.

    It is more than 1 if this rank is faster without tracing and the rank that it waits for is not.
    """
    if step_of(1.0) >= step_ns * (1 - CLOSE_TO_MEASURED_SHARE):
        return _less_waiting(step_ns, step_of)
    most = 2.0
    while step_of(most) < step_ns and most < MOST_RANK_WAITING_TIMES:
        most *= 2
    return most - _bisected(0.0, most, step_ns, lambda less: step_of(most - less))


def _meeting(step_ns: int, step_of: Callable[..., int]) -> tuple[float, float, float]:
    """Return the factors of the costs, of other host time and of device time that make the step equal the measured one."""
    if abs(step_of(1.0) - step_ns) <= CLOSE_TO_MEASURED_SHARE * step_ns:
        return 1.0, 1.0, 1.0
    if step_of(0.0) <= step_ns:
        return 0.0, 1.0, 1.0
    if step_of(MOST_COST_SCALE) < step_ns:
        return _bisected(0.0, MOST_COST_SCALE, step_ns, step_of), 1.0, 1.0
    if step_of(MOST_COST_SCALE, LEAST_HOST_TIMES) > step_ns:
        # Host time cannot explain the difference, so it must be device time.
        work = 1.0 - _bisected(0.0, 1.0 - LEAST_WORK_TIMES, step_ns, lambda less: step_of(1.0, 1.0, 1.0 - less))
        if step_of(1.0, 1.0, work) <= step_ns * (1 + 2 * CLOSE_TO_MEASURED_SHARE):
            return 1.0, 1.0, work
        # Both are longer than the step: the device's time that is left without host code, and then the host code beside it.
        work = 1.0 - _bisected(
            0.0, 1.0 - LEAST_WORK_TIMES, step_ns, lambda less: step_of(1.0, LEAST_HOST_TIMES, 1.0 - less)
        )
        return (
            1.0,
            1.0 - _bisected(0.0, 1.0 - LEAST_HOST_TIMES, step_ns, lambda less: step_of(1.0, 1.0 - less, work)),
            work,
        )
    # Even without any cost of tracing, the host was slower here than when the step was measured.
    host = 1.0 - _bisected(0.0, 1.0 - LEAST_HOST_TIMES, step_ns, lambda less: step_of(MOST_COST_SCALE, 1.0 - less))
    return MOST_COST_SCALE, host, 1.0


def _by_device(step_ns: int, model: Model, waits: float) -> tuple[float, float, float] | None:
    """Return the factors of tracing, host and device, beside `overhead.Added.near`, with which the device sets the measured step.

    None if it does not: without its host it takes less than a measured step by more than such a one is known to, or the host, at its
    usual speed, takes longer than the step. A host that the step does not show may be as fast as its calls say, and not as slow
    as would just do.
    """
    near = model.added.near
    device = model.step(MOST_COST_SCALE, LEAST_HOST_TIMES, waits)
    if (
        not step_ns * (1 - LEAST_MEASURED_BAR_SHARE) <= device <= step_ns
        or model.step(1.0, 1.0, waits, near=near) > step_ns
    ):
        return None
    less = _bisected(
        0.0, MOST_WORK_TIMES - 1, step_ns, lambda less: model.step(1.0, 1.0, waits, MOST_WORK_TIMES - less, near)
    )
    return 1.0, 1.0, MOST_WORK_TIMES - less


def _slower(step_ns: int, model: Model, waits: float) -> tuple[float, float, float] | None:
    """Return the factors of tracing, host and device with which the step is as long as a measured one that is longer than recorded.

    None if it is not longer, or longer than a slower host or device explains.
    """
    if step_ns <= model.step(0.0) * (1 + CLOSE_TO_MEASURED_SHARE):
        return None
    if model.step(0.0, MOST_HOST_TIMES, waits) >= step_ns:
        less = _bisected(0.0, MOST_HOST_TIMES - 1, step_ns, lambda less: model.step(0.0, MOST_HOST_TIMES - less, waits))
        return 0.0, MOST_HOST_TIMES - less, 1.0
    if model.step(0.0, 1.0, waits, MOST_WORK_TIMES) >= step_ns:
        less = _bisected(
            0.0, MOST_WORK_TIMES - 1, step_ns, lambda less: model.step(0.0, 1.0, waits, MOST_WORK_TIMES - less)
        )
        return 0.0, 1.0, MOST_WORK_TIMES - less
    return None


def _bisected(low: float, high: float, step_ns: int, step_of: Callable[[float], int]) -> float:
    """Return where ``step_of``, a decreasing function, equals ``step_ns`` within the tolerance, by bisection."""
    for _ in range(SCALE_HALVINGS):
        middle = (low + high) / 2
        step = step_of(middle)
        if abs(step - step_ns) <= CLOSE_TO_MEASURED_SHARE * step_ns:
            return middle
        low, high = (middle, high) if step > step_ns else (low, middle)
    return (low + high) / 2

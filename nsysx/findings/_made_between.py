"""What runs a network between steps to make what the steps work with, and is no evaluation: nobody reads what it makes.

An evaluation ends in numbers for somebody: on some rank a copy goes to the host. A rollout calls the network many times in a row before
every so many updates, and draws between two calls; an index, features or labels that are computed anew stay on the GPU like what it makes.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case, Fix
from nsysx.findings._finding_bounds import (
    BUSY_BETWEEN_SHARE,
    DRAWS_A_CALL,
    OLD_ROWS_SHARE,
    POLICY_CALLS,
    STRETCHES_READ_SHARE,
    TRAINED_ROWS_SHARE,
)
from nsysx.findings._fix import way
from nsysx.frames.intervals import interval_of
from nsysx.reading import schema
from nsysx.records import whole_number

#: Kernels that draw numbers: of torch's own distributions, and of multinomial.
_DRAWS = r"(?i)distribution_|multinomial"
_GATHERS = "ncclDevKernel_AllGather"
#: The classes of a policy's wrapper, without which it is compiled.
_DDP = re.compile(r"DDP|DistributedDataParallel")

#: What is advised of a policy that DDP wraps: its wrapper runs code of its own in each call, and exchanges in some.
_UNWRAPPED = (
    "Let the rollout call the bare module, compiled so that CUDA graphs launch its forwards, or step more environments in each round: the "
    "rollout is a part of the loop, and waits for launches"
)
#: What the wrapper did in the first call of a rollout.
_OWN_BUFFERS = (
    " The wrapper sends the buffers of rank 0 in the first call; without it each rank acts with its own: send them once where they "
    "differ."
)
#: What is advised where the GPU works for most of a rollout.
_WORKING = "Compile the policy's forward for the rollout, or run it in 16 bits: the rollout is a part of the loop, and the GPU works in it"


class _BetweenTwo(NamedTuple):
    """What was recorded between two steps: the step of the capture before it, its time (ns), that in which a network runs and in which the
    GPU works, and how often a network is called, numbers are drawn outside of it, something is copied to the host, and parameters are
    gathered.
    """

    step: int
    ns: int
    forward_ns: int
    busy_ns: int
    calls: int
    drawn: int
    read: int
    gathers: int


class Rollout(NamedTuple):
    """A rollout of ``calls`` calls of a network before every ``every`` steps; the GPU works ``busy_ns`` in it, and ``forwards`` is the
    share of its time in which the network runs.

    ``drawn``: it is told by what is drawn between the calls, else by what the steps are given. ``wrapped``: DDP wraps the network,
    and sends so many ``buffers`` of it from rank 0 to all ranks. ``gathers``: so often each call of a sharded network gathers parameters.
    """

    calls: int
    every: int
    busy_ns: int
    forwards: float
    drawn: bool
    wrapped: bool
    buffers: int = 0
    gathers: int = 0

    def sentence(self) -> str:
        """Return what was seen."""
        seen = (
            "numbers are drawn between its calls, and nothing of it is copied to the host"
            if self.drawn
            else "what its calls are given is what the steps behind it train on"
        )
        each = f"before every {self.every} steps " if self.every > 1 else ""
        return (
            f"It is a rollout, no evaluation: {each}a network is called {units.count(self.calls)} times without gradients, "
            f"{seen}. It is a part of each iteration of the loop."
            + (
                f" Each call gathers parameters of the sharded network, {units.several(self.gathers, 'time')}."
                if self.gathers
                else ""
            )
        )

    def goes_ns(self, between_ns: int) -> int:
        """Return the most that goes of it per step (ns): what is not the network's forward stays, and so does the GPU's work."""
        return max(0, round(min(self.forwards * between_ns, between_ns - self.busy_ns / max(self.every, 1))))

    def waits_for_launches(self, between_ns: int) -> bool:
        """Return whether the GPU idles for most of it."""
        return 0 < self.busy_ns < BUSY_BETWEEN_SHARE * between_ns * self.every

    def fix(self, between_ns: int) -> Fix:
        """Return the advice to make it faster."""
        if self.gathers:
            return Fix.by_name("gathered-once")
        fix = Fix.by_name("rollout-compiled")
        whose = "net.module" if self.wrapped else "net"
        launching = _UNWRAPPED if self.wrapped else fix.text
        text = launching if self.waits_for_launches(between_ns) else _WORKING
        note = "without the wrapper; " if self.wrapped else ""
        paste = (
            f'policy = torch.compile({whose}, mode="reduce-overhead")  # once, before the loop; {note}the first calls record it\n'
            "logits, value = policy(obs)  # in the rollout: shapes stay the same, what is kept is copied out"
        )
        condition = fix.ways[0].condition + (_OWN_BUFFERS if self.buffers else "")
        return Fix.by_name(way(fix.ways[0].name, text, paste, condition))


def rollout_of(case: Case) -> Rollout | None:
    """Return the rollout that runs between the steps of the shown process, None where what runs there is none, or is not known."""
    every = _by_rank(case.profile)
    ours = every.get(case.process, [])
    rhythm = _rhythm(ours)
    calls = min((each.calls for each in ours), default=0)
    settings = settings_of(case.profile)
    rows = () if settings is None else settings.rows("evaluations") or ()
    if calls < POLICY_CALLS or not rhythm or any(row.get("loader") for row in rows):
        return None
    every_one = [each for of_rank in every.values() for each in of_rank]
    draws = all(each.drawn >= DRAWS_A_CALL * each.calls and not each.read for each in every_one)
    if not draws and not _trained_on(settings):
        return None
    wraps = () if settings is None else settings.rows("wrappers") or ()
    by_ddp = [row for row in wraps if _DDP.search(str(row.get("kind")))]
    sent = sum(whole_number(row.get("buffers")) or 0 for row in by_ddp if row.get("broadcast_buffers") is True)
    busy, each_calls = (float(np.median([getattr(each, column) for each in ours])) for column in ("busy_ns", "calls"))
    divides = any(str(row.get("kind")) in ("fully_shard", "FSDP") for row in wraps)
    gathers = min(each.gathers for each in ours) // max(round(each_calls), 1) if divides else 0
    forwards = sum(each.forward_ns for each in ours) / max(sum(each.ns for each in ours), 1)
    return Rollout(round(each_calls), rhythm, round(busy), forwards, draws, bool(by_ddp), sent, gathers)


def _trained_on(settings: RecordedSettings | None) -> bool:
    """Return whether a step was given the rows that networks had been given before it, and that were new then."""
    rows = (settings.rows("given_rows") if settings is not None else None) or ()
    told = [
        (row.get("share"), row.get("again")) for row in rows if (whole_number(row.get("calls")) or 0) >= POLICY_CALLS
    ]
    return any(
        isinstance(share, float)
        and isinstance(again, float)
        and share >= TRAINED_ROWS_SHARE
        and again <= OLD_ROWS_SHARE
        for share, again in told
    )


def is_unread(profile: Profile) -> bool:
    """Return whether what networks make between steps stays on the GPU: no rank copies any of it to the host.

    What begins with the loop may run beside a first one, and read something else.
    """
    every = [each for of_rank in _by_rank(profile).values() for each in of_rank]
    return bool(every) and sum(each.read > 0 for each in every) <= STRETCHES_READ_SHARE * len(every)


def _rhythm(stretches: list[_BetweenTwo]) -> int:
    """Return after how many steps they come back, 0 where that differs; where two windows meet, it is not known of one."""
    apart = np.diff([each.step for each in stretches])
    every = int(np.median(apart)) if len(apart) else 0
    return every if every > 0 and (apart == every).sum() >= max(len(apart) - 1, 1) else 0


def _by_rank(profile: Profile) -> dict[int, list[_BetweenTwo]]:
    """Return the recorded stretches between steps in which a network is called without gradients, of each process."""
    return profile.once(_stretches)


def _stretches(profile: Profile) -> dict[int, list[_BetweenTwo]]:
    of_process: dict[int, list[_BetweenTwo]] = {}
    between = profile.steps.between.filter("evaluation").sort("start_ns")
    ops = profile.attributed.gpu_ops.filter(pl.col("call_start_ns").is_not_null())
    spans = profile.attributed.phase_spans.filter(pl.col("phase").cast(pl.String) == "evaluation")
    for (process,), rows in between.group_by("process", maintain_order=True):
        start, end = rows["cpu_start_ns"].to_numpy(), rows["cpu_end_ns"].to_numpy()
        made = ops.filter(ops["process"] == process)
        held = interval_of(made["call_start_ns"].to_numpy(), start, end)
        outside = (made["phase"].cast(pl.String) != "evaluation").fill_null(value=True)
        drawn = (made["name"].cast(pl.String).str.contains(_DRAWS) & outside).fill_null(value=False).to_numpy()
        inside = made["name"].cast(pl.String).str.contains(_GATHERS) & ~outside
        gathered = inside.fill_null(value=False).to_numpy()
        to_host = [kind for kind, name in schema.COPY_KINDS.items() if name == "DtoH"]
        read = made["copy_kind"].is_in(to_host).fill_null(value=False).to_numpy()
        threads = profile.steps.cpu.filter(profile.steps.cpu["process"] == process)["thread"].unique()
        calls, until = (
            spans.filter(pl.col("thread").is_in(threads.implode()))[c].to_numpy() for c in ("start_ns", "end_ns")
        )
        within = interval_of(calls, start, end)
        busy = np.zeros(rows.height, np.int64)
        for device in rows["device"].unique().to_list():
            activity = profile.ledgers.activity.get((process, device))
            if activity is not None:
                here = activity.within(activity.labels > 0, rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())
                busy += np.where(rows["device"].to_numpy() == device, here, 0)
        of_process[int(str(process))] = [
            _BetweenTwo(
                int(rows["index"][i]),
                int(end[i] - start[i]),
                int((until - calls)[within == i].sum()),
                int(busy[i]),
                int((within == i).sum()),
                int((drawn & (held == i)).sum()),
                int((read & (held == i)).sum()),
                int((gathered & (held == i)).sum()),
            )
            for i in range(rows.height)
        ]
    return of_process

"""``nsysx whatif``: turns what the command line asks for into edits of the replay, and their results into text."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Sequence
from typing import Literal

import numpy as np
import polars as pl

from nsysx import units
from nsysx.catalogue import Call
from nsysx.errors import EXIT_EMPTY, EXIT_USAGE, NsysxError
from nsysx.events import gpu_samples
from nsysx.events.profile import Profile
from nsysx.replay.changes import Changes as Changes
from nsysx.replay.edits import pinned_rate
from nsysx.replay.engine import (
    Edit,
    FreeLoader,
    Fuse,
    Graph,
    OverlapCopies,
    PinCopies,
    RemoveCalls,
    RemoveExposedComm,
    RemoveHost,
    RemoveOps,
    RemoveWaits,
    Replay,
    ScaleOps,
    replay_of,
)
from nsysx.replay.outcome import Outcome
from nsysx.replay.replay_bounds import CACHE_FLUSH_NS, LISTED_NAME, MOST_WAITS_TRIED, SAVES_NOTHING_SHARE
from nsysx.replay.slowed_kernels import slowed_ns


def _names_nothing(option: str, text: str, names: Sequence[str]) -> NsysxError:
    near = ", ".join(names[:6]) or "nothing in this report"
    return NsysxError(
        f"{option} {text}: matches nothing", slug="whatif-empty", hint=f"The report has: {near}", exit_code=EXIT_USAGE
    )


def _matching(frame: pl.DataFrame, text: str, columns: Sequence[str]) -> pl.DataFrame:
    """Return the rows in which a column equals ``text`` (or the module is below it), or if there are none, contains it."""
    if not text:  # every name contains "", and nobody means all of them
        return frame.clear()
    exact = pl.any_horizontal(pl.col(c).cast(pl.String) == text for c in columns)
    child = pl.col("module").cast(pl.String).str.starts_with(text + ".") if "module" in columns else pl.lit(False)
    matches = frame.filter((exact | child).fill_null(False))
    if matches.height:
        return matches
    inside = pl.any_horizontal(pl.col(c).cast(pl.String).str.contains(text, literal=True) for c in columns)
    return frame.filter(inside.fill_null(False))


def _wait(profile: Profile, text: str) -> RemoveWaits:
    if text == "all":
        return RemoveWaits()
    sites = profile.wait_sites()
    matches = _matching(sites, text, ("api", "module", "site"))
    if not matches.height:
        raise _names_nothing("--remove-wait", text, sites["site"].unique().sort().to_list())
    return RemoveWaits(frozenset(matches["call"].to_list()))


def _graph(profile: Profile, text: str) -> Graph:
    if text == "all":
        return Graph()
    matches = _matching(profile.steady_calls, text, ("module", "phase"))
    if not matches.height:
        raise _names_nothing("--graph", text, _names(profile, "module"))
    return Graph(frozenset(matches["call"].to_list()))


def _kernel(profile: Profile, text: str) -> ScaleOps:
    match = re.fullmatch(r"(.+)=(\d+(?:\.\d+)?)x", text)
    if not match or not float(match[2]):
        what = f"--kernel {text}: not NAME=2x"
        raise NsysxError(
            what,
            slug="whatif-kernel",
            hint="Write part of the kernel's name, =, and how many times faster",
            exit_code=EXIT_USAGE,
        )
    matches = _matching(profile.steady_ops, match[1], ("name", "family"))
    if not matches.height:
        raise _names_nothing("--kernel", match[1], _names(profile, "family"))
    bound, least = gpu_samples.memory_bound(profile, matches)
    return ScaleOps(frozenset(matches["op"].to_list()), 1 / float(match[2]), bound, least)


def _faster(edit: ScaleOps, text: str) -> str:
    """Return the change to faster kernels in words, with the limit that the GPU's counters set."""
    if not edit.bound or edit.factor >= edit.least:
        return f"kernels faster: {text}"
    count = f"{len(edit.bound)} of {len(edit.ops)} executions"
    return f"kernels faster: {text} (the memory bandwidth allows {1 / edit.least:.2f}x in {count})"


def _module(profile: Profile, text: str) -> RemoveOps:
    matches = _matching(profile.steady_ops, text, ("module", "phase"))
    if not matches.height:
        raise _names_nothing("--remove-module", text, _names(profile, "module"))
    return RemoveOps(frozenset(matches["op"].to_list()))


def _sync_calls(profile: Profile, text: str) -> RemoveCalls:
    """Return the removal of the synchronize calls that ``text`` names: part of a function's name, or device, stream or event."""
    syncs = profile.steady_calls.filter(pl.col("kind").cast(pl.String) == Call.SYNC)
    kinds = {"device": "DeviceSynchronize", "stream": "StreamSynchronize", "event": "EventSynchronize"}
    matches = _matching(syncs, kinds.get(text.lower(), text), ("name",))
    if not matches.height:
        names = syncs["name"].cast(pl.String).unique().sort().to_list()
        raise _names_nothing("--remove-sync-calls", text, names)
    return RemoveCalls(frozenset(matches["call"].to_list()))


def _fused(profile: Profile) -> Fuse:
    """Return the fusion of the optimizer's launches into one."""
    of_optimizer = profile.steady_calls.filter(pl.col("phase").cast(pl.String) == "optimizer")
    if not of_optimizer.height:
        phases = profile.steady_calls["phase"].cast(pl.String).drop_nulls().unique().sort().to_list()
        raise _names_nothing("--fuse-optimizer", "(phase optimizer)", phases)
    return Fuse(frozenset(of_optimizer["call"].to_list()))


def cache_calls(profile: Profile) -> frozenset[int]:
    """Return the calls that flushing the cache makes in the steady steps: frees, the waits beside them, and mallocs to refill it.

    If no step frees memory, the cache is not flushed and the set is empty.
    """
    calls = profile.steady_calls.filter(pl.col("process") == profile.steps.process).sort("thread", "start_ns")
    kind = calls["kind"].cast(pl.String)
    free = (kind == Call.FREE).to_numpy()
    if not free.any():
        return frozenset()
    start, end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    near = np.flatnonzero((start[1:] - end[:-1] <= CACHE_FLUSH_NS) & (start[1:] >= start[:-1]))
    beside = np.zeros(len(free), np.bool_)
    beside[near] |= free[near + 1]
    beside[near + 1] |= free[near]
    waits = kind.is_in([Call.SYNC, Call.EVENT]).to_numpy() & beside
    return frozenset(calls["call"].to_numpy()[free | (kind == Call.ALLOC).to_numpy() | waits].tolist())


def _names(profile: Profile, column: str) -> list[str]:
    ns = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns")
    grouped = profile.steady_ops.drop_nulls(column).group_by(pl.col(column).cast(pl.String)).agg(ns)
    return grouped.sort("ns", column, descending=[True, False])[column].to_list()


def _copies(profile: Profile, option: str = "--overlap-copies") -> OverlapCopies:
    """Return the edit that pins and overlaps every copy to the device, at the rate of the report's own large pinned copies, if any.

    Copies to the host keep their wait, because the program reads the result (``.item()``).
    """
    copies = profile.steady_ops.filter(pl.col("copy_kind") == 1)
    if not copies.height:
        raise NsysxError(
            f"{option}: the steady steps copy nothing to the device",
            slug="whatif-empty",
            exit_code=EXIT_USAGE,
        )
    return OverlapCopies(frozenset(copies["op"].to_list()), pinned_rate(profile))


def _pinned(edit: OverlapCopies) -> PinCopies:
    """Return the edit that pins the same copies but leaves them on their stream."""
    return PinCopies(edit.ops, edit.bandwidth_bytes_per_s)


def edits(profile: Profile, changes: Changes) -> list[tuple[str, Edit]]:
    """Return each change in words with its edit. Raises NsysxError (exit code 2) for a name that matches nothing."""
    result: list[tuple[str, Edit]] = []
    result += [(f"no wait: {text}", _wait(profile, text)) for text in changes.remove_wait]
    result += [(f"launches in a CUDA graph: {text}", _graph(profile, text)) for text in changes.graph]
    result += [(_faster(edit, text), edit) for text in changes.kernel if (edit := _kernel(profile, text))]
    result += [(f"without the GPU work of {text}", _module(profile, text)) for text in changes.remove_module]
    if changes.overlap_copies:
        result.append(("copies to the device pinned and overlapped", _copies(profile)))
    if changes.pin_copies:
        result.append(("copies to the device pinned", _pinned(_copies(profile, "--pin-copies"))))
    if changes.free_loader:
        result.append(("data loading takes no time", FreeLoader()))
    if changes.remove_alloc:
        kinds = Call.ALLOCATOR
        calls = profile.steady_calls.filter(pl.col("kind").cast(pl.String).is_in(kinds))
        result.append(("no allocator calls", RemoveCalls(frozenset(calls["call"].to_list()))))
    if changes.keep_cache:
        calls_of_cache = cache_calls(profile)
        if not calls_of_cache:
            raise _names_nothing("--no-empty-cache", "(frees in the steps)", [])
        result.append(("the allocator's cache is kept", RemoveCalls(calls_of_cache, between=True)))
    result += [(f"{text} synchronizes removed", _sync_calls(profile, text)) for text in changes.remove_sync_calls]
    if changes.fuse_optimizer:
        result.append(("the optimizer's launches in one", _fused(profile)))
    if changes.no_host:
        result.append(("no host code between calls (upper bound)", RemoveHost()))
    if changes.no_comm:
        # Without communication a rank computes for less time than was recorded of it.
        slowed = slowed_ns(profile) / max(profile.scope.steps, 1)
        beside = f", kernels beside it {units.duration(slowed)} less" if slowed >= 1 else ""
        result.append((f"communication takes no time{beside} (upper bound)", RemoveExposedComm()))
    return result


#: Other ways to make a change, each with its own price.
_GRAPH_WAYS: tuple[tuple[str, Literal["callable", "compiled"]], ...] = (
    ("by torch.cuda.make_graphed_callables", "callable"),
    ('by torch.compile(mode="reduce-overhead")', "compiled"),
)


def alternatives(edit: Edit) -> list[tuple[str, Edit]]:
    """Return other ways to make a change, which cost more or less, in words and as edits."""
    if isinstance(edit, Graph):
        return [(words, Graph(edit.calls, by)) for words, by in _GRAPH_WAYS]
    if isinstance(edit, OverlapCopies):
        return [("pinned alone, without prefetch", _pinned(edit))]
    return []


def candidates(profile: Profile, replay: Replay) -> list[tuple[str, str, Outcome]]:
    """Return every change that applies to the report: option, description and outcome, the largest saving first."""
    tried = [
        (f"--remove-wait {shlex.quote(site)}", Changes(remove_wait=[site])) for site in _longest_waits(profile, replay)
    ]
    tried += [
        ("--graph all", Changes(graph=["all"])),
        ("--fuse-optimizer", Changes(fuse_optimizer=True)),
        ("--overlap-copies", Changes(overlap_copies=True)),
        ("--free-loader", Changes(free_loader=True)),
        ("--remove-alloc", Changes(remove_alloc=True)),
        ("--no-empty-cache", Changes(keep_cache=True)),
        ("--no-comm", Changes(no_comm=True)),
        ("--no-host", Changes(no_host=True)),
    ]
    outcomes = []
    for option, changes in tried:
        with contextlib.suppress(NsysxError):  # the change does not apply to this report
            ((words, edit),) = edits(profile, changes)
            outcomes.append((option, words, replay.outcome(edit)))
    return sorted(outcomes, key=lambda row: (-row[2].saving_ns, row[0]))


def _longest_waits(profile: Profile, replay: Replay) -> list[str]:
    blocked = replay.blocked_ns()
    sites = profile.wait_sites()["site", "call"].group_by("site").agg("call")
    waits = {site: sum(blocked.get(c, 0) for c in calls) for site, calls in sites.iter_rows()}
    return sorted((s for s, ns in waits.items() if ns), key=lambda s: (-waits[s], s))[:MOST_WAITS_TRIED]


def bounds(profile: Profile, replay: Replay) -> list[str]:
    """Return as lines what is known without a trusted replay: the GPU work of a step, and its waiting for the loader."""
    loading = replay.loading_ns()
    answer = [
        f"recorded   {units.duration(replay.recorded_ns)} a step, mean of {replay.steps} steps",
        f"the unchanged replay misses that by {units.share(replay.error, 1)}, so no change is replayed. What needs no replay:",
        f"  GPU work  {units.duration(replay.gpu_work_ns())} a step: no change of the host brings it below that",
    ]
    if loading:
        left = units.duration(replay.recorded_ns - loading)
        answer.append(f"  loader    {units.duration(loading)} a step waiting for data: without it {left}")
    return answer


def lines(profile: Profile, changes: Changes, first: str = "") -> list[str]:
    """Return the answer as lines of text, with names as the program has them. Without a change, all that save something are listed.

    ``first`` stands before them: what the report advises.

    Raises NsysxError with exit code 4 if there is no replay, or none that can be trusted for what is asked, and with exit code 2
    for a name that matches nothing.
    """
    replay = replay_of(profile)
    if not isinstance(replay, Replay):
        raise NsysxError(f"no replay: {replay.reason}", slug="whatif-no-replay", exit_code=EXIT_EMPTY)
    asked = edits(profile, changes)
    if not replay.trusted:
        if not asked or changes == Changes(free_loader=True):
            return bounds(profile, replay)
        raise NsysxError(replay.misses, slug="whatif-untrusted", exit_code=EXIT_EMPTY)
    text = _head(replay)
    if not asked:
        return [*text, "", *_listed(profile, replay, first)]
    shown = asked if len(asked) == 1 else [*asked, ("all of it together", None)]
    for words, edit in shown:
        outcome = replay.outcome(edit) if edit is not None else replay.outcome(*(e for _, e in asked))
        text += ["", words, *_answer(outcome, replay.steady.now_ns)]
        for other, way in alternatives(edit) if edit is not None else []:
            second = replay.outcome(way)
            text.append(f"  {other}: step {units.duration(second.step_ns)}, {_worth(second, replay.steady.now_ns)}")
    return text


def _head(replay: Replay) -> list[str]:
    """Return how long the step is: as recorded, as replayed, and without the profiler."""
    step = replay.steady
    recorded = f"recorded   {units.duration(step.recorded_ns)} a step, mean of {step.steps} steady steps"
    if replay.steps < step.steps:
        recorded += f"; {replay.steps} of them are replayed, mean {units.duration(replay.recorded_ns)}"
    low, high = map(units.duration, step.bounds_of(step.mean_ns))
    return [
        recorded,
        f"unchanged  {units.duration(replay.unchanged_ns)} replayed, error {units.share(replay.error, 1)}",
        f"real       {units.duration(step.mean_ns)} without profiler ({low} to {high}, {step.source.replace('_', ' ')}); "
        "figures below are unprofiled time",
    ]


def _listed(profile: Profile, replay: Replay, first: str) -> list[str]:
    now_ns = replay.steady.now_ns
    rows = [("report's advice", first)] if first else []
    rows += [
        (option, f"step {units.duration(outcome.step_ns)}, {_worth(outcome, now_ns)}")
        for option, _, outcome in candidates(profile, replay)
        if outcome.saving_ns >= SAVES_NOTHING_SHARE * now_ns
    ]
    wide = min(LISTED_NAME, max((len(name) for name, _ in rows), default=0))
    return [f"{name:<{wide}}  {words}" for name, words in rows]


def _worth(outcome: Outcome, now_ns: float) -> str:
    share = units.share(abs(outcome.saving_ns), now_ns)
    if outcome.saving_ns < 0:
        return f"may lose {units.duration(-outcome.saving_ns)} ({share})"
    return f"saves {units.duration(outcome.saving_ns)} ({share}), ±{units.duration(outcome.bar_ns)}"


def _answer(outcome: Outcome, now_ns: float) -> list[str]:
    answer = [
        f"  step     {units.duration(outcome.step_ns)}",
        f"  {_worth(outcome, now_ns).replace(' ', '    ', 1)}",
        f"  limit    {outcome.next_limit}",
    ]
    if outcome.moves_to:
        answer.append(f"  the wait moves to {outcome.moves_to}")
    return answer

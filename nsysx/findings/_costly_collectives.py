"""When collectives, and what is done for them on the host, cost time that a setting or a line of the program gives back.

What a job's wrappers divide and reduce is in ``_costly_jobs``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import ids, units
from nsysx.advice import Alternative
from nsysx.analyses import lines
from nsysx.catalogue import DeviceActivity, StepPart
from nsysx.events.code_lines import CodeLines
from nsysx.events.frozen_parameters import USED_MAP, frozen_parameters
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings import _late_gradients, _line_remedies, _reduced_twice, _waited_early, _widened_messages
from nsysx.findings._case import Case, Saving, calls_of, ops_of, way
from nsysx.findings._checked_rounds import checks
from nsysx.findings._costly_jobs import ddp, sharded
from nsysx.findings._exposed_transfer import communication
from nsysx.findings._finding_bounds import (
    CORES_PER_RANK,
    FEWEST_GATHERS_PER_STEP,
    LARGE_MESSAGE_BYTES,
    LAUNCHED_LATE_NS,
    LINES_TO_A_READ,
    MOST_SHARE,
    WAITS_FOR_CORES_SHARE,
)
from nsysx.findings._flags_of_ranks import flag_ahead
from nsysx.findings._layer_messages import of_layers
from nsysx.findings._once import Takes, edits_without
from nsysx.findings._rank_rows import rank_rows
from nsysx.findings._sizes_received import RECEIVES, receiving_sizes
from nsysx.findings._values_of_ranks import AT_ONCE, values_at_once
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.model import Row
from nsysx.reading import nccl_notes
from nsysx.replay import peers
from nsysx.replay.edits import RemoveHost, RemoveOps

# ---- unused parameters -----------------------------------------------------------------------------------------------


def unused_search(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return the most that the search for unused parameters takes: the reduction of its map, and the host code behind each forward.

    DDP walks the graph of autograd when its forward ends, on the host, and reduces the map of what is used when backward ends. None
    where that is little: each gradient's hook is longer, too, and how much is not seen.
    """
    comm = case.timed_ops(case.ops["cls"] == DeviceActivity.COMM.value, "op", "name", "phase")
    backward = comm.filter(comm["phase"].cast(pl.String) == "backward")
    maps = backward.filter(lookup.matching(backward["name"], USED_MAP))
    calls = case.calls.sort("start_ns")
    forward = (calls["phase"].cast(pl.String) == "forward").fill_null(value=False).to_numpy()
    behind = calls.filter(pl.Series(~forward & np.append(False, forward[:-1]), dtype=pl.Boolean))
    if not maps.height and not behind.height:
        return None
    worth = case.worth(RemoveOps(ops_of(maps)), RemoveHost(calls_of(behind)), bound=True)
    return worth if case.notable(worth.likely_ns or 0) else None


def search_and_order(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what leaving out a search saves: the search, or what can run beside backward once buckets come in the order of gradients.

    DDP fills buckets in the order of registration, reversed, and reduces them in order; the search keeps it from ordering them anew behind
    the first step. Where the bucket to come first has gradients that come last, all are reduced behind backward.
    """
    search, in_order = unused_search(case, settings), _late_gradients.reduced_in_order(case)
    both = [worth for worth in (search, in_order) if worth is not None and worth.likely_ns is not None]
    return max(both, key=lambda worth: worth.likely_ns or 0, default=None)


def searches_again(case: Case, settings: RecordedSettings) -> str:
    """Return that DDP looks anew in each step for unused parameters, which are the same ones in all of them."""
    wrapper = ddp(settings) or {}
    unused = wrapper.get("unused_parameter_bytes")
    if (
        wrapper.get("find_unused_parameters") is not True
        or wrapper.get("static_graph") is not False
        or wrapper.get("can_set_static_graph") is not True
        or not isinstance(unused, int)
        or not unused
        or frozen_parameters(case.profile) is not None  # which then need not be wrapped
    ):
        return ""
    return (
        f"DDP looks for unused parameters in each step (find_unused_parameters=True); {units.size(unused)} of them are unused, the same "
        "ones in every step so far"
    )


# ---- gathers of sharded parameters -----------------------------------------------------------------------------------


def _gathers(case: Case, phase: str) -> pl.DataFrame:
    """Return the gathers that a phase launches: op, ns, and latency_ns."""
    comm = case.timed_ops(case.ops["cls"] == DeviceActivity.COMM.value, "op", "name", "phase", "latency_ns")
    gathers = comm.filter(comm["phase"].cast(pl.String) == phase)
    gathers = gathers.filter(lookup.matching(gathers["name"], r"AllGather"))
    return gathers if gathers.height >= FEWEST_GATHERS_PER_STEP * case.steps else gathers.clear()


def _exposed_gathers(case: Case, phase: str) -> Saving | None:
    gathers = _gathers(case, phase)
    return case.worth(RemoveOps(ops_of(gathers)), cause=(StepPart.COMM,), bound=True) if gathers.height else None


def prefetched_backward(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return the most that gathers of backward save if compute hides them."""
    return _exposed_gathers(case, "backward")


def prefetched_forward(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return the most that gathers of forward save if compute hides them."""
    return _exposed_gathers(case, "forward")


def gathers_late_in_backward(case: Case, settings: RecordedSettings) -> str:
    """Return that a sharded model gathers the parameters of a unit only when backward reaches it."""
    off = [r for r in sharded(settings) if r.get("kind") == "FSDP" and r.get("backward_prefetch") is None]
    # That the other option was read says that this one is off and not unknown.
    if not any(isinstance(r.get("forward_prefetch"), bool) for r in off) or not _gathers(case, "backward").height:
        return ""
    return "FSDP gathers the parameters of each unit when backward reaches it, not while the one before runs (backward_prefetch=None)"


def gathers_late_in_forward(case: Case, settings: RecordedSettings) -> str:
    """Return that a sharded model gathers the parameters of a unit when the host comes to it, and the host comes late."""
    rows = sharded(settings)
    gathers = _gathers(case, "forward")
    if not rows or not all(r.get("forward_prefetch") is False for r in rows) or not gathers.height:
        return ""
    late = int((gathers["latency_ns"].fill_null(0) <= LAUNCHED_LATE_NS).sum())
    if late < MOST_SHARE * gathers.height:  # they wait for their stream: to launch them earlier changes nothing
        return ""
    return (
        f"{late / gathers.height:.0%} of the gathers of forward begin as soon as they are launched: FSDP launches each when the host "
        "comes to its unit, and nothing is launched ahead (forward_prefetch is off)"
    )


def gathers_at_once(case: Case, settings: RecordedSettings) -> str:
    """Return that a sharded model may gather any number of units, and memory ran out for it."""
    memory = settings.record.get("memory")
    retries = memory.get("retries") if isinstance(memory, dict) else None
    if not any(r.get("limit_all_gathers") is False for r in sharded(settings)) or not retries:
        return ""
    return (
        f"FSDP gathers as many units as the host launches (limit_all_gathers=False), and the allocator ran out of memory "
        f"{units.several(int(retries), 'time')}: each time it frees what it keeps, waits and asks again"
    )


# ---- cores -----------------------------------------------------------------------------------------------------------


def _cores(text: object) -> frozenset[int]:
    """Return the cores of a list such as "0-3,8"; none where it is not known."""
    listed = re.findall(r"(\d{1,6})(?:-(\d{1,6}))?", text) if isinstance(text, str) else []
    return frozenset(core for first, last in listed for core in range(int(first), int(last or first) + 1))


def shared_cores(case: Case, settings: RecordedSettings) -> str:
    """Return that ranks of one host may only use cores that others of them use, too, or their own workers, and these are too few."""
    allowed = {}
    for process in peers.ranks(case.profile):
        records = (p.get("settings") for p in ids.records_of(case.profile.trace.capture.probe, process))
        record = next((each for each in records if isinstance(each, dict)), {})
        allowed[process] = _cores(RecordedSettings(record).cpu("allowed_cores"))
    of_shown, cores = allowed.get(case.process, frozenset()), settings.cpu("cores")
    workers = max((w for r in settings.rows("loaders") or () if isinstance(w := r.get("workers"), int)), default=0)
    waits = case.taken_by(part for part in StepPart if part.idle or part is StepPart.COMM)
    even = isinstance(cores, int) and len(of_shown) < cores // max(len(allowed), 1)
    if even and 0 < len(of_shown) <= workers and waits >= WAITS_FOR_CORES_SHARE * case.step_ns:
        return (
            f"{units.several(workers, 'worker')} of the loader, and the threads of Python and of backward, share "
            f"{units.several(len(of_shown), 'core')} of {cores} (cores {settings.cpu('allowed_cores')}): what the process started with, "
            "or os.sched_setaffinity, which all that it starts inherits"
        )
    sharing = [each for each in allowed.values() if each & of_shown]
    together = frozenset[int]().union(*sharing)
    if len(sharing) < 2 or not isinstance(cores, int) or len(together) >= min(CORES_PER_RANK * len(sharing), cores):
        return ""
    return (
        f"{len(sharing)} ranks may use {units.several(len(together), 'core')} of {cores}, the same ones "
        f"(cores {settings.cpu('allowed_cores')}): their Python, backward and NCCL's threads take turns"
    )


# ---- collectives that lines of the program make ----------------------------------------------------------------------

_COLLECTIVE = re.compile(r"\b(all_reduce|reduce|all_gather\w*|gather\w*|broadcast\w*|barrier)\s*\(")
_READ = re.compile(r"\.(item|tolist|cpu|numpy)\s*\(|\bfloat\s*\(|\bint\s*\(|\bbarrier\s*\(")
#: What is no value that a program looks at: gradients, weights, and objects that ranks need.
_NO_VALUE = re.compile(r"grad|param|broadcast_object_list")


class _Lines(NamedTuple):
    """Lines (rows of the places) that make the ranks meet outside of the networks, those that read what they send, and their ops."""

    collectives: list[int]
    reads: list[int]
    ops: frozenset[int]


def _of_program(profile: Profile) -> pl.DataFrame:
    """Return the collectives (op, ns, stream) that are launched outside of forward, backward and optimizer."""
    ops = profile.steady_ops.select("op", "stream", "phase", "cls", ns=pl.col("end_ns") - pl.col("start_ns"))
    comm = ops.filter(ops["cls"] == DeviceActivity.COMM.value)
    phase = comm["phase"].cast(pl.String)
    return comm.filter(~phase.is_in(["forward", "backward", "optimizer"]).fill_null(value=False))


def _meeting_lines(profile: Profile) -> _Lines | None:
    """Return the lines that reduce metrics and read them in each step; None where there are none or lines are not known."""
    code, steps = profile.code(), profile.scope.steps or 1
    comm = _small(profile, profile.once(_of_program))
    if code is None or not comm.height:
        return None
    place_of_op = code.places_of(code.op[comm["op"].to_numpy()])
    source = lines.texts(profile)
    text = {n: lines.text_of(source, *code.places.row(n)[:2]) or "" for n in range(code.places.height)}
    often = {n: int((place_of_op == n).sum()) for n in np.unique(place_of_op[place_of_op >= 0]).tolist()}
    of_sizes = receiving_sizes(profile, code, [n for n in often if RECEIVES.search(text[n])])
    meets = [
        n
        for n, count in often.items()
        if count >= steps and (n in of_sizes or (_COLLECTIVE.search(text[n]) and not _NO_VALUE.search(text[n])))
    ]
    met = [code.places.row(n) for n in meets]
    met += [code.places.row(n) for n in _callers(code, comm, place_of_op, meets)]
    reads = [
        n
        for n, (file, line, function) in enumerate(code.places.iter_rows())
        if _READ.search(text[n])
        and any((f, g) == (file, function) and 0 <= line - m <= LINES_TO_A_READ for f, m, g in met)
    ]
    waits = code.made_at(profile.wait_sites(), reads)
    if not meets or waits.height < steps:
        return None
    return _Lines(meets, reads, frozenset(comm["op"].to_numpy()[np.isin(place_of_op, meets)].tolist()))


def _small(profile: Profile, comm: pl.DataFrame) -> pl.DataFrame:
    """Return the collectives (op) without reductions that are known to move much: metrics that are reduced are few numbers."""
    ops = profile.steady_ops.filter(profile.steady_ops["op"].is_in(comm["op"].to_list()))
    noted = nccl_notes.messages(profile.trace, ops, nccl_notes.members(profile.trace).get(profile.process, {}))
    large = [
        op
        for op, message in zip(ops["op"].to_list(), noted, strict=True)
        if (message.bytes or 0) >= LARGE_MESSAGE_BYTES and message.kind == "allreduce"
    ]
    return comm.filter(~comm["op"].is_in(large)) if large else comm


def _callers(code: CodeLines, comm: pl.DataFrame, place_of_op: I64, meets: Sequence[int]) -> set[int]:
    """Return the lines (rows of the places) that call the functions in which these lines are: a helper reduces, and its caller reads."""
    stacks = np.unique(code.op[comm["op"].to_numpy()[np.isin(place_of_op, meets)]]).tolist()
    chains = [[n for n in code.chain(stack) if n not in meets] for stack in stacks]
    return {chain[-1] for chain in chains if chain}


def metrics_each_step(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that a line reduces a value over all ranks in each step, and one behind it reads it on the host."""
    meets, code = case.profile.once(_meeting_lines), case.profile.code()
    if meets is None or code is None or checks(case.profile):  # the rounds of a solver need what is reduced
        return ""
    source = lines.texts(case.profile)
    shown = [
        f"line {code.places.row(n)[1]} ({lines.text_of(source, *code.places.row(n)[:2])})"
        for n in meets.collectives[:2]
    ]
    often = metrics_often(case)
    return (
        f"{' and '.join(shown)} makes all ranks meet {often:.0f} times in each step, and the host then waits to read the result: "
        "nothing is launched ahead"
    )


def metrics_often(case: Case) -> float:
    """Return how often in a step these lines make all ranks meet."""
    meets = case.profile.once(_meeting_lines)
    return 0.0 if meets is None else len(meets.ops) / case.steps


def in_words_of_line(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy for what these lines exchange: what metrics are made of is counted on each rank, sizes are agreed on."""
    meets, code = case.profile.once(_meeting_lines), case.profile.code()
    if meets is None or code is None:
        return title, remedy
    source, among = lines.texts(case.profile), frozenset({"counted-apart"})
    made = [lines.text_of(source, *code.places.row(n)[:2]) or "" for n in meets.collectives]
    if all(map(RECEIVES.search, made)):
        return "Sizes are sent before each message, and read on the host", way("sizes-agreed-once")
    if ahead := flag_ahead(made, [lines.text_of(source, *code.places.row(n)[:2]) or "" for n in meets.reads]):
        return "A flag of all ranks is asked for in each step, and waited for", ahead
    metric = "What a metric is made of is gathered on every rank in each step"
    if advised := values_at_once(case.profile, meets.collectives[0]):  # a norm that scales gradients: in each step
        at_once = "Values of all ranks are reduced one by one, and read, in each step"
        return at_once if advised.ways[0].name == AT_ONCE.name else metric, advised.ways[0]
    fix = next((f for text in made if (f := _line_remedies.fix_of(_line_remedies.Seen(text), among))), None)
    return (title, remedy) if fix is None else (metric, fix.ways[0])


def without_metrics(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return the most that it saves if these lines are not run in every step."""
    meets, code = case.profile.once(_meeting_lines), case.profile.code()
    if meets is None or code is None:
        return None
    calls = code.made_at(case.calls, [*meets.collectives, *meets.reads])
    return case.worth(*edits_without(calls, case.ops), bound=True)


def of_metrics(case: Case) -> Takes:
    """Return the collectives of these lines."""
    meets = case.profile.once(_meeting_lines)
    return Takes(frozenset() if meets is None else meets.ops)


def place_of_metrics(case: Case) -> Row:
    """Return the first of these lines."""
    meets, code = case.profile.once(_meeting_lines), case.profile.code()
    if meets is None or code is None:
        return {}
    return code.where(meets.collectives[0])


def _held_up(profile: Profile) -> pl.DataFrame:
    """Return the program's own collectives (op, ns) on the stream that computes, those that metrics are reduced with left out."""
    comm, meets = profile.once(_of_program), profile.once(_meeting_lines)
    comm = comm.filter((comm["phase"].cast(pl.String) != "evaluation").fill_null(value=True))  # a network's, too
    ops = profile.steady_ops.select("stream", "op_kind", "cls", ns=pl.col("end_ns") - pl.col("start_ns"))
    computing = ops.filter((ops["op_kind"] == "kernel") & (ops["cls"] != DeviceActivity.COMM.value))
    if not computing.height or not comm.height:
        return comm.clear()
    busiest = computing.group_by("stream").agg(pl.col("ns").sum()).sort("ns", "stream")["stream"][-1]
    return comm.filter((comm["stream"] == busiest) & ~comm["op"].is_in(list(meets.ops if meets is not None else ())))


def _held_up_here(case: Case) -> pl.DataFrame:
    """Return these collectives (op, ns), without those of which it is told that half of their bytes, or none, need be sent, gradients that
    a wrapper would reduce beside backward, and those of lines behind which the next work reads what they bring. What layers need at
    once, and messages between stages of a pipeline, have nothing to run beside.
    """
    otherwise = of_layers(case).at_once | _reduced_twice.taken(case).ops if case.profile.once(_held_up).height else ()
    held = case.profile.once(_held_up).filter(~pl.col("op").is_in(list(otherwise)))
    if any(row.get("bubble_ns") is not None for row in rank_rows(case)):
        between = lookup.matching(case.ops["name"], r"SendRecv")
        held = held.filter(~pl.col("op").is_in(case.ops["op"].to_numpy()[between].tolist()))
    if held.height and _widened_messages.sent_as_float32(case):
        held = held.filter(~held["op"].is_in(list(_widened_messages.taken(case).ops)))
    if held.height and _late_gradients.reduced_late(case) is not None:
        late = communication(case).filter(_late_gradients.late_reductions(case))
        held = held.filter(~held["op"].is_in(late["op"].to_list()))
    code = case.profile.code()
    if held.height and code is not None:
        needed = _waited_early.needed_at_once(case.profile, case.step_ns)
        line_of_op = code.places_of(code.op[held["op"].to_numpy()])
        held = held.filter(pl.Series(~np.isin(line_of_op, list(needed)), dtype=pl.Boolean))
    return held


def on_compute_stream(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that collectives of the program's own lines run on the stream that computes."""
    held = _held_up_here(case)
    ns = case.per_step(int(held["ns"].sum()))
    if not held.height or not case.notable(ns):
        return ""
    return (
        f"{units.several(round(held.height / case.steps), 'collective')} in each step, {units.duration(ns)}, run on the stream of the "
        "computation: nothing runs beside them"
    )


def beside_compute(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return the most that it saves if computation hides these collectives."""
    return case.worth(RemoveOps(ops_of(_held_up_here(case))), cause=(StepPart.COMM,), bound=True)


def of_held_up(case: Case) -> Takes:
    """Return these collectives."""
    return Takes(ops_of(_held_up_here(case)))


def place_of_held_up(case: Case) -> Row:
    """Return the line that makes most of them, as far as lines are known."""
    code, held = case.profile.code(), _held_up_here(case)
    if code is None or not held.height:
        return {}
    place_of_op = code.places_of(code.op[held["op"].to_numpy()])
    return code.where_most(place_of_op, held["ns"].to_numpy())

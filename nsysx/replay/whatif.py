"""``nsysx whatif``: the words of the command line as edits of the replay."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from nsysx import units
from nsysx.errors import EXIT_EMPTY, EXIT_USAGE, NsysxError
from nsysx.events.profile import Profile
from nsysx.replay.engine import (
    Edit,
    FreeLoader,
    Graph,
    OverlapCopies,
    RemoveCalls,
    RemoveExposedComm,
    RemoveHost,
    RemoveOps,
    RemoveWaits,
    Replay,
    ScaleOps,
    replay_of,
)

#: What pinned memory reaches over PCIe 5 x16, measured on an H200 host; used where the report has no pinned copy of its own.
_PINNED_BYTES_PER_S = 55e9


@dataclass(frozen=True)
class Wishes:
    """What the command line asks for; each text names a module, an API function, a kernel or a call site, or "all"."""

    remove_wait: Sequence[str] = ()
    graph: Sequence[str] = ()
    kernel: Sequence[str] = ()
    remove_module: Sequence[str] = ()
    overlap_copies: bool = False
    free_loader: bool = False
    remove_alloc: bool = False
    no_host: bool = False
    no_comm: bool = False


def _none(option: str, text: str, known: Sequence[str]) -> NsysxError:
    near = ", ".join(known[:6]) or "nothing in this report"
    return NsysxError(
        f"{option} {text}: matches nothing", slug="whatif-empty", hint=f"There is: {near}", exit_code=EXIT_USAGE
    )


def _matching(frame: pl.DataFrame, text: str, columns: Sequence[str]) -> pl.DataFrame:
    """Return the rows in which one of the columns is ``text`` or contains it; a module brings its children."""
    if not text:  # every name contains it, and nobody means all of them
        return frame.clear()
    exact = pl.any_horizontal(pl.col(c).cast(pl.String) == text for c in columns)
    child = pl.col("module").cast(pl.String).str.starts_with(text + ".") if "module" in columns else pl.lit(False)
    found = frame.filter((exact | child).fill_null(False))
    if found.height:
        return found
    inside = pl.any_horizontal(pl.col(c).cast(pl.String).str.contains(text, literal=True) for c in columns)
    return frame.filter(inside.fill_null(False))


def _wait(profile: Profile, text: str) -> RemoveWaits:
    if text == "all":
        return RemoveWaits()
    sites = profile.wait_sites()
    found = _matching(sites, text, ("api", "module", "site"))
    if not found.height:
        raise _none("--remove-wait", text, sites["site"].unique().sort().to_list())
    return RemoveWaits(frozenset(found["call"].to_list()))


def _graph(profile: Profile, text: str) -> Graph:
    if text == "all":
        return Graph()
    found = _matching(profile.steady_calls, text, ("module", "phase"))
    if not found.height:
        raise _none("--graph", text, _names(profile, "module"))
    return Graph(frozenset(found["call"].to_list()))


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
    found = _matching(profile.steady_ops, match[1], ("name", "family"))
    if not found.height:
        raise _none("--kernel", match[1], _names(profile, "family"))
    return ScaleOps(frozenset(found["op"].to_list()), 1 / float(match[2]))


def _module(profile: Profile, text: str) -> RemoveOps:
    found = _matching(profile.steady_ops, text, ("module", "phase"))
    if not found.height:
        raise _none("--remove-module", text, _names(profile, "module"))
    return RemoveOps(frozenset(found["op"].to_list()))


def _names(profile: Profile, column: str) -> list[str]:
    ns = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns")
    grouped = profile.steady_ops.drop_nulls(column).group_by(pl.col(column).cast(pl.String)).agg(ns)
    return grouped.sort("ns", column, descending=[True, False])[column].to_list()


def _copies(profile: Profile) -> OverlapCopies:
    """Pin and overlap every copy from or to the host, at the rate of the report's own pinned copies where there are any."""
    copies = profile.steady_ops.filter(pl.col("copy_kind").is_in([1, 2]))
    if not copies.height:
        raise NsysxError(
            "--overlap-copies: the steady steps copy nothing from or to the host",
            slug="whatif-empty",
            exit_code=EXIT_USAGE,
        )
    pinned = copies.filter(((pl.col("src_kind") == 1) | (pl.col("dst_kind") == 1)) & (pl.col("bytes") >= 1 << 20))
    rate = (pl.col("bytes").sum() / (pl.col("end_ns") - pl.col("start_ns")).sum()).alias("rate")
    measured = pinned.select(rate).item() if pinned.height else None
    return OverlapCopies(frozenset(copies["op"].to_list()), measured * 1e9 if measured else _PINNED_BYTES_PER_S)


def edits(profile: Profile, wishes: Wishes) -> list[tuple[str, Edit]]:
    """Return each wish in words with its edit. Errors: NsysxError, exit code 2, for a name that matches nothing."""
    result: list[tuple[str, Edit]] = []
    result += [(f"no wait: {text}", _wait(profile, text)) for text in wishes.remove_wait]
    result += [(f"launches in a CUDA graph: {text}", _graph(profile, text)) for text in wishes.graph]
    result += [(f"kernels faster: {text}", _kernel(profile, text)) for text in wishes.kernel]
    result += [(f"without the GPU work of {text}", _module(profile, text)) for text in wishes.remove_module]
    if wishes.overlap_copies:
        result.append(("host copies pinned and overlapped", _copies(profile)))
    if wishes.free_loader:
        result.append(("data loading takes no time", FreeLoader()))
    if wishes.remove_alloc:
        kinds = ["alloc", "free", "host_alloc"]
        calls = profile.steady_calls.filter(pl.col("kind").cast(pl.String).is_in(kinds))
        result.append(("no allocator calls", RemoveCalls(frozenset(calls["call"].to_list()))))
    if wishes.no_host:
        result.append(("no host code between calls (upper bound)", RemoveHost()))
    if wishes.no_comm:
        result.append(("communication takes no time (upper bound)", RemoveExposedComm()))
    return result


def lines(profile: Profile, wishes: Wishes) -> list[str]:
    """Return the answer as lines of text, names as the program gave them.

    Errors: NsysxError, exit code 4 when there is no replay that may be trusted, 2 when nothing is asked.
    """
    replay = replay_of(profile)
    if not isinstance(replay, Replay):
        raise NsysxError(f"no replay: {replay.reason}", slug="whatif-no-replay", exit_code=EXIT_EMPTY)
    if not replay.trusted:
        what = f"the unchanged replay misses the recorded step by {replay.error:.1%}: no claims are made"
        raise NsysxError(what, slug="whatif-untrusted", exit_code=EXIT_EMPTY)
    asked = edits(profile, wishes)
    if not asked:
        raise NsysxError(
            "nothing to change", slug="whatif-nothing", hint="See nsysx whatif --help", exit_code=EXIT_USAGE
        )
    said = [
        f"recorded   {units.duration(replay.recorded_ns)} a step, mean of {replay.steps} steady steps",
        f"unchanged  {units.duration(replay.unchanged_ns)} replayed, error {replay.error:.2%}",
    ]
    shown = asked if len(asked) == 1 else [*asked, ("all of it together", None)]
    for words, edit in shown:
        outcome = replay.saving(edit) if edit is not None else replay.saving(*(e for _, e in asked))
        share = units.share(outcome.saving_ns, replay.unchanged_ns)
        said += [
            "",
            words,
            f"  step     {units.duration(outcome.step_ns)}",
            f"  saves    {units.duration(outcome.saving_ns)} ({share}) +- {units.duration(replay.bar_ns)}",
            f"  limit    {outcome.next_limit}",
        ]
        if outcome.moves_to:
            said.append(f"  the wait moves to {outcome.moves_to}")
    return said

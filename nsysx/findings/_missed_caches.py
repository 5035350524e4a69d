"""Caches of the program's own that never find what they keep: each step makes their entries again, and copies them to the GPU.

The test asks for one key and the entry is stored under another one (`_cache_texts`), and in each step of the X-ray what the test lets run
ran as often as the test itself. Where the sizes of what is copied change from step to step, new entries may be needed, and nothing is said.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses import lines
from nsysx.events import line_runs, sampled_stacks
from nsysx.events.code_lines import CodeLines
from nsysx.events.line_shares import divided, driver
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.profile import Profile
from nsysx.findings import _late_host_lines
from nsysx.findings._cache_texts import UnlikeKeys, caches_with_unlike_keys, empties
from nsysx.findings._case import Case, Fix, Rule, Saving
from nsysx.findings._finding_bounds import LINE_MAY_STAY_SHARE, NEARLY_ALL_STEPS_SHARE
from nsysx.findings._found import Found
from nsysx.findings._input_bounds import HOST_SHARE_APART
from nsysx.findings._lines import share_of_idle
from nsysx.findings._needs import step_of
from nsysx.findings._numbers_of_lines import counts_steps
from nsysx.findings._once import Takes, edits_without
from nsysx.frames.intervals import I64
from nsysx.model import Finding
from nsysx.replay.engine import RemoveHost
from nsysx.replay.held_lines import pauses
from nsysx.replay.idle_lines import by_line

#: What is said about such a cache.
NAME = "one-cache-key"


class MissedCache(NamedTuple):
    """A cache of a function of ``file`` that never hits, and the places of the lines that make its entries ``often`` times in a step."""

    file: str
    function: str
    keys: UnlikeKeys
    places: frozenset[int]
    often: float


class OfMissedCache(NamedTuple):
    """What is found about a cache that never hits, and all places of lines that make its entries."""

    finding: Finding
    places: frozenset[int]


def findings_of(case: Case, rule: Rule) -> list[OfMissedCache]:
    """Return a finding for each cache that never hits and costs 1 % of the step or more, the costliest first."""
    if case.profile.code() is None or case.stepless:
        return []
    told = [each for cache in case.profile.once(_missed) if (each := _found(case, rule, cache)) is not None]
    return sorted(told, key=lambda each: -(each.finding.saving.likely_ns or 0))


def _missed(profile: Profile) -> list[MissedCache]:
    code, source = profile.code(), lines.texts(profile)
    assert code is not None
    functions: dict[tuple[str, str], dict[int, int]] = {}  # place of each line
    for line_row, (file, line, function) in enumerate(code.places.iter_rows()):
        if file in source and line is not None and not sampled_stacks.is_library(file):
            functions.setdefault((file, str(function)), {})[line] = line_row
    runs, missed = profile.once(line_runs.of_lines), list[MissedCache]()
    for (file, function), place_of in functions.items():
        texts = {line: text for line in place_of if isinstance(text := source[file].get(str(line)), str)}
        for keys in caches_with_unlike_keys(texts):
            guard, store = place_of[keys.guard], place_of[keys.store]
            emptied = any(empties(text, keys.cache) for text in source[file].values() if isinstance(text, str))
            new_keys = counts_steps(keys.stored) or counts_steps(keys.asked)
            if emptied or new_keys or not _runs_each_time(profile, guard, store):
                continue
            places = frozenset(place_of[line] for line in keys.lines)
            missed.append(MissedCache(file, function, keys, places, float(runs.runs[store])))
    return missed


def _runs_each_time(profile: Profile, guard: int, store: int) -> bool:
    """Return whether what a test lets run ran each time that the test did, in each step in which lines were noted."""
    thread = driver(profile)
    if thread is None:
        return False
    tests, stores = (line_runs.begins(profile, line_row, thread) for line_row in (guard, store))
    behind = np.searchsorted(stores, np.append(tests, np.iinfo(np.int64).max))
    each_time = len(tests) > 0 and bool((np.diff(behind) > 0).all())
    steps = line_runs.noted_steps(profile)
    within = set(np.searchsorted(steps, stores, side="right").tolist())
    return each_time and within >= set(range(1, len(steps) + 1))


def _found(case: Case, rule: Rule, cache: MissedCache) -> OfMissedCache | None:
    code = case.profile.code()
    assert code is not None
    calls = case.calls.filter(pl.Series(_below(code, cache, code.call[case.calls["call"].to_numpy()])))
    if not _alike_in_steps(case, calls):
        return None
    idle = by_line(case.profile)
    idles = _below(code, cache, idle["stack"].to_numpy())
    cost = case.per_step(float(idle["real_ns"].to_numpy()[idles].sum()))
    stacks = np.arange(len(code.place))
    ends_at, within = code.places_of(stacks), _below(code, cache, stacks)
    places = frozenset(ends_at[within].tolist()) - frozenset(ends_at[~within].tolist()) - {-1}
    rows = {(r["file"], r["line"], r["function"]): r for r in case.typed_rows(lines.ROWS)}
    theirs = [row for line_row in sorted(places) if (row := rows.get(code.places.row(line_row))) is not None]
    cost = min(cost, _late_host_lines.most_of(case, rule.cause))
    keys, there = cache.keys, f"{PurePath(cache.file).name}:{cache.keys.guard}"
    fix = _fix(cache, there)
    host, worth = _without(case, code, cache, calls, cost)
    worth = _late_host_lines.without_on_all_ranks(case, theirs, fix, worth)
    if worth.likely_ns is None or not case.notable(worth.likely_ns):
        return None
    title = f"The cache of {there} is filled anew in each step: asked for `{keys.asked}`, stored under `{keys.stored}`"
    idles_for, _ = _late_host_lines.idles_in_words(case, theirs, cost)
    store = f"{PurePath(cache.file).name}:{keys.store}"
    often = f", {cache.often:.0f} times" if cache.often >= 2 else ""
    detail = (
        f"What the test of `{keys.cache}` lets run ran as often as the test in each step of the X-ray{often}: {store} stores under another "
        f"key than the test asks for. Making the entries holds the CPU for {units.duration(host)} {case.per}; {idles_for}."
    )
    most = max(theirs, key=lambda row: row["host_self_ns"], default=None)
    if most is not None and most["host_self_ns"]:
        detail += f" The most of it is at {PurePath(str(most['file'])).name}:{most['line']}, in {most['function']}."
    finding = Found(
        rule,
        title,
        detail,
        worth=worth,
        cost_ns=max(cost, min(worth.likely_ns, case.step_ns)),
        where={"file": cache.file, "line": keys.guard},
        fix=fix,
        takes=Takes(idle=share_of_idle(case.profile, idles)),
    ).as_finding(case)
    return OfMissedCache(finding, places)


def _below(code: CodeLines, cache: MissedCache, stacks: I64) -> Flags:
    """Return which stacks make the entries of a cache."""
    return code.passing(stacks, cache.places)


def _alike_in_steps(case: Case, calls: pl.DataFrame) -> bool:
    """Return whether nearly all steps copy as many bytes to the GPU by these calls, in as many copies; True where none copies any."""
    copies = case.ops.filter(
        (case.ops["op_kind"] == "memcpy") & case.ops["call"].is_in(calls["call"].implode()).fill_null(value=False)
    )
    if not copies.height:
        return True
    begun = copies.join(calls.select("call", called_ns="start_ns"), on="call", how="left", maintain_order="left")
    step = step_of(case.profile, begun["called_ns"])
    sizes: dict[int, list[int]] = {}
    for number, size in zip(step.tolist(), copies["bytes"].fill_null(0).to_list(), strict=True):
        sizes.setdefault(number, []).append(size)
    alike = [tuple(sorted(each)) for each in sizes.values()]
    return max(map(alike.count, alike)) >= NEARLY_ALL_STEPS_SHARE * case.steps


def _without(case: Case, code: CodeLines, cache: MissedCache, calls: pl.DataFrame, cost: int) -> tuple[int, Saving]:
    """Return how long the host makes entries (ns per step), and what it saves if none is made: no call, wait, copy, nor the host code."""
    gaps = pauses(case.profile)
    ns = (gaps["end_ns"] - gaps["start_ns"]).to_numpy()
    pieces = gaps.select("thread", "start_ns", "end_ns", group=pl.int_range(pl.len(), dtype=pl.Int64))
    parts = divided(case.profile, code, pieces)
    within = _below(code, cache, parts["stack"].to_numpy())
    theirs = np.bincount(parts["group"].to_numpy()[within], parts["ns"].to_numpy()[within], len(ns))
    host = case.per_step(float(theirs.sum()) + int((calls["end_ns"] - calls["start_ns"]).sum()))
    share = np.rint(theirs / np.maximum(ns, 1) / HOST_SHARE_APART) * HOST_SHARE_APART
    edits = [each for each in edits_without(calls, case.ops) if not isinstance(each, RemoveHost)]
    behind = gaps["call"].to_numpy()
    parts_of_host = np.unique(share[share > 0]).tolist()
    worth = case.worth(
        *edits, *(RemoveHost(frozenset(behind[share == each].tolist()), share=each) for each in parts_of_host)
    )
    if worth.likely_ns is not None:
        # What makes the entries may leave some host code of its own, and a replay has its error.
        most = min(worth.likely_ns + (worth.error_ns or 0), case.step_ns)
        return host, replace(worth, most_ns=most)
    why = "the time the GPU idles while entries are made that are there"
    return host, Saving(cost, why, error_ns=round(LINE_MAY_STAY_SHARE * cost), most_ns=max(cost, host), source="time")


def _fix(cache: MissedCache, there: str) -> Fix:
    keys = cache.keys
    text = (
        f"Ask for the key under which the entry is stored: the cache of {there} is filled anew in each step, as its test asks for "
        f"`{keys.asked}`, and {PurePath(cache.file).name}:{keys.store} stores the entry under `{keys.stored}`"
    )
    return Fix.by_name(NAME, text=text, paste=keys.paste)

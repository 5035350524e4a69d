"""Tensors that a line of the program updates one by one on every rank, while the ranks wait for each other's hosts: averages, clipping.

On the rank that is shown nothing idles for such a line where another rank's host is behind: its GPU waits in the next collective. What
the line costs the job is known by the replay of all ranks together. Where one process is alone, the line itself is what the GPU waits for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.analyses import lines
from nsysx.events.code_lines import CodeLines
from nsysx.events.looped_updates import LoopedUpdates, looped_updates
from nsysx.events.profile import Profile
from nsysx.events.python_lines import place
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Fix, Saving, calls_of, way
from nsysx.findings._costly_jobs import on_all_ranks
from nsysx.findings._finding_bounds import LISTED_PART_SHARE, LISTED_SHARE, MOST_BODY_LINES, MOST_SHARE
from nsysx.findings._line_remedies import quoted
from nsysx.findings._listed_updates import Listed, in_lists
from nsysx.findings._once import Takes
from nsysx.model import Finding, Row
from nsysx.replay import job_changes, peers

_REMEDY = "foreach-parameters"
_FOR = re.compile(r"^(async\s+)?for\b.*\bin\b")


class _LoopOfRanks(NamedTuple):
    """A loop on one of the ranks: what it updates, the lines of that rank, and the loop as it could be written, None where unknown."""

    updates: LoopedUpdates
    code: CodeLines
    listed: Listed | None


def _loop(profile: Profile) -> _LoopOfRanks | None:
    """Return the loop of the shown rank that runs most operators, else that of another rank; None without one."""
    for each in (profile, *peers.others(profile)):
        loops, code = looped_updates(each), each.code()
        if loops and code is not None:
            return _LoopOfRanks(loops[0], code, listed_at(each, loops[0]))
    return None


def listed_at(profile: Profile, updates: LoopedUpdates) -> Listed | None:
    """Return a loop with lists, None where its lines are not known, or do something else, too."""
    code = profile.code()
    if code is None:
        return None
    places, source = code.places, lines.texts(profile)
    file, last, function = places.row(max(updates.places, key=lambda row: places.row(row)[1] or 0))
    runs = _runs_of_lines(profile, file, function)
    numbers = [places.row(row)[1] for row in updates.places]
    inside = MOST_SHARE * max(runs.get(number, 0) for number in numbers)
    if last is None or any(number > last and count >= inside for number, count in runs.items()):
        return None  # its rounds go on behind the updates
    near = [n for n in sorted(runs) if last - MOST_BODY_LINES <= n <= last]
    text = {n: (lines.text_of(source, file, n) or "").partition("  #")[0].strip() for n in near}
    first = next((n for n in reversed(near) if n <= min(filter(None, numbers)) and _FOR.match(text[n])), None)
    bodies = [text[n] for n in near if first is not None and n > first]
    return None if first is None else in_lists(text[first], bodies, split=updates.split)


def _runs_of_lines(profile: Profile, file: str | None, function: str | None) -> dict[int, int]:
    """Return line -> how often the X-ray noted it, of one function."""
    noted = profile.ranges.lines.group_by(pl.col("label").cast(pl.String)).len()
    described = ((place(label or ""), count) for label, count in noted.iter_rows())
    return {line: count for (f, line, g), count in described if (f, g) == (file, function) and line is not None}


def updated_one_by_one(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that a line updates tensors one by one, on ranks that are replayed together."""
    loop = case.profile.once(_loop)
    if loop is None or on_all_ranks(case, job_changes.OF_HOSTS) is None:
        return ""
    text = lines.text_of(lines.texts(case.profile), *loop.code.places.row(loop.updates.places[0])[:2]) or ""
    dtensor = (
        " on DTensors, each of which goes through Python: it takes the host about ten times as long as one on a plain tensor"
        if loop.updates.split
        else ""
    )
    return (
        f"line {loop.code.places.row(loop.updates.places[0])[1]} ({quoted(text)}) runs {units.count(loop.updates.operators)} operators in "
        f"each step{dtensor}. The GPU's work in them is small, and the ranks wait for each other's hosts"
    )


def in_one_call(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what a job saves if all ranks update lists of tensors: the time of their hosts in the loop, without that of making lists."""
    loop, saving = case.profile.once(_loop), on_all_ranks(case, job_changes.OF_HOSTS)
    if loop is None or saving is None or saving.likely_ns is None:
        return saving
    stays = round(_stays_share(loop) * saving.likely_ns)
    likely = saving.likely_ns - stays
    error = max(saving.error_ns or 0, stays)
    why = "all ranks replayed together, with a few launches in place of the loop and its host code; making the lists stays"
    return Saving(likely, why, error_ns=error, most_ns=min(likely + error, case.step_ns), source="replay")


def _stays_share(loop: _LoopOfRanks) -> float:
    """Return which part of a loop's host time it takes to make the lists, and to call the operators on them."""
    lists = loop.listed.lists / loop.listed.operators if loop.listed is not None else 1.0
    return min(lists * (LISTED_PART_SHARE if loop.updates.split else LISTED_SHARE), 1.0)


def place_of_loop(case: Case) -> Row:
    """Return the line of the loop that launches most."""
    loop = case.profile.once(_loop)
    return {} if loop is None else loop.code.where(loop.updates.places[0])


def taken(case: Case) -> Takes:
    """Return the GPU work of the shown rank in such loops."""
    return Takes(frozenset[int]().union(*(each.ops for each in looped_updates(case.profile))))


def worded(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy with the program's own loop, as it could be written."""
    loop = case.profile.once(_loop)
    return (title, remedy) if loop is None else (title, written(loop.listed, split=loop.updates.split))


def written(listed: Listed | None, *, split: bool) -> Alternative:
    """Return the remedy for a loop, with code that takes its place where that is known."""
    text = "Update all tensors at once with torch._foreach_*"
    condition = "All of them must be on one device, and of one type."
    paste = "torch._foreach_lerp_(averages, parameters, 1 - decay)  # lists of tensors"
    if split:
        text = "Update all tensors at once: torch._foreach_* on .to_local()"
        condition = "All of them must be split over the ranks alike, and of one type."
        paste = f"averages, parameters = ([p.to_local() for p in m.parameters()] for m in (average, model))\n{paste}"
    return way(_REMEDY, text, paste if listed is None else listed.paste, condition)


def but_told(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings about lines without those about the loop that is told of all ranks."""
    saving = in_one_call(case, None) if updated_one_by_one(case) else None
    told = saving is not None and case.notable(saving.likely_ns or 0)
    where = place_of_loop(case) if told else {}
    return [f for f in findings if not where or any(f.where.get(key) != where[key] for key in where)]


class LoopOfMost(NamedTuple):
    """A loop that makes most of some launches: what to do about it, and the calls of it."""

    fix: Fix
    calls: frozenset[int]


def loop_of_most(case: Case, calls: pl.DataFrame) -> LoopOfMost | None:
    """Return the loop that updates tensors one by one and makes most of some calls, None without one."""
    for loop in looped_updates(case.profile):
        of_loop = case.profile.attributed.gpu_ops["call"].gather(sorted(loop.ops))
        theirs = calls.filter(pl.col("call").is_in(of_loop.implode()))
        if 2 * theirs.height > calls.height:
            return LoopOfMost(Fix.by_name(written(listed_at(case.profile, loop), split=loop.split)), calls_of(theirs))
    return None


def in_its_words(case: Case, line_row: int, fix: Fix | None) -> Fix | None:
    """Return what to do about a line of the shown rank that updates tensors one by one, with the program's own loop; else as it is."""
    if fix is None or [each.name for each in fix.ways] != [_REMEDY]:
        return fix
    loop = next((each for each in looped_updates(case.profile) if line_row in each.places), None)
    return fix if loop is None else Fix.by_name(written(listed_at(case.profile, loop), split=loop.split))

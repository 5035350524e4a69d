"""Where a program gives each rank its share of the data: the line that cuts it by the rank's number, else its own sampler, else the line
from which its batch comes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.lines import code_of_ranks, orders_of_ranks, text_of, texts, texts_of_ranks
from nsysx.catalogue import DeviceActivity
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings, file_and_line, settings_of
from nsysx.events.step_work import gpu_work
from nsysx.findings._case import Case, Fix, Saving
from nsysx.findings._dealt_in_turn import in_groups, line_of_sampler
from nsysx.findings._finding_bounds import NAMED_RANKS, UNLIKE_ORDERS_SHARE
from nsysx.findings._flow_work import in_short, place_of_batch
from nsysx.findings._rank_rows import rank_rows
from nsysx.findings._ranks_in_seeds import decided_by, in_one_order
from nsysx.findings._skipped_layers import skipped_layers
from nsysx.frames.statistics import F64
from nsysx.judging.judging_bounds import UNEVEN_CUT_SHARE
from nsysx.model import Finding, Row
from nsysx.replay import peers

_RANK = r"(?<!\w)(?:\w+\.)*\w*rank\b(?:\(\))?"
#: What takes a share: a slice, a part of what was cut into parts, a stretch of numbers.
_TAKES_SHARE = re.compile(
    rf"\[[^\[\]]*{_RANK}[^\[\]]*:|\[[^\[\]]*:[^\[\]]*{_RANK}|"
    rf"\b(?:chunk|split|tensor_split|array_split)\([^()]*\)\s*\[[^\[\]]*{_RANK}|"
    rf"\b(?:range|arange|islice|narrow)\([^=]*{_RANK}"
)
#: A stretch: from the rank's number times a size on. Items of a stretch are alike, those of every n-th item are not.
_STRETCH = re.compile(rf"{_RANK}\s*\*[^\[\]]*:|narrow\([^=]*{_RANK}\s*\*")
#: Every n-th item.
_IN_TURN = re.compile(rf"\[\s*{_RANK}\s*::")
_DEALT = re.compile(rf"\[\s*{_RANK}\s*:[^\[\]:]*:")
_GIVES_OUT = re.compile(r"^yield\b(?!\s+from\b)")
_EQUAL = "equal-work"
#: What the loop over a loader gets from it, and the part of it that a rank takes of its first dimension.
_GETS = re.compile(r"^(?:for\s+(?P<loop>.+?)\s+in\s|(?P<one>[^=]+?)\s*=\s*next\()")
_NAME = re.compile(r"[A-Za-z_]\w*")
_PART = rf"(?:\[[^\[\]]*\])?\[\s*\(?\s*{_RANK}[^\[\],]*:|\.(?:chunk|tensor_split)\(\s*[^(),]+\)\s*\[\s*{_RANK}\s*\]"


def without_sampler(case: Case, finding: Finding) -> Finding:
    """Return advice to give every rank equal work with its place, in words for a program that shares its data itself; other as it is.

    That no loader is there is known by its settings.
    """
    settings = settings_of(case.profile)
    loaders = settings.rows("loaders") if settings is not None else None
    if [way.name for way in finding.remedies] != [_EQUAL] or settings is None or loaders is None:
        return finding
    share = share_line(case.profile)
    if loaders:
        by_sampler = any(row.get("sampler") == "DistributedSampler" for row in loaders)
        line = settings.place("shares") or ({} if by_sampler else share) or settings.place("loader", "loop")
        return replace(finding, where={**finding.where, **line}) if not finding.where.get("file") else finding
    line = share or place_of_batch(case.profile)
    not_noted = "" if share else " The line at which a rank takes its share is not among those that were noted"
    not_noted += f": its batch comes from {in_short(line)}." if not_noted and line else "." if not_noted else ""
    where = {**finding.where, **line} if line and not finding.where.get("file") else finding.where
    placed = replace(
        finding,
        where=where,
        detail=f"{finding.detail} The program has no loader, so no sampler shares its data.{not_noted}",
    )
    return Fix.by_name("mixed-shares").into(placed)


def as_much_in_each_step(case: Case, finding: Finding) -> Finding:
    """Return a finding about ranks that wait in turn for those with more GPU work in a step, with what even work saves and its place.

    That is what draws the layers that each rank leaves out, or the seed by which it has an order of its own; else where batches are put
    together: the sampler, or the line that takes a rank's share, else the loader or the line from which a batch comes.
    """
    rows = rank_rows(case)
    even_ns = max((row["turn_even_ns"] or 0 for row in rows), default=0)
    waits = ", ".join(
        f"rank {row['rank']} {units.duration(row['turn_wait_ns'])}" for row in rows[:NAMED_RANKS] if row["turn_wait_ns"]
    )
    settings, skipped = settings_of(case.profile), case.profile.once(skipped_layers)
    order = order_by_rank(case.profile) if skipped is None else {}
    line = (
        skipped.where
        if skipped is not None
        else order or (settings.place("shares") if settings is not None else {}) or _line_of_batches(case.profile)
    )
    sampler = line_of_sampler(case.profile) if skipped is None and not order else None
    if sampler is not None:
        line = sampler.where
    elif skipped is None:
        line = (
            line or (settings.place("loader", "loop") if settings is not None else {}) or place_of_batch(case.profile)
        )
    likely, apart = min(even_ns, case.step_ns), _apart_by_chance(case.profile)
    saving = Saving(
        likely,
        "all ranks replayed together with as much GPU work in each step; batches are not exactly even, and have less padding if sorted",
        error_ns=round(math.hypot(UNEVEN_CUT_SHARE, apart) * likely),
        source="replay",
    )
    detail = (
        f"{finding.detail} Over all steps the ranks have like amounts of GPU work, and not in each of them: of a step they wait for the "
        f"one that computes longest in it ({waits})."
    )
    if order:
        detail += f" The rank is in the seed {decided_by(case.profile, order)} ({in_short(order)})."
    if skipped is not None:
        detail += f" {skipped.sentence()}"
    waited = sum((row["exposed_wait_ns"] or 0) / max(row["steps"] or 1, 1) for row in rows)
    in_turn: Row = {"turn_wait_ns": sum(row["turn_wait_ns"] or 0 for row in rows), "waited_ns": round(waited)}
    fix = (
        skipped.fix()
        if skipped is not None
        else in_one_order(case.profile, order)
        if order
        else in_groups(sampler.line, sampler.lengths)
        if sampler is not None
        else Fix.by_name("like-batches")
    )
    return fix.into(
        replace(
            finding,
            detail=detail,
            where=dict(line) or finding.where,
            saving=saving,
            evidence=(*finding.evidence, in_turn),
        )
    )


def in_like_order(case: Case, finding: Finding) -> Finding | None:
    """Return a finding about ranks that come late in turn, with the seed by which each goes through its batches in an order of its own.

    Likewise with the layers that each rank leaves out by draws of its own, and with batches dealt out in turn. None without any, and where
    the ranks have like amounts of GPU work in each step: then that makes none of them late. How much goes is known as a bound alone, where
    hosts take part in the waits.
    """
    order, skipped = order_by_rank(case.profile), case.profile.once(skipped_layers)
    dealt = {} if order or skipped is not None else _dealt_line(case.profile)
    share = apart_in_each_step(case.profile) if order or dealt or skipped is not None else 0.0
    if share < UNLIKE_ORDERS_SHARE:
        return None
    if skipped is not None:
        return skipped.fix().into(
            replace(
                finding, detail=f"{finding.detail} {skipped.sentence()}", where=dict(skipped.where) or finding.where
            )
        )
    unlike = (
        f"{finding.detail} The ranks have unlike amounts of GPU work in each step: {units.share(share, 1)} of the longest of each step "
        "goes where they come in one order."
    )
    if dealt:
        told = f"{unlike} Each takes every n-th batch of an order in which neighbours are of unlike size ({in_short(dealt)})."
        line = code_of_ranks(case.profile, dealt["file"], dealt["line"])
        return in_groups(line).into(replace(finding, detail=told, where=dict(dealt)))
    detail = f"{unlike} The rank is in the seed {decided_by(case.profile, order)} ({in_short(order)})."
    return in_one_order(case.profile, order).into(replace(finding, detail=detail, where=dict(order)))


def _dealt_line(profile: Profile) -> Row:
    """Return the line at which a rank takes every n-th of the batches, empty where none is seen."""
    share = share_line(profile)
    dealt = share and any(
        _DEALT.search(_code(noted, share["file"], share["line"])) for noted in (texts(profile), texts_of_ranks(profile))
    )
    return share if dealt else {}


def apart_in_each_step(profile: Profile) -> float:
    """Return which share of the longest GPU work in each step goes if all ranks have as much of their own in it; 0 for one rank."""
    work = work_in_steps(profile)
    longest = float(work.max(axis=0, initial=0).sum())
    return 1 - float(work.mean(axis=0).sum()) / longest if longest else 0.0


def work_in_steps(profile: Profile) -> F64:
    """Return how long the GPU of each rank computes in each step that all of them have (ns): shape (ranks, steps).

    What a rank has more of in all steps, and a slower clock, is left out: each has as much as the others over all of them.
    """
    computes = profile.attributed.gpu_ops.filter(pl.col("cls") == DeviceActivity.COMPUTE.value)
    rows = []
    for each in (profile, *peers.others(profile)):
        steps = each.steps
        inside = (pl.col("process") == steps.process) & pl.col("index").is_between(*(steps.steady or (0, -1)))
        cpu = steps.cpu.filter(inside).sort("number")
        rows.append(dict(zip(cpu["number"].to_list(), gpu_work(cpu, steps.gpu.filter(inside), computes), strict=True)))
    common = sorted(set[int].intersection(*(set(row) for row in rows)))
    work = np.array([[row[number] for number in common] for row in rows], np.float64)
    if not work.size or not work.sum(axis=1).all():
        return np.zeros((len(rows), 0))
    as_much: F64 = work * (work.mean() / work.mean(axis=1, keepdims=True))
    return as_much


def _apart_by_chance(profile: Profile) -> float:
    """Return how far the mean of what ranks are apart in each recorded step may be off that of many steps (share of it): its standard
    error.
    """
    work = work_in_steps(profile)
    apart = work.max(axis=0, initial=0) - work.mean(axis=0)
    if len(apart) < 2 or not apart.sum():
        return 0.0
    return float(apart.std(ddof=1) / math.sqrt(len(apart)) / apart.mean())


def order_by_rank(profile: Profile) -> Row:
    """Return the line of the seed by which each rank goes through its batches in an order of its own, empty where none is seen.

    Of several orders it is one whose function runs in steps.
    """
    orders = orders_of_ranks(profile)
    runs = [order for order in orders if order.get("runs")]
    chosen = next(iter(runs or (orders if len({(o.get("file"), o["seed"]) for o in orders}) == 1 else ())), None)
    return {} if chosen is None else {"file": chosen.get("file"), "line": chosen["seed"]}


def _line_of_batches(profile: Profile) -> Row:
    """Return the line that takes a rank's share; where that deals out in turn, as is advised, the one in its file that gives out what was
    dealt, in its order.
    """
    share, code = share_line(profile), profile.code()
    dealt = share and any(
        _IN_TURN.search(_code(noted, share["file"], share["line"]))
        for noted in (texts(profile), texts_of_ranks(profile))
    )
    if not dealt or code is None:
        return share
    source = texts(profile)
    given = (
        {"file": file, "line": line}
        for file, line, _ in code.places.iter_rows()
        if file == share["file"] and _GIVES_OUT.search(_code(source, file, line))
    )
    return next(given, share)


def share_line(profile: Profile) -> Row:
    """Return the line that takes a share by the rank, empty where none is seen: the first that runs in steps, else the first of all that
    takes a stretch, else that takes another share.
    """
    code = profile.code()
    source, rest = texts(profile), texts_of_ranks(profile)
    in_steps = [] if code is None else [(file, line) for file, line, _ in code.places.iter_rows()]
    before = [(file, int(line)) for file, lines in rest.items() for line in lines if str(line).isdigit()]
    stretches = [candidate for candidate in before if _STRETCH.search(_code(rest, *candidate))]
    for noted, places in ((source, in_steps), (rest, stretches), (rest, before)):
        for file, line in places:
            if _TAKES_SHARE.search(_code(noted, file, line)):
                return {"file": file, "line": line}
    return {}


def _code(source: Mapping[str, Any], file: str, line: int) -> str:
    """Return what stands at a line, without a remark behind it."""
    return (text_of(source, file, line) or "").partition("  #")[0]


class CutBatch(NamedTuple):
    """A loader, and the line at which a rank takes its part of what the loader has made."""

    loader: Row
    where: Row


def cut_after_loading(profile: Profile, settings: RecordedSettings) -> CutBatch | None:
    """Return the loader of whose batches each rank takes a part by its number, in the function that gets them; None without one.

    What is cut along another dimension than the first, as a sequence is, is every rank's own work on the same samples.
    """
    code = profile.code()
    source, places = texts(profile), [] if code is None else list(code.places.iter_rows())
    for loader in settings.rows("loaders") or ():
        loop = file_and_line(loader.get("place"))
        gets = _GETS.search(_code(source, loop["file"], loop["line"])) if loop else None
        function = next((f for file, line, f in places if (file, line) == (loop.get("file"), loop.get("line"))), None)
        if gets is None or function is None:
            continue
        batch = "|".join(map(re.escape, _NAME.findall(gets["loop"] or gets["one"])))
        part = re.compile(rf"(?<![\w.])(?:{batch})(?:{_PART})")
        for file, line, inside in places:
            if (file, inside) == (loop["file"], function) and part.search(_code(source, file, line)):
                return CutBatch(loader, {"file": file, "line": line})
    return None

"""Attention over the whole room of a cache, of which few rows were written (``events.unwritten_keys``): what it reads in vain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import StepPart
from nsysx.events.cached_passes import CachedPass, cached_pass
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.recorded_settings import settings_of
from nsysx.events.trend import ordinal
from nsysx.events.unwritten_keys import UnwrittenKeys, unwritten_keys
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._cut_keys import with_written_keys
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, left_of_new, place_of_operator, time_of_operators, work_of_operators
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._prompt_passes import prompts_of
from nsysx.findings._work_bounds import KEYS_IN_STEPS_OF, SHORT_ATTENTION_NS
from nsysx.model import Finding, Row
from nsysx.records import whole_number
from nsysx.replay.engine import ScaleOps

_REPEATS = ("aten::repeat_interleave", "aten::expand")


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return the finding about attention over keys that nothing wrote, where leaving them out saves 5 % of the step or more."""
    flow = flow_of(case.profile)
    filled = None if flow is None else _filled(case, flow)
    finding = _found(case, rule, flow, filled) if flow is not None and filled is not None else None
    return [] if finding is None else [finding]


class _Filled(NamedTuple):
    """Attention to more keys than were written, in words how that is known, and what writes into the cache (row of the flow)."""

    attention: Sequence[UnwrittenKeys]
    sentence: str
    write: int | None = None
    read: bool = False  # the mask was


def _filled(case: Case, flow: OperatorFlow) -> _Filled | None:
    if unwritten := unwritten_keys(flow):
        written = max(each.written for each in unwritten)
        mean = float(np.mean([each.written / each.keys for each in unwritten]))
        known_by = f"From the prompt on the step has written {units.count(written)} of them at most, {units.share(mean, 1)} on average"
        return _Filled(unwritten, known_by)
    cached = cached_pass(case.profile)
    if cached is None:
        return None
    seen, prompts = _keys_seen(case, cached), prompts_of(case)
    if seen is not None:
        last = seen
        known_by = (
            f"The mask was read in the last step of the recording: it lets see the first {units.count(last)} of them"
        )
    elif prompts is not None:
        last = prompts.rows + (prompts.every - 1) * max(each.queries for each in cached.attention)
        known_by = (
            f"A prompt is {units.count(prompts.rows)} tokens, as one of the X-ray steps shows, and comes every "
            f"{ordinal(prompts.every)} step: where each begins at the first row, {units.count(last)} of them are written at most"
        )
    else:
        return None
    unwritten = [UnwrittenKeys(a.row, a.keys, last, a.passed) for a in cached.attention if last < a.keys]
    return _Filled(unwritten, known_by, cached.attention[0].write, read=seen is not None) if unwritten else None


def _keys_seen(case: Case, cached: CachedPass) -> int | None:
    """Return up to which key the masks of a pass let see, as the probe has read them in a window's last step; None for one it has not."""
    settings, sees = settings_of(case.profile), dict[tuple[int, ...], int]()
    for row in (settings.rows("given_masks") if settings is not None else None) or ():
        shape, keys = row.get("shape"), whole_number(row.get("sees"))
        if isinstance(shape, list) and keys:
            sees[tuple(shape)] = keys
    masks = {each.mask for each in cached.attention}
    return max(sees[mask] for mask in masks) if masks <= sees.keys() else None


def _share(each: UnwrittenKeys) -> float:
    """Return which share of its keys attention reads that is given as many as were written, in steps of some."""
    return min(1.0, -(-each.written // KEYS_IN_STEPS_OF) * KEYS_IN_STEPS_OF / each.keys)


def _found(case: Case, rule: Rule, flow: OperatorFlow, filled: _Filled) -> Finding | None:
    unwritten = filled.attention
    share = {row: _share(each) for each in unwritten for row in (each.row, *each.passed)}
    work = work_of_operators(case, flow, gradients=False)
    work = work.filter(pl.col("row").is_in(list(share)))
    ns, taken = work["ns"].to_numpy(), int(work["ns"].sum())
    if not case.notable(case.per_step(taken), REPORTED_SHARE):
        return None
    left = left_of_new(
        ns, ns * work["row"].replace_strict(share, return_dtype=pl.Float64).to_numpy(), SHORT_ATTENTION_NS
    )
    edit = ScaleOps(ops_of(work), left / max(taken, 1), less_work=True)
    worth = case.worth_or_freed(edit, cause=(StepPart.WORK,), bound=True)
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return None
    times, code = time_of_operators(work), case.profile.code()
    longest = max((each.row for each in unwritten), key=lambda row: times.get(row, 0))
    where = {} if code is None else place_of_operator(code, flow, flow.start_ns[[longest]])
    cost, keys = case.per_step(taken), max(each.keys for each in unwritten)
    mean = float(np.mean([each.written / each.keys for each in unwritten]))
    there = f"{in_short(where)}: " if where else ""
    how_long = "as long for the first token as for the last"
    detail = (
        f"{units.count(len(unwritten))} calls of attention in a step, of few queries each, are given all {units.count(keys)} keys that a "
        f"cache has room for, and a mask. {filled.sentence}. With what hands keys on to it that takes {units.duration(cost)} {case.per}, "
        f"{case.share(cost)} of the step, {how_long}."
    )
    sure = filled.write is None or filled.read
    if filled.read:
        worth = replace(worth, bound=False)
    most = "" if sure else " at most"
    return Found(
        rule,
        f"{there}attention reads the whole room of a cache, of which {units.share(mean, 1)} was written{most}: "
        f"{units.duration(cost)} {case.per}",
        detail,
        worth=worth,
        cost_ns=cost,
        fix=_fix(case, flow, filled, where),
        where=where or None,
        evidence=() if sure else ({"keys": keys, "written_at_most": max(each.written for each in unwritten)},),
        takes=Takes(ops_of(work)),
    ).as_finding(case)


def _fix(case: Case, flow: OperatorFlow, filled: _Filled, where: Row) -> Fix:
    """Return the remedy in the program's own names, where its line is known; heads that are repeated are cut before, or not repeated."""
    fix = Fix.by_name("written-keys")
    if not any(flow.names[row] in _REPEATS for each in filled.attention for row in each.passed):
        return fix.but(paste=_paste(case, flow, filled, where))
    return fix.but(
        text=f"{fix.text}. Cut them before their heads are repeated, or leave that to enable_gqa=True",
        paste=fix.paste.replace(
            "attn_mask=mask[..., :n])", "attn_mask=mask[..., :n], enable_gqa=True)  # heads are not repeated"
        ),
    )


def _paste(case: Case, flow: OperatorFlow, filled: _Filled, where: Row) -> str | None:
    code, source = case.profile.code(), texts(case.profile)
    text = text_of(source, where.get("file"), where.get("line"))
    if code is None or text is None:
        return None
    there = code.places.filter((pl.col("file") == where["file"]) & (pl.col("line") == where["line"]))
    same = code.places.join(there.select("file", "function"), on=["file", "function"], how="semi")
    beside = (
        text_of(source, file, line) for file, line in same.select(pl.col("file").cast(pl.String), "line").iter_rows()
    )
    writes = {} if filled.write is None else place_of_operator(code, flow, flow.start_ns[[filled.write]])
    return with_written_keys(
        text, text_of(source, writes.get("file"), writes.get("line")) or "", [each for each in beside if each]
    )

"""Loops whose rounds each pick the rows of one group, as those of one expert: asking for the rows, and what is done with them, is one loop.

The line that picks makes the CPU wait for a size; the lines that work on the rows run as often beside it. Sorted by group once, all rows
are worked on in a few calls. What runs on the whole tensor in each round (a comparison, a gradient of zeros to which the rows are
added) then runs once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from nsysx.catalogue import Call, DeviceActivity, StepPart
from nsysx.events import line_runs
from nsysx.events.code_lines import CodeLines
from nsysx.events.line_runs import LineRuns
from nsysx.findings import _line_remedies
from nsysx.findings._case import Case, Fix, Saving, calls_of, ops_of
from nsysx.findings._costly_lines import CostlyLine, Rows
from nsysx.findings._finding_bounds import FEWEST_CALLING_ROUNDS, SAME_LOOP_SHARE
from nsysx.findings._once import edits_without
from nsysx.findings._work_bounds import ONE_SIZE_SHARE
from nsysx.judging import rank_verdict
from nsysx.replay.engine import Edit, ScaleOps

Kinds = Mapping[tuple[object, ...], Sequence[CostlyLine]]
_PICKS, _SEGMENTS, GROUPS = (Fix.by_name(name) for name in ("fixed-shape", "segments-at-once", "groups-at-once"))


def merged(case: Case, code: CodeLines, rows: Rows, every: Mapping[int, float], kinds: Kinds) -> Kinds:
    """Return lines by kind, those that work on a group's rows in each round of a loop with those that pick the rows.

    ``every``: place -> what the GPU idles at it (ns).
    """
    runs = case.profile.once(line_runs.of_lines)
    for key in list(kinds):
        group = kinds.get(key, ())
        works = [line for line in group if _works(line, runs)]
        if not works:
            continue
        picks = _that_pick(case, code, rows, every, runs, works)
        by_itself = works[0].fix == _SEGMENTS
        if not (picks or by_itself):
            continue
        product = _multiplies(case, code, [line.place for line in (*works, *picks)])
        if by_itself and not product:
            continue
        fix = _in_words(float(runs.rounds[works[0].place])) if product else _SEGMENTS
        gone = {line.place for line in picks}
        kinds = {other: [line for line in theirs if line.place not in gone] for other, theirs in kinds.items()}
        kinds = {other: theirs for other, theirs in kinds.items() if theirs}
        kinds = {**kinds, key: [line._replace(fix=fix) for line in (*group, *picks)]}
    return kinds


def worth(
    case: Case, code: CodeLines, group: Sequence[CostlyLine], launched_once: Saving, edits: Sequence[Edit]
) -> Saving:
    """Return what it saves to work on all groups at once; ``launched_once``: the replay of ``edits``, with each round's work as it is.

    At most all of the loop goes, or the ranks of a job wait less for each other, too.
    """
    if launched_once.likely_ns is None or _name(group[0].fix) != _name(GROUPS):
        return launched_once
    places = [line.place for line in group]
    rounds = float(max(case.profile.once(line_runs.of_lines).rounds[line_row] for line_row in places))
    whole = _on_whole_tensors(case, code, places, rounds)
    once = case.worth(*edits, ScaleOps(whole, 1 / rounds, less_work=True)) if whole else launched_once
    sends = case.ops.filter(case.ops["cls"] == DeviceActivity.COMM.value)["call"].drop_nulls()
    calls = code.made_at(case.calls, places)
    gone = case.worth(*edits_without(calls.filter(~calls["call"].is_in(sends.implode())), case.ops))
    likely = max(once.likely_ns or 0, launched_once.likely_ns)
    return replace(once, likely_ns=likely, most_ns=max(gone.likely_ns or 0, likely + _less_waiting_ns(case, likely)))


def _less_waiting_ns(case: Case, saved_ns: int) -> int:
    """Return how much less ranks may wait for each other's launches if each of them saves so much (ns), which no replay of one rank has."""
    if case.ranks is None or not rank_verdict.wait_for_hosts(case.ranks.rows or ()):
        return 0
    waits = case.taken_by((StepPart.COMM,))
    return round(waits * min(1.0, saved_ns / max(case.step_ns - waits, 1)))


def _name(fix: Fix | None) -> str:
    return fix.ways[0].name if fix is not None and fix.ways else ""


def _in_words(rounds: float) -> Fix:
    """Return the remedy for a loop of so many rounds."""
    return GROUPS.but(text=GROUPS.text.format(name="this loop", count=f"{rounds:.0f}"))


def _works(line: CostlyLine, runs: LineRuns) -> bool:
    """Return whether a line launches kernels in each of several rounds of a loop of its function."""
    plain = bool(line.looping) and not line.aside and line.cause is None and not line.rounds
    return (
        plain
        and line.fix in (_line_remedies.BATCHED, _SEGMENTS)
        and bool(runs.rounds[line.place] >= FEWEST_CALLING_ROUNDS)
    )


def _that_pick(
    case: Case, code: CodeLines, rows: Rows, every: Mapping[int, float], runs: LineRuns, works: Sequence[CostlyLine]
) -> list[CostlyLine]:
    """Return the lines of the same loop that wait in each round for how many rows they pick."""
    first, named, picks = works[0], {line.place for line in works}, []
    for line_row, site in enumerate(code.places.iter_rows()):
        row = rows.get(site)
        if (
            row is None
            or line_row in named
            or (row["file"], row["function"]) != (first.row["file"], first.row["function"])
        ):
            continue
        less, more = sorted((runs.rounds[line_row], runs.rounds[first.place]))
        text, waits = str(row["text"] or "").partition("  #")[0], row["waits"] / case.steps
        seen = _line_remedies.Seen(text, 0.0, row["launches"] / case.steps, waits)
        asks = waits >= FEWEST_CALLING_ROUNDS and _line_remedies.fix_of(seen._replace(launches=0.0)) == _PICKS
        if asks and less >= SAME_LOOP_SHARE * more:  # a group without rows may be left out behind it
            launches = code.made_at(case.calls.filter(case.calls["kind"].is_in(Call.LAUNCHES)), [line_row])
            cost = case.per_step(every.get(line_row, 0.0))
            picks.append(CostlyLine(line_row, row, cost=cost, seen=seen, looping=calls_of(launches), fix=_PICKS))
    return picks


def _multiplies(case: Case, code: CodeLines, places: Sequence[int]) -> bool:
    """Return whether the lines launch a product of matrices for each size that they read back."""
    products = case.ops.filter(
        (case.ops["family"].cast(pl.String) == "gemm").fill_null(value=False), case.ops["call"].is_not_null()
    )
    reads = case.ops.filter(case.ops["name"] == "DtoH", case.ops["call"].is_not_null())
    return code.made_at(products, places).height >= max(1, code.made_at(reads, places).height)


def _on_whole_tensors(case: Case, code: CodeLines, places: Sequence[int], rounds: float) -> frozenset[int]:
    """Return GPU ops of lines that are the same in each round of a loop, to the size, where others differ with what the round picked.

    Products are none of them: sizes are rounded up to their tiles. Where all rounds pick equally many rows, nothing tells the two apart.
    """
    steps = case.profile.steps.cpu.filter(pl.col("process") == case.process)["start_ns"].sort().to_numpy()
    ops = case.ops.filter(case.ops["call"].is_in(case.replayed["call"].implode()).fill_null(value=False))
    ops = code.made_at(ops, places)
    ops = ops.filter(~ops["family"].cast(pl.String).is_in(("gemm", "communication")).fill_null(value=False))
    step = pl.Series("step", np.searchsorted(steps, ops["call_start_ns"].to_numpy(), side="right"))
    of_name, of_size = ("step", "name"), ("step", "name", "grid", "block", "bytes")
    sized = ops.with_columns(step).with_columns(
        pl.len().over(of_name).alias("often"), pl.len().over(of_size).alias("alike")
    )
    in_each = SAME_LOOP_SHARE * rounds
    most_alike = pl.col("alike").max().over(of_name)
    part = sized.filter((pl.col("often") >= in_each) & (most_alike <= ONE_SIZE_SHARE * rounds))
    return frozenset() if part.is_empty() else ops_of(sized.filter(sized["alike"] >= in_each))

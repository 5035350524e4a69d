"""Lines of functions that a loop alone calls, in each of its rounds: one operation for all rounds runs them once.

The loop is one finding with them. A function that trains, or runs networks that the loop itself does not, is left as it is: its rounds
may change weights. So is one whose rounds need one another's results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

import numpy as np
import polars as pl

from nsysx.catalogue import Call
from nsysx.events import line_runs
from nsysx.events.code_lines import CodeLines
from nsysx.events.line_runs import LineRuns
from nsysx.events.operator_flow import flow_of
from nsysx.events.rounds_in_sequence import grows, in_sequence
from nsysx.findings import _line_remedies
from nsysx.findings._case import Case
from nsysx.findings._costly_lines import CostlyLine, Rows
from nsysx.findings._finding_bounds import FEWEST_CALLING_ROUNDS, MOST_CALLED_LINES

Kind = tuple[object, ...]
Kinds = Mapping[Kind, Sequence[CostlyLine]]


def with_called(case: Case, code: CodeLines, rows: Rows, every: Mapping[int, float], kinds: Kinds) -> Kinds:
    """Return lines by kind, those that loops call in each round with the loops. ``every``: place -> what the GPU idles at it (ns)."""
    runs = case.profile.once(line_runs.of_lines)
    loops = [
        (key, line)
        for key, group in kinds.items()
        for line in group
        if line.looping and not line.aside and line.fix in _line_remedies.IN_ONE
    ]
    # What an inner loop calls, the outer one calls as well.
    for key, loop in sorted(loops, key=lambda each: len(code.chain(int(np.argmax(code.place == each[1].place))))):
        if loop not in kinds.get(key, ()):
            continue
        stays = {line.place for group in kinds.values() for line in group if not _goes_along(line)}
        called = _called(code, loop.place) - stays
        often = {line_row: _rounds_of(runs, line_row, loop.place) for line_row in called}
        places = [line_row for line_row in sorted(called) if often[line_row] >= FEWEST_CALLING_ROUNDS]
        if not places or not _alike(case, code, loop) or _in_sequence(case, code, loop.place):
            continue
        lines = [_line(case, code, rows, every, line_row, often[line_row]) for line_row in places]
        left = {other: [line for line in group if line.place not in places] for other, group in kinds.items()}
        kinds = {other: group for other, group in left.items() if group}
        kinds = {**kinds, key: [*kinds[key], *(line for line in lines if line is not None)]}
    return kinds


def in_rounds(group: Sequence[CostlyLine]) -> list[CostlyLine]:
    """Return those lines of a group that its loop calls, in their order."""
    return [line for line in group if line.rounds]


def calling(called: Sequence[CostlyLine]) -> str:
    """Return a sentence about the lines that a loop calls, the costliest first; "" where it calls none."""
    if not called:
        return ""
    most = (f"{PurePath(str(line.row['file'])).name}:{line.row['line']}" for line in called[:MOST_CALLED_LINES])
    return f" What it calls in each of {max(line.rounds for line in called):.0f} rounds, most of it at {', '.join(most)}, then runs once."


def _goes_along(line: CostlyLine) -> bool:
    """Return whether nothing but fewer launches is to be done about a line."""
    fixes = (*_line_remedies.IN_ONE, _line_remedies.PREALLOCATED)
    return bool(line.looping) and not line.aside and line.cause is None and line.fix in fixes and line.part == 1.0


def _called(code: CodeLines, loop: int) -> frozenset[int]:
    """Return the lines of the program's own that a line calls, and no other line does."""
    stacks = np.arange(len(code.place))
    ends_at, within = code.places_of(stacks), code.passing(stacks, frozenset({loop}))
    return frozenset(ends_at[within].tolist()) - frozenset(ends_at[~within].tolist()) - {loop}


def _rounds_of(runs: LineRuns, line_row: int, loop: int) -> float:
    """Return in how many of the rounds of a loop a line runs."""
    return float(runs.rounds[loop] * min(1.0, runs.runs[line_row] / max(runs.runs[loop], 1.0)))


def _alike(case: Case, code: CodeLines, loop: CostlyLine) -> bool:
    """Return whether all launches below a line are of the phase and module of those that it makes itself."""
    launches = case.calls.filter(case.calls["kind"].is_in(Call.LAUNCHES))
    below = code.passing(code.call[launches["call"].to_numpy()], frozenset({loop.place}))
    within = launches.filter(pl.Series(below, dtype=pl.Boolean))
    of_loop = within.filter(within["call"].is_in(list(loop.looping)))["phase", "module"].unique()
    return within.join(of_loop, on=["phase", "module"], how="anti", nulls_equal=True).is_empty()


def _in_sequence(case: Case, code: CodeLines, loop: int) -> bool:
    """Return whether the rounds of a loop need one another, all that they call included, and grow no tensor."""
    flow = flow_of(case.profile)
    if flow is None:
        return False
    there = code.passing(code.at(flow.thread, flow.start_ns), frozenset({loop}))
    return in_sequence(flow, there, line_runs.begins(case.profile, loop, flow.thread)) and not grows(flow, there)


def _line(
    case: Case, code: CodeLines, rows: Rows, every: Mapping[int, float], line_row: int, rounds: float
) -> CostlyLine | None:
    """Return a line that a loop calls, with its calls that go; None where it costs nothing."""
    row = rows.get(code.places.row(line_row))
    if row is None:
        return None
    text = str(row["text"] or "").partition("  #")[0]
    seen = _line_remedies.Seen(text, 0.0, row["launches"] / case.steps, row["waits"] / case.steps)
    goes = _behind_first(case, code.made_at(case.calls, [line_row]), rounds)
    cost = case.per_step(every.get(line_row, 0.0))
    return CostlyLine(line_row, row, cost=cost, seen=seen, looping=goes, fix=_line_remedies.BATCHED, rounds=rounds)


def _behind_first(case: Case, calls: pl.DataFrame, rounds: float) -> frozenset[int]:
    """Return the calls of a line but those of the first round in each step, and of what goes back through it."""
    steps = case.profile.steps.cpu.filter(pl.col("process") == case.process)["start_ns"].sort().to_numpy()
    numbered = calls.sort("start_ns").with_columns(
        step=pl.Series(np.searchsorted(steps, calls["start_ns"].sort().to_numpy(), side="right")),
        back=(pl.col("phase").cast(pl.String) == "backward").fill_null(value=False),
    )
    of_step = ("step", "back")
    goes = pl.int_range(pl.len()).over(of_step) >= (pl.len().over(of_step) / rounds).round().clip(1)
    return frozenset(numbered.filter(goes)["call"].to_list())

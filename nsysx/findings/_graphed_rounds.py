"""Loops over time whose rounds need one another, with gradients through them: a recurrent cell of the program's own, rolled out in Python.

No single operation takes the place of all rounds, and each round makes its launches again, forward and backward, while the GPU waits. All
rounds as one graph need one launch. What later rounds do not need may be computed once, behind the loop. Cells of torch over a sequence
that is there before the loop are a layer of torch. A loop over layers has other weights in each round; it is the network itself, which
other rules compile.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import PurePath

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses import lines
from nsysx.catalogue import Call
from nsysx.events import line_runs
from nsysx.events.code_lines import CodeLines
from nsysx.events.line_runs import LineRuns
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.rounds_in_sequence import in_sequence, needed_later
from nsysx.findings._case import Case, Fix, Rule, Saving, calls_of
from nsysx.findings._cells_in_sequence import finding_of_cells, loop_of
from nsysx.findings._finding_bounds import LOOP_LAUNCHES, LOOP_LAUNCHES_IN_MODULE, REPORTED_SHARE
from nsysx.findings._found import Found
from nsysx.findings._held import held
from nsysx.findings._job_bounds import NEEDED_LATER_SHARE, UNROLLED_FOR_MINUTES
from nsysx.findings._line_remedies import of_training, quoted
from nsysx.findings._once import Takes
from nsysx.frames import intervals
from nsysx.model import Finding
from nsysx.replay.engine import Graph

#: What is said about such a loop.
GRAPHED = Fix.by_name("rounds-graphed")
_GRAPHED = (
    'Launch all rounds of the loop in {function} as one CUDA graph: torch.compile of it with mode="reduce-overhead", or '
    "torch.cuda.make_graphed_callables"
)
_APART = ". Or take out of the loop what no later round needs{lines}, and compute it once, on what all rounds made, put together"
#: A function, or a method of a class, whose name can be given another value where the program begins.
_NAMED = re.compile(r"(?!main$)[A-Za-z_]\w*(\.[A-Za-z_]\w*)?")


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return a finding for each outermost line in such a loop whose launches as one graph save 5 % of the step or more."""
    code, flow = case.profile.code(), flow_of(case.profile)
    if code is None or flow is None or case.stepless:
        return []
    runs, launches = (
        case.profile.once(line_runs.of_lines),
        case.calls.filter(case.calls["kind"].is_in(Call.LAUNCHES)),
    )
    stacks = code.call[launches["call"].to_numpy()]
    findings, covered = list[Finding](), set[int]()
    for stack in np.unique(stacks[stacks >= 0]).tolist():
        for line_row in code.chain(stack):  # the outermost first
            if line_row in covered:
                continue
            covered.add(line_row)
            within = code.passing(stacks, frozenset({line_row}))
            if not _loops(case, code, runs, flow, line_row, launches.filter(pl.Series(within))):
                continue
            loop = loop_of(case, code, flow, line_row)
            if loop is None:
                findings += _found(case, rule, code, runs, flow, line_row)
            else:
                findings += finding_of_cells(case, rule, code, loop)
                covered |= loop.rows
            covered |= {row for each in np.unique(stacks[within]).tolist() for row in code.chain(each)}
            break
    return findings


def _loops(
    case: Case, code: CodeLines, runs: LineRuns, flow: OperatorFlow, line_row: int, launches: pl.DataFrame
) -> bool:
    """Return whether a line runs in rounds that need one another, through the same weights, with gradients, and makes these launches."""
    rounds = float(runs.rounds[line_row])
    if rounds * LOOP_LAUNCHES < LOOP_LAUNCHES_IN_MODULE or runs.encloses[line_row]:
        return False
    goes_back = (launches["phase"].cast(pl.String) == "backward").fill_null(value=False)
    if launches.height < LOOP_LAUNCHES_IN_MODULE * case.steps or not goes_back.any() or goes_back.all():
        return False
    file, _, function = code.places.row(line_row)
    of_function = (r for r in case.typed_rows(lines.ROWS) if (r["file"], r["function"]) == (file, function))
    if any(of_training(str(row["text"] or "")) for row in of_function):
        return False
    there = code.passing(code.at(flow.thread, flow.start_ns), frozenset({line_row}))
    called = [call.path for call in flow.calls if there[call.first : call.last].all() and call.last > call.first]
    if 2 * len(called) < rounds * len(set(called)):  # other layers in each round
        return False
    return in_sequence(flow, there, line_runs.begins(case.profile, line_row, flow.thread))


def _found(case: Case, rule: Rule, code: CodeLines, runs: LineRuns, flow: OperatorFlow, line_row: int) -> list[Finding]:
    stacks = code.call[case.calls["call"].to_numpy()]
    within = case.calls.filter(pl.Series(code.passing(stacks, frozenset({line_row}))))
    goes_back = (pl.col("phase").cast(pl.String) == "backward").fill_null(value=False)
    calls, forward = calls_of(within), calls_of(within.filter(~goes_back))
    unneeded = _not_needed(case, code, flow, line_row)
    behind = within.filter(pl.Series(code.passing(code.call[within["call"].to_numpy()], unneeded)))
    ended = case.profile.attributed.gpu_ops["call"].gather(case.idle["op"].fill_null(0))
    before = (ended.is_in(list(calls)) & case.idle["op"].is_not_null()).fill_null(value=False)
    cost = min(case.per_step(float(case.idle["real_ns"].filter(before).sum())), case.taken_by(rule.cause))
    worth = _worth(case, rule, calls, calls_of(behind) or forward)
    if not (case.notable(cost) and worth.likely_ns is not None and case.notable(worth.likely_ns, REPORTED_SHARE)):
        return []
    file, line, function = code.places.row(line_row)
    texts = {(r["file"], r["line"]): str(r["text"] or "") for r in case.typed_rows(lines.ROWS)}
    text, rounds = texts.get((file, line), "").partition("  #")[0], round(float(runs.rounds[line_row]))
    there, quote = f"{PurePath(str(file)).name}:{line}", f" `{quoted(text)}`" if text else ""
    title = (
        f"{there}{quote} runs {rounds} rounds, each of which needs the one before; the GPU idles {units.duration(cost)} {case.per} before "
        "their launches"
    )
    made = within.filter(within["kind"].is_in(Call.LAUNCHES))
    each, back = made.height / case.steps, made.filter(goes_back).height / case.steps
    detail = (
        f"No single operation takes the place of all rounds. They make {units.count(round(each))} launches in a step, "
        f"{units.count(round(back))} of them in backward."
    )
    places = sorted({int(code.places["line"][row]) for row in unneeded if code.places["file"][row] == file})
    if places:
        count = behind.filter(behind["kind"].is_in(Call.LAUNCHES)).height / case.steps
        verb = "compute" if len(places) > 1 else "computes"
        detail += (
            f" No later round needs what {_in_words(places)} {verb}, with {units.count(round(count))} of the launches."
        )
    fix = _fix_of(str(function), rounds, f" ({_in_words(places)})" if places else "", each)
    where, takes = {"file": file, "line": line}, Takes(idle=before.to_numpy().astype(np.float64))
    return [Found(rule, title, detail, worth=worth, cost_ns=cost, where=where, fix=fix, takes=takes).as_finding(case)]


def _in_words(numbers: Sequence[int]) -> str:
    """Return "line 76", "lines 76 and 77"."""
    return f"line{'s' if len(numbers) > 1 else ''} {' and '.join(map(str, numbers))}"


def _fix_of(function: str, rounds: int, which: str, launches: float) -> Fix:
    """Return what to do about the rounds of a function's loop; ``which``: the lines that no later round needs, "" for none.

    ``launches``: of a step. Those of many are compiled for minutes, by torch.compile alone.
    """
    text = _GRAPHED.format(function=function)
    if which:
        text += _APART.format(lines=which)
    takes = "takes minutes" if launches >= UNROLLED_FOR_MINUTES else "takes longer"
    condition = f"{GRAPHED.ways[0].condition} With torch.compile the first step {takes}."
    if _NAMED.fullmatch(function) is None:
        return GRAPHED.but(text=text, condition=condition)
    paste = f'{function} = torch.compile({function}, mode="reduce-overhead")  # once, before the steps: it unrolls all {rounds} rounds'
    return GRAPHED.but(text=text, paste=paste, condition=condition)


def _not_needed(case: Case, code: CodeLines, flow: OperatorFlow, loop: int) -> frozenset[int]:
    """Return the outermost lines below a loop's whose operators no later round needs."""
    stacks = code.at(flow.thread, flow.start_ns)
    begins = line_runs.begins(case.profile, loop, flow.thread)
    rows, needed = needed_later(flow, code.passing(stacks, frozenset({loop})), begins)
    often, used = Counter[int](), Counter[int]()
    for stack, is_needed in zip(stacks[rows].tolist(), needed.tolist(), strict=True):
        chain = code.chain(stack)
        below = set(chain[chain.index(loop) + 1 :])
        often.update(below)
        used.update(below if is_needed else ())
    lines_free = {row for row in often if used[row] <= NEEDED_LATER_SHARE * often[row]}
    inner = {row for stack in np.unique(stacks[rows]).tolist() for row in _below_first(code.chain(stack), lines_free)}
    return frozenset(lines_free - inner)


def _below_first(chain: Sequence[int], chosen: Collection[int]) -> list[int]:
    """Return those of a chain that lie below the first of some lines."""
    first = next((number for number, row in enumerate(chain) if row in chosen), len(chain))
    return list(chain[first + 1 :])


def _worth(case: Case, rule: Rule, calls: frozenset[int], least: frozenset[int]) -> Saving:
    """Return what it saves to launch all rounds as one graph, backward as well; at least what lies in the rounds for nothing.

    At most all that the GPU idles goes: a host that is ahead by a graph stays ahead of the launches behind it. With a loop of 64 rounds
    compiled so, a step of 187 ms took 36 ms on an H200, and its GPU worked for 35 ms.
    """
    stays = held(case.profile)  # what other host code lies between
    worth = case.worth_between(
        [Graph(least - stays)],
        [Graph(calls - stays, by="compiled")],
        [Graph(calls - stays)],
        "between what no later round needs taken out, or a graph of forward alone, and one graph of all rounds",
        cause=rule.cause,
    )
    if worth.most_ns is None:
        return worth
    busy = intervals.length(case.ops["start_ns"].to_numpy(), case.ops["end_ns"].to_numpy())
    return replace(worth, most_ns=max(worth.most_ns, round(case.step_ns - case.per_step(busy))))

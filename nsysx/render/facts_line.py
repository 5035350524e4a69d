"""The line of facts above an answer: report, GPU, steps, the length of a step, and what of the loop the steady steps are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import PurePath

from nsysx import ids, units
from nsysx.analyses import modules
from nsysx.analyses.helpers.step_record import rows_of
from nsysx.answer import subject
from nsysx.events import bare, coverage
from nsysx.events.bare_alone import few_longer
from nsysx.gpus import each_once
from nsysx.model import Summary
from nsysx.ranks import rank_table
from nsysx.render import facts
from nsysx.render.grids import CellTexts
from nsysx.render.render_bounds import MEAN_LONGER, OTHER_MEAN, OTHER_WORK_NAMED, UNEQUAL_STEPS
from nsysx.render.safe_text import clean


def facts_line(summary: Summary, texts: CellTexts) -> tuple[str, ...]:
    """Return the report's name, the GPU, the steps and the step time."""
    gpus = [clean(g.name, 60) for g in each_once(summary.capture.gpus) if g.name]
    line = [facts.report_name(summary)]
    if len(summary.capture.files) > 1:
        line[0] += f" and {len(summary.capture.files) - 1} more"
    kinds, ranks = sorted(set(gpus)), len(summary.typed_rows(rank_table.ROWS))
    users = len({g.process for g in summary.capture.gpus})
    if ranks > users:  # one report a rank: the capture is the first one's
        line.append(f"{ranks} ranks")
    line += [f"{gpus.count(k)} x {k}" if gpus.count(k) > 1 else k for k in kinds[:2]] or ["no GPU recorded"]
    if users > len(gpus) > 0:
        line[-1] += f" for {users} processes"
    if summary.step.shown_ns is None:
        line.append("no steps found")
        return tuple(texts(s, 80) for s in line)
    line.append(
        f"{facts.steady_count(summary.steps):,} steady of {units.several(summary.steps.count, 'step')}{_spread(summary)}"
    )
    line.append(summary.step.words(average=subject.on_average(summary), estimated=summary.verdict.estimated))
    line += _beside_the_step(summary)
    line += _what_a_step_is(summary)
    line += _covered(summary) + _mean_of_rest(summary)
    return tuple(texts(s, 160) for s in line)


_UNTOLD = (coverage.WARMUP, coverage.LAST, coverage.BEFORE, coverage.BEHIND)


def _covered(summary: Summary) -> list[str]:
    """Return how much of the loop behind its warm-up the steady steps are where it does something else, too, and what that is."""
    covered = summary.steps.coverage
    if covered is None:
        return []
    parts = {r["what"]: r["ns"] for r in covered["rest"] if r["what"] not in _UNTOLD}
    if coverage.ONCE in parts:  # before the steady steps it is start-up
        parts[coverage.ONCE] = max(0, parts[coverage.ONCE] - _start_up_ns(summary))
    rest = sorted(((ns, what) for what, ns in parts.items()), reverse=True)
    loop = covered["steady_ns"] + sum(ns for ns, _ in rest)
    told = subject.about_loop(summary)
    near = "" if told is None else str(told.where.get("near"))
    near = near if near.startswith("a ") else coverage.EVALUATION
    names = {coverage.EVALUATION: near}  # what a network does between steps need be no evaluation
    much = [(ns, what) for ns, what in rest if ns >= OTHER_WORK_NAMED * loop]
    # Steps that are not steady are counted in this line: the first, the last and those that carry marks, say nothing of the program.
    named = [
        f"{names.get(what, what)} {units.share(ns, loop)}"
        for ns, what in much
        if {what for _, what in much} != {coverage.OTHER}
    ]
    real = summary.step.estimate
    more = None if real is None or (real.loop_ns or 0) < (1 + MEAN_LONGER) * real.step_ns else real.loop_ns
    if real is None and told is not None:  # it was measured, and only no replay comes near the recorded steps
        more = next((row["loop_ns"] for row in told.evidence if row.get("loop_ns")), None)
    each = None if told is None else next((row["steps_each"] for row in told.evidence if row.get("steps_each")), None)
    iteration = "" if more is None or each is None else f", {units.duration(each * more)} for {each},"
    whole = "" if more is None else f"{units.duration(more)} a step{iteration} with what runs between steps"
    if not named:
        return [whole] if whole else []
    share = units.share(covered["steady_ns"], loop)
    return [f"steady steps cover {share} of the loop ({', '.join(named)}){whole and ': '}{whole}"]


def _beside_the_step(summary: Summary) -> list[str]:
    """Return the few steps of many times the others that were timed: which are no part of the step, or what it is without them."""
    real, scope = summary.step.estimate, summary.steps.scope
    if real is None or real.source != "in_process" or scope is None or len(scope.processes) != 1:
        return []
    record = next(iter(ids.records_of(summary.capture.probe, scope.processes[0])), {})
    apart = bare.left_alone(record, summary.capture)
    timed = [*bare.lengths(record), *bare.after(record, summary.capture)]
    inside = [] if apart or real.measured_steps != len(timed) else few_longer(timed)
    if not apart and not inside:
        return []
    told = apart or inside
    took = units.span(units.duration(min(told)), units.duration(max(told)))
    words = f"{len(told)} of {real.measured_steps + len(apart)} unprofiled steps took {took}"
    if apart:
        return [f"{words}, not in it"]
    others = (sum(timed) - sum(inside)) / (len(timed) - len(inside))
    return [f"{words}; {units.duration(others)} a step without {'it' if len(inside) == 1 else 'them'}"]


#: What repeats need not be what the program calls a step.
_MAYBE_OTHERS = " (the program's own may hold several, or be a part of one)"


def _what_a_step_is(summary: Summary) -> list[str]:
    """Return what one step is where no optimizer ends it and the program does not mark it: a reader's own tick may hold several."""
    steps = summary.steps
    if steps.source == "kernels":
        return [f"steps by kernels that repeat{_MAYBE_OTHERS}"]
    scope = steps.scope
    if steps.source != "nsysx" or scope is None or len(scope.processes) != 1 or not scope.steps:
        return []
    probed = [record.get("steps") for record in ids.records_of(summary.capture.probe, scope.processes[0])]
    rules = {str(made.get("rule")).partition("/")[0] for made in probed if isinstance(made, dict) and made.get("count")}
    if rules == {"loop"}:
        return [f"a step is a round of the main loop{_of_loop(probed)}"]
    if rules not in ({"forward"}, {"backward"}):
        return []
    networks = [r for r in summary.typed_rows(modules.ROWS) if r["depth"] == 0 and r["cls"] and r["calls"]]
    one_network = rules == {"forward"} and len(networks) == 1
    if rules == {"forward"} and not networks:  # what the probe took for one was a function or an operator
        return [f"steps by calls that repeat{_MAYBE_OTHERS}"]
    calls = max(1, round(scope.per_step(networks[0]["calls"] or 0))) if one_network else 1
    several = rules == {"forward"} and len(networks) > 1
    number = "one" if calls == 1 else units.count(calls)
    passes = "a round of forward passes" if several else f"{number} {min(rules)} pass{'es' if calls > 1 else ''}"
    whose = f" of {clean(str(networks[0]['cls']), 60)}" if one_network else ""
    return [f"a step is {passes}{whose}{' and what comes before' if ';' in steps.rule else ''}"]


def _of_loop(probed: Sequence[object]) -> str:
    """Return where the loop is whose rounds are the steps, "" if that is not known."""
    loop = next((made.get("loop") for made in probed if isinstance(made, dict)), None)
    if not (isinstance(loop, list) and len(loop) == 2 and isinstance(loop[1], int)):
        return ""
    return f" in {clean(PurePath(str(loop[0])).name, 60)}:{loop[1]}"


def _mean_of_rest(summary: Summary) -> list[str]:
    """Return the mean of all steps that followed, if it is another one than that of the steps that were timed."""
    real = summary.step.estimate
    if real is None or real.rest_ns is None:
        return []
    timed = real.loop_ns or real.step_ns
    if abs(real.rest_ns - timed) < MEAN_LONGER * timed:
        return []
    return [
        f"{units.duration(real.rest_ns)} a step over the next {real.rest_steps:,} steps, with what ran between them"
    ]


def _start_up_ns(summary: Summary) -> int:
    """Return how long the steps before the first steady one take (ns)."""
    lengths = []
    for row in rows_of(summary.steps):
        if not row.get("warmup"):
            break
        lengths.append(max(row.get("cpu_ns") or 0, row.get("gpu_ns") or 0))
    return sum(lengths)


def _spread(summary: Summary) -> str:
    """Return the shortest and the longest steady step of the capture, "" where they are about the same.

    Where the figures cover some of the steady steps only, it says which, and the mean of all where that is another.
    """
    of_capture = partial(summary.step.of_capture, comma="")
    every, covered = summary.steps.all_steady, summary.step.recorded_ns
    steady = [ns for r in rows_of(summary.steps) if r.get("steady") and (ns := r.get("gpu_ns") or r.get("cpu_ns"))]
    ends = (every["low_ns"], every["high_ns"]) if every else (min(steady, default=0), max(steady, default=0))
    ends_text = (
        of_capture(f", {units.duration(ends[0])} to {units.duration(ends[1])}")
        if ends[1] >= UNEQUAL_STEPS * ends[0] > 0
        else ""
    )
    if every is None or not covered:
        return ends_text
    mean = every["mean_ns"]
    other = (
        of_capture(f"; all take {units.duration(mean)} on average")
        if abs(mean - covered) > OTHER_MEAN * covered
        else ""
    )
    return f"{ends_text} (the figures are of {len(steady)} in a row{other})"

"""A result in words: one sentence for each change, and the lines to paste."""

from __future__ import annotations

import math

from nsysx.advice import Tried
from nsysx.inject.nsysx_probe.changes import Change
from nsysx.trying.result import Baseline, ChangeTrial, TryResult
from nsysx.trying.trial_bounds import (
    GROWN_DIFFERENCE_TIMES,
    MOST_UNTRIED,
    NOTABLE_START_NS,
    UNLIKE_STEPS_TIMES,
    WHOLE_PERCENT,
    WIDEST_PERCENT,
)
from nsysx.units import duration, several, size

_ORDER = ("faster", "same", "cannot_tell", "slower", "fails", "does_not_apply")
#: Verdicts in words, where their names are not.
_WORDS = {"cannot_tell": "cannot tell", "changes_results": "changes results", "does_not_apply": "does not apply"}


def verdict_line(verdict: str, change: str = "") -> str:
    """Return the last line of ``nsysx try`` and ``nsysx compare``: the one verdict, and the change that it is about."""
    return f"Verdict: {_WORDS.get(verdict, verdict)}{f' ({change})' if change else ''}"


def listing(changes: list[Change]) -> str:
    """Return one line for each change: its name, what it does, and what it alters."""
    width = max(len(change.name) for change in changes)
    return "\n".join(f"{c.name:<{width}}  {c.does}{_alters(c.alters, c.beware)}" for c in changes)


def _alters(alters: str, beware: str) -> str:
    meaning = {"memory": "alters memory", "numerics": "alters results", "computation": "a bound"}.get(alters, "")
    return f" ({beware or meaning})" if beware or meaning else ""


def _no_winner(result: TryResult) -> str:
    """Return what to say where no change is known to help: that is not the same as knowing that none does."""
    if not any(t.pairs for t in result.trials):
        return "No change could be measured."
    undecided = any(t.pairs and t.verdict == "cannot_tell" for t in result.trials)
    return (
        "No change is known to make the step faster: a longer --budget may tell."
        if undecided
        else "No change made the step faster."
    )


def text(result: TryResult) -> str:
    """Return the whole result for a terminal."""
    lines = [_unchanged(result.baseline)]
    if result.baseline.unseeded:
        lines.append(
            f"the program is not seeded: two unchanged runs differ by as much as runs with a change "
            f"(weights by {_tiny_in_words(result.baseline.difference.weights or 0.0)}), so nothing is said of results"
        )
    trials = sorted(result.trials, key=lambda t: (_ORDER.index(t.verdict), t.ratio or 1.0))
    begun = [trial for trial in trials if not _untried(trial)]
    lines += [sentence(trial, result.baseline) for trial in begun]
    if left := [trial.change for trial in trials if _untried(trial)]:
        why = " for lack of time" if result.stopped.startswith("the budget was used up") else ""
        more = f" and {len(left) - MOST_UNTRIED} more" if len(left) > MOST_UNTRIED else ""
        lines.append(f"not tried{why}: {', '.join(left[:MOST_UNTRIED])}{more}")
    if result.stopped:
        lines.append(f"stopped early: {result.stopped}")
    if result.together is not None:
        lines.append("together: " + sentence(result.together, result.baseline))
    winners = result.winners()
    if not winners:
        return "\n".join([*lines, "", _no_winner(result)])
    lines += ["", "Paste:"]
    for trial in winners:
        lines += [f"  {line}" for line in trial.paste.splitlines()]
        differ = "; RESULTS DIFFER" if trial.beyond_rounding else ""
        lines.append(f"      # {trial.change}{f', {trial.where}' if trial.where else ''}{differ}")
    if len(winners) > 1 and result.together is None:
        lines.append("Gains do not add up; --together measures all of them at once.")
    return "\n".join(lines)


def _untried(trial: ChangeTrial) -> bool:
    """Return whether no run was made with a change: one line names all of these."""
    return trial.verdict == "cannot_tell" and not trial.pairs


def _unchanged(baseline: Baseline) -> str:
    if baseline.step_ns is None:
        return "unchanged: not measured"
    between = f"{duration(baseline.low_ns)} to {duration(baseline.high_ns)} in " if baseline.runs > 1 else ""
    between += several(baseline.runs, "run")
    line = f"unchanged: {duration(baseline.step_ns)} a step ({between} of {several(baseline.measured_steps, 'step')})"
    if (start_ns := baseline.first_step_ns or 0.0) > NOTABLE_START_NS:
        line += f"; {duration(start_ns)} to its first step"
    fast, slow = baseline.fast_step_ns, baseline.slow_step_ns
    if fast and slow and slow > UNLIKE_STEPS_TIMES * fast:
        line += f"; its steps differ: a tenth take less than {duration(fast)}, a tenth more than {duration(slow)}"
    return line


def sentence(trial: ChangeTrial, baseline: Baseline) -> str:
    """Return what came of one change, in one sentence."""
    begin = f"{trial.change}: {_WORDS.get(trial.verdict, trial.verdict)}"
    if trial.verdict in ("fails", "does_not_apply"):
        where = f" at {trial.where}" if trial.verdict == "fails" and trial.where else ""
        return f"{begin}: {trial.reason}{where}"
    parts = [begin]
    if trial.low_ns is not None and trial.high_ns is not None:
        parts[0] += f": {trial.does}: {times(baseline.step_ns, trial.step_ns, trial.low_ns, trial.high_ns)}"
    parts += filter(
        None, (_results(trial, baseline), _memory(trial, baseline), _start(trial), trial.note, trial.reason)
    )
    return "; ".join(parts)


def times(now_ns: float | None, then_ns: float | None, low_ns: float, high_ns: float) -> str:
    """Return "20.4 ms to 14.3 ms a step (30 % less, 28 to 31 %)"; the interval is that of ``then_ns``."""
    assert now_ns and then_ns
    more = then_ns > now_ns
    sign = 1 if more else -1
    ends = sorted(100 * sign * (ns / now_ns - 1) for ns in (low_ns, high_ns))
    percent = 100 * sign * (then_ns / now_ns - 1)
    digits = 0 if percent >= WHOLE_PERCENT else 1
    wide = max(map(abs, ends)) >= WIDEST_PERCENT
    interval = "too few runs for a confidence interval" if wide else f"{ends[0]:.{digits}f} to {ends[1]:.{digits}f} %"
    return (
        f"{duration(now_ns)} to {duration(then_ns)} a step "
        f"({percent:.{digits}f} % {'more' if more else 'less'}, {interval})"
    )


def measured(tried: Tried) -> str:
    """Return what was measured of one change, in one sentence."""
    begin = f"{tried.change}: {_WORDS.get(tried.verdict, tried.verdict)}"
    if tried.low_ns is None or tried.high_ns is None:
        return f"{begin}: {tried.reason}{f' at {tried.place}' if tried.place else ''}" if tried.reason else begin
    other = ", but it computes something else" if tried.other_results else ""
    return f"{begin}, {times(tried.now_ns, tried.then_ns, tried.low_ns, tried.high_ns)}{other}"


def _results(trial: ChangeTrial, baseline: Baseline) -> str:
    """Return how far results are from those of unchanged runs, and what explains it."""
    seen, noise = trial.difference, baseline.difference
    if trial.alters == "computation":
        return trial.beware
    if baseline.unseeded and not trial.beyond_rounding:
        return ""
    if seen.weights is None:
        return _early_results(trial, baseline)
    last = several(baseline.warm_up_steps + baseline.measured_steps, "step")
    if not seen.weights:
        return f"the same weights after {last}"
    if trial.beyond_rounding and seen.early_weights:
        return f"RESULTS DIFFER: {_beyond_rounding(trial)}{_no_winner_because(trial)}"
    end = f"weights after {last} differ by {_tiny_in_words(seen.weights)}"
    if trial.beyond_rounding is False and seen.early_weights:
        grown = ", grown" if seen.weights > GROWN_DIFFERENCE_TIMES * seen.early_weights else ""
        end = (
            f"weights after {several(seen.early_steps or 0, 'step')} differ by {_tiny_in_words(seen.early_weights)}, as by rounding "
            f"({trial.numbers}), after {last} by {_tiny_in_words(seen.weights)}{grown}"
        )
    beside = _beside(noise.weights)
    loss = f"; the last loss by {_tiny_in_words(seen.loss)}" if seen.loss is not None else ""
    return f"{end}{beside}{loss}{_no_winner_because(trial)}"


def _early_results(trial: ChangeTrial, baseline: Baseline) -> str:
    """Return how far results are apart after the first steps, where later ones were not made with the change alone."""
    seen, noise = trial.difference, baseline.difference
    if seen.early_weights is None:
        return "its results were not compared" if trial.within_a_run else ""
    if trial.beyond_rounding:
        return f"RESULTS DIFFER: {_beyond_rounding(trial)}{_no_winner_because(trial)}"
    after = f"weights after {several(seen.early_steps or 0, 'step')}"
    if not seen.early_weights:
        return f"the same {after}"
    rounding = f", as by rounding ({trial.numbers})" if trial.beyond_rounding is False else ""
    return f"{after} differ by {_tiny_in_words(seen.early_weights)}{rounding}{_beside(noise.early_weights)}"


def _beside(unchanged: float | None) -> str:
    """Return what two unchanged runs differ by; without them, nobody knows whether a difference is the change's."""
    return f" (two unchanged runs: {'not compared' if unchanged is None else _tiny_in_words(unchanged)})"


def _beyond_rounding(trial: ChangeTrial) -> str:
    """Return what rounding does not explain."""
    seen = trial.difference
    first, early = (f"{min(100 * (share or 0.0), 999):.0f} %" for share in (seen.first_update, seen.early_update))
    other = "it computes something else or draws other random numbers"
    loss = "" if seen.loss is None else f"; the last loss differs by {_tiny_in_words(seen.loss)}"
    return (
        f"its update of the weights in the first step by {first}, in the first {seen.early_steps} steps by {early}, more than "
        f"rounding ({trial.numbers}) explains: {other}{loss}"
    )


def _no_winner_because(trial: ChangeTrial) -> str:
    if trial.diverged:
        return ", which is far above the unchanged one, so it does not win"
    return ", which it should not do, so it does not win" if trial.other_results else ""


def _memory(trial: ChangeTrial, baseline: Baseline) -> str:
    if trial.peak_memory_bytes is None or baseline.peak_memory_bytes is None:
        return ""
    more = trial.peak_memory_bytes - baseline.peak_memory_bytes
    return f"peak memory {'+' if more >= 0 else '-'}{size(abs(more))}"


def _start(trial: ChangeTrial) -> str:
    if not trial.pays_after_steps or trial.start_ns is None or trial.start_ns < NOTABLE_START_NS:
        return ""
    return (
        f"starts {duration(trial.start_ns)} later and pays for itself after {several(trial.pays_after_steps, 'step')}"
    )


def _tiny_in_words(number: float) -> str:
    return "no finite amount" if math.isinf(number) else f"{number:.0e}" if number else "0"

"""How sure the cause is, and how sure the size of the saving."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from nsysx import units
from nsysx.advice import Certainty, Level, Sure
from nsysx.answer import subject
from nsysx.answer.answer_bounds import (
    ALL_BUSY_SHARE,
    CLOSELY_KNOWN_SHARE,
    LAST_IN_MOST_SHARE,
    MOSTLY_BUSY_SHARE,
    QUOTED_DETAIL_LETTERS,
    UNEVEN_STEPS_TIMES,
)
from nsysx.answer.change_savings import about as about_of
from nsysx.answer.change_savings import (
    changes_before,
    is_bound,
    nothing_to_claim,
    shows_likely_saving,
    violated_conditions,
)
from nsysx.answer.remarks import NOT_MEASURED, of_step, sentence
from nsysx.answer.timed_steps import timed_worth
from nsysx.catalogue import StepLimit, StepPart
from nsysx.findings import rule_of
from nsysx.judging import window_checks
from nsysx.judging.judging_bounds import STRAGGLER_FEWEST_STEPS
from nsysx.judging.unprofiled_checks import surer
from nsysx.model import Finding, Row, Summary
from nsysx.ranks import rank_table

#: How the step without the profiler is known: how sure that makes it, in words, and whether another run would measure it.
_SOURCES: Mapping[str, tuple[Level, str, bool]] = {
    "in_process": ("likely", "The unprofiled step was measured in the same process", False),
    "second_run": ("likely", "The unprofiled step was measured in a second run", False),
    "modelled": ("likely", "The profiler's overhead is estimated", True),
    "assumed": ("unknown", NOT_MEASURED, True),
}
#: By cause: the name of the share of a step in which it shows, and the columns of a step that add up to it.
_SHARES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    StepLimit.GPU: ("GPU busy", ("gpu_compute_ns", "gpu_comm_ns", "gpu_copy_ns", "gpu_memset_ns")),
    StepLimit.COMM: ("Exposed communication", ("gpu_comm_ns",)),
    StepLimit.COPY: ("Exposed copies", ("gpu_copy_ns",)),
}
_IDLE = ("GPU idle", ("gpu_idle_ns",))
#: The check of how much of the GPU's time is known by line and module.
_MATCHED_TO_CODE = "attribution"
#: A GPU that waits for its own host, or for that of another rank.
_WAITING = ("GPU idle or in exposed communication", ("gpu_idle_ns", "gpu_comm_ns"))
#: The work of the GPU without communication.
_COMPUTING = ("GPU computing", ("gpu_compute_ns",))


_LIMIT = "What limits it"
#: What is advised about a line of which nothing better is known.
_OUT_OF_THE_LOOP = "out-of-the-loop"
#: The halves of an answer whose change is for whatever stands there: that the time is lost is measured, that the change wins it is not.
LOST, GAINED = "Where time is lost", "What this change wins"
#: Of which of several changes the size is.
BOTH_TOGETHER, ALL_TOGETHER, SECOND_ALONE = (
    "Both changes together: ",
    "All changes together: ",
    "The second change alone: ",
)
#: Each of them in a word behind the name of the half.
SIZE_OF = {BOTH_TOGETHER: "of both", ALL_TOGETHER: "of all", SECOND_ALONE: "of the second"}
#: The remedy that a change of the whole program comes after, priced in its text: the first of those that a finding advises is that change.
_FIRST_OF_TWO = "larger-batches"
_ORDER: tuple[Level, ...] = ("unknown", "likely", "certain")
#: What is shown for a cause that is no more than likely, by what it is.
_DOUBTS = {
    "made_ahead": "One worker was followed, for one batch; no step has waited yet.",
    "written_at_most": "So few rows are written if each prompt begins at the first one.",
}


def certainty_of_advice(summary: Summary, chosen: Finding | None) -> Certainty:
    """Return how sure the cause is, and how sure the size: together as sure as the less sure of them."""
    cause = _cause(summary, chosen)
    parts: tuple[Sure, ...] = (cause,)
    if chosen is not None and (chosen.saving.likely_ns is not None or _of_the_loop(chosen)):
        parts = (cause, _size(summary, chosen))
    if chosen is not None and cause.about == _LIMIT and _for_whatever_stands_there(chosen):
        parts = (replace(cause, about=LOST), *(replace(part, about=GAINED) for part in parts[1:]))
    least = min(parts, key=lambda s: _ORDER.index(s.level))
    if chosen is None:
        return Certainty(least.level, least.reason, parts)
    before = _of_changes_before(summary, chosen, parts)
    if changes := _changes_of_the_size(summary, chosen):
        sizes = (replace(part, reason=f"{changes}{units.uncapitalized(part.reason)}") for part in parts[1:])
        parts = (parts[0], *sizes)
    return Certainty(least.level, least.reason, (*parts, *before))


def _changes_of_the_size(summary: Summary, chosen: Finding) -> str:
    """Return of which changes the size is, as `SIZE_OF` has it, where the advice holds several, else ""."""
    one_by_one = changes_before(summary, chosen) or violated_conditions(chosen)
    later = rule_of(chosen.code).whole and any(way.name == _FIRST_OF_TWO for way in chosen.remedies[1:])
    if later and not one_by_one:
        return SECOND_ALONE
    pasted = len(chosen.remedies[0].parts) if chosen.remedies else 1
    count = len(changes_before(summary, chosen)) + len(violated_conditions(chosen)) + max(pasted, 1)
    return "" if count == 1 else BOTH_TOGETHER if count == 2 else ALL_TOGETHER


def _of_changes_before(summary: Summary, chosen: Finding, parts: tuple[Sure, ...]) -> tuple[Sure, ...]:
    """Return how sure each exact change is that comes before one for the whole program: its own saving needs nothing of that."""
    if any(part.level == "unknown" for part in parts):  # no figure of the step is known well enough
        return ()

    def sure(number: int, finding: Finding) -> Sure:
        saving, error = summary.step.saves_ns(finding.saving) or 0, finding.saving.error_ns or 0
        level: Level = "certain" if 2 * error <= saving else "likely"
        return Sure(f"({number})", level, f"Alone it saves {units.duration(saving)} (±{units.duration(error)}).")

    return tuple(sure(i, finding) for i, finding in enumerate(changes_before(summary, chosen), 1))


def _cause(summary: Summary, chosen: Finding | None) -> Sure:
    """Return how sure the cause is, from the share that it takes in each steady step."""
    about = _LIMIT
    if summary.steps.source == "capture" and chosen is not None and rule_of(chosen.code).reading:
        return Sure("What the clocks read", "certain", "The kernels are recorded with times of their own.")
    if subject.ledger_row(summary) is None:
        return Sure(about, "unknown", "No GPU work is in the capture.")
    if window_checks.cold_report(summary.quality) is not None:
        return Sure(about, "unknown", "The missing NAME.cold.sqlite holds the steps; this report has no whole one.")
    if summary.steps.source == "capture":
        return Sure(about, "unknown", "No steps were found, so start-up and steady work are not separated.")
    if summary.verdict.code == StepLimit.UNKNOWN or nothing_to_claim(summary):
        return Sure(about, "unknown", "The capture lacks what it takes; see How far to trust this.")
    doubts = [
        _DOUBTS[name] for row in (chosen.evidence if chosen is not None else ()) for name in row if name in _DOUBTS
    ]
    if doubts:
        return Sure(about, "likely", doubts[0])
    late = subject.rank_waited_for(summary)
    warned = [c for c in summary.quality if c.status == "warn" and c.doubt in ("cause", "numbers", "everything")]
    more = f" But: {warned[0].short or _quoted(warned[0].detail)}" if warned else ""
    if chosen is not None and (compared := _of_ranks_compared(chosen)):
        # How long the ranks work and wait, no line has to tell.
        doubted = any(c.check != _MATCHED_TO_CODE for c in warned) or (bool(warned) and not _waits_in_turn(chosen))
        return Sure(about, "likely" if doubted else "certain", f"{compared}.{more if doubted else ''}")
    if late is not None and late.get("last_share") is not None:
        share = units.share(late["last_share"], 1)
        # Who comes last may be late by no more than healthy processes differ: its own time decides.
        beyond = (late.get("late_low_ns") or 0) > (late.get("late_drift_ns") or 0)
        few = (late.get("steps") or STRAGGLER_FEWEST_STEPS) < STRAGGLER_FEWEST_STEPS
        level: Level = "certain" if beyond and not warned and not few else "likely"
        longer = f"takes at least {units.duration(late.get('late_low_ns') or 0)} a step longer than its peers"
        # The first clause is what a terminal shows.
        who = f"In only {units.several(late['steps'], 'steady step')} rank" if few else "Rank"
        reason = f"{who} {late['rank']} {longer} without waiting"
        # One that is late by its work may come first while tracing holds its peers.
        last = not late.get("late_by_work") or (late["last_share"] or 0) >= LAST_IN_MOST_SHARE
        reason += f", and comes last in {share} of the collectives." if last else "."
        return Sure(about, level, f"{reason}{more}")
    if chosen is not None and _of_the_loop(chosen):
        read = any(row.get("set_in_program") for row in chosen.evidence)
        why = (
            "The program's settings were read"
            if read
            else f"It was timed between steps, without the profiler{_compared(chosen)}"
        )
        return Sure("What the loop loses", "certain" if read and not warned else "likely", f"{why}.{more}")
    if summary.verdict.code == StepLimit.INPUT and (bare := _bare_wait(chosen)):
        return Sure(about, "likely" if warned else "certain", f"{bare}{more}")
    name, columns = _share_of(summary, chosen)
    shown_by = _shown_by(chosen, name)
    steady = [r for r in summary.steps.rows if r.get("steady") and r.get("gpu_ns")]
    shares = [sum(r.get(c) or 0 for c in columns) / r["gpu_ns"] for r in steady]
    if not shares:
        return Sure(about, "unknown", "No GPU work lies in steady steps.")
    low, high = units.share(min(shares), 1), units.share(max(shares), 1)
    spread = units.span(low, high)
    if len(shares) < 3:
        return Sure(
            about,
            "likely",
            f"{shown_by}{name} {spread}, in only {len(shares)} steady step{'s' if len(shares) > 1 else ''}.{more}",
        )
    if summary.verdict.code == StepLimit.COMM and len(summary.typed_rows(rank_table.ROWS)) < 2:
        alone = (
            f"{shown_by}{name} {spread} in all {len(shares)} steps. One report cannot tell slow links from a late rank."
        )
        return Sure(about, "likely", alone, "nsysx report RANK0.sqlite RANK1.sqlite ...")
    if chosen is not None and about_of(chosen) == "slow steps":
        return Sure(about, "likely" if warned else "certain", f"{chosen.title}.{more}")
    seen = chosen is not None and any("setting" in row and row.get("leads") for row in chosen.evidence)
    of_steps = name, columns, spread
    shown = _of_all_steps(summary, steady, of_steps, more, is_set=_is_set(chosen), seen_in_settings=seen)
    return replace(shown, reason=f"{shown_by}{shown.reason}")


def _shown_by(chosen: Finding | None, name: str) -> str:
    """Return what shows the cause, as a sentence before that on the share that the limit takes; of a GPU that waits both are one.

    How busy a GPU is shows that its work limits the step, and not that any of that can go.
    """
    rests_on = "" if chosen is None else rule_of(chosen.code).rests_on
    return rests_on and f"{rests_on}{'; ' if name in (_IDLE[0], _WAITING[0]) else '. '}"


def _of_the_loop(chosen: Finding) -> bool:
    """Return whether a change is one of what runs between steps, which was timed: no step shows it."""
    return any(row.get("loop_then_ns") is not None for row in chosen.evidence)


def _compared(chosen: Finding) -> str:
    """Return that what ranks evaluate was compared, "" where a finding does not rest on that."""
    compared = any(row.get("evaluating_ranks") for row in chosen.evidence)
    return "; what the ranks' networks were given in the same calls was compared" if compared else ""


def _is_set(chosen: Finding | None) -> bool:
    """Return whether the cause is a setting that the program was seen to make, at a known line, of whose work the replay tells the size."""
    if chosen is None or chosen.saving.likely_ns is None:
        return False
    return any(row.get("set_in_program") for row in chosen.evidence)


def _for_whatever_stands_there(chosen: Finding) -> bool:
    """Return whether a change makes launches or passes fewer, or moves work, for whatever stands there: no cause is named with it.

    Nor is one where what to change is not known yet.
    """
    if chosen.unexplained or rule_of(chosen.code).striking:
        return True
    if not chosen.remedies:
        return False
    return not subject.names_its_change(chosen) or chosen.remedies[0].name == _OUT_OF_THE_LOOP


def _share_of(summary: Summary, chosen: Finding | None) -> tuple[str, tuple[str, ...]]:
    """Return the share of a step in which the limit shows, and its columns: in communication on the host the GPU idles.

    Beside communication the GPU's work is what a change of that work is of; what a change of the host's work is of shows in both, as a GPU
    that idles and as ranks that wait for it.
    """
    parts, about = summary.verdict.parts, None if chosen is None else rule_of(chosen.code).about
    if summary.verdict.code == StepLimit.COMM and about == StepLimit.GPU:
        return _COMPUTING
    if summary.verdict.code == StepLimit.COMM and about == StepLimit.LAUNCH:
        return _WAITING
    on_host = parts.get(StepPart.HOST_COMM, 0) > parts.get(StepPart.COMM, 0)
    return _IDLE if on_host else _SHARES.get(summary.verdict.code, _IDLE)


def _bare_wait(chosen: Finding | None) -> str:
    """Return that the wait for batches was timed in the steps without the profiler, "" where that is not what the finding rests on."""
    timed = next((row for row in chosen.evidence if "more_wait_ns" in row), None) if chosen is not None else None
    if timed is None:
        return ""
    more, recorded = units.duration(timed["more_wait_ns"]), units.duration(timed["recorded_wait_ns"])
    return f"Each wait for a batch was timed without the profiler, too: there it is {more} longer than the recorded {recorded}."


def _of_ranks_compared(chosen: Finding) -> str:
    """Return what a comparison of all ranks step by step shows, "" where a finding does not rest on one."""
    if any(row.get("fewer_steps") for row in chosen.evidence):
        return "What the ranks loaded in the same step was compared"  # no part of the step tells of it
    return _waits_in_turn(chosen)


def _waits_in_turn(chosen: Finding) -> str:
    """Return how much of what the ranks wait is for one with more work in the same step, "" where a finding is not about that."""
    seen = next((row for row in chosen.evidence if row.get("turn_wait_ns") and row.get("waited_ns")), None)
    if seen is None:
        return ""
    share = units.share(min(seen["turn_wait_ns"] / seen["waited_ns"], 1.0), 1)
    return f"{share} of the waiting is for a rank with more work in the same step"


def _of_all_steps(
    summary: Summary,
    steady: Sequence[Row],
    share: tuple[str, tuple[str, ...], str],
    more: str,
    *,
    is_set: bool,
    seen_in_settings: bool,
) -> Sure:
    """Return how sure the cause is where it shows in every step; ``more`` is what the checks warn of.

    ``share``: what `_share_of` says, and its span. ``is_set``: it is a setting of the program. That it acts is then no
    question of how long tracing makes ranks wait. ``seen_in_settings``: the settings show it at work, wherever it was set.
    """
    about, count, warned = _LIMIT, len(steady), bool(more)
    name, columns, spread = share
    short, long = np.quantile([r["gpu_ns"] for r in steady], (0.1, 0.9)).tolist()
    uneven = long > UNEVEN_STEPS_TIMES * short
    level: Level = "likely" if warned or uneven else "certain"
    reason = f"{name} {spread} in all {count} steps"
    if uneven:
        reason += ", whose lengths and perhaps work differ"
    if summary.step.marked and (real := summary.step.estimate) is not None:
        least, most = real.busy_bounds
        # Shares of recorded steps are not those of the shown one: of one fact, a reader gets one number.
        idle = f"{units.span(units.share(1 - most, 1), units.share(1 - least, 1))} without the profiler"
        if (name, columns) == _IDLE and not uneven:
            reason = f"GPU idle in all {count} steps, {idle}"
        else:
            reason += f", as recorded; GPU idle {idle}"
        if (name, columns) == _IDLE:
            # Whatever the GPU does meanwhile: what the settings show to happen is work of its own.
            open_too: Level = "likely" if seen_in_settings else "unknown"
            level = open_too if most >= ALL_BUSY_SHARE else "likely" if most >= MOSTLY_BUSY_SHARE else level
            if most >= ALL_BUSY_SHARE:
                seen = "what is to be changed was seen in the program's settings"
                reason += f"; {seen}" if seen_in_settings else ": it may not idle at all"
        elif summary.verdict.code == StepLimit.COMM:  # a rank that is traced arrives later, and its peers wait for it
            level = level if is_set else "likely"
            reason += "; the program sets what makes it" if is_set else "; tracing may make ranks wait longer"
        elif summary.verdict.code == StepLimit.GPU and least < MOSTLY_BUSY_SHARE:
            level = "likely"
    else:
        reason = summary.step.of_capture(reason)
    return Sure(about, level, f"{reason}.{more}")


def _added_up(chosen: Finding) -> bool:
    """Return whether a saving is a time that was added up, and more than that may go: it is not told as the most by itself."""
    saving = chosen.saving
    return saving.bound and saving.source == "time" and (saving.most_ns or 0) > (saving.likely_ns or 0)


def _size(summary: Summary, chosen: Finding) -> Sure:
    """Return how sure the size of the saving is, from how it is known and from what tracing did to the step."""
    about, real = "How much", summary.step.estimate
    if _of_the_loop(chosen):
        how = (
            "that a part takes its share of the time is assumed"
            if _compared(chosen)
            else "what else runs there was recorded"
            if any(row.get("looped_launches") for row in chosen.evidence)
            else "how much of that can go is not known"
        )
        return Sure(about, "likely", f"The loop was timed without the profiler; {how}.")
    how = sentence(re.sub("^(?=±)", "replay error ", chosen.saving.confidence))
    if shows_likely_saving(chosen):
        how = "The replay made exactly this change. Nine in ten of the changes that were tried lie in such an interval."
    elif _added_up(chosen):
        how = sentence(chosen.saving.confidence)
    elif is_bound(summary, chosen):
        how = f"Upper bound{f'; {chosen.saving.confidence}' if chosen.saving.confidence else ''}."
    if timed_worth(summary, chosen) is not None:
        return Sure(about, "likely", "The unprofiled step was timed; that waiting shrinks with it is assumed.")
    if real is None and chosen.saving.source in ("time", "limits") and not is_bound(summary, chosen):
        return Sure(about, "likely", f"{how} As recorded: what else the step does is shorter without the profiler.")
    if real is None:
        made = f"The step is as long as the profiler made it. {how}".strip()
        return Sure(about, "unknown", made, _surer(summary))
    if not summary.step.marked:
        slower = real.measured_steps and real.high_ns > (1 + CLOSELY_KNOWN_SHARE) * real.step_ns
        longer = f"Without the profiler steps took up to {units.duration(real.high_ns)}: the host was slower then."
        return Sure(about, "likely", f"{how} {longer if slower else 'Tracing hardly changes this step.'}".strip())
    level, reason, measurable = _SOURCES[real.source]
    command = _surer(summary) if measurable else ""
    if real.known_within(CLOSELY_KNOWN_SHARE):
        return Sure(about, "likely", f"{how} {reason}.".strip())
    if is_bound(summary, chosen) and level == "likely":
        # More than the step's own spread, what lies beyond the bound is not known.
        return Sure(about, level, f"{how} {reason}.", command)
    return Sure(about, level, f"{of_step(summary, reason)} {how}".strip(), command)


def _quoted(text: str) -> str:
    return text if len(text) <= QUOTED_DETAIL_LETTERS else f"{text[: QUOTED_DETAIL_LETTERS - 1]}…"


def _surer(summary: Summary) -> str:
    """Return the command that measures the step without the profiler, or that its record is to be put beside the report."""
    elsewhere = window_checks.run_record(summary.quality)
    return elsewhere.fix if elsewhere is not None else surer(summary.capture)

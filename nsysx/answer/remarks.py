"""What a change is worth, in words: what it saves, or why that is not known."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nsysx import units
from nsysx.advice import Also, Certainty
from nsysx.answer import moved_most, near_limits, subject, time_places
from nsysx.answer.answer_bounds import CARD_DETAIL_LETTERS
from nsysx.answer.change_savings import After, is_bound, nothing_to_claim
from nsysx.catalogue import StepLimit, StepPart
from nsysx.findings.nsx115_wrong_timing import BOTH_SIDES, EVIDENCE, KERNEL_ITSELF
from nsysx.judging import window_checks
from nsysx.judging.limit_words import pair
from nsysx.model import Finding, Summary

#: Why the size of a saving is not known where the step without the profiler is only assumed.
NOT_MEASURED = "The unprofiled step was not measured"


def worth(summary: Summary, chosen: Finding | None, then: After, also: Sequence[Also] = ()) -> str:
    """Return a remark on what the change is worth. ``also``: what else is told, each with what it may save."""
    now = summary.step.shown_ns
    if chosen is None:
        return _without_a_change(summary, also)
    if now is None:
        return _of_reading(chosen)
    if then.ns is None:
        return sentence(chosen.saving.confidence)
    return "at best" if is_bound(summary, chosen) else f"saves {units.duration(now - then.ns)}"


def of_step(summary: Summary, reason: str) -> str:
    """Return why a step without the profiler is no closer known, with its bounds."""
    low, high = summary.step.bounds_ns or (None, None)
    return f"{reason}: {units.span(units.duration(low), units.duration(high))} a step."


def not_known(summary: Summary, chosen: Finding | None, sure: Certainty, *, bounded: bool) -> str:
    """Return why the cause or the size of a change is not known, and how to measure it; ``bounded``: its factors stand before that."""
    if chosen is None or summary.step.shown_ns is None or chosen.saving.likely_ns is None:
        return worth(summary, chosen, After())
    unknown = next((half for half in sure.parts if half.level == "unknown"), None)
    real = summary.step.estimate
    why = of_step(summary, NOT_MEASURED) if real is not None and real.source == "assumed" else sure.reason
    told = why if bounded else f"Not known: {units.uncapitalized(why)}"
    if real is None and sure.parts[0] is not unknown:
        part, whole = units.duration(chosen.saving.likely_ns), units.duration(summary.step.shown_ns)
        told = f"{part} of {whole} as recorded ({chosen.saving.confidence.rstrip('.')}). Without the profiler it may be less."
    command = unknown.command if unknown is not None else ""
    return f"{told} To measure it: {command}" if command else told


def _without_a_change(summary: Summary, also: Sequence[Also]) -> str:
    """Return the remark on the worth where no change is advised."""
    if summary.step.shown_ns is not None and subject.replayed(summary):
        if near_limits.unseen_kernel(summary):
            return f"Not known: how near that kernel is to the device's limits.{_all_of_a_kernel(summary)}"
        wide = near_limits.in_float64(summary)
        if wide is not None:
            saved = units.duration(summary.step.saves_at_most_ns(wide.saving))
            return f"Nothing found to gain in float64. In float32: up to {saved} of {units.duration(summary.step.shown_ns)}."
        if not near_limits.near(summary) and (most := moved_most.moved_most(summary)) is not None:
            share = units.share(most.share, 1)
            return f"Not known: how much of it the program needs. It takes {share} of the GPU time: no change of it saves more."
        largest = max(also, key=lambda line: line.saving_ns or 0, default=None)
        if largest is not None and largest.saving_ns:  # beside its "up to", that there is nothing would be no answer
            part, whole = (units.duration(ns) for ns in (largest.saving_ns, summary.step.shown_ns))
            return f"Nothing for sure. {largest.code} may save up to {part} of {whole}."
        return "Nothing found to gain."
    if subject.ledger_row(summary) is None:
        return "Not known: the GPU's work is not in the report."
    if window_checks.cold_report(summary.quality) is not None:
        return "Not known: the steps are not in this report."
    if nothing_to_claim(summary):
        return "Not known: the kernels are not in the report."
    if (beside_ns := subject.beside_computing_ns(summary)) is not None:
        part, whole = pair(beside_ns, sum(summary.verdict.parts.values()))
        return f"At most {part} of {whole} by a change of the host; less GPU work cannot be priced without a replay."
    if summary.steps.source != "capture":
        return "Not known: no replay comes near the recorded steps."
    return f"Not estimated: no steps in this report.{_without_idle_time(summary)}"


def _all_of_a_kernel(summary: Summary) -> str:
    """Return what a kernel takes of a step, which is the most that a faster one could save; "" where a step's share is not known."""
    longest, now = time_places.longest_kernel(summary), summary.step.shown_ns
    if longest is None or not longest.step_ns or now is None:
        return ""
    return (
        f" It takes {units.duration(min(longest.step_ns, now))} of {units.duration(now)}: no change of it saves more."
    )


def _without_idle_time(summary: Summary) -> str:
    """Return what the GPU's window is without the time in which it idles: no change of the host code makes it shorter."""
    parts = summary.verdict.parts
    idle = sum(ns for part, ns in parts.items() if StepPart.named(part).idle)
    if summary.verdict.code != StepLimit.GPU or not idle:
        return ""
    whole = sum(parts.values())
    return f" Without idle time the GPU's {units.duration(whole)} would be {units.duration(whole - idle)}."


def _of_reading(chosen: Finding) -> str:
    """Return the kernel's own time and what a clock adds to it; for any other finding, its detail."""
    ways = {r["way"]: r["reads_ns"] for r in chosen.typed_rows(EVIDENCE)}
    kernel, both = ways.get(KERNEL_ITSELF), ways.get(BOTH_SIDES)
    if kernel and both:
        reads = f"With a synchronize on both sides a clock reads {units.duration(both)}: that adds the launch and the return."
        return f"The kernel takes {units.duration(kernel)}. {reads}"
    return _whole_sentences(chosen.detail.removesuffix(chosen.because).rstrip())


def _whole_sentences(text: str) -> str:
    """Return the first sentences of a text that fit on a card; a longer first one as it is."""
    kept = ""
    for part in re.split(r"(?<=[.!?]) (?=[A-Z0-9])", text):
        if kept and len(kept) + len(part) >= CARD_DETAIL_LETTERS:
            break
        kept += f" {part}" if kept else part
    return kept


def sentence(text: str) -> str:
    """Return a remark as a sentence."""
    text = text.strip().rstrip(".")
    return f"{text[:1].upper()}{text[1:]}." if text else ""

"""A comparison in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from nsysx import units
from nsysx.catalogue import DeviceActivity
from nsysx.comparing.comparing_bounds import (
    MOST_SENTENCE_PARTS,
    ONE_DIGIT_FROM,
    OWN_CAUSE_SHARE,
    SENTENCE_PART_SHARE,
    SHOWN_IN_MS_NS,
    SHOWN_IN_US_NS,
)
from nsysx.comparing.difference_answer import Comparison, DifferencePart
from nsysx.comparing.differences import PartDifference
from nsysx.comparing.side import GPU_CAUSES


def _unit(ns: float) -> tuple[float, str]:
    """Return a divisor and its unit, so that a difference shows two or three digits."""
    return (1e6, "ms") if abs(ns) >= SHOWN_IN_MS_NS else (1e3, "us") if abs(ns) >= SHOWN_IN_US_NS else (1.0, "ns")


def _number(ns: float, scale: float) -> str:
    value = abs(ns) / scale
    return f"{value:.{1 if value >= ONE_DIGIT_FROM else 2}f}"


def _amount(ns: float) -> str:
    """Return a difference with its unit, e.g. "17.8 ms"."""
    scale, unit = _unit(ns)
    return f"{_number(ns, scale)} {unit}"


def _share(difference: float, before: float, low: int | None, high: int | None) -> str:
    """Return "25.7 %, 25.3 to 26.1": the difference and its interval in percent of before, positive in its direction."""
    if not before:
        return "-"
    sign = 1 if difference > 0 else -1
    text = f"{100 * sign * difference / before:.1f} %"
    if low is None or high is None:
        return text
    ends = sorted((100 * sign * low / before, 100 * sign * high / before))
    return f"{text}, {ends[0]:.1f} to {ends[1]:.1f}"


def _idle_together(parts: Sequence[DifferencePart], total: int) -> list[DifferencePart]:
    """Return the parts, with the idle time of minor causes as one part."""
    small = [p for p in parts if p.kind == "idle" and abs(p.difference_ns) < OWN_CAUSE_SHARE * abs(total)]
    if len(small) < 2:
        return list(parts)
    difference, before, after = (sum(getattr(p, k) for p in small) for k in ("difference_ns", "before_ns", "after_ns"))
    merged = DifferencePart(
        "ledger",
        "idle",
        difference_ns=difference,
        before_ns=before,
        after_ns=after,
        low_ns=None,
        high_ns=None,
        verdict="cannot_tell",
        status="both",
    )
    return sorted([p for p in parts if p not in small] + [merged], key=lambda p: -abs(p.difference_ns))


def _parts_in_words(answer: Comparison, parts: Sequence[DifferencePart], total: int) -> str:
    """Return ": 16.9 in MaskedLoss kernels, 0.9 in waits", and what is left in other parts.

    Named is what changes the step enough; where nothing does, the largest part of the difference.
    """
    scale, _ = _unit(total)
    sign = 1 if total > 0 else -1
    parts = _idle_together(parts, total)
    seen = [p for p in parts if p.kind != "rest" and abs(p.difference_ns) >= SENTENCE_PART_SHARE * abs(total)]
    named = [p for p in seen if answer.changes_the_step(p)] or seen[:1]
    same = [p for p in named if p.difference_ns * sign > 0][:MOST_SENTENCE_PARTS]
    against = [p for p in named if p.difference_ns * sign < 0][:2]
    if not same:
        return ""
    text = ": " + ", ".join(f"{_number(p.difference_ns, scale)} in {p.words}" for p in same)
    if against:
        more = "less" if sign > 0 else "more"
        text += "; " + ", ".join(f"{_number(p.difference_ns, scale)} {more} in {p.words}" for p in against)
    unnamed = total - sum(p.difference_ns for p in (*same, *against))
    if abs(unnamed) >= SENTENCE_PART_SHARE * abs(total):
        opposite = "" if unnamed * sign > 0 else (" less" if sign > 0 else " more")
        text += f"{';' if against else ','} {_number(unnamed, scale)}{opposite} in other parts"
    return text


def sentence(answer: Comparison, work: PartDifference | None, *, single: bool) -> str:
    """Return the answer in words: how much, how sure, and where it comes from.

    ``work`` is the difference of GPU work if that decided; ``single``: each side is one capture, and the noise is unknown.
    """
    before, after, low, high = answer.before_ns, answer.after_ns, answer.low_ns, answer.high_ns
    difference = after - before
    way = "slower" if difference > 0 else "faster"
    each = "" if answer.whole else " a step"
    amount = f"{_amount(difference)}{each} {way}"
    share = _share(difference, before, low, high)
    only = " The interval covers only steps: one capture a side." if single else ""
    if work is not None and answer.verdict in ("faster", "slower"):
        return _by_work(answer, work) + only
    if answer.verdict in ("faster", "slower"):
        return f"{amount} ({share}){_parts_in_words(answer, answer.parts, difference)}.{only}"
    detectable = answer.detectable_ns
    seen = f" A change of {units.duration(detectable)}{each} or more would have been seen." if detectable else ""
    both = f"{units.duration(before)} before and {units.duration(after)} after"
    if answer.verdict == "same":
        same = f"The same within {units.share(answer.margin, 1)}: {both} ({share} {way})"
        return same + (", by the GPU work, which limits the step." if work is not None else ".") + seen
    if answer.whole:
        way = "longer" if difference > 0 else "shorter"
        because = _parts_in_words(answer, answer.parts, difference)
        return (
            f"Not comparable, because no steps were found: from the first to the last GPU work {both}, {_amount(difference)} "
            f"{way}{because}. Whether both did the same work is unknown."
        )
    if low is None:
        return f"Not significant: {both}; too few steps for a confidence interval."
    if answer.drift_ns and single and (low > 0 or (high is not None and high < 0)):
        why = f"processes of one program may differ by {units.duration(answer.drift_ns)}"
        return f"Not significant: {amount} ({share}), but {why} a step: capture each side several times.{seen}"
    if not difference:
        return f"No measurable difference: {both}.{seen}"
    return f"Not significant: {amount} ({share}).{seen}"


def _by_work(answer: Comparison, work: PartDifference) -> str:
    """Return the answer if GPU work decides."""
    difference = round(work.difference_ns)
    low, high = (None if v is None else round(v) for v in (work.low_ns, work.high_ns))
    share = _share(difference, round(work.before_ns), low, high)
    parts = [p for p in answer.parts if p.kind != "idle" or p.name in GPU_CAUSES]
    because = _parts_in_words(
        answer, [p for p in parts if p.name != DeviceActivity.COMM and p.kind != "rest"], difference
    )
    step = answer.after_ns - answer.before_ns
    whole = (
        f"the whole step is {_amount(step)} {'slower' if step > 0 else 'faster'}, "
        "but less surely so, because of the host's noise"
    )
    way = "slower" if difference > 0 else "faster"
    return f"{_amount(difference)} a step {way} in GPU work, which limits it ({share}){because}; {whole}."


def real_words(before: int, after: int, low: int, high: int, verdict: str, *, surer: bool = False) -> str:
    """Return a sentence on the steps without the profiler. ``surer``: it tells a change that the recorded steps do not."""
    difference = after - before
    steps = f"{units.duration(before)} before, {units.duration(after)} after"
    if verdict == "same":
        return f"Without the profiler they are the same: {steps}."
    if not difference:
        return f"Without the profiler no difference shows: {steps}."
    way = "slower" if difference > 0 else "faster"
    doubt = ", not significant" if verdict == "cannot_tell" else ""
    share = _share(difference, before, low, high)
    scope = "; an interval of these runs alone" if surer else ""
    return f"Without the profiler: {_amount(difference)} a step {way} ({share}{scope}){doubt}; {steps}."

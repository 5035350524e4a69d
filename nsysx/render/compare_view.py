"""What every rendering of a comparison shares: titles, cells and words, harmless and short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nsysx import units
from nsysx.catalogue import FAMILIES
from nsysx.comparing.comparing_bounds import NAMED_PART_SHARE
from nsysx.comparing.comparison import TABLES
from nsysx.comparing.difference_answer import Comparison, DifferencePart, Real, part_words
from nsysx.comparing.differences import PartDifference
from nsysx.render.safe_text import clean, scrub, shorten, shorten_kernel

TITLES = {table.key: table.title for table in TABLES}
LABELS = {"faster": "Faster", "slower": "Slower", "same": "Same", "cannot_tell": "Cannot tell"}
HEADS = ("name", "before", "after", "difference", "interval", "count", "verdict")
#: Checks that matter even when neither side knows the answer.
_WORTH_SAYING = {"what a step is", "kernels"}


@dataclass(frozen=True)
class ComparedLine:
    """One row as text; ``full`` is the whole name, ``ns`` before, after and difference for sorting."""

    cells: tuple[str, ...]
    full: str
    ns: tuple[float, float, float]


def signed(ns: float) -> str:
    """Return a difference with its sign."""
    return f"{'+' if ns > 0 else '-' if ns < 0 else ''}{units.duration(abs(ns))}"


def interval(low: float | None, high: float | None) -> str:
    """Return the interval of a difference, "-" where there is none."""
    return "-" if low is None or high is None else f"{signed(low)} to {signed(high)}"


def name_of(key: str, row: PartDifference, width: int, *, redact: bool = False) -> str:
    """Return what a row is called, within ``width`` characters."""
    if key in ("ledger", "idle"):
        return part_words(key, row.name)
    if row.name is None:
        return "(none)"
    if key == "families":
        return FAMILIES.get(row.name, clean(row.name, width))
    text = clean(scrub(row.name) if redact else row.name, 1000)
    text = shorten_kernel(text, width) if key == "kernels" else shorten(text, width)
    return f"{text} (now {shorten(clean(row.now, 200), 30)})" if row.now else text


def _counts(row: PartDifference) -> str:
    a, b = row.before_count, row.after_count
    if a is None and b is None:
        return ""
    old, new = (f"{v or 0:.1f}".removesuffix(".0") for v in (a, b))
    return old if old == new else f"{old} -> {new}"


def line(key: str, row: PartDifference, width: int, *, redact: bool = False) -> ComparedLine:
    """Return one row of a table."""
    full = clean(scrub(str(row.name)) if redact else str(row.name), 1000)
    return _line(row, name_of(key, row, width, redact=redact), _counts(row), full)


def part_line(part: DifferencePart, width: int, before_ns: int) -> ComparedLine:
    """Return one part of the difference."""
    words = clean(part.words, 1000)
    share = units.share(abs(part.difference_ns), before_ns)
    return _line(part, shorten(words, width), share, words, judged=part.kind != "rest")


def _line(
    row: PartDifference | DifferencePart, name: str, what: str, full: str, *, judged: bool = True
) -> ComparedLine:
    """Return a row: name, times, difference with its interval, ``what`` (counts or a share), verdict; ``full`` is the whole name."""
    verdict = row.status if row.status in ("added", "removed") else LABELS[row.verdict].lower()
    times = (units.duration(row.before_ns), units.duration(row.after_ns), signed(row.difference_ns))
    cells = (name, *times, interval(row.low_ns, row.high_ns), what, verdict if judged else "")
    return ComparedLine(cells, full, (row.before_ns, row.after_ns, row.difference_ns))


def shown_parts(answer: Comparison, most: int) -> tuple[list[DifferencePart], str, int]:
    """Return the parts that are shown one by one, at most so many, and what the others are in words and in sum (ns).

    Shown is what changes the step enough; where nothing does, the largest part.
    """
    single = [p for p in answer.parts if p.kind != "rest"]
    enough = [p for p in single if answer.changes_the_step(p)]
    shown = (enough or single[:1])[:most]
    others = [p for p in answer.parts if p not in shown and p.difference_ns]
    below = f"others, each below {100 * NAMED_PART_SHARE:.0f} %" if len(enough) <= most else "other parts"
    return shown, below if others else "", sum(p.difference_ns for p in others)


def part_lines(answer: Comparison, most: int, width: int) -> list[ComparedLine]:
    """Return what the difference is made of: the shown parts, at most so many, and one line for all others, so that the lines sum to it."""
    shown, others, others_ns = shown_parts(answer, most)
    lines = [part_line(p, width, answer.before_ns) for p in shown]
    rest = ComparedLine((others, "", "", signed(others_ns), "", "", ""), others, (0, 0, others_ns))
    return [*lines, rest] if others else lines


def without_profiler(answer: Comparison) -> Real | None:
    """Return both steps without the profiler where they tell whether the step changed, else None: those as recorded do."""
    return answer.real if answer.real is not None and answer.real.verdict == answer.verdict else None


def both_steps(answer: Comparison) -> tuple[int, int]:
    """Return the step before and after (ns), without the profiler where that tells, see `without_profiler`."""
    times = without_profiler(answer) or answer
    return times.before_ns, times.after_ns


def worth(answer: Comparison) -> str:
    """Return how much faster the step is in words: "1.50x faster", "Not significant"."""
    before, after = both_steps(answer)
    if answer.verdict not in ("faster", "slower") or not before or not after:
        unknown = "Not comparable" if answer.whole else "Not significant"
        return {"same": "No difference", "cannot_tell": unknown}.get(answer.verdict, LABELS[answer.verdict])
    return f"{max(before, after) / min(before, after):.2f}x {'faster' if after < before else 'slower'}"


def places(answer: Comparison, *, redact: bool) -> list[tuple[str, ComparedLine]]:
    """Return the module and the kernel that changed most, each with what it is."""
    most = []
    for key, noun in (("modules", "module"), ("kernels", "kernel")):
        if rows := [r for r in changed(answer.tables.get(key, ())) if answer.changes_the_step(r)]:
            row = max(rows, key=lambda r: abs(r.difference_ns))
            most.append((noun, line(key, row, 40, redact=redact)))
    return most


def changed(rows: Sequence[PartDifference]) -> list[PartDifference]:
    """Return the rows that changed, were added or were removed."""
    return [r for r in rows if r.verdict in ("faster", "slower") or r.status in ("added", "removed")]


def warnings(answer: Comparison) -> list[str]:
    """Return the differences between the captures besides the program, as harmless text."""
    return [clean(x.detail, 600) for x in answer.comparability if x.status == "differs"]


def unknowns(answer: Comparison) -> list[str]:
    """Return what cannot be known from these Summaries."""
    unknown = [x for x in answer.comparability if x.status == "unknown"]
    return [clean(x.detail, 600) for x in unknown if x.check in _WORTH_SAYING or x.before != x.after]


def share_head(answer: Comparison) -> str:
    """Return the head of the column of shares, which are of the side before."""
    return "of capture" if answer.whole else "of step"


def basis(answer: Comparison) -> str:
    """Return what the interval is based on, and of a change the smallest one that could have been detected: else the sentence says it."""
    steps = [sum(len(c) for c in answer.steps[k]) for k in answer.steps]
    text = f"Over {steps[0]} steps before and {steps[1]} after; the interval covers {answer.basis}."
    if answer.whole:
        plural = "s" if steps[0] > 1 else ""
        doubt = "how much captures of one program differ is not known"
        if answer.low_ns is not None:
            doubt = f"the interval covers {answer.basis}"
        return f"{steps[0]} whole capture{plural} before and {steps[1]} after, as no steps were found; {doubt}."
    if answer.detectable_ns is not None and answer.verdict in ("faster", "slower"):
        text += f" The smallest change of the step that could have been seen: {units.duration(answer.detectable_ns)}."
    if answer.drift_ns:
        text += f" Two runs of one program may differ by {units.duration(answer.drift_ns)} a step."
    return text

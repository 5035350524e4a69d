"""The answer in ten seconds: what limits the step, what to do, what that is worth and how sure it is.

One record, made from a Summary, from which the first screen of the page, the terminal, Markdown and ``--brief`` are drawn, so that
the four never differ. Everything in it is text that is safe to show and numbers in ns of one step, and that step is the one
of which the verdict speaks (``step_time``).
"""

from __future__ import annotations

from dataclasses import dataclass

from nsysx import units
from nsysx.model import Summary
from nsysx.render import advice, bars, step_time
from nsysx.render.advice import Also, Sure, Texts
from nsysx.render.bars import Bar
from nsysx.render.safe_text import clean, scrub


@dataclass(frozen=True, slots=True)
class Answer:
    """The first screen. ``now_ns`` is the step, ``then_ns`` the step after the change (None: cannot be said in time).

    ``bound``: the change brings at most that. ``real``: times are without the profiler, or a profiler hardly changes them;
    ``profiled_ns`` is the step as recorded.
    """

    facts: tuple[str, ...]
    sentence: str
    alarms: tuple[str, ...]
    code: str
    do: str
    paste: str
    condition: str
    where: str
    now_ns: int | None
    then_ns: int | None
    bound: bool
    real: bool
    profiled_ns: int | None
    worth: str
    sure: tuple[Sure, ...]
    bars_title: str
    bars: tuple[Bar, ...]
    also: tuple[Also, ...]
    commands: tuple[str, ...]


def _texts(redact: bool) -> Texts:
    """Return what makes a string harmless and at most so many characters long."""

    def text(value: object, limit: int) -> str:
        raw = str(value)[: 4 * limit]
        return clean(scrub(raw) if redact else raw, limit)

    return text


def _facts(summary: Summary, texts: Texts, now: int | None, profiled: int | None) -> tuple[str, ...]:
    """Return program, GPU, steps and step time."""
    gpus = [clean(g.name, 40) for g in summary.capture.gpus if g.name]
    said = [advice.report_name(summary)]
    if len(summary.capture.files) > 1:
        said[0] += f" and {len(summary.capture.files) - 1} more"
    kinds = sorted(set(gpus))
    said += [f"{gpus.count(k)} x {k}" if gpus.count(k) > 1 else k for k in kinds[:2]] or ["no GPU recorded"]
    first, last = summary.steps.steady or (0, -1)
    if now is None:
        said.append("no steps found")
        return tuple(texts(s, 80) for s in said)
    said.append(f"{last - first + 1} steady of {summary.steps.count} steps")
    said += _step_words(summary, units.duration(now), units.duration(profiled))
    return tuple(texts(s, 80) for s in said)


def _step_words(summary: Summary, now: str, recorded: str) -> list[str]:
    """Return how long the step is, without and with the profiler, and the bounds of one that was not measured."""
    real, differs = summary.unprofiled, step_time.in_recorded_time(summary)
    if step_time.as_recorded(summary):
        return [f"{now} a step{' under the profiler' if real is None or differs else ''}"]
    about = differs and summary.verdict.estimated and real is not None
    # The sentence says the recorded one where it is far from the step.
    under = f" ({recorded} under the profiler)" if recorded != now and not differs else ""
    said = [f"{'about ' * about}{now} a step{under}"]
    if about and real is not None:
        low, high = step_time.bounds_ns(summary) or (real.low_ns, real.high_ns)
        said.append(f"at least {units.duration(low)}, at most {units.duration(high)}")
    return said


def build(summary: Summary, *, redact: bool = True, typed: str = "") -> Answer:
    """Return the answer of a Summary. ``redact`` hides what names a person or a machine; ``typed`` is how a shell finds the reports."""
    texts = _texts(redact)
    now, profiled = step_time.step_ns(summary), step_time.recorded_ns(summary)
    first = advice.first(summary)
    do, paste, condition, where = advice.to_do(first, summary, texts)
    then, worth = advice.worth(first, summary)
    title, pictured = bars.pictured(summary, first)
    warned = (c.detail for c in summary.quality if c.status == "warn" and c.check in advice.ALARMS)
    return Answer(
        facts=_facts(summary, texts, now, profiled),
        sentence=texts(summary.verdict.sentence, 400),
        alarms=tuple(texts(detail, 200) for detail in warned),
        code=first.code if first else "",
        do=do,
        paste=paste,
        condition=condition,
        where=where,
        now_ns=now,
        then_ns=then,
        bound=advice.is_bound(first, summary),
        real=summary.unprofiled is not None
        and not (step_time.as_recorded(summary) and step_time.in_recorded_time(summary)),
        profiled_ns=profiled,
        worth=texts(worth, 300),
        sure=advice.sure(summary, first, texts),
        bars_title=title,
        bars=pictured,
        also=advice.also(summary, first, texts),
        commands=advice.commands(summary, first, typed),
    )

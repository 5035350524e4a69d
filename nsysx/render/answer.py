"""The answer in ten seconds: what limits the step, what to do, what that is worth and how sure it is.

One record, made from a Summary. The first screen of the page, the terminal, Markdown and ``--brief`` are all drawn from it, so the
four never differ. It holds text that is safe to show and times in ns of one step: the step that the verdict speaks of
(``step_time``).
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
    """The first screen. ``now_ns`` is the step, ``then_ns`` the step after the change (None: not known).

    ``bound``: the saving is an upper bound. ``real``: times are without the profiler, or the profiler hardly changes them;
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
    """Return a function that makes a string harmless and cuts it to a length."""

    def text(value: object, limit: int) -> str:
        raw = str(value)[: 4 * limit]
        return clean(scrub(raw) if redact else raw, limit)

    return text


def _facts(summary: Summary, texts: Texts, now: int | None, profiled: int | None) -> tuple[str, ...]:
    """Return the report's name, the GPU, the steps and the step time."""
    gpus = [clean(g.name, 60) for g in summary.capture.gpus if g.name]
    said = [advice.report_name(summary)]
    if len(summary.capture.files) > 1:
        said[0] += f" and {len(summary.capture.files) - 1} more"
    kinds, ranks = sorted(set(gpus)), len(summary.rows("ranks"))
    if ranks > len(gpus):  # one report a rank: the capture is the first one's
        said.append(f"{ranks} ranks")
    said += [f"{gpus.count(k)} x {k}" if gpus.count(k) > 1 else k for k in kinds[:2]] or ["no GPU recorded"]
    first, last = summary.steps.steady or (0, -1)
    if now is None:
        said.append("no steps found")
        return tuple(texts(s, 80) for s in said)
    said.append(f"{last - first + 1} steady of {summary.steps.count} steps{_spread(summary)}")
    said += _step_words(summary, units.duration(now), units.duration(profiled))
    return tuple(texts(s, 80) for s in said)


#: Steady steps whose longest is this many times their shortest are not told by their mean alone.
_UNEQUAL = 1.5


def _spread(summary: Summary) -> str:
    """Return the shortest and the longest steady step as recorded, "" where they are about the same."""
    steady = [ns for r in summary.steps.rows if r.get("steady") and (ns := r.get("gpu_ns") or r.get("cpu_ns"))]
    if not steady or max(steady) < _UNEQUAL * min(steady):
        return ""
    return f", {units.duration(min(steady))} to {units.duration(max(steady))}"


def _step_words(summary: Summary, now: str, recorded: str) -> list[str]:
    """Return the length of the step without and with the profiler, and its bounds where it was not measured."""
    real, differs = summary.unprofiled, step_time.in_recorded_time(summary)
    if step_time.as_recorded(summary):
        return [f"{now} a step{' under the profiler' if real is None or differs else ''}"]
    about = differs and summary.verdict.estimated and real is not None
    # Where the two are far apart, the sentence gives the recorded step.
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

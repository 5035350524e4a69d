"""The answer as text: about twenty lines for a terminal, and as many lines of Markdown for a ticket."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from nsysx import units
from nsysx.advice import Also, Bar
from nsysx.answer.unnamed import FIRST
from nsysx.model import Summary
from nsysx.render import answer_words as answers
from nsysx.render.answer_words import Worded, part_words
from nsysx.render.grids import CellTexts
from nsysx.render.render_bounds import (
    CARD_LETTERS,
    CHANGE_LETTERS,
    LEGEND_LEAST,
    LEGEND_WHOLE,
    MOST_MARKDOWN_LINES,
    MOST_TRIED,
)

#: What the place stands behind where no change is known: it is where the capture has most of its time.
MOST_TIME = "Most time:"


def change(worded: Worded) -> str:
    """Return "15.4 ms → 3.2 ms at best", "" where the step after the change is not known."""
    if worded.now_ns is None or worded.then_ns is None:
        return ""
    mean, best = (" on average" if worded.on_average else ""), (" at best" if worded.bound else "")
    comma = "," if worded.on_average and worded.bound else ""
    return f"{units.duration(worded.now_ns)} → {units.duration(worded.then_ns)} a step{mean}{comma}{best}"


def parts_text(bar: Bar) -> str:
    """Return the parts of a bar in words, in order; one too small for a share that says something is left out."""
    parts = (p for p in bar.parts if p.label and p.ns >= LEGEND_LEAST * bar.total_ns)
    return ", ".join(part_words(p, bar.total_ns) for p in parts)


def also_worth(line: Also) -> str:
    """Return what another finding is worth: "up to 1.2 ms, overlaps with NSX102", "" where it saves no step time or its text says it."""
    if line.saving_ns is None:
        return ""
    others = [f"another {code}" if code == line.code else code for code in line.overlaps]
    also = f"overlaps with {listed(others)}" if others else ""
    saving = units.duration(line.saving_ns)
    worth = (
        ""
        if f"{'up to' if line.bound else 'about'} {saving}" in line.text
        else f"{'up to ' if line.bound else ''}{saving}"
    )
    return ", ".join(filter(None, (worth, also)))


def listed(names: Sequence[str]) -> str:
    """Return names as a list in words: "a, b and c"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def what_to_do(worded: Worded) -> str:
    """Return the change with its place, as one text; where no change is known, what is asked for and where most of the time is."""
    if not worded.where or worded.where.casefold() in worded.do.casefold():
        return worded.do
    # A change may quote its line itself.
    line = f": {worded.source}" if worded.source and worded.source.rstrip("…") not in worded.do else ""
    if not worded.code and FIRST in worded.do:
        look, _, why = worded.do.partition(FIRST)
        return f"{look} ({worded.where}{line}){FIRST}{why}"
    if not worded.code:
        return f"{worded.do.removesuffix('.')}. {MOST_TIME} {worded.where}{line}."
    return f"{worded.do.removesuffix('.')} ({worded.where}{line}){'.' if worded.do.endswith('.') else ''}"


def worth_text(worded: Worded) -> str:
    """Return what the change is worth, in one sentence: as a factor, and from which to which step."""
    arrow = change(worded)
    if not arrow:
        return worded.worth
    more = f". {worded.replayed.removesuffix('.')}" if worded.replayed else ""
    return f"{worded.factor}{': ' if worded.factor else ''}{arrow}{', as recorded' if not worded.real else ''}{more}"


# ---------------------------------------------------------------- Markdown


def markdown_lines(worded: Worded, escape: Any) -> Iterator[str]:
    """Yield at most ``MOST_MARKDOWN_LINES``, the answer before what else was found; ``escape`` makes a text inert in Markdown."""
    answer = list(_markdown_answer(worded, escape))
    yield from answer
    others = worded.also[: max(0, MOST_MARKDOWN_LINES - len(answer) - 2)]
    if others:
        yield ""
        yield "Also found (do not add savings that overlap):"
        for line in others:
            yield f"- {line.code} {escape(line.text)}" + (f": {worth}" if (worth := also_worth(line)) else "")


def _markdown_answer(worded: Worded, escape: Any) -> Iterator[str]:
    yield f"**{escape(worded.sentence)}**"
    yield ""
    yield f"{escape(' · '.join(worded.facts))}"
    yield ""
    for alarm in worded.alarms[:2]:
        yield f"> Read with care: {escape(alarm)}"
    yield f"- **Do this:** {escape(what_to_do(worded))}"
    if worded.paste and "```" not in worded.paste:
        yield from ("", "```python", *worded.paste.splitlines(), "```", "")
    if worded.condition:
        yield f"- **Only if:** {escape(worded.condition)}"
    yield f"- **Worth:** {escape(worth_text(worded))}"
    for tried in worded.tried[:MOST_TRIED]:
        yield f"- **Tried:** {escape(tried)}"
    yield f"- **Sure:** {worded.level}."
    for half, why in worded.halves:
        yield f"  - {half}: {escape(why)}"
    if worded.bars:
        yield ""
        yield "| " + escape(worded.bars_title) + " | time | parts |"
        yield "|---|---:|---|"
        for bar in worded.bars[:4]:
            yield f"| {escape(bar.label)} | {units.duration(bar.total_ns)} | {escape(parts_text(bar))} |"


# ---------------------------------------------------------------- terminal

#: The space between a number and its unit.
_UNIT = re.compile(r"(?<=\d) (?=(?:%|ns|us|ms|s|min|h|B|[KMGT]i?B)(?![\w/]))")


def with_units(text: str, glue: str) -> str:
    """Return a text in which ``glue`` stands between a number and its unit."""
    return _UNIT.sub(glue, text)


def wrapped(text: str, width: int, head: str = "", indent: int = 7) -> list[str]:
    """Return a paragraph with a head in front that is shorter than ``indent``, its other lines ``indent`` in.

    A number stays on the line of its unit, and so does what no-break spaces join.
    """
    body = textwrap.wrap(with_units(text, "\u00a0"), max(20, width - indent), break_long_words=True) or [""]
    body = [line.replace("\u00a0", " ") for line in body]
    return [f"{head:<{indent}}{body[0]}", *(" " * indent + line for line in body[1:])]


def joined(entry: str) -> str:
    """Return an entry of a legend with no-break spaces: its sign stays with its first word, its share with its time, a short one whole."""
    if len(entry) <= LEGEND_WHOLE:
        return entry.replace(" ", "\u00a0")
    sign, _, words = entry.partition(" ")
    return f"{sign}\u00a0{re.sub(r' (?=[(])(?=[^(]*$)', chr(0xA0), words)}"


def spoken_of(worded: Worded) -> tuple[bool, ...]:
    """Return for each bar whether the headline speaks of what it shows: "rank 3"."""
    return tuple(
        re.search(rf"\b{re.escape(b.label)}\b", worded.sentence, re.IGNORECASE) is not None for b in worded.bars
    )


def first_clause(text: str) -> str:
    """Return the first clause of an advice, cut before a comma or between words where it is long."""
    first = re.split(r"; |: |\. ", text, maxsplit=1)[0]
    if len(first) <= CHANGE_LETTERS:
        return first
    commas = [
        m.start()
        for m in re.finditer(", ", first)
        if CHANGE_LETTERS // 3 <= m.start() <= CHANGE_LETTERS and _closed(first[: m.start()])
    ]
    return first[: commas[-1]] if commas else f"{first[:CHANGE_LETTERS].rpartition(' ')[0]} …"


def in_order(actions: Sequence[str]) -> str:
    """Return the first clauses of changes as one sentence, "Remove the syncs, then use larger batches"; names keep their capitals."""
    first, *others = map(first_clause, actions)
    plain = (re.sub(r"^[A-Z](?=[a-z]* )", lambda capital: capital[0].lower(), other) for other in others)
    return ", then ".join((first, *plain))


def _closed(text: str) -> bool:
    """Return whether no bracket of a text is left open."""
    return text.count("(") == text.count(")")


def changes(summary: Summary, texts: CellTexts, room: int = CARD_LETTERS) -> tuple[str, ...]:
    """Return what to do, each change whole where ``room`` letters hold all, else as far as its sentences fit, else its first clause.

    What one leaves of its part of the room the next ones have.
    """
    do = summary.answer.do
    whole = [texts(a.text, 500) for a in do]
    if len(do) == 1 and do[0].finding is None:
        return (whole[0],)
    why = answers.reasons(do, summary.answer.now_ns, texts)
    fitted: list[str] = []
    for text in whole:
        fitted.append(_fitting(text, room // (len(whole) - len(fitted))))
        room -= len(fitted[-1])
    return tuple(f"{text}{reason}" for text, reason in zip(fitted, why, strict=True))


def _fitting(text: str, room: int) -> str:
    """Return a text whole, or its first sentences that fit, or its first clause."""
    if len(text) <= room:
        return text
    ends = [m.end() for m in re.finditer(r"[^\s.]{2}[.)](?= [A-Z])", text) if m.end() <= room]
    return text[: ends[-1]] if ends else first_clause(text)

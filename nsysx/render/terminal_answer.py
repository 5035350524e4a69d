"""The answer on a terminal: a sentence, a bar, what to do, what it is worth, how sure that is, and what to ask next."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from nsysx import units
from nsysx.advice import Bar, BarPart
from nsysx.answer.bars import MODULES, RANKS, RANKS_BELOW, WORK
from nsysx.catalogue import Paint
from nsysx.model import Summary
from nsysx.render import answer_text
from nsysx.render import answer_words as answers
from nsysx.render import code as code_of
from nsysx.render.answer_text import also_worth, what_to_do, worth_text
from nsysx.render.answer_words import Worded, part_words
from nsysx.render.grids import CellTexts
from nsysx.render.render_bounds import (
    LEAST_REASON,
    LEGEND_LEAST,
    MOST_TRIED,
    TERMINAL_LINES,
    TERMINAL_NAMED,
    TERMINAL_WIDEST,
)

#: Characters for the parts of a bar, busy and idle, with and without Unicode: one for one meaning in all bars of a picture.
_BUSY, _IDLE = "█▓▒▚▞▙▛▜▟▀▌▐", "░·╱╌┊╲"
_BUSY_ASCII, _IDLE_ASCII = "#%=*+@&$!?<>", ".-:~'^"
#: Those of what is left over, which has no name of its own.
_REST, _REST_ASCII = ("▄", "┄"), ("|", ",")
_ASCII = str.maketrans({"→": "->", "·": "-", "±": "+-", "…": "...", "–": "-", "≈": "~", "×": "x"})
#: The color of a part where there is a terminal, by its kind; idle parts are dim.
_STYLES = {
    Paint.COMPUTE: "green", Paint.COMM: "cyan", Paint.COPY: "yellow", Paint.MEMSET: "bright_yellow", Paint.LAUNCH: "blue",
    Paint.SYNC: "red", Paint.ALLOC: "magenta", Paint.DATA: "yellow",
    **{f"{MODULES}{i}": color for i, color in enumerate(("slate_blue3", "khaki3", "deep_pink4", "plum2", "dark_goldenrod"))},
    **{f"{WORK}{i}": color for i, color in enumerate(("dark_green", "dark_sea_green2", "chartreuse4", "dark_olive_green1"))},
}  # fmt: skip
#: Numbers of bars, other findings and lines of code to show, from most to fewest: the first that fit are taken.
_LEFT = ((6, 5, 5), (6, 3, 5), (3, 3, 5), (2, 3, 4), (2, 2, 3), (1, 2, 3), (1, 1, 3), (1, 0, 3))
#: Those where ranks are drawn: what one of them does the others answer, so that each has its bar, and a sign is explained once.
_LEFT_OF_RANKS = ((6, 5, 5), (6, 3, 5), (6, 3, 3), (3, 2, 3), (3, 1, 3), (3, 0, 3))


def _signs(bars: Sequence[Bar], plain: bool) -> dict[tuple[str, bool], str]:
    """Return the sign of each kind of part of these bars, by the kind and whether it is idle: where the page has one color."""
    rest = _REST_ASCII if plain else _REST
    left = {False: iter(_BUSY_ASCII if plain else _BUSY), True: iter(_IDLE_ASCII if plain else _IDLE)}
    of: dict[tuple[str, bool], str] = {}
    for part in (p for bar in bars for p in bar.parts):
        if (part.kind, part.idle) not in of:
            named = "" if part.kind == Paint.OTHER and part.label else next(left[part.idle], "")
            of[part.kind, part.idle] = named or rest[part.idle]
    return of


def _bar_of_first_parts(bar: Bar) -> Bar:
    """Return a bar of which only the first parts have names; those that the page names beyond are one part, their sum."""
    if len(bar.parts) <= TERMINAL_NAMED + 1:
        return bar
    rest = bar.parts[TERMINAL_NAMED:]
    others = BarPart(f"{len(rest)} others", sum(p.ns for p in rest), Paint.OTHER, all(p.idle for p in rest))
    return replace(bar, parts=(*bar.parts[:TERMINAL_NAMED], others))


def _bar(bar: Bar, width: int, signs: Mapping[tuple[str, bool], str]) -> tuple[str, list[str]]:
    """Return a bar and the words for its parts."""
    line, words = "", []
    for part in bar.parts:
        if part.ns < LEGEND_LEAST * bar.total_ns:
            continue
        sign = signs[part.kind, part.idle]
        line += sign * max(1, round(width * part.ns / bar.total_ns))
        words.append(f"{sign} {part_words(part, bar.total_ns)}")
    return line[:width], words


def _bars(
    bars: Sequence[Bar], width: int, signs: Mapping[tuple[str, bool], str], *, once: bool
) -> list[tuple[str, str]]:
    """Return bars on one scale, one below the other, each with its words; (text, "bar") is a line with a bar.

    ``once``: words of a sign stand below the first bar that has it alone.
    """
    longest = max(b.total_ns for b in bars) or 1
    label = min(30, max(len(b.label) for b in bars))
    lines, explained = [], set[str]()
    for bar in bars:
        room = max(10, width - label - 12)
        drawn, words = _bar(bar, max(1, round(room * bar.total_ns / longest)), signs)
        words = [each for each in words if not (once and each[0] in explained)]
        explained |= {each[0] for each in words}
        lines.append((f"{bar.label[:label]:<{label}} {drawn:<{room}} {units.duration(bar.total_ns):>9}", "bar"))
        if len(bar.parts) > 1 and words:
            words = [answer_text.joined(each) for each in words]
            lines += [(line, "bar") for line in answer_text.wrapped("   ".join(words), width, indent=label + 1)]
    return lines


def _colored(line: str, bars: Sequence[Bar], plain: bool) -> Text:
    """Return a line of the picture with each part in its color."""
    text = Text(line)
    for (kind, idle), sign in _signs(bars, plain).items():
        if style := "dim" if idle else _STYLES.get(kind, ""):
            text.highlight_regex(rf"(?<!\S){re.escape(sign)}(?= )|{re.escape(sign)}{{2,}}", style)
    return text


def lines(
    summary: Summary, width: int, *, plain: bool = False, typed: str = "", command: str = "", folder: str = ""
) -> list[tuple[str, str]]:
    """Return (text, style) of each line: at most 25 where that is possible by leaving out what matters least."""
    said = answers.build(summary, redact=False, typed=typed, command=command, folder=folder)
    width = max(40, min(width, TERMINAL_WIDEST))
    short = answer_text.changes(summary, CellTexts(False))
    numbered = short[0] if len(short) == 1 else " ".join(f"({i}) {text}." for i, text in enumerate(short, 1))
    of_ranks = said.bars_title.startswith((RANKS, RANKS_BELOW))
    least = int(_another_saves_more(summary))
    for worded in (said, replace(said, do=numbered)):  # the page says what the first clause of a change leaves out
        for bars, also, code in _LEFT_OF_RANKS if of_ranks else _LEFT:
            out = _lines(worded, width, plain, bars, max(also, least), code)
            if len(out) <= TERMINAL_LINES:
                return out
    return out


def _another_saves_more(summary: Summary) -> bool:
    """Return whether another finding may save more than what is to be done, which comes first where it is surer or an oversight."""
    answer, step_ns = summary.answer, summary.step.shown_ns
    if not answer.also or answer.then_ns is None or step_ns is None:
        return False
    return (answer.also[0].saving_ns or 0) > step_ns - answer.then_ns


def _lines(said: Worded, width: int, plain: bool, bars: int, also: int, code: int) -> list[tuple[str, str]]:
    """Return (text, style) of each line, with at most the given numbers of bars, other findings and lines of code."""

    def wrapped(text: str, head: str = "", indent: int = 7) -> list[str]:
        return answer_text.wrapped(text.translate(_ASCII) if plain else text, width, head, indent)

    out: list[tuple[str, str]] = [(line, "dim") for line in wrapped(" · ".join(said.facts), indent=0)]
    out += [(line, "bold") for line in wrapped(said.sentence, indent=0)]
    out += [(line, "yellow") for alarm in said.alarms[:2] for line in wrapped(f"Read with care: {alarm}", indent=0)]
    if said.bars:
        # As many bars, in their order: the first, those that the sentence speaks of, then the others. Where it speaks of ranks and
        # there is no room for all, several ranks say more than the shown step and one of them.
        named = answer_text.spoken_of(said)
        of_ranks = said.bars_title.startswith(RANKS_BELOW) and re.search(r"\branks?\b", said.sentence) is not None
        ranks_alone = of_ranks and 1 < bars < len(said.bars)
        order = sorted(range(ranks_alone, len(said.bars)), key=lambda i: (i > 0, not named[i], i))
        out.append(("", ""))
        if bars > 1 and said.bars_title.endswith(
            "as recorded"
        ):  # bars of steps of two lengths, or another one than the sentence's
            title = said.bars_title.replace(RANKS_BELOW, RANKS) if ranks_alone else said.bars_title
            title = re.sub(r" \(\d+ of [\d,]+\)", "", title)  # here are fewer than the page has
            out += [(line, "dim") for line in wrapped(title, indent=0)]
        every = [_bar_of_first_parts(bar) for bar in said.bars]
        once = said.bars_title.startswith((RANKS, RANKS_BELOW)) and (bars, also, code) != _LEFT_OF_RANKS[0]
        out += _bars([every[i] for i in sorted(order[:bars])], width, _signs(every, plain), once=once)
    out.append(("", ""))
    out += [(line, "") for line in wrapped(what_to_do(said), "DO")]
    out += [(f"         {line}", "cyan") for line in code_of.first_lines(said.paste, width - 9, code)]
    out += [(line, "") for line in wrapped(said.condition)] if said.condition else []
    out += [(line, "") for line in wrapped(worth_text(said), "WORTH")]
    head = "TRIED"
    for line in said.tried[: min(MOST_TRIED, also)]:
        out += [(row, "green" if ": faster" in line else "") for row in wrapped(line, head)]
        head = ""
    for head, (half, why) in zip(("SURE", "", "", ""), said.halves, strict=False):
        out += [(line, "") for line in wrapped(_clauses(f"{half.lower()}: {why}", width - 7), head)]
    head = "ALSO"
    for entry in said.also[:also]:
        worth = also_worth(entry)
        out += [(line, "") for line in wrapped(f"{entry.code} {entry.text}{f': {worth}' if worth else ''}", head)]
        head = ""
    if left := len(said.also) - also:
        more = f"and {left} more" if also else f"{units.several(left, 'more finding')},"
        out += [(f"{head:<7}{more} in the page and in --full", "")] if left > 0 else []
    out += [(f"NEXT   {said.next}", "dim")] if said.next else []
    return out


def _clauses(text: str, room: int) -> str:
    """Return a text; where it is longer than a line, the clauses of it that fit, if one does."""
    if len(text) <= room:
        return text
    ends = [m.start() for m in re.finditer(r"[;:,] ", text) if LEAST_REASON <= m.start() <= room]
    return text[: ends[-1]] if ends else text


def render(summary: Summary, console: Console, typed: str = "", command: str = "", folder: str = "") -> None:
    """Print the answer on a console. ``typed`` is how the reports were named on the command line, ``command``
    what was recorded, and ``folder`` where.
    """
    encoding = (console.encoding or "ascii").lower().replace("-", "")
    plain = not encoding.startswith("utf") or console.options.ascii_only
    bars = [_bar_of_first_parts(bar) for bar in answers.build(summary, redact=False).bars]
    for text, style in lines(summary, console.width, plain=plain, typed=typed, command=command, folder=folder):
        shown = text.translate(_ASCII).encode("ascii", "replace").decode() if plain else text
        shown = shown.rstrip()
        console.print(_colored(shown, bars, plain) if style == "bar" else Text(shown, style), soft_wrap=True)

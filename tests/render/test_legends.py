"""One pattern, one meaning: no sign of the terminal and no color of the page stands for two things, and none for a thing twice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import pytest

from nsysx.advice import BarPart
from nsysx.model import Summary
from nsysx.render import answer_words, first_screen, live_timeline, terminal_answer
from nsysx.render.charts.colors import KIND_COLORS, KIND_NAMES, MODULE_COLORS, WORK_COLORS
from tests.samples import DISTINCT, PAIR_NAMES, Samples

#: What bars (verbs) and lanes (nouns) call one thing, busy and idle.
BUSY = {
    "compute": ("compute", "busy", "kernels"),
    "copy": ("exposed copies", "copies"),
    "communication": ("exposed communication", "transfers"),
    "launch": ("graph launch", "kernel launches"),
    "other": (
        "other CUDA call",
        "other CUDA calls",
        "other modules",
        "other kinds",
        "other kernels",
        "the rest",
        "the rest of it",
    ),
}
IDLE = {
    "host code": ("waiting for kernel launches", "host code (Python)"),
    "sync": (
        "idle after host syncs",
        "host sync",
    ),
    "allocator": ("allocator calls",),
    "data": ("waiting for input data", "data loading"),
    "queued": ("inter-kernel gaps",),
    "dependency": ("waiting for other GPU work",),
    "load": ("one-time cost", "loading of kernels and libraries"),
    "launch": ("waiting for the CPU to launch", "kernel launch latency"),
    "communication": ("waiting for others",),
    "copy": ("copy calls",),
    "other": ("other idle time", "other CUDA calls", "other GPU work"),
}


def meaning(label: str, idle: bool) -> tuple[str, bool]:
    """Return what a name in a legend means, the same for all names of one thing."""
    label = re.sub(r"^idle: |(?<=waiting for )rank \d+", "", label).strip()
    label = "waiting for others" if label == "waiting for" else label
    label = "other" if re.fullmatch(r"\d+ others", label) else label
    of = IDLE if idle else BUSY
    return next((thing for thing, names in of.items() if label == thing or label in names), label), idle


def unclear(shown: Iterable[tuple[object, tuple[str, bool]]]) -> list[str]:
    """Return patterns with two meanings, and meanings with two patterns."""
    pairs = set(shown)
    meanings, patterns = dict[object, set[str]](), dict[tuple[str, bool], set[str]]()
    for pattern, thing in pairs:
        meanings.setdefault(pattern, set()).add(str(thing))
        patterns.setdefault(thing, set()).add(str(pattern))
    return [f"{a}: {sorted(b)}" for a, b in (*meanings.items(), *patterns.items()) if len(b) > 1]


def signs(summary: Summary, plain: bool) -> Iterator[tuple[object, tuple[str, bool]]]:
    """Yield each sign of the terminal's bars with what it means."""
    bars = [terminal_answer._bar_of_first_parts(bar) for bar in answer_words.build(summary).bars]
    signs = terminal_answer._signs(bars, plain)
    for part in (p for bar in bars for p in bar.parts if p.label):
        yield signs[part.kind, part.idle], meaning(part.label, part.idle)


def colors(summary: Summary) -> Iterator[tuple[object, tuple[str, bool]]]:
    """Yield each color and whether it is hatched, of the bars and of the timeline's legend, with what it means."""
    of = (
        KIND_COLORS
        | {f"m{i}": c for i, c in enumerate(MODULE_COLORS)}
        | {f"w{i}": c for i, c in enumerate(WORK_COLORS)}
    )
    screen = first_screen.build(summary)
    for bar in screen.answer.bars:
        parts: tuple[BarPart, ...] = bar.parts
        for part in parts:
            if part.label:
                yield (of[part.kind], part.idle), meaning(part.label, part.idle)
    for kind, idle, words in live_timeline.legend(first_screen.windows(summary)):
        yield (of[kind], idle), meaning(words, idle)


def _seen(summary: Summary) -> list[str]:
    return [*unclear(signs(summary, False)), *unclear(signs(summary, True)), *unclear(colors(summary))]


@pytest.mark.parametrize("name", DISTINCT)
def test_a_legend_of_a_sample_has_one_meaning_for_each_pattern(name: str, recorded: Samples) -> None:
    assert _seen(recorded.summary(name)) == []


@pytest.mark.parametrize("name", PAIR_NAMES)
def test_a_legend_of_a_program_before_a_change_has_one_meaning_for_each_pattern(name: str, pairs: Samples) -> None:
    assert _seen(pairs.summary(name)) == []


def test_no_color_is_two_kinds() -> None:
    """Kinds of one name share a color, and so do kernels and the pauses between them, which are hatched."""
    names = dict[str, set[str]]()
    for kind, color in KIND_COLORS.items():
        names.setdefault(color, set()).add(KIND_NAMES.get(kind, kind).removeprefix("graph "))
    assert {frozenset(n) for n in names.values() if len(n) > 1} <= {frozenset({"compute", "gap"})}
    bars = [*MODULE_COLORS, *WORK_COLORS]
    assert len({*bars, *names}) == len(bars) + len(names)


def test_two_meanings_and_two_patterns_are_seen() -> None:
    one, other = ("compute", False), ("copy", False)
    assert unclear([("#", one), ("#", one), ("=", other)]) == []
    assert unclear([("#", one), ("#", other)])
    assert unclear([("#", one), ("=", one)])

"""The first screen of the page: the answer, its pictures drawn as boxes that need no script, fit any width and print well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nsysx import units
from nsysx.advice import Bar, BarPart
from nsysx.answer import subject
from nsysx.model import Summary
from nsysx.pictures import Timeline
from nsysx.render import answer_words as answers
from nsysx.render import code as code_of
from nsysx.render import finding_view, live_timeline
from nsysx.render.answer_text import changes, first_clause, in_order, spoken_of
from nsysx.render.answer_text import listed as names_listed
from nsysx.render.answer_words import Worded, part_words
from nsysx.render.grids import CellTexts, Grid
from nsysx.render.render_bounds import (
    LEGEND_LEAST,
    MANY_BARS,
    SCREEN_CODE,
    SCREEN_CODE_LINES,
    SCREEN_DO,
    SCREEN_LETTER,
    SCREEN_MARGIN,
    WIDEST_BAR,
    WIDEST_LABELLED,
)


@dataclass(frozen=True, slots=True)
class BarBox:
    """One part of a drawn bar or lane: left and width in percent."""

    left: float
    width: float
    kind: str
    idle: bool
    text: str
    title: str


@dataclass(frozen=True, slots=True)
class DrawnBar:
    """A bar as boxes, and a legend: each part, its words, and whether they already fit inside the bar.

    ``quiet``: it is one of many, and not one that the headline speaks of; a wide screen leaves its legend to the pointer.
    """

    label: str
    value: str
    width: float
    boxes: tuple[BarBox, ...]
    legend: tuple[tuple[BarPart, str, bool], ...]
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class TodoItem:
    """One line of the list of what to do: what, where, what it is worth (``share`` of the step); unfolded the rest.

    ``under`` is the number of the line of the same cause, in which this one is folded, 0 for none.
    ``how`` is what ``what`` leaves out; ``size`` says what is lost, and how far the saving can be off. ``overlaps``: the numbers of
    lines above that it overlaps with. ``marked``: the timeline shows where it is, under ``number``. ``states`` are its conditions:
    state, name, what was seen. ``line`` is how ``where`` ends if that is a line of code, else "".
    """

    number: int
    under: int
    code: str
    what: str
    title: str
    worth: str
    share: float
    where: str
    why: str
    how: str
    paste: str
    condition: str
    states: tuple[tuple[str, str, str], ...]
    marked: bool
    overlaps: str
    size: str
    evidence: Grid | None
    line: str


@dataclass(frozen=True, slots=True)
class Screen:
    """Everything on the first screen. ``do`` is each change in one clause, with why it comes first where several are made.

    ``code`` are the lines to paste in the room of the card; the list has them whole.

    ``places`` are the findings of the list in ``Summary.findings``. ``more_sure`` is what each half of how sure the answer is says
    beyond its line: what it is about, the rest of its reason, and the command that would settle it.
    """

    answer: Worded
    more_sure: tuple[tuple[str, str, str], ...]
    do: tuple[str, ...]
    code: str
    places: frozenset[int]
    now: str
    then: str
    share: float | None
    bars: tuple[DrawnBar, ...]
    todo: tuple[TodoItem, ...]
    marks: tuple[tuple[live_timeline.Mark, ...], ...]


def _drawn(bar: Bar, longest: float, several: bool) -> DrawnBar:
    boxes, legend, left = [], [], 0.0
    scale = bar.total_ns / longest
    room = (WIDEST_LABELLED if several else WIDEST_BAR) * scale / 100  # pixels for a percent of the bar
    for part in bar.parts:
        width = 100 * part.ns / bar.total_ns if bar.total_ns else 0.0
        words = part_words(part, bar.total_ns)
        # A bar of one part is named and measured by its label.
        inside = len(bar.parts) > 1 and len(words) * SCREEN_LETTER + SCREEN_MARGIN <= width * room
        boxes.append(BarBox(left, width, kind=part.kind, idle=part.idle, text=words if inside else "", title=words))
        if part.label and part.ns >= LEGEND_LEAST * bar.total_ns:
            legend.append((part, words, inside))
        left += width
    return DrawnBar(bar.label, units.duration(bar.total_ns), 100 * scale, tuple(boxes), tuple(legend))


def _all_drawn(worded: Worded) -> tuple[DrawnBar, ...]:
    """Return the bars on one scale."""
    longest = max((b.total_ns for b in worded.bars), default=1) or 1
    drawn = (_drawn(b, longest, len(worded.bars) > 1) for b in worded.bars)
    if len(worded.bars) <= MANY_BARS:
        return tuple(drawn)
    spoken = spoken_of(worded)
    return tuple(replace(b, quiet=i > 0 and not spoken[i]) for i, b in enumerate(drawn))


def _rest_of_advice(text: str, what: str) -> str:
    """Return what an advice says beyond its first clause."""
    rest = text.removeprefix(what)
    told = rest.lstrip(";:. ") if not rest or rest[0] in ";:." else text
    return units.capitalized(told)


def windows(summary: Summary) -> tuple[Timeline, ...]:
    """Return the timelines of the first screen: one usual step, and the slow one beside it where steps have several lengths."""
    return summary.timelines[: 2 if subject.on_average(summary) else 1]


def listed(summary: Summary) -> tuple[int, ...]:
    """Return the findings of the list of what to do (places in ``Summary.findings``): those of the answer first."""
    first = dict.fromkeys(a.finding for a in summary.answer.do if a.finding is not None)
    return (*first, *(a.finding for a in summary.answer.also if a.finding not in first))


def _items(
    summary: Summary, worded: Worded, chosen: Sequence[int], redact: bool
) -> tuple[tuple[TodoItem, ...], tuple[tuple[live_timeline.Mark, ...], ...]]:
    """Return the list of what to do, the first change first, and where each of its lines is in the timelines."""
    texts, findings = CellTexts(redact), summary.findings or ()
    titles = {a.finding: a.text for a in worded.also}
    done: dict[int, list[str]] = {}
    for action in summary.answer.do:
        if action.finding is not None:
            done.setdefault(action.finding, []).append(texts(action.text, 500))
    step = summary.step.shown_ns
    chosen, above = _in_order_of_the_list(summary, worded, chosen)
    marks = live_timeline.marks(windows(summary), [findings[n] for n in chosen])
    marked = {mark[0] for of_window in marks for mark in of_window}
    items: list[TodoItem] = []
    for number, index in enumerate(chosen, 1):
        finding = findings[index]
        shown = finding_view.finding_of(finding, summary, texts, 84)
        saving = _saving_ns(summary, worded, index)
        bound = worded.bound if index == summary.answer.do[-1].finding else finding.saving.bound
        saves = units.duration(saving) if saving and step else ""
        how = done.get(index) or [shown.fix]
        items.append(
            TodoItem(
                number=number,
                under=1 + chosen.index(above[index]) if index in above else 0,
                code=shown.code,
                what=in_order(how),
                title=titles.get(index, shown.title),
                worth=f"{'up to ' if bound else ''}{saves}" if saves else "",
                share=_share(summary, worded, index),
                where=shown.where,
                why=shown.detail,
                how=" ".join(filter(None, (_rest_of_advice(text, first_clause(text)) for text in how))),
                paste=finding.paste,
                condition=texts(finding.condition, 300),
                states=tuple((c.state, texts(c.name, 120), texts(c.detail, 200)) for c in finding.conditions),
                marked=number in marked,
                overlaps=names_listed(
                    [str(1 + n) for n, p in enumerate(chosen[: number - 1]) if p in finding.overlaps]
                ),
                size=_size(shown, f"{'at most ' if bound else ''}{saves}" if saves else ""),
                evidence=shown.evidence,
                line=shown.line,
            )
        )
    return tuple(items), marks


def _saving_ns(summary: Summary, worded: Worded, index: int) -> int | None:
    """Return what the change of a finding saves of the step (ns): of the answer's own, what the answer says."""
    then = worded.then_ns
    if index == summary.answer.do[-1].finding and worded.now_ns is not None and then is not None:
        return worded.now_ns - then
    return summary.step.saves_ns((summary.findings or ())[index].saving)


def _share(summary: Summary, worded: Worded, index: int) -> float:
    """Return what the change of a finding saves, as a share of the step."""
    saving, step = _saving_ns(summary, worded, index), summary.step.shown_ns
    return min(1.0, saving / step) if saving and step else 0.0


def _in_order_of_the_list(
    summary: Summary, worded: Worded, chosen: Sequence[int]
) -> tuple[list[int], Mapping[int, int]]:
    """Return the findings as the list numbers them, and for those of another one's cause that one, in which they are folded.

    Of one cause is what overlaps with a finding before it that is worth as much, or has the same advice. The lines that are seen come
    first, so that their numbers follow each other.
    """
    findings, above = summary.findings or (), dict[int, int]()
    shares = {index: _share(summary, worded, index) for index in chosen}
    for n, index in enumerate(chosen):
        finding = findings[index]
        for other in chosen[:n]:
            same = (findings[other].code, findings[other].fix) == (finding.code, finding.fix)
            if other not in above and shares[other] >= shares[index] and (other in finding.overlaps or same):
                above[index] = other
                break
    return [*(n for n in chosen if n not in above), *(n for n in chosen if n in above)], above


def _size(shown: finding_view.FindingView, saves: str) -> str:
    """Return what a finding costs, what the line above says that it ``saves``, and how far that can be off."""
    cost_words = " ".join(filter(None, (shown.cost, "a step", shown.cost_time)))
    cost = f"Costs {cost_words}{f', {shown.counted}' if shown.counted else ''}" if shown.cost else ""
    sure = f"saves {saves} ({shown.confidence})" if saves and shown.confidence else ""
    cost_words = "; ".join(filter(None, (cost, sure)))
    return f"{cost_words[:1].upper()}{cost_words[1:]}." if cost_words else ""


def _more_sure(worded: Worded) -> Iterator[tuple[str, str, str]]:
    """Yield what there is to say of each half of how sure the answer is behind the sentence that is shown."""
    for sure, (_, why) in zip(worded.sure, worded.halves, strict=True):
        shown = sure.reason.casefold().startswith(why.casefold())
        more = sure.reason[len(why) :].lstrip(" .").removeprefix("But: ") if shown else sure.reason
        if more or sure.command:
            yield sure.about, units.capitalized(more), sure.command


def build(summary: Summary, *, redact: bool = True) -> Screen:
    """Return the first screen of a Summary."""
    worded = answers.build(summary, redact=redact)
    places = listed(summary)
    todo, marks = _items(summary, worded, places, redact)
    share = worded.then_ns / worded.now_ns if worded.then_ns is not None and worded.now_ns else None
    return Screen(
        answer=worded,
        more_sure=tuple(_more_sure(worded)),
        do=changes(summary, CellTexts(redact), SCREEN_DO),
        code="\n".join(code_of.first_lines(worded.paste, SCREEN_CODE, SCREEN_CODE_LINES, "under What to do")),
        places=frozenset(places),
        now=units.duration(worded.now_ns) if worded.now_ns is not None else "",
        then=units.duration(worded.then_ns) if worded.then_ns is not None else "",
        share=share,
        bars=_all_drawn(worded),
        todo=todo,
        marks=marks,
    )

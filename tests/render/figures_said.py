"""Reads the figures of the first screen, the terminal and Markdown as a reader does, by the name that stands beside each.

``contradictions`` returns where one name has two values, a share is above the whole, or parts are not their whole.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass

from nsysx import units
from nsysx.advice import Bar
from nsysx.analyses.helpers.step_record import rows_of
from nsysx.answer import bars, subject
from nsysx.model import Summary
from nsysx.render import answer_words, first_screen, html_page, markdown, terminal_answer
from nsysx.render.answer_words import part_words
from nsysx.render.render_bounds import LEGEND_LEAST
from tests.render.test_page import Page

NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
#: A time, and a bare number in the unit of the time that follows it.
D = r"(\d[\d,]*(?:\.\d+)? (?:ns|us|ms|s))\b"
OF = r"(\d[\d,]*(?:\.\d+)?(?: (?:ns|us|ms|s))?) of (?:the )?" + D
#: Work that is drawn longer than the GPU is busy, because streams run at the same time, says so.
OVERLAPPING = "overlapping"
#: What is told as recorded may differ by this share from the shown step before it must say so.
CLOSE = 0.006

#: What a clause of the headline, or the title of a line, calls a part of the step: pattern with one time, label of the part.
NAMED = (
    (
        rf"(?:, and|, |(?:it|the GPU) idles) ?{D}(?: of it)? (?:waiting for kernel launches|in kernel launch latency)",
        "waiting for kernel launches",
    ),
    (rf"(?:, and|, |(?:it|the GPU) idles) ?{D}(?: of it)? waiting for input data", "waiting for input data"),
    (rf"(?:, and|, |(?:it|the GPU) idles) ?{D}(?: of it)? after host syncs", "idle after host syncs"),
    (rf"(?:, and|, |(?:it|the GPU) idles) ?{D}(?: of it)? while memory is allocated", "allocator calls"),
    (rf"; exposed copies[^:;.]*: {D}", "exposed copies"),
    (rf"; exposed communication[^:;.]*: {D}", "exposed communication"),
    (rf"The GPU idles {D} per step waiting for kernel launches", "waiting for kernel launches"),
    (rf"The GPU idles {D} per step waiting for input data", "waiting for input data"),
    (rf"Exposed communication takes {D}", "exposed communication"),
    (rf"nter-kernel gaps (?:of short kernels )?take {D}", "inter-kernel gaps"),
    (rf"exposed copies {D}", "exposed copies"),
    (rf"exposed communication {D}", "exposed communication"),
    (rf"allocator calls {D}", "allocator calls"),
    (rf"[Ee]very \w+ step takes {D}", "the longer steps"),
)
#: The first figure of the headline: "the GPU idles 7.9 of 10.2 ms", "exposed copies from the host to the GPU take 7.0 of 10.8 ms".
LEAD = rf"(the GPU idles|exposed (?:copies|communication|page migration)\b[^.;]*? takes?) {OF}"


@dataclass(frozen=True, slots=True)
class Said:
    """A figure: its name, its value (ns), how far its digits tell (ns), whether it is said to be as recorded, and where it stands."""

    name: str
    ns: float
    off: float
    recorded: bool
    where: str


def value(text: str) -> tuple[float, float]:
    """Return a time in text, and half of its last digit (ns)."""
    number, unit = text.replace(",", "").split()
    digits = len(number.partition(".")[2])
    return float(number) * NS[unit], 0.51 * 10.0**-digits * NS[unit]


def outputs(summary: Summary) -> dict[str, str]:
    """Return the first screen, the terminal and Markdown as text of one line each."""
    lines = [text for text, _ in terminal_answer.lines(summary, 100)]
    marked = html.unescape(re.sub(r"[\\`]", "", markdown.render(summary)))
    texts = {"page": Page(html_page.first(summary)).words(), "terminal": " ".join(lines), "Markdown": marked}
    return {where: re.sub(r"\s+", " ", text).replace("\u00a0", " ") for where, text in texts.items()}


def figures(summary: Summary, texts: dict[str, str]) -> Iterator[Said]:
    """Yield each figure that has a name."""
    said = answer_words.build(summary)
    if said.bars and said.bars[0].label.startswith("GPU"):
        for part in said.bars[0].parts:
            if part.label != "other":
                yield Said(part.label, part.ns, 0.0, False, "the bar")
        yield Said("idle", sum(p.ns for p in bars.step_parts(summary) if p.idle), 0.0, False, "the bar")
    for where, text in texts.items():
        for pattern, name in NAMED:
            for found in re.finditer(pattern, text):
                clause = re.match(r"[^.;:]*?, as recorded", text[found.end() :])
                ns, off = value(found[1])
                yield Said(name, ns, off, clause is not None, where)
        for lead, part, whole in re.findall(LEAD, said.sentence):
            ns, off = value(whole)
            yield Said("the step", ns, off, " recorded for" in said.sentence, where)
            ns, off = value(part if " " in part else f"{part} {whole.split()[1]}")
            name = "idle" if lead.endswith("idles") else " ".join(re.findall(r"exposed (?:page )?\w+", lead))
            yield Said(name, ns, off, False, where)
        for whole in re.findall(rf"GPU busy <?[\d.]+ % of (?:the )?{D}", said.sentence):
            ns, off = value(whole)
            yield Said("the step", ns, off, False, where)
        for now, then in re.findall(rf"{D} (?:→|->) {D} a step", text):
            for name, told in (("the step", now), ("the step after the change", then)):
                ns, off = value(told)
                yield Said(name, ns, off, False, where)
        for told in re.findall(rf"· (?:about )?{D} a step", text):
            ns, off = value(told)
            yield Said("the step", ns, off, False, where)


def _alike(one: Said, other: Said) -> bool:
    slack = CLOSE * max(one.ns, other.ns) if "the bar" not in (one.where, other.where) or one.off or other.off else 0
    return abs(one.ns - other.ns) <= max(one.off + other.off + 1, min(slack, 0.02 * max(one.ns, other.ns)))


def _two_values(summary: Summary, texts: dict[str, str]) -> Iterator[str]:
    """Yield names with two values. A value as recorded is told beside another only as the step."""
    first: dict[str, Said] = {}
    waits = subject.rank_waited_for(summary) is not None
    for one in figures(summary, texts):
        if waits and one.name in ("compute", "idle", "exposed communication"):  # of ranks, see _ranks
            continue
        known = first.setdefault(one.name, one)
        if one.name != "the longer steps" and one.recorded and not known.recorded and not _alike(known, one):
            yield f"{one.name}: {known.ns:.0f} in {known.where}, beside {one.ns:.0f} as recorded in {one.where}"
        elif not _alike(known, one):
            yield f"{one.name}: {known.ns:.0f} in {known.where}, {one.ns:.0f} in {one.where}"


def _bars(summary: Summary, texts: dict[str, str]) -> Iterator[str]:
    """Yield bars whose parts are not their whole, and parts that an output says with another figure."""
    said = answer_words.build(summary)
    for bar in said.bars:
        if abs(sum(p.ns for p in bar.parts) - bar.total_ns) > 1 + 1e-6 * bar.total_ns:
            yield f"the parts of {bar.label} are not its whole"
        labels = [p.label for p in bar.parts if p.label]
        if len(labels) != len(set(labels)) or {"other", f"other {bar.label[3:].split(' ')[0]}s"} <= set(labels):
            yield f"{bar.label} has one name twice: {labels}"
    of_all = {part_words(p, b.total_ns) for b in said.bars for p in b.parts}
    names = "|".join(sorted((re.escape(p.label) for b in said.bars for p in b.parts if p.label), key=len, reverse=True))
    for where, text in texts.items():
        for told in re.findall(rf"(?:{names}) {D} \((<?[\d.]+) %\)", text) if names else ():
            if not any(words.endswith(f"{told[0]} ({told[1]} %)") for words in of_all):
                yield f"{where} says {told[0]} ({told[1]} %), no bar does"
        if where != "terminal":
            yield from (
                f"{where} lacks {words}" for words in _missing(said.bars, text, 4 if where == "Markdown" else 99)
            )
    yield from _same_work(said.bars)


def _missing(bars: tuple[Bar, ...], text: str, most: int) -> Iterator[str]:
    for bar in bars[:most]:
        for part in (p for p in bar.parts if p.ns >= LEGEND_LEAST * bar.total_ns):  # one that is smaller has no words
            if part.label and part_words(part, bar.total_ns) not in text:
                yield part_words(part, bar.total_ns)


def _same_work(bars: tuple[Bar, ...]) -> Iterator[str]:
    """Yield bars of the same work whose wholes differ: by module and by kind they are what the GPU does."""
    if not bars or not bars[0].label.startswith("GPU"):
        return
    step = bars[0]
    busy = sum(p.ns for p in step.parts if not p.idle and p.label != "other")
    other = sum(p.ns for p in step.parts if p.label == "other")
    for bar in bars[1:]:
        if not bar.label.startswith("by ") or OVERLAPPING in bar.label:
            continue
        if bar.label != "by kernel" and not busy * (1 - CLOSE) - 1 <= bar.total_ns <= (busy + other) * (1 + CLOSE) + 1:
            yield f"{bar.label} is {bar.total_ns:.0f}, the GPU is busy {busy:.0f} to {busy + other:.0f}"


def _shares(summary: Summary, texts: dict[str, str]) -> Iterator[str]:
    """Yield shares above the whole, and shares of the headline that no bar has."""
    said = answer_words.build(summary)
    for where, text in texts.items():
        yield from (f"{where}: {share} %" for share in re.findall(r"(\d+(?:\.\d+)?) %", text) if float(share) > 100)
    if (
        said.bars
        and said.bars[0].label.startswith("GPU")
        and (busy := re.search(r"GPU busy (<?[\d.]+ %)", said.sentence))
    ):
        drawn = units.share(sum(p.ns for p in bars.step_parts(summary) if not p.idle), said.bars[0].total_ns)
        if busy[1] != drawn:
            yield f"GPU busy {busy[1]} in the headline, {drawn} in the bar"
    parts = {p.label: units.share(p.ns, b.total_ns) for b in said.bars[1:] for p in b.parts}
    for share, name in re.findall(
        r"(\d+(?:\.\d+)? %) of GPU time (?:without communication )?is ([\w.*]+(?: [a-z]\w+)*)", said.sentence
    ):
        drawn = next((s for label, s in parts.items() if label == name or label.endswith(f" {name}")), None)
        if drawn is not None and drawn != share:
            yield f"{name} is {share} in the headline, {drawn} in the bar"
    ranged = (
        re.match(r"(GPU busy|GPU idle|Exposed communication|Exposed copies) .*", said.sure[0].reason)
        if said.sure
        else None
    )
    if ranged and said.bars and subject.rank_waited_for(summary) is None and not summary.step.marked:
        step, (low, high) = said.bars[0], _range(ranged[0])
        of = {
            "GPU busy": sum(p.ns for p in step.parts if not p.idle),
            "GPU idle": sum(p.ns for p in step.parts if p.idle),
            "Exposed communication": sum(p.ns for p in step.parts if p.label == "exposed communication"),
            "Exposed copies": sum(p.ns for p in step.parts if p.label == "exposed copies"),
        }[ranged[1]]
        if not low - 3 <= 100 * of / step.total_ns <= high + 3:
            yield f"{ranged[0]}: the bar says {units.share(of, step.total_ns)}"


def _places(summary: Summary, texts: dict[str, str]) -> Iterator[str]:
    """Yield work in a module, and shares of a place that times itself, that are not those of its bar."""
    said = answer_words.build(summary)
    drawn = [(b.label, b.total_ns) for b in said.bars] + [(p.label, p.ns) for b in said.bars[1:] for p in b.parts]
    for where, text in texts.items():
        for told, name in re.findall(rf"takes? {D} in ([\w.*]+)(?!, as recorded)\b(?!, as recorded)", text):
            ns, off = value(told)
            whole = next((whole for label, whole in drawn if label == name or label.endswith(f" {name}")), None)
            if whole is not None and ns > whole * (1 + CLOSE) + off:
                yield f"{where}: {told} in {name}, which takes {whole:.0f}"
    found = re.search(
        r"kernels are (<?[\d.]+ %) of the median event time(?: \(the rest: (<?[\d.]+ %) copies)?", said.sentence
    )
    if found and said.bars:
        bar = said.bars[0]
        shares = {p.label: units.share(p.ns, bar.total_ns) for p in bar.parts}
        if (found[1], found[2] or shares.get("copies")) != (shares.get("kernels"), shares.get("copies")):
            yield f"{found[0]}: {shares} in the bar"


def _range(text: str) -> tuple[float, float]:
    found = [float(s) for s in re.findall(r"(\d+(?:\.\d+)?) %", text)[:2]]
    return found[0], found[-1] if len(found) > 1 and " to " in text else found[0]


def _ranks(summary: Summary) -> Iterator[str]:
    """Yield what the headline says of ranks and their bars do not."""
    said = answer_words.build(summary)
    found = re.match(
        rf"Straggler: rank (\d+) waits {OF}(?: recorded)? for rank (\d+), which (computes|\w+) {D} longer",
        said.sentence,
    )
    bars = {b.label: b for b in said.bars}
    if found is None or f"rank {found[1]}" not in bars or f"rank {found[4]}" not in bars:
        return
    early, late = bars[f"rank {found[1]}"], bars[f"rank {found[4]}"]
    waits = next((p.ns for p in early.parts if p.label == f"waiting for rank {found[4]}"), 0.0)
    ns, off = value(found[2] if " " in found[2] else f"{found[2]} {found[3].split()[1]}")
    if abs(ns - waits) > off + 1:
        yield f"rank {found[1]} waits {ns:.0f} in the headline, {waits:.0f} in its bar"
    ns, off = value(found[6])
    of = [next((p.ns for p in b.parts if p.label == "compute"), 0.0) for b in (early, late)]
    if found[5] == "computes" and abs(ns - of[1] + of[0]) > off + CLOSE * of[1]:
        yield f"rank {found[4]} computes {ns:.0f} longer in the headline, {of[1] - of[0]:.0f} in the bars"


def _list(summary: Summary, texts: dict[str, str]) -> Iterator[str]:
    """Yield savings that the list, the terminal and Markdown say differently, or that are more than the step."""
    screen = first_screen.build(summary)
    said = screen.answer
    for item in screen.todo:
        if item.worth and item.share > 1:
            yield f"{item.what} saves more than the step"
        if item.worth and f"{item.worth}" not in texts["page"]:
            yield f"the page lacks {item.worth}"
    for entry in said.also:
        worth = "" if entry.saving_ns is None else units.duration(entry.saving_ns)
        item = next((i for i in screen.todo if i.title == entry.text), None)
        if worth and item is not None and worth not in item.worth:
            yield f"{entry.text}: {item.worth} in the list, {worth} elsewhere"
    if (
        said.now_ns
        and said.then_ns is not None
        and screen.todo
        and said.code == screen.todo[0].code
        and not said.factor
    ):
        yield "a worth without its factor" if said.then_ns < said.now_ns else ""


def _captions(summary: Summary) -> Iterator[str]:
    """Yield timelines whose caption names a step that is not steady, or not the slowest."""
    steady = {r["index"]: r.get("gpu_ns") or r.get("cpu_ns") or 0 for r in rows_of(summary.steps) if r.get("steady")}
    for picture in first_screen.windows(summary):
        found = re.search(r"(typical|slowest steady) step \(step (\d+)\)", picture.title)
        if found is None or not steady:
            continue
        if int(found[2]) not in steady:
            yield f"{picture.title}: not steady"
        elif found[1] != "typical" and steady[int(found[2])] < max(steady.values()):
            yield f"{picture.title}: another is longer"


def contradictions(summary: Summary) -> list[str]:
    """Return what the first screen, the terminal and Markdown of a Summary give two values, in words."""
    texts = outputs(summary)
    bad = [*_two_values(summary, texts), *_bars(summary, texts), *_shares(summary, texts), *_places(summary, texts)]
    return [b for b in (*bad, *_ranks(summary), *_list(summary, texts), *_captions(summary)) if b]

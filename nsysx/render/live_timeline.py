"""The boxes of a timeline as data in the page, which its script draws when a reader zooms in. The still picture stays."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape

from nsysx.catalogue import StepPart
from nsysx.events.attribute import IN_STEP
from nsysx.events.layers import bare
from nsysx.findings import rule_of
from nsysx.model import Finding
from nsysx.pictures import NAMED_ROLES, Lane, LongestStretch, Role, Span, Timeline
from nsysx.render.charts.colors import KIND_COLORS, KIND_NAMES
from nsysx.render.charts.timelines import box_name, code_place, lane_color, lane_names, shown_name
from nsysx.render.render_bounds import LIVE_LABEL, LIVE_LEAST, LIVE_PAGE_BYTES
from nsysx.render.safe_text import clean, shorten_kernel

#: The rule about single steps that are longer than the others, and the one about a line, wherever that runs.
_OF_SLOW_STEPS, _OF_LINES = "slow-steps", "python-line"


Mark = tuple[int, int, int]


def marks(pictures: Sequence[Timeline], findings: Sequence[Finding]) -> tuple[tuple[Mark, ...], ...]:
    """Return for each picture where findings are in it: the number in the list, start, end. What makes steps slow is in the last one."""
    placed: list[list[Mark]] = [[] for _ in pictures]
    for number, finding in enumerate(findings, 1):
        slow = rule_of(finding.code).slug == _OF_SLOW_STEPS
        which = len(pictures) - 1 if slow else 0
        if pictures and not (slow and which == 0) and (span := _place(pictures[which], finding)) is not None:
            placed[which].append((number, span.start_ns, span.end_ns))
    return tuple(map(tuple, placed))


def _place(picture: Timeline, finding: Finding) -> LongestStretch | Span | None:
    """Return the longest stretch of what a finding is about, None where the picture does not show it.

    That is its part of the step: in its module and phase where it names them, outside of modules where it names what lies beside it. A
    finding about a line, or without such a part, is where its line runs for longest; one with a line and no module is where that runs.
    """
    rule = rule_of(finding.code)
    parts: Sequence[str] = rule.cause
    if rule.slug == _OF_SLOW_STEPS:  # where the device idles longest is what makes a step slow
        parts = [p.value for p in StepPart if p.idle]
    if rule.about == "capture":
        return None
    at_line = f"{finding.where['file']}:{finding.where.get('line')}" if finding.where.get("file") else None
    runs = [s for lane in picture.lanes if lane.role == "lines" for s in lane.spans if s.label == at_line]
    of_line = max(runs, key=lambda s: s.end_ns - s.start_ns, default=None)
    if not parts or rule.slug == _OF_LINES:
        return of_line
    anywhere = rule.whole or rule.about == "late rank"
    here = [p for p in picture.places if p.part in parts and (anywhere or _inside_place(p, finding))]
    if runs and not anywhere and not finding.where.get("module"):
        here = [p for p in here if any(s.start_ns < p.end_ns and p.start_ns < s.end_ns for s in runs)]
    return max(here, key=lambda p: p.end_ns - p.start_ns, default=of_line)


def _inside_place(piece: LongestStretch, finding: Finding) -> bool:
    """Return whether a place is where a finding is: "*" in its module stands for what differs between several."""
    module, phase = (bare(str(finding.where.get(k) or "")) for k in ("module", "phase"))
    if not module:
        outside = not finding.where.get("near") or piece.module in ("", IN_STEP)
        return outside and phase in ("", piece.phase)
    pattern = r"\d+".join(map(re.escape, module.split("*")))
    named = re.fullmatch(pattern, bare(piece.module)) is not None
    return (named and phase in ("", piece.phase)) or (module == phase == piece.phase)


def legend(pictures: Sequence[Timeline]) -> tuple[tuple[str, bool, str], ...]:
    """Return the colors of the lanes that fill a part of a window worth a word: kind, whether it is idle time, words."""
    filled: dict[tuple[str, bool, str], float] = {}
    for timeline, lane in ((picture, lane) for picture in pictures for lane in picture.lanes):
        idle, window = lane.role == "idle", max(1, timeline.end_ns - timeline.start_ns)
        for span in lane.spans if lane.role not in NAMED_ROLES else ():
            words = clean(span.label, 60) if idle else KIND_NAMES.get(span.kind, "")
            if words and not (idle and span.covered_ns is not None):
                key = (span.kind, idle, words)
                filled[key] = filled.get(key, 0) + (span.end_ns - span.start_ns) / window
    named = {(kind if idle else KIND_COLORS[kind], words): (kind, idle, words) for kind, idle, words in filled}
    shown = {
        named[kind if idle else KIND_COLORS[kind], words]
        for (kind, idle, words), share in filled.items()
        if share >= LIVE_LEAST
    }
    return tuple(entry for entry in named.values() if entry in shown)


def data(picture: Timeline, *, redact: bool = True, marks: Sequence[Mark] = ()) -> str:
    """Return the lanes as JSON: ``ns`` of the window, ``shown`` of it at first, ``marks``, tables of ``text`` and ``color``, ``lanes``.

    Each mark is [number, start, end], each of ``lines`` an instant and its name. Each lane has ``name``, ``at``, ``fill``, and
    ``idle``: it shows idle time, hatched.
    ``at`` is flat, four numbers per box: ns since the end of the box before it, length in ns, and indices of color and text.
    ``fill`` has, by number of the box, the percentage of it that is filled, for boxes that stand for several neighbors.
    ``of`` of a lane of GPU work is flat, four numbers per box, too: ns from its launch to its start and the lane of that call, and
    indices of the texts of module and line, -1 for what is not known. ``queues`` are work launched and not yet run: name, ns at
    instants in equal distances.
    """
    texts, colors = _Numbered(), _Numbered()
    seen: dict[str, str] = {}

    @cache  # the boxes of a step have few names
    def shown(role: Role, label: str, kind: str) -> str:
        name = box_name(Lane(role, "", ()), Span(0, 0, kind, label), redact)
        return shorten_kernel(name or KIND_NAMES.get(kind, ""), LIVE_LABEL)

    lanes = []
    for lane, name in zip(picture.lanes, lane_names(picture.lanes, redact), strict=True):
        numbers: list[int] = []
        fill: dict[int, int] = {}
        origins: list[int] = []
        before = 0
        for number, span in enumerate(sorted(lane.spans, key=lambda s: s.start_ns)):
            long = span.end_ns - span.start_ns
            color = lane_color(lane, span.kind or span.label, seen)
            text = shown(lane.role, span.label, span.kind)
            numbers += [span.start_ns - before, long, colors.number(color), texts.number(text)]
            before = span.end_ns
            if span.covered_ns is not None and long:
                fill[number] = min(100, round(100 * span.covered_ns / long))
            if lane.role == "stream":
                alone = span.launch_ns is not None and span.launch_lane is not None and span.covered_ns is None
                module, line = clean(shown_name(span.module, redact), LIVE_LABEL), code_place(span.line, redact)
                origins += [
                    max(0, span.start_ns - span.launch_ns) if alone and span.launch_ns is not None else -1,
                    span.launch_lane if alone and span.launch_lane is not None else -1,
                    texts.number(module) if module else -1,
                    texts.number(line) if line else -1,
                ]
        entry = {"name": name, "at": numbers, "fill": fill, "idle": lane.role == "idle"}
        lanes.append(entry | ({"of": origins} if any(n >= 0 for n in origins) else {}))
    queues = [{"name": f"GPU {q.device}: work queued", "ns": q.queued_ns} for q in picture.queues]
    whole = {
        "ns": max(1, picture.end_ns - picture.start_ns),
        "shown": picture.shown_ns,
        "marks": marks,
        "lines": [(instant, clean(shown_name(name, redact), 60)) for instant, name in picture.marks],
        "text": list(texts.numbers),
        "color": list(colors.numbers),
        "lanes": lanes,
        "queues": queues,
    }
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":"))


class _Numbered:
    """Texts by number, in the order in which they come."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))


def token(number: int) -> str:
    """Return the placeholder for a picture's data until the size of the page is known. No name can contain it."""
    return f"\x01live{number}\x01"


def fill(page: str, texts: Iterable[Iterable[str]]) -> str:
    """Return the page with the data of as many pictures as fit, in order; of each the first text that does."""
    size = len(page.encode())
    for number, texts_of in enumerate(texts):
        quoted = next((q for q in map(escape, texts_of) if size + len(q.encode()) <= LIVE_PAGE_BYTES), "")
        size = size + len(quoted.encode()) if quoted else LIVE_PAGE_BYTES
        page = page.replace(token(number), quoted)
    return page

"""A timeline cut to what of its window is shown at first, or thinned to fewer boxes."""

from __future__ import annotations

from dataclasses import replace

from nsysx.pictures import SEVERAL, Counters, Queue, Span, Timeline
from nsysx.render.render_bounds import THINNED_BOXES


def shown(picture: Timeline) -> Timeline:
    """Return the picture of the step in its window; the picture as it is where the window is the step."""
    first, last = picture.shown_ns
    if (first, last) == (0, picture.end_ns - picture.start_ns):
        return picture
    return replace(
        picture,
        start_ns=picture.start_ns + first,
        end_ns=picture.start_ns + last,
        lanes=tuple(
            replace(
                lane, spans=tuple(_cut(s, first, last) for s in lane.spans if s.end_ns > first and s.start_ns < last)
            )
            for lane in picture.lanes
        ),
        queues=tuple(_queue(q, first, last) for q in picture.queues),
        counters=tuple(_counters(c, first, last) for c in picture.counters),
        marks=tuple((instant - first, name) for instant, name in picture.marks if first < instant < last),
        places=(),
        step_ns=None,
    )


def thinned(picture: Timeline) -> Timeline:
    """Return the picture with neighboring short calls as one box, "several", of the kind that has most of it; see `Span.covered_ns`.

    Idle time keeps its causes, GPU work its kernels and modules: their sums are what a reader asks for.
    """
    pixel = max(1, (picture.end_ns - picture.start_ns) // THINNED_BOXES)
    return replace(
        picture,
        lanes=tuple(
            replace(lane, spans=_one_per_pixel(lane.spans, pixel))
            if lane.role == "api" and len(lane.spans) > THINNED_BOXES
            else lane
            for lane in picture.lanes
        ),
    )


def _one_per_pixel(spans: tuple[Span, ...], pixel: int) -> tuple[Span, ...]:
    """Return the spans of a lane with those that begin in one pixel, and are no longer, as one."""
    groups: dict[int, list[Span]] = {}
    for number, span in enumerate(spans):
        short = span.end_ns - span.start_ns < pixel
        groups.setdefault(span.start_ns // pixel if short else -1 - number, []).append(span)
    merged = []
    for group in groups.values():
        ns: dict[str, int] = {}
        for span in group:
            covered = span.end_ns - span.start_ns if span.covered_ns is None else span.covered_ns
            ns[span.kind] = ns.get(span.kind, 0) + covered
        first = group[0] if len(group) == 1 else None
        merged.append(
            first
            or Span(
                group[0].start_ns,
                max(s.end_ns for s in group),
                max(ns, key=lambda kind: ns[kind]),
                SEVERAL if len({s.label for s in group}) > 1 else group[0].label,
                covered_ns=sum(ns.values()),
            )
        )
    return tuple(sorted(merged, key=lambda s: s.start_ns))


def _cut(span: Span, first: int, last: int) -> Span:
    start, end = max(span.start_ns, first), min(span.end_ns, last)
    covered = span.covered_ns
    if covered is not None:
        covered = round(covered * (end - start) / max(1, span.end_ns - span.start_ns))
    return replace(
        span,
        start_ns=start - first,
        end_ns=end - first,
        covered_ns=covered,
        backlog_ns=max(0, min(span.start_ns + span.backlog_ns, end) - start),
        launch_ns=None if span.launch_ns is None else span.launch_ns - first,
    )


def _instants(times: tuple[int, ...], first: int, last: int) -> list[int]:
    return [n for n, instant in enumerate(times) if first <= instant <= last]


def _queue(queue: Queue, first: int, last: int) -> Queue:
    inside = _instants(queue.at_ns, first, last)
    instants, queued = (tuple(values[n] for n in inside) for values in (queue.at_ns, queue.queued_ns))
    return replace(queue, at_ns=tuple(instant - first for instant in instants), queued_ns=queued)


def _counters(counters: Counters, first: int, last: int) -> Counters:
    inside = _instants(counters.at_ns, first, last)
    shares = {name: tuple(values[n] for n in inside) for name, values in counters.shares.items()}
    return replace(counters, at_ns=tuple(counters.at_ns[n] - first for n in inside), shares=shares)

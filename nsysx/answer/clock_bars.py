"""The bars of programs without steps that time themselves: what their clocks read beside what the device did."""

from __future__ import annotations

from typing import NamedTuple

from nsysx.advice import Bar, BarPart, Picture
from nsysx.analyses import event_windows, events, stopwatch
from nsysx.answer.answer_bounds import MOST_EVENT_WINDOWS, OUTLYING_READING_TIMES
from nsysx.catalogue import Paint
from nsysx.findings.nsx107_inflated_event import AT_LAUNCH
from nsysx.findings.nsx115_wrong_timing import BOTH_SIDES, EVIDENCE, KERNEL_ITSELF
from nsysx.model import Finding, Summary


def _reading_bars(summary: Summary, first: Finding | None) -> tuple[Bar, ...]:
    """Return the true time of the kernel that the program times itself, and what each way of timing reads.

    It is the kernel that the finding ``first`` is about, where it is about one.
    """
    rows = [
        r for r in summary.typed_rows(stopwatch.ROWS) if r.get("both_ns") is not None or r.get("after_ns") is not None
    ]
    custom = [r for r in rows if r.get("custom")] or rows
    if not custom:
        return ()
    readings = {r["way"]: r["reads_ns"] for r in first.typed_rows(EVIDENCE)} if first is not None else {}
    of_finding = (
        r for r in rows if (r["kernel_ns"], r["both_ns"]) == (readings.get(KERNEL_ITSELF), readings.get(BOTH_SIDES))
    )
    row = next(of_finding, custom[0])
    ways = (
        ("the kernel itself", row["kernel_ns"], Paint.COMPUTE),
        ("synchronize before and after", row["both_ns"], Paint.OTHER),
        ("synchronize only before", row["before_ns"], Paint.OTHER),
        ("synchronize only after", row["after_ns"], Paint.OTHER),
        ("no synchronize", row["none_ns"], Paint.OTHER),
    )
    return tuple(Bar(label, ns, (BarPart("", ns, kind),)) for label, ns, kind in ways if ns)


class _Windows(NamedTuple):
    """cuda.Event windows as bars. ``first``: the very first window is one of them."""

    bars: tuple[Bar, ...]
    first: bool


def _window_bars(summary: Summary) -> _Windows | None:
    """Return what the first cuda.Event windows read, in order, and how much of it is kernels.

    A window that reads far more than the median, as the very first often does, would flatten the others and is left out.
    """
    windows = list(enumerate(sorted(summary.typed_rows(event_windows.ROWS), key=lambda r: r["start_ns"]), 1))
    usual = sorted(r["reading_ns"] for _, r in windows)[len(windows) // 2] if windows else 0
    several = len({r["site"] for _, r in windows}) > 1
    shown = [(n, r) for n, r in windows if r["reading_ns"] <= OUTLYING_READING_TIMES * usual][:MOST_EVENT_WINDOWS]
    bars = tuple(
        _window_bar(f"window {number}" + (f", pair {row['site'] + 1}" if several else ""), _ClockWindow.from_row(row))
        for number, row in shown
    )
    return _Windows(bars, shown[0][0] == 1) if bars else None


class _ClockWindow(NamedTuple):
    """What is in a window (ns)."""

    reading: float
    kernel: float
    copies: float
    launches: float = 0.0

    @staticmethod
    def from_row(row: event_windows.WindowRow) -> _ClockWindow:
        """Return what is in one window."""
        return _ClockWindow(
            row["reading_ns"], row["kernel_ns"], row["copy_ns"] + row["memset_ns"], row["launch_wait_ns"]
        )


def _window_bar(label: str, window: _ClockWindow) -> Bar:
    """Return a window as a bar: its kernels, its copies, waiting for launches, as the sentence says it, and the rest."""
    left, parts = window.reading, list[BarPart]()
    for name, ns, color in (
        ("kernels", window.kernel, Paint.COMPUTE),
        ("copies", window.copies, Paint.COPY),
        (AT_LAUNCH, window.launches, Paint.LAUNCH),
        ("other", window.reading, Paint.OTHER),
    ):
        parts.append(BarPart(name, min(ns, left), color, name in (AT_LAUNCH, "other")))
        left -= parts[-1].ns
    return Bar(label, window.reading, tuple(p for p in parts if p.ns > 0))


def _turn_bars(summary: Summary) -> tuple[Bar, ...]:
    """Return the median window of each place that a loop times in turn; none where there is only one place.

    With an even number of windows it is the mean of the two in the middle, as a median is.
    """
    places = sorted((r for r in summary.typed_rows(events.ROWS) if r.get("turns")), key=lambda r: r["site"])
    bars = []
    for window_row in places[:MOST_EVENT_WINDOWS]:
        windows = sorted(
            (w for w in summary.typed_rows(event_windows.ROWS) if w["site"] == window_row["site"]), key=_reading_ns
        )
        if windows:
            two = (
                _ClockWindow.from_row(windows[(len(windows) - 1) // 2]),
                _ClockWindow.from_row(windows[len(windows) // 2]),
            )
            middle = _ClockWindow(*(sum(ns) / 2 for ns in zip(*two, strict=True)))
            bars.append(_window_bar(f"call site {window_row['turn']} of {window_row['turns']}", middle))
    return tuple(bars)


def _reading_ns(window: event_windows.WindowRow) -> int:
    return window["reading_ns"]


def pictured(summary: Summary, first: Finding | None, asked: str) -> Picture | None:
    """Return the picture of what the clocks of a program without steps read, None where none was asked for or recorded.

    ``first`` is the finding that asks for it.
    """
    if asked == "windows" and (places := _turn_bars(summary)):
        return Picture("windows", "The median time between two cuda.Events, by call site", places)
    if asked == "windows" and (windows := _window_bars(summary)):
        left = "" if windows.first else ", without the first, which holds one-time cost"
        return Picture("windows", f"What the first windows between two cuda.Events read{left}", windows.bars)
    if asked in ("windows", "readings") and (readings := _reading_bars(summary, first)):
        return Picture("readings", "What each way of timing reads", readings)
    return None

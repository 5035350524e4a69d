"""The pictures of a Summary: those of the page, as files of their own, and one by one as figures of matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

from nsysx import units
from nsysx.events.profile import NotRecorded
from nsysx.model import Summary
from nsysx.pictures import CPU_ROLES, Counters, Queue, Timeline
from nsysx.render import charts, cut_timeline, step_waterfall, view
from nsysx.render.charts import Chart, host_icicle, memory_lines, module_flame, rank_bars
from nsysx.render.charts.beside import DrawingProcess
from nsysx.render.charts.flame_graph import Stacks, flame
from nsysx.render.charts.row_bars import BarRow, row_bars
from nsysx.render.grids import CellTexts
from nsysx.render.safe_text import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def ledger_chart(shown: view.View) -> Chart | None:
    """Return the picture of the ledgers on one time scale."""
    ledgers = shown.ledgers[:8]
    if not ledgers:
        return None
    return Chart(
        "ledger", partial(charts.ledger, ledgers, shown.per_step), " ".join(entry.sentence() for entry in ledgers), ""
    )


def steps_chart(shown: view.View, count: int) -> Chart | None:
    """Return the picture of the steps in order, None for fewer than two; the capture has ``count`` steps."""
    bars = shown.steps
    if len(bars) < 2:
        return None
    steady = [bar for bar in bars if bar.steady]
    text = f"{len(bars)} of {count} steps" if len(bars) < count else f"{count} steps"
    text += f" on the {'GPU' if shown.steps_on_gpu else 'CPU'}"
    if steady:
        low, high = min(steady, key=lambda b: b.length_ns), max(steady, key=lambda b: b.length_ns)
        least, most = (f"{units.duration(bar.length_ns)} (step {bar.index})" for bar in (low, high))
        text += f", {len(steady)} of them steady: {least if least == most else f'from {least} to {most}'}"
    return Chart("steps", partial(charts.steps, bars, shown.steps_on_gpu), f"{text}.", f"{text}.")


#: Where the figures of a caption come from: no table and no JSON holds the events of a picture.
_OF_THIS_WINDOW = "Figures here are of this window alone, tables and JSON cover all steady steps."


def _lane_words(entry: Timeline) -> str:
    """Return what the lanes show in words: how busy the busiest stream is, and the longest wait."""
    length = max(1, entry.end_ns - entry.start_ns)
    sentences = []
    busy = [
        (sum(s.end_ns - s.start_ns if s.covered_ns is None else s.covered_ns for s in lane.spans), lane.label)
        for lane in entry.lanes
        if lane.role == "stream"
    ]
    if busy:
        most, label = max(busy)
        sentences.append(f"{clean(label, 60)} is busy {units.share(min(most, length), length)} of it")
    waits = [
        s for lane in entry.lanes if lane.role == "api" for s in lane.spans if s.backlog_ns and s.covered_ns is None
    ]
    if waits:
        longest = max(waits, key=lambda s: s.backlog_ns)
        sentences.append(
            f"the longest wait is {clean(longest.label, 80)}, {units.duration(longest.backlog_ns)} for earlier GPU work"
        )
    return "; ".join(sentences)


def _queue_words(queue: Queue, several: bool) -> str:
    """Return in words how far the CPU runs ahead."""
    name = f" (GPU {queue.device})" if several else ""
    ahead = f"The CPU is up to {units.duration(max(queue.queued_ns))} of GPU work ahead{name}"
    if not queue.launches:  # all that runs was launched before
        return f"{ahead}."
    finds = "launch finds" if queue.launches == 1 else "launches find"
    return f"{ahead}; {units.count(queue.dry)} of {units.count(queue.launches)} {finds} an empty queue."


def _counter_words(counters: Counters) -> str:
    """Return the means of the counters over the window, in words."""
    means = {name: [s for s in shares if s is not None] for name, shares in counters.shares.items()}
    means_text = ", ".join(f"{clean(name, 20)} {units.share(sum(s) / len(s), 1)}" for name, s in means.items() if s)
    return f"{clean(counters.label, 40)}, mean of the window: {means_text}."


def distinct(timelines: Sequence[Timeline]) -> tuple[Timeline, ...]:
    """Return the timelines, each window once: the typical step of few can be the slowest, too."""
    return tuple({(entry.start_ns, entry.end_ns): entry for entry in reversed(timelines)}.values())[::-1]


def timeline_charts(summary: Summary, redact: bool) -> list[Chart]:
    """Return the pictures of single windows, on one time scale where all stay readable on it."""
    entries = [cut_timeline.shown(entry) for entry in summary.timelines[:4]]
    lengths = [entry.end_ns - entry.start_ns for entry in entries]
    common = max(lengths) if lengths and max(lengths) <= 2 * min(lengths) else None
    figures = []
    for number, (entry, window) in enumerate(zip(entries, lengths, strict=True), 1):
        title = CellTexts(redact)(entry.title, 200)
        words = _lane_words(entry)
        ahead = " ".join(_queue_words(q, len(entry.queues) > 1) for q in entry.queues)
        ahead += "".join(f" {_counter_words(c)}" for c in entry.counters)
        figures_of = _OF_THIS_WINDOW if words or ahead else ""
        caption = f"{title}, a window of {units.duration(window)}{': ' if words else ''}{words}. {ahead} {figures_of} {entry.note}"
        caption = " ".join(caption.split())
        lanes = sum(lane.role in CPU_ROLES for lane in entry.lanes)
        alt = f"Timeline with {lanes} CPU lanes above {len(entry.lanes) - lanes} of GPUs. {caption}"
        drawing = partial(charts.timeline, entry, redact=redact, span_ns=common)
        figures.append(Chart("timeline" if number == 1 else f"timeline-{number}", drawing, alt, caption))
    return figures


def step_chart(summary: Summary, ax: Axes | None = None) -> Chart | None:
    """Return the step as a waterfall of its parts, None where it is not known."""
    falls = step_waterfall.build(summary)
    if not falls or not summary.verdict.step_ns:
        return None
    rows = [BarRow(f.label, f.value, f.share, (f.box,)) for f in falls]
    text = "; ".join(f"{f.label} {f.value} ({f.share})" for f in falls) + "."
    return Chart("step", partial(row_bars, rows, 0, summary.verdict.step_ns, "one step", ax=ax), text, "")


#: The kinds of files in which pictures are written.
Kind = Literal["svg", "png", "pdf"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Pictures:
    """The pictures of a page: of the ledgers, of the steps, of single windows, and of each table by its key."""

    ledger: Chart | None = None
    steps: Chart | None = None
    timelines: tuple[Chart, ...] = ()
    of_tables: Mapping[str, tuple[Chart, ...]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Chart]:
        yield from (chart for chart in (self.ledger, self.steps) if chart is not None)
        yield from self.timelines
        for charts_of_table in self.of_tables.values():
            yield from charts_of_table

    def drawn_by(self, drawing: DrawingProcess) -> Pictures:
        """Return the same, which a process now draws."""
        ahead = iter(drawing.ahead(list(self)))
        return Pictures(
            self.ledger and next(ahead),
            self.steps and next(ahead),
            tuple(next(ahead) for _ in self.timelines),
            {key: tuple(next(ahead) for _ in of_table) for key, of_table in self.of_tables.items()},
        )


def pictures(summary: Summary, *, redact: bool = True) -> Pictures:
    """Return the pictures of the page of a Summary; none is drawn yet."""
    shown = view.build(summary, top=1, redact=redact, width=84, sections=("ledger",))
    summary = replace(summary, timelines=distinct(summary.timelines))
    return Pictures(
        ledger_chart(shown),
        steps_chart(shown, summary.steps.count),
        tuple(timeline_charts(summary, redact)),
        charts.figures(summary, redact=redact),
    )


def every(summary: Summary, *, redact: bool = True) -> Iterator[Chart]:
    """Yield all pictures of a Summary, each of its own name."""
    if step := step_chart(summary):
        yield step
    yield from pictures(summary, redact=redact)


def files(summary: Summary, *, redact: bool = True) -> dict[str, bytes]:
    """Return all pictures as files by their name: each as SVG, PNG and PDF."""
    return {f"{c.name}.{kind}": c.file(kind) for c in every(summary, redact=redact) for kind in KINDS}


class Plots:
    """The pictures of a report, each as a figure of matplotlib: ``s.plot.step()``. With ``ax`` they are drawn on these axes.

    A figure stays as it is: change its texts, its size or its axes, and save it with ``figure.savefig``. A picture of what the
    capture does not hold raises NotRecorded. Home folders are shown, as in all that Python is given.
    """

    def __init__(self, summary: Summary) -> None:
        """Use ``report.plot``; for a Summary that was read from its JSON, ``Plots(summary)``."""
        self._summary = summary

    def step(self, *, ax: Axes | None = None) -> Figure:
        """Return the step as a waterfall: what the GPU does, then what it waits for, and the whole."""
        return self._drawn(step_chart(self._summary, ax), "the parts of the step are not known")

    def timeline(self, number: int = 0, *, ax: Axes | None = None) -> Figure:
        """Return one window as lanes: 0 is a usual step, others follow, as on the page."""
        windows = distinct(self._summary.timelines)
        if not -len(windows) <= number < len(windows):
            raise NotRecorded(f"the report has {len(windows)} timelines")
        return charts.timeline(cut_timeline.shown(windows[number]), redact=False, ax=ax)

    def memory(self, *, ax: Axes | None = None) -> Figure:
        """Return the memory of each device over time."""
        return self._of_table(memory_lines, ax)

    def ranks(self, *, ax: Axes | None = None) -> Figure:
        """Return the steps of all ranks side by side."""
        return self._of_table(rank_bars, ax)

    def flame(self, stacks: Stacks | None = None, *, words: str = "", ax: Axes | None = None) -> Figure:
        """Return a flame graph: the GPU time of one step by module or, without modules, the GPU's idle time by line of Python.

        ``stacks`` are drawn in place of both: ns by folded stack, ``{"main;step;forward": 1200}``; ``words`` name their axis.
        """
        if stacks is not None:
            return flame(stacks, words, ax=ax)
        of_modules = module_flame.stacks(self._summary)
        return flame(of_modules, "GPU time of one step", ax=ax) if of_modules else self._of_table(host_icicle, ax)

    def _of_table(self, picture: charts.TablePicture, ax: Axes | None) -> Figure:
        table = self._summary.tables.get(picture.TABLE)
        reason = (table.reason if table else "") or f"too few rows of {picture.TABLE} for a picture"
        return self._drawn(picture.chart(self._summary, ax) if table else None, reason)

    @staticmethod
    def _drawn(chart: Chart | None, reason: str) -> Figure:
        if chart is None:
            raise NotRecorded(reason)
        return chart.figure

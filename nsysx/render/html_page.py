"""The page: one self-contained HTML file that opens anywhere, loads nothing, and reads well on paper and with scripts off."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined

from nsysx import glossary, units
from nsysx.model import Summary
from nsysx.render import charts, markdown, view
from nsysx.render.charts import Picture

_TEMPLATES = files("nsysx.render") / "templates"


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture on the page: what it says in words, and what stands under it."""

    picture: Picture
    alt: str
    caption: str

    @property
    def uri(self) -> str:
        """Return the picture as a data: address."""
        return f"data:{self.picture.mime};base64,{base64.b64encode(self.picture.data).decode()}"


def _sha256(text: str) -> str:
    """Return the hash of an inline script as a content policy names it."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _ledger_figure(shown: view.View) -> Figure | None:
    """Return the picture of the ledgers on one time scale."""
    ledgers = shown.ledgers[:8]
    if not ledgers:
        return None
    return Figure(charts.ledger(ledgers, shown.per_step), " ".join(entry.sentence() for entry in ledgers), "")


def _steps_figure(shown: view.View) -> Figure | None:
    """Return the picture of the steps in order, where there are several."""
    bars = shown.steps
    if len(bars) < 2:
        return None
    steady = [bar for bar in bars if bar.steady]
    text = f"{len(bars)} {'GPU' if shown.steps_on_gpu else 'CPU'} steps"
    if steady:
        low, high = min(steady, key=lambda b: b.length_ns), max(steady, key=lambda b: b.length_ns)
        text += (
            f", {len(steady)} of them steady: from {units.duration(low.length_ns)} (step {low.index}) "
            f"to {units.duration(high.length_ns)} (step {high.index})"
        )
    return Figure(charts.steps(bars, shown.steps_on_gpu), f"{text}.", f"{text}.")


def _timeline_figures(summary: Summary, redact: bool) -> list[Figure]:
    """Return the pictures of single windows."""
    figures = []
    for entry in summary.timelines[:4]:
        texts = view.Texts(redact, 110)
        length = units.duration(entry.end_ns - entry.start_ns)
        title = texts(entry.title, 200)
        lanes = sum(lane.role != "stream" for lane in entry.lanes)
        alt = f"Timeline, {title}: {length}, {lanes} CPU lanes above {len(entry.lanes) - lanes} GPU streams."
        figures.append(Figure(charts.timeline(entry, redact=redact), alt, f"{title}, a window of {length}."))
    return figures


def render(summary: Summary, *, redact: bool = True, top: int = 50) -> str:
    """Return the page of ``summary``; ``top`` bounds the rows of each table, ``redact`` hides what names a person or machine."""
    shown = view.build(summary, top=top, redact=redact, width=84)
    script = (_TEMPLATES / "page.js").read_text(encoding="utf-8")
    environment = Environment(
        loader=PackageLoader("nsysx.render"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        v=shown,
        style=(_TEMPLATES / "page.css").read_text(encoding="utf-8"),
        script=script,
        script_hash=_sha256(script),
        ledger_figure=_ledger_figure(shown),
        steps_figure=_steps_figure(shown),
        longest=max((entry.window_ns for entry in shown.ledgers), default=0) or 1,
        timelines=_timeline_figures(summary, redact),
        ticket=markdown.render(summary, top=8, redact=redact),
        colours=charts.KIND_COLOURS,
        duration=units.duration,
        share=units.share,
        anchor=glossary.anchor,
        anchors={glossary.anchor(entry) for entry in shown.glossary},
    )

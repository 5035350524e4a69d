"""A comparison as one self-contained page in the style of the report page."""

from __future__ import annotations

from nsysx import units
from nsysx.comparing.difference_answer import Comparison
from nsysx.render import compare_charts, compare_text, page_templates
from nsysx.render import compare_view as view
from nsysx.render.html_page import typeset
from nsysx.render.render_bounds import SCREEN_PARTS
from nsysx.render.safe_text import clean, file_name


def render(answer: Comparison, *, redact: bool = True, top: int = 60) -> str:
    """Return the page; ``top`` bounds the rows of each table, ``redact`` hides what names a person or machine."""
    script = page_templates.text("page.js")
    tables = [
        (key, view.TITLES[key], [view.line(key, r, 84, redact=redact) for r in rows[:top]], max(0, len(rows) - top))
        for key, rows in answer.tables.items()
        if rows
    ]
    waterfall, steps = compare_charts.waterfall(answer), compare_charts.steps(answer)
    names = [", ".join(clean(file_name(n, redact), 80) for n in side) for side in answer.names]
    first, _, caveats = clean(answer.sentence, 1500).partition(". ")
    head, _, others = first.partition("; ")
    lede = " ".join(filter(None, (f"Also: {others}." if others else "", caveats)))
    page = page_templates.template("compare.html.j2").render(
        style=page_templates.text("page.css"),
        script=script,
        script_hash=page_templates.sha256(script),
        label=view.LABELS[answer.verdict],
        code=answer.verdict,
        head=head.removesuffix("."),
        lede=lede,
        worth=view.worth(answer),
        real=view.both_steps(answer),
        unprofiled=view.without_profiler(answer) is not None,
        places=view.places(answer, redact=redact),
        shown=[view.part_line(p, 84, answer.before_ns) for p in view.shown_parts(answer, SCREEN_PARTS)[0]],
        duration=units.duration,
        names=names,
        warnings=view.warnings(answer),
        notes=[clean(n, 400) for n in answer.notes],
        basis=view.basis(answer),
        bars=compare_charts.bars(answer).charts("steps", compare_charts.legend(answer)),
        waterfall=waterfall.charts("parts"),
        begins=units.duration(waterfall.low_ns) if waterfall.low_ns else "",
        steps=steps.charts("single-steps"),
        ends=f"from {units.duration(steps.low_ns)} to {units.duration(steps.high_ns)}",
        whole=answer.whole,
        share_head=view.share_head(answer),
        heads=view.HEADS,
        parts=view.part_lines(answer, len(answer.parts), 84),
        tables=tables,
        checks=[(x.status, clean(x.detail, 600)) for x in answer.comparability],
        ticket=compare_text.markdown(answer, top=8, redact=redact),
    )
    return typeset(page)

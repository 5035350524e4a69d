"""What every output shows, in one order: sections of text, ledgers and grids made from a Summary, ready to print.

Terminal, page and Markdown differ in how they draw a :class:`View`, never in what it says. A table that an analysis adds
needs no code here: its columns say unit and meaning, and that is enough to draw it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nsysx import units
from nsysx.analyses import cpu_ledger
from nsysx.analyses.helpers.step_record import rows_of
from nsysx.answer import others
from nsysx.findings import rule_of
from nsysx.model import Check, Finding, Summary
from nsysx.render import facts, finding_view, ledgers
from nsysx.render.facts import Fact
from nsysx.render.finding_view import FindingView
from nsysx.render.grids import CellTexts, Grid, grid
from nsysx.render.labels import VERDICTS, label
from nsysx.render.ledgers import Ledger, StepBar
from nsysx.render.render_bounds import MOST_MESSAGES
from nsysx.render.safe_text import clean, without_homes


@dataclass(frozen=True, slots=True)
class View:
    """Everything that is shown, as text, in order."""

    title: str
    verdict_label: str
    sentence: str
    evidence: tuple[str, ...]
    first: FindingView | None
    steps_line: str
    step_times: str
    per_step: bool
    ledger_title: str
    ledgers: tuple[Ledger, ...]
    quiet_threads: int
    ledger_reasons: tuple[str, ...]
    findings: tuple[FindingView, ...] | None
    steps: tuple[StepBar, ...]
    steps_on_gpu: bool
    grids: tuple[Grid, ...]
    capture: tuple[Fact, ...]
    diagnostics: tuple[str, ...]
    quality: tuple[Check, ...]
    alarms: tuple[Check, ...] = ()
    hidden: tuple[str, ...] = ()
    no_first: str = ""


def _diagnostics(summary: Summary, texts: CellTexts) -> tuple[str, ...]:
    """Return what the profiler said, each message once: those that differ in numbers alone are one."""
    messages: dict[str, list[str]] = {}
    for message in summary.capture.diagnostics:
        text = texts(message.get("text") or message.get("detail") or "", 300)
        messages.setdefault(re.sub(r"\d+", "#", text), []).append(text)
    shown = list(messages.values())[:MOST_MESSAGES]
    return tuple(f"{same[0]} ({len(same)} times)" if len(same) > 1 else same[0] for same in shown)


def _label(summary: Summary) -> str:
    """Return the name of the verdict; a program that times itself has one of its own."""
    code = summary.answer.do[-1].code
    if summary.steps.source == "capture" and code and rule_of(code).reading:
        return "own timing"
    return VERDICTS.get(summary.verdict.code, clean(summary.verdict.code, 30))


def _leading_finding(summary: Summary) -> Finding | None:
    """Return the finding that the answer is about, None where the advice is about the capture itself."""
    index = summary.answer.do[-1].finding
    return None if index is None or summary.findings is None else summary.findings[index]


def _wait_line(summary: Summary, texts: CellTexts) -> list[str]:
    """Return what removing the longest wait is worth, the first question of anybody who sees a long wait."""
    wait = others.longest_wait(summary)
    if wait is None:
        return []
    in_module = f" in {texts(wait.module, 80)}" if wait.module else ""
    lasts = f"The longest wait, {texts(wait.api, 80)}{in_module}, lasts {units.duration(wait.ns)} per step"
    shorter = f"{units.duration(wait.saving_ns)} shorter" if wait.saving_ns >= 1 else "no shorter"
    line = f"{summary.step.marks(lasts)}; without it the step is {shorter}"
    if not wait.moves_to:
        return [line]
    return [f"{line}{', because' if wait.little else ', and'} the wait moves to {texts(wait.moves_to, 160)}"]


def _evidence(summary: Summary, texts: CellTexts) -> tuple[str, ...]:
    """Return what the verdict rests on, one sentence each."""
    lines = (*(texts(e, 500) for e in summary.verdict.evidence), *_wait_line(summary, texts))
    return tuple(line[:1].upper() + line[1:] for line in lines)


def _reasons(summary: Summary, texts: CellTexts) -> list[str]:
    """Return why tables have no rows: those with one reason together."""
    titles: dict[str, list[str]] = {}
    for key in ledger_keys(summary):
        if (t := summary.tables.get(key)) is not None and t.rows is None:
            titles.setdefault(texts(t.reason or "not recorded", 400), []).append(clean(t.title or label(key), 60))
    return [f"{', '.join(of_reason)}: {reason}" for reason, of_reason in titles.items()]


#: Words in the names of checks, as people write them.
_CHECK_WORDS = {"gpu ops": "GPU work", "gpu": "GPU", "cuda": "CUDA", "nvtx": "NVTX", "nccl": "NCCL"}


def _check_in_words(name: str) -> str:
    """Return the name of a check as people write it: "GPU work without call" for "gpu ops without call"."""
    return re.sub("|".join(rf"\b{word}\b" for word in _CHECK_WORDS), lambda word: _CHECK_WORDS[word[0]], name)


def _quality(summary: Summary, texts: CellTexts) -> tuple[Check, ...]:
    """Return the checks, without those of missing tables, which give their own reason."""
    order = ("warn", "missing", "ok")
    checks = sorted((c for c in summary.quality if not c.table), key=lambda c: order.index(c.status))
    return tuple(
        Check(_check_in_words(clean(c.check, 60)), c.status, texts(c.detail, 800), texts(c.fix, 400), doubt=c.doubt)
        for c in checks
    )


def _section_wanted(sections: Sequence[str] | None) -> Callable[[str], bool]:
    """Return a predicate: is a section to be shown?"""
    chosen = None if sections is None else frozenset(sections)
    return lambda name: chosen is None or name in chosen


def ledger_keys(summary: Summary) -> list[str]:
    """Return the keys of the tables shown as ledgers."""
    return [k for k, t in summary.tables.items() if t.shown.ledger]


def table_keys(summary: Summary) -> list[str]:
    """Return the keys of the tables shown as grids, in order."""
    grids = [(t.shown.place, k) for k, t in summary.tables.items() if not (t.shown.ledger or t.shown.unseen)]
    return [key for _, key in sorted(grids)]


def build(
    summary: Summary, *, top: int, redact: bool = False, width: int = 110, sections: Sequence[str] | None = None
) -> View:
    """Return everything that is shown of ``summary``.

    ``top`` bounds the rows of each table and ``width`` the characters of a name; ``sections`` (keys of tables, "ledger",
    "first") limits what is made at all; ``redact`` hides home folders, the folders of files, and options.
    """
    texts = CellTexts(redact, width)
    wanted = _section_wanted(sections)
    scope = summary.steps.scope
    drawn = tuple(ledgers.ledgers_of(summary)) if wanted("ledger") else ()
    drawn = without_homes(drawn) if redact else drawn
    findings = finding_view.findings_of(summary, texts, width)
    chosen = _leading_finding(summary) if summary.steps.source != "capture" else None
    reasons = _reasons(summary, texts)
    checks = _quality(summary, texts)
    return View(
        title=", ".join(texts(facts.base_name(f), 80) for f in summary.capture.files[:3])
        + (" …" if len(summary.capture.files) > 3 else ""),
        verdict_label=_label(summary),
        sentence=texts(summary.verdict.sentence, 1000),
        evidence=_evidence(summary, texts),
        first=finding_view.finding_of(chosen, summary, texts, width) if chosen and wanted("first") else None,
        no_first="" if chosen or findings is None else texts(summary.answer.do[0].text, 400),
        steps_line=facts.steps_line(summary),
        step_times=facts.step_times(summary),
        per_step=bool(scope and scope.steps),
        ledger_title=scope.mean if scope else "whole capture",
        ledgers=drawn,
        quiet_threads=len(summary.typed_rows(cpu_ledger.ROWS)) - len(ledgers.busy_threads(summary)),
        ledger_reasons=tuple(reasons),
        findings=findings,
        steps=ledgers.step_bars(summary),
        steps_on_gpu=any(r.get("gpu_ns") is not None for r in rows_of(summary.steps)),
        grids=tuple(
            grid(summary.tables[k], top=top, redact=redact, width=width) for k in table_keys(summary) if wanted(k)
        ),
        capture=facts.capture_facts(summary, texts),
        diagnostics=_diagnostics(summary, texts),
        quality=checks,
        alarms=tuple(c for c in checks if c.status != "ok" and c.doubt in ("numbers", "everything")),
        hidden=(
            "home folders",
            "folders of files",
            "options and arguments of the command",
            "environment",
            "host and user names",
        )
        if redact
        else (),
    )

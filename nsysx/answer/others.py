"""What else was found, and what to ask next."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from nsysx import units
from nsysx.advice import Action, Also
from nsysx.analyses import gpu_ledger, waits
from nsysx.answer import measured, subject
from nsysx.answer.answer_bounds import (
    LITTLE_SAVING_SHARE,
    LONG_WAIT_SHARE,
    MORE_THAN_NAMED_TIMES,
    MOST_ALSO_FOUND,
    MOST_OF_A_RULE,
    MUCH_HOST_CODE_SHARE,
    TITLE_LETTERS,
    UNKNOWN_SAVING_COST_SHARE,
)
from nsysx.answer.bars import folded_path
from nsysx.answer.change_savings import about, by_saving, place_of
from nsysx.catalogue import StepLimit
from nsysx.events.lacking_nvtx import INSTALL_NVTX, lacks_nvtx
from nsysx.findings import rule_of
from nsysx.judging import rank_waiting
from nsysx.model import Finding, Summary
from nsysx.saving import NOTABLE

#: A time in a text.
_TIME = re.compile(r"(\d+(?:\.\d+)?) (ns|us|ms|s)\b")
#: What a program that measures makes by itself: it waits for what it measures, and the GPU then waits for the next launch.
_BY_MEASURING = (StepLimit.LAUNCH, StepLimit.SYNC)

#: The rule that tells all that a line does to the GPU: of the line of the first advice it is the same once more.
_OF_A_LINE = "NSX123"


def also(summary: Summary, chosen: Finding | None, do: Sequence[Action]) -> tuple[Also, ...]:
    """Return the findings worth a line besides what is to be done; one rule in repeated blocks is one line."""
    told = {action.finding for action in do}
    step, lines = summary.step.shown_ns, dict[str, Also]()
    same = rule_of(chosen.code).same_time if chosen else ()
    for f in by_saving(summary):
        if place_of(summary, f) in told or f.code in same or about(f) == "capture" or measured.in_vain(f):
            continue
        saving = summary.step.saves_ns(f.saving)
        if (
            f.unexplained
            or (rule_of(f.code).striking and f.overlaps)
            or (subject.measures(summary) and about(f) in _BY_MEASURING)
            or (chosen is not None and _is_its_line(summary, f, chosen))
        ):
            continue
        if step is not None and saving is None and (f.cost_ns_per_step or 0) < UNKNOWN_SAVING_COST_SHARE * step:
            continue
        if step is not None and saving is not None and (saving < NOTABLE * step or saving < (f.saving.error_ns or 0)):
            continue
        title = folded_path(f.title[:TITLE_LETTERS])
        title = f"Repeated blocks{title[1:]}" if title.startswith("*:") else title
        text = summary.step.marks_title(title, as_recorded=f.title_as_recorded)
        if saving is not None and saving > MORE_THAN_NAMED_TIMES * _named_ns(title):
            text += "; a fix saves more"
        key = f"{f.code} {_without_numbers(text)}"
        bound = f.saving.bound or chosen is None  # beside "Nothing", what it saves may be nothing, too
        # The first of several blocks saves most of them.
        lines.setdefault(key, Also(f.code, place_of(summary, f), text, saving if step is not None else None, bound))
    chosen_lines: list[Also] = []
    for line in sorted(lines.values(), key=lambda a: -(a.saving_ns or 0)):
        if sum(other.code == line.code for other in chosen_lines) < MOST_OF_A_RULE:
            chosen_lines.append(line)
    named = [
        *(a.finding for a in do if a.finding is not None),
        *(line.finding for line in chosen_lines[:MOST_ALSO_FOUND]),
    ]
    return tuple(replace(a, overlaps=before(summary, named, a.finding)) for a in chosen_lines[:MOST_ALSO_FOUND])


def _is_its_line(summary: Summary, finding: Finding, chosen: Finding) -> bool:
    """Return whether a finding is about the line of the first advice and its time: all that a line does, or what has the same remedy."""
    remedies = [way.name for way in finding.remedies]
    if finding.code != _OF_A_LINE and (not remedies or remedies != [way.name for way in chosen.remedies]):
        return False
    same = all(finding.where.get(key) == chosen.where.get(key) is not None for key in ("file", "line"))
    return same and place_of(summary, chosen) in finding.overlaps


def before(summary: Summary, named: Sequence[int], shown: int) -> tuple[str, ...]:
    """Return the codes of the findings named before the one at a place that it overlaps with."""
    findings, earlier = summary.findings or (), named[: named.index(shown)]
    return tuple(dict.fromkeys(findings[n].code for n in earlier if n in findings[shown].overlaps and n != shown))


def _named_ns(text: str) -> float:
    """Return the longest time that a text names (ns), infinite where it names none."""
    return max((float(number) * units.OF_NS[unit] for number, unit in _TIME.findall(text)), default=math.inf)


def _without_numbers(text: str) -> str:
    """Return a text without its digits: lines that differ only in numbers are about one thing."""
    return "".join(c for c in text if not c.isdigit() and c != ".")


def _host_code_unseen(summary: Summary) -> bool:
    """Return whether the GPU waits for the host code of a probed program whose stacks were not sampled."""
    lines, step = summary.tables.get("host_lines"), summary.verdict.step_ns or 0
    if (noted := summary.tables.get("lines")) is not None and noted.rows is not None:
        return False
    much = summary.verdict.parts.get("host", 0) >= MUCH_HOST_CODE_SHARE * step > 0
    return much and bool(summary.capture.probe) and lines is not None and lines.rows is None


def ask_next(summary: Summary, chosen: Finding | None) -> tuple[str, ...]:
    """Return the commands to run next; REPORT stands for the reports."""
    commands = [f"nsysx explain {chosen.code}"] if chosen else []
    ranks = summary.tables.get("ranks")
    if ranks is not None and rank_waiting.why_not_compared(ranks.rows or (), summary.capture.probe):
        commands.append(RECORD_LONGER)
    if summary.replay is not None:
        commands.append("nsysx whatif REPORT")
    if _host_code_unseen(summary):
        lacks = lacks_nvtx(summary.capture.probe)
        commands.append(f"{INSTALL_NVTX} && nsysx run -- CMD" if lacks else "nsysx run --xray all -- CMD")
    return (*commands, "nsysx report REPORT --full", "nsysx report REPORT --html page.html")


#: A longer run records more steps: what was seen of few says little.
RECORD_LONGER = "nsysx run -- CMD"


class LongestWait(NamedTuple):
    """The longest wait that was replayed: its length and what the step without it saves, both ns of one step.

    ``moves_to``: what waits instead, "" if nothing. ``little``: hardly any of it is saved.
    """

    api: str
    module: str | None
    ns: float
    saving_ns: float
    moves_to: str
    little: bool


def longest_wait(summary: Summary) -> LongestWait | None:
    """Return what removing the longest wait is worth, the first question of anybody who sees one; None for waits not worth a word."""
    table, shown = summary.tables.get("waits"), summary.steps.scope.processes[0] if summary.steps.scope else None
    replayed = [(r, ns) for r in summary.typed_rows(waits.ROWS) if (ns := r.get("saving_ns")) is not None]
    windows = [r["window_ns"] for r in summary.typed_rows(gpu_ledger.ROWS) if r.get("process") == shown]
    if not replayed or table is None or table.scope is None or not table.scope.steps:
        return None
    row, saved = max(replayed, key=lambda r: r[0].get("total_ns") or 0)
    if (row.get("total_ns") or 0) < LONG_WAIT_SHARE * max(windows, default=0):
        return None
    wait, saving = (table.scope.per_step(ns) for ns in (row["total_ns"], saved))
    return LongestWait(
        row["api"],
        row.get("module"),
        ns=wait,
        saving_ns=saving,
        moves_to=row.get("moves_to") or "",
        little=saving < LITTLE_SAVING_SHARE * wait,
    )

"""The first answer for programs: at most 2.5 kB of JSON, ``nsysx.brief/2``; ``insight`` and ``table_json`` are the layers below it.

It says what limits the step, how long the step is and how that is known (``step``), its first three causes, each with its place,
what it saves and what to do (``causes``), the step after the first of them (``after``), what to beware of (``care``), and commands
that run in any folder (``commands``). Nothing is decided here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nsysx.advice import Action, Also
from nsysx.analyses.helpers.step_record import rows_of
from nsysx.answer import loop_worth
from nsysx.inject.nsysx_probe import changes
from nsysx.model import Finding, Summary
from nsysx.render import answer_words as answers
from nsysx.render import facts, finding_ids
from nsysx.render.answer_words import Worded
from nsysx.render.invocation import Invocation
from nsysx.render.render_bounds import (
    BRIEF_CARE,
    BRIEF_CARE_LETTERS,
    BRIEF_CAUSES,
    BRIEF_DO,
    BRIEF_NOT_RECORDED,
    BRIEF_PASTE_BYTES,
    BRIEF_PLACE,
    BRIEF_REASON,
    BRIEF_SENTENCE,
    BRIEF_WHAT,
    FIRST_PASTE_BYTES,
    LATER_DO,
    LATER_DO_WITH_CODE,
    LITTLE_ROOM,
    MOST_JSON_BYTES,
)
from nsysx.render.safe_text import clean, without_homes
from nsysx.render.small_json import Json, cut, fitted
from nsysx.trying import chosen_changes

BRIEF_SCHEMA = "nsysx.brief/2"


@dataclass(frozen=True)
class _Cause:
    """One cause: the finding at ``index`` of the Summary (None: advice about the capture), and what the answer has of it."""

    index: int | None
    action: Action | None = None
    also: Also | None = None


def answer_json(summary: Summary, invocation: Invocation | None = None, *, redact: bool = True) -> str:
    """Return the first answer of a Summary as JSON. Times are in ns; ``invocation`` says how its reports are typed."""
    worded = answers.build(summary, redact=redact)
    typed = invocation or Invocation(facts.report_name(summary), after="AFTER")
    return fitted(lambda room: _content(summary, worded, typed, redact, room))


def _content(summary: Summary, worded: Worded, typed: Invocation, redact: bool, room: float) -> Json:
    causes = _causes(summary)[: 1 if room < LITTLE_ROOM else BRIEF_CAUSES]
    ids = finding_ids.ids_of(summary)
    content: Json = {
        "schema": BRIEF_SCHEMA,
        "report": worded.facts[0],
        "limit": {"code": summary.verdict.code, "sentence": cut(worded.sentence, 60 + round(BRIEF_SENTENCE * room))},
        "step": _step(summary),
        "causes": [_cause(cause, summary, worded if n == 0 else None, ids, room) for n, cause in enumerate(causes)],
        "after": _step_after(worded, summary, room),
        "care": _care(summary, worded, room),
        "not_recorded": [
            {"what": cut(c.check, 60), "record_with": cut(_recording(c.fix, typed), 160)}
            for c in summary.quality
            if c.status == "missing" and c.fix
        ][: round(BRIEF_NOT_RECORDED * room)],
    }
    content = without_homes(content) if redact else content
    return {**content, "commands": _commands(summary, typed, ids, causes, room)}


#: A command in the words of a remedy.
_RUN = re.compile(r"nsysx run(?: --?[\w:-]+(?: \w+)?)*? -- CMD")


def _recording(fix: str, typed: Invocation) -> str:
    """Return the command in a remedy for what was not recorded, as it is typed; the remedy where there is none."""
    command = _RUN.search(fix)
    return typed.run(command[0].replace("nsysx run", "nsysx run -o AFTER", 1)) if command else fix


def _causes(summary: Summary) -> list[_Cause]:
    """Return the causes, each once: that of the main change, those of the changes before it, then what else was found."""
    causes = {action.finding: _Cause(action.finding, action) for action in summary.answer.do}
    main = summary.answer.do[-1]
    order = [_Cause(main.finding, main), *(c for index, c in causes.items() if index != main.finding)]
    return [*order, *(_Cause(line.finding, also=line) for line in summary.answer.also if line.finding not in causes)]


def _step(summary: Summary) -> Json:
    """Return the step, its bounds and how it is known; null with the rule that found no steps where there are none."""
    step = summary.step
    low, high = step.bounds_ns or (None, None)
    content: Json = {
        "now_ns": step.shown_ns,
        "low_ns": low,
        "high_ns": high,
        "source": step.known_by,
        "recorded_ns": step.recorded_ns,
        "steady_steps": 0 if step.shown_ns is None else sum(bool(r.get("steady")) for r in rows_of(summary.steps)),
    }
    return (
        content
        if step.shown_ns is not None
        else {**content, "reason": cut(summary.steps.rule or "no steps were found", 120)}
    )


def _step_after(worded: Worded, summary: Summary, room: float) -> Json:
    """Return the step once the first advice is followed, and how sure that is."""
    answer, loop = summary.answer, loop_worth.of_advised(summary)
    # Of a change between steps, which no step holds, the loop per step is told.
    of_loop = {} if loop is None else {"loop_now_ns": loop.now_ns, "loop_ns": loop.then_ns}
    return {
        **of_loop,
        "step_ns": answer.then_ns,
        "low_ns": answer.then_low_ns,
        "high_ns": answer.then_high_ns,
        "at_best_ns": answer.best_ns,
        "bound": answer.bound,
        "sure": worded.level,
        "reason": cut(worded.why, 60 + round(BRIEF_REASON * room)),
    }


def _cause(cause: _Cause, summary: Summary, worded: Worded | None, ids: list[str], room: float) -> Json:
    """Return one cause; the first has ``worded``: all that is to be done for it, in order."""
    finding: Finding | None = None if cause.index is None else (summary.findings or ())[cause.index]
    action, also = cause.action, cause.also
    if finding is None:
        what, where = summary.answer.worth, dict(action.where) if action else {}
    else:
        title = summary.step.marks_title(finding.title, as_recorded=finding.title_as_recorded)
        what, where = also.text if also else title, dict(action.where if action and action.where else finding.where)
    saving = None if finding is None else finding_ids.saving_of(summary, finding)
    paste = worded.paste if worded else action.paste if action else finding.paste if finding else ""
    advice = worded.do if worded else action.text if action else finding.fix if finding else ""
    conditions = action.conditions if action else finding.conditions if finding else ()
    # Code is shown as it is, never cut, or not at all.
    most = FIRST_PASTE_BYTES if worded is not None and room else BRIEF_PASTE_BYTES * room
    shown_paste = paste if paste and len(paste.encode()) <= most else None
    most_do = BRIEF_DO if worded else LATER_DO_WITH_CODE if shown_paste else LATER_DO
    content: Json = {
        "id": None if cause.index is None else ids[cause.index],
        "what": cut(what, 50 + round(BRIEF_WHAT * room)),
        "where": finding_ids.place_of(summary, where, 40 + round(BRIEF_PLACE * room)),
        "saving": saving and {name: value for name, value in saving.items() if value is not None},
        "do": cut(advice, 50 + round(most_do * room)),
        "paste": shown_paste,
        "conditions": finding_ids.states_of([c for c in conditions if c.state != "holds"]),
        "conditions_hold": sum(c.state == "holds" for c in conditions),
    }
    if saving is None and finding is not None:
        content["saving_unknown"] = cut(finding_ids.saving_reason(summary, finding), 120)
    if paste and shown_paste is None:
        content["paste_is"] = "in the insight"
    return content


def _care(summary: Summary, worded: Worded, room: float) -> list[str]:
    """Return what to beware of: what makes every number doubtful, what was tried, and a condition of the first advice."""
    texts = [*worded.alarms, *worded.tried[:1], *([f"Only if: {worded.condition}"] if worded.condition else [])]
    texts += [f"{s.about}: {s.reason}" for s in worded.sure if s.level == "unknown" and s.reason != worded.why]
    return [cut(text, 40 + round(BRIEF_CARE_LETTERS * room)) for text in texts[: max(1, round(BRIEF_CARE * room))]]


def _commands(
    summary: Summary, typed: Invocation, ids: list[str], causes: list[_Cause], room: float
) -> Mapping[str, Any]:
    """Return what to type next, by what it does; a command for CMD where the recorded program is not known."""
    first = next((ids[c.index] for c in causes if c.index is not None), None)
    worth: list[tuple[str, str]] = []
    if first is not None:
        worth.append(("insight", f"nsysx report REPORT --insight {_quoted(first)}"))
    can_try = chosen_changes.can_try_advice(summary.answer, summary.findings or (), changes.changes_by_name())
    if can_try:
        worth.append(("try", "nsysx try REPORT -- CMD"))
    if (record := _record_again(summary)) is not None:
        worth.append(("record", record))
    worth += [("table", "nsysx report REPORT --table findings")]
    if summary.replay is not None and not can_try:  # what can be measured need not be replayed
        worth.append(("whatif", "nsysx whatif REPORT"))
    commands: dict[str, str] = {}
    left = MOST_JSON_BYTES * (0.2 + 0.4 * room)
    for name, command in worth:
        typed_command = typed.run(command)
        left -= len(typed_command.encode()) + len(name) + 8
        if left > 0:
            commands[name] = typed_command
    return commands


def _record_again(summary: Summary) -> str | None:
    """Return the command that records what the answer lacks, None where it lacks nothing that another run gives."""
    asked = [s.command for s in summary.answer.certainty.parts] + list(summary.answer.ask_next)
    command = next((c for c in asked if c.startswith("nsysx run")), None)
    if command is None:
        return None
    command = command if " -- CMD" in command else f"{command} -- CMD"
    return command.replace("nsysx run", "nsysx run -o AFTER", 1)


def _quoted(name: str) -> str:
    return "'" + clean(name, 300).replace("'", "'\"'\"'") + "'"

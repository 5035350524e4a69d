"""One finding whole, as at most 2.5 kB of JSON: ``nsysx.insight/1``."""

from __future__ import annotations

from nsysx import units
from nsysx.inject.nsysx_probe import changes
from nsysx.model import Finding, Summary
from nsysx.render import facts, finding_ids
from nsysx.render.invocation import Invocation
from nsysx.render.render_bounds import (
    INSIGHT_DETAIL,
    INSIGHT_DO,
    INSIGHT_EVIDENCE,
    INSIGHT_OTHERS,
    INSIGHT_PASTE,
    INSIGHT_TEXT,
)
from nsysx.render.safe_text import without_homes
from nsysx.render.small_json import Json, cut, fitted
from nsysx.trying import chosen_changes
from nsysx.trying.trial_sentences import measured

INSIGHT_SCHEMA = "nsysx.insight/1"


def insight_json(summary: Summary, wanted: str, invocation: Invocation | None = None, *, redact: bool = True) -> str:
    """Return the finding with this id, or the first with this code. Raises NsysxError, exit code 2, if there is none.

    ``where`` is the place, ``saving`` what the change saves with its interval, ``conditions`` what it needs, as tested,
    ``remedies`` the names that ``nsysx try --change`` takes, ``tried`` what was measured of them, ``evidence`` rows behind it,
    and ``verify`` how to see that a change worked.
    """
    index = finding_ids.index_of(summary, wanted)
    typed = invocation or Invocation(facts.report_name(summary), after="AFTER")
    return fitted(lambda room: _content(summary, index, typed, redact, room))


def _content(summary: Summary, index: int, typed: Invocation, redact: bool, room: float) -> Json:
    finding, ids = (summary.findings or ())[index], finding_ids.ids_of(summary)
    saving = finding_ids.saving_of(summary, finding)
    scope = finding.scope or summary.steps.scope
    pastes = len(finding.paste.encode()) <= INSIGHT_PASTE * max(room, 0.3)
    content: Json = {
        "schema": INSIGHT_SCHEMA,
        "id": ids[index],
        "verdict": finding.verdict,
        "what": cut(summary.step.marks_title(finding.title, as_recorded=finding.title_as_recorded), 200),
        "detail": cut(finding.detail, 80 + round(INSIGHT_DETAIL * room)),
        "where": finding_ids.place_of(summary, finding.where, 40 + round(100 * room)),
        "over": scope.label if scope else "",
        "cost_ns_per_step": finding.cost_ns_per_step,
        "cost_as_recorded": finding.cost_as_recorded,
        "saving": saving,
        "saving_reason": cut(finding_ids.saving_reason(summary, finding), 60 + round(INSIGHT_TEXT * room)),
        "moves_to": finding.saving.moves_to and cut(finding.saving.moves_to, 100),
        "do": cut(finding.fix, 80 + round(INSIGHT_DO * room)),
        "paste": finding.paste if finding.paste and pastes else None,
        "only_if": cut(finding.condition, 60 + round(INSIGHT_TEXT * room)),
        "conditions": [
            {"name": cut(c.name, 80), "state": c.state, "detail": cut(c.detail, 30 + round(120 * room))}
            for c in finding.conditions
        ][: max(2, round(6 * room))],
        "remedies": [{"name": cut(r.name, 80), "refuted": r.refuted} for r in finding.remedies][:INSIGHT_OTHERS],
        "tried": [
            cut(measured(t), 60 + round(120 * room))
            for t in summary.tried
            if finding.code in t.codes and (t.verdict == "fails" or t.then_ns is not None)
        ][:INSIGHT_OTHERS],
        "overlaps": [ids[n] for n in finding.overlaps][: round(INSIGHT_OTHERS * room)],
        "evidence": [finding_ids.shown_value(row) for row in finding.evidence][: round(INSIGHT_EVIDENCE * room)],
        "evidence_rows": len(finding.evidence),
        "stop_if": _stop(finding, saving, summary.step.shown_ns),
    }
    content = without_homes(content) if redact else content
    return {**content, "commands": _commands(finding, typed)}


def _stop(finding: Finding, saving: Json | None, now: int | None) -> str:
    """Return the observation that shows that the change did not work."""
    if saving is None or now is None:
        return f"a report of the changed program still has {finding.code} here"
    if not saving["low_ns"]:
        return f"a step of the changed program is no shorter than {units.duration(now)}"
    return f"a step of the changed program takes more than {units.duration(now - saving['low_ns'])}"


def _commands(finding: Finding, typed: Invocation) -> Json:
    """Return the commands that try the change, and that record and compare the changed program."""
    if finding.verdict != "found":
        return {"explain": f"nsysx explain {finding.code}"}
    can_try = chosen_changes.remedies_to_try(finding, changes.changes_by_name())
    commands = {"explain": f"nsysx explain {finding.code}"}
    if can_try:
        commands["try"] = typed.run(f"nsysx try REPORT --change {can_try[0]} -- CMD")
    name = f" --change {finding.remedies[0].name}" if finding.remedies else ""
    if typed.program:
        commands["record_after"] = typed.run("nsysx run -o AFTER -- CMD")
        commands["compare"] = typed.run(f"nsysx compare REPORT AFTER.sqlite{name}")
    return commands

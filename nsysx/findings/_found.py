"""What a rule found, in its own words: one record, which is made a finding of the report in one place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from nsysx.advice import Condition
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import StepLimit
from nsysx.events.attribute import IN_STEP
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import SITE, Case
from nsysx.findings._fix import Fix, Need
from nsysx.findings._lines import line_of, line_of_phase
from nsysx.findings._long_step_lines import line_of_rare_calls
from nsysx.findings._names import near
from nsysx.findings._once import Claim, Takes, calls_that_launch, of_parts
from nsysx.findings._rule import Rule
from nsysx.findings._sent_objects import OWN_DATA, SENT, as_tensor, sends_objects, what_is_sent
from nsysx.model import Finding, Row
from nsysx.replay.engine import replayed_scope
from nsysx.saving import Saving


@dataclass(frozen=True)
class Found:
    """What a rule found. ``cost_ns`` is the GPU time lost per step, dropped when there are no steps; ``worth`` what the fix saves of it.

    ``because`` is appended to the detail, for a clock reading; ``title_as_recorded``: the title gives times as recorded. ``calls`` are the
    calls that it is about: a place outside of all modules, and without a line, is named after what lies beside them. ``takes``: the time
    that it is about, the idle time of its rule's parts if that is not given.
    """

    rule: Rule
    title: str
    detail: str
    worth: Saving = field(kw_only=True)
    cost_ns: int | None = field(kw_only=True)
    fix: str | Fix = field(kw_only=True)
    where: Row | None = field(kw_only=True, default=None)
    evidence: Iterable[Row] = field(kw_only=True, default=())
    because: str = field(kw_only=True, default="")
    title_as_recorded: bool = field(kw_only=True, default=False)
    calls: Iterable[int] = field(kw_only=True, default=())
    takes: Takes | None = field(kw_only=True, default=None)

    def as_finding(self, case: Case) -> Finding:
        """Return the finding of a report: within its step, with its place, what its fix needs, and the time of the steps that it claims.

        Code to paste uses PyTorch: a program without it gets none.
        """
        rule, worth, cost_ns = self.rule, self.worth, self.cost_ns
        if not case.stepless:  # each is of one step
            worth = worth.within(case.longest_step_ns)
        if cost_ns is not None:
            cost_ns = case.lost(cost_ns, worth, as_recorded=rule.cost_as_recorded)
        fix = self.fix if isinstance(self.fix, Fix) else Fix(self.fix)
        about = self.takes or (Takes(idle=of_parts(case.idle, rule.cause)) if rule.cause else Takes())
        where = self._site(case, about, fix)
        fix = _of_objects(case, where, fix) if rule.about in _OF_COPIES else fix
        finding = Finding(
            rule.code,
            rule.slug,
            verdict="found",
            title=self.title,
            detail=f"{self.detail} {self.because}".rstrip(),
            where=where,
            cost_ns_per_step=None if case.stepless else cost_ns,
            saving=replace(worth, scope=None if worth.likely_ns is None else replayed_scope(case.profile)),
            evidence=tuple(self.evidence),
            scope=case.covered,
            because=self.because,
            title_as_recorded=self.title_as_recorded,
            cost_as_recorded=rule.cost_as_recorded,
            stepless_ns=cost_ns if case.stepless else None,
            conditions=tuple(_tested(need, fix, case) for need in fix.needs),
        )
        finding = fix.into(finding, torch=case.program.torch)
        if finding.cost_ns_per_step is None or case.device is None or (self.takes is None and not rule.cause):
            return finding
        return Claim(**{f.name: getattr(finding, f.name) for f in fields(finding)}, takes=about, direct=rule.direct)

    def _site(self, case: Case, about: Takes, fix: Fix) -> dict[str, Any]:
        """Return the place. Where it names no line, that is the line that sets what the advice changes, or of the time that it is about.

        Without one, it is what lies beside its calls.
        """
        site = {k: v for k, v in (self.where or {}).items() if k in (*SITE, "near") and v is not None and v != IN_STEP}
        if not site.get("file"):
            site |= _set_at(case, fix)
        # The lines that an X-ray noted are those of usual steps.
        if self.rule.about not in ("capture", "slow steps") and not site.get("file"):
            site |= line_of(case.profile, site, self.calls, about)
            if not site.get("file"):
                site |= line_of_rare_calls(case, list(self.calls) or calls_that_launch(case.ops, about.ops))
            if site.get("phase") and not site.get("module") and not site.get("file"):
                site |= line_of_phase(case.profile, str(site["phase"]))
        if not any(site.get(k) for k in ("module", "file", "near")) and (beside := near(case.profile, self.calls)):
            site["near"] = beside
        return site


#: What rules are about that say something else of a line which sends Python objects to other ranks.
_OF_COPIES = (StepLimit.COPY, StepLimit.SYNC, StepLimit.COMM)


def _of_objects(case: Case, where: Row, fix: Fix) -> Fix:
    """Return what to do about copies, waits and communication of a line that sends Python objects to all ranks, of others the advice."""
    text = (
        text_of(texts(case.profile), where["file"], where["line"]) if where.get("file") and where.get("line") else None
    )
    if not sends_objects(text or ""):
        return fix
    sent = what_is_sent(case.profile, where["file"], where["line"])
    return {"batch": OWN_DATA, "plan": as_tensor(case.profile, where["file"], where["line"])}.get(sent, SENT)


#: What remedies change that are no line of the step: the names under which the settings hold where that is made or set.
_MADE = {
    **dict.fromkeys(("fused", "foreach", "groups-merged", "sparse-embeddings"), ("optimizer",)),
    **dict.fromkeys(
        ("loader-workers", "loader-workers-8", "loader-prefetch", "persistent-workers", "loader-once"),
        ("loader", "loop"),
    ),
    "batched-samples": ("samples", "loader", "loop"),
    "tf32": ("no_matmul_tf32",),
}


def _set_at(case: Case, fix: Fix) -> Row:
    """Return file and line of what the first remedy changes; empty where that is no setting, or not known."""
    settings, names = settings_of(case.profile), _MADE.get(fix.ways[0].name) if fix.ways else None
    return {} if settings is None or names is None else settings.place(*names)


def _tested(need: Need, fix: Fix, case: Case) -> Condition:
    """Return a need as tested on the capture; one that is violated and can be mended with what mending saves."""
    state, detail = need.test(case)
    if state != "violated" or not need.mend:
        return Condition(need.name, state, detail)
    alone = None if fix.mending is None else fix.mending.within(case.longest_step_ns).likely_ns
    return Condition(need.name, state, detail, need.mend, alone)

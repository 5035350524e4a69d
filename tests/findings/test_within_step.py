"""No finding saves more than a step takes, whatever the rule that computed it says."""

from __future__ import annotations

from pathlib import Path

from nsysx.findings._case import Case, Rule
from nsysx.pipeline import summarize
from nsysx.saving import Saving
from tests.findings.test_compilable import launch_bound


def test_a_saving_above_the_step_is_the_step(tmp_path: Path, monkeypatch: object) -> None:
    """As the larger batches of an RNN once claimed: 12.2 of 11.3 ms."""
    stepped: list[int] = []
    real = Case.found

    def more(case: Case, rule: Rule, title: str, detail: str, **options: object) -> object:
        stepped.append(case.step_ns)
        much = Saving(2 * case.step_ns, "far too much", bound=True, most_ns=3 * case.step_ns)
        return real(case, rule, title, detail, **{**options, "worth": much, "unblocked": much, "mended": much})  # type: ignore[arg-type]

    monkeypatch.setattr(Case, "found", more)  # type: ignore[attr-defined]
    findings = [f for f in summarize([launch_bound().write(tmp_path / "r.sqlite")]).findings if f.verdict == "found"]
    assert findings and stepped
    for finding in findings:
        saving = finding.saving
        assert saving.likely_ns == saving.most_ns == stepped[0]
        assert saving.mended is not None and saving.mended.likely_ns == saving.mended.most_ns == stepped[0]

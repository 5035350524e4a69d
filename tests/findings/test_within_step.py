"""No finding saves more than a step takes, whatever the rule that computed it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nsysx.findings._case import Case
from nsysx.findings._found import Found
from nsysx.model import Finding
from nsysx.saving import Saving
from tests.findings import said_of
from tests.findings.test_compilable import launch_bound


def test_a_saving_above_the_step_is_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the larger batches of an RNN once claimed: 12.2 of 11.3 ms."""
    stepped: list[int] = []
    real = Found.as_finding

    def more(found: Found, case: Case) -> Finding:
        stepped.append(case.step_ns)
        much = Saving(2 * case.step_ns, "far too much", bound=True, most_ns=3 * case.step_ns)
        return real(replace(found, worth=replace(much, mended=much)), case)

    monkeypatch.setattr(Found, "as_finding", more)
    findings = [f for f in said_of(launch_bound().write(tmp_path / "r.sqlite")) if f.verdict == "found"]
    assert findings and stepped
    for finding in findings:
        saving = finding.saving
        assert saving.likely_ns == saving.most_ns == stepped[0]
        assert saving.mended is not None and saving.mended.likely_ns == saving.mended.most_ns == stepped[0]

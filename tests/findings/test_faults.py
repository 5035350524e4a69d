"""The table of faults in the documents: what it names exists, and each of it is tested with the fault and without it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nsysx import findings
from nsysx.findings._costly import SETTINGS
from tests.findings.test_line_causes import CASES
from tests.findings.test_line_remedies import LINES
from tests.findings.test_nsx127_costly_settings import FAULTS, OF_JOBS

TABLE = Path(findings.__file__).parents[1] / "docs" / "faults.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TABLE.read_text(encoding="utf-8").splitlines()
    if re.match(r"\| \d", line)
]
SOURCES = {file: file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_*.py")}


def named(cell: str) -> list[str]:
    return [word.strip() for word in cell.split(",") if word.strip()]


def test_all_faults_are_there_once() -> None:
    assert [int(row[0]) for row in ROWS] == list(range(1, len(ROWS) + 1))
    assert len({row[1] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=[f"fault {row[0]}" for row in ROWS])
def test_a_fault_is_told_somewhere_or_says_why_not(row: list[str]) -> None:
    _, _, rules, settings, remedies, why_not = row
    assert rules or settings or remedies or why_not
    assert {*named(rules)} <= {str(rule.RULE.code) for rule in findings.rules()}
    assert {*named(settings)} <= {setting.name for setting in SETTINGS}
    assert {*named(settings)} <= {fault[0] for fault in FAULTS} | OF_JOBS | {
        s.name for s in SETTINGS if s.name.isupper()
    }
    # told by what is loaded, copied, counted or set, whatever the line calls
    in_steps = {"no-kernel-built-in-a-step", "callbacks-rarely", "weights-on-gpu", "scan-at-once"} | {
        told for *_, (told, _) in CASES
    }
    assert {*named(remedies)} <= {name for name, _ in LINES} | in_steps


@pytest.mark.parametrize("code", sorted({code for row in ROWS for code in named(row[2])}))
def test_each_rule_of_the_table_has_tests_that_find_it_and_tests_that_do_not(code: str) -> None:
    about = [text for file, text in SOURCES.items() if code in text and file != Path(__file__)]
    assert any('"found"' in text or "found(" in text or ".saving" in text for text in about), code
    assert any('"clear"' in text or "not in" in text or "cannot_tell" in text for text in about), code


def test_every_setting_is_in_the_table_of_faults_or_a_variable() -> None:
    told = {name for row in ROWS for name in named(row[3])}
    assert [s.name for s in SETTINGS if s.name not in told and not s.name.isupper()] == []

"""scripts/new_finding: the rule it writes is found and says that it is not written, its test is for the rule and fails."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from nsysx.findings._case import Rule

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "new_finding"


def load(name: str, path: Path) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))  # type: ignore[arg-type]
    loader.exec_module(module)
    return module


@pytest.fixture
def made(tmp_path: Path) -> list[Path]:
    for folder in ("nsysx", "tests"):
        (tmp_path / folder / "findings").mkdir(parents=True)
    return load("new_finding", SCRIPT).main("NSX999", "slow-thing", tmp_path)


def test_it_writes_a_rule_that_can_be_loaded_and_a_test(made: list[Path]) -> None:
    rule = load("nsx999_slow_thing", made[0])
    assert Rule("NSX999", "slow-thing", "Slow thing") == rule.RULE
    assert "What it means" in rule.__doc__ and callable(rule.check)
    test = load("test_nsx999_slow_thing", made[1])
    assert test.CODE == "NSX999" and callable(test.test_it_is_found)


@pytest.mark.parametrize(
    ("code", "slug"), [("NSX1", "a"), ("NSX130", "Bad Slug"), ("NSX130", "../x"), ("NSX101", "taken")]
)
def test_bad_and_taken_names_are_refused(code: str, slug: str) -> None:
    with pytest.raises(SystemExit, match="new_finding: "):
        load("new_finding", SCRIPT).main(code, slug)

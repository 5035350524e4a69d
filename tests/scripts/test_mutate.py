"""The changes that scripts/mutate makes: where they may be, that they compile, and that a test that fails kills them."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "mutate"

CODE = '''"""A module."""
LIMIT = 2
SEVEN = max(3, 7)


class Row:
    width: int = 1


def chosen(values: list[int], least: int) -> int:
    if len(values) > 1 and least < 5:
        return max(values[0], least) - swap(values, least)
    return 3


def end(pid: int) -> None:
    if pid > 0:
        os.kill(pid, 9)
'''


@pytest.fixture(scope="module")
def mutate() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("mutate", str(SCRIPT))
    spec = importlib.util.spec_from_loader("mutate", loader)
    assert spec
    module = sys.modules["mutate"] = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_what_is_changed(mutate: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_text(CODE)
    changes = mutate.Source(path).changes()
    assert [(c.line, c.old, c.new) for c in changes if c.kind == "operator"] == [
        (11, ">", "<"), (11, "1", "2"), (11, "and", "or"), (11, "<", ">"), (12, "max", "min"), (12, "-", "+"),
        (12, "values, least", "least, values"), (13, "3", "4"),
    ]  # fmt: skip
    both = "len(values) > 1 and least < 5"
    assert [(c.line, c.old, c.new, c.kind) for c in changes if c.kind != "operator"] == [
        (2, "2", "4", "table"), (3, "3", "6", "table"), (3, "7", "14", "table"), (11, both, "(least < 5)", "condition"),
        (11, both, "(len(values) > 1)", "condition"),
    ]  # fmt: skip
    for change in changes:
        ast.parse(CODE.encode()[: change.start] + change.new.encode() + CODE.encode()[change.end :])


FRAMES = """
_CAUSES = ("alloc", "free", "load")
COLUMNS = ("name", "ns")
_SHARES = {"few": (0.5, 8)}


def longest(frame, profile):
    kept = frame.filter(frame["process"] == profile.process).sort("ns", "name", descending=True)
    rows = kept.sort("ns", "name", descending=[True, False]).first()
    return sorted(profile.steady_calls, reverse=True), (rows["own"] & rows["late"]).any()
"""


def test_filters_orders_populations_and_tables_are_changed(mutate: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_text(FRAMES)
    changes = mutate.Source(path).changes()
    filtered = 'frame.filter(frame["process"] == profile.process)'
    assert [(c.kind, c.old, c.new) for c in changes if c.kind != "operator"] == [
        ("table", '"alloc", ', ""), ("table", '"free", ', ""), ("table", ', "load"', ""),
        ("table", "0.5", "1.0"), ("table", "0.5, ", ""), ("table", ", 8", ""), ("table", "8", "16"),
        ("filter", filtered, "(frame)"), ("order", '"ns", ', ""), ("order", "True", "False"),
        ("order", "True", "False"), ("population", "first", "last"),
        ("population", "steady_calls", "calls"), ("order", "True", "False"),
        ("condition", 'rows["own"] & rows["late"]', '(rows["late"])'), ("condition", 'rows["own"] & rows["late"]', '(rows["own"])'),
        ("population", "any", "all"),
    ]  # fmt: skip
    for change in changes:
        ast.parse(FRAMES.encode()[: change.start] + change.new.encode() + FRAMES.encode()[change.end :])


def test_the_tests_that_import_a_file_come_first(mutate: ModuleType) -> None:
    lanes = next(c for c in mutate.Source(mutate.PACKAGE / "export" / "lanes.py").changes())
    assert mutate.ordered(lanes)[0] == "tests/export/test_lanes.py"


def test_quick_tests_that_call_the_changed_function_come_first(mutate: ModuleType) -> None:
    change = next(c for c in mutate.Source(mutate.PACKAGE / "export" / "lanes.py").changes())
    first, last = mutate.function_of(change)
    assert first <= change.line <= last
    here, elsewhere = f"nsysx/export/lanes.py:{first}", f"nsysx/export/lanes.py:{last + 1}"
    noted = {
        "slow": (30.0, [here]),
        "other": (0.1, [elsewhere]),
        "middle": (9.0, [here]),
        "quick": (0.5, [elsewhere, here]),
    }
    calls = {test: mutate.TestCalls(*values) for test, values in noted.items()}
    assert mutate.batches(change, calls) == [["quick", "middle"], ["slow"], ["other"]]
    assert mutate.batches(change, {}) == [mutate.ordered(change)]


def test_every_room_has_changes_and_tests_and_a_seed_chooses_the_same(mutate: ModuleType) -> None:
    assert mutate.chosen(["frames"], 2, 1) == mutate.chosen(["frames"], 2, 1) != mutate.chosen(["frames"], 2, 2)
    first = mutate.chosen([], 2, 1)
    rooms = {path.name for path in mutate.PACKAGE.iterdir() if (path / "__init__.py").is_file()} | {
        "pipeline",
        "inject",
    }
    assert rooms <= {change.room for change in first}
    assert all(Path(mutate.ROOT / test).is_file() for change in first for test in mutate.ordered(change))


def test_a_change_is_killed_by_a_test_that_fails_with_it_alone(
    mutate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package, tests = tmp_path / "nsysx", tmp_path / "tests"
    package.mkdir()
    tests.mkdir()
    (package / "__init__.py").touch()
    (package / "m.py").write_text("def f(a, b):\n    return a - b\n\n\ndef g(a):\n    return a + b\n")
    (tests / "test_m.py").write_text("from nsysx.m import f\n\n\ndef test_f():\n    assert f(3, 1) == 2\n")
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    monkeypatch.setattr(mutate, "PACKAGE", package)
    monkeypatch.setattr(
        mutate, "tracked", lambda: ["nsysx/__init__.py", "nsysx/m.py", "tests/test_m.py", "pyproject.toml"]
    )
    survivors = mutate.run(mutate.Source(package / "m.py").changes(), 1, 100)
    assert [(c.line, c.old) for c in survivors] == [(6, "+")]
    # Tests that fail without a change hide none that another test notices.
    (tests / "test_m.py").write_text(
        "from nsysx.m import f\n\n\ndef test_broken():\n    assert False\n\n\ndef test_f():\n    assert f(3, 1) == 2\n"
    )
    (tests / "test_m_gone.py").write_text("from nsysx.m import gone\n")
    monkeypatch.setattr(
        mutate,
        "tracked",
        lambda: ["nsysx/__init__.py", "nsysx/m.py", "tests/test_m.py", "tests/test_m_gone.py", "pyproject.toml"],
    )
    capsys.readouterr()
    survivors = mutate.run(mutate.Source(package / "m.py").changes(), 1, 100)
    assert [(c.line, c.old) for c in survivors] == [(6, "+")]
    printed = capsys.readouterr().out
    assert printed.count("left out") == 2 and "UNKNOWN" not in printed
    assert "tests/test_m.py::test_broken" in printed and "tests/test_m_gone.py\n" in printed

"""A test that fails beside others and passes alone is named; what fails alone, too, fails the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "pytest_steady"
#: Each test fails as often as its parameter says, and passes from then on.
TESTS = """
import pathlib, pytest

@pytest.mark.parametrize(("name", "times"), {failing})
def test_it(name, times):
    count = pathlib.Path(__file__).with_name(name)
    before = len(count.read_text()) if count.exists() else 0
    count.write_text("x" * (before + 1))
    assert before >= times

def test_good():
    pass
"""


def ran(folder: Path, text: str, *options: str) -> tuple[int, str]:
    (folder / "test_some.py").write_text(text)
    done = subprocess.run([sys.executable, SCRIPT, "-q", *options], cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout


@pytest.mark.parametrize("options", [(), ("-n", "2")])
@pytest.mark.parametrize(
    ("failing", "code"),
    [
        ([("a b", 0)], 0),
        ([("a b", 1), ("c", 1), ("d", 1)], 0),
        ([("a b", 1), ("c", 2)], 1),
        ([("a b", 3)], 1),
        ([("a b", 1), ("c", 1), ("d", 1), ("e", 1)], 1),
    ],
    ids=["none", "once", "twice", "always", "too many"],
)
def test_only_what_passes_twice_alone_is_let_pass(tmp_path: Path, failing, code, options) -> None:
    left, text = ran(tmp_path, TESTS.format(failing=failing), *options)
    assert left == code, text
    unsteady = text.partition("UNSTEADY")[2]
    assert unsteady.count("test_some.py::test_it[") == (len(failing) if code == 0 and failing[0][1] else 0)
    assert "test_good" not in text.partition("Failed beside")[2], "what passed is not run again"


def test_files_that_cannot_be_read_and_wrong_options_fail(tmp_path: Path) -> None:
    assert ran(tmp_path, "import nothing_of_this_name")[0] == pytest.ExitCode.INTERRUPTED
    assert ran(tmp_path, "import nothing_of_this_name", "-n", "2")[0] == pytest.ExitCode.TESTS_FAILED
    assert ran(tmp_path, TESTS.format(failing=[]), "--no-such-option")[0] == pytest.ExitCode.USAGE_ERROR

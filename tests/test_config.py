"""Options that a folder keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.comparing.test_commands import call
from tests.reports import training

Capsys, Patch = pytest.CaptureFixture[str], pytest.MonkeyPatch


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    training(6).write(tmp_path / "r.sqlite")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nsysx.toml", "[report]\nfull = true\ntop = 1\n"),
        ("pyproject.toml", "[tool.nsysx.report]\nfull = true\ntop = 1\n"),
    ],
)
def test_a_file_gives_options_and_says_so(
    folder: Path, capsys: Capsys, monkeypatch: Patch, name: str, text: str
) -> None:
    plain = call(capsys, monkeypatch, "report", "r.sqlite")[1]
    full = call(capsys, monkeypatch, "report", "r.sqlite", "--full", "--top", 1)[1]
    (folder / name).write_text(text)
    code, out, err = call(capsys, monkeypatch, "report", "r.sqlite")
    assert (code, out, err) == (0, full, "")
    assert out != plain
    code, out, err = call(capsys, monkeypatch, "-v", "report", "r.sqlite")
    assert out == full
    assert err == f"nsysx: report --full from {name}\nnsysx: report --top 1 from {name}\n"


def test_what_is_typed_counts_more(folder: Path, capsys: Capsys, monkeypatch: Patch) -> None:
    typed = call(capsys, monkeypatch, "report", "r.sqlite", "--steps", "2:4", "--json", "-")[1]
    (folder / "nsysx.toml").write_text('[report]\nsteps = "1:3"\n')
    kept = call(capsys, monkeypatch, "report", "r.sqlite", "--json", "-")[1]
    assert kept != typed
    assert call(capsys, monkeypatch, "report", "r.sqlite", "--steps", "2:4", "--json", "-")[1] == typed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[report]\nforce = true\n", "only the command line may set this"),
        ("[run]\nnsys = '/tmp/evil'\n", "only the command line may set this"),
        ("[report]\nhtml = 'x.html'\n", "only the command line may set this"),
        ("[report]\ncluster = 'tcp://evil:8786'\n", "only the command line may set this"),
        ("[check]\njunit = 'x.xml'\n", "only the command line may set this"),
        ("[export]\nperfetto = 'x'\n", "only the command line may set this"),
        ("[doctor]\nto = 'x'\n", "only the command line may set this"),
        ("[try]\nforce = true\n", "only the command line may set this"),
        ("[run]\nnsys-arg = ['--x']\n", "only the command line may set this"),
        ("[report]\nzork = 1\n", "no such option"),
        ("[zork]\n", "is not a command"),
        ("report = 1\n", "is not a command"),
        ("[report\n", "is not TOML"),
    ],
)
def test_what_a_file_may_not_say(folder: Path, capsys: Capsys, monkeypatch: Patch, text: str, said: str) -> None:
    (folder / "nsysx.toml").write_text(text)
    code, out, err = call(capsys, monkeypatch, "report", "r.sqlite")
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_folder_without_options_costs_nothing(folder: Path, capsys: Capsys, monkeypatch: Patch) -> None:
    (folder / "pyproject.toml").write_text("[tool.other\n")
    assert call(capsys, monkeypatch, "report", "r.sqlite")[0] == 0


def test_completion(tmp_path: Path) -> None:
    import os
    import subprocess
    import sys

    root = Path(__file__).resolve().parents[1]
    words = {"_NSYSX_COMPLETE": "complete_bash", "COMP_WORDS": "nsysx rep", "COMP_CWORD": "1", "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-m", "nsysx"], env={**os.environ, **words}, capture_output=True, text=True, timeout=600
    )
    assert done.stdout.split() == ["report"]

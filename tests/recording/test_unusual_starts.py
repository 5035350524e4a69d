"""Commands and environments that are typed by chance: nsysx runs the command as it is, or says in a line what was meant."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from nsysx.recording.find_nsys import find_nsys
from tests.recording.test_capture import FakeNsys
from tests.test_cli import nsysx

PYTHON = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.fixture
def fake(tmp_path: Path) -> FakeNsys:
    return FakeNsys(tmp_path / "fake")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "train.py").write_text("print('trained')\n")
    return tmp_path / "here"


def test_the_nsys_of_this_folder_is_not_that_on_the_path(
    fake: FakeNsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = FakeNsys(tmp_path / "other", "2023.1.1")
    monkeypatch.setenv("PATH", f"{other.folder}:{os.environ['PATH']}")
    monkeypatch.chdir(fake.folder)
    assert find_nsys(Path("./nsys")).path == fake.path
    monkeypatch.chdir(tmp_path)
    assert find_nsys(Path("nsys")).path == other.path


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        (["python train.py"], "nsysx run -- python train.py"),
        (["python train.py", "--lr", "3"], "nsysx run -- python train.py --lr 3"),
        (["STEPS=5", "python", "train.py"], "nsysx run -- env STEPS=5 python train.py"),
        (["STEPS=5 python train.py"], "nsysx run -- env STEPS=5 python train.py"),
        (["HF_TOKEN=abc", "python"], "nsysx run -- env 'HF_TOKEN=***' python"),
    ],
)
def test_what_only_a_shell_would_take_is_said(here: Path, fake: FakeNsys, command: list[str], meant: str) -> None:
    done = nsysx("run", "--nsys", fake.path, "--", *command, cwd=here, env=PYTHON)
    assert done.returncode == 127
    assert done.stderr.rstrip().endswith(meant), done.stderr


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [("", 2, "it names no file"), ("/dev/null", 125, "-o /dev/null: is a device or a pipe, not a name for files")],
)
def test_a_name_of_results_that_is_none(here: Path, fake: FakeNsys, name: str, code: int, said: str) -> None:
    done = nsysx(
        "run", "--no-report", "--nsys", fake.path, "-o", name, "--", "python", "train.py", cwd=here, env=PYTHON
    )
    assert done.returncode == code and said in done.stderr
    assert sorted(p.name for p in here.iterdir()) == ["train.py"] and done.stdout == ""


@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"},
        {"PYTHONINSPECT": "1"},
        {"PYTHONPATH": "."},
        {"TMPDIR": "temporary"},
    ],
    ids=lambda e: next(iter(e)),
)
def test_an_environment_that_is_not_meant_for_nsysx(here: Path, fake: FakeNsys, environment: dict[str, str]) -> None:
    """The command runs, its output is its own, and the results are there."""
    (here / "temporary").mkdir()
    for name in ("typer", "rich", "json"):
        (here / f"{name}.py").write_text("raise RuntimeError('this is of the program')\n")
    script = "tr\u00e4nen.py"
    (here / script).write_text("print('trained')\n")
    path = os.pathsep.join(filter(None, (environment.get("PYTHONPATH"), str(Path(__file__).parents[2]))))
    words = ("run", "--no-report", "--no-probe", "--nsys", fake.path, "-o", "r", "--", sys.executable, "-I", script)
    done = nsysx(*words, cwd=here, env={**PYTHON, **environment, "PYTHONPATH": path})
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "Traceback" not in done.stderr and ">>>" not in done.stderr
    assert json.loads((here / "r.run.json").read_text())["command"][2] == script

"""Starts of Python that the probe meets by chance: old interpreters, other ones, environments that are put together.

Every interpreter that this machine has is asked (``python3.9`` on PATH, those of pyenv); what Python 2 can read is checked
without one, too.
"""

from __future__ import annotations

import ast
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.inject.test_probe_e2e import INJECT, TRAIN, compare, environment, full, probe_files, profile

#: The oldest Python in which the bootstrap runs; before it, only sitecustomize.py is read.
OLDEST = (3, 9)
WANTED = ((2, 7), (3, 6), (3, 7), (3, 8), (3, 9), (3, 10), (3, 11), (3, 12), (3, 13), (3, 14))


@functools.cache
def interpreters() -> dict[tuple[int, int], str]:
    """Return the interpreters of this machine by version: those that start."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {}
    for version in WANTED:
        dotted = ".".join(map(str, version))
        candidates = [*sorted(map(str, pyenv.glob(f"{dotted}.*/bin/python"))), shutil.which(f"python{dotted}")]
        for path in filter(None, candidates):
            asked = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
            if subprocess.run(asked, capture_output=True, text=True).stdout.strip() == dotted:
                found[version] = path
                break
    found[sys.version_info[:2]] = sys.executable
    return found


OWN = """
from __future__ import print_function
import sys
sys.own = __name__
print("own", sorted(n for n in globals() if not n.startswith("__")))
"""
CHILD = """
from __future__ import print_function
import sys
print(getattr(sys, "own", None), sys.path[1:], "sitecustomize" in sys.modules, sys.flags.optimize)
import sitecustomize
print(sitecustomize.__name__)
"""


@pytest.mark.parametrize("version", WANTED, ids=lambda v: ".".join(map(str, v)))
def test_any_python_starts_as_it_did(tmp_path: Path, version: tuple[int, int]) -> None:
    """Same output with the user's sitecustomize as without us; from 3.9 on the probe's file says what was met."""
    python = interpreters().get(version)
    if python is None:
        pytest.skip(f"no Python {version[0]}.{version[1]} on this machine")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text(OWN)
    (tmp_path / "child.py").write_text(
        CHILD.replace("sys.path[1:]", f"[p for p in sys.path[1:] if {str(INJECT)!r} != p]")
    )
    done, files = compare(tmp_path, [python, "child.py"], PYTHONPATH=str(tmp_path / "own"), PYTHONDONTWRITEBYTECODE="1")
    assert done.stdout.startswith("own ['print_function', 'sys']\nsitecustomize ")
    assert done.stderr == ""
    assert [f["reason"] for f in files.values()] == (["torch was not imported"] if version >= OLDEST else [])
    # With none of one's own, and one that fails to import something.
    (tmp_path / "own" / "sitecustomize.py").write_text("import there_is_no_such_module\n")
    compare(tmp_path, [python, "-c", "print(1)"], PYTHONPATH=str(tmp_path / "own"), PYTHONDONTWRITEBYTECODE="1")
    compare(tmp_path, [python, "-c", "print(1)"], PYTHONDONTWRITEBYTECODE="1")


@pytest.mark.parametrize("version", [v for v in WANTED if v >= OLDEST], ids=lambda v: ".".join(map(str, v)))
def test_every_part_of_the_probe_is_read_by_any_python_that_runs_it(tmp_path: Path, version: tuple[int, int]) -> None:
    """Where there is no torch for a Python here, the parts are at least imported, as arming would."""
    python = interpreters().get(version)
    if python is None:
        pytest.skip(f"no Python {version[0]}.{version[1]} on this machine")
    names = sorted(f"nsysx_probe.{p.stem}" for p in (INJECT / "nsysx_probe").glob("*.py"))
    assert len(names) > 20
    code = f"import sys; sys.path.insert(0, {str(INJECT)!r}); [__import__(n) for n in {names}]; print(len({names}))"
    done = subprocess.run([python, "-W", "error", "-B", "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{len(names)}\n", "")


def test_sitecustomize_is_written_for_python_2() -> None:
    """What an old Python would not read would be a traceback at the start of each of the user's children."""
    source = (INJECT / "sitecustomize.py").read_text(encoding="ascii")
    newer = (
        ast.JoinedStr, ast.FormattedValue, ast.AnnAssign, ast.NamedExpr, ast.Nonlocal, ast.Starred, ast.YieldFrom, ast.Await,
        ast.AsyncFunctionDef, ast.MatMult, ast.Match, ast.ImportFrom, ast.With, ast.ClassDef,
    )  # fmt: skip
    for node in ast.walk(ast.parse(source)):
        assert not isinstance(node, newer), f"line {getattr(node, 'lineno', '?')}: {type(node).__name__}"
        if isinstance(node, ast.FunctionDef):
            assert not node.returns
            assert not node.args.kwonlyargs
        if isinstance(node, ast.Raise):
            assert node.cause is None
        if isinstance(node, ast.Call):
            assert getattr(node.func, "id", "") != "print"


def made_environment(tmp_path: Path, pth: str) -> str:
    """Make an environment with a prefix of its own that finds this one's packages by a .pth file; return its Python."""
    prefix = tmp_path / "prefix"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
    (site,) = (prefix / "lib").glob("python*/site-packages")
    packages = next(p for p in sys.path if p.endswith("site-packages"))
    (site / "early.pth").write_text(f"{packages}\n{pth}\n")
    return str(prefix / "bin" / "python")


def test_torch_that_is_imported_before_any_sitecustomize(tmp_path: Path) -> None:
    """A .pth file may import torch (coverage tools and cluster set-ups do): it is there when the probe comes."""
    nsys = os.environ["NSYSX_TEST_NSYS"]
    python = made_environment(tmp_path, "import torch")
    (tmp_path / "train.py").write_text(TRAIN)
    run = profile(nsys, tmp_path, [python, "train.py"])
    assert run.code == 0, run.err
    full(run)
    run.check()


def test_an_environment_without_nvtx_says_so_or_uses_torchs(tmp_path: Path) -> None:
    """An environment of its own, as of conda, with a torch but no nvtx that could be imported."""
    python = made_environment(tmp_path, "import sys; sys.modules['nvtx'] = None")
    (tmp_path / "train.py").write_text(TRAIN)
    env = environment(tmp_path, NSYSX_FORCE="1")
    done = subprocess.run([python, "train.py"], cwd=tmp_path, env=env, text=True, capture_output=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    (file,) = probe_files(tmp_path).values()
    assert file["backend"] in ("torch", "off")
    assert "nvtx: ModuleNotFoundError" in file["reason"]


@pytest.mark.parametrize("version", [v for v in WANTED if v >= OLDEST], ids=lambda v: ".".join(map(str, v)))
def test_counts_are_read_without_a_warning(version: tuple[int, int]) -> None:
    """3.12 warns of whoever copies or pickles a counter, and 3.14 refuses: a count that cannot be read is no facts at all."""
    python = interpreters().get(version)
    if python is None:
        pytest.skip(f"no Python {version[0]}.{version[1]} on this machine")
    code = (
        f"import sys; sys.path.insert(0, {str(INJECT)!r}); from nsysx_probe import output as o\n"
        "out = o.Output(None, {}, lambda: None)\nfor _ in range(3): next(out.counts['step'])\nprint(out.counted()['step'])"
    )
    done = subprocess.run([python, "-W", "error", "-B", "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("3\n", "")

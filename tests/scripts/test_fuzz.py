"""A few fixed mutants on every run, and that the fuzzer finds what it looks for. By hand: scripts/fuzz --mutants 100000."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests import reports

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts" / "fuzz"


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("fuzz", str(SCRIPT))
    spec = importlib.util.spec_from_loader("fuzz", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reports.training(3).write(tmp_path_factory.mktemp("fuzz") / "r.sqlite")


@pytest.mark.parametrize("number", range(0, 24, 2))
def test_a_mutant_is_reported_or_refused(fuzz: ModuleType, report: Path, tmp_path: Path, number: int) -> None:
    path, done = fuzz.make([report], 3, number, tmp_path)
    end, what = fuzz.examine(path, thorough=number % 6 == 0)
    assert end in ("reported", "refused"), (what, done)


def test_the_same_seed_makes_the_same_mutant(fuzz: ModuleType, report: Path, tmp_path: Path) -> None:
    path, done = fuzz.make([report], 3, 7, tmp_path)
    content = path.read_bytes()
    assert fuzz.make([report], 3, 7, tmp_path)[1] == done
    assert path.read_bytes() == content


def test_wrong_totals_are_found(fuzz: ModuleType, report: Path) -> None:
    totals = {"kernels": 12, "kernel_ns": 1, "api_calls": None}
    trace = SimpleNamespace(left_out=())
    assert fuzz.wrong_totals(SimpleNamespace(totals=totals | {"kernels": 11}), trace, report).startswith("kernels: 11")
    assert fuzz.wrong_totals(SimpleNamespace(totals=totals), trace, report).startswith("kernel_ns: 1 ")


def test_what_is_alive_is_found(fuzz: ModuleType) -> None:
    assert fuzz.alive("page", "<p><img src=x onerror=alert('fuzz')>")
    assert fuzz.alive("csv", "name\r\n=HYPERLINK(fuzz)\r\n")
    assert fuzz.alive("terminal", "\x1b[31mfuzz")
    assert not fuzz.alive("page", "&lt;img src=x onerror=alert('fuzz')&gt;")

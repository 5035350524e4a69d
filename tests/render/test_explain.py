"""``nsysx explain``: plain words for a CUDA call or a word of a report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nsysx import findings
from nsysx.cli.explain import explain as explain_command
from nsysx.render import dictionary, glossary

ROOT = Path(__file__).resolve().parents[2]


def explain(*names: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nsysx", "explain", *names], capture_output=True, text=True, check=False, cwd=ROOT
    )


def test_calls_and_words_are_explained_in_order() -> None:
    done = explain("cudaHostAlloc", "backlog")
    assert done.returncode == 0
    assert done.stdout.index("cudaHostAlloc") < done.stdout.index("\nbacklog")
    assert "Cheaper:" in done.stdout
    assert not done.stderr


@pytest.mark.parametrize(
    "name", ["cudaLaunchKernel_v7000", "cudalaunchkernel", "cuLaunchKernel", " cudaLaunchKernel_ptsz"]
)
def test_names_as_reports_spell_them(name: str) -> None:
    entry = glossary.lookup(name)
    assert entry is not None
    assert entry.name == "cudaLaunchKernel"


def test_a_misspelt_name_is_met_with_its_neighbors() -> None:
    done = explain("cudaHostAloc")
    assert done.returncode == 2
    assert not done.stdout
    assert done.stderr.startswith("nsysx: error: 'cudaHostAloc' is unknown. Near: cudaHostAlloc")
    assert len(done.stderr.splitlines()) == 1


def test_nonsense_is_one_line_too() -> None:
    done = explain("\x1b[31m" + "zq" * 500)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "\x1b" not in done.stderr
    assert len(done.stderr) < 300


def test_without_a_name_all_names_are_listed() -> None:
    done = explain()
    assert done.returncode == 0
    rules = findings.rules()
    lines = done.stdout.split("\n")[:-1]
    assert [line.split()[0] for line in lines[: len(rules)]] == [rule.RULE.code for rule in rules]
    tables = [*dictionary.TEXTS, *dictionary.keys()]
    assert {"definitions", "recording", "accuracy", "columns"} <= set(dictionary.TEXTS)
    assert lines[len(rules) :] == [*(entry.name for entry in glossary.entries()), *tables]


def test_a_table_is_explained_by_its_declarations() -> None:
    done = explain("waits")
    assert done.returncode == 0
    assert "saving_ns" in done.stdout and "Covers: sums over the steady steps" in done.stdout


@pytest.mark.parametrize("name", ["NSX101", "nsx101", "hidden-sync"])
def test_the_manual_of_a_finding_is_printed(name: str) -> None:
    done = explain(name)
    assert done.returncode == 0
    assert done.stdout.startswith("NSX101 hidden-sync: ")
    assert "Harmless when" in done.stdout


@pytest.mark.parametrize("entry", glossary.entries(), ids=lambda e: e.name)
def test_every_manual_fits_a_terminal(entry: glossary.GlossaryEntry) -> None:
    text = glossary.manual(entry)
    assert entry.what.split()[0] in text
    assert all(len(line) <= 100 for line in text.splitlines()[1:])


@pytest.mark.parametrize(
    "typed",
    [
        "launch latency", "queue", "GPU-bound", "straggler", "NCCL", "GIL", "waiting for kernel launches", "at best", "critical path",
        "slurm", "ray", "fork", "spawn", "docker", "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES", "ERR_NVGPUCTRPERM", "perf_event_paranoid",
        "No CUDA events collected", "CUPTI multiple subscribers", "cause certain", "size likely", "SURE", "overlaps with", "replay error",
        "pageable", "First to fix", "WORTH", "DO", "host code", "Not all CUDA events might have been collected",
    ],
)  # fmt: skip
def test_what_people_type_is_explained_without_quotes(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    explain_command(typed.split())
    text = capsys.readouterr().out
    assert len(text.splitlines()) >= 2
    assert text.count("\n\n") == 0, "it is one name"


def test_several_names_stay_several(capsys: pytest.CaptureFixture[str]) -> None:
    explain_command(["GIL", "queue"])
    text = capsys.readouterr().out
    assert text.index("GIL") < text.index("\n\nqueue time")


def test_a_message_has_its_cause_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    explain_command(["Could not parse 2 CUPTI activity records."])
    text = " ".join(capsys.readouterr().out.split())
    assert "2 activity records" in text and "What to do: record with a newer nsys" in text

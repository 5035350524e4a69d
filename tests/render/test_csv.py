"""CSV: exact numbers, and no text that a spreadsheet would run."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nsysx.render import csv_text
from tests.builder import case_a
from tests.render import factory

ROOT = Path(__file__).parents[2]


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_numbers_are_exact_and_null_is_empty():
    columns = [
        factory.col("name", "String"),
        factory.col("a_ns"),
        factory.col("share", "Float64"),
        factory.col("parts", "Object"),
    ]
    rows = [
        {"name": 'x, "y"', "a_ns": -(2**53) - 1, "share": 0.1, "parts": {"sync": 3}},
        {"name": None, "a_ns": None, "share": None, "parts": None},
    ]
    first, second = read(csv_text.render(factory.table("t", "T", columns, rows)))
    assert first == {"name": 'x, "y"', "a_ns": "-9007199254740993", "share": "0.1", "parts": '{"sync": 3}'}
    assert set(second.values()) == {""}


def test_hostile_names_stay_text():
    columns = [factory.col("name", "String"), factory.col("count")]
    rows = [{"name": name, "count": i} for i, name in enumerate(factory.HOSTILE)]
    text = csv_text.render(factory.table("t", "T", columns, rows))
    found = read(text)
    assert [int(row["count"]) for row in found] == list(range(len(rows)))
    assert not [c for c in text if c < " " and c not in "\r\n"]
    assert all(not row["name"].lstrip().startswith(("=", "+", "-", "@")) for row in found)
    assert "'=cmd|'/c calc'!A1" in text
    assert max(len(row["name"]) for row in found) <= 32_767


@pytest.mark.parametrize(
    "start",
    [
        "=1+1",
        "+1",
        "-1",
        "@sum",
        " =1",
        "\t=1",
        "\r=1",
        "\n=1",
        "\u00a0=1",
        "\u200b=1",
        " \u2003+1",
        "\uff1d1+1",
        " \uff20sum",
    ],
)
def test_what_a_spreadsheet_takes_for_a_formula_is_quoted(start):
    table = factory.table("t", "T", [factory.col("name", "String")], [{"name": start}])
    assert read(csv_text.render(table))[0]["name"].startswith("'")


def nsysx(*words, cwd) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nsysx", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_the_command_writes_one_file_per_table_and_overwrites_nothing(tmp_path):
    case_a().write(tmp_path / "a.sqlite")
    done = nsysx("report", "a.sqlite", "--csv", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "DO  " in done.stdout  # the answer is printed whatever is written
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"kernels.csv", "waits.csv", "gpu_ledger.csv"} <= files
    assert "memory.csv" not in files  # not recorded: no file that could be taken for an empty answer
    kernels = read((tmp_path / "out" / "kernels.csv").read_text(encoding="utf-8"))
    assert sum(int(row["count"]) for row in kernels) == 210
    before = (tmp_path / "out" / "kernels.csv").stat().st_mtime_ns
    again = nsysx("report", "a.sqlite", "--csv", "out", cwd=tmp_path)
    assert again.returncode == 2
    assert "exists already" in again.stderr
    assert (tmp_path / "out" / "kernels.csv").stat().st_mtime_ns == before
    assert nsysx("report", "a.sqlite", "--csv", "out", "--force", cwd=tmp_path).returncode == 0


def test_a_file_in_place_of_the_folder_is_refused_before_any_work(tmp_path):
    (tmp_path / "out").write_text("mine")
    done = nsysx("report", "missing.sqlite", "--csv", "out", cwd=tmp_path)
    assert done.returncode == 2
    assert (tmp_path / "out").read_text() == "mine"

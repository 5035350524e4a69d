"""A new finding, a new table and a new picture are one file each: written into a copy of the package, they are in every output."""

from __future__ import annotations

import base64
import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.findings import Program

PACKAGE = Path(__file__).resolve().parents[1] / "nsysx"

FINDING = '''"""NSX100 second-finding: the GPU waits for the host, said a second time.

What it means
    Words of the second manual.
"""

from __future__ import annotations

from nsysx.catalogue import StepLimit
from nsysx.findings._case import Case, Rule
from nsysx.findings._found import Found
from nsysx.model import Finding
from nsysx.replay.edits import Graph, RemoveHost

RULE = Rule("NSX100", "second-finding", "Second finding", about=StepLimit.LAUNCH, whole=True, same_time=("NSX102",))
REQUIRES = ("steps",)


def check(case: Case) -> list[Finding]:
    """Return one finding wherever there are steps."""
    worth = case.worth(RemoveHost(), Graph())
    found = Found(RULE, "The second title", "The second detail.", worth=worth, cost_ns=1000, fix="Do the second thing")
    return [found.as_finding(case)]
'''

TABLE = '''"""The calls of the second table."""

from __future__ import annotations

from typing import Annotated, TypedDict

import polars as pl

from nsysx.events.profile import Profile
from nsysx.frames import frame_columns
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of

KEY = "second_table"
TITLE = "The second table"


class SecondRow(TypedDict):
    """One row of the second table."""

    name: Annotated[str, Of("a name of the second table", label="second name")]
    second_ns: Annotated[int, Of("a sum of the second table", "ns", sums="scope")]


COLUMNS = columns_of(SecondRow)
ROWS: TableOf[SecondRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="steady", place=35, group="waiting", intro="The second sentence.", first=("name", "second_ns")
)


def table(profile: Profile) -> pl.DataFrame:
    """Return one row."""
    return pl.DataFrame([{"name": "second_row", "second_ns": profile.scope.steps * 7000}], frame_columns.schema(COLUMNS))
'''


CHART = '''"""The rows of the second table, drawn."""

from __future__ import annotations

from nsysx.analyses.second_table import KEY, ROWS
from nsysx.model import Summary
from nsysx.render.charts.canvas import Chart, Room, boxes, draw, name_axes, write

TABLE = KEY


def chart(summary: Summary, ax=None) -> Chart | None:
    """Return one bar for each row."""
    rows = summary.typed_rows(ROWS)

    def on(axes):
        axes.set_xlim(0, max(r["second_ns"] for r in rows))
        axes.set_ylim(len(rows), 0)
        for number, row in enumerate(rows):
            write(axes, 0, number + 0.5, row["name"], ha="right", offset=(-5, 0))
            boxes(axes, [(0, number + 0.1, row["second_ns"], 0.8)], "#009e73")
        name_axes(axes, "ns")

    said = f"The second picture has {len(rows)} bar: {rows[0]['name']}."
    return Chart(KEY, lambda: draw(Room(300, 60 + 10 * len(rows), left=90), on, ax), said, said)
'''


def body(program: Program, number: int) -> None:
    """A step in which the GPU waits for Python."""
    with program.range("forward"), program.range("net:Net"):
        program.launch(4, cost=40)
        for _ in range(20):
            program.host(40)
            program.launch(4)
    with program.range("backward"):
        program.launch(4, cost=40)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a copy of the package that has one more finding, table and picture, and with what it says of a report."""
    folder = tmp_path_factory.mktemp("one_file")
    shutil.copytree(PACKAGE, folder / "nsysx", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "nsysx" / "findings" / "nsx100_second_finding.py").write_text(FINDING, encoding="utf-8")
    (folder / "nsysx" / "analyses" / "second_table.py").write_text(TABLE, encoding="utf-8")
    (folder / "nsysx" / "render" / "charts" / "second_picture.py").write_text(CHART, encoding="utf-8")
    Program().steps(body, 10).report.write(folder / "a.sqlite")
    written = ("--html", "a.html", "--json", "a.json", "--markdown", "a.md", "--brief", "b.json", "--csv", "csv")
    (folder / "terminal.txt").write_text(nsysx(folder, "report", "a.sqlite", "--full", *written), encoding="utf-8")
    return folder


def nsysx(folder: Path, *words: str) -> str:
    """Return what a command of the copy prints."""
    done = subprocess.run(
        [sys.executable, "-m", "nsysx", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["terminal.txt", "a.html", "a.md"])
def test_both_are_in_what_people_read(copied: Path, name: str) -> None:
    text = (copied / name).read_text(encoding="utf-8")
    assert "Do the second thing" in text, "what the rule is about is what limits the step: it comes first"
    if name != "a.md":  # the answer for a ticket has no tables
        assert "The second table" in text and "second name" in text.lower()
        assert re.search(r"7\.0\s[uµ]s", text)


def test_both_are_in_the_json(copied: Path) -> None:
    said = json.loads((copied / "a.json").read_text(encoding="utf-8"))
    (finding,) = [f for f in said["findings"] if f["code"] == "NSX100"]
    assert finding["verdict"] == "found" and finding["slug"] == "second-finding"
    assert said["answer"]["do"][0]["code"] == "NSX100"
    assert not [line for line in said["answer"]["also"] if line["code"] == "NSX102"], "it reports the same time"
    steps = said["scopes"]["second_table"]["steps"]
    assert said["second_table"] == [{"name": "second_row", "second_ns": steps * 7000}]
    brief = json.loads((copied / "b.json").read_text(encoding="utf-8"))
    assert "Do the second thing" in json.dumps(brief["causes"][0])


def test_the_table_is_in_csv(copied: Path) -> None:
    with (copied / "csv" / "second_table.csv").open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["name"] == "second_row" and int(row["second_ns"]) % 7000 == 0


def test_both_are_explained(copied: Path) -> None:
    assert "Words of the second manual." in nsysx(copied, "explain", "NSX100")
    assert "Words of the second manual." in nsysx(copied, "explain", "second-finding")
    table = nsysx(copied, "explain", "second_table")
    assert "The second sentence." in table and "a sum of the second table" in table
    assert "second_table" in nsysx(copied, "explain", "columns")
    assert "second_table" in nsysx(copied, "report", "--json-schema")


def test_the_table_stands_in_the_line_of_the_page_that_it_names(copied: Path) -> None:
    page = (copied / "a.html").read_text(encoding="utf-8")
    line = page.split('<details id="waiting"', 1)[1].split("<details id=", 1)[0]
    assert "The second table (1)" in line


def test_the_picture_stands_with_its_table(copied: Path) -> None:
    page = (copied / "a.html").read_text(encoding="utf-8")
    section = page.split('<section id="second_table"', 1)[1].split("</section>", 1)[0]
    source = section.split('src="data:image/svg+xml;base64,', 1)[1].split('"', 1)[0]
    assert "second_row" in base64.b64decode(source).decode()
    assert "<figcaption>The second picture has 1 bar: second_row.</figcaption>" in section


def test_no_other_file_was_touched(copied: Path) -> None:
    def files(root: Path) -> dict[str, bytes]:
        kept = [p for p in root.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
        return {str(p.relative_to(root)): p.read_bytes() for p in kept}

    before, after = files(PACKAGE), files(copied / "nsysx")
    assert after.keys() - before.keys() == {
        "findings/nsx100_second_finding.py",
        "analyses/second_table.py",
        "render/charts/second_picture.py",
    }
    assert all(after[name] == text for name, text in before.items())

"""What an analysis declares is what it gives: held for every table, on reports with and without each kind of row."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

from nsysx import analyses, units
from nsysx.analyses import modules
from nsysx.events.profile import NotRecorded
from nsysx.model import Column, Scope, Table, TableSpec
from nsysx.ranks import rank_table
from nsysx.render import dictionary, glossary, grids
from tests import reports
from tests.reports import gather

ALL = analyses.load()


def test_the_columns_that_a_table_shows_exist() -> None:
    columns = (Column("a", "Int64", "", ""), Column("a", "Int64", "", ""))
    said = analyses.problems("t", columns, TableSpec(first=("a", "b"), bar="c"))
    assert said == [
        "t: column a is declared 2 times",
        "t: SHOWN names b, which is not a column",
        "t: SHOWN names c, which is not a column",
    ]


def test_what_a_rank_adds_up_over_its_steps_is_shown_per_step() -> None:
    """A sum is shown over the row's own steps; what is no sum is a number, of one step already, or a moment."""
    of_one_step = "late|price|even|turn|transfer_usual|reduced_once"
    no_sums = f"^(rank|process|pid|device|host|steps|step_ns|clock_correction_ns|bubble_ns|({of_one_step})(_.*)?_ns)$"
    for column in rank_table.COLUMNS:
        if column.dtype == "Int64":
            assert (column.sums == "row") != bool(re.search(no_sums, column.name)), column.name
    row = {c.name: 4_000 if c.sums else 4 for c in rank_table.COLUMNS if c.dtype == "Int64"} | {"steps": 4}
    table = Table(rank_table.KEY, "", rank_table.COLUMNS, (row,), shown=rank_table.SHOWN)
    grid = grids.grid(table, top=9, redact=True, width=80)
    shown = {head.name: cell.text for head, cell in zip(grid.heads, grid.rows[0], strict=True)} if grid.rows else {}
    sums = {c.name for c in rank_table.COLUMNS if c.sums == "row" and c.unit == "ns"} & shown.keys()
    assert len(sums) > 4
    assert {shown[name] for name in sums} == {units.duration(1_000)}


def test_no_two_tables_stand_at_one_place() -> None:
    places = [a.SHOWN.place for a in ALL]
    assert len(set(places)) == len(places)


def test_what_is_no_sum_is_not_divided_by_steps() -> None:
    of_one = re.compile(
        "(largest|longest|smallest|shortest|min|max|peak|median)_|_(median|each)$"
        "|^(process|pid|thread|device|rank|step|index|depth|line|steps|samples|threads|blocks|registers)$"
    )
    wrong = [f"{a.KEY}.{c.name}" for a in ALL for c in a.COLUMNS if of_one.search(c.name) and c.sums]
    assert not wrong


def test_all_or_no_times_and_counts_of_a_table_are_sums() -> None:
    """A column of a table that sums is a sum, or its name or unit says why not: a forgotten one would be shown n-fold."""
    of_one = re.compile(
        "^(process|pid|thread|device|rank|step|index|depth|line|steps|samples|threads|blocks|registers|sm_count|seen)$"
        "|(largest|longest|median)_|_(median|each)$|^step_ns$|^shared_bytes$"
    )
    forgotten = [
        f"{a.KEY}.{c.name}"
        for a in ALL
        if any(c.sums == "scope" for c in a.COLUMNS)
        for c in a.COLUMNS
        if c.dtype == "Int64" and not c.sums and not of_one.search(c.name)
    ]
    assert not forgotten


def test_only_numbers_are_sums() -> None:
    said = analyses.problems("t", (Column("a", "String", "", "", sums="scope"),), TableSpec())
    assert said == ["t: a is no number, so no sum"]


def test_what_a_column_declares_is_what_a_cell_shows() -> None:
    columns = tuple(
        Column(name, "Int64", "ns", name, sums=of) for name, of in (("a_ns", "scope"), ("b_ns", "row"), ("c_ns", ""))
    )
    rows = ({"a_ns": 8000, "b_ns": 8000, "c_ns": 8000, "steps": 2},)
    table = Table("t", "T", columns, rows, scope=Scope("steady", (), steps=4))
    shown = grids.grid(table, top=1, redact=False, width=80)
    assert shown.rows is not None
    assert [cell.text for cell in shown.rows[0]] == ["2.0 us", "4.0 us", "8.0 us"]


@pytest.mark.parametrize("analysis", ALL, ids=lambda a: a.KEY)
def test_a_frame_has_the_types_that_its_columns_declare(analysis: analyses.Analysis, tmp_path: Path) -> None:
    given = gather(reports.training(), tmp_path)
    try:
        frame = analysis.table(given)
    except NotRecorded:
        pytest.skip("not in this report")
    for column in analysis.COLUMNS:
        kind = frame[column.name].dtype
        # What the JSON nests is an object to Python, or a list or struct to polars.
        nested = column.dtype == "Object" and kind.is_nested()
        assert nested or kind in (getattr(pl, column.dtype.partition("(")[0]), pl.Null), (column.name, kind)


@pytest.mark.parametrize("key", dictionary.keys())
def test_the_dictionary_explains_every_column(key: str) -> None:
    text = dictionary.table(key)
    assert text is not None and text.startswith(f"{key}: ")
    for analysis in ALL:
        if key == analysis.KEY:
            assert all(f"  {c.name} " in text and c.meaning for c in analysis.COLUMNS)


def test_definitions_come_with_the_package() -> None:
    text = dictionary.lookup("definitions")
    assert text is not None and "GPU breakdown" in text and "Scope" in text


def test_the_depth_of_nested_modules_is_found_once_each() -> None:
    count = 20_000
    chain: dict[str | None, str | None] = {f"m{i}": f"m{i - 1}" if i else None for i in reversed(range(count))}
    depth = modules._depths(chain)
    assert [depth[f"m{i}"] for i in (0, 1, count - 1)] == [0, 1, count - 1]


def test_depths_of_circles_and_unknown_parents_end() -> None:
    assert modules._depths({"a": "b", "b": "a", "c": "gone", "d": "c"}) == {"b": 0, "a": 1, "c": 1, "d": 2}


def test_codes_are_shown_as_words_and_names_of_the_program_as_they_are() -> None:
    columns = (Column("report", "String", "", "a file"), Column("verdict", "String", "", "a code", codes=True))
    table = Table("t", "", columns, ({"report": "masked_slow", "verdict": "queue_full"},))
    ((report, verdict),) = grids.grid(table, top=1, redact=True, width=80).rows or ()
    assert (report.text, verdict.text) == ("masked_slow", "queue full")


def test_the_glossary_is_asked_only_for_the_columns_that_say_so() -> None:
    columns = (Column("api", "String", "", "a call"), Column("name", "String", "", "a name"))
    row = {"api": "cudaLaunchKernel", "name": "cudaLaunchKernel"}
    shown = grids.grid(Table("t", "", columns, (row,), shown=TableSpec(terms=("api",))), top=1, redact=True, width=80)
    ((api, name),) = shown.rows or ()
    assert (api.term, name.term) == (glossary.key("cudaLaunchKernel"), "")
    assert api.term

"""What an analysis declares is what it gives: held for every table, on reports with and without each kind of row."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

from nsysx import analyses
from nsysx.analyses import modules
from nsysx.events.profile import NotRecorded
from nsysx.model import Column, TableSpec
from nsysx.render import dictionary
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


def test_no_two_tables_stand_at_one_place() -> None:
    places = [a.SHOWN.place for a in ALL]
    assert len(set(places)) == len(places)


def test_what_is_no_sum_is_not_divided_by_steps() -> None:
    spec = TableSpec(sums=True, plain=("largest_bytes",))
    assert spec.is_sum(Column("bytes", "Int64", "bytes", ""))
    for name, kind in (("largest_bytes", "Int64"), ("thread", "Int64"), ("share", "Float64"), ("api", "String")):
        assert not spec.is_sum(Column(name, kind, "", "")), name
    assert not TableSpec().is_sum(Column("bytes", "Int64", "bytes", ""))
    of_one = re.compile(
        "(largest|longest|smallest|shortest|min|max|peak|median)_|_(median|each)$|^(threads|blocks|registers)$"
    )
    wrong = [f"{a.KEY}.{c.name}" for a in ALL for c in a.COLUMNS if of_one.search(c.name) and a.SHOWN.is_sum(c)]
    assert not wrong


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
    assert text is not None and "GPU ledger" in text and "Scope" in text


def test_the_depth_of_nested_modules_is_found_once_each() -> None:
    count = 20_000
    chain: dict[str | None, str | None] = {f"m{i}": f"m{i - 1}" if i else None for i in reversed(range(count))}
    depth = modules._depths(chain)
    assert [depth[f"m{i}"] for i in (0, 1, count - 1)] == [0, 1, count - 1]


def test_depths_of_circles_and_unknown_parents_end() -> None:
    assert modules._depths({"a": "b", "b": "a", "c": "gone", "d": "c"}) == {"b": 0, "a": 1, "c": 1, "d": 2}

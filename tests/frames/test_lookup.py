"""Tables of values by number."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from nsysx.frames import lookup


def test_totals_are_exact_where_floats_are_not() -> None:
    large = (1 << 53) + 1  # the first whole number that no float holds
    sums = lookup.totals(np.array([0, 2, 0, 2]), np.array([large, 1, 2, large], np.int64), 4)
    assert sums.tolist() == [large + 2, 0, large + 1, 0]
    assert sums.dtype == np.int64


def test_rows_with_a_value_are_those_of_a_filter_and_no_copy_where_all_have_it() -> None:
    frame = pl.DataFrame(
        {"process": [7, 7, 7], "device": [0, 1, None]}, schema={"process": pl.Int64, "device": pl.Int64}
    )
    assert lookup.having(frame, process=7) is frame
    assert lookup.having(frame, process=7, device=1).rows() == [(7, 1)]
    assert lookup.having(frame, process=8).height == 0
    assert lookup.having(frame.clear(), process=7).height == 0


def test_parts_are_the_rows_of_each_combination_in_their_order_and_no_copy_where_there_is_one() -> None:
    frame = pl.DataFrame({"process": [7, 8, 7, None], "device": [0, 0, 1, 0], "row": [0, 1, 2, 3]})
    rows = {key: part["row"].to_list() for key, part in lookup.parted(frame, "process", "device").items()}
    assert rows == {(7, 0): [0], (8, 0): [1], (7, 1): [2]}
    alike = frame.with_columns(process=pl.lit(7), device=pl.lit(1))
    [(key, part)] = lookup.parted(alike, "process", "device").items()
    assert key == (7, 1) and part is alike
    assert lookup.parted(frame.clear(), "process") == {}


def test_rows_are_looked_up_with_none_all_or_some_missing() -> None:
    names = pl.Series("name", ["b", None, "a", "b"], dtype=pl.Categorical)

    def at(column: pl.Series, *row: int) -> list[str | None]:
        return lookup.at(column, np.array(row, np.int64)).cast(pl.String).to_list()

    assert at(names) == []
    assert at(names, 3, 1, 2) == ["b", None, "a"]
    assert at(names, -1, 0) == [None, "b"]
    assert at(names, -1, -1) == [None, None]
    assert at(names.clear(), -1) == [None] and at(names.clear()) == []


def test_text_is_that_of_a_cast_also_where_rows_or_all_are_null() -> None:
    names = ["void kernel_of_a_long_name<float>(float const*)", None, "é", "copy of more than twelve letters"]
    rows = np.arange(8_000) % len(names)
    column = lookup.named(names, rows).alias("name")
    text = lookup.text(column)
    assert text.name == "name" and text.to_list() == column.cast(pl.String).to_list()
    assert lookup.text(pl.Series("none", [None, None], dtype=pl.Categorical)).to_list() == [None, None]
    assert lookup.text(column.clear()).to_list() == []


def test_distinct_names_are_in_alphabetical_order_of_code_points() -> None:
    names, index = lookup.distinct(lookup.named(["b", "Z", "é", "\U0001f600", "a"], np.array([4, 3, -1, 2, 0, 1, 4])))
    assert names == [None, "Z", "a", "b", "é", "\U0001f600"]
    assert index.tolist() == [2, 5, 0, 4, 3, 1, 2]


def test_work_on_names_is_done_once_per_name_also_where_rows_or_all_are_null() -> None:
    names = pl.Series("name", ["b", None, "a", "b"], dtype=pl.Categorical)
    seen: list[str] = []

    def upper(name: str) -> str | None:
        seen.append(name)
        return name.upper() if name == "b" else None

    assert lookup.changed(names, upper).to_list() == ["B", None, None, "B"]
    assert sorted(seen) == ["a", "b"]
    assert lookup.coded(names, {"b": 7}).tolist() == [7, -1, -1, 7]
    assert lookup.matching(names, "[a]").tolist() == [False, False, True, False]
    assert lookup.distinct(names)[1].tolist() == [2, 0, 1, 2]
    for none in (names.clear(), pl.Series("name", [None, None], dtype=pl.Categorical)):
        assert lookup.distinct(none)[0] == [None] and not lookup.matching(none, "").any()
        assert lookup.changed(none, upper).to_list() == [None] * len(none)
    assert lookup.named(["x", "y"], np.array([1, -1, 0])).to_list() == ["y", None, "x"]
    assert lookup.named([], np.array([-1])).to_list() == [None]


@pytest.mark.parametrize("block", [1, 2, 3, 5, 1 << 16])
def test_blocks_change_nothing_wherever_a_name_first_occurs(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "LOOKUP_BLOCK", block)
    words = ["a", "a", None, "b", "a", "c", None, "a", "b", "d"]
    names = pl.Series("name", words, dtype=pl.Categorical)
    index = {None: 0, "a": 1, "b": 2, "c": 3, "d": 4}
    assert lookup.distinct(names)[0] == list(index)
    assert lookup.distinct(names)[1].tolist() == [index[word] for word in words]
    assert lookup.coded(names, {"b": 7, "d": 9}).tolist() == [{"b": 7, "d": 9}.get(str(word), -1) for word in words]
    assert lookup.matching(names, "[bd]").tolist() == [word in ("b", "d") for word in words]
    assert lookup.changed(names, str.upper).to_list() == [word and word.upper() for word in words]

"""A typed row declares its columns once, and holds null only where it says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypedDict

import pytest

from nsysx.analyses.helpers import step_record
from nsysx.frames import frame_columns
from nsysx.rows import Column, Of, columns_of
from tests.samples import NAMES, Samples
from tests.typed import row_types, untyped


class Sample(TypedDict):
    a_ns: Annotated[int | None, Of("a", "ns", "scope")]
    b: Annotated[Mapping[str, int], Of("b")]
    c: Annotated[list[int], Of("c")]


def test_columns_are_those_of_the_row() -> None:
    assert columns_of(Sample) == (
        Column("a_ns", "Int64", "ns", "a", "scope"),
        Column("b", "Object", "", "b"),
        Column("c", "List(Int64)", "", "c"),
    )
    with pytest.raises(TypeError, match="a: a column without its meaning"):
        columns_of(TypedDict("Bare", {"a": int}))


def test_every_table_declares_its_columns_as_the_type_of_its_rows() -> None:
    assert len(row_types()) > 30


def test_a_column_is_null_only_where_its_type_says_so(recorded: Samples) -> None:
    """So it is in the reports that tests build, see ``tests.findings`` and ``tests.analyses``."""
    assert not {name: wrong for name in NAMES if (wrong := untyped(recorded.summary(name)))}


def test_the_steps_shown_begin_with_the_steps_found() -> None:
    # The shown steps are of one process and its thread, and of how many parts they are made the table of steps says in words.
    found = [column for column in frame_columns.CPU_STEPS if column.name not in ("process", "thread", "parts")]
    assert list(step_record.STEPS[: len(found)]) == found

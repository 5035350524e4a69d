"""A typed row declares its columns once, and holds null only where it says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict, get_args, get_type_hints

import pytest

from nsysx.analyses import copies, gpu_ledger, kernel_families, kernels, launches, modules, waits
from nsysx.analyses.helpers import step_record
from nsysx.analyses.helpers.step_record import StepRow
from nsysx.frames import declared
from nsysx.rows import Column, Of, columns_of
from tests.samples import NAMES, Samples

TYPED = {
    gpu_ledger.KEY: gpu_ledger.GpuRow,
    modules.KEY: modules.ModuleRow,
    waits.KEY: waits.WaitRow,
    kernels.KEY: kernels.KernelRow,
    kernel_families.KEY: kernel_families.FamilyRow,
    launches.KEY: launches.LaunchRow,
    copies.KEY: copies.CopyRow,
}


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


def test_a_column_is_null_only_where_its_type_says_so(recorded: Samples) -> None:
    wrong = set()
    for name in NAMES:
        summary = recorded.summary(name)
        for key, row in TYPED.items():
            hints: dict[str, Any] = get_type_hints(row)
            for values in summary.rows(key):
                assert set(values) == set(hints)
                wrong |= {f"{key}.{c}" for c, v in values.items() if v is None and type(None) not in get_args(hints[c])}
        for values in summary.steps.rows:
            hints = get_type_hints(StepRow)
            assert set(values) == set(hints)
            wrong |= {f"steps.{c}" for c, v in values.items() if v is None and type(None) not in get_args(hints[c])}
    assert not wrong


def test_the_steps_shown_begin_with_the_steps_found() -> None:
    found = [column for column in declared.CPU_STEPS if column.name not in ("process", "thread")]
    assert list(step_record.STEPS[: len(found)]) == found

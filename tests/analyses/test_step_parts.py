"""What steps are made of sums to them, to the nanosecond."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nsysx.analyses import step_parts
from nsysx.analyses.helpers.analysis_bounds import MOST_STEP_BLOCKS
from nsysx.pipeline import summarize
from tests.comparing.programs import MS, program
from tests.reports import training


def parts(path: Path) -> dict[str, dict[str | None, tuple[list[int] | None, list[int]]]]:
    found: dict[str, dict[str | None, tuple[list[int] | None, list[int]]]] = {}
    for row in summarize([path], every_table=False).rows("step_parts"):
        found.setdefault(row["part"], {})[row["name"]] = row["count"], row["ns"]
    return found


def total(rows: dict[str | None, tuple[list[int] | None, list[int]]]) -> list[int]:
    return np.sum([ns for _, ns in rows.values()], axis=0).tolist()


@pytest.mark.parametrize("count", [4, 70, 200])
def test_parts_sum_in_every_block(tmp_path: Path, count: int) -> None:
    found = parts(training(count).write(tmp_path / "r.sqlite"))
    steps, ns = found["step"]["gpu"]
    assert steps is not None
    assert len(ns) == min(sum(steps), MOST_STEP_BLOCKS)
    assert total(found["ledger"]) == ns
    assert total(found["idle"]) == found["ledger"]["idle"][1]
    assert total(found["module_compute"]) == total(found["family_compute"]) == found["ledger"]["compute"][1]
    assert total(found["phase"]) == found["step"]["cpu"][1]


def test_sums_are_those_of_the_tables(tmp_path: Path) -> None:
    path = training(9).write(tmp_path / "r.sqlite")
    summary, found = summarize([path], every_table=False), parts(path)
    modules = {r["path"]: r["self_gpu_ns"] for r in summary.rows("modules") if r["self_gpu_ns"]}
    assert {k: sum(ns) for k, (_, ns) in found["module"].items() if sum(ns)} == modules
    families = {r["family"]: (r["count"], r["total_ns"]) for r in summary.rows("kernel_families")}
    assert {k: (sum(n or ()), sum(ns)) for k, (n, ns) in found["family"].items()} == families
    assert sum(sum(ns) for _, ns in found["wait"].values()) == sum(r["total_ns"] for r in summary.rows("waits"))


def test_many_names_keep_their_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = program({f"m{i}": MS + i for i in range(9)}, steps=6).write(tmp_path / "r.sqlite")
    whole = parts(path)
    monkeypatch.setattr(step_parts, "MOST_PART_NAMES", 4)
    few = parts(path)
    assert step_parts.REST in few["module"]
    assert total(few["module"]) == total(whole["module"])
    assert total(few["module_compute"]) == total(whole["module_compute"])


def test_without_steps_there_is_a_reason(tmp_path: Path) -> None:
    table = summarize([training(6).write(tmp_path / "r.sqlite")], steps="all", every_table=False).tables["step_parts"]
    assert table.rows is None
    assert "steps" in table.reason

"""The recorded sample reports: complete, private to nobody, and read to the same numbers as by an independent count."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from nsysx.render import json_text
from tests import oracle
from tests.samples import NAMES, SAMPLES, Samples
from tests.scripts.test_make_samples import make_samples

ROOM_BYTES = 15_000_000

samples = pytest.mark.parametrize("name", NAMES)


#: Differences of one outline that are worth reading at once.
MOST_SHOWN = 30


def differences(old: object, new: object, where: str = "") -> Iterator[str]:
    """Yield where two outlines differ, one line each: the row, its old value and its new one."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from differences(old.get(key, "nothing"), new.get(key, "nothing"), f"{where}.{key}" if where else key)
    elif isinstance(old, list) and isinstance(new, list):
        for row in range(max(len(old), len(new))):
            was, is_ = (rows[row] if row < len(rows) else "no such row" for rows in (old, new))
            yield from differences(was, is_, f"{where}[{row}]")
    elif old != new or type(old) is not type(new):
        yield f"{where}: {old!r} -> {new!r}"


def test_a_failing_outline_says_row_old_value_and_new_value() -> None:
    old = {"findings": [{"code": "NSX101", "ns": 1}, {"code": "NSX102", "ns": 2}], "replay": None, "gone": 1}
    new = {"findings": [{"code": "NSX101", "ns": 3}], "replay": None, "made": {"a": 1}}
    assert list(differences(old, new)) == [
        "findings[0].ns: 1 -> 3",
        "findings[1]: {'code': 'NSX102', 'ns': 2} -> 'no such row'",
        "gone: 1 -> 'nothing'",
        "made: 'nothing' -> {'a': 1}",
    ]
    assert list(differences(old, old)) == []
    assert list(differences({"a": 1}, {"a": True})) == ["a: 1 -> True"]


@pytest.fixture(scope="module")
def unpack(recorded: Samples) -> Callable[[str], Path]:
    """A function from a sample's name to its unpacked report, with its run.json beside it."""
    return recorded.report


@pytest.fixture(scope="module")
def summary(recorded: Samples) -> Callable[[str], dict[str, Any]]:
    """A function from a sample's name to its Summary, as `nsysx report --json` gives it."""

    @cache
    def of(name: str) -> dict[str, Any]:
        return json.loads(json_text.render(recorded.summary(name)))

    return of


def by_name(rows: list[dict[str, Any]], *keys: str) -> dict[str, tuple[int, ...]]:
    result: dict[str, list[int]] = defaultdict(lambda: [0] * len(keys))
    for row in rows:
        for i, key in enumerate(keys):
            result[row["name"]][i] += row[key]
    return {name: tuple(values) for name, values in result.items()}


@samples
def test_totals_and_every_name_equal_an_independent_count(name, unpack, summary) -> None:
    count, totals = oracle.totals(oracle.read(unpack(name))), summary(name)["totals"]
    keys = ("kernels", "kernel_ns", "memcpys", "memcpy_ns", "memsets", "memset_ns", "api_calls", "api_ns")
    assert {k: totals[k] for k in keys} == {k: count[k] for k in keys}
    assert totals["gpu_ops_without_call"] == count["gpu_ops_without_call"]
    kinds = {k: (v["calls"], v["ns"], v["self_ns"]) for k, v in totals["api_by_kind"].items()}
    assert kinds == count["api_by_kind"]
    assert by_name(summary(name)["api_calls"], "calls", "total_ns", "self_ns") == count["api"]
    assert by_name(summary(name)["kernels"], "count", "total_ns") == count["kernels_by_name"]


@samples
def test_ledgers_sum_to_their_windows(name, summary) -> None:
    for row in summary(name)["gpu_ledger"]:
        parts = sum(row[k] for k in ("compute_ns", "comm_ns", "copy_ns", "memset_ns", "idle_ns"))
        assert parts == row["window_ns"]
        assert sum(row["idle_causes"].values()) == row["idle_ns"]


@samples
def test_no_step_is_told_longer_than_it_was_recorded(name, summary) -> None:
    """Tracing makes no step shorter; the replay itself may be off by its error."""
    known, replay = summary(name)["unprofiled"], summary(name)["replay"]
    if known is not None:
        assert known["step_ns"] <= max(known["recorded_ns"], replay["unchanged_ns"])
        assert known["low_ns"] <= known["step_ns"] <= known["high_ns"]


@samples
def test_summary_is_the_expected_one(name, summary) -> None:
    expected = json.loads((SAMPLES / f"{name}.json").read_text())
    got = json.loads(json.dumps(make_samples.outline(summary(name))))
    changed = list(differences(expected, got))
    shown = "\n".join([*changed[:MOST_SHOWN], *[f"and {len(changed) - MOST_SHOWN} more"] * (len(changed) > MOST_SHOWN)])
    assert not changed, (
        f"{name}:\n{shown}\nWhere that is meant, run scripts/make_samples --expected --only {name.partition('.')[0]}"
    )


@samples
def test_every_range_that_was_pushed_arrived(name, unpack) -> None:
    run = json.loads((SAMPLES / f"{name}.run.json").read_text())
    con = sqlite3.connect(unpack(name))
    try:
        found = make_samples.ranges_in(con)
    finally:
        con.close()
    assert found == sum(p["ranges_pushed"] for p in run["probe"])


@samples
def test_nothing_private_is_published(name, unpack) -> None:
    con = sqlite3.connect(unpack(name))
    try:
        tables = {t for (t,) in con.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table in {"TARGET_INFO_SYSTEM_ENV", "ProcessStreams", "ANALYSIS_FILE"} & tables:
            assert con.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table
        environment = "SELECT count(*) FROM META_DATA_CAPTURE WHERE name LIKE '%ENVIRONMENT%'"
        assert con.execute(environment).fetchone() == (0,)
    finally:
        con.close()
    private = re.compile(rb"/home/(?!user\b)[^/\s]+|(?<![\w.-])/root/|[A-Z_]+_(TOKEN|SECRET|KEY)=")
    assert not private.search(unpack(name).read_bytes())
    assert not private.search((SAMPLES / f"{name}.run.json").read_bytes())
    assert not private.search((SAMPLES / f"{name}.json").read_bytes())


def test_samples_are_small() -> None:
    sizes = {f.name: f.stat().st_size for f in SAMPLES.iterdir() if f.is_file()}
    assert sum(sizes.values()) < ROOM_BYTES, sizes

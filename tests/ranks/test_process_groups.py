"""Which process group collectives belong to: by the names that the program gave, and never by a guess between two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nsysx.pipeline import summarize
from nsysx.ranks.job_compared import Takers
from nsysx.ranks.process_groups import ProcessGroup, name_of
from tests.ranks import test_late_lines

MS = 1_000_000


@pytest.mark.parametrize(
    ("groups", "members", "size", "name"),
    [
        ([("", [0, 1, 2, 3], 9), ("tp", [0, 1], 4), ("dp", [0, 2], 4)], (0, 2), None, "dp"),
        ([("", [0, 1, 2, 3], 9), ("tp", [0, 1], 4)], (0, 1), 4, None),  # two of the job's four ranks were recorded
        ([("", [0, 1], 9), ("tp", [0, 1], 4)], (0, 1), 2, None),  # both were used: nothing tells them apart
        ([("", [0, 1], 0), ("tp", [0, 1], 4)], (0, 1), 2, "tp"),
        ([("data", [0, 1], 4), ("tp", [0, 1], 0)], (0, 1), 2, "data"),
        ([("pp", [0, 1], 0)], (0, 1), None, "pp"),  # messages between two are not counted
        ([("tp", [0, 1], None), ("ep", [0, 1], None)], (0, 1), None, None),
        ([], (0, 1), 2, None),
    ],
)
def test_a_name_is_given_where_one_group_alone_can_be_it(
    groups: list[tuple[str, list[int], int | None]], members: tuple[int, ...], size: int | None, name: str | None
) -> None:
    made = [ProcessGroup(n, tuple(r), c) for n, r, c in groups]
    assert name_of(made, members, size) == name


@pytest.mark.parametrize(
    ("takers", "words"),
    [
        (Takers("tensor", (0, 1)), "tensor"),
        (Takers(None, (4, 5, 6, 7)), "ranks 4 to 7"),
        (Takers(None, (0, 8)), "ranks 0, 8"),
        (Takers(None, tuple(range(0, 64, 8))), "ranks 0, 8, 16, 24 and 4 more"),
        (Takers(), None),
    ],
)
def test_a_group_without_a_name_is_told_by_its_ranks(takers: Takers, words: str | None) -> None:
    assert takers.words == words


def _row(name: str, collectives: int, **about: Any) -> dict[str, Any]:
    return {"name": name, "ranks": [0, 1], "collectives": collectives, "dimension": None, "wrapper": None, **about}


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ([_row("0", 4, description="default_pg", wrapper="DDP")], "data"),
        ([_row("0", 4, description="default_pg", dimension="tensor")], "tensor"),
        ([_row("0", 0, description="default_pg"), _row("1", 2, description="experts")], "experts"),
        ([_row("0", 4, description="default_pg")], None),
        ("nothing", None),
    ],
)
def test_collectives_of_a_report_have_the_name_of_their_group(tmp_path: Path, rows: Any, name: str | None) -> None:
    path = test_late_lines.job(tmp_path / "j.sqlite", 0)
    beside = tmp_path / "j.run.json"
    record = json.loads(beside.read_text())
    for probe in record["probe"]:
        probe["settings"] = {"groups": rows}
    beside.write_text(json.dumps(record))
    of = summarize([path], every_table=False)
    assert {(p["group"], tuple(p["members"])) for p in of.rows("communication_places")} == {(name, (0, 1))}
    # The ledger says the ranks where the group has no name, and a group for nothing else than communication.
    told = {(p["part"] in ("waits", "transfers"), p["group"]) for p in of.rows("job_ledger")}
    assert told == {(True, name or "ranks 0, 1"), (False, None)}

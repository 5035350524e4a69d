"""Flame graphs hold the time of the tables by stack, to the nanosecond."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nsysx import pipeline
from nsysx.analyses import stacks
from nsysx.errors import NsysxError
from nsysx.export import folded_stacks, to_files
from tests.events.test_code_lines import Program, program


def test_towers_sum_to_the_tables(tmp_path: Path) -> None:
    path = program().write(tmp_path)
    out, scope = tmp_path / "a.folded", tmp_path / "a.json"
    to_files.write(
        path, pipeline.ReadingOptions(), to=None, perfetto=None, folded=out, speedscope=scope, force=False, redact=True
    )
    given = pipeline.gather(path, pipeline.ReadingOptions())
    table = stacks.table(given)
    content = json.loads(scope.read_text())
    towers = {p["name"]: p for p in content["profiles"]}
    for kind, column in (("GPU", "gpu_ns"), ("host", "host_ns"), ("GPU idle", "idle_caused_ns")):
        whole = int(table[column].sum())
        rows = [row.rpartition(" ") for row in out.read_text().splitlines() if row.startswith(f"{kind};")]
        assert sum(int(ns) for _, _, ns in rows) == whole > 0
        assert sum(towers[kind]["weights"]) == towers[kind]["endValue"] == whole
        assert all(0 <= f < len(content["shared"]["frames"]) for s in towers[kind]["samples"] for f in s)
    wanted = "GPU;train.py:10 main;train.py:13 Trainer.step;pkg/net.py:7 Wrapped.__call__;model.py:5 Net.forward "
    assert any(row.startswith(wanted) for row in out.read_text().splitlines())
    assert {f.get("file") for f in content["shared"]["frames"]} >= {"job/train.py"}, "folders are hidden"


def test_without_lines_there_is_no_flame_graph(tmp_path: Path) -> None:
    made = Program()
    for _ in range(4):
        made.step()
    with pytest.raises(NsysxError, match="no line of Python") as error:
        folded_stacks.folded(made.profile(tmp_path))
    assert error.value.exit_code == 4

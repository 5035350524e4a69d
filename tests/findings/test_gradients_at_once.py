"""NSX127: buckets of DDP that wait for the end of a backward which was compiled as one graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsysx.findings import _late_gradients
from nsysx.model import Finding
from tests.findings.lined import FILE, all_is_transfer
from tests.findings.test_late_gradients import BYTES, SOURCE, in_buckets
from tests.findings.test_reduced_twice import Job

WRAPPER = {"kind": "DDP", "count": 1, "find_unused_parameters": False, "static_graph": False, "compiled": True}
COMPILED = {"graphs": 1, "optimize_ddp": True, "backends": [{"name": "inductor"}]}


def told(
    folder: Path,
    patched: pytest.MonkeyPatch,
    *,
    late: bool = True,
    buckets: int = 6,
    wrapper: dict[str, Any] | None = None,
    compiled: dict[str, Any] | None = None,
) -> list[Finding]:
    all_is_transfer(patched, _late_gradients)
    settings = {
        "wrappers": [WRAPPER | (wrapper or {})],
        "optimizers": [{"class": "Adam", "elements": BYTES // 4, "dtypes": {"float32": 1}}],
        "backwards": 1,
        "compile": COMPILED | (compiled or {}),
        "places": {"DDP": f"{FILE}:9"},
    }
    program = Job(SOURCE, settings).run(lambda program, number: in_buckets(program, number, late=late, buckets=buckets))
    return [f for f in program.found(folder, "NSX127") if f.evidence[0]["setting"] == "gradients of one graph"]


@pytest.mark.parametrize(
    ("wrapper", "compiled", "advised"),
    [
        ({}, {}, "Call the compiled network first through"),
        ({"compiled": False}, {"optimize_ddp": False}, "Leave torch._dynamo.config.optimize_ddp on"),
    ],
)
def test_a_backward_of_one_graph_hides_no_reduction(
    wrapper: dict[str, Any], compiled: dict[str, Any], advised: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (finding,) = told(tmp_path, monkeypatch, wrapper=wrapper, compiled=compiled)
    assert finding.fix.startswith(advised)
    assert (finding.where["file"], finding.where["line"]) == (FILE, 9)
    assert 400_000 < (finding.saving.likely_ns or 0) <= 5 * 300_000


@pytest.mark.parametrize(
    "how",
    [
        {"late": False},  # its graph is cut
        {"buckets": 2},
        {"wrapper": {"compiled": False}},  # another reason
        {"wrapper": {"compiled": None}},
        {"wrapper": {"find_unused_parameters": True}},  # buckets may be in another order than gradients
        {"wrapper": {"kind": "FSDP"}},
    ],
)
def test_buckets_that_are_reduced_beside_backward_or_wait_for_something_else(
    how: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not told(tmp_path, monkeypatch, **how)

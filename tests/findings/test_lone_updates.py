"""NSX111: a rank that alone updates the parameters of all and sends them, and what else one rank computes alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsysx import pipeline
from nsysx.catalogue import Late, Surplus
from nsysx.findings._case import Case, Fix
from nsysx.findings._lone_updates import updated_by_one
from nsysx.model import Finding, Saving, Table
from nsysx.replay import peers
from tests.findings.lined import FILE, Lined
from tests.ranks.test_rank_table import KERNELS, member, noted

REDUCING, UPDATING, SENDING = 10, 11, 12
REDUCE = "ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
MB = 1_000_000


def program(folder: Path, kind: str) -> Any:
    """Gradients of 100 MB are reduced (100 us), one rank computes (800 us), and sends."""

    def message(program: Lined, name: str, kernel: str, size: int) -> None:
        begin = program.t
        program.host(2)
        noted(program.main, name, begin + 1, program.t + 30_000, comm=7, size=size)
        program.launch(100, kernel, stream=20)

    def body(program: Lined, number: int) -> None:
        with program.range("forward"), program.range("net:Net"), program.line(1):
            program.launch(300, "gemm")
        with program.line(REDUCING):
            if kind == "all reduce":
                message(program, "ncclAllReduce", KERNELS["ncclAllReduce"], 100 * MB)
            else:
                message(program, "ncclReduce", REDUCE, 100 * MB)
        if kind == "metrics":  # computed behind all messages
            with program.line(SENDING):
                message(program, "ncclBroadcast", KERNELS["ncclBroadcast"], 100 * MB)
        with program.line(UPDATING):
            for _ in range(8):
                program.launch(100, "adam")
        if kind != "metrics":
            with program.line(SENDING):
                message(program, "ncclBroadcast", KERNELS["ncclBroadcast"], 8 if kind == "a flag" else 50 * MB)
        program.sync()

    folder.mkdir()
    made = Lined({UPDATING: "adam_step(flat_param, flat_grad)"}, {"loaders": []})
    member(made.main, 7, 2, 0)
    made.run(body).write(folder)
    return pipeline.gather(folder / "r.sqlite", pipeline.ReadingOptions())


def advice(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, **changed: Any) -> Finding | None:
    profile = program(folder / "late", kind)
    monkeypatch.setattr(peers, "others", lambda profile: iter(()))
    alone = {"kind": "elementwise", "ns": 800_000, "others_ns": 0, "file": FILE, "line": UPDATING, "text": ""}
    row = {
        "rank": 0,
        "process": profile.process,
        "straggler": True,
        "late_cause": Late.COMPUTE,
        "late_spread": Surplus.LONE,
    }
    row |= {"late_ns": 800_000, "late_work": [alone]} | changed
    case = Case(profile, {}, None, Table("ranks", "Ranks", (), (row, {"rank": 1, "process": 1, "straggler": False})))
    finding = Finding(
        "NSX111", "straggler", verdict="found", title="", detail="", fix="", saving=Saving(400_000, "replayed")
    )
    return updated_by_one(case, Fix("Only rank 0 runs this").into(finding))


@pytest.mark.parametrize("kind", ["reduce", "all reduce"])
def test_an_update_that_one_rank_makes_for_all_is_shared_out(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = advice(tmp_path, monkeypatch, kind)
    assert found is not None and [way.name for way in found.remedies] == ["update-shared-out"]
    assert (
        "broadcast of 47.7 MiB a step: rank 0 updates the parameters for all, and 1 rank waits for them" in found.detail
    )


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("metrics", {}),
        ("a flag", {}),  # whether to stop, which one rank decides by what it computed
        ("reduce", {"late_spread": Surplus.ONE}),
        ("reduce", {"late_cause": Late.HOST}),
    ],
)
def test_what_else_one_rank_computes_alone(
    kind: str, changed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert advice(tmp_path, monkeypatch, kind, **changed) is None

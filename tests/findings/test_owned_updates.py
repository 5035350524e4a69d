"""NSX111: a rank that is late by the update of parameters that it owns, where its peers update and send their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsysx import pipeline
from nsysx.catalogue import Late, Surplus
from nsysx.events.profile import Profile
from nsysx.findings._case import Case, Fix
from nsysx.findings._owned_updates import owned_unevenly
from nsysx.model import Finding, Saving, Table
from nsysx.replay import peers
from tests.findings.lined import FILE, Lined
from tests.ranks.test_rank_table import KERNELS, member, noted

STEP, REDUCING, CALLING, MATRIX, OTHER, SENDING = 9, 10, 11, 12, 13, 14
REDUCE = "ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
MB = 1_000_000


def rank(folder: Path, kind: str, number: int, matrices: int) -> Profile:
    """A rank that updates so many matrices (100 us each) and 20 other parameters (2 us), and sends what it owns.

    Kinds: "flat" (all that a rank owns in one message), "each" (a message behind each parameter), "gathered", "network" (in a
    forward), "one root", "metrics".
    """

    def message(program: Lined, name: str, kernel: str, size: int, root: int) -> None:
        begin = program.t
        program.host(2)
        program.launch(50, kernel, stream=20)
        noted(program.main, name, begin + 1, program.t, comm=7, size=size, Root=root)

    def send(program: Lined, root: int) -> None:
        name = "ncclAllGather" if kind in ("gathered", "network") else "ncclBroadcast"
        with program.line(SENDING):
            message(program, name, KERNELS[name], 20 * MB, 0 if kind == "one root" else root)

    def update(program: Lined, line: int, us: float) -> None:
        with program.line(CALLING), program.line(line):
            program.launch(us, "gemm" if line == MATRIX else "elementwise_kernel")
        if kind == "each":
            send(program, line % 2)

    def body(program: Lined, _: int) -> None:
        with program.range("forward"), program.range("net:Net"), program.line(1):
            program.launch(300, "gemm")
        with program.range("forward" if kind == "network" else "step_of_owners"), program.line(STEP):
            with program.line(REDUCING):
                message(program, "ncclReduce", REDUCE, 40 * MB, 0)
            if kind == "metrics":
                send(program, 0)
                send(program, 1)
            for _ in range(matrices):
                update(program, MATRIX, 100)
            for _ in range(20):
                update(program, OTHER, 2)
            if kind not in ("each", "metrics"):
                send(program, 0)
                send(program, 1)
        program.sync()

    folder.mkdir()
    made = Lined({CALLING: "self.update(p)"}, {"loaders": []})
    member(made.main, 7, 2, number)
    made.run(body).write(folder)
    return pipeline.gather(folder / "r.sqlite", pipeline.ReadingOptions())


def advice(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, theirs: int, spread: Surplus, late_ns: int, **changed: Any
) -> Finding | None:
    late, other = rank(folder / "late", kind, 0, 8), rank(folder / "other", kind, 1, theirs)
    monkeypatch.setattr(peers, "others", lambda profile: iter((other,)))
    row = {"rank": 0, "process": late.process, "straggler": True, "late_cause": Late.COMPUTE, "late_spread": spread}
    row |= {"late_ns": late_ns} | changed
    case = Case(late, {}, None, Table("ranks", "Ranks", (), (row, {"rank": 1, "process": 1, "straggler": False})))
    finding = Finding(
        "NSX111", "straggler", verdict="found", title="", detail="", fix="", saving=Saving(400_000, "replayed")
    )
    return owned_unevenly(case, Fix("Only rank 0 runs this").into(finding))


@pytest.mark.parametrize(
    ("kind", "theirs", "spread"),
    [
        ("flat", 0, Surplus.LONE),  # all matrices are one rank's
        ("flat", 2, Surplus.SEVERAL),
        ("each", 0, Surplus.LONE),
        ("gathered", 2, Surplus.SEVERAL),
    ],
)
def test_parameters_get_owners_by_cost(
    kind: str, theirs: int, spread: Surplus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = advice(tmp_path, monkeypatch, kind, theirs, spread, (8 - theirs) * 100_000)
    assert found is not None and [way.name for way in found.remedies] == ["dealt-by-cost"]
    assert "rank 0 updates for 840 us a step" in found.fix and found.saving.bound
    assert (found.where["file"], found.where["line"]) == (FILE, CALLING if theirs == 0 else MATRIX)


@pytest.mark.parametrize(
    ("kind", "theirs", "spread", "late_ns", "changed"),
    [
        ("one root", 0, Surplus.LONE, 800_000, {}),  # one rank updates for all, whatever its peers compute there
        ("metrics", 0, Surplus.LONE, 800_000, {}),  # computed behind all messages
        ("network", 2, Surplus.SEVERAL, 600_000, {}),  # rows of ranks, which a network gathers between its layers
        ("gathered", 0, Surplus.LONE, 800_000, {}),  # pictures of one rank before a sharded network is gathered
        ("flat", 8, Surplus.SEVERAL, 800_000, {}),  # late by something else
        ("flat", 2, Surplus.SEVERAL, 2_000_000, {}),  # mostly so
        ("flat", 0, Surplus.LONE, 800_000, {"late_cause": Late.HOST}),
    ],
)
def test_what_else_a_rank_has_more_of(
    kind: str,
    theirs: int,
    spread: Surplus,
    late_ns: int,
    changed: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert advice(tmp_path, monkeypatch, kind, theirs, spread, late_ns, **changed) is None

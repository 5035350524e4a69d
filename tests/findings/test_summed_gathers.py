"""NSX127: what is gathered from all ranks and only summed over them, and gathers whose result is read otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.lined import FILE, Lined, all_is_transfer
from tests.findings.test_smaller_operators import operator
from tests.findings.test_widened_messages import GATHER

SENDING, SUMMING = 34, 40
SOURCE = {SENDING: "dist.all_gather_into_tensor(everyone, part)", SUMMING: "mean = everyone.view(world, -1).mean(0)"}
OWN, ALL, STACKED = "[512, 64]", "[4096, 64]", "[8, 512, 64]"
SQUARE = "[8, 8, 4096]"


def gathered(program: Lined, at: int, *, kind: str) -> int:
    """Gather the part of 8 ranks that operator ``at`` made (400 us); return the number of the operator that hands it on."""
    functional, listed = kind.startswith("functional"), kind.startswith("list")
    if not functional and not listed:
        operator(program, "empty", at + 1, [-1], "[]")
    begin = program.t
    program.launch(400, GATHER)
    copies = list(range(at + 3, at + 11)) if listed else []
    for each in copies:
        operator(program, "copy_", each, [-1, -1], f"{OWN}, {OWN}, []", 5, "copy")
    name, sizes, given = "c10d::_allgather_base_", f"{ALL}, {OWN}", f"({at + 1},0), ({at},0)"
    if kind == "square":
        sizes = f"{SQUARE}, [1, 8, 4096]"
    if functional:
        name, sizes, given = "_c10d_functional::all_gather_into_tensor", OWN, f"({at},0)"
    elif listed:
        name, sizes, given = "c10d::allgather_", f"[], {OWN}", f"(0,-1), ({at},0)"
    if program.noted is not None:
        label = f"{name}, op_id = {at + 2}, sizes = [{sizes}, []], input_op_ids = [{given}, (0,-1)]"
        program.main.add_range(label, begin, program.t)
        if functional:
            label = f"_c10d_functional::wait_tensor, op_id = {at + 11}, sizes = [{ALL}], input_op_ids = [({at + 2},0)]"
            program.main.add_range(label, program.t, program.t + 1)
    program.host(5)
    return at + 11 if functional else at + 2


def summed(program: Lined, at: int, rows: int, *, kind: str) -> tuple[int, str]:
    """What is made of what operator ``rows`` gathered: the number and size of what goes on."""
    if kind.startswith("list, added"):  # as Python's sum() does, from 0 on
        last, more = -1 if "up" in kind else at, "[]" if "up" in kind else OWN
        for each in range(8):
            operator(program, "add", at + 12 + each, [at + 3 + each, last, -1], f"{OWN}, {more}, []", 10, "elementwise")
            last, more = at + 12 + each, OWN
        return last, OWN
    if kind.startswith("list"):
        parts, name = list(range(at + 3, at + 11)), "cat" if "beside" in kind else "stack"
        operator(program, name, at + 20, [*parts, -1], f"{', '.join([OWN] * 8)}, []", 40, "CatArrayBatchedCopy")
        if "also read" in kind:
            operator(program, "mul", at + 29, [at + 5, -1], f"{OWN}, [64]", 5, "elementwise")
        if "beside" in kind:  # along the last dimension
            operator(program, "sum", at + 22, [at + 20, -1], "[512, 512], []", 80, "reduce_kernel")
            return at + 22, "[512]"
        operator(program, "mean", at + 22, [at + 20, -1], f"{STACKED}, []", 80, "reduce_kernel")
        return at + 22, OWN
    if kind == "square":
        operator(program, "mean", at + 22, [rows, -1], f"{SQUARE}, []", 80, "reduce_kernel")
        return at + 22, "[8, 4096]"
    if "rows" in kind or kind == "functional":
        operator(program, "mean", at + 22, [rows, -1], f"{ALL}, []", 80, "reduce_kernel")
        return at + 22, "[64]"
    operator(program, "view", at + 21, [rows, -1], f"{ALL}, []")
    if kind == "of each rank":
        operator(program, "mean", at + 22, [at + 21, -1], f"{STACKED}, []", 80, "reduce_kernel")
        return at + 22, "[8, 64]"
    if kind == "largest":
        operator(program, "amax", at + 22, [at + 21, -1], f"{STACKED}, []", 80, "reduce_kernel")
        return at + 22, OWN
    operator(program, "mean", at + 22, [at + 21, -1], f"{STACKED}, []", 80, "reduce_kernel")
    if kind == "whole, too":
        operator(program, "linear", at + 23, [rows, -1], f"{ALL}, [64, 64]", 20)
    return at + 22, OWN


def step(program: Lined, number: int, *, kind: str) -> None:
    """A network makes a part (300 us), which is gathered (400 us) and, as a rule, averaged over the ranks (80 us)."""
    at = 1000 * number + 10
    with program.line(20), program.range("forward"), program.range("net:Net"):
        operator(program, "linear", at, [-1, -1], f"{OWN}, [64, 64]", 300)
    with program.line(SENDING):
        rows = gathered(program, at, kind=kind)
    with program.line(SUMMING):
        last, size = summed(program, at, rows, kind=kind)
    operator(program, "mul", at + 30, [last, -1], f"{size}, []", 50, "elementwise")
    with program.line(50):
        program.launch(500)
    program.sync()


def finding(folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> Finding | None:
    all_is_transfer(monkeypatch)
    program = Lined(SOURCE).run(lambda program, number: step(program, number, kind=kind))
    found = program.found(folder, "NSX127")
    return next((f for f in found if f.evidence[0]["setting"] == "summed gathers"), None)


@pytest.mark.parametrize(
    ("kind", "saved_us"),
    [
        ("ranks", 400 * (1 - 2 / 8) + 80),
        ("list", 400 * (1 - 2 / 8) + 8 * 5 + 40 + 80),
        ("list, added up", 400 * (1 - 2 / 8) + 8 * 5 + 8 * 10),
        ("rows", 400 * (1 - 2 / 4096) + 80 * 7 / 8),  # each rank still adds up its own rows
        ("functional", 400 * (1 - 2 / 4096) + 80 * 7 / 8),
    ],
)
def test_ranks_reduce_what_is_only_summed_over_them(
    kind: str, saved_us: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = finding(tmp_path, kind, monkeypatch)
    assert found is not None and (found.where["file"], found.where["line"]) == (FILE, SENDING)
    assert [r.name for r in found.remedies] == ["reduced-for-gathered"]
    assert f"train.py:{SUMMING}" in found.detail and "of 8 ranks" in found.detail
    assert found.saving.bound and found.saving_ns_per_step == pytest.approx(1000 * saved_us, rel=0.05)


@pytest.mark.parametrize(
    "kind",
    [
        "of each rank",
        "largest",
        "whole, too",
        "list, also read",
        "list, added to others",
        "list, beside each other",
        "square",
    ],
)
def test_what_is_read_otherwise_is_gathered(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert finding(tmp_path, kind, monkeypatch) is None

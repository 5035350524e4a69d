"""NSX127: collectives that bring every rank the rows of all, of which it reads a part, and those whose results are read whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings import said_of
from tests.findings.lined import FILE, Lined, all_is_transfer
from tests.findings.test_smaller_operators import operator
from tests.findings.test_widened_messages import GATHER, REDUCE

SENDING, PICKING = 34, 40
SOURCE = {SENDING: "dist.all_reduce(rows)", PICKING: "own = rows[rank * n : (rank + 1) * n]"}
OWN, ALL = "[512, 64]", "[1024, 64]"


def step(program: Lined, number: int, *, kind: str) -> None:
    """Rows are made (100 us), brought to all ranks (400 us), and the own ones of them go on (300 us)."""
    at = 1000 * number + 10
    gathers = kind.startswith("gather")
    with program.line(20), program.range("forward"), program.range("net:Net"):
        operator(program, "embedding", at, [-1, -1], f"[100000, 64], {OWN if gathers else ALL}", 100)
        operator(program, "clone", at + 1, [at, -1], f"{OWN if gathers else ALL}, []", 5)
        if gathers:
            operator(program, "empty", at + 2, [-1], "[]")
        with program.line(SENDING, "Bring.forward"):
            begin = program.t
            program.launch(400, GATHER if gathers else REDUCE)
            if program.noted is not None:
                given = f"({at + 2},0), ({at + 1},0)" if gathers else f"({at + 1},0)"
                name, sizes = ("_allgather_base_", f"{ALL}, {OWN}") if gathers else ("allreduce_", ALL)
                label = f"c10d::{name}, op_id = {at + 3}, sizes = [{sizes}, []], input_op_ids = [{given}, (0,-1)]"
                program.main.add_range(label, begin, program.t)
        rows = at + 3 if gathers else at + 1
        with program.line(PICKING):
            if kind.endswith("sliced"):
                operator(program, "slice", at + 4, [rows, -1, -1], f"{ALL}, [], []")
                rows, size = at + 4, OWN
            elif kind.endswith("chunked"):
                begin = program.t
                for each in (5, 7):
                    operator(program, "narrow", at + each, [rows, -1], f"{ALL}, []")
                if program.noted is not None:
                    label = f"aten::chunk, op_id = {at + 4}, sizes = [{ALL}, []], input_op_ids = [({rows},0), (0,-1)]"
                    program.main.add_range(label, begin, program.t)
                rows, size = at + 7, OWN
            elif kind.endswith("picked"):
                operator(program, "index", at + 4, [rows, -1], f"{ALL}, [300]", 20)
                rows, size = at + 4, "[300, 64]"
            elif kind.endswith("picked often"):
                operator(program, "index", at + 4, [rows, -1], f"{ALL}, [8000]", 20)
                rows, size = at + 4, "[8000, 64]"
            else:
                size = ALL
        operator(program, "linear", at + 10, [rows, -1], f"{size}, [64, 64]", 300)
        if "also whole" in kind:
            operator(program, "sum", at + 11, [at + 1, -1], f"{ALL}, []", 20)
        if "both chunked" in kind:
            operator(program, "linear", at + 11, [at + 5, -1], f"{size}, [64, 64]", 300)
        operator(program, "mean", at + 12, [at + 10], size, 5)
    with program.line(41), program.range("backward"):
        program.launch(500)
    program.sync()


def finding(folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> Finding | None:
    all_is_transfer(monkeypatch)
    program = Lined(SOURCE).run(lambda program, number: step(program, number, kind=kind))
    of_settings = program.found(folder, "NSX127")
    return next((f for f in of_settings if f.evidence[0]["setting"] == "rows of all ranks"), None)


@pytest.mark.parametrize(
    ("kind", "remedy", "saved_us"),
    [
        ("sum, sliced", "reduced-and-scattered", 200),
        ("sum, chunked", "reduced-and-scattered", 200),
        ("gather, sliced", "rows-exchanged", 200),
        ("gather, picked", "rows-exchanged", 400 * (1 - 300 / 1024)),
    ],
)
def test_rows_that_a_rank_does_not_read_need_not_be_sent_to_it(
    kind: str, remedy: str, saved_us: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = finding(tmp_path, kind, monkeypatch)
    assert found is not None and (found.where["file"], found.where["line"]) == (FILE, SENDING)
    assert [r.name for r in found.remedies] == [remedy] and "train.py:40" in found.detail
    assert found.saving.bound and found.saving_ns_per_step == pytest.approx(1000 * saved_us, rel=0.05)


@pytest.mark.parametrize(
    "kind",
    ["sum", "gather", "gather, picked often", "sum, also whole, sliced", "sum, both chunked"],
)
def test_what_is_read_whole_is_sent_whole(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert finding(tmp_path, kind, monkeypatch) is None


FLAT, PART = "[65536]", "[32768]"


def sharded(program: Lined, number: int, *, whole: bool = False) -> None:
    """Gradients in one flat tensor, summed and divided, of which the rank updates its part; ``whole``: of all of it."""
    at = 1000 * number + 10
    with program.line(20), program.range("forward"), program.range("net:Net"):
        operator(program, "linear", at, [-1, -1], "[64, 64], [64, 64]", 500)
    with program.line(41), program.range("backward"):
        program.launch(1000)
    with program.line(SENDING):
        operator(program, "cat", at + 1, [-1, -1], f"{PART}, {PART}", 10)
        begin = program.t
        program.launch(800, REDUCE)
        if program.noted is not None:
            label = f"c10d::allreduce_, op_id = {at + 3}, sizes = [{FLAT}, []], input_op_ids = [({at + 1},0), (0,-1)]"
            program.main.add_range(label, begin, program.t)
        operator(program, "div_", at + 4, [at + 1, -1], f"{FLAT}, []", 20)
    with program.line(PICKING):
        operator(program, "slice", at + 5, [at + 4, -1, -1, -1, -1], f"{FLAT}, [], [], [], []")
    given, size = (at + 4, FLAT) if whole else (at + 5, PART)
    operator(program, "lerp_", at + 6, [-1, given, -1], f"{size}, {size}, []", 20)
    operator(program, "zero_", at + 7, [at + 4], FLAT, 10)
    program.sync()


@pytest.mark.parametrize("whole", [False, True])
def test_a_rank_that_updates_its_part_gets_the_sum_of_that(
    whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_is_transfer(monkeypatch)
    settings = {"wrappers": []}
    program = Lined(SOURCE, settings).run(lambda program, number: sharded(program, number, whole=whole))
    said = said_of(program.write(tmp_path))
    told = [f for f in said if (f.evidence or [{}])[0].get("setting") == "rows of all ranks"]
    assert bool(told) is not whole
    if told:
        assert told[0].saving_ns_per_step == pytest.approx(400_000, rel=0.05)
        assert [r.name for r in told[0].remedies] == ["reduced-and-scattered"]
        assert "gradients-in-buckets" not in [r.name for f in said for r in f.remedies]

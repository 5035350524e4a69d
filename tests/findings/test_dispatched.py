"""A line that takes the next batch and broadcasts it: one rank reads for all, and what to do about the line is that each reads its part."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsysx import pipeline
from nsysx.catalogue import Late
from nsysx.findings import nsx111_straggler, nsx114_host_stall
from nsysx.findings._case import Case
from nsysx.findings._fix import Fix
from nsysx.model import Finding, Table
from tests.findings.lined import FILE, Lined, forward
from tests.ranks.test_rank_table import KERNELS, member, noted

US = 1_000
FETCH = "/venv/lib/python3.12/site-packages/accelerate/data_loader.py:859 DataLoaderDispatcher._fetch_batches"


def program(text: str, size: int | None, *, accelerate: bool) -> Lined:
    """Return a program whose line 10 holds the host for 3 ms and then broadcasts a message of so many bytes, None for none."""

    def body(program: Lined, number: int) -> None:
        with program.line(10):
            begin = program.t
            program.host(3_000)
            if size is not None:
                noted(program.main, "ncclBroadcast", program.t - 1, program.t + 40 * US, comm=77, size=size)
                program.launch(30, KERNELS["ncclBroadcast"], stream=20)
            if accelerate and program.noted is not None:
                program.noted.append((FETCH, begin + 1, program.t - 1))
        forward(program)
        with program.line(30):
            program.sync()

    made = Lined({10: text, 20: "y = net(x)", 30: "torch.cuda.synchronize()"})
    member(made.main, 77, 2, 0)
    return made.run(body)


@pytest.mark.parametrize(
    ("text", "size", "accelerate", "dispatched"),
    [
        ("for x, y in loader:", 4_000_000, True, True),
        ("for x, y in loader:", 4_000_000, False, True),
        ("x, y = next(batches)", 4_000_000, False, True),
        ("for x, y in loader:", 4_000, True, False),  # sizes and seeds that ranks agree on
        ("for x, y in loader:", None, True, False),
        ("x = prepare(x)", 4_000_000, True, False),
    ],
)
def test_a_batch_that_is_broadcast_where_it_is_taken_is_read_by_one_rank(
    tmp_path: Path, text: str, size: int | None, accelerate: bool, dispatched: bool
) -> None:
    here = [
        f for f in program(text, size, accelerate=accelerate).found(tmp_path, "NSX123") if f.where.get("line") == 10
    ]
    assert here, "the line holds the host for 3 ms in each step"
    assert ("own-part-of-data" in [way.name for way in here[0].remedies]) == dispatched
    assert ("accelerate" in here[0].fix and "split_dataset_by_node" in here[0].paste) == (dispatched and accelerate)


def test_a_pause_at_such_a_line_has_the_same_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def advice(case: Any, file: str, line: int) -> Fix | None:
        asked.append((file, line))
        return Fix("Each its part") if line == 10 else None

    monkeypatch.setattr(nsx114_host_stall, "dispatched_batches", advice)
    monkeypatch.setattr(nsx114_host_stall, "_line_stays", lambda case, line: False)
    profile = SimpleNamespace(code=lambda: None)
    case: Any = SimpleNamespace(profile=profile, module=lambda row: None, typed_rows=lambda table: [])
    here, elsewhere = ({"file": "/job/train.py", "line": number, "function": "step"} for number in (10, 20))
    assert nsx114_host_stall._move_it(case, {}, here).text == "Each its part"
    assert nsx114_host_stall._move_it(case, {}, elsewhere).text.startswith("Move what train.py:20 step does")
    assert asked == [("/job/train.py", 10), ("/job/train.py", 20)]


def late_rank(folder: Path, monkeypatch: pytest.MonkeyPatch, made: Lined, late: Late) -> Finding:
    """Return what is said of rank 0 where it is late for a reason, 3 ms a step."""
    told = Finding("NSX111", "straggler", verdict="found", title="", detail="Late.", where={"near": "rank 0"}, fix="")
    monkeypatch.setattr(nsx111_straggler, "of_ranks", lambda table: Fix("Find what slows it").into(told))
    monkeypatch.setattr(nsx111_straggler, "placed_by_cost", lambda case, finding: None)
    made.write(folder)
    profile = pipeline.gather(folder / "r.sqlite", pipeline.ReadingOptions())
    plain = {"late_at_times": None, "lone_work": None, "even_ns": None, "late_spread": None}
    rows = [{"rank": rank, "process": rank, "straggler": rank == 0, "late_cause": late, **plain} for rank in range(2)]
    case = Case(profile, {}, None, Table("ranks", "Ranks", (), tuple(rows)))
    return nsx111_straggler.check(case)[0]


@pytest.mark.parametrize(
    ("text", "size", "late", "dispatched"),
    [
        ("for x, y in loader:", 4_000_000, Late.HOST, True),
        ("for x, y in loader:", 4_000_000, Late.INPUT, True),
        ("for x, y in loader:", 4_000_000, Late.COMPUTE, False),
        ("for x, y in loader:", 4_000, Late.HOST, False),
        ("x = prepare(x)", 4_000_000, Late.HOST, False),
    ],
)
def test_a_rank_that_is_late_because_it_reads_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, size: int, late: Late, dispatched: bool
) -> None:
    told = late_rank(tmp_path, monkeypatch, program(text, size, accelerate=True), late)
    assert ("own-part-of-data" in [way.name for way in told.remedies]) == dispatched
    assert told.where == {"near": "rank 0", **({"file": FILE, "line": 10} if dispatched else {})}
    assert told.saving.bound == dispatched and ("batches of all 2 ranks" in told.detail) == dispatched

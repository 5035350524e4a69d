"""NSX110: collectives that a line waits for before work that needs nothing of them, and those that the next work reads."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from nsysx.catalogue import DeviceActivity
from nsysx.findings import _costly_collectives, _waited_early
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined, all_is_transfer
from tests.findings.test_smaller_operators import operator
from tests.findings.test_widened_messages import REDUCE

MAKES, WAITS, WORKS, READS = 30, 34, 36, 38
SOURCE = {
    MAKES: "sums = moments(x)",
    WAITS: "dist.all_reduce(sums, async_op=True).wait()",
    WORKS: "y = tower(x)",
    READS: "z = y * sums",
}
X = "[64, 128]"


def reduced(program: Lined, at: int, made: int, stream: int) -> None:
    """A reduction (300 us) in place of what operator ``made`` made."""
    begin = program.t
    program.launch(300, REDUCE, stream=stream)
    if program.noted is not None:
        label = f"c10d::allreduce_, op_id = {at}, sizes = [{X}, []], input_op_ids = [({made},0), (0,-1)]"
        program.main.add_range(label, begin, program.t)


def step(program: Lined, number: int, *, kind: str) -> None:
    """A product whose sums are reduced, a product of 400 us that needs nothing of them, and one that reads both."""
    at = 1000 * number + 10
    with program.range("forward"), program.range("net:Net"):
        with program.line(20):
            operator(program, "mm", at, [-1, -1], f"{X}, {X}", 500)
        with program.line(MAKES):
            operator(program, "sum", at + 1, [at], X, 5)
            operator(program, "view", at + 2, [at + 1], X)
        with program.line(WAITS):
            reduced(program, at + 3, at + 1, 20 if kind == "beside" else 7)
        with program.line(WORKS):
            if kind == "read by a kernel":
                program.launch(1, "hand_written")
            # A view that was there before is the same memory.
            source = {"needed": at + 1, "needed by a view": at + 2}.get(kind, at)
            operator(program, "mm", at + 4, [source, -1], f"{X}, {X}", 400)
        with program.line(READS):
            operator(program, "mul", at + 5, [at + 4, at + 4 if kind == "read by nothing" else at + 1], f"{X}, {X}", 5)
    with program.line(21), program.range("backward"):
        program.launch(300)
    program.sync()


def found(folder: Path, kind: str, code: str, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    all_is_transfer(monkeypatch, _waited_early)
    return Lined(SOURCE).run(lambda program, number: step(program, number, kind=kind)).found(folder, code)


def test_a_collective_that_is_waited_for_before_other_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = found(tmp_path, "early", "NSX110", monkeypatch)
    assert [way.name for way in finding.remedies] == ["async-collectives"]
    assert (finding.where["file"], finding.where["line"]) == (FILE, WAITS)
    assert f"where its result is used (train.py:{READS})" in finding.fix and "400 us of work" in finding.fix
    assert not finding.saving.bound and 50_000 < (finding.saving_ns_per_step or 0) < 300_000


@pytest.mark.parametrize(("kind", "told"), [("early", True), ("needed", False), ("needed by a view", False)])
def test_what_the_next_work_reads_is_not_told_to_run_beside_it(
    kind: str, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another line's, outside of the network, is on the stream of the computation, too."""
    monkeypatch.setattr(
        _costly_collectives,
        "_of_program",
        lambda profile: profile.steady_ops.select(
            "op", "stream", "phase", "cls", ns=pl.col("end_ns") - pl.col("start_ns")
        ).filter(pl.col("cls") == DeviceActivity.COMM.value),
    )
    names = {f.evidence[0]["setting"] for f in found(tmp_path, kind, "NSX127", monkeypatch)}
    assert names == ({"stream of collectives"} if told else set())


@pytest.mark.parametrize("kind", ["needed", "needed by a view", "read by a kernel", "read by nothing", "beside"])
def test_collectives_behind_which_nothing_could_run(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = found(tmp_path, kind, "NSX110", monkeypatch)
    assert all("async-collectives" not in [way.name for way in f.remedies] for f in told)

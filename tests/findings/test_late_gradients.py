"""NSX110: gradients that lines reduce behind backward in a few messages, and reductions that only look like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.findings import _late_gradients
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined, all_is_transfer
from tests.findings.test_reduced_twice import Job
from tests.ranks.test_rank_table import noted

REDUCES, READS = 31, 36
SOURCE = {
    30: "flat = torch.cat([p.grad.flatten() for p in ps])",
    REDUCES: "dist.all_reduce(flat)",
    READS: "total += loss.item()",
}
BYTES = 40_000_000


def step(program: Lined, number: int, *, kind: str) -> None:
    """Forward (1 ms), backward (1.5 ms), and a reduction (500 us) of the gradients, or of something else, behind it."""
    assert isinstance(program, Job)
    if not number:
        noted(program.main, "ncclCommInitRankConfig", 1, 2, comm=5, of=2, Rank=0)
    with program.line(20), program.range("forward"), program.range("net:Net"):
        program.launch(1000)
    with program.line(21), program.range("backward"):
        program.launch(1500)
        if kind == "in backward, too":
            program.reduce(BYTES, 100, 20)
    with program.line(30, "elsewhere" if kind == "copied elsewhere" else "step"):
        program.launch(400 if kind.startswith("copied") else 10, "CatArrayBatchedCopy")
    with program.line(REDUCES):
        for _ in range(30 if kind == "one by one" else 1):
            program.reduce(4_096 if kind == "a few numbers" else BYTES, 500 / (30 if kind == "one by one" else 1), 7)
    with program.line(40), program.range("optimizer Adam"):
        program.launch(200)
    with program.line(READS):
        program.sync()


def found(folder: Path, kind: str, code: str, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    all_is_transfer(monkeypatch, _late_gradients)
    settings = {
        "wrappers": [{"kind": "DDP"}] if kind == "wrapped" else [],
        "optimizers": [{"elements": BYTES // 4, "dtypes": {"float32": 1}}],
        "backwards": 1,
    }
    program = Job(SOURCE, settings).run(lambda program, number: step(program, number, kind=kind))
    return program.found(folder, code)


def test_gradients_in_one_message_behind_backward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = found(tmp_path, "flat", "NSX110", monkeypatch)
    assert [way.name for way in finding.remedies] == ["gradients-in-buckets"]
    assert "1 message of a step carries the gradients of all parameters behind backward" in finding.fix
    assert (finding.where["file"], finding.where["line"]) == (FILE, REDUCES)
    assert not finding.saving.bound and 100_000 <= (finding.saving_ns_per_step or 0) <= 350_000


@pytest.mark.parametrize(("kind", "moved"), [("copied", True), ("copied elsewhere", False)])
def test_copies_into_the_message_go_with_it(
    kind: str, moved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (finding,) = found(tmp_path, kind, "NSX110", monkeypatch)
    assert ("400 us of copies into the message" in finding.fix) is moved
    least = 400_000 if moved else 0
    assert least + 100_000 <= (finding.saving_ns_per_step or 0) <= least + 350_000


@pytest.mark.parametrize("kind", ["wrapped", "in backward, too", "a few numbers"])
def test_reductions_behind_backward_that_are_not_all_gradients(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = found(tmp_path, kind, "NSX110", monkeypatch)
    assert not any(f.title.startswith("Gradients are reduced behind") for f in told)


@pytest.mark.parametrize(("kind", "metrics"), [("flat", False), ("a few numbers", True)])
def test_gradients_are_no_metrics_that_the_next_lines_read(
    kind: str, metrics: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {f.evidence[0]["setting"] for f in found(tmp_path, kind, "NSX127", monkeypatch)}
    assert told == ({"metrics in each step"} if metrics else set())


def in_buckets(program: Lined, number: int, *, late: bool, buckets: int) -> None:
    """A backward of 8 x 500 us, and reductions of 300 us: beside it, or all when its last kernel has begun."""
    assert isinstance(program, Job)
    if not number:
        noted(program.main, "ncclCommInitRankConfig", 1, 2, comm=5, of=2, Rank=0)
    with program.line(20), program.range("forward"), program.range("net:Net"):
        program.launch(1000)
    with program.line(21), program.range("backward"):
        for n in range(8):
            program.launch(500)
            if not late and n < buckets:
                program.host(500)
                program.reduce(BYTES, 300, 20)
        if late:
            program.sync()
            for _ in range(buckets):
                program.reduce(BYTES, 300, 20)
    with program.line(40), program.range("optimizer Adam"):
        program.sync()
        program.launch(200)
    with program.line(READS):
        program.sync()


@pytest.mark.parametrize(("late", "buckets", "told"), [(True, 6, True), (False, 6, False), (True, 2, False)])
def test_buckets_that_wait_for_one_that_comes_last(
    late: bool, buckets: int, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_is_transfer(monkeypatch, _late_gradients)
    wrapper = {
        "kind": "DDP",
        "count": 1,
        "find_unused_parameters": True,
        "static_graph": False,
        "unused_parameter_bytes": 0,
    }
    settings = {
        "wrappers": [wrapper],
        "optimizers": [
            {"class": "Adam", "elements": BYTES // 4, "dtypes": {"float32": 1}, "gradients": {"with": 9, "without": 0}}
        ],
        "backwards": 1,
    }
    program = Job(SOURCE, settings).run(lambda program, number: in_buckets(program, number, late=late, buckets=buckets))
    found = [f for f in program.found(tmp_path, "NSX127") if f.evidence[0]["setting"] == "find_unused_parameters"]
    beside = [f for f in found if "order of gradients" in f.saving.confidence]
    assert bool(beside) == told
    if told:
        assert 400_000 < (beside[0].saving.likely_ns or 0) <= 5 * 300_000

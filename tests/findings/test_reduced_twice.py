"""NSX127: gradients that a line reduces again behind backward, and reductions that only look like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.lined import FILE, Lined
from tests.ranks.test_rank_table import KERNELS, noted

BACKWARD, LOOP, REDUCES, DIVIDES, STEP = 21, 30, 31, 32, 40
SOURCE = {
    BACKWARD: "loss.backward()",
    LOOP: "for p in model.parameters():",
    REDUCES: "dist.all_reduce(p.grad)",
    DIVIDES: "p.grad /= world",
    STEP: "opt.step()",
}
WEIGHTS = 10
BYTES = 4_000_000


class Job(Lined):
    """A rank whose NCCL notes what it sends."""

    def reduce(self, size: int, us: float, stream: int, name: str = "ncclAllReduce") -> None:
        self.host(2)
        begin = self.t
        self.launch(us, KERNELS[name], stream=stream)
        noted(self.main, name, begin, self.t, comm=5, size=size)


def step(program: Lined, number: int, *, kind: str) -> None:
    """A backward that reduces the gradients in two buckets; a loop that reduces each gradient, and halves it."""
    assert isinstance(program, Job)
    if not number:
        noted(program.main, "ncclCommInitRankConfig", 1, 2, comm=5, of=2, Rank=0)
    if kind == "before the forward":
        average(program, kind)
    with program.line(20), program.range("forward"), program.range("net:Net"):
        program.launch(1000)
    with program.line(BACKWARD), program.range("backward"):
        program.launch(1500)
        if kind != "no wrapper":
            for _ in range(2):
                program.reduce(WEIGHTS * BYTES // 2, 100, 20, "ncclAllGather" if kind == "sharded" else "ncclAllReduce")
    if kind != "before the forward":
        average(program, kind)
    with program.line(STEP), program.range("optimizer Adam"):
        program.launch(200)
    program.sync()


def average(program: Job, kind: str) -> None:
    """Reduce each gradient, or what ``kind`` says."""
    for number in range(WEIGHTS):
        with program.line(LOOP, "average"):
            program.host(1)
        with program.line(REDUCES, "average"):
            name = "ncclBroadcast" if "weights" in kind else "ncclAllReduce"
            program.reduce(64 if kind == "metrics" else BYTES, 50, 7, name)
        with program.line(DIVIDES, "average"):
            program.launch(10, "vectorized_elementwise_kernel")
        if kind == "some of them" and number == 3:
            break


def found(folder: Path, kind: str) -> list[Finding]:
    held = {"weights of a rank": 1, "weights that each rank has updated in part": 2}.get(kind)
    optimizers = [{"elements": WEIGHTS * BYTES // 4 // held, "dtypes": {"float32": 1}}] if held else []
    source = {**SOURCE, REDUCES: "dist.broadcast(p.data, 0)"} if held else SOURCE
    program = Job(source, {"optimizers": optimizers} if held else None)
    program.run(lambda program, number: step(program, number, kind=kind))
    of_settings = program.found(folder, "NSX127")
    return [f for f in of_settings if f.evidence[0]["setting"] == "gradients reduced again"]


def test_gradients_that_a_line_reduces_again(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "again")
    assert (finding.where["file"], finding.where["line"]) == (FILE, REDUCES)
    assert [way.name for way in finding.remedies] == ["not-reduced-again"]
    # All of the loop goes: ten reductions of 50 us and the halving of what they leave.
    assert finding.saving_ns_per_step == pytest.approx(600_000, rel=0.15)


def test_weights_that_a_line_sends_though_all_ranks_have_the_same(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "weights of a rank")
    assert finding.where["line"] == REDUCES and "sends 38.1 MiB over all ranks" in finding.detail
    # The line beside it updates the weights (an average of them): it stays.
    assert finding.saving_ns_per_step == pytest.approx(500_000, rel=0.15)


@pytest.mark.parametrize(
    "kind",
    [
        "no wrapper",
        "metrics",
        "some of them",
        "before the forward",
        "sharded",
        "weights that each rank has updated in part",
    ],
)
def test_reductions_that_are_needed(kind: str, tmp_path: Path) -> None:
    assert not found(tmp_path, kind)


CALL, INSIDE, HELPER = 50, 51, 60


def by_helper(program: Lined, number: int, *, kind: str) -> None:
    """The same, but the loop is a helper's, which is called around backward or behind it; it may clip the gradients, too."""
    assert isinstance(program, Job)
    if not number:
        noted(program.main, "ncclCommInitRankConfig", 1, 2, comm=5, of=2, Rank=0)
    with program.line(20, "run_step"), program.range("forward"), program.range("net:Net"):
        program.launch(1000)
    with program.line(CALL, "run_step"):
        program.host(2)
    with program.line(INSIDE, "run_step"), program.range("backward"):
        program.host(1)
        program.launch(1500)
        for _ in range(2):
            program.reduce(WEIGHTS * BYTES // 2, 100, 20)
    with program.line(CALL, "run_step"):
        program.host(2)
        with program.line(HELPER, "synced"):
            program.host(2)
            average(program, "again")
            if kind == "clips":
                program.launch(30, "multi_tensor_apply_kernel")
    with program.line(STEP, "run_step"), program.range("optimizer Adam"):
        program.launch(200)
    program.sync()


TEXTS = {
    HELPER: "average([p.grad for p in model.parameters()])",
    STEP: "    opt.step()",
    INSIDE: "        loss.backward()",
}


@pytest.mark.parametrize(
    ("text", "kind", "line", "paste"),
    [
        ("    with synced(self.model):", "", CALL, "loss.backward()  # not inside of synced(self.model)"),
        ("    average(self.model)", "", CALL, "# average(self.model)  # deleted"),
        ("    with synced(self.model), autocast():", "", CALL, ""),
        ("    self.losses[-1] = average(self.model)", "", CALL, ""),
        ("    with synced(self.model):", "clips", REDUCES, ""),
    ],
)
def test_what_a_helper_reduces_again_is_told_where_a_step_calls_it(
    text: str, kind: str, line: int, paste: str, tmp_path: Path
) -> None:
    program = Job(SOURCE | TEXTS | {CALL: text}).run(lambda program, number: by_helper(program, number, kind=kind))
    every = [f for f in program.findings(tmp_path, "NSX127") if f.verdict == "found"]
    assert [f.evidence[0]["setting"] for f in every] == ["gradients reduced again"]  # not to be joined in one message
    assert (every[0].where["line"], every[0].paste) == (line, paste)


def test_exposed_communication_names_what_can_be_deleted(tmp_path: Path) -> None:
    source = SOURCE | TEXTS | {CALL: "    with synced(self.model):"}
    program = Job(source).run(lambda program, number: by_helper(program, number, kind=""))
    (found,) = program.found(tmp_path, "NSX110")
    assert [way.name for way in found.remedies] == ["not-reduced-again"] and found.where["line"] == CALL
    assert found.paste == "loss.backward()  # not inside of synced(self.model)"

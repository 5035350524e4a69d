"""NSX127: gradients that a line reduces for each micro-batch, and reductions that each micro-batch needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.findings._summed_late import added_up
from nsysx.model import Finding
from tests.findings.lined import FILE
from tests.findings.test_reduced_twice import Job
from tests.ranks.test_rank_table import noted

FORWARD, BACKWARD, NAMED, REDUCES, ADDS, STEP = 20, 21, 30, 31, 32, 40
SOURCE = {
    FORWARD: "out = stage(x[i])",
    BACKWARD: "torch.autograd.backward(out, gradient)",
    REDUCES: "dist.all_reduce(tied.grad, group=embed_group)",
    ADDS: "tied.main_grad.add_(tied.grad); tied.grad = None",
    STEP: "opt.step()",
}
MICRO_BATCHES, REDUCE_US, BYTES = 4, 1000, 500_000_000
TEXTS = {
    "named": "g = p.grad; dist.all_reduce(g, group=embed_group)",
    "of activations": "dist.all_reduce(grad_output, group=tp)",
    "losses": "dist.all_reduce(loss.detach())",
}


def step(program: Job, number: int, kind: str) -> None:
    if not number:
        noted(program.main, "ncclCommInitRankConfig", 1, 2, comm=5, of=2, Rank=0)
    for n in range(MICRO_BATCHES):
        with program.line(FORWARD), program.range("forward"), program.range("net:Stage"):
            program.launch(500)
        with program.line(BACKWARD), program.range("backward"):
            program.launch(1000)
            if kind in ("named", "of activations"):  # in a hook
                reduce(program, BYTES)
        if kind not in ("named", "of activations") and (kind != "once" or n == MICRO_BATCHES - 1):
            reduce(program, BYTES if kind != "unlike" else BYTES + 1000 * n)
        if kind == "updated each time":
            with program.line(STEP), program.range("optimizer Adam"):
                program.launch(100)
    with program.line(STEP), program.range("optimizer Adam"):
        program.launch(100)
    program.sync()


def reduce(program: Job, size: int) -> None:
    with program.line(REDUCES):
        program.reduce(size, REDUCE_US, 7)
    with program.line(ADDS):
        program.launch(100, "vectorized_elementwise_kernel")


def found(folder: Path, kind: str = "") -> list[Finding]:
    wrappers = [{"kind": "DDP"}] if kind == "wrapped" else []
    program = Job(SOURCE | ({REDUCES: TEXTS[kind]} if kind in TEXTS else {}), {"step": 1, "wrappers": wrappers})
    program.run(lambda program, number: step(program, number, kind))  # type: ignore[arg-type]
    findings = program.found(folder, "NSX127")
    return [each for each in findings if each.evidence[0]["setting"] == "gradients of each micro-batch"]


@pytest.mark.parametrize("kind", ["", "named"])
def test_gradients_of_each_micro_batch(kind: str, tmp_path: Path) -> None:
    (finding,) = found(tmp_path, kind)
    assert (finding.where["file"], finding.where["line"]) == (FILE, REDUCES)
    assert "once for each of the 4 backwards of a step, 476.8 MiB each" in finding.detail
    assert finding.saving_ns_per_step == pytest.approx(3 * REDUCE_US * 1000, rel=0.05) and finding.saving.bound
    first, last = finding.paste.splitlines()
    name = "p.grad, group=group" if kind else "tied.grad, group=embed_group"
    assert first.startswith(f"dist.all_reduce({name})  # once") and last == "optimizer.step()"


@pytest.mark.parametrize("kind", ["once", "of activations", "losses", "updated each time", "unlike", "wrapped"])
def test_reductions_that_each_micro_batch_needs(kind: str, tmp_path: Path) -> None:
    assert not found(tmp_path, kind)


def test_a_gradient_with_a_name_that_is_added_to_a_sum() -> None:
    lines = {
        "43": "        grad = self.weight.grad.float()",
        "44": "        dist.all_reduce(grad, group=self.group)",
        "45": "        self.main_grad += grad",
        "48": "        self.weight.grad = self.main_grad.to(self.weight.dtype)",
    }
    assert added_up(lines, 44).splitlines() == [
        "self.main_grad += self.weight.grad.float()  # in place of lines 43 to 45",
        "dist.all_reduce(self.main_grad, group=self.group)  # once, behind the last micro-batch: ahead of line 48 "
        "(self.weight.grad = self.main_grad.to(self.weight.dtype))",
    ]
    assert added_up({**lines, "45": "total.add_(grad)"}, 44).splitlines()[1].endswith("behind the last micro-batch")
    assert added_up({**lines, "45": "norm = grad.norm()"}, 44) == ""

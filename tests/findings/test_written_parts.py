"""NSX131: parts that a loop writes into a tensor under autograd, whose backward copies the whole gradient for each."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nsysx.model import Finding
from tests.findings.lined import FILE, Lined
from tests.findings.test_smaller_operators import GEMM, operator

LINE, ROUNDS = 25, 12
SOURCE = {LINE: "out[:, t] = self.head(state)  # one step"}
COPY = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>(int)"


def step(program: Lined, number: int, kind: str) -> None:
    """Twelve writes whose gradients copy 120 us each; ``first``: the first part is left out, ``other``: what was written into stays."""
    at = 5000 * number + 10
    with program.range("forward"), program.range("net:Net"):
        operator(program, "linear", at, [-1, -1], "[64, 64], [64, 64]", 1000)
    if kind != "other":
        operator(program, "zeros", at + 1, [-1], "[]", 3)
    nodes, rows = list[int](), range(1 if kind == "first" else 0, ROUNDS)
    for n in rows:
        here = at + 10 * n + 10
        with program.line(LINE):
            operator(program, "linear", here, [at, -1], "[4, 64], [64, 64]", 10)
            operator(program, "select", here + 1, [-1 if kind == "other" else at + 1, -1], f"[4, {ROUNDS}, 64], []")
            begin = program.t
            program.launch(3, COPY)
            if program.noted is not None:
                ids = f"({here + 1},0), ({here},0)"
                text = (
                    f"aten::copy_, seq = {here}, op_id = {here + 2}, sizes = [[4, 64], [4, 64]], input_op_ids = [{ids}]"
                )
                program.main.add_range(text, begin, program.t)
        nodes.append(here)
    operator(program, "sum", at + 900, [at + 1], f"[4, {ROUNDS}, 64]", 5)
    for node in reversed(nodes):
        begin = program.t
        program.launch(120, COPY)
        inner = program.t
        program.launch(2, GEMM)
        if program.noted is not None:
            program.main.add_range(f"torch::autograd::CopyBackwards, seq = {node}", inner, program.t)
            program.main.add_range(f"torch::autograd::CopySlices, seq = {node + 1}", begin, program.t)
    program.sync()


def found(folder: Path, kind: str = "", source: dict[int, str] | None = None) -> list[Finding]:
    program = Lined(source or SOURCE, {"networks": [{"class": "Net", "package": "torch"}]})
    findings = program.run(lambda program, number: step(program, number, kind)).found(folder, "NSX131")
    return [each for each in findings if each.remedies[0].name == "parts-joined-at-end"]


def test_gradients_that_are_copied_for_each_part(tmp_path: Path) -> None:
    (finding,) = found(tmp_path)
    assert (finding.where["file"], finding.where["line"]) == (FILE, LINE)
    assert finding.saving_ns_per_step == pytest.approx(ROUNDS * 122_000, rel=0.05)
    assert "4 x 12 x 64 is filled by 12 writes" in finding.detail
    assert finding.paste.splitlines() == [
        "parts.append(self.head(state))  # in the loop, not out[:, t] = self.head(state)",
        "out = torch.stack(parts, 1)  # once, behind the loop",
    ]


def test_the_paste_makes_the_same_result_and_gradients(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "first", {LINE: "out[:, t] = state"})
    each, behind = finding.paste.splitlines()
    begin = finding.condition.partition(". ")[0]
    assert begin == "Begin with parts = [zeros of 4 x 64]: one part is not written"
    weight, results = torch.randn(64, 64, requires_grad=True), list[tuple[torch.Tensor, torch.Tensor | None]]()
    for pasted in (False, True):
        given: dict[str, object] = {"torch": torch, "out": torch.zeros(4, ROUNDS, 64), "parts": [torch.zeros(4, 64)]}
        state = torch.ones(4, 64)
        for n in range(1, ROUNDS):
            given["state"] = state = (state @ weight).tanh()
            given["t"] = n
            exec(each if pasted else "out[:, t] = state", given)
        if pasted:
            exec(behind, given)
        out, weight.grad = given["out"], None
        assert isinstance(out, torch.Tensor)
        out.square().sum().backward()
        results.append((out.detach(), weight.grad))
    torch.testing.assert_close(results[0], results[1])


def test_what_was_there_before_the_step_is_no_join(tmp_path: Path) -> None:
    assert not found(tmp_path, "other")

"""NSX126: tables that ranks share and that are called in line, the same in a pipeline, and other modules that read."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding, Summary
from tests.findings.lined import Lined

EXCHANGE = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def exchanged(program: Lined, reads: int) -> None:
    """Exchanges of sizes and ids, of which the host reads these first."""
    for number in range(3):
        program.launch(20, "permute_2D_kernel")
        program.launch(40, EXCHANGE, stream=20)
        program.launch(5, "copy")
        if number < reads:
            program.copy(2, "DtoH", bytes=64)
            program.sync()
        program.host(400)


def step(program: Lined, *, cls: str, ahead: bool) -> None:
    with program.line(10):
        if ahead:
            exchanged(program, 2)
        with program.range("forward"), program.range("dmp:Wrapper"):
            with program.range(f"dmp.tables:{cls}"):
                if not ahead:
                    exchanged(program, 2)
                program.launch(300, "split_embedding_codegen_forward_unweighted_kernel<float>")
            for _ in range(20):
                program.launch(60)
    with program.line(12), program.range("backward"):
        for _ in range(40):
            program.launch(60)
    with program.line(13), program.range("optimizer Adam"):
        program.launch(200, "multi_tensor_apply_kernel")


def summary_of(folder: Path, *, cls: str = "ShardedEmbeddingBagCollection", ahead: bool = False) -> Summary:
    program = Lined({10: "loss, _ = dmp(batch)", 12: "loss.backward()", 13: "opt.step()"})
    return program.run(lambda p, _: step(p, cls=cls, ahead=ahead)).summary(folder)


def found(summary: Summary) -> list[Finding]:
    return [each for each in summary.findings or () if each.remedies and each.remedies[0].name == "sparse-pipeline"]


def test_tables_that_are_called_in_line(tmp_path: Path) -> None:
    summary = summary_of(tmp_path)
    (finding,) = found(summary)
    assert finding.code == "NSX126" and finding.where["line"] == 10 and "TrainPipelineSparseDist(dmp," in finding.paste
    assert 300_000 < (finding.saving.likely_ns or 0) <= (finding.cost_ns_per_step or 0)
    assert not [f for f in summary.findings or () if f.code in ("NSX101", "NSX105") and f.verdict == "found"]
    assert summary.answer is not None and summary.answer.do[0].paste == finding.paste


@pytest.mark.parametrize("options", [{"ahead": True}, {"cls": "Experts"}])
def test_a_pipeline_and_other_modules(options: dict[str, object], tmp_path: Path) -> None:
    assert not found(summary_of(tmp_path, **options))  # type: ignore[arg-type]

"""NSX126: many small questions to the GPU, each answered before the next one is asked; or few, or of another kind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from nsysx.findings._fix import Fix
from nsysx.model import Summary
from tests.findings import Program, empty, healthy, stepless


def ask(program: Program, *, launches: int = 6, network: bool = True, uploads: bool = True) -> None:
    """One round: the input goes up, a small network answers, and the CPU reads that."""
    if uploads:
        program.copy(2, bytes=4096)
    if network:
        with program.range("evaluation Sequential"), program.range(":Sequential"):
            for _ in range(launches):
                program.launch(2)
                program.host(14)
    else:
        for _ in range(launches):
            program.launch(2)
            program.host(14)
    program.copy(2, "DtoH", bytes=128)
    program.host(20)


def update(program: Program) -> None:
    """Train on what the rounds gave."""
    with program.range("forward Sequential"), program.range(":Sequential"):
        program.launch(100)
    with program.range("backward"):
        program.launch(200)
    with program.range("optimizer Adam"):
        program.launch(50)


def said(folder: Path, rounds: int, **kind: bool) -> Summary:
    """Return the Summary of steps that make so many rounds, then train."""

    def body(program: Program, number: int) -> None:
        for _ in range(rounds):
            ask(program, **kind)
        update(program)

    return Program().steps(body, 12).summary(folder)


def verdict(summary: Summary) -> str:
    return next(f.verdict for f in summary.findings or () if f.code == "NSX126")


def test_a_policy_that_is_read_for_each_action_leads(tmp_path: Path) -> None:
    """Its rounds are told before a graph of the whole, which cannot take them together; and where they are."""
    summary = said(tmp_path, 16)
    (finding,) = [f for f in summary.findings or () if f.code == "NSX126"]
    assert finding.verdict == "found"
    assert finding.where == {"module": "Sequential", "phase": "evaluation"}
    assert "Sequential is called 16 times a step" in finding.fix
    assert summary.answer.do[-1].code == "NSX126"
    assert summary.answer.bound
    graph = next(f for f in summary.findings or () if f.code == "NSX102")
    assert graph.saving_ns_per_step is not None
    assert graph.saving_ns_per_step + (finding.saving_ns_per_step or 0) <= (summary.answer.now_ns or 0)


def test_a_loop_over_items_is_one_round_for_all(tmp_path: Path) -> None:
    """Between two modules that have nothing to do with it: the place says between which."""
    summary = said(tmp_path, 16, network=False, uploads=False)
    (finding,) = [f for f in summary.findings or () if f.code == "NSX126"]
    assert finding.fix.startswith("Process all 16 as one batch: now each makes the same 6 launches")
    assert "batched_nms" in finding.paste
    assert finding.where["near"].endswith("and the next Sequential")


@pytest.mark.parametrize(("rounds", "found"), [(3, "clear"), (5, "found")])
def test_a_few_values_read_back_are_no_rounds(tmp_path: Path, rounds: int, found: str) -> None:
    """From four alike on: the first one of a step also holds what the step before did last."""
    assert verdict(said(tmp_path, rounds)) == found


def test_tokens_that_a_model_makes_one_by_one_are_no_rounds(tmp_path: Path) -> None:
    """Each needs the one before it, and none needs anything that only the CPU has."""
    assert verdict(said(tmp_path, 16, uploads=False)) == "clear"


def test_a_loss_that_each_micro_step_reads_is_no_round(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        for _ in range(8):
            update(program)
            program.copy(2, "DtoH", bytes=4)

    assert verdict(Program().steps(body, 12).summary(tmp_path)) == "clear"


def test_rounds_behind_work_that_keeps_the_gpu_busy_cost_nothing(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        program.launch(20_000, stream=13)
        for _ in range(8):
            ask(program)
        update(program)

    finding = Program().steps(body, 12).finding(tmp_path, "NSX126")
    assert finding.verdict == "clear"


def experts(folder: Path, count: int, *, layers: int = 2) -> Summary:
    """Return the Summary of layers that ask so many times a forward which rows are an expert's, and of their backward."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"):
            for layer in range(layers):
                with program.range(f"moe.{layer}:MoE"):
                    for _ in range(count):
                        program.launch(6)
                        program.copy(2, "DtoH", bytes=8)
                        program.host(40)
                        program.launch(10)
        with program.range("backward"):
            program.launch(100)

    return Program().steps(body, 12).summary(folder)


def test_a_module_that_waits_for_each_expert_leads(tmp_path: Path) -> None:
    """At best all rounds but one go with their kernels, and no idle time of the host's is left: never less than that."""
    summary = experts(tmp_path, 8)
    (finding,) = [f for f in summary.findings or () if f.code == "NSX126"]
    assert finding.verdict == "found" and finding.saving.bound
    assert finding.where == {"module": "moe.*", "phase": "forward"}
    assert finding.title.startswith("moe.* waits 8 times in each forward")
    assert summary.answer.do[-1].code == "NSX126"
    works_ns = 2 * 8 * 16_000
    assert (finding.saving.most_ns or 0) >= (finding.saving_ns_per_step or 0) >= works_ns * 7 / 8
    assert summary.answer.then_ns is not None and summary.answer.then_ns <= 100_000 + works_ns


@pytest.mark.parametrize(("count", "found"), [(3, "clear"), (4, "found")])
def test_a_module_goes_round_from_four_waits_on(tmp_path: Path, count: int, found: str) -> None:
    assert verdict(experts(tmp_path, count, layers=4)) == found


@pytest.mark.parametrize(("asks", "remedies"), [("rows", ["groups-at-once"]), ("value", [])])
def test_experts_by_boolean_masks_behind_a_question_whether_there_are_rows(
    tmp_path: Path, asks: str, remedies: list[str]
) -> None:
    """``if m.any(): out[m] = experts[e](x[m])``: what is asked for first is a value, and the wait is for modules below the layer."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("moe:MoE"):
            for expert in range(8):
                program.launch(4)
                program.copy(2, "DtoH", bytes=1)
                if asks == "rows":
                    program.launch(4)
                    program.copy(2, "DtoH", bytes=8)
                    program.launch(4, "void at_cuda_detail::cub::DeviceSelectSweepKernel<long>(int)")
                with program.range(f"moe.experts.{expert}:Sequential"):
                    program.host(60)
                    program.launch(10, "sm90_gemm")
        with program.range("backward"):
            program.launch(100)

    found = Program().steps(body, 12).findings(tmp_path, "NSX126")
    assert [[way.name for way in f.remedies] for f in found if f.verdict == "found"] == [remedies]
    assert (found[0].cost_ns_per_step or 0) > 8 * 60_000, "what the GPU waits below the layer counts, too"


def test_products_of_groups_stay_in_one_product_over_all_rows(tmp_path: Path) -> None:
    def saved(kernel: str) -> tuple[int, str]:
        def body(program: Program, number: int) -> None:
            with program.range("forward"), program.range("moe:MoE"):
                for _ in range(8):
                    program.launch(4)
                    program.copy(2, "DtoH", bytes=8)
                    program.launch(4, "void at_cuda_detail::cub::DeviceSelectSweepKernel<long>(int)")
                    program.host(60)
                    program.launch(100, kernel)
            with program.range("backward"):
                program.launch(100)

        (tmp_path / kernel).mkdir()
        finding = Program().steps(body, 12).finding(tmp_path / kernel, "NSX126")
        return finding.saving.likely_ns or 0, finding.saving.confidence

    (products, why), (others, _) = saved("sm90_gemm"), saved("elementwise_kernel")
    assert others - products == pytest.approx(7 * 100_000, rel=0.02) and "multiply" in why


def test_the_grouped_product_gives_what_the_loop_over_experts_does() -> None:
    torch.manual_seed(0)
    experts, width, hidden = 4, 16, 32
    x, expert = torch.randn(40, width), torch.randint(experts, (40,))
    w1, w2 = torch.randn(experts, width, hidden), torch.randn(experts, hidden, width)
    out = torch.zeros_like(x)
    for e in range(experts):
        m = expert == e
        if m.any():
            out[m] = F.silu(x[m] @ w1[e]) @ w2[e]
    names = {"F": F, "x": x, "e": expert, "n": experts, "w1": w1, "w2": w2}
    exec(Fix.by_name("groups-at-once").paste, names)
    torch.testing.assert_close(names["y"], out, rtol=1e-3, atol=1e-3)


def test_without_rounds_it_is_clear_and_without_steps_it_cannot_be_told(tmp_path: Path) -> None:
    assert Program().steps(healthy).finding(tmp_path, "NSX126").verdict == "clear"
    for program in (stepless(healthy), empty()):
        assert program.finding(tmp_path, "NSX126").verdict == "cannot_tell"


@pytest.mark.parametrize(("pageable", "found"), [(True, "found"), (False, "clear")])
def test_a_copy_to_pinned_memory_that_nobody_waits_for_ends_no_round(
    tmp_path: Path, pageable: bool, found: str
) -> None:
    """Chunks of a pipeline that go out one after the other, the next one on its way: only what is read back holds the CPU."""

    def body(program: Program, number: int) -> None:
        for _ in range(8):
            for _ in range(6):
                program.launch(2)
                program.host(14)
            program.copy(2, "DtoH", bytes=128, pageable=pageable)
            program.host(20)
        update(program)

    assert verdict(Program().steps(body, 12).summary(tmp_path)) == found


@pytest.mark.parametrize(("operators", "found"), [(2, "clear"), (6, "found")])
def test_an_operator_that_waits_several_times_asks_once(operators: int, found: str, tmp_path: Path) -> None:
    """Of 6 waits in a forward each is a question of its own where as many operators wait, as ``bincount`` does three times."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("counts:Counts"):
            for turn in range(operators):
                begin = program.t
                for _ in range(6 // operators):
                    program.host(40)
                    program.launch(6)
                    program.copy(2, "DtoH", bytes=8)
                text = f"aten::bincount, op_id = {100 * (number + 1) + turn}, sizes = [[64]], input_op_ids = [(0,-1)]"
                program.main.add_range(text, begin, program.t)

    assert verdict(Program().steps(body, 12).summary(tmp_path)) == found

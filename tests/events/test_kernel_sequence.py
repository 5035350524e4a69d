"""Steps from the repeated sequence of GPU work: a layer is no step, an epoch is none, a graph is part of the sequence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from nsysx.events import attribute, correlate, nvtx_ranges, steps
from nsysx.events.steps import StepTable
from nsysx.reading.load import load
from tests.builder import Report, Thread

US = 1000

GEMM = [f"ampere_sgemm_{i}" for i in range(6)]
LAYER = [*GEMM[:3], "flash_fwd", *GEMM[3:], "layer_norm", "add", "gelu"]
BACKWARD = [f"{name}_bwd" for name in reversed(LAYER)]
EMBED, HEAD = ["embed", "position"], ["final_norm", "head_gemm"]
ADAM = ["adam_multi_tensor_apply"] * 3


class Program:
    """Launches kernels one after another, 10 us each, and remembers where its steps begin."""

    def __init__(self) -> None:
        self.report = Report()
        self.main: Thread = self.report.process(1).thread(1, "python")
        self.now = 0
        self.begins: list[int] = []

    def step(self, pause: int = 100 * US) -> None:
        self.now += pause
        self.begins.append(self.now)

    def run(self, kernels: Sequence[str], us: int = 8) -> None:
        for name in kernels:
            self.main.launch(self.now, 3 * US, kernel=name, gpu_start=self.now + 2 * US, gpu_dur=us * US)
            self.now += 10 * US

    def copy(self, kind: str, size: int) -> None:
        self.main.memcpy(self.now, 3 * US, kind=kind, bytes=size, gpu_start=self.now + 2 * US, gpu_dur=1 * US)
        self.now += 10 * US

    def graph(self, us: int) -> None:
        self.main.graph_launch(self.now, 5 * US, opaque=(self.now + 6 * US, us * US))
        self.now += (us + 10) * US

    def steps(self, folder: Path) -> StepTable:
        trace = load(self.report.write(folder / "r.sqlite"))
        named = nvtx_ranges.read(trace)
        return steps.find(named, attribute.attribute(trace, correlate.correlate(trace), named))


def begins(table: StepTable) -> list[int]:
    return table.cpu["start_ns"].to_list() if table.source == "kernels" else []


@pytest.mark.parametrize("layers", [4, 12, 32])
@pytest.mark.parametrize("count", [4, 30])
def test_a_layer_is_no_step(tmp_path: Path, layers: int, count: int) -> None:
    program = Program()
    for _ in range(count):
        program.step()
        program.run([*EMBED, *LAYER * layers, *HEAD])
    assert begins(program.steps(tmp_path)) == program.begins


def test_training_is_whole_with_its_optimizer(tmp_path: Path) -> None:
    program = Program()
    for _ in range(8):
        program.step()
        program.run([*EMBED, *LAYER * 6, *HEAD, "nll_loss_forward", *BACKWARD * 6, *ADAM])
    assert begins(program.steps(tmp_path)) == program.begins


def test_accumulated_gradients_are_one_step(tmp_path: Path) -> None:
    program = Program()
    for _ in range(6):
        program.step()
        for _ in range(4):
            program.run([*EMBED, *LAYER * 3, *HEAD, "nll_loss_forward", *BACKWARD * 3])
            program.now += 30 * US
        program.run(ADAM)
    assert begins(program.steps(tmp_path)) == program.begins


def test_two_optimizers_are_one_step(tmp_path: Path) -> None:
    program = Program()
    for _ in range(8):
        program.step()
        program.run(["generate", *LAYER, "judge", *LAYER, *BACKWARD, *ADAM])
        program.now += 50 * US
        program.run(["judge", *LAYER, *BACKWARD, "generate_bwd", *BACKWARD, *ADAM])
    assert begins(program.steps(tmp_path)) == program.begins


@pytest.mark.parametrize("extra", [["accuracy"], [*EMBED, *LAYER * 3, *HEAD, "argmax_eval", "count_eval"]])
def test_what_runs_every_third_step_is_no_level_above(tmp_path: Path, extra: list[str]) -> None:
    program = Program()
    for i in range(15):
        program.step()
        program.run([*EMBED, *LAYER * 6, *HEAD, "nll_loss_forward", *BACKWARD * 6, *ADAM])
        if i % 3 == 2:
            program.now += 200 * US
            program.run(extra)
            program.copy("DtoH", 4)
    assert begins(program.steps(tmp_path)) == program.begins


def test_evaluation_between_steps_is_in_none(tmp_path: Path) -> None:
    program, ends = Program(), []
    for i in range(12):
        program.step()
        program.run([*EMBED, *LAYER * 4, *HEAD, "nll_loss_forward", *BACKWARD * 4, *ADAM])
        ends.append(program.now)
        if i == 5:
            program.now += 500 * US
            program.run(["eval", *LAYER * 20])
    table = program.steps(tmp_path)
    assert begins(table) == program.begins
    assert table.cpu["end_ns"][5] == ends[5] + 500 * US  # where the evaluation begins


def test_a_part_of_a_step_makes_no_steps(tmp_path: Path) -> None:
    """A capture that begins and ends inside one pass holds layers alone."""
    program = Program()
    for _ in range(16):
        program.run(LAYER)
    table = program.steps(tmp_path)
    assert (table.source, table.cpu.height) == ("capture", 1)
    assert table.rule == "the whole capture as one step: no step range, no optimizer range, no repeated kernel sequence"


def test_weights_that_are_loaded_layer_by_layer_mark_no_step(tmp_path: Path) -> None:
    program = Program()
    for _ in range(16):
        program.main.memcpy(program.now, 3 * US, kind="HtoD", bytes=1 << 28, gpu_start=program.now, gpu_dur=900 * US)
        program.now += 1000 * US
        program.run(LAYER)
    assert program.steps(tmp_path).source == "capture"


def test_a_copied_input_makes_a_lone_sequence_a_step(tmp_path: Path) -> None:
    program = Program()
    for _ in range(10):
        program.step()
        program.copy("HtoD", 1 << 20)
        program.run(LAYER)
    assert begins(program.steps(tmp_path)) == program.begins


def test_opaque_graphs_are_elements(tmp_path: Path) -> None:
    """A few eager steps warm up, then graphs do nearly all of the work."""
    program = Program()
    for _ in range(6):
        program.run([*EMBED, *LAYER * 2, *HEAD], us=2)
    for _ in range(30):
        program.step()
        program.graph(4520)
    table = program.steps(tmp_path)
    assert begins(table) == program.begins
    assert (table.gpu["end_ns"] - table.gpu["start_ns"])[3] == 4630 * US


def test_copies_beside_a_graph_belong_to_its_step(tmp_path: Path) -> None:
    program = Program()
    for _ in range(20):
        program.step()
        program.copy("HtoD", 1 << 20)
        program.run(["copy_into_static_input"])
        program.graph(500)
        program.run(["argmax"])
    assert begins(program.steps(tmp_path)) == program.begins


def test_three_runs_of_a_query_are_no_steps(tmp_path: Path) -> None:
    program = Program()
    for _ in range(3):
        program.now += 50_000 * US
        program.run(["probe", "build", "hash", "scan", "filter", "join", "sum", "sort", "write"])
    assert program.steps(tmp_path).source == "capture"


def test_iterations_of_a_solver_are_steps(tmp_path: Path) -> None:
    program = Program()
    program.run(["initialise", "generate"])
    for i in range(10):
        program.step()
        sweep = ["advec_x", "advec_y"] if i % 2 else ["advec_y", "advec_x"]
        program.run(["ideal_gas", "viscosity", "calc_dt", "pdv", "revert", "flux", *sweep * 3, "reset"])
    assert begins(program.steps(tmp_path)) == program.begins


def test_the_sequence_must_hold_half_of_the_computing(tmp_path: Path) -> None:
    program = Program()
    program.copy("HtoD", 1 << 30)
    program.main.launch(program.now, 3 * US, kernel="search", gpu_start=program.now, gpu_dur=50_000 * US)
    program.now += 51_000 * US
    for _ in range(8):
        program.step()
        program.run([*EMBED, *LAYER * 4, *HEAD])
    assert program.steps(tmp_path).source == "capture"


def test_each_process_has_its_own(tmp_path: Path) -> None:
    program = Program()
    for _ in range(5):
        program.step()
        program.run([*EMBED, *LAYER * 4, *HEAD])
    other = program.report.process(2).thread(2, "python")
    other.launch(0, 3 * US, kernel="idle", gpu_start=5 * US, gpu_dur=US)
    table = program.steps(tmp_path)
    assert table.cpu.filter(pl.col("process") == table.process)["start_ns"].to_list() == program.begins


@pytest.mark.parametrize(("count", "steps"), [(100, 99), (40, 0)])
def test_a_loop_of_few_launches_has_the_period_of_its_launches(tmp_path: Path, count: int, steps: int) -> None:
    """Nothing says what happens once in a step: many repetitions that are alike to the grid are a loop, few may be layers."""
    program = Program()
    for _ in range(count):
        program.step(pause=5 * US)
        program.run(["colnorm", "at::native::cast", "nvjet_gemm", "at::native::relu"])
    found = begins(program.steps(tmp_path))
    assert len(found) >= steps if steps else not found
    assert set(found) <= set(program.begins), "the host turns around before the first kernel"


def test_a_loop_is_found_behind_a_start_that_is_unlike_it(tmp_path: Path) -> None:
    program = Program()
    program.run(["normal_kernel", "normal_kernel", "at::native::copy"])
    for _ in range(80):
        program.step(pause=5 * US)
        program.run(["solve", "nvjet_gemm", "at::native::add"])
    assert len(begins(program.steps(tmp_path))) >= 79


def test_a_loop_whose_launches_change_has_no_period(tmp_path: Path) -> None:
    program = Program()
    for number in range(100):
        program.step(pause=5 * US)
        program.run(["colnorm", *["nvjet_gemm"] * (1 + number % 3), "at::native::relu"])
    assert not begins(program.steps(tmp_path))

"""NSX132: models of one class, or calls of one, that run one after the other; layers of one network are no such models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings import Program


def in_turn(count: int, *, us: float = 4) -> Callable[[Program, int], None]:
    """``count`` models of one class, each with ten launches and 10 us of Python before each."""

    def body(program: Program, number: int) -> None:
        for model in range(count):
            with program.range("forward"), program.range(f"{f'Net#{model}' if model else 'Net'}:Net"):
                for _ in range(10):
                    program.host(10)
                    program.launch(us)

    return body


def layers(program: Program, number: int) -> None:
    with program.range("forward"), program.range("(Net):Net"):
        for layer in range(6):
            with program.range(f"layers.{layer}:Linear"):
                for _ in range(10):
                    program.host(10)
                    program.launch(4)


def finding(folder: Path, body: Callable[[Program, int], None]) -> Finding:
    return Program().steps(body).finding(folder, "NSX132")


def test_the_launches_of_one_model_stay(tmp_path: Path) -> None:
    found = finding(tmp_path, in_turn(8))
    assert found.verdict == "found" and "8 models of class Net" in found.title
    assert found.saving_ns_per_step == pytest.approx(7 / 8 * (found.cost_ns_per_step or 0), rel=0.001)
    assert [way.name for way in found.remedies] == ["stacked-models"]


@pytest.mark.parametrize("body", [in_turn(3), in_turn(8, us=400), layers], ids=["few", "busy", "layers"])
def test_few_models_a_busy_gpu_and_layers_of_one_network_are_clear(
    body: Callable[[Program, int], None], tmp_path: Path
) -> None:
    assert finding(tmp_path, body).verdict == "clear"


def operator(program: Program, number: int, made: int, begin: int) -> None:
    """An operator that was open since ``begin``, and which made its argument."""
    text = f"aten::linear, op_id = {number}, sizes = [[4, 8]], input_op_ids = [({made},0)]"
    program.main.add_range(text, begin, program.t)


def called(
    name: str, *, chained: bool = False, busy: bool = False, compiled: bool = False
) -> Callable[[Program, int], None]:
    """Eight calls of a module, of ``name`` with their number in it, each of what the one before made, or all of the same.

    ``compiled``: a kernel of each is launched by no operator.
    """

    def body(program: Program, number: int) -> None:
        first = 1_000 * (number + 1)
        with program.range("forward"), program.range("(Net):Net"):
            for turn in range(8):
                with program.range(name.format(turn)):
                    begin = program.t
                    for _ in range(10):
                        program.host(10)
                        program.launch(400 if busy else 4)
                    operator(program, first + turn, first + turn - 1 if chained and turn else 1, begin)
                    if compiled:
                        program.launch(4, "triton_poi_fused_add")

    return body


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("frames:Encoder", "inputs-in-one-call"),
        ("tables.{}:Embedding", "one-table"),
        ("heads.{}:Linear", "layers-at-once"),
        ("experts.{}:Expert", "stacked-models"),
    ],
)
def test_calls_that_need_nothing_of_each_other_are_one(name: str, remedy: str, tmp_path: Path) -> None:
    found = finding(tmp_path, called(name))
    assert found.verdict == "found" and [way.name for way in found.remedies] == [remedy]
    assert found.saving_ns_per_step == pytest.approx(7 / 8 * (found.cost_ns_per_step or 0), rel=0.001)


@pytest.mark.parametrize("kind", [{"chained": True}, {"busy": True}, {"compiled": True}], ids=str)
def test_calls_that_may_need_the_one_before_and_a_busy_gpu_are_clear(kind: dict[str, bool], tmp_path: Path) -> None:
    assert finding(tmp_path, called("blocks.{}:Block", **kind)).verdict == "clear"

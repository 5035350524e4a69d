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
    if name == "frames:Encoder":  # its 80 kernels of 4 us take as long for the inputs of all
        assert found.saving_ns_per_step == pytest.approx(7 / 8 * 80 * (12_000 + 4_000), rel=0.001)
        assert (found.saving.source, found.saving.most_ns) == (
            "limits",
            max(found.saving.most_ns or 0, 7 * 10 * 16_000),
        )
    else:
        assert found.saving_ns_per_step == pytest.approx(7 / 8 * (found.cost_ns_per_step or 0), rel=0.001)


def in_rounds(count: int) -> Callable[[Program, int], None]:
    """Three updates in a step, each with a backward, of ``count`` models that are each called once in it."""

    def body(program: Program, number: int) -> None:
        first = 1_000 * (number + 1)
        for update in range(3):
            with program.range("forward"), program.range("(Net):Net"):
                for turn in range(8):
                    with program.range(f"critics.{turn % count}:Critic"):
                        begin = program.t
                        for _ in range(10):
                            program.host(10)
                            program.launch(4)
                        operator(program, first + 10 * update + turn, 1, begin)
            with program.range("backward"):
                program.launch(4)

    return body


@pytest.mark.parametrize(("count", "several"), [(8, True), (1, False)])
def test_models_of_several_updates_are_those_of_one(count: int, several: bool, tmp_path: Path) -> None:
    found = finding(tmp_path, in_rounds(count))
    assert (found.verdict == "found") is several
    assert ("8 modules of class Critic" in found.title) is several


@pytest.mark.parametrize("kind", [{"chained": True}, {"busy": True}, {"compiled": True}], ids=str)
def test_calls_that_may_need_the_one_before_and_a_busy_gpu_are_clear(kind: dict[str, bool], tmp_path: Path) -> None:
    assert finding(tmp_path, called("blocks.{}:Block", **kind)).verdict == "clear"


SENDS = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def divided(*, table: bool = True, chained: bool = False, ranks: bool = True) -> Callable[[Program, int], None]:
    """Eight modules that each look up rows (or multiply), and send (``ranks``) what the next one is given (``chained``)."""

    def body(program: Program, number: int) -> None:
        first = 1_000 * (number + 1)
        with program.range("forward"), program.range("(Net):Net"):
            for turn in range(8):
                with program.range(f"tables.{turn}:Divided"):
                    begin = program.t
                    for _ in range(6):
                        program.host(20)
                        program.launch(4)
                    rows = 100 * (turn + 1) if table else 100
                    made = first + 10 * turn - 9 if chained and turn else 1
                    text = f"aten::{'embedding' if table else 'linear'}, op_id = {first + 10 * turn}, sizes = [[{rows}, 8], [16]]"
                    program.main.add_range(f"{text}, input_op_ids = [(0,-1), ({made},0)]", begin, program.t)
                    if ranks:  # it brings what has the number behind the operator's
                        program.host(20)
                        program.launch(10, SENDS)

    return body


@pytest.mark.parametrize(("table", "remedy"), [(True, "one-table"), (False, "packed-exchange")])
def test_modules_that_each_exchange_can_do_so_once_for_all(table: bool, remedy: str, tmp_path: Path) -> None:
    found = finding(tmp_path, divided(table=table))
    assert (
        found.verdict == "found"
        and "8 modules of class Divided run one after the other, each with 1 exchange" in found.title
    )
    assert [way.name for way in found.remedies] == [remedy]
    assert ("Divided(sum(sizes), dim)" in found.paste) is table and "8" in found.fix and "exchange" in found.fix.lower()
    # Seven of eight calls go: 20 us of Python and 5 us for the launch, seven times each.
    assert found.saving_ns_per_step == pytest.approx(7 * 7 * 25_000, rel=0.2)


def test_modules_that_need_what_the_one_before_brought_are_clear(tmp_path: Path) -> None:
    assert finding(tmp_path, divided(chained=True)).verdict == "clear"


def test_tables_that_exchange_nothing_are_one_model_for_all(tmp_path: Path) -> None:
    found = finding(tmp_path, divided(ranks=False))
    assert [way.name for way in found.remedies] == ["stacked-models"] and "exchange" not in found.title

"""NSX127: the largest number of each layer's input, reduced over the ranks by itself, and messages that are not of that kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nsysx.findings._fix import Fix
from nsysx.model import Finding
from tests.findings.lined import FILE
from tests.findings.test_added_reductions import Both
from tests.ranks.test_rank_table import ALL_REDUCE, noted

LINE, LAYERS, HOST_US = 44, 32, 30
SOURCE = {LINE: "dist.all_reduce(amax, op=dist.ReduceOp.MAX)"}
LARGEST = ALL_REDUCE.replace("_Sum_", "_MinMax_")


def step(program: Both, number: int, kind: str) -> None:
    """Layers (4 us, twice) that each reduce a number (30 us of host code before it, 10 us of a kernel)."""
    if not number:
        noted(program.main, "ncclCommInitRankConfig", 1, 2, comm=5, of=2, Rank=0)
    layers = 8 if kind == "a few" else LAYERS
    with program.range("forward"), program.range("net:Net"):
        for layer in range(layers):
            with program.range(f"net.layers.{layer}:Quantized"):
                program.launch(4)
                with program.line(LINE, "Quantized.quant"):
                    program.host(HOST_US)
                    start = program.t
                    program.launch(10, ALL_REDUCE if kind == "sums" else LARGEST, stream=7)
                    size = 1 << 20 if kind == "whole tensors" else 4
                    noted(program.main, "ncclAllReduce", start, program.t, comm=5, size=size)
                program.launch(4)
    with program.range("backward"):
        program.launch(400)
    program.sync()


def found(folder: Path, kind: str = "") -> Finding | None:
    program = Both()
    program.source = {str(line): text for line, text in SOURCE.items()}
    program.run(lambda program, number: step(program, number, kind))  # type: ignore[arg-type]
    told = program.found(folder, "NSX127")
    return next((f for f in told if f.evidence[0]["setting"] == "scales one by one"), None)


def test_layers_that_each_reduce_a_number_can_send_all_at_once(tmp_path: Path) -> None:
    finding = found(tmp_path)
    assert finding is not None and (finding.where["file"], finding.where["line"]) == (FILE, LINE)
    assert [way.name for way in finding.remedies] == ["scales-of-last-step"] and finding.saving.bound
    assert "32 messages" in finding.detail
    # The host sets the pace: 30 us of its code go for all but one, and a launch.
    least = (LAYERS - 1) * HOST_US * 1000
    assert 0.8 * least < (finding.saving_ns_per_step or 0) < 1.5 * least


@pytest.mark.parametrize("kind", ["a few", "sums", "whole tensors"])
def test_messages_of_other_kinds(kind: str, tmp_path: Path) -> None:
    assert found(tmp_path, kind) is None


def test_the_paste_scales_by_the_numbers_of_the_step_before() -> None:
    reduced = list[torch.Tensor]()

    class Group:
        class ReduceOp:
            MAX = "max"

        @staticmethod
        def all_reduce(numbers: torch.Tensor, op: str) -> None:
            reduced.append(numbers.clone())

    names: dict[str, Any] = {
        "torch": torch, "dist": Group, "x": torch.tensor([1.0, -4.0]), "slot": 1, "largest": torch.zeros(3), "scale": torch.ones(3),
        "quantized": lambda x, scale: x * scale,
    }  # fmt: skip
    exec(Fix.by_name("scales-of-last-step").paste, names)
    assert torch.equal(names["y"], names["x"]) and len(reduced) == 1 and reduced[0][1] == 4
    assert names["scale"][1] == 448 / 4

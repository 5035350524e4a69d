"""NSX127: tensors that every rank has, and that a line of the step sends to all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from nsysx.findings import _distributed_again
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined, all_is_transfer
from tests.findings.test_layer_messages import SETTINGS
from tests.findings.test_whole_tokens import ranks
from tests.ranks.test_rank_table import KERNELS, noted

__all__ = ["ranks"]
LINE = 12


def told(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch, kernel: str = "ncclBroadcast") -> Finding | None:
    """Four layers, each with a message of 200 us at a line, and 500 us of computation."""

    def step(program: Lined, number: int) -> None:
        if not number:
            noted(program.main, "ncclCommInitRankConfig", 1, 2, comm=5, of=2, Rank=0)
        with program.range("forward"), program.range("net:Net"):
            for _ in range(4):
                with program.line(LINE, "Layer.forward"):
                    begin = program.t
                    program.launch(200, KERNELS[kernel])
                    noted(program.main, kernel, begin, program.t, comm=5, size=1 << 20)
                program.launch(500)
        program.sync()

    all_is_transfer(monkeypatch, _distributed_again)
    program = Lined({LINE: text}, {**SETTINGS}).run(step)
    found = [each for each in program.found(folder, "NSX127") if each.evidence]
    return next((each for each in found if each.evidence[0]["setting"] == "tensors distributed again"), None)


@pytest.mark.parametrize(
    ("text", "paste"),
    [
        (
            "m = distribute_tensor(mask, self.mesh, [Replicate()])",
            "m = distribute_tensor(mask, self.mesh, [Replicate()], src_data_rank=None)",
        ),
        (
            "h = DTensor.from_local(h, mesh, [Replicate()], run_check=True)",
            "h = DTensor.from_local(h, mesh, [Replicate()], run_check=False)",
        ),
    ],
)
def test_what_each_rank_has_is_not_sent(text: str, paste: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(tmp_path, text, monkeypatch)
    assert found is not None and (found.where["file"], found.where["line"]) == (FILE, LINE)
    assert found.paste == paste and [way.name for way in found.remedies] == ["taken-from-own-rank"]
    assert found.saving_ns_per_step == pytest.approx(800_000, rel=0.1)


@pytest.mark.parametrize(
    ("text", "kernel"),
    [
        ("m = distribute_tensor(mask, mesh, [Replicate()], src_data_rank=None)", "ncclBroadcast"),
        ("dist.broadcast(seeds, 0)", "ncclBroadcast"),  # which the others may not have
        ("h = DTensor.from_local(h, mesh, [Shard(0)], run_check=False)", "ncclBroadcast"),
        ("y = layer(distribute_tensor(x, mesh, [Shard(0)]))", "ncclAllReduce"),  # what the layer sends
    ],
)
def test_other_messages_are_none(text: str, kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(tmp_path, text, monkeypatch, kernel) is None


@pytest.mark.parametrize(
    "text",
    [
        "a = distribute_tensor(x, mesh, [Shard(0)])",
        "a = distribute_tensor(x.cos(), mesh, (Replicate(),),)",
        "a, b = distribute_tensor(x, mesh, [Shard(0)]), distribute_tensor(x, mesh, [Replicate()])",
        "a = DTensor.from_local(x, mesh, [Replicate()], run_check=True)",
    ],
)
def test_the_changed_line_makes_the_same_and_sends_nothing(text: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    given = {"x": torch.arange(8.0), "mesh": init_device_mesh("cpu", (4,)), "Replicate": Replicate, "Shard": Shard}
    given |= {"distribute_tensor": distribute_tensor, "DTensor": DTensor}
    exec(text, before := dict(given))
    with CommDebugMode() as messages:
        exec(_distributed_again.without_message(text), given)
    assert not messages.get_total_counts()
    for name in "a", "b":
        if name in given:
            assert given[name].placements == before[name].placements and given[name].shape == before[name].shape


def test_a_call_that_does_not_end_in_its_line() -> None:
    assert not _distributed_again.without_message("a = distribute_tensor(x,")

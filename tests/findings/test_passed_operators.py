"""NSX102: layers that hand DTensors on, whose every operator goes through Python, and layers that hand on plain tensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from nsysx.events.passed_operators import PassedOn, passed_on
from nsysx.findings import _neighbour_searches
from nsysx.model import Finding
from tests.findings import said_of
from tests.findings.lined import Lined
from tests.findings.recorded_programs import recorded

WIDTH, LAYERS = 16, 4
X = torch.randn(4, 8, WIDTH)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.gelu(self.up(x)) * 0.5
        return torch.as_tensor(x + self.down(hidden.sigmoid() * hidden))


@pytest.fixture(autouse=True)
def ranks() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


def launched(folder: Path, times: float) -> list[Finding]:
    """Return what is said of a step of 40 short kernels, each behind 60 us of host time of an operator, ``times`` as long passed on."""

    def body(program: Lined, number: int) -> None:
        with program.line(20), program.range("forward"), program.range("net:Net"):
            for each in range(40):
                at, begin = 1000 * number + 10 * (each + 1), program.t
                program.host(20 * times)
                inner = program.t
                program.host(20)
                program.launch(3, "vectorized_elementwise_kernel")
                if program.noted is None:
                    continue
                for first, size, step in ((inner, "[4, 8, 32]", 1), (begin, "[4, 8, 64]", 0))[: 2 if times else 1]:
                    label = f"aten::gelu, op_id = {at + step}, sizes = [{size}], input_op_ids = [(0,-1)]"
                    program.main.add_range(label, first, program.t)
        with program.line(21), program.range("backward"):
            program.launch(3, "vectorized_elementwise_kernel")
        with program.line(22), program.range("optimizer SGD"):
            program.launch(3, "multi_tensor_apply_kernel")
        program.sync()

    return Lined({20: "y = net(x)", 21: "loss.backward()", 22: "optimizer.step()"}).run(body).found(folder, "NSX102")


def test_plain_tensors_between_layers_are_advised_where_the_gpu_waits(tmp_path: Path) -> None:
    (finding,) = launched(tmp_path, 3)
    assert [each.name for each in finding.remedies] == ["local-outputs"] and "40 operators of a step" in finding.fix
    assert finding.saving.bound and (finding.saving_ns_per_step or 0) > 40 * 40_000


def test_operators_on_plain_tensors_have_other_advice(tmp_path: Path) -> None:
    (finding,) = launched(tmp_path, 0)
    assert "local-outputs" not in [each.name for each in finding.remedies]


def passed(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> PassedOn:
    net = nn.Sequential(*(Block() for _ in range(LAYERS)))
    if kind != "one rank":
        local = kind != "handed on"
        mesh = init_device_mesh("cpu", (2,))
        plan = {"up": ColwiseParallel(use_local_output=local), "down": RowwiseParallel()}
        for block in net:
            parallelize_module(block, mesh, plan)
    seen = list[PassedOn]()
    monkeypatch.setattr(_neighbour_searches, "searches_of_moved", lambda flow: seen.append(passed_on(flow)) or [])
    said_of(recorded(lambda: net(X).square().mean().backward(), net, __file__, folder).write(folder))
    (each,) = seen
    return each


def test_operators_between_layers_that_hand_dtensors_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    each = passed("handed on", tmp_path, monkeypatch)
    assert len(each.rows) >= 4 * LAYERS and 0.3 < each.share < 1


@pytest.mark.parametrize("kind", ["plain", "one rank"])
def test_plain_tensors_are_not_passed_on(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert passed(kind, tmp_path, monkeypatch).rows == ()

"""NSX127: gradients that are reduced although they only perturb the weights (SAM), beside micro-steps, whose gradients add up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nsysx.events.perturbed_weights import writes_weights
from nsysx.findings import _neighbour_searches
from nsysx.findings._perturbed_weights import _PASTE
from nsysx.model import Finding
from tests.findings import Program, said_of
from tests.findings.recorded_programs import recorded
from tests.findings.test_nsx127_costly_settings import CLEAN, DDP, alone, changed

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
X, Y = torch.randn(32, 8), torch.randint(4, (32,))


def told(folder: Path, *, resets: bool) -> Finding:
    """Return what is said of a step with two backwards that reduce, with gradients reset between them or not."""

    def body(program: Program, number: int) -> None:
        for each in range(2):
            with program.range("forward"), program.range("net:Net"):
                program.launch(500)
            with program.range("backward"):
                program.launch(500)
                program.launch(300, REDUCE)
            if resets and not each:
                program.launch(20, "vectorized_elementwise_kernel")
                with program.range("zero_grad"):
                    program.host(5)
        with program.range("optimizer SGD"):
            program.launch(50)
        with program.range("zero_grad"):
            program.host(5)

    settings = changed(CLEAN, {"wrappers": [DDP], "backwards": 2, "reducing": 2})
    (finding,) = (f for f in alone(folder, settings, body) if f.verdict == "found")
    assert finding.evidence[0]["setting"] == "no_sync unused"
    return finding


def test_gradients_of_an_ascent_are_not_reduced(tmp_path: Path) -> None:
    finding = told(tmp_path, resets=True)
    assert finding.evidence[0]["leads"] and "no_sync" in finding.fix and "m-sharpness" in finding.condition
    assert finding.title.startswith("Gradients that only perturb the weights are reduced")
    assert finding.paste == _PASTE and finding.saving.bound and (finding.saving_ns_per_step or 0) > 250_000


def test_micro_steps_are_told_as_such(tmp_path: Path) -> None:
    finding = told(tmp_path, resets=False)
    assert "micro-step" in finding.title and "m-sharpness" not in finding.condition


class Sam:
    """Moves the weights along their gradients, and back."""

    def __init__(self, net: nn.Module, *, lists: bool = True) -> None:
        self.weights, self.lists, self.moved = list(net.parameters()), lists, list[Tensor]()

    @torch.no_grad()
    def ascend(self, rho: float) -> None:
        gradients = [cast(Tensor, p.grad) for p in self.weights]
        norm = torch.stack(torch._foreach_norm(gradients)).norm()
        self.moved = list(torch._foreach_mul(gradients, rho / (norm + 1e-12)))
        if self.lists:
            torch._foreach_add_(self.weights, self.moved)
        for weight, by in zip(self.weights, self.moved, strict=True):
            if not self.lists:
                weight.add_(by)

    @torch.no_grad()
    def restore(self) -> None:
        torch._foreach_sub_(self.weights, self.moved)


@pytest.mark.parametrize(
    ("kind", "writes"), [("lists", True), ("loop", True), ("micro-steps", False), ("noise in data", False)]
)
def test_weights_that_are_written_between_backwards(
    kind: str, writes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, loss_fn = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), nn.CrossEntropyLoss()
    sam, optimizer = Sam(net, lists=kind == "lists"), torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        loss_fn(net(X.clone().add_(1) if kind == "noise in data" else X), Y).backward()
        if kind in ("lists", "loop"):
            sam.ascend(0.05)
            optimizer.zero_grad()
        loss_fn(net(X), Y).backward()
        if kind in ("lists", "loop"):
            sam.restore()
        optimizer.step()
        optimizer.zero_grad()

    seen = list[bool]()
    monkeypatch.setattr(_neighbour_searches, "searches_of_moved", lambda flow: seen.append(writes_weights(flow)) or [])
    found = said_of(recorded(step, net, __file__, tmp_path).write(tmp_path))
    assert seen == [writes]
    assert not [f for f in found if f.verdict == "found" and "gradients" in str(f.evidence[:1])]


@pytest.fixture
def alone_in_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone_in_group")
def test_the_paste_is_the_same_for_ranks_with_the_same_samples() -> None:
    results = list[list[Tensor]]()
    for held in (False, True):
        torch.manual_seed(0)
        net = nn.Linear(8, 4)
        model = DistributedDataParallel(net)
        names: dict[str, Any] = {
            "model": model,
            "loss_fn": nn.CrossEntropyLoss(),
            "x": X,
            "y": Y,
            "sam": Sam(net),
            "rho": 0.05,
        }
        names["optimizer"] = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            if held:
                exec(_PASTE, names)
            else:
                names["loss_fn"](model(X), Y).backward()
                names["sam"].ascend(0.05)
                names["optimizer"].zero_grad()
                names["loss_fn"](model(X), Y).backward()
            names["sam"].restore()
            names["optimizer"].step()
            names["optimizer"].zero_grad()
        results.append([p.detach().clone() for p in net.parameters()])
    assert all(torch.allclose(a, b) for a, b in zip(*results, strict=True))

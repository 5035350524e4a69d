"""NSX135: weights that each call computes from what no step changes, and work that depends on the step or trains."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.recorded_programs import recorded

SCALE = "void at::native::vectorized_elementwise_kernel<4, Mul>(int)"


def operator(program: Lined, name: str, number: int, made: list[int], us: float, kernel: str = SCALE) -> None:
    """An operator with one kernel; ``made``: what made its arguments, -1 for what is older than the step."""
    begin = program.t
    program.host(5)
    program.launch(us, kernel)
    if program.noted is None:  # no step of the X-ray
        return
    makers = ", ".join(f"({max(each, 0)},{-1 if each < 0 else 0})" for each in made)
    sizes = ", ".join("[64, 64]" for _ in made)
    program.main.add_range(
        f"aten::{name}, op_id = {number}, sizes = [{sizes}], input_op_ids = [{makers}]", begin, program.t
    )


def answering(program: Lined, number: int, *, phase: str = "evaluation", of_step: bool = False) -> None:
    """Two layers whose weights are scaled (300 us) before a product (200 us); ``of_step``: by something that the step made."""
    first = 1000 * number + 10
    operator(program, "rand", first, [-1], 10)
    for layer in range(2):
        scaled = first + 10 * layer + 1
        with program.range(phase), program.range(f"layers.{layer}:Layer"):
            operator(program, "mul", scaled, [-1, first if of_step else -1], 300)
            operator(program, "linear", scaled + 1, [first, scaled], 200, "nvjet_gemm")
    if phase == "forward":
        with program.range("backward"):
            program.launch(100)
    program.sync()


def finding(folder: Path, **kind: object) -> Finding:
    return (
        Lined({1: "y = net(x)"})
        .run(lambda program, number: answering(program, number, **kind))
        .finding(folder, "NSX135")
    )  # type: ignore[arg-type]


def test_weights_that_nothing_changes_are_computed_once(tmp_path: Path) -> None:
    found = finding(tmp_path)
    assert found.verdict == "found" and "mul (2 times)" in found.detail
    assert found.saving_ns_per_step == pytest.approx(600_000, rel=0.05)
    assert [way.name for way in found.remedies] == ["computed-once"]


@pytest.mark.parametrize("kind", [{"phase": "forward"}, {"of_step": True}], ids=str)
def test_weights_that_train_or_depend_on_the_step_are_clear(kind: dict[str, object], tmp_path: Path) -> None:
    assert finding(tmp_path, **kind).verdict == "clear"


class Scattering(nn.Module):
    """A layer that writes into zeros of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.lin(x)
        numbers = x.argmax(1, keepdim=True)
        for _ in range(8):
            x = x + torch.zeros(64, 256).scatter_(1, numbers, 1.0)[:, :8]
        return x


def test_zeros_that_each_layer_fills_are_no_constants(tmp_path: Path) -> None:
    net, x = nn.Sequential(*(Scattering() for _ in range(4))), torch.randn(64, 8)
    found = recorded(lambda: net(x).square().mean().backward(), net, __file__, tmp_path).found(tmp_path, "NSX135")
    assert not found


class Edges:
    """A graph that never changes."""

    def __init__(self) -> None:
        self.src, self.n = torch.randint(0, 64, (256,)), 64

    def plan(self) -> tuple[torch.Tensor, torch.Tensor]:
        order = torch.argsort(self.src)
        wanted = torch.unique(self.src[self.src > 5])
        return torch.searchsorted(wanted, self.src).clamp(max=len(wanted) - 1), order


class Planning(nn.Module):
    """A layer that makes a plan of its graph in each call, ``of_step``: with what it computes."""

    def __init__(self, edges: Edges, *, of_step: bool = False) -> None:
        super().__init__()
        self.lin, self.edges, self.of_step = nn.Linear(8, 8), edges, of_step

    def prepared(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        at, order = self.edges.plan()
        return at, x[order % 64].relu().sum(0)

    def forward(self, x: torch.Tensor, edges: Edges) -> torch.Tensor:
        x = self.lin(x)
        if self.of_step:
            at, more = self.prepared(x)
            return x[at % 64][:64] + more
        at, order = edges.plan()
        return x[at % 64][:64] + x[order % 64][:64]


def planned(folder: Path, *, of_step: bool) -> list[Finding]:
    edges, x = Edges(), torch.randn(64, 8)
    net = nn.ModuleList(Planning(edges, of_step=of_step) for _ in range(4))

    def step() -> None:
        y = x
        for layer in net:
            y = layer(y, edges)
        y.square().mean().backward()

    return recorded(step, net, __file__, folder, slow=("sort", "searchsorted")).found(folder, "NSX135")


def test_a_plan_of_each_layer_is_made_once_at_its_line(tmp_path: Path) -> None:
    (finding,) = planned(tmp_path, of_step=False)
    assert finding.where["line"] == Planning.forward.__code__.co_firstlineno + 5
    assert finding.remedies[0].paste == (
        "kept = edges.plan()  # once, before the loop\nat, order = kept  # in place of this line"
    )


def test_a_line_that_computes_something_of_the_step_as_well_is_not_named(tmp_path: Path) -> None:
    for finding in planned(tmp_path, of_step=True):
        assert finding.where.get("line") != Planning.forward.__code__.co_firstlineno + 3
        assert "self.prepared" not in (finding.remedies[0].paste or "") and "GCN" not in (
            finding.remedies[0].paste or ""
        )

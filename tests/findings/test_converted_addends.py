"""NSX131: tensors that are converted only to be added to one of another type, and conversions that something needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from nsysx.findings import _converted_addends
from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.recorded_programs import from_host, recorded

WIDTH, LAYERS, MICRO_BATCHES = 16, 4, 4
HALF = torch.bfloat16


class Trained:
    """A network of 16 bits whose gradients are added up in float32, in a hook or behind each backward, by a form."""

    def __init__(self, form: str) -> None:
        self.net = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]).to(HALF)
        self.main = {p: torch.zeros_like(p, dtype=torch.float32) for p in self.net.parameters()}
        self.form = form
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.01)
        if form == "hook":
            for p in self.net.parameters():
                p.register_post_accumulate_grad_hook(self.add_up)

    def add_up(self, p: torch.Tensor) -> None:
        assert p.grad is not None
        self.main[p].add_(p.grad.float())
        p.grad = None

    def behind(self) -> None:
        for p, main in self.main.items():
            main += p.grad.to(torch.float32)  # type: ignore[union-attr]
            p.grad = None

    def as_they_are(self) -> None:
        for p, main in self.main.items():
            main.add_(p.grad)  # type: ignore[arg-type]
            p.grad = None

    def with_norms(self) -> None:
        for p, main in self.main.items():
            wide = p.grad.float()  # type: ignore[union-attr]
            main.add_(wide)
            main.mul_(wide.norm())
            p.grad = None

    def of_first(self) -> None:
        for p, main in self.main.items():
            main.copy_(main * p.grad.float())  # type: ignore[union-attr]
            p.grad = None

    def step(self) -> None:
        for main in self.main.values():
            main.zero_()
        for _ in range(MICRO_BATCHES):
            x = from_host(torch.randn(4, WIDTH).to(HALF))
            self.net(x).square().sum().backward()
            if self.form != "hook":
                getattr(self, self.form)()
        for p, main in self.main.items():
            p.grad = main.to(HALF)
        self.opt.step()
        self.opt.zero_grad()


def found(form: str, folder: Path) -> list[Finding]:
    trained = Trained(form)
    program = recorded(trained.step, trained.net, __file__, folder)
    program.settings = {"backwards": MICRO_BATCHES}
    findings = program.found(folder, "NSX131")
    return [each for each in findings if each.remedies and each.remedies[0].name == "added-as-it-is"]


@pytest.mark.parametrize(
    ("form", "paste"), [("hook", "self.main[p].add_(p.grad)"), ("behind", "main += p.grad")], ids=["hook", "behind"]
)
def test_gradients_that_are_converted_before_they_are_added(form: str, paste: str, tmp_path: Path) -> None:
    (finding,) = found(form, tmp_path)
    many = LAYERS * MICRO_BATCHES
    assert f"{many} tensors of a step are converted" in finding.detail
    assert finding.paste == paste and "once for each of 4 backwards: larger micro-batches" in finding.fix
    saving = finding.saving_ns_per_step or 0
    assert saving == pytest.approx(many * 10_000, rel=0.02)
    assert (finding.saving.error_ns or 0) == pytest.approx(0.25 * saving, rel=0.1)


@pytest.mark.parametrize("form", ["as_they_are", "with_norms", "of_first"])
def test_conversions_that_something_needs(form: str, tmp_path: Path) -> None:
    assert not found(form, tmp_path)


def _added(program: Lined, around: str) -> None:
    """A conversion of 200 us, in a node of autograd, or an optimizer's phase around what adds it."""
    for _ in range(8):
        number, begin = program.t, program.t
        program.launch(200, "direct_copy_kernel_cuda")
        if program.noted is not None:
            given = f"op_id = {number}, sizes = [[64, 64], []], input_op_ids = [(5,0), (0,-1)]"
            program.main.add_range(f"aten::to, {given}", begin, program.t)
            if around == "node":
                program.main.add_range("ToCopyBackward0, seq = 3", begin - 100, program.t)
        begin = program.t
        program.launch(200, "add")
        if program.noted is not None:
            given = (
                f"op_id = {number + 1}, sizes = [[64, 64], [64, 64], []], input_op_ids = [(9,0), ({number},0), (0,-1)]"
            )
            program.main.add_range(f"aten::add_, {given}", begin, program.t)
        if around == "optimizer":
            program.main.add_range("optimizer SGD", begin - 100, program.t, domain="nsysx")
        program.host(1)


@pytest.mark.parametrize(("around", "told"), [("", True), ("node", False), ("optimizer", False)])
def test_what_autograd_converts_and_optimizers_ask_for_stays(around: str, told: bool, tmp_path: Path) -> None:
    def step(program: Lined, number: int) -> None:
        with program.line(20), program.range("forward"), program.range("net:Net"):
            program.launch(500)
        with program.line(30):
            _added(program, around)
        program.sync()

    program = Lined({20: "y = net(x)", 30: "total.add_(x.float(), alpha=decay)"}, {})
    findings = program.run(step).found(tmp_path, "NSX131")
    pastes = [each.paste for each in findings if each.remedies[0].name == "added-as-it-is"]
    assert pastes == (["total.add_(x, alpha=decay)"] if told else [])


@pytest.mark.parametrize(
    ("line", "paste"),
    [
        ("ema.add_(p.detach().float(), alpha=0.1)", "ema.add_(p.detach(), alpha=0.1)"),
        ("ema.add_((a + b).float())", ""),  # its own words stay
        ("self.sum[name] += grads[name].to(dtype=torch.float32)  # main", "self.sum[name] += grads[name]"),
        ("loss = total + x.float()", ""),
    ],
)
def test_the_paste_is_in_the_names_of_the_line(line: str, paste: str) -> None:
    code = line.partition("  #")[0]
    pasted = [p.sub(r"\g<into>\g<given>", code) for p in (_converted_addends._METHOD, _converted_addends._OPERATOR)]
    assert [each for each in pasted if each != code] == ([paste] if paste else [])


def test_what_writes_converts_by_itself() -> None:
    x, given = torch.randn(7).to(HALF), torch.randn(7)
    pairs: list[tuple[Callable[[torch.Tensor], object], Callable[[torch.Tensor], object]]] = [
        (lambda t: t.add_(x, alpha=0.3), lambda t: t.add_(x.float(), alpha=0.3)),
        (lambda t: t.mul_(x), lambda t: t.mul_(x.float())),
        (lambda t: t.copy_(x), lambda t: t.copy_(x.float())),
    ]
    for as_it_is, converted in pairs:
        first, second = given.clone(), given.clone()
        as_it_is(first)
        converted(second)
        assert torch.equal(first, second)

"""Parts of a network that get gradients although nothing trains them are told from those that something else than an optimizer trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from nsysx_probe.probe_bounds import FIRST_COMPARED_STEPS, MOST_PARTS
from nsysx_probe.untrained_weights import UntrainedWeights
from torch import nn

from tests.inject.test_probe import Lab, armed
from tests.inject.test_settings_reader import settings


class Net(nn.Module):
    """A front end, four layers and a head; with ``keep``, parameters of these parts are left out of the optimizer."""

    def __init__(self, adapters: bool = False) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.pos = nn.Parameter(torch.zeros(8))
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.adapters = nn.ModuleList(nn.Linear(8, 8) for _ in range(4 if adapters else 0))
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.front(x) + self.pos
        for n, layer in enumerate(self.layers):
            x = self.adapters[n](layer(x)) if len(self.adapters) else layer(x)
        out: torch.Tensor = self.head(x)
        return out


def trained(
    net: nn.Module,
    held: list[nn.Parameter],
    update: Callable[[nn.Module], object] = lambda net: None,
    reset: bool = True,
) -> Any:
    """Return what the record says behind two windows, between which the network goes on to be trained."""
    with armed() as lab:
        optimizer = torch.optim.SGD(held, lr=0.1)
        for _ in range(2):
            for _ in range(4):
                net(torch.randn(4, 8)).square().mean().backward()
                update(net)
                optimizer.step()
                (net if reset else optimizer).zero_grad()
            lab.probe.settings.window_closed()
        return settings(lab)["untrained"]


def above(net: nn.Module, names: tuple[str, ...]) -> list[nn.Parameter]:
    return [p for name, p in net.named_parameters() if name.startswith(names)]


TRAINED = ("layers.2", "layers.3", "head")


@pytest.mark.parametrize("reset", [True, False])
def test_parts_that_are_only_left_out_of_the_optimizer_are_told(reset: bool) -> None:
    net = Net()
    (found,) = trained(net, above(net, TRAINED), reset=reset)
    assert (found["class"], found["elements"], found["of"]) == ("Net", 3 * 72 + 8, 5 * 72 + 8 + 18)
    assert found["parts"] == ["pos", "front", "layers.0", "layers.1"]
    assert found["trained"] == ["layers.2", "layers.3", "head"]


def test_wrappers_add_nothing_to_the_paths() -> None:
    net = Net()
    (found,) = trained(nn.DataParallel(net), above(net, TRAINED))
    assert found["parts"] == ["pos", "front", "layers.0", "layers.1"]


def test_a_base_between_adapters_is_told_by_its_layers() -> None:
    net = Net(adapters=True)
    (found,) = trained(net, above(net, ("adapters", "head")))
    assert found["parts"] == ["pos", "front", "layers"] and found["trained"] == ["adapters", "head"]


def by_hand(net: nn.Module) -> None:
    """As old programs write it: no version of a tensor shows it."""
    for p in net.parameters():
        p.data.sub_(0.01 * p.grad.data)


def averaged(net: nn.Module) -> None:
    for p in net.parameters():
        p.data.copy_(p.data * 0.99)


@pytest.mark.parametrize("update", [by_hand, averaged])
def test_weights_that_lines_of_the_program_train_are_not(update: Callable[[nn.Module], object]) -> None:
    net = Net()
    assert trained(net, above(net, TRAINED), update) == []


def hooked(net: nn.Module) -> nn.Module:
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(lambda p: None)
    return net


@pytest.mark.parametrize(
    "made",
    [
        lambda net: (net, list(net.parameters())),
        lambda net: (net, [nn.Parameter(torch.zeros(2))]),  # something else trains all of it
        lambda net: (hooked(net), above(net, TRAINED)),
        lambda net: (net.requires_grad_(False).head.requires_grad_(True) and net, above(net, TRAINED)),
    ],
    ids=["all held", "none held", "hooks", "frozen"],
)
def test_networks_without_such_parts_are_not(made: Callable[[Any], tuple[nn.Module, list[nn.Parameter]]]) -> None:
    net, held = made(Net())
    assert trained(net, held) == []


def test_one_window_does_not_tell_and_many_parts_are_not_listed() -> None:
    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pairs = nn.ModuleList(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)) for _ in range(MOST_PARTS + 1))

    net, weights = Pairs(), UntrainedWeights(torch)
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    weights.stepping([net])
    optimizer = torch.optim.SGD([p for pair in net.pairs for p in pair[0].parameters()], lr=0.1)
    weights.judge([net], [optimizer], [])
    assert weights.rows is None
    weights.window_closed()
    assert weights.rows is None, "nothing was compared so far"
    weights.window_closed()
    weights.judge([net], [], [])  # the program ends
    weights.window_closed()
    (found,) = weights.rows or ()
    assert (found["elements"], found["parts"], found["trained"]) == (2 * (MOST_PARTS + 1), [], [])


@pytest.mark.parametrize("moved", [False, True])
def test_a_program_that_ends_in_its_last_window_was_compared_before_that_opened(moved: bool) -> None:
    net, weights = Net(), UntrainedWeights(torch)
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    weights.stepping([net])
    weights.judge([net], [torch.optim.SGD(net.head.parameters(), lr=0.1)], [])
    weights.window_opens()
    assert weights.rows is None, "there was no window before"
    weights.window_closed()
    if moved:
        for p in net.parameters():
            p.data.add_(1)
    weights.window_opens()
    rows: list[dict[str, Any]] = weights.rows or []
    assert [row["class"] for row in rows] == ([] if moved else ["Net"])


@pytest.mark.parametrize("after", ["nothing", "moved", "moved late", "gone"])
def test_a_program_that_ends_before_its_second_window_is_compared_in_bare_steps(after: str) -> None:
    net, weights = Net(), UntrainedWeights(torch)
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    weights.stepping([net])
    weights.judge([net], [torch.optim.SGD(net.head.parameters(), lr=0.1)], [])
    assert not weights.look(), "no window has closed"
    weights.window_closed()
    weights.ended()
    assert weights.rows is None, "nothing was compared"
    for part in ("moved", "moved late"):
        if after == part:
            net.layers[1].weight.data.add_(1)
        assert weights.look()
    if after == "gone":
        net = Net()
        weights.look()  # of the steps before nothing had moved
    weights.ended()
    assert [row["class"] for row in weights.rows or ()] == ([] if "moved" in after else ["Net"])


def test_weights_are_compared_ever_more_rarely_while_the_probe_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    lab = Lab(NSYSX_STEPS="60:62")
    monkeypatch.setattr(lab.probe.settings.untrained, "look", lambda: compared.append(lab.probe.steps.index))
    try:
        net = Net()
        optimizer = torch.optim.SGD(net.head.parameters(), lr=0.1)
        for _ in range(50):
            net(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert lab.probe.out.errors == []
    finally:
        lab.close()
    assert len(compared) == 2 and compared[1] - compared[0] == 2 * FIRST_COMPARED_STEPS


@pytest.mark.parametrize("buckets", ["wrapper", "foreign"])
def test_views_of_a_wrappers_buckets_are_no_readers_also_where_what_it_wraps_is_called(
    buckets: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass through the network itself, as with adapters off, beside the one through its wrapper; another program's own flat buffer."""

    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: torch.Tensor) -> Any:
            return self.module(x)

    monkeypatch.setattr(
        "nsysx_probe.unread_gradients.settings_objects.wrappers",
        lambda module: [{}] if isinstance(module, Wrapper) and buckets == "wrapper" else [],
    )
    with armed() as lab:
        net = Net()
        wrapped = Wrapper(net)
        flat = torch.zeros(sum(p.numel() for p in net.parameters()))
        for p, view in zip(net.parameters(), flat.split([p.numel() for p in net.parameters()]), strict=True):
            p.grad = view.view_as(p)
        optimizer = torch.optim.SGD(above(net, TRAINED), lr=0.1)
        for _ in range(2):
            for _ in range(4):
                with torch.no_grad():
                    net(torch.randn(4, 8))
                wrapped(torch.randn(4, 8)).square().mean().backward()
                optimizer.step()
                flat.zero_()
            lab.probe.settings.window_closed()
        found = settings(lab)
    assert bool(found["untrained"]) is (buckets == "wrapper")
    assert bool(found["gradient_readers"]) is bool(found["gradient_buffers"]) is (buckets == "foreign")

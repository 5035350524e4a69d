"""NSX131: neighbours of moving points, searched among all pairs in each round, and searches that are needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from nsysx.inject.nsysx_probe.changes.matrices import UNTRIED
from nsysx.model import Finding
from tests.findings.recorded_programs import from_host, recorded

POINTS, ROUNDS, NEAR = 200, 4, 0.3
START = torch.rand(POINTS, 3)


class Force(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.edge, self.out = nn.Linear(3, 8), nn.Linear(8, 3)

    def forward(self, pos: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        messages = torch.tanh(self.edge(pos[src] - pos[dst]))
        return cast(Tensor, self.out(pos.new_zeros(POINTS, 8).index_add(0, dst, messages)))


def by_cdist(pos: Tensor) -> tuple[Tensor, ...]:
    src, dst = (torch.cdist(pos, pos) < NEAR).nonzero(as_tuple=True)
    return src, dst


def by_differences(pos: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        squared = (pos[:, None] - pos[None]).pow(2).sum(-1)
        return torch.where((squared < NEAR * NEAR) & ~torch.eye(POINTS, dtype=torch.bool))


def with_ghosts(pos: Tensor) -> tuple[Tensor, ...]:
    everywhere = torch.cat([pos, pos[:20] + 1.0])
    pairs = (torch.cdist(pos, everywhere) < NEAR).nonzero()
    return pairs[:, 0], pairs[:, 1] % POINTS


def program(find: Callable[[Tensor], tuple[Tensor, ...]], net: Force, kind: str) -> Callable[[], object]:
    fixed = find(START)

    def moved(pos: Tensor, vel: Tensor, edges: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        vel = vel + 0.01 * net(pos, *edges)
        return torch.remainder(pos + 0.01 * vel, 1.0), vel

    def unrolled() -> None:
        pos, vel, loss = from_host(START), torch.zeros(POINTS, 3), torch.zeros(())
        edges = fixed
        for k in range(ROUNDS):
            if kind == "every round" or (kind == "some rounds" and k % ROUNDS == 0):
                edges = find(pos)
            elif kind == "others":
                edges = find(from_host(START * (1 + k)))
            elif kind == "features":
                edges = find(torch.tanh(net.edge(pos))[:, :3])
            pos, vel = moved(pos, vel, edges)
            loss = loss + pos.square().mean()
        loss.backward()

    return unrolled


def steps_of_time(net: Force) -> Callable[[], object]:
    """Each step is a round: the points are those that the step before has moved."""
    state = {"pos": START.clone(), "vel": torch.zeros(POINTS, 3)}

    def step() -> None:
        pos, vel = state["pos"], state["vel"]
        src, dst = by_cdist(pos)
        force = net(pos, src, dst)
        force.square().mean().backward()
        vel = vel + 0.01 * force.detach()
        state["pos"], state["vel"] = pos + 0.01 * vel, vel

    return step


def in_place(net: Force, *, moves: bool) -> Callable[[], object]:
    """A rank's own points are a part of all, and are moved where they lie; ghosts are written behind them."""

    def step() -> None:
        with torch.no_grad():
            everywhere = torch.cat([from_host(START), START[:20] + 1.0])
            own, vel = everywhere[:POINTS], torch.zeros(POINTS, 3)
            for _ in range(ROUNDS):
                pairs = (torch.cdist(own, everywhere) < NEAR).nonzero(as_tuple=True)
                force = net(own, pairs[0], pairs[1] % POINTS)
                vel.add_(0.01 * force)
                if moves:
                    own.add_(0.01 * vel)
                    everywhere[POINTS:] = own[:20] + 1.0
        net.edge(vel).square().mean().backward()

    return step


@pytest.mark.parametrize("moves", [True, False])
def test_points_that_are_moved_where_they_lie(moves: bool, tmp_path: Path) -> None:
    net = Force()
    assert bool(told(in_place(net, moves=moves), net, tmp_path)) is moves


def told(step: Callable[[], object], net: nn.Module, folder: Path) -> list[Finding]:
    found = recorded(step, net, __file__, folder).found(folder, "NSX131")
    return [f for f in found if f.remedies and f.remedies[0].name == "list-for-rounds"]


@pytest.mark.parametrize("find", [by_cdist, by_differences, with_ghosts])
def test_searches_of_each_round_are_told(find: Callable[[Tensor], tuple[Tensor, ...]], tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Force()
    (finding,) = told(program(find, net, "every round"), net, tmp_path)
    assert f" {ROUNDS} times per step" in finding.title
    assert finding.saving.bound and (finding.saving_ns_per_step or 0) > 0
    assert finding.paste.startswith("if k % 4 == 0:")


def test_a_search_in_each_step_of_time_is_told(tmp_path: Path) -> None:
    net = Force()
    (finding,) = told(steps_of_time(net), net, tmp_path)
    assert " once per step" in finding.title


@pytest.mark.parametrize("kind", ["none", "some rounds", "others", "features"])
def test_lists_that_are_kept_and_other_points_are_silent(kind: str, tmp_path: Path) -> None:
    net = Force()
    assert told(program(by_cdist, net, kind), net, tmp_path) == []


def test_the_paste_finds_the_same_pairs() -> None:
    paste = next(r.example for r in UNTRIED if r.name == "list-for-rounds")
    pos, r, room = START.clone(), NEAR, NEAR / 4
    names = {"torch": torch, "r": r, "room": room}
    for k in range(2 * ROUNDS):
        names |= {"k": k, "pos": pos}
        exec(paste, names)
        src, dst = by_cdist(pos)
        assert torch.equal(cast(Tensor, names["src"]), src) and torch.equal(cast(Tensor, names["dst"]), dst)
        pos = pos + 0.005 * torch.rand_like(pos)

"""NSX126: the pairs of vectors that L-BFGS keeps, and rounds of other solvers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from nsysx.model import Finding
from tests.findings import said_of
from tests.findings.recorded_programs import from_host, recorded


def lbfgs(history: int, steps_before: int) -> tuple[Callable[[], None], Any]:
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=2, history_size=history)
    xs = torch.randn(32, 3)

    def step() -> None:
        x = from_host(xs)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (net(x) - xs.sum(1, keepdim=True).sin()).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)

    for _ in range(steps_before):
        step()
    return step, net


def orthogonal() -> tuple[Callable[[], None], Any]:
    """Gram-Schmidt, which reads as many numbers."""
    net, vectors = torch.nn.Linear(4, 64), [torch.randn(64) for _ in range(24)]

    def step() -> None:
        w = net(from_host(torch.randn(4))).detach()
        for vector in vectors:
            h = vector.dot(w) * 1.5
            w.add_(vector, alpha=-h)

    return step, net


def conjugate() -> tuple[Callable[[], None], Any]:
    """Conjugate gradients."""
    net, matrix = torch.nn.Linear(4, 64), torch.eye(64) * 3

    def step() -> None:
        r = net(from_host(torch.randn(4))).detach()
        x, p, rs = torch.zeros(64), r.clone(), r.dot(r)
        for _ in range(12):
            ap = matrix @ p
            alpha = rs / p.dot(ap)
            x.add_(p, alpha=alpha)
            r.add_(ap, alpha=-alpha)
            new = r.dot(r)
            p, rs = r + new / rs * p, new

    return step, net


def told(made: tuple[Callable[[], None], Any], folder: Path) -> tuple[Finding, ...]:
    return said_of(recorded(*made, __file__, folder).write(folder))


def found(said: Sequence[Finding]) -> list[Finding]:
    return [each for each in said if each.remedies and each.remedies[0].name == "shorter-history"]


def test_many_pairs_of_old_vectors(tmp_path: Path) -> None:
    said = told(lbfgs(100, 15), tmp_path)
    (finding,) = found(said)
    line = lbfgs.__code__.co_firstlineno + 14
    assert finding.code == "NSX126" and finding.where["line"] == line and "pairs of old vectors twice" in finding.title
    assert "history_size=10" in finding.paste and (finding.saving.likely_ns or 0) > 0
    assert not [f for f in said if f.code in ("NSX101", "NSX105") and f.where.get("line") == line]


def test_few_pairs_are_neither_a_fault_nor_reads_of_the_program(tmp_path: Path) -> None:
    said = told(lbfgs(10, 12), tmp_path)
    assert not found(said)
    assert not [f for f in said if f.verdict == "found" and f.code == "NSX105" and "line" in f.where]


@pytest.mark.parametrize("made", [orthogonal, conjugate])
def test_rounds_of_other_solvers(made: Callable[[], tuple[Callable[[], None], Any]], tmp_path: Path) -> None:
    assert not found(told(made(), tmp_path))

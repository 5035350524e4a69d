"""NSX126: solvers whose rounds need one another, each of which is read back to see whether it was the last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from nsysx.model import Finding, Summary
from tests.findings import Program
from tests.findings.recorded_programs import recorded

SIZE = 24
FIELD = torch.randn(SIZE, SIZE)
IMAGES = torch.randn(40, SIZE, SIZE)
NET = nn.Linear(SIZE, SIZE)


@pytest.fixture(autouse=True)
def one_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The host wakes 40 us after a wait, and launches faster than the GPU computes."""
    launch, sync = Program.launch, Program.sync

    def woken(program: Program, *args: Any) -> None:
        sync(program, *args)
        program.host(40)

    monkeypatch.setattr(Program, "launch", lambda program, us, *args, **kind: launch(program, us + 4, *args, **kind))
    monkeypatch.setattr(Program, "sync", woken)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def applied(u: Tensor) -> Tensor:
    return 5 * u - torch.roll(u, 1, 0) - torch.roll(u, -1, 0) - torch.roll(u, 1, 1) - torch.roll(u, -1, 1)


def of_all_ranks(a: Tensor, b: Tensor) -> Tensor:
    total = (a * b).sum()
    dist.all_reduce(total)
    return total


def conjugate_gradients(tolerance: float = 1e-30) -> Tensor:
    x = torch.zeros_like(FIELD)
    r = FIELD.clone()
    p, old = r.clone(), of_all_ranks(r, r)
    for k in range(30):  # noqa: B007 - the paste counts by it
        q = applied(p)
        a = old / of_all_ranks(p, q)
        x = x + a * p
        r = r - a * q
        new = of_all_ranks(r, r)
        if new.item() < tolerance:
            break
        p = r + (new / old) * p
        old = new
    return x


def relaxed(tolerance: float = 1e-30) -> Tensor:
    x = torch.zeros_like(FIELD)
    change = torch.ones(())
    k = 0
    while float(change) > tolerance and k < 30:
        y = torch.tanh(applied(x) * 0.1 + FIELD)
        change = (y - x).abs().amax() * 0.5 + (y - x).norm()
        x = y * 0.9
        k += 1
    return x


def each_image() -> Tensor:
    """Rounds that need nothing of each other are one batch."""
    picked = torch.zeros_like(FIELD)
    for image in IMAGES:
        score = torch.tanh(applied(image)).norm() * 0.5
        if score.item() > 1e30:
            break
    return picked


def noted() -> Tensor:
    """What is read decides nothing."""
    x, sums = FIELD, []
    for _ in range(30):
        x = torch.tanh(applied(x) * 0.1 + FIELD) * 0.9
        sums.append(x.norm().item())
    return x


def checked_rarely() -> Tensor:
    x = FIELD
    for k in range(30):
        x = torch.tanh(applied(x) * 0.1 + FIELD) * 0.9
        if k % 10 == 9 and x.norm().item() < 1e-30:
            break
    return x


def told(made: Callable[[], Tensor], folder: Path) -> tuple[Summary, list[Finding]]:
    def step() -> None:
        with torch.no_grad():
            x = made()
        (NET(x) - FIELD).pow(2).mean().backward()

    summary = recorded(step, NET, __file__, folder).summary(folder)
    return summary, [
        f for f in summary.findings or () if [way.name for way in f.remedies] == ["checked-in-some-rounds"]
    ]


@pytest.mark.parametrize(
    ("made", "paste"),
    [
        (conjugate_gradients, r"if k % N == M and new.item() < tolerance:"),
        (relaxed, r"while k % N or (float(change) > tolerance and k < 30):"),
    ],
)
def test_a_check_in_each_round_is_asked_in_some(made: Callable[[], Tensor], paste: str, tmp_path: Path) -> None:
    summary, (found,) = told(made, tmp_path)
    assert summary.answer is not None and summary.answer.do[0].code == "NSX126"
    assert summary.answer.do[0].paste == found.paste
    every = int(found.paste.partition(" % ")[2].partition(" ")[0])
    assert 2 <= every <= 20
    assert found.paste.startswith(paste.replace("N", str(every)).replace("M", str(every - 1)))
    assert found.code == "NSX126" and f"Up to {every - 1} rounds more" in found.condition
    assert 0.05 * (summary.step.shown_ns or 0) < (found.saving_ns_per_step or 0) < 0.25 * (summary.step.shown_ns or 0)
    line = found.where["line"]
    others = [
        f for f in summary.findings or () if f.where.get("line") == line and f.verdict == "found" and f is not found
    ]
    assert not others, "it is told once"


@pytest.mark.parametrize("made", [each_image, noted, checked_rarely])
def test_rounds_that_are_one_batch_or_ask_nothing_are_told_otherwise(
    made: Callable[[], Tensor], tmp_path: Path
) -> None:
    assert not told(made, tmp_path)[1]


def test_the_pasted_check_ends_with_the_same_solution() -> None:
    def solved(check: str) -> Tensor:
        x, r = torch.zeros_like(FIELD), FIELD.clone()
        p, old = r.clone(), (r * r).sum()
        for k in range(200):
            q = applied(p)
            a = old / (p * q).sum()
            x, r = x + a * p, r - a * q
            new = (r * r).sum()
            if eval(check, {"k": k, "new": new, "tolerance": 1e-9}):
                break
            p, old = r + (new / old) * p, new
        return x

    torch.testing.assert_close(
        solved("new.item() < tolerance"), solved("k % 4 == 3 and new.item() < tolerance"), atol=1e-4, rtol=1e-4
    )

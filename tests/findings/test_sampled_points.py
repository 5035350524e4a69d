"""NSX126: farthest points that a loop samples in single operations, and loops that look like it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nsysx.model import Finding, Summary
from tests.findings.recorded_programs import from_host, recorded

SAMPLES, POINTS, PICKED = 2, 32, 16


def masked(xyz: torch.Tensor, npoint: int) -> torch.Tensor:
    b, n, _ = xyz.shape
    centroids, batch = torch.zeros(b, npoint, dtype=torch.long), torch.arange(b)
    distance, farthest = torch.full((b, n), 1e10), torch.randint(0, n, (b,))
    for i in range(npoint):
        centroids[:, i] = farthest
        c = xyz[batch, farthest, :].view(b, 1, 3)
        dist = ((xyz - c) ** 2).sum(-1)
        mask = dist < distance
        distance[mask] = dist[mask]
        farthest = distance.max(-1)[1]
    return centroids


def smaller(points: torch.Tensor, count: int) -> torch.Tensor:
    kept, last = [], torch.zeros(len(points), dtype=torch.long)
    nearest = torch.full(points.shape[:2], 1e10)
    for _ in range(count):
        kept.append(last)
        center = torch.gather(points, 1, last[:, None, None].expand(-1, 1, 3))
        nearest = torch.minimum(nearest, (points - center).square().sum(-1))
        last = nearest.argmax(-1)
    return torch.stack(kept, 1)


def decoded(points: torch.Tensor, count: int) -> torch.Tensor:
    """A network that is called for each next number."""
    table, kept, last = torch.randn(POINTS, 8), [], torch.zeros(len(points), dtype=torch.long)
    total = torch.zeros(len(points), POINTS)
    for _ in range(count):
        state = table[last] - table.mean(0)
        total = torch.minimum(total, state.square() @ table.T)
        last = total.argmax(-1)
        kept.append(last)
    return torch.stack(kept, 1)


def suppressed(points: torch.Tensor, count: int) -> torch.Tensor:
    """The best of each round, whose own score is taken out."""
    scores, kept = points[..., 0].clone(), []
    for _ in range(count):
        best = scores.argmax(-1)
        scores.scatter_(1, best[:, None], float("-inf"))
        kept.append(best)
    return torch.stack(kept, 1)


def best_of_each(points: torch.Tensor, count: int) -> torch.Tensor:
    """Rounds that need nothing of each other."""
    kept = []
    for i in range(count):
        far = torch.minimum((points - points[:, i : i + 1]).square().sum(-1), points[..., 0].square())
        kept.append(far.argmax(-1))
    return torch.stack(kept, 1)


def summary_of(sample: object, folder: Path) -> Summary:
    net = torch.nn.Linear(3, 4)

    def step() -> None:
        x = from_host(torch.randn(SAMPLES, POINTS, 3))
        with torch.no_grad():
            rows = sample(x, PICKED)  # type: ignore[operator]
        net(x.gather(1, rows[..., None].expand(-1, -1, 3))).square().sum().backward()
        net.zero_grad()

    return recorded(step, net, __file__, folder).summary(folder)


def found(summary: Summary) -> list[Finding]:
    return [each for each in summary.findings or () if each.remedies and each.remedies[0].name == "points-by-kernel"]


@pytest.mark.parametrize("sample", [masked, smaller])
def test_points_that_a_loop_samples(sample: object, tmp_path: Path) -> None:
    summary = summary_of(sample, tmp_path)
    (finding,) = found(summary)
    assert finding.code == "NSX126" and f"{PICKED} farthest points" in finding.title
    assert finding.where["line"] in range(*(sample.__code__.co_firstlineno + n for n in (3, 12)))  # type: ignore[attr-defined]
    assert ("without the wait: distance = torch.minimum(distance, dist)" in finding.paste) == (sample is masked)
    assert ("sample_farthest_points(xyz, K=npoint)" if sample is masked else "(points, K=count)") in finding.paste
    assert 0 < (finding.saving.likely_ns or 0) <= (finding.cost_ns_per_step or 0)
    assert summary.answer is not None and summary.answer.do[0].paste == finding.paste
    lines = {finding.where["line"]}
    assert not [
        f for f in summary.findings or () if f.code in ("NSX101", "NSX105", "NSX120") and f.where.get("line") in lines
    ]
    compile(finding.paste, "paste", "exec")


@pytest.mark.parametrize("sample", [decoded, suppressed, best_of_each])
def test_other_loops(sample: object, tmp_path: Path) -> None:
    assert not found(summary_of(sample, tmp_path))

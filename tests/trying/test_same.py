"""Whether two runs compute the same: rounding, which grows, is told from a change of what is computed. Real torch on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from nsysx.inject.nsysx_probe.weights import Weights
from nsysx.trying import same
from nsysx.trying.result import Baseline, ChangeTrial, TryResult
from nsysx.trying.same import RunDifference
from nsysx.trying.trial_sentences import sentence

STEPS, EARLY = 40, 5


def trained(
    steps: Callable[[Any, Any], Any] = lambda _net, optimizer: optimizer.step(), cast: Any = None, **options: Any
) -> dict[str, Any]:
    """Return the record of a small attention network that was trained with AdamW, from the same start and on the same batches."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Embedding(64, 16), nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), nn.Linear(16, 64)
    )
    optimizer = torch.optim.AdamW(net.parameters(), **{"lr": 1e-3, "foreach": False, **options})
    weights, losses = Weights(torch, lambda: [optimizer]), []
    for index in range(STEPS):
        if index in (0, 1, EARLY):
            weights.keep(index)
        tokens = torch.randint(0, 64, (4, 9), generator=torch.Generator().manual_seed(index))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast is not None):
            loss = nn.functional.cross_entropy(net(tokens[:, :-1]).reshape(-1, 64), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        steps(net, optimizer)
        losses.append(float(loss.detach()))
    weights.keep(STEPS)
    return {"steps": STEPS, "weights": weights.record(), "losses": {"first": losses[:1], "last": losses[-1:]}}


@pytest.fixture(scope="module", autouse=True)
def torch_is_as_it_was_afterwards() -> Iterator[None]:
    enter, threads = torch.autocast.__enter__, torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.autocast.__enter__ = enter  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def unchanged() -> dict[str, Any]:
    return trained()


def beyond(a: dict[str, Any], b: dict[str, Any]) -> bool | None:
    return same.beyond_rounding(same.difference(a, b), same.rounding(a, b)[0], RunDifference())


def scaled(factor: float) -> Callable[[Any, Any], Any]:
    """Return steps whose gradients are wrong by a factor, which is no rounding, however small it is beside the weights."""

    def step(net: Any, optimizer: Any) -> None:
        for parameter in net.parameters():
            parameter.grad.add_(factor * parameter.grad.roll(1))
        optimizer.step()

    return step


def never(_net: Any, _optimizer: Any) -> None:
    """A step that is lost."""


def test_rounding_of_a_fused_optimizer_is_told_from_what_alters_the_training(unchanged: dict[str, Any]) -> None:
    assert same.difference(unchanged, trained()) == RunDifference(0, 0, EARLY, 0, 0, 0)
    fused = trained(fused=True, foreach=None)
    seen = same.difference(unchanged, fused)
    assert seen.early_weights and seen.weights and seen.early_weights < 1e-5 and seen.first_update < 1e-4  # type: ignore[operator]
    assert beyond(unchanged, fused) is False and same.rounding(unchanged, fused)[1] == "float32"
    for wrong in (trained(lr=1.01e-3), trained(weight_decay=0.0, lr=1e-3), trained(scaled(0.1)), trained(never)):
        assert beyond(unchanged, wrong) is True, same.difference(unchanged, wrong)


def test_what_runs_differ_by_themselves_explains_as_much(unchanged: dict[str, Any]) -> None:
    wrong = same.difference(unchanged, trained(lr=1.01e-3))
    assert same.beyond_rounding(wrong, 1.2e-7, same.difference(unchanged, trained(lr=1.005e-3))) is False


def test_bfloat16_rounds_more_and_is_named(unchanged: dict[str, Any]) -> None:
    """Autocast is seen where it is entered; its weights stay float32."""
    cast = trained(cast=True)
    assert same.rounding(unchanged, cast) == (2**-7, "bfloat16")
    assert same.difference(unchanged, cast).first_update > 1e-3  # type: ignore[operator]
    assert beyond(unchanged, cast) is False
    assert beyond(unchanged, trained(never, cast=True)) is True


def test_projections_tell_how_far_parameters_are_apart() -> None:
    """Of a long parameter they see numbers spread over all of it, and their mean square is the squared length."""
    source = torch.Generator().manual_seed(3)
    long = [torch.randn(n, generator=source) for n in (1, 10, 70_001, 300_000)]
    moved = [p + 1e-3 * torch.randn(p.shape, generator=source) for p in long]
    records = []
    for parameters in (long, moved):
        weights = Weights(torch, lambda: [SimpleNamespace(param_groups=[{"params": parameters}])])  # noqa: B023
        weights.keep(7)
        records.append({"steps": 7, "weights": weights.record()})
    seen = same.difference(*records).weights
    truth = math.dist(torch.cat(moved).tolist(), torch.cat(long).tolist()) / float(torch.cat(long).norm())
    assert seen is not None and truth / 2 < seen < 2 * truth


def record(norms: list[float], steps: int = 9, loss: float = 1.0) -> dict[str, Any]:
    points = [{"steps": steps, "norms": norms, "projections": [n / 2 for n in norms for _ in range(4)]}]
    return {"steps": steps, "weights": {"points": points}, "losses": {"first": [2.0], "last": [loss]}}


def test_what_is_not_finite_without_the_change_can_be_compared_with_nothing() -> None:
    one, lost = record([2.0, 1.0]), record([2.0, float("nan")], loss=float("inf"))
    assert same.difference(one, lost) == RunDifference(math.inf, math.inf) and same.broken(same.difference(one, lost))
    assert same.difference(lost, one) == RunDifference() == same.difference(lost, lost)
    assert same.difference(one, record([2.0, 1.0], steps=8)) == RunDifference(), "after other steps"
    assert same.difference(one, record([2.0])) == RunDifference(loss=0.0), "other parameters"


def test_a_change_of_speed_that_alters_weights_does_not_win() -> None:
    none, far = RunDifference(0.0), RunDifference(0.01)
    assert same.computes_other("speed", far, None, none)
    assert not same.computes_other("speed", far, None, RunDifference(0.005)), "unchanged runs differ as much"
    assert not same.computes_other("speed", far, False, none), "rounding, which has grown"
    assert not same.computes_other("numerics", far, True, none)
    later = RunDifference(0.01, 0.0, 5, 0.0, 0.0, 0.0)
    assert same.beyond_rounding(later, 1e-7, none) is True, "the same at first: no rounding that grew"
    trials = [
        ChangeTrial("a", verdict="faster", ratio=0.5, other_results=True),
        ChangeTrial("b", verdict="faster", ratio=0.9),
    ]
    assert [t.change for t in TryResult(["x"], trials=trials).winners()] == ["b"]


def test_a_loss_far_above_all_unchanged_ones_diverged() -> None:
    assert same.diverged(record([1.0]), record([1.0], loss=4.1))
    assert not same.diverged(record([1.0]), record([1.0], loss=3.9))
    assert not same.diverged(record([1.0], loss=-1.0), record([1.0], loss=9.0)), (
        "losses that can be negative have no scale"
    )


def test_what_weights_say_is_told_in_words() -> None:
    base = Baseline(1e7, 1e7, 1e7, 2, 60, 10, difference=RunDifference(0.0, 0.0, 5, 0.0, 0.0, 0.0))

    def told(*seen: Any, **more: Any) -> str:
        return sentence(ChangeTrial("c", difference=RunDifference(*seen), numbers="float32", **more), base)

    rounds = told(0.3, 2e-4, 5, 3e-7, 1e-6, 2e-4, beyond_rounding=False)
    assert rounds.endswith(
        "weights after 5 steps differ by 3e-07, as by rounding (float32), after 70 steps by 3e-01, grown "
        "(two unchanged runs: 0); the last loss by 2e-04"
    )
    loud = told(0.3, 0.1, 5, 1e-3, 0.4, 0.5, alters="numerics", beyond_rounding=True)
    assert "RESULTS DIFFER: its update of the weights in the first step by 40 %" in loud and "does not win" not in loud
    assert "so it does not win" in told(0.3, 0.1, 5, 1e-3, 0.4, 0.5, beyond_rounding=True, other_results=True)
    assert told(0.0, 0.0, 5, 0.0, 0.0, 0.0).endswith("the same weights after 70 steps")
    assert told(0.3, None).endswith("weights after 70 steps differ by 3e-01 (two unchanged runs: 0)"), (
        "nothing early is known"
    )
    written = TryResult(
        ["x"], base, [ChangeTrial("c", difference=RunDifference(0.3, 0.1, 5, 1e-3, 0.4, 0.5))]
    ).to_json()
    assert written["baseline"]["early_steps"] == 5
    names = ("weights", "loss", "early_weights", "first_update", "early_update")
    assert [written["trials"][0][f"{name}_difference"] for name in names] == [0.3, 0.1, 1e-3, 0.4, 0.5]


def test_a_run_that_was_cut_short_is_compared_by_its_early_steps(unchanged: dict[str, Any]) -> None:
    points = unchanged["weights"]["points"]
    short = {
        **unchanged,
        "steps": 20,
        "weights": {**unchanged["weights"], "points": [*points[:3], {**points[3], "steps": 20}]},
    }
    seen = same.difference(unchanged, short)
    assert (seen.weights, seen.loss, seen.early_steps, seen.first_update, seen.early_update) == (
        None,
        None,
        EARLY,
        0,
        0,
    )
    assert same.difference(unchanged, {**short, "weights": {"points": points[:2]}}) == RunDifference()

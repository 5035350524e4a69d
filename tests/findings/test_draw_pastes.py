"""NSX123: draws by weights that stay, by running sums that are made once, in the names of the program: the draws are the same."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest

from nsysx.findings._draw_pastes import in_names
from nsysx.findings._fix import Fix

FIX = Fix.by_name("drawn-by-weight")
DRAWN = (
    (
        ["ids = self.rng.choice(len(self.probs), size=self.count, p=self.probs)"],
        "self.cdf = self.probs.cumsum(dtype=float)  # once, beside where self.probs is set\n"
        "self.cdf /= self.cdf[-1]\n"
        'ids = self.cdf.searchsorted(self.rng.random(self.count), side="right")',
    ),
    (
        ["for step in range(2):", "    ids = w[np.random.choice(n, (3, 2), True, w / w.sum())]"],
        "cdf = (w / w.sum()).cumsum(dtype=float)  # once, beside where w / w.sum() is set\n"
        "cdf /= cdf[-1]\n"
        'ids = w[cdf.searchsorted(np.random.random((3, 2)), side="right")]',
    ),
    (
        ["ids = random.choices(range(self.count), weights=self.probs, k=64)"],
        "self.cum_weights = list(itertools.accumulate(self.probs))  # once, beside where self.probs is set; import itertools\n"
        "ids = random.choices(range(self.count), cum_weights=self.cum_weights, k=64)",
    ),
)


@pytest.mark.parametrize(("lines", "paste"), DRAWN)
def test_the_draws_stay_the_same(lines: list[str], paste: str) -> None:
    written = {9 + n: f"        {text}" for n, text in enumerate(lines)}
    fix = in_names(written, max(written), list(written.values()), FIX)
    assert fix.paste == paste
    drawn = []
    for code in (lines[-1].strip(), paste):
        weights = np.arange(1.0, 8.0)
        of_self = SimpleNamespace(probs=weights / weights.sum(), count=7, rng=np.random.default_rng(1))
        np.random.seed(2)
        random.seed(3)
        names = {"self": of_self, "np": np, "random": random, "itertools": itertools, "w": weights, "n": 7}
        exec(code, names)
        drawn.append(np.asarray(names["ids"]))
    assert np.array_equal(*drawn)


@pytest.mark.parametrize(
    ("lines", "elsewhere"),
    [
        # Weights of each step, and those that another function writes to; an argument may be another one in each call.
        (["p = self.prio / self.prio.sum()", "for _ in range(2):", "    ids = np.random.choice(n, k, p=p)", "    p = f(p)"], []),
        (["ids = np.random.choice(self.size, k, p=self.prio / self.prio.sum())"], ["self.prio[rows] = error"]),
        (["ids = self.rng.choice(len(self.p), size=k, p=self.p)"], ["sampler.p *= decay"]),
        (["ids = rng.choice(len(probs), size=k, p=probs)"], []),
        (["ids = self.rng.choice(len(self.p), size=k, p=self.net(self.p))"], []),
        # Without replacement, of an array of items, of which some have other dimensions.
        (["ids = self.rng.choice(len(self.p), k, False, self.p)"], []),
        (["ids = self.rng.choice(self.items, k, p=self.p)"], []),
        (["ids = self.rng.choice(len(self.p), k)"], []),
        (["counts = np.random.multinomial(64, self.p)"], []),
    ],
)  # fmt: skip
def test_weights_that_change_and_other_draws_stay_as_they_are(lines: list[str], elsewhere: list[str]) -> None:
    written = {9 + n: f"        {text}" for n, text in enumerate(lines)}
    drawing = next(n for n, text in written.items() if "choice" in text or "multinomial" in text)
    assert in_names(written, drawing, [*written.values(), *elsewhere], FIX) == FIX

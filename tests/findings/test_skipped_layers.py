"""NSX110: layers that ranks leave out by draws of their own, and ranks and layers of which each runs what it has to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from nsysx.findings import _skipped_layers
from nsysx.findings._skipped_layers import skipped_layers
from tests.findings.lined import FILE

DRAWS = "if self.training and random.random() < self.layer_drop:"
#: Which of eight layers each rank runs in the three steps of an X-ray.
UNLIKE = [["01357", "0134567", "0246"], ["013457", "0167", "01234567"]]


def profile(layers: list[str], text: str, path: str, beside: str) -> Any:
    """Return a rank: in each step it runs these layers of a list, one after the other. ``beside``: another line of its file."""
    ranges = [
        {"start_ns": 1000 * i + 10 * n, "end_ns": 1000 * i + 10 * n + 9, "name": f"{path}.{layer}"}
        for i, each in enumerate(layers)
        for n, layer in enumerate(each, 1)
    ]
    frame = pl.DataFrame(ranges).with_columns(
        kind=pl.lit("module"), process=pl.lit(1), repeated=pl.lit(value=False), recompute=pl.lit(value=False)
    )
    steps = [
        {"process": 1, "number": 40 + i, "start_ns": 1000 * i, "end_ns": 1000 * i + 990} for i in range(len(layers))
    ]
    source = {"probe": [{"source": {FILE: {"31": beside, "32": text}}}]}
    return SimpleNamespace(
        ranges=SimpleNamespace(ranges=frame),
        steps=SimpleNamespace(process=1, cpu=pl.DataFrame(steps)),
        trace=SimpleNamespace(run=source),
    )


def told(
    ranks: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    text: str = DRAWS,
    path: str = "net.layers",
    beside: str = "for layer in self.layers:",
) -> Any:
    first, *others = (profile(layers, text, path, beside) for layers in ranks)
    monkeypatch.setattr(_skipped_layers.peers, "others", lambda _: others)
    return skipped_layers(first)


@pytest.mark.parametrize(
    "text",
    [
        DRAWS,
        "if torch.rand(1).item() < self.p: continue",
        "keep = [random.random() >= 0.4 for _ in self.layers]",
        "if self.rng.uniform() > self.keep: continue",
        "alive = torch.bernoulli(self.keep)",
    ],
)
def test_layers_that_each_rank_leaves_out_by_its_own_draws(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(UNLIKE, monkeypatch, text)
    assert found.where == {"file": FILE, "line": 32} and found.path == "net.layers"
    assert (round(found.most, 2), round(found.mean, 2)) == (7.0, 5.67)  # 6, 7 and 8 at most


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([UNLIKE[0], UNLIKE[0]], DRAWS),  # one seed for all
        ([["0123"] * 3, ["4567"] * 3], DRAWS),  # stages
        ([["01234567"] * 3] * 2, "mask = torch.rand(n) < 0.5"),  # dropout
        (UNLIKE, "for expert, rows in routed:"),  # the data choose
        ([["012", "01", "02"], ["01", "012", "12"]], DRAWS),  # three are no stack of layers
        (UNLIKE[:1], DRAWS),  # one rank
    ],
)
def test_layers_that_ranks_run_alike_or_by_what_they_own(
    ranks: list[list[str]], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(ranks, monkeypatch, text) is None


@pytest.mark.parametrize(
    ("text", "beside", "paste"),
    [
        (
            "draws = torch.empty(len(self)).uniform_()",
            "    if not self.training or draws[i] > self.p:",
            "self.layer_rng = torch.Generator().manual_seed(17)  # once, in __init__: the same seed on all ranks\n"
            "draws = torch.empty(len(self)).uniform_(generator=self.layer_rng)",
        ),
        (
            "keep = np.random.rand(n_layers)",
            "for layer, k in zip(layers, keep):",
            "",
        ),
        (
            "u = [random.random() for _ in layers]",
            "    x = layer(x) if p < u[n] else x",
            "layer_rng = random.Random(17)  # once, before the steps: the same seed on all ranks\n"
            "u = [layer_rng.random() for _ in layers]",
        ),
        (
            "keep = np.random.uniform(0, 1, n)",
            "kept = [n for n, k in enumerate(keep) if k >= self.p]",
            "layer_rng = np.random.default_rng(17)  # once, before the steps: the same seed on all ranks\n"
            "keep = layer_rng.uniform(0, 1, n)",
        ),
        ("u = torch.rand(self.n, device=x.device)", "    if u[n].item() < self.p:", "draw ="),
        ("noise = torch.rand(4)", "if step < 4:", ""),
        ("drawn = torch.rand(4)", "if redrawn < drawn_before:", ""),
    ],
)  # fmt: skip
def test_draws_that_another_line_decides_by(
    text: str, beside: str, paste: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = told(UNLIKE, monkeypatch, text, beside=beside)
    assert (found is None) == (not paste)
    if paste:
        assert found.where == {"file": FILE, "line": 32} and found.fix().paste.startswith(paste)


@pytest.mark.parametrize(
    ("text", "paste"),
    [
        (DRAWS, "if self.training and self.layer_rng.random() < self.layer_drop:"),
        ("if torch.rand(1).item() < p: continue", "if torch.rand(1, generator=layer_rng).item() < p: continue"),
    ],
)
def test_the_line_draws_by_a_generator_of_its_own(text: str, paste: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(UNLIKE, monkeypatch, text)
    assert found.fix().paste.splitlines()[1] == paste

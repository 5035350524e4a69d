"""What tells a sharded model from layers that are split over the ranks: both gather and scatter."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings import _needs

BOTH = ["ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "ncclDevKernel_AllGather_RING_LL"]


def case(settings: RecordedSettings | None, kernels: list[str]) -> Any:
    profile = SimpleNamespace(once=lambda make: settings)
    return SimpleNamespace(profile=profile, ops=pl.DataFrame({"name": pl.Series(kernels, dtype=pl.Categorical)}))


@pytest.mark.parametrize(
    ("kernels", "dimension", "wrappers", "sharded"),
    [
        (BOTH, None, [{"kind": "fully_shard"}], True),
        (BOTH, "tp", [{"kind": "fully_shard"}], True),  # split and sharded
        (BOTH, None, [], True),  # shards that the program makes itself
        (BOTH, "dp", [], True),
        (BOTH, "tp", [], False),
        (BOTH[:1], None, [{"kind": "fully_shard"}], False),
    ],
)
def test_layers_that_a_mesh_splits_are_no_shards(
    monkeypatch: pytest.MonkeyPatch, kernels: list[str], dimension: str | None, wrappers: list[Any], sharded: bool
) -> None:
    settings = RecordedSettings({"groups": [{"dimension": dimension, "ranks": [0, 1]}], "wrappers": wrappers})
    monkeypatch.setattr(_needs, "settings_of", lambda profile: settings)
    assert _needs.shards(case(settings, kernels)) is sharded


def test_without_settings_kernels_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_needs, "settings_of", lambda profile: None)
    assert _needs.shards(case(None, BOTH))

"""What a sharded model is told about its blocks: in the words of its wrapper, with the names of its parts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import polars as pl
import pytest

from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings import _units_in_words
from nsysx.findings._case import Case, way

LAYERS = [
    ("model.layers.0", "LlamaDecoderLayer"),
    ("model.layers.0.mlp.1", "Linear"),
    ("model.layers.1", "LlamaDecoderLayer"),
]
ADAPTED = {"networks": [{"dtypes": {"bfloat16": 1000}}], "optimizers": [{"elements": 10}]}


def pasted(patched: pytest.MonkeyPatch, name: str, modules: list[tuple[str, str]], **settings: Any) -> str:
    attributed = SimpleNamespace(modules=pl.DataFrame(modules, schema=["module", "cls"], orient="row"))
    case = cast(Case, SimpleNamespace(profile=SimpleNamespace(attributed=attributed)))
    patched.setattr(_units_in_words, "settings_of", lambda profile: RecordedSettings(settings))
    return _units_in_words.in_its_words(case, "", way(name))[1].paste


@pytest.mark.parametrize(
    ("name", "kind", "more", "told"),
    [
        ("blocks-as-units", "fully_shard", {}, "for block in model.model.layers: fully_shard(block)"),
        (
            "sharded-blocks",
            "fully_shard",
            {},
            "for block in model.model.layers: fully_shard(block, reshard_after_forward=False)",
        ),
        ("blocks-as-units", "FSDP", {}, "(model, auto_wrap_policy=policy)"),
        ("blocks-as-units", "FSDP", ADAPTED, "(model, auto_wrap_policy=policy, use_orig_params=True)"),
        ("sharded-blocks", "FSDP", {}, "auto_wrap_policy=policy, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)"),
    ],
)
def test_blocks_have_the_names_of_the_program(
    name: str, kind: str, more: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paste = pasted(monkeypatch, name, LAYERS, wrappers=[{"kind": kind, "count": 1}], **more)
    assert told in paste and ("ModuleWrapPolicy({LlamaDecoderLayer})" in paste) == (kind == "FSDP")


@pytest.mark.parametrize("modules", [[("embed", "Embedding")], [("head.0", "Linear")]])
def test_blocks_that_are_not_seen_have_no_names(
    modules: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    paste = pasted(monkeypatch, "blocks-as-units", modules, wrappers=[{"kind": "fully_shard"}])
    assert "for block in model.blocks" in paste
    assert "({Block})" in pasted(monkeypatch, "blocks-as-units", modules, wrappers=[{"kind": "FSDP"}])
    assert pasted(monkeypatch, "no-reshard", LAYERS, wrappers=[{"kind": "FSDP"}]) == way("no-reshard").paste

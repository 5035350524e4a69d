"""What a sharded model is told about its blocks: in the words of its wrapper, with the names of its parts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from unittest.mock import Mock

import polars as pl
import pytest

from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings import _own_shards, _units_in_words
from nsysx.findings._case import Case, Saving, way
from nsysx.inject.nsysx_probe import sources
from nsysx.model import Finding
from nsysx.replay.engine import Replay

LAYERS = [
    ("model.layers.0", "LlamaDecoderLayer"),
    ("model.layers.0.mlp.1", "Linear"),
    ("model.layers.1", "LlamaDecoderLayer"),
]
UNIT = {"kind": "fully_shard", "count": 1, "parameter_dtype": "bfloat16", "mesh": [2], "mesh_names": ["dp"]}
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


class Beside(NamedTuple):
    """A case, as far as advice for blocks reads one: its step, and what is left of it without GPU work."""

    profile: Any
    replay: Any
    ops: pl.DataFrame
    step_ns: int


def advised(
    patched: pytest.MonkeyPatch, idle_ms: int, count: int, unit: dict[str, Any] = UNIT, error_ms: int = 20
) -> Finding:
    """Return what a model of some blocks in one unit is told: 20 of 100 ms could be hidden, hooks of a unit take 1 ms, 3 at most."""
    ms, layers = 1_000_000, [(f"model.layers.{number}", "LlamaDecoderLayer") for number in range(count)]
    replay = Mock(spec=Replay, trusted=True, saving=lambda *_: SimpleNamespace(saving_ns=idle_ms * ms))
    attributed = SimpleNamespace(modules=pl.DataFrame(layers, schema=["module", "cls"], orient="row"))
    case = cast(Case, Beside(SimpleNamespace(attributed=attributed), replay, pl.DataFrame({"op": [1]}), 100 * ms))
    patched.setattr(_units_in_words, "settings_of", lambda _: RecordedSettings({"wrappers": [unit]}))
    patched.setattr(_units_in_words, "HOOKS_OF_UNIT_NS", ms)
    patched.setattr(_units_in_words, "MOST_HOOKS_OF_UNIT_NS", 3 * ms)
    given = Finding("NSX110", "", "found", "", "", saving=Saving(20 * ms, "", error_ns=error_ms * ms))
    return _units_in_words.in_blocks(case, given)


@pytest.mark.parametrize(
    ("idle", "likely", "least", "most"),
    [(90, 20, 0, None), (12, 10, 0, 40), (1, 0, -5, 40)],
)
def test_units_that_are_finer_gain_little_where_the_host_takes_nearly_the_step(
    idle: int, likely: int, least: int, most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding, ms = advised(monkeypatch, idle, 2), 1_000_000
    assert (finding.saving.likely_ns, finding.saving.most_ns) == (likely * ms, most and most * ms)
    assert finding.saving.error_ns == (likely - least) * ms
    assert ("longer" in finding.detail) == ("may lose" in finding.saving.confidence) == (least < 0)
    assert "fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=False)" in finding.paste


@pytest.mark.parametrize(
    ("idle", "several", "likely", "least"),
    [
        (90, 0, 20, 0),  # a host that has time takes a unit for each block
        (20, 4, 13.33, 0),  # 3 units of 4, 4 and 2 blocks hide two thirds
        (8, 5, 6, 0),  # 2 units, of which the host has time for 6 ms
        (4, 5, 2, -2),
    ],
)
def test_where_a_unit_for_each_block_is_too_much_for_the_host_several_are_one(
    idle: int, several: int, likely: float, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = advised(monkeypatch, idle, 10)
    saving = finding.saving
    assert saving.likely_ns == pytest.approx(likely * 1e6, rel=1e-2)
    assert (saving.likely_ns or 0) - (saving.error_ns or 0) == pytest.approx(least * 1e6, abs=1)
    assert [remedy.name for remedy in finding.remedies] == ["grouped-blocks" if several else "sharded-blocks"]
    assert (f"fully_shard([*model.model.layers[first : first + {several}]], mesh=mesh" in finding.paste) == bool(
        several
    )
    policy = advised(monkeypatch, idle, 10, {**UNIT, "kind": "FSDP"})
    assert "ModuleWrapPolicy" in policy.paste, "FSDP takes no list of blocks"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "fully_shard(net, mesh=grid, mp_policy=mp)",
            "fully_shard(block, mesh=grid, mp_policy=mp, reshard_after_forward=False)",
        ),
        ("fully_shard(net, reshard_after_forward=True)", "fully_shard(block, reshard_after_forward=False)"),
        ("fully_shard(net, **kwargs)", "fully_shard(block, **{**kwargs, 'reshard_after_forward': False})"),
        ("fully_shard(", "fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=False)"),
    ],
)
def test_what_is_pasted_has_the_options_of_the_programs_own_call(
    text: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = RecordedSettings({"wrappers": [UNIT], "places": {"FSDP": "a.py:3"}})
    policy = "mp = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)"
    noted = {"a.py": {"2": policy, "3": text}}
    monkeypatch.setattr(_own_shards.lines, "texts", lambda _: {})
    monkeypatch.setattr(_own_shards.lines, "texts_of_ranks", lambda _: noted)
    case = cast(Case, SimpleNamespace(profile=None))
    assert _own_shards.call_for_block(case, settings, "reshard_after_forward=False") == told
    assert _own_shards.reduced_as_bfloat16(case, settings, "") == policy.replace("float32", "bfloat16")
    assert sources._gives_shares(policy) and sources._gives_shares(text) == text.endswith(")")


@pytest.mark.parametrize(
    ("texts", "calls"),
    [
        (
            ["for block in model.blocks:", "    fully_shard(block, **kwargs)", "return fully_shard(model, **kwargs)"],
            [
                "fully_shard(block, **{**kwargs, 'mp_policy': policy})",
                "return fully_shard(model, **{**kwargs, 'mp_policy': policy})",
            ],
        ),
        (
            ["for layer in net.layers: fully_shard(layer, mesh=mesh)  # each", "net = fully_shard(net)"],
            [
                "for layer in net.layers:\n    fully_shard(layer, mesh=mesh, mp_policy=policy)",
                "net = fully_shard(net, mp_policy=policy)",
            ],
        ),
        (["fully_shard(block, mp_policy=mine)", "fully_shard(net)"], []),
        (["fully_shard(block,", "model = wrap(model)"], []),
    ],
)
def test_each_call_that_shards_gets_the_policy(texts: list[str], calls: list[str]) -> None:
    assert _own_shards.calls_with_policy(dict(enumerate(texts))) == calls

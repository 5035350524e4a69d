"""Ranks that draw the same samples are told to load their own, and nobody else is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings import _same_samples
from nsysx.findings._case import Case
from nsysx.findings._shares_of_ranks import CutBatch

LOADER = {"made": "train.py:4", "batch_size": 256, "sampler": "RandomSampler"}
DDP = [{"kind": "DDP"}]


def job(monkeypatch: pytest.MonkeyPatch, *ranks: Mapping[str, Any]) -> tuple[Case, RecordedSettings]:
    """Return a case of ranks with these settings, the first one shown."""
    probe = [{"pid": 100 + rank, "settings": record} for rank, record in enumerate(ranks)]
    profile = SimpleNamespace(trace=SimpleNamespace(capture=SimpleNamespace(probe=probe)))
    monkeypatch.setattr(_same_samples.peers, "ranks", lambda _: [100 + rank for rank in range(len(ranks))])
    monkeypatch.setattr(_same_samples, "cut_after_loading", lambda *_: None)
    monkeypatch.setattr(_same_samples, "worker_split", lambda _: None)
    monkeypatch.setattr(_same_samples, "apart", lambda *_: False)
    monkeypatch.setattr(_same_samples, "forwards_alone", lambda *_: False)
    monkeypatch.setattr(_same_samples, "compares_samples", lambda *_: False)
    return cast(Case, SimpleNamespace(profile=profile, process=100)), RecordedSettings(ranks[0])


def streams(*numbers: int) -> dict[str, Any]:
    return {"wrappers": DDP, "loaders": [{**LOADER, "dataset": "Stream", "drawn": [], "batches": list(numbers)}]}


def test_streams_whose_batches_are_alike_are_told_with_code_that_shares_them(monkeypatch: pytest.MonkeyPatch) -> None:
    same = _same_samples.same_samples(*job(monkeypatch, streams(7, 8), streams(7, 8)))
    assert same is not None and same.streamed
    assert same.sentence() == "both ranks load the same 256 samples for a batch (Stream)"
    assert "islice" in same.fix().paste and "DistributedSampler" not in same.fix().paste


@pytest.mark.parametrize(
    "ranks",
    [
        (streams(7), streams(8)),
        (streams(7, 7), streams(7, 7)),  # one batch again and again is made up
        (streams(), streams()),
        (streams(7), {"wrappers": DDP, "loaders": [LOADER]}),
    ],
)
def test_streams_that_are_their_own_or_made_up_are_not(
    ranks: tuple[Mapping[str, Any], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _same_samples.same_samples(*job(monkeypatch, *ranks)) is None


@pytest.mark.parametrize(("backwards", "whole"), [(0, "a pass over the data"), (1, "an epoch")])
def test_ranks_without_a_wrapper_are_told_where_they_compute_apart(
    backwards: int, whole: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(*, apart: bool) -> _same_samples.SameSamples | None:
        alike = {**drew(7, wrappers=[]), "backwards": backwards}
        case, settings = job(monkeypatch, alike, alike)
        monkeypatch.setattr(_same_samples, "apart", lambda *_: apart)
        return _same_samples.same_samples(case, settings)

    same = told(apart=True)
    assert same is not None and same.worth() == f"{whole} takes half of the steps, each as long as now: up to 2x faster"
    assert ("shuffle=False" in same.fix().paste) is (backwards == 0)
    assert told(apart=False) is None


def drew(
    *numbers: int,
    made: str = "train.py:4",
    wrappers: Any = DDP,
    batches: Sequence[int] = (5,),
    given: Sequence[int | None] = (),
) -> dict[str, Any]:
    """Return the settings of a rank whose loader draws these numbers, with checksums of its batches and of what its network is given."""
    loader = {**LOADER, "made": made, "drawn": list(numbers), "batches": list(batches) if numbers else []}
    network = {"class": "Net", "place": "train.py:40", "rows": 256, "sums": list(given)}
    return {"wrappers": wrappers, "loaders": [loader], "inputs": [network] if given else []}


@pytest.mark.parametrize(
    ("ranks", "told"),
    [
        ((drew(7), drew(7)), True),
        ((drew(7, batches=(5,)), drew(7, batches=(6,))), False),  # as many samples, of a dataset of each rank
        ((drew(7, batches=()), drew(7, batches=())), False),  # what they hold was not seen
        ((drew(7, batches=(), given=(3,)), drew(7, batches=(), given=(3,))), True),
        ((drew(7, batches=(), given=(3, 4)), drew(7, batches=(), given=(4, 8))), True),  # one step apart
        ((drew(7, given=(3, 4)), drew(7, given=(8, 9))), False),  # each takes its rows of the batch behind the loader
        ((drew(7, batches=(), given=(None,)), drew(7, batches=(), given=(None,))), False),
        ((drew(7, given=(None,)), drew(7, given=(3,))), True),
        ((drew(7, batches=(), given=(3, 3)), drew(7, batches=(), given=(3, 3))), False),  # made up
        ((streams(7, 8), streams(7, 8)), True),
        (
            (
                streams(7, 8) | {"inputs": drew(given=(3,))["inputs"]},
                streams(7) | {"inputs": drew(given=(4,))["inputs"]},
            ),
            False,
        ),
    ],
)
def test_equal_numbers_tell_of_equal_samples_only_with_equal_contents(
    ranks: tuple[Mapping[str, Any], ...], told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (_same_samples.same_samples(*job(monkeypatch, *ranks)) is not None) is told


@pytest.mark.parametrize("numbers", [(7,), (7, 8), (6, 7)])
def test_ranks_that_draw_alike_are_told_which_samples(
    numbers: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that is a batch ahead draws one of the batches of the other rank."""
    same = _same_samples.same_samples(*job(monkeypatch, drew(7), drew(*numbers), drew(7)))
    assert same is not None
    assert same.sentence() == "all 3 ranks draw the same 256 samples for a batch (RandomSampler)"
    fix = same.fix()
    assert [way.name for way in fix.ways] == ["own-samples"] and "DistributedSampler" in fix.paste
    assert same.sentence() in fix.text and "batch_size //" not in fix.paste
    assert same.worth() == "an epoch takes 1/3 of the steps, each as long as now: up to 3x faster"


@pytest.mark.parametrize(
    "ranks",
    [
        (drew(7), drew(8)),  # each its own
        (drew(7), drew(7), drew(8)),  # a third one: the first two share tensors
        (drew(7),),
        (drew(7, wrappers=[]), drew(7, wrappers=[])),  # no DDP: ranks of a tensor-parallel model
        (drew(7), drew(7, made="train.py:9")),  # of another loader
        (drew(), drew()),  # data without numbers
        (drew(7), {}),  # another rank's settings were not read
        ({"wrappers": DDP, "loaders": [LOADER]}, drew(7)),  # recorded before draws were noted
    ],
)
def test_nothing_is_said_of_ranks_that_share_the_data_or_may(
    ranks: tuple[Mapping[str, Any], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    case, settings = job(monkeypatch, *ranks)
    assert _same_samples.same_samples(case, settings) is None and not _same_samples.drawn_alike(case, settings)
    assert not _same_samples.loaded_alike(case, settings) and _same_samples.fewer_steps(case, settings) is None


def gave(*sums: int | None, more: Sequence[Mapping[str, Any]] = (), wrappers: Any = DDP) -> dict[str, Any]:
    """Return the settings of a rank that gives its network this, and others something else."""
    network = {"class": "Net", "place": "train.py:40", "rows": 64, "sums": list(sums)}
    return {"wrappers": wrappers, "loaders": [], "inputs": [network, *more], "backwards": 1}


def test_ranks_of_which_one_was_looked_at_longer_have_the_same_data_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    case, settings = job(monkeypatch, gave(7, 8, 9), gave(8, 9))
    monkeypatch.setattr(_same_samples, "apart", lambda *_: True)
    assert _same_samples.same_samples(case, settings) is not None


TOKENS = {"class": "Text", "place": "train.py:38", "rows": 8}


@pytest.mark.parametrize("by", ["apart", "forwards_alone"])
@pytest.mark.parametrize("more", [(), ({**TOKENS, "sums": [5, 5]},)], ids=["alone", "beside a constant"])
def test_ranks_that_give_their_networks_the_same_are_told_to_share_the_rows(
    more: Sequence[Mapping[str, Any]], by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No loader, sampler or stream is there: each rank takes rows of a tensor by an order that is the same everywhere."""
    case, settings = job(monkeypatch, *[gave(7, 8, more=more)] * 2)
    assert _same_samples.same_samples(case, settings) is None, "they may exchange what they compute in a forward"
    monkeypatch.setattr(_same_samples, by, lambda *_: True)
    same = _same_samples.same_samples(case, settings)
    assert same is not None and same.trains
    assert same.sentence() == "in the same steps both ranks call Net at train.py:40 with the same tensors of 64 rows"
    assert "order[dist.get_rank() ::" in same.fix().paste and "DataLoader" not in same.fix().paste
    monkeypatch.setattr(_same_samples, "settings_of", lambda _: settings)
    assert _same_samples.place_of_call(case) == {"file": "train.py", "line": 40}


@pytest.mark.parametrize(
    "ranks",
    [
        (gave(7, 8), gave(7, 9)),
        (gave(7, 8, 9), gave(7, 6)),
        (gave(7, 8), gave(7)),
        (gave(7, 7), gave(7, 7)),  # one batch again and again is made up
        (gave(7), gave(7)),  # it may be
        (gave(7, None), gave(7, None)),  # not seen
        (gave(7, 8, more=[{**TOKENS, "sums": [1, 2]}]), gave(7, 8, more=[{**TOKENS, "sums": [3, 4]}])),  # own prompts
        (gave(7, 8, more=[{**TOKENS, "sums": [None, None]}]),) * 2,
        (gave(7, 8), gave(7, 8, more=[{**TOKENS, "sums": [1, 2]}])),  # work of one rank alone
        (gave(7, 8), gave(7, 8), gave(6, 5)),
        (gave(7, 8), {"wrappers": DDP}),
        (gave(7, 8),),
    ],
)
def test_ranks_that_may_be_given_data_of_their_own_are_not(
    ranks: tuple[Mapping[str, Any], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    case, settings = job(monkeypatch, *ranks)
    monkeypatch.setattr(_same_samples, "apart", lambda *_: True)
    assert _same_samples.same_samples(case, settings) is None


CUT = {"file": "train.py", "line": 8}


@pytest.mark.parametrize(
    ("ranks", "workers", "found"),
    [
        ((drew(), drew()), 4, True),
        ((drew(7), drew(7)), 4, True),
        ((drew(7), drew(8)), 4, False),  # each its own, of which it drops a part
        ((drew(), drew()), 0, False),  # the cut may be made in the loader itself
        ((drew(),), 4, False),
        ((drew(wrappers=[]), drew(wrappers=[])), 4, False),
    ],
)
def test_ranks_that_take_their_parts_of_each_batch_load_more(
    ranks: tuple[Mapping[str, Any], ...], workers: int, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, settings = job(monkeypatch, *ranks)
    (loader,) = settings.rows("loaders") or ()
    loader = loader if loader["drawn"] else {**loader, "workers": workers}
    monkeypatch.setattr(_same_samples, "cut_after_loading", lambda *_: CutBatch(loader, CUT))
    same = _same_samples.same_samples(case, settings)
    assert (same is not None) is found
    assert same is None or same.sentence() == (
        "each rank loads 256 samples of a batch (RandomSampler) and then takes its part of them, at train.py:8"
    )
    assert bool(_same_samples.loaded_alike(case, settings)) is found and not _same_samples.drawn_alike(case, settings)


def test_a_program_without_settings_is_not_asked() -> None:
    assert _same_samples.same_samples(cast(Case, None), None) is None

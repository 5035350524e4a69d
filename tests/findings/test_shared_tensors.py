"""Ranks that augment the same samples each for itself are told to load their own; those with data of their own, or a reason, are not."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from nsysx.findings import _same_samples
from nsysx.findings._same_samples import SameSamples
from tests.findings.test_same_samples import DDP, LOADER, job

BATCH = 64
HELD = {"data": {"x": 5}, "columns": {"y": 6}, "texts": {}, "numbers": {"size": 7}, "of_rank": False}
IMAGES, LABELS = "images", "labels"


def part(
    name: str, seed: object, *, of: int = 256, dtype: str = "float32", row: int = 4, rows: int = BATCH
) -> dict[str, Any]:
    """Return what is noted of a tensor whose numbers are drawn out of so many."""
    drawn = random.Random(repr((name, seed)))
    numbers = [f"{drawn.randrange(of):02x}" for _ in range(64)]
    return {"name": name, "dtype": dtype, "shape": [rows, row] if row else [rows], "numbers": ",".join(numbers)}


def images(rank: int, batch: int) -> dict[str, Any]:
    return part("0", (rank, batch))


def labels(batch: object, of: int = 10) -> dict[str, Any]:
    return part("1", batch, of=of, dtype="int64", row=0)


def tokens(rank: int, batch: int, masked: float) -> dict[str, Any]:
    """Return tokens of which each rank masks some."""
    whole, masks = part("ids", batch, dtype="int64"), random.Random(repr((rank, batch, "masks")))
    numbers = ["04" if masks.random() < masked else number for number in whole["numbers"].split(",")]
    return {**whole, "numbers": ",".join(numbers)}


Batches = Callable[[int, int], Sequence[Mapping[str, Any]]]


def loads(rank: int, batch: Batches, *, batches: int = 2, drawn: bool = True, **about: Any) -> dict[str, Any]:
    """Return the settings of a rank whose loader makes these batches and whose network is given tensors as large."""
    parts = [list(batch(rank, number)) for number in range(batches)]
    loader = {**LOADER, "drawn": [3, 4] if drawn else [], "batches": [100 * rank + n for n in range(batches)]}
    loader |= {"parts": parts, "data": HELD, "sampler_rank": None, "dataset": "Pictures", **about}
    given = {"class": "Net", "place": "train.py:40", "rows": BATCH, "sums": [100 * rank + 50, 100 * rank + 51]}
    given["shapes"] = [[BATCH, 4]]
    return {"wrappers": DDP, "loaders": [loader], "inputs": [given], "backwards": 1}


def each(batch: Batches, **about: Any) -> list[dict[str, Any]]:
    return [loads(rank, batch, **about) for rank in range(2)]


def told(monkeypatch: pytest.MonkeyPatch, *ranks: Mapping[str, Any], alone: bool = True) -> SameSamples | None:
    case, settings = job(monkeypatch, *ranks)
    monkeypatch.setattr(_same_samples, "forwards_alone", lambda *_: alone)
    return _same_samples.same_samples(case, settings)


def augmented(rank: int, batch: int) -> list[dict[str, Any]]:
    return [images(rank, batch), labels(batch)]


def test_labels_that_ranks_have_in_common_while_images_differ_tell_of_the_same_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    same = told(monkeypatch, *each(augmented))
    assert same is not None and same.sentence() == (
        "both ranks draw the same 256 samples for a batch (RandomSampler), which each augments for itself (tensor 1 is the same on each, "
        "tensor 0 is not): half of the samples of a step are repeated"
    )
    fix = same.fix()
    assert [way.name for way in fix.ways] == ["own-samples"] and "DistributedSampler" in fix.paste
    assert same.sentence() in fix.text
    assert same.worth() == "an epoch takes half of the steps, each as long as now: up to 2x faster"


def test_of_four_ranks_three_repeat_what_one_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    same = told(monkeypatch, *[loads(rank, augmented) for rank in range(4)])
    assert same is not None and same.sentence().endswith("3/4 of the samples of a step are repeated")
    assert (
        told(monkeypatch, *[loads(rank, augmented) for rank in range(3)], loads(3, lambda r, n: augmented(r, n + 9)))
        is None
    )


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (
            lambda rank, n: [part("user", n, dtype="int64", row=0), part("negatives", (rank, n), dtype="int64")],
            "user is the same on each, negatives is not",
        ),
        (lambda rank, n: [tokens(rank, n, 0.15)], "most of ids is the same on each"),
        (
            lambda rank, n: [part("0", n), labels(n)],
            "tensor 0 and tensor 1 are the same on each",
        ),  # augmented on the GPU
        (
            lambda rank, n: [images(rank, n)],
            "the datasets are the same on each, the batches are not",
        ),  # views without labels
        (lambda rank, n: [images(rank, n), labels(n, of=2)], "tensor 1 is the same on each, tensor 0 is not"),
    ],
)
def test_what_each_rank_changes_may_be_any_part(batch: Batches, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    same = told(monkeypatch, *each(batch))
    assert same is not None and f"({words})" in same.sentence()


def test_a_stream_is_told_by_labels_and_shared_in_its_own_iterator(monkeypatch: pytest.MonkeyPatch) -> None:
    same = told(monkeypatch, *each(augmented, drawn=False))
    assert same is not None and same.streamed and "islice" in same.fix().paste
    assert same.sentence().startswith(
        "both ranks load the same 256 samples for a batch (Pictures), which each augments"
    )


def test_loaders_that_one_line_makes_for_each_epoch_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def epochs(rank: int) -> dict[str, Any]:
        settings = loads(rank, augmented)
        (loader,) = settings["loaders"]
        made = [{**loader, "parts": [batch]} for batch in loader["parts"]]
        return {**settings, "loaders": [made[0], {**made[1], "data": None}]}

    assert told(monkeypatch, *map(epochs, range(2))) is not None


def regular(rank: int, batch: int) -> list[dict[str, Any]]:
    """Return a batch whose labels are in order, of one class or lengths: the probe notes no numbers of them."""
    return [images(rank, batch), {**labels(batch), "numbers": ""}]


#: A dataset that makes its samples up, or reads each when it is asked for.
NOTHING = {**HELD, "data": {}}


def with_data(rank: int, **facts: Any) -> dict[str, Any]:
    return loads(rank, augmented, data={**NOTHING, **facts})


@pytest.mark.parametrize(
    "ranks",
    [
        each(lambda rank, n: [images(rank, n), labels((rank, n))]),
        each(lambda rank, n: [images(rank, n), labels("constant")], data=NOTHING),
        each(regular, data=NOTHING),
        [loads(rank, regular, data={**HELD, "numbers": {"seed": rank}}) for rank in range(2)],
        each(regular, data={**HELD, "of_rank": True}),
        each(regular, drawn=False),
        each(augmented, batches=1),
        each(augmented)[:1],
        [loads(rank, augmented, sampler_rank=rank) for rank in range(2)],
        [{**settings, "backwards": 0} for settings in each(augmented)],
        [loads(0, augmented), {**loads(1, augmented), "loaders": [{**LOADER, "drawn": [8, 9], "parts": []}]}],
        [loads(0, augmented), loads(1, augmented, made="train.py:9")],
        [loads(0, augmented), {"wrappers": DDP}],
        [{**loads(rank, augmented), "loaders": [{**LOADER, "drawn": [3], "batches": [rank]}]} for rank in range(2)],
        each(lambda rank, n: [tokens(rank, n, 0.9)], data=NOTHING),
    ],
    ids=[
        "datasets of each rank",
        "labels that never vary",
        "regular labels",
        "regular labels and another seed",
        "regular labels and a method that looks at the rank",
        "a stream with regular labels",
        "one batch, as all may be",
        "one rank",
        "repeated augmentation by a sampler that knows ranks",
        "test-time augmentation",
        "other numbers",
        "another loader",
        "unknown",
        "recorded before",
        "few tokens in common",
    ],
)
def test_ranks_that_may_have_samples_of_their_own_are_not(
    ranks: Sequence[Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(monkeypatch, *ranks) is None


@pytest.mark.parametrize(
    ("facts", "is_told"),
    [
        ({}, True),  # nothing is known of what it holds, and nothing tells the ranks apart
        ({"data": {"x": 1}, "numbers": {"seed": "of rank"}}, True),  # the seed of what augments
        ({"data": {"x": 1}, "of_rank": True}, True),
        ({"data": {"x": "of rank"}}, False),
        ({"columns": {"y": "of rank"}}, False),
        ({"texts": {"root": "of rank"}}, False),  # a folder each
        ({"numbers": {"seed": "of rank"}}, False),  # made up of a seed of each rank
        ({"of_rank": True}, False),
        ({"data": {"x": 1}, "texts": {"root": "of rank"}}, False),
    ],
)
def test_what_a_dataset_holds_tells_whether_it_is_of_one_rank(
    facts: Mapping[str, Any], is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_rank(value: Any, rank: int) -> Any:
        return (
            {name: rank if held == "of rank" else held for name, held in value.items()}
            if isinstance(value, dict)
            else value
        )

    ranks = [with_data(rank, **{kind: of_rank(value, rank) for kind, value in facts.items()}) for rank in range(2)]
    assert (told(monkeypatch, *ranks) is not None) is is_told


def test_a_rank_that_takes_its_part_of_a_batch_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(rank: int, shapes: list[list[int]]) -> dict[str, Any]:
        settings = loads(rank, lambda rank, n: [part("0", n), labels(n)])
        return {**settings, "inputs": [{**settings["inputs"][0], "shapes": shapes}]}

    for shapes in ([[BATCH, 4]], [[4, BATCH]], [[BATCH], [BATCH, 3]]):  # whole, turned, all tokens but the last
        assert told(monkeypatch, *[cut(rank, shapes) for rank in range(2)]) is not None
    for shapes in (
        [[BATCH // 2, 4]],
        [[BATCH, 2], [BATCH, 4]],
        [[BATCH]],
        [],
    ):  # its rows, its part of each sequence, not seen
        assert told(monkeypatch, *[cut(rank, shapes) for rank in range(2)]) is None


@pytest.mark.parametrize("why", ["exchanges in a forward", "compares samples"])
def test_ranks_that_exchange_more_than_gradients_may_need_the_same_samples(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = each(augmented)
    case, settings = job(monkeypatch, *ranks)
    monkeypatch.setattr(_same_samples, "forwards_alone", lambda *_: why != "exchanges in a forward")
    monkeypatch.setattr(_same_samples, "compares_samples", lambda *_: why == "compares samples")
    assert _same_samples.same_samples(case, settings) is None


def test_streams_with_data_of_each_rank_and_numbers_of_equal_generators_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is drawn for a batch, as a noise level or a crop's size, is alike where the seeds are."""
    drawn = [
        lambda rank, n: [images(rank, n), part("noise", n)],
        lambda rank, n: [part("ids", (rank, n), dtype="int64"), labels((rank, n)), labels(n)],
    ]
    for batch in drawn:
        assert told(monkeypatch, *each(batch, drawn=False)) is None

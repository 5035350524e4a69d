"""What the probe tells of the tensors of a batch one by one and of what a dataset holds."""

from __future__ import annotations

import functools
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nsysx_probe import loader_settings
from nsysx_probe.batch_parts import batch_parts
from nsysx_probe.dataset_facts import dataset_facts
from torch import nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Subset,
    TensorDataset,
)

from tests.inject.test_probe import armed
from tests.inject.test_settings_reader import settings

pytestmark = pytest.mark.filterwarnings("ignore")


def numbers(tensor: torch.Tensor, *, beside: torch.Tensor | None = None, samples: int | None = None) -> list[str]:
    """Return the hashes that are noted of a tensor of a batch, none where it tells nothing."""
    batch = [("x", tensor)] if beside is None else [("x", tensor), ("beside", beside)]
    text = batch_parts(torch, batch, samples)[0]["numbers"]
    return text.split(",") if text else []


def drawn(below: int, *size: int, seed: int = 3) -> torch.Tensor:
    return torch.randint(0, below, size, generator=torch.Generator().manual_seed(seed))


def test_equal_numbers_have_equal_hashes_of_which_there_are_few() -> None:
    images, labels = torch.rand(64, 3, 32, 32), drawn(10, 64)
    (image, label) = batch_parts(torch, [("0", images), ("1", labels)])
    assert (label["name"], label["dtype"], label["shape"]) == ("1", "int64", [64])
    hashes = label["numbers"].split(",")
    assert (
        len(hashes) == 64 and all(len(each) == 2 for each in hashes) and len(set(hashes)) == len(set(labels.tolist()))
    )
    assert len(image["numbers"].split(",")) <= 64
    assert batch_parts(torch, [("1", labels.clone())])[0] == label


def test_targets_that_a_loss_ignores_have_no_hash() -> None:
    targets = torch.where(drawn(9, 8, 16) < 2, drawn(900, 8, 16), torch.full((8, 16), -100))
    hashes = numbers(targets)
    assert "-" in hashes and len(set(hashes)) > 3


@pytest.mark.parametrize(
    "column",
    [
        torch.zeros(64, dtype=torch.int64),
        torch.full((64,), 7),  # one class
        torch.arange(64),
        torch.arange(64).flip(0),
        torch.arange(64) // 8,
        torch.arange(64) % 10,  # few shots of each class, or pairs
        drawn(10, 3),  # alike by chance
    ],
)
def test_numbers_in_order_or_that_repeat_tell_nothing(column: torch.Tensor) -> None:
    assert not numbers(column)


def test_masks_tell_nothing_and_labels_of_two_classes_do() -> None:
    mask = drawn(2, 64, 16)
    assert not numbers(mask) and not numbers(mask.bool()) and not numbers(torch.where(mask > 0, 0.0, float("-inf")))
    assert numbers(mask[:, 0]) and numbers(mask[:, :1].float()) and numbers(drawn(3, 64, 16))


def test_lengths_tell_nothing() -> None:
    lengths = drawn(40, 64) + 11
    lengths[3] = 50
    tokens = drawn(1000, 64, 50)
    assert numbers(lengths) and not numbers(lengths, beside=tokens) and numbers(lengths, beside=drawn(9, 64, 10))
    assert not numbers(lengths / lengths.max()) and numbers(torch.rand(64))


def test_what_may_be_numbers_of_samples_tells_nothing() -> None:
    """Datasets of each rank have samples with the same numbers."""
    order = torch.randperm(5000, generator=torch.Generator().manual_seed(3))[:64]
    assert not numbers(order, samples=5000) and not numbers(order)
    assert numbers(order, samples=100_000), "users, of each of which many things are known"
    assert numbers(torch.cat([order[:63], order[:1]])), "no sample comes twice"


class _Held(Dataset[Any]):
    def __init__(self, **held: Any) -> None:
        vars(self).update(held)

    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> Any:
        raise AssertionError("no sample is made")


def test_what_a_dataset_holds_is_told_by_kind() -> None:
    held = {
        "images": torch.rand(64, 4),
        "array": np.random.rand(64, 4),
        "pairs": [(f"/data/{n}.png", n % 3) for n in range(64)],
        "paths": [f"/data/{n}.png" for n in range(64)],
        "names": [(f"{n}.png", n % 3) for n in range(64)],
        "labels": [n % 3 for n in range(64)],
        "classes": drawn(10, 64),
        "root": Path("/data"),
        "split": "train",
        "size": 32,
        "mean": [0.1, 0.2, 0.3],
        "device": "cuda:1",
        "crop": nn.Identity(),
        "rng": random.Random(3),
        "lock": {1: 2},
    }
    facts = dataset_facts(torch, _Held(**held))
    assert set(facts["data"]) == {"images", "array", "pairs", "paths"}
    assert set(facts["columns"]) == {"names", "labels", "classes"}
    assert (set(facts["texts"]), set(facts["numbers"]), facts["of_rank"]) == (
        {"root", "split"},
        {"size", "mean"},
        False,
    )
    assert dataset_facts(torch, _Held(**held)) == facts
    other = dataset_facts(torch, _Held(**{**held, "images": torch.rand(64, 4), "root": "/more"}))
    assert {kind for kind in facts if facts[kind] != other[kind]} == {"data", "texts"}


def test_datasets_inside_of_others_are_looked_at() -> None:
    first, second = TensorDataset(torch.rand(64, 4)), _Held(images=torch.rand(64, 4))
    facts = dataset_facts(torch, Subset(ConcatDataset([first, second]), list(range(20))))
    assert "dataset.datasets.1.images" in facts["data"] and "indices" in facts["columns"]
    assert set(facts["data"]) > {"dataset.datasets.1.images"}


def test_no_file_is_read_for_it(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(64, 4))
    facts = dataset_facts(torch, _Held(x=mapped, y=np.asarray(mapped)[1:], z=torch.rand(64, 4).to("meta")))
    assert not any(facts[kind] for kind in ("data", "columns", "texts", "numbers"))
    assert dataset_facts(torch, [1, 2, 3]) == {"data": {}, "columns": {}, "texts": {}, "numbers": {}, "of_rank": False}


class _Shard(Dataset[Any]):
    def __init__(self, rank: int = 0) -> None:
        self.seed = 3

    def __getitem__(self, number: int) -> Any:
        return self._offset() + number

    def _offset(self) -> int:
        return sum(one * torch.distributed.get_rank() for one in range(2))


class _Own(Dataset[Any]):
    def __init__(self, rank: int = 0) -> None:
        self.seed = 3 + rank

    def __getitem__(self, number: int) -> Any:
        return self.seed + number


def _of_rank(samples: Any, rank: int = 0) -> Any:
    return torch.stack(samples)[rank::2]


class _OfRank:
    def __call__(self, samples: Any) -> Any:
        return torch.stack(samples)[int(os.environ["LOCAL_RANK"]) :: 2]


def test_a_method_that_looks_at_the_number_of_the_rank_is_told() -> None:
    assert dataset_facts(torch, _Shard())["of_rank"] and dataset_facts(torch, Subset(_Shard(), [1]))["of_rank"]
    assert not dataset_facts(torch, _Own())["of_rank"]
    for collate, by_rank in (
        (_of_rank, True),
        (functools.partial(_of_rank, rank=1), True),
        (torch.stack, False),
        (_OfRank(), True),
    ):
        assert dataset_facts(torch, _Own(), collate)["of_rank"] is by_rank
    assert dataset_facts(torch, _Own(0))["numbers"] != dataset_facts(torch, _Own(1))["numbers"]


class _Flipped(Dataset[Any]):
    """Images that are flipped by chance, and their labels."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(3)
        self.x, self.y = torch.rand(256, 8, generator=draw), torch.randint(0, 10, (256,), generator=draw)

    def __len__(self) -> int:
        return 256

    def __getitem__(self, number: int) -> Any:
        return self.x[number] + random.random(), self.y[number]


@pytest.mark.parametrize("workers", [0, 1])
def test_two_ranks_that_augment_the_same_samples_have_their_labels_in_common(workers: int) -> None:
    def rank(number: int) -> dict[str, Any]:
        random.seed(number)
        torch.manual_seed(number)  # what seeds the workers
        data = _Flipped()
        sampler = RandomSampler(data, generator=torch.Generator().manual_seed(5))
        with armed() as lab:
            net, criterion = nn.Linear(8, 10), nn.CrossEntropyLoss()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for x, y in DataLoader(data, 16, sampler=sampler, num_workers=workers):
                optimizer.zero_grad()
                criterion(net(x), y).backward()
                optimizer.step()
            lab.probe.settings.window_closed()
            found = settings(lab)
            assert not lab.probe.settings._loaders._held
        return found

    first, second = (rank(number)["loaders"][0] for number in range(2))
    assert (
        first["data"] == second["data"]
        and set(first["data"]["data"]) == {"x"}
        and set(first["data"]["columns"]) == {"y"}
    )
    ((x, y),), ((other_x, other_y),) = first["parts"], second["parts"]
    assert y == other_y and y["numbers"] and x["numbers"] != other_x["numbers"]
    assert first["drawn"] == second["drawn"] and first["batches"] != second["batches"] and first["sampler_rank"] is None


def test_a_sampler_that_knows_its_rank_is_told() -> None:
    data = TensorDataset(torch.zeros(8))
    loader: Any = DataLoader(data, 4, sampler=DistributedSampler(data, 4, 2))
    assert loader_settings.sampler_rank(loader) == 2
    assert loader_settings.sampler_rank(DataLoader(data, 4)) is None


def test_the_generators_of_the_program_stay_as_they_are() -> None:
    before, python, numpy_state = torch.random.get_rng_state(), random.getstate(), repr(np.random.get_state())
    batch_parts(torch, [("x", torch.zeros(64, 8)), ("y", drawn(10, 64))], 64)
    dataset_facts(torch, _Flipped())
    assert torch.equal(before, torch.random.get_rng_state()) and python == random.getstate()
    assert numpy_state == repr(np.random.get_state())

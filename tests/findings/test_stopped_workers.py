"""NSX106: a stream of fewer parts than workers, of which few make all batches; and streams of which all workers have a part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsysx.model import Finding
from tests.findings.test_worker_remedies import Ran, found

TOKENS: Ran = ("tokenize", 16, 90, "ids = tokenizer(text)['input_ids']")
EIGHT: dict[str, Any] = {"workers": 8, "iterators": 1, "batch_size": 16, "made": "/job/train.py:7"}


def of(folder: Path, **loader: object) -> Finding:
    return found(folder, TOKENS, loader={**EIGHT, **loader})


@pytest.mark.parametrize(
    ("stream", "at_work", "why"),
    [
        ({"shards": 1, "total": 1, "split": None}, 1, "1 of 8 workers makes all batches, as it has 1 shard"),
        ({"shards": 3, "total": 24, "split": 8}, None, "3 of 8 workers make all batches, as it has 3 shards"),
        (None, 2, "2 of 8 workers make all batches, as its parts are fewer"),
    ],
)
def test_few_of_the_workers_make_all_batches(stream: object, at_work: int | None, why: str, tmp_path: Path) -> None:
    finding = of(tmp_path, stream=stream, at_work=at_work)
    assert [way.name for way in finding.remedies] == ["more-shards"] and why in finding.fix
    assert (finding.where["file"], finding.where["line"]) == ("/job/train.py", 7)
    assert ("to_iterable_dataset(num_shards=" in finding.paste) is (stream is not None)


def test_one_shard_that_ranks_do_not_divide_is_read_by_all(tmp_path: Path) -> None:
    finding = of(tmp_path, stream={"shards": 1, "total": 1, "split": 8}, at_work=1)
    assert "each rank reads all of them and keeps one of 8 samples" in finding.fix and "(64 or more)" in finding.fix
    assert "num_shards=64" in finding.paste


def test_no_more_is_saved_than_all_workers_can(tmp_path: Path) -> None:
    """10 ms of waiting before 4 ms of work: four workers in place of two halve what a batch takes, and no more."""
    two = of(tmp_path, at_work=2, workers=4)
    all_of_them = of(tmp_path, at_work=4, workers=4)
    assert 0 < (two.saving_ns_per_step or 0) < (all_of_them.saving_ns_per_step or 0)
    assert two.saving.confidence.startswith("4 workers in place of 2 give batches 2 times as often at most")


@pytest.mark.parametrize(
    ("stream", "at_work", "iterators"),
    [
        (None, 8, 1),
        (None, None, 1),  # not read
        (None, 1, 4),  # one of several short passes, which ends
        ({"shards": 8, "total": 64, "split": 8}, 8, 1),
        ({"shards": 128, "total": 128, "split": None}, 1, 3),
        (None, 5, 1),  # most of them
    ],
)
def test_workers_that_have_a_part_each(stream: object, at_work: int | None, iterators: int, tmp_path: Path) -> None:
    finding = of(tmp_path, stream=stream, at_work=at_work, iterators=iterators)
    assert [way.name for way in finding.remedies] == ["tokens-once"]

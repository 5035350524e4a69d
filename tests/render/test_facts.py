"""Facts about a capture: a large job is told by its number of files and GPUs, a small one file by file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsysx.gpus import Gpu
from nsysx.render import facts
from nsysx.render.facts_line import facts_line
from nsysx.render.grids import CellTexts
from tests.render import factory


@pytest.mark.parametrize(("count", "one_by_one"), [(8, True), (9, False), (512, False)])
def test_files_and_gpus_of_a_large_job_are_counted(count: int, one_by_one: bool) -> None:
    full = factory.summary()
    gpus = tuple(Gpu(process=i, pid=i, device=0, name="NVIDIA H100") for i in range(count))
    capture = replace(full.capture, files=tuple(f"/job/rank{i}.sqlite" for i in range(count)), gpus=gpus)
    shown = facts.capture_facts(replace(full, capture=capture), CellTexts(True))
    reports = next(f.value for f in shown if f.label == "Reports")
    of_gpus = [f for f in shown if "NVIDIA H100" in f.value]
    if one_by_one:
        assert reports == ", ".join(f"rank{i}.sqlite" for i in range(count)) and len(of_gpus) == count
    else:
        assert reports == f"{count} files, rank0.sqlite to rank{count - 1}.sqlite"
        assert [f.label for f in of_gpus] == [f"{count} GPUs"]


@pytest.mark.parametrize(
    ("cards", "said"),
    [((0, 1), "2 x NVIDIA H100"), ((0, 0), "NVIDIA H100 for 2 processes"), ((None, None), "2 x NVIDIA H100")],
)
def test_a_gpu_that_processes_share_is_one_gpu(cards: tuple[int | None, ...], said: str) -> None:
    full = factory.summary()
    gpus = tuple(Gpu(process=i, pid=i, device=0, name="NVIDIA H100", card=card) for i, card in enumerate(cards))
    line = facts_line(replace(full, capture=replace(full.capture, gpus=gpus)), CellTexts(True))
    assert said in line

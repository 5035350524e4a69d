"""Facts about a capture: a large job is told by its number of files and GPUs, a small one file by file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsysx.model import Gpu
from nsysx.render import facts
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

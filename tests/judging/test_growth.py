"""Steps that keep growing: what grows is named, with the dimension of its grid, and the allocator beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.pipeline import summarize
from tests.builder import Report

MS, US = 1_000_000, 1_000


def growing(*, kernel: bool = True, frees: bool = False) -> Report:
    """Return 16 steps in which one of three kernels grows from 2 ms to 17 ms with its grid, or only the host's pause does."""
    report = Report()
    main = report.process(100).thread(100)
    at = MS
    for i in range(16):
        begin = at
        if frees:
            main.call("cudaFree_v3020", at, 10 * US)
        gpu = at + 100 * US
        for k, name in enumerate(("embed", "attention", "loss")):
            took = (2 + i) * MS if kernel and name == "attention" else 2 * MS
            call = main.launch(at=at + (20 + 10 * k) * US, dur=5 * US, kernel=name, gpu_start=gpu, gpu_dur=took)
            call.ops[0].update(gridX=8, gridY=2 + i if kernel and name == "attention" else 4)
            gpu += took + US
        main.sync(at=at + 60 * US, dur=gpu - at - 50 * US)
        at = gpu + (200 * US if kernel else i * MS)
        main.add_range(f"step {i}", begin, at)
    return report


def test_the_kernel_that_grows_is_named_with_its_grid(tmp_path: Path) -> None:
    sentence = summarize([growing().write(tmp_path / "r.sqlite")], every_table=False).verdict.sentence
    assert "Step time grows from" in sentence
    assert "100 % of the growth is the kernel attention" in sentence
    assert "blocks along y" in sentence
    assert "allocator" not in sentence


def test_the_allocator_beside_it_is_named(tmp_path: Path) -> None:
    sentence = summarize([growing(frees=True).write(tmp_path / "r.sqlite")], every_table=False).verdict.sentence
    assert "The allocator frees device memory" in sentence


@pytest.mark.parametrize("frees", [False, True])
def test_pauses_that_grow_are_no_growth(tmp_path: Path, frees: bool) -> None:
    summary = summarize([growing(kernel=False, frees=frees).write(tmp_path / "r.sqlite")], every_table=False)
    assert summary.steps.trend["kind"] != "growing"
    assert "growth" not in summary.verdict.sentence

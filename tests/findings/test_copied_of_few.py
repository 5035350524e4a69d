"""NSX105: masks and labels of two values that each batch brings to the GPU; images, and small masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsysx.model import Finding
from tests.findings.lined import Lined

SOURCE = {12: "out = model(ids.cuda(non_blocking=True), mask.cuda(non_blocking=True))", 20: "y = net(x)"}
MASK = {"name": "batch.1", "dtype": "float32", "shape": [4, 1, 8192, 8192], "numbers": ""}


def told(folder: Path, *batches: list[dict[str, Any]], size: int = 1 << 30) -> Finding | None:
    """Return what is said of line 12, which copies ids and a mask in 20 ms before kernels of 100."""

    def body(program: Lined, number: int) -> None:
        with program.line(12):
            program.copy(3, pageable=False, bytes=4 * 8192 * 8)
            program.copy(20_000, pageable=False, bytes=size)
        with program.line(20), program.range("forward"), program.range("net:Net"):
            for _ in range(100):
                program.launch(1_000)
        program.sync()

    loader = {"workers": 8, "iterators": 1, "batch_size": 4, "pin_memory": True, "parts": list(batches)}
    made = Lined(SOURCE, {"loaders": [loader]}).run(body)
    found = [f for f in made.found(folder, "NSX105") if f.where.get("line") == 12]
    return found[0] if found else None


def is_of_few(finding: Finding | None) -> bool:
    return finding is not None and "made-from-few" in [way.name for way in finding.remedies]


def test_a_mask_is_made_on_the_gpu(tmp_path: Path) -> None:
    finding = told(tmp_path, [{**MASK, "name": "batch.0", "shape": [4, 8192], "dtype": "int64"}, MASK])
    assert is_of_few(finding) and finding is not None
    assert (
        "a tensor of 4 x 1 x 8192 x 8192 float32 has two values, and 1.0 GiB of it are copied per step" in finding.fix
    )
    assert finding.saving_ns_per_step == pytest.approx(20_000_000, rel=0.02)


@pytest.mark.parametrize(
    ("batches", "size"),
    [
        ([[{**MASK, "numbers": "de,ad,be"}]], 1 << 30),  # images
        ([[MASK], [{**MASK, "numbers": "de,ad,be"}]], 1 << 30),  # one of the batches is black
        ([[{**MASK, "shape": [1 << 28]}]], 1 << 30),  # a column: its numbers are not looked at
        ([[{**MASK, "shape": [4, 1, 512, 512]}]], 1 << 22),  # small
        ([[MASK]], 1 << 29),  # something else is copied
        ([], 1 << 30),  # not read
    ],
)
def test_other_copies_are_told_as_before(batches: list[list[dict[str, Any]]], size: int, tmp_path: Path) -> None:
    assert not is_of_few(told(tmp_path, *batches, size=size))

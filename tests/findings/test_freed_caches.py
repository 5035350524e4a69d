"""Why the allocator's cache is freed in steady steps: lines that empty it, a limit that was set, or neither."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsysx.model import Finding
from tests.findings.lined import Lined

GIB = 1 << 30
MEMORY: dict[str, Any] = {"total_bytes": 140 * GIB, "reserved_peak_bytes": 19 * GIB, "retries": 24, "share": 0.14}
EMPTIES, COLLECTS, OTHER = 14, 15, 20
SOURCE = {
    EMPTIES: "torch.cuda.empty_cache()",
    COLLECTS: "gc.collect(); torch.cuda.empty_cache()",
    OTHER: "loss = model(x, y)",
}


def flushed(program: Lined, number: int) -> None:
    """Twice a step no block is left: all is freed, and one is allocated, 6 ms each."""
    with program.line(OTHER), program.range("forward"), program.range("net:Net"):
        for _half in range(2):
            for _ in range(20):
                program.launch(300)
            program.sync()
            for _ in range(25):
                program.call("cudaFree_v3020", 200)
            program.call("cudaMalloc_v3020", 600)
        program.launch(300)
    program.sync()


def emptied(program: Lined, number: int) -> None:
    """The cache is emptied between two phases and at the end, there with 4 ms of a collection of garbage."""
    for line in (EMPTIES, COLLECTS):
        with program.line(OTHER), program.range("forward"), program.range("net:Net"):
            for _ in range(10):
                program.call("cudaMalloc_v3020", 300)
                program.launch(200)
            program.sync()
        with program.line(line):
            program.host(4_000 if line == COLLECTS else 5)
            for _ in range(20):
                program.call("cudaFree_v3020", 150)


def told(
    folder: Path, body: Any, settings: dict[str, Any] | None = None, source: dict[int, str] | None = None
) -> Finding:
    summary = Lined(source or SOURCE, settings).run(body).summary(folder)
    assert summary.answer is not None and summary.answer.do[0].code == "NSX104"
    return next(f for f in summary.findings or () if f.code == "NSX104")


def test_a_limit_that_is_full_is_raised(tmp_path: Path) -> None:
    found = told(tmp_path, flushed, {"memory": MEMORY})
    assert [way.name for way in found.remedies] == ["larger-memory-share"]
    assert "set_per_process_memory_fraction(0.14) leaves it 19.6 GiB of 140" in found.fix
    assert (
        found.paste.startswith("torch.cuda.set_per_process_memory_fraction(0.9)")
        and "Other processes" in found.condition
    )
    assert found.saving_ns_per_step == pytest.approx(11_200_000, rel=0.05)


@pytest.mark.parametrize(
    "memory",
    [
        {**MEMORY, "share": 1.0},
        {**MEMORY, "share": None},
        {**MEMORY, "share": 0.5},  # it is never full
        {"total_bytes": 140 * GIB, "retries": 24},
    ],
)
def test_without_a_limit_that_is_full_sizes_are_the_cause(memory: dict[str, Any], tmp_path: Path) -> None:
    found = told(tmp_path, flushed, {"memory": memory})
    assert [way.name for way in found.remedies] == ["expandable-segments", "fixed-sizes"]


def test_lines_that_empty_the_cache_go_with_the_collection_beside_them(tmp_path: Path) -> None:
    found = told(tmp_path, emptied, {"memory": MEMORY})
    assert [way.name for way in found.remedies] == ["no-empty-cache"]
    assert "Leave torch.cuda.empty_cache() and gc.collect() out of the loop (in lines 14 and 15)" in found.fix
    assert found.where["line"] in (EMPTIES, COLLECTS)
    # 40 frees of 150 us, the collection, and of 20 allocations of 300 us what no kernel of 200 us hides.
    assert found.saving_ns_per_step == pytest.approx(12_200_000, rel=0.05)


def test_lines_that_do_not_say_so_free_nothing(tmp_path: Path) -> None:
    """A cache that is full of blocks that do not fit is freed where the next one is asked for."""
    found = told(tmp_path, emptied, None, {**SOURCE, EMPTIES: "y = net(x)", COLLECTS: "loss.backward()"})
    assert "no-empty-cache" not in [way.name for way in found.remedies]

"""NSX127: a backward for each task under DDP, whose heads the last pass does not use, and micro-steps that use all of the network."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.findings import Program
from tests.findings.test_nsx127_costly_settings import CLEAN, DDP, alone, changed

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
TASKS = ("seg", "det", "cls")


def told(folder: Path, *, heads: bool, search: bool = True, last: bool = False) -> tuple[str, list[str]]:
    """Return title and remedies for a step with three passes; ``heads``: each has one of its own; ``last``: the last pass uses all."""

    def body(program: Program, number: int) -> None:
        for task in TASKS:
            with program.range("forward"), program.range("net:Net"):
                with program.range("net.trunk:Trunk"):
                    program.launch(400)
                used = TASKS if last and task == TASKS[-1] else (task,) if heads else ("any",)
                for name in used:
                    with program.range(f"net.{name}:Head"):
                        program.launch(100)
            with program.range("backward"):
                program.launch(500)
                program.launch(300, REDUCE)
        with program.range("optimizer SGD"):
            program.launch(50)

    wrapper = {**DDP, "find_unused_parameters": search, "unused_parameter_bytes": 1 << 20}
    settings = changed(CLEAN, {"wrappers": [wrapper], "backwards": 3, "reducing": 3})
    found = [f for f in alone(folder, settings, body) if f.verdict == "found"]
    (finding,) = (f for f in found if f.evidence[0]["setting"] == "no_sync unused")
    assert (finding.saving_ns_per_step or 0) > 2 * 250_000 and finding.saving.bound
    return finding.title, [r.name for r in finding.remedies]


def test_tasks_with_heads_go_back_once(tmp_path: Path) -> None:
    title, ways = told(tmp_path, heads=True)
    assert title.startswith("Gradients are reduced in the backward of each task") and ways == ["losses-in-one-backward"]


@pytest.mark.parametrize(
    "how",
    [{"heads": False}, {"heads": True, "search": False}, {"heads": True, "last": True}],
    ids=["micro-steps", "no search", "the last pass uses all"],
)
def test_passes_whose_last_one_uses_all_parts_reduce_in_it(how: dict[str, bool], tmp_path: Path) -> None:
    _, ways = told(tmp_path, **how)
    assert ways == ["no-sync"]

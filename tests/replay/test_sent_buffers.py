"""What goes with the buffers that a wrapper sends in each forward: the broadcasts, and the copies into and out of what they send."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.pipeline import ReadingOptions, gather
from nsysx.replay import job_changes
from tests.findings import Program

BROADCAST, FLATTENS = "ncclDevKernel_Broadcast_RING_LL", "CatArrayBatchedCopy_vectorized"
WRAPPER = ":DistributedDataParallel"


def sent(folder: Path, *, by: str = WRAPPER, sends: bool = True) -> list[str]:
    """Return the names of the GPU work that goes with them: of a step whose network joins and copies tensors, too."""

    def step(program: Program, number: int) -> None:
        with program.range("forward"), program.range(WRAPPER):
            program.copy(5, pageable=False)  # the input
            with program.range(by):
                program.launch(10, FLATTENS)
                if sends:
                    program.launch(100, BROADCAST)
                program.copy(5, "DtoD", pageable=False)
                program.copy(5, "DtoD", pageable=False)
            with program.range("net:Net"):
                program.launch(10, FLATTENS)
                program.copy(5, "DtoD", pageable=False)
                program.launch(200)
        with program.range("backward"):
            program.copy(5, "DtoD", pageable=False)

    report = Program().steps(step).report.write(folder / "r.sqlite")
    profile = gather(report, ReadingOptions())
    gone = job_changes.gone(profile, "own-buffers")
    ops = profile.steady_ops.filter(profile.steady_ops["op"].is_in(list(gone)))
    return sorted(ops["name"].cast(str).to_list())[:: profile.scope.steps]


def test_buffers_that_a_wrapper_sends_take_the_copies_of_the_wrapper_with_them(tmp_path: Path) -> None:
    assert sent(tmp_path) == sorted([BROADCAST, FLATTENS, "DtoD", "DtoD"])


@pytest.mark.parametrize(
    ("options", "gone"),
    [
        ({"sends": False}, []),
        ({"by": "table:Table"}, [BROADCAST]),  # a module that sends, too, does more than that
    ],
)
def test_copies_of_modules_stay(tmp_path: Path, options: dict[str, bool], gone: list[str]) -> None:
    assert sent(tmp_path, **options) == gone

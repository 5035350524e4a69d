"""NSX105: copies of one place that each move all that the one before moved, and copies that only look like it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from nsysx.findings._fix import Fix
from nsysx.model import Finding
from tests.findings.lined import Lined, forward

COPY, ROUNDS = 15, 12
BYTES, NEW = 64 << 20, 1 << 20


def step(program: Lined, kind: str, sizes: Sequence[int]) -> None:
    """Copies of a step, 100 us for a MiB, each with a kernel behind it; then a network."""
    for size in sizes:
        with program.line(COPY):
            program.copy(100 * size / NEW, kind, bytes=size)
        program.launch(20)
    forward(program)
    program.sync()


def found(folder: Path, kind: str = "HtoD", sizes: Sequence[Sequence[int]] = ()) -> list[Finding]:
    """Return what NSX105 found; ``sizes``: of the copies of each step, in turn."""
    each = sizes or [[BYTES + n * NEW for n in range(ROUNDS)]]
    program = Lined({COPY: "x = torch.from_numpy(rows).cuda()"}, {})
    return program.run(lambda program, number: step(program, kind, each[number % len(each)])).found(folder, "NSX105")


@pytest.mark.parametrize(("kind", "remedy"), [("HtoD", "new-rows-to-gpu"), ("DtoH", "new-rows-to-host")])
def test_what_is_new_is_copied_alone(kind: str, remedy: str, tmp_path: Path) -> None:
    (finding,) = found(tmp_path, kind)
    assert [way.name for way in finding.remedies] == [remedy] and "grow by 1.0 MiB" in finding.fix
    moved = sum(BYTES + n * NEW for n in range(ROUNDS))
    old = moved - BYTES - (ROUNDS - 1) * NEW
    assert finding.saving_ns_per_step == pytest.approx(100_000 * old / NEW, rel=0.1)


@pytest.mark.parametrize(
    "sizes",
    [
        [[BYTES] * ROUNDS],  # batches
        [[BYTES + n * n * NEW for n in range(ROUNDS)]],  # of sorted samples
        [[BYTES + NEW * (n * 7 % ROUNDS) for n in range(ROUNDS)]],  # padded to the longest of each
        [[BYTES + n * NEW] for n in range(ROUNDS)],  # a longer batch in each step
        [[BYTES + n * NEW for n in range(3)]],  # few
        [[NEW * 4**n for n in range(7)]],  # each is mostly new
    ],
    ids=["same", "sorted", "padded", "steps", "few", "new"],
)
def test_other_copies_are_not_of_rows_that_stay(sizes: Sequence[Sequence[int]], tmp_path: Path) -> None:
    assert not [f for f in found(tmp_path, "HtoD", sizes) if f.remedies and f.remedies[0].name.startswith("new-rows")]


def test_the_paste_keeps_all_rows() -> None:
    once, *each = Fix.by_name("new-rows-to-gpu").paste.replace("device='cuda'", "device='cpu'").splitlines()
    rows = torch.randn(6, 2, 3)
    given: dict[str, object] = {"torch": torch, "longest": 12, "n": 0, "new": rows[0], "rows": []}
    exec(once, given)
    append, join = Fix.by_name("new-rows-to-host").paste.splitlines()
    for n in range(6):
        given["new"] = rows[n].numpy()
        exec("\n".join(each), given)
        assert torch.equal(given["whole"], rows[: n + 1].flatten(0, 1))  # type: ignore[arg-type]
        given["new"] = rows[n]
        exec(f"{append}\n{join}", given)
        assert torch.equal(given["whole"], rows[: n + 1].flatten(0, 1))  # type: ignore[arg-type]

"""Tensors that stay on the host and are copied to the GPU in each step: to be kept there. Batches, and what changes, are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.lined import Lined, forward

COPY, OTHER = 15, 16
BYTES = 64 << 20


def looking_up(program: Lined, number: int, *, every: int = 1, grows: bool = False) -> None:
    """A copy of 64 MiB from pageable memory (6 ms), then a network."""
    with program.line(OTHER):
        program.host(5)
    if number % every == 0:
        with program.line(COPY):
            program.copy(6_000, "HtoD", bytes=BYTES + 4096 * number * grows)
    forward(program)
    program.sync()


def copied(folder: Path, text: str, other: str = "self.calls += 1", **kind: bool) -> Finding:
    program = Lined({COPY: text, OTHER: other}, {}).run(lambda program, number: looking_up(program, number, **kind))
    (found,) = program.found(folder, "NSX105")
    return found


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("rows = self.prices.to(x.device)[index]", "self.prices"),
        ("return F.embedding(index, self.model.table.cuda(non_blocking=True))", "self.model.table"),
        ("y = x * WINDOW.to(device)", "WINDOW"),
    ],
)
def test_what_an_object_keeps_is_kept_on_the_gpu(text: str, name: str, tmp_path: Path) -> None:
    found = copied(tmp_path, text)
    assert [way.name for way in found.remedies] == ["kept-constant"] and f"Keep {name} on the GPU" in found.fix
    assert (
        f'register_buffer("{name.rpartition(".")[2].lower()}"' in found.paste
        and "not what is in them" in found.condition
    )
    assert found.where["line"] == COPY
    assert found.saving_ns_per_step == pytest.approx(6_000_000, rel=0.05), "the whole copy goes"


@pytest.mark.parametrize(
    ("text", "other", "kind"),
    [
        ("x = x.to(device)", "pass", {}),
        ("x = self.batch.to(device)", "pass", {}),
        ("x = self.next_input.cuda()", "pass", {}),
        ("rows = self.prices.to(device)", "self.prices = self.quotes(number)", {}),
        ("rows = self.prices.to(device)", "self.prices[seen] = last", {}),
        ("rows = self.prices.to(device)", "self.prices.mul_(decay)", {}),
        ("rows = self.prices.to(device)", "pass", {"grows": True}),
        ("rows = self.prices.to(device)", "pass", {"every": 4}),
    ],
)
def test_batches_and_what_changes_are_copied(text: str, other: str, kind: dict[str, bool], tmp_path: Path) -> None:
    assert "kept-constant" not in [way.name for way in copied(tmp_path, text, other, **kind).remedies]

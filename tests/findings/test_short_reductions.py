"""NSX110: short sums over the ranks that split layers need at once while nothing is trained, and messages that are not like that."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.test_layer_messages import OWN, SETTINGS, SOURCE, SQUARE, message
from tests.findings.test_smaller_operators import operator
from tests.ranks.test_rank_table import noted

LAYERS = 10


def step(program: Lined, number: int, *, us: float, size: int, trains: bool, beside: bool) -> None:
    """A token: in each layer a product of 60 us, the sum of its results over the ranks, and what needs that."""
    at = 1000 * number + 10
    if not number:
        noted(program.main, "ncclCommInitRankConfig", 1, 2, comm=5, of=2, Rank=0)
    with program.line(20), program.range("forward"), program.range("net:Net"):
        for layer in range(LAYERS):
            first = at + 20 * layer
            operator(program, "linear", first, [-1, -1], f"{OWN}, {SQUARE}", 60)
            came = message(program, "ncclAllReduce", first + 1, first, us=us * (3 if not layer else 1), size=size)
            if beside:
                operator(program, "linear", first + 2, [-1, -1], f"{OWN}, {SQUARE}", 100)
            operator(program, "add", first + 8, [came, -1], f"{OWN}, {OWN}, []", 5)
    if trains:
        with program.line(40), program.range("backward"):
            program.launch(300)
    program.sync()


def told(
    folder: Path, *, us: float = 26, size: int = 1 << 19, trains: bool = False, beside: bool = False
) -> list[Finding]:
    program = Lined(SOURCE, {**SETTINGS, "backwards": int(trains)})
    program.run(lambda program, number: step(program, number, us=us, size=size, trains=trains, beside=beside))
    found = program.found(folder, "NSX110")
    return [each for each in found if [way.name for way in each.remedies] == ["one-shot-sums"]]


def test_short_sums_cost_their_latency(tmp_path: Path) -> None:
    """The first of ten waits for a late rank: that wait stays."""
    (finding,) = told(tmp_path)
    assert "10 sums over the ranks of 512.0 KiB at most" in finding.detail and "take 26.0 us each" in finding.detail
    assert "one_shot_all_reduce(" in finding.paste
    saving = finding.saving
    assert saving.likely_ns == pytest.approx(LAYERS * 15_000, rel=0.1)
    assert saving.likely_ns - (saving.error_ns or 0) == pytest.approx(LAYERS * 11_000, rel=0.1)


@pytest.mark.parametrize(
    "how",
    [{"us": 9.0}, {"size": 16 << 20}, {"trains": True}, {"beside": True}],
    ids=["short already", "large", "trained", "needed later"],
)
def test_other_messages_are_not_told_so(how: dict[str, float], tmp_path: Path) -> None:
    assert not told(tmp_path, **how)  # type: ignore[arg-type]

"""NSX110: whole weights that each step gathers for an average, and how the average of a rank's own part is written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nsysx.findings._case import Fix
from nsysx.findings._shards_in_words import _without_gather
from nsysx.model import Finding
from tests.findings import said_of
from tests.findings.lined import Lined
from tests.findings.test_untrained_gathers import GATHER, SCATTER, SOURCE, UNITS, ordered, settings, unit

PAIRS = "for pe, p in zip(net_ema.parameters(), net.parameters()):"
FLAT = {
    40: "with FSDP.summon_full_params(net, writeback=False):",
    41: PAIRS,
    42: "pe.mul_(d).add_(p.data, alpha=1 - d)",
}
PARTS = {41: PAIRS, 42: "pe.lerp_(p.full_tensor(), 0.001)  # each"}


def step(program: Lined, number: int, *, line: int) -> None:
    """A forward, a backward, an update, and at a line gathers of all units: few large ones at 40, one of each parameter at 42."""
    with program.line(20), program.range("forward Net"), program.range("net:Net"):
        for n in range(UNITS):
            unit(program, n, root="net", kernel_us=900, gathers=True)
    with program.line(21), program.range("backward"):
        for _ in range(UNITS):
            program.launch(60, GATHER, stream=19)
            program.launch(1800)
            program.launch(60, SCATTER, stream=20)
    with program.line(30), program.range("optimizer AdamW"):
        program.launch(50)
    for _ in range(UNITS if line == 40 else 60):
        with program.line(line, "update_ema"):
            ordered(program, 7, 19)
            program.launch(500 if line == 40 else 40, GATHER, stream=19)
            ordered(program, 19, 7)
            program.launch(20, "vectorized_elementwise_kernel")
    program.sync()


def found(folder: Path, kind: str, lines: dict[int, str], line: int) -> Finding:
    noted: dict[str, Any] = {**settings(kind=kind), "given_again": []}
    program = Lined({**SOURCE, **lines}, noted).run(lambda p, n: step(p, n, line=line))
    told = [f for f in said_of(program.write(folder)) if f.verdict == "found"]
    assert not any("gathered-once" in [r.name for r in f.remedies] for f in told), "no network is called"
    (finding,) = (f for f in told if f.code == "NSX110")
    assert [r.name for r in finding.remedies] == ["shards-kept"] and finding.where["line"] == line
    return finding


def test_an_average_of_flat_parameters_is_sharded_by_the_same_policy(tmp_path: Path) -> None:
    finding = found(tmp_path, "FSDP", FLAT, 40)
    assert "without summon_full_params()" in finding.fix
    assert finding.paste.splitlines()[1].startswith(
        "for e, p in zip(net_ema.parameters(), net.parameters()): e.lerp_(p, 1 - d)"
    )
    assert UNITS * 450_000 < (finding.saving.likely_ns or 0) < UNITS * 600_000


@pytest.mark.parametrize(("pairs", "named"), [(PAIRS, True), ("for pe, p in pairs:", False)])
def test_an_average_of_dtensors_takes_their_own_parts(pairs: str, named: bool, tmp_path: Path) -> None:
    finding = found(tmp_path, "fully_shard", {**PARTS, 41: pairs}, 42)
    assert ("[p.to_local() for p in net.parameters()], 0.001)" in finding.paste) == named
    assert "to_local()" in finding.paste and "0.001)" in finding.paste, "the weight of the program stays"


class Part:
    """A weight of which this rank has a part, with what DTensors are asked for."""

    def __init__(self, part: torch.Tensor) -> None:
        self.part = part

    def to_local(self) -> torch.Tensor:
        return self.part

    def detach(self) -> Part:
        return self


ZIPPED = {1: "for a, p in zip(self.kept, self.weights):", 2: "a.lerp_(p.detach().full_tensor(), 1.0 - self.decay)"}
MADE = "self.kept = [p.detach().full_tensor().clone() for p in self.weights]"


@pytest.mark.parametrize(
    ("around", "made", "first", "last"),
    [
        (ZIPPED, MADE, "self.kept = [p.detach().to_local().clone() for p in self.weights]  # once, of each rank's own part",
         "torch._foreach_lerp_(self.kept, [p.detach().to_local() for p in self.weights], 1.0 - self.decay)  # in place of the loop"),
        ({**ZIPPED, 3: "count += 1"}, "", "a.lerp_(p.detach().to_local(), 1.0 - self.decay)", ""),  # may be of the loop, too
        ({1: "for n, p in net.named_parameters():", 2: "kept[n].mul_(d).add_(p.full_tensor(), alpha=1 - d)"},
         "kept = {n: p.full_tensor().clone() for n, p in net.named_parameters()}",
         "kept = {n: p.to_local().clone() for n, p in net.named_parameters()}  # once, of each rank's own part",
         "kept[n].mul_(d).add_(p.to_local(), alpha=1 - d)"),
        ({1: "a = self.kept[n]", 2: "a.lerp_(p.full_tensor(), weight)"}, "", "a.lerp_(p.to_local(), weight)", ""),
        ({2: "kept.append(p.full_tensor())"}, "", "kept.append(p.to_local())", ""),
        ({2: "a.lerp_(gathered(p), weight)"}, "", "", ""),
    ],
    ids=["a loop", "more in the loop", "by name", "by an index", "no average", "no gather"],
)  # fmt: skip
def test_the_line_stays_but_for_its_gather(around: dict[int, str], made: str, first: str, last: str) -> None:
    general = Fix.by_name("shards-kept")
    fix = _without_gather({1: "", **around}, 2, [*around.values(), made], general)
    lines = [first, last] if last else [first] if first else general.ways[0].paste.splitlines()
    assert fix.ways[0].paste.splitlines() == lines
    is_average = bool(first) and "append" not in first
    assert ("self.kept must be made of each rank's own part" in fix.condition) == (is_average and not made)


def test_the_lines_average_each_rank_s_own_part() -> None:
    fix = _without_gather(ZIPPED, 2, [*ZIPPED.values(), MADE], Fix.by_name("shards-kept"))
    names = SimpleNamespace(weights=[Part(torch.full((3,), 2.0)), Part(torch.full((5,), 4.0))], decay=0.9)
    made, average = fix.ways[0].paste.splitlines()
    scope = {"self": names, "torch": torch}
    exec(made, scope)
    names.weights[0].part.fill_(12.0)
    exec(average, scope)
    assert [float(each[0]) for each in names.kept] == pytest.approx([3.0, 4.0])

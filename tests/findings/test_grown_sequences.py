"""NSX131: networks that a step calls on a sequence that is longer each time, with gradients and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.lined import FILE, Lined
from tests.findings.test_grown_with_gradients import Step

LINE, ROUNDS, LAYERS = 25, 12, 2
SOURCE = {LINE: "hidden = self.decoder(tokens)"}


def step(program: Lined, number: int, kind: str) -> None:
    """Twelve calls of a network of two layers, 10 us a row in each, twice that in backward, and a network beside it.

    ``sampled``: without gradients. ``same``: on sequences of one length. ``memory``: one of the layers gets more rows.
    """
    run, trained = Step(program, number), kind != "sampled"
    with program.range("forward"), program.range("encoder:Encoder"):
        run.operator("linear", [-1, -1], "[64, 64], [64, 64]", 1000, trained=True, backward_us=10)
    for n in range(1, ROUNDS + 1):
        with program.line(LINE), program.range("decoder:Decoder"):
            for layer in range(LAYERS):
                rows = ROUNDS if kind == "same" or (kind == "memory" and layer) else n
                run.operator(
                    "linear", [-1, -1], f"[4, {rows}, 64], [64, 64]", 10 * rows, trained=trained, backward_us=20 * rows
                )
    run.operator("sum", [-1], "[4, 12, 64]", 5, trained=trained)
    with program.range("backward"):
        run.backward()
    program.sync()


def found(folder: Path, kind: str) -> list[Finding]:
    program = Lined(SOURCE, {"networks": [{"class": "Decoder", "package": "torch"}]})
    findings = program.run(lambda program, number: step(program, number, kind)).found(folder, "NSX131")
    return [each for each in findings if each.remedies[0].name in ("rows-at-once", "kept-keys")]


@pytest.mark.parametrize(("kind", "remedy", "us"), [("trained", "rows-at-once", 30), ("sampled", "kept-keys", 10)])
def test_a_network_that_computes_all_rows_again(kind: str, remedy: str, us: int, tmp_path: Path) -> None:
    (finding,) = found(tmp_path, kind)
    assert [way.name for way in finding.remedies] == [remedy]
    assert (finding.where["file"], finding.where["line"]) == (FILE, LINE) and "Decoder computes" in finding.title
    assert "12 calls of a step compute 4, 8, ... 48 rows, each 4 more" in finding.detail
    again = LAYERS * us * sum(range(ROUNDS))  # all rows but the new ones
    assert finding.saving.bound and finding.saving_ns_per_step == pytest.approx(1000 * again, rel=0.02)


@pytest.mark.parametrize("kind", ["same", "memory"])
def test_calls_that_need_their_rows(kind: str, tmp_path: Path) -> None:
    assert not found(tmp_path, kind)

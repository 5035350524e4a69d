"""NSX123: what one call runs in each step, in lines of several kinds, is one finding with the place of that call."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.lined import Lined, forward

SOURCE = {
    20: "y = net(x)",
    21: "loss.backward()",
    30: "self.meter.add(logits, labels)",
    31: "self.step()",
    40: "order = np.argsort(-scores)",
    41: "total = np.cumsum(hits)",
    42: "rows = [row for row in table]",
    43: "json.dump(rows, file)",
}


def found(
    folder: Path, *, caller: int, second: int = 41, second_us: float = 1500, third: bool = True, network: bool = False
) -> list[Finding]:
    """Return what is found of a step whose line ``caller`` calls lines that hold the CPU, and ``network``: the network, too."""

    def body(program: Lined, number: int) -> None:
        if not network:
            forward(program)
        with program.line(caller):
            with program.line(40, "rank"):
                program.host(3000)
            with program.line(second, "count"):
                program.host(second_us)
            if third:
                with program.line(43, "write"):
                    program.host(1000)
            if network:
                forward(program)
        program.sync()

    return Lined(SOURCE).run(body).found(folder, "NSX123")


def test_lines_of_three_kinds_that_one_line_calls_are_one_change(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, caller=30)
    assert finding.where["line"] == 30 and finding.title.startswith("train.py:30 calls what holds the CPU for 5.5")
    assert finding.cost_ns_per_step == pytest.approx(5_500_000, rel=0.05)
    assert finding.fix.startswith(
        "Call this less often, or make it faster: most of its time is at train.py:40. Rank on the GPU"
    )
    assert "train.py:40 `order = np.argsort(-scores)`" in finding.detail


def test_a_line_that_runs_the_network_calls_more_than_that(tmp_path: Path) -> None:
    assert {f.where["line"] for f in found(tmp_path, caller=31, network=True)} == {40, 41, 43}


def test_a_line_of_which_nothing_is_known_is_left_alone(tmp_path: Path) -> None:
    assert {f.where["line"] for f in found(tmp_path, caller=30, second=42)} == {40, 42, 43}


@pytest.mark.parametrize(("second_us", "third", "alone"), [(500, True, {40, 41, 43}), (2900, False, {40, 41})])
def test_one_kind_that_is_most_of_it_and_two_alone_stand_for_themselves(
    second_us: float, third: bool, alone: set[int], tmp_path: Path
) -> None:
    assert {f.where["line"] for f in found(tmp_path, caller=30, second_us=second_us, third=third)} == alone

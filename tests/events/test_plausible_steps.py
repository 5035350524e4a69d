"""A repeated kernel sequence that is no step: parts of a pass, and repetitions that are different work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builder import Report, Thread
from tests.events.test_steps import PERIOD, US, read, work


@pytest.mark.parametrize("name", ["forward", "net:GPT"])
def test_layers_of_one_pass_are_no_steps(tmp_path: Path, name: str) -> None:
    """Eight layers inside one range of a pass, with what would mark a step in each."""
    report, main = unnamed(8, lambda i: PERIOD)
    assert read(report, tmp_path).source == "kernels"
    main.add_range(name, 0, 8 * PERIOD)
    table = read(report, tmp_path)
    assert table.source == "capture"
    assert "lies inside one range" in table.rule
    assert table.coverage is None


def test_batches_of_one_evaluation_stay(tmp_path: Path) -> None:
    report, main = unnamed(8, lambda i: PERIOD)
    main.add_range("evaluation", 0, 8 * PERIOD)
    assert read(report, tmp_path).source == "kernels"


def test_a_pass_of_its_own_in_each_repetition_keeps_them(tmp_path: Path) -> None:
    report, main = unnamed(8, lambda i: PERIOD)
    for i in range(8):
        main.add_range("forward", i * PERIOD, i * PERIOD + 700 * US)
    assert read(report, tmp_path).source == "kernels"


@pytest.mark.parametrize(("factor", "source"), [(3, "kernels"), (80, "capture")])
def test_repetitions_of_very_different_length_are_no_steps(tmp_path: Path, factor: int, source: str) -> None:
    """Operations on tables of all sizes launch like kernels, and take 1 to 80 ms."""
    table = read(unnamed(12, lambda i: int(PERIOD * factor ** (i * 7 % 12 / 11)))[0], tmp_path)
    assert table.source == source
    assert source == "kernels" or "differ too much" in table.rule


def test_rare_long_repetitions_stay(tmp_path: Path) -> None:
    assert read(unnamed(20, lambda i: PERIOD * (30 if i % 10 == 9 else 1))[0], tmp_path).source == "kernels"


def unnamed(count: int, length: Callable[[int], int]) -> tuple[Report, Thread]:
    """Repetitions of ten kernels without any range; the i-th takes ``length(i)``."""
    report = Report()
    main = report.process(1).thread(1, "python")
    t = 0
    for i in range(count):
        work(main, t + 20 * US)
        t += length(i)
    return report, main

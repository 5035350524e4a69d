"""What functions of the program return in X-rayed steps: the same, or something of the batch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nsysx.inject.nsysx_probe import returned_values
from nsysx.inject.nsysx_probe.returned_values import ReturnedValues
from tests.inject.test_line_ranges import python, run

__all__ = ["python"]  # a fixture


@pytest.fixture(autouse=True)
def without_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a core may be taken away for longer than the few milliseconds of a step that may be spent on looking."""
    monkeypatch.setattr(returned_values, "RETURNED_MOST_NS", 10**12)


def rows(make: Callable[[int], Any], steps: int = 3, calls: int = 2) -> list[dict[str, Any]]:
    """Return what is noted of a function that is given the number of the step."""
    values = ReturnedValues(torch)

    def made(number: int) -> None:
        values.returned(sys._getframe(), make(number))

    made(0)  # between two steps
    for step in range(steps):
        values.begin(step)
        for _ in range(calls):
            made(step)
    values.end()
    return values.rows(lambda code: code.co_filename)


def filters(shift: int = 0) -> np.ndarray[Any, Any]:
    """Return a bank of 320 triangles over 2049 frequencies: of 256 numbers of it all may be zeros."""
    places = np.arange(2049) - np.geomspace(3, 2000, 320)[:, None] - shift
    return np.maximum(0, 1.2 - np.abs(places)).astype(np.float32)


def holds_itself() -> list[Any]:
    every: list[Any] = list(range(100))
    every.insert(0, every)
    return every


@pytest.mark.parametrize(
    "make",
    [
        lambda _: np.hanning(400),
        lambda _: np.tril(np.ones((64, 64), np.float32)),
        lambda _: torch.arange(300).reshape(3, 100)[:, ::2],
        lambda _: [[i * j for i in range(20)] for j in range(40)],
        lambda _: ({"ids": list(range(30))}, "text"),
        lambda _: np.where(np.arange(40) < 3, np.nan, 1.0),
        lambda _: filters(),
    ],
)
def test_what_is_the_same_in_each_step_is_noted(make: Callable[[int], Any]) -> None:
    (row,) = rows(make)
    assert row["steps"] == [0, 1, 2] and row["calls"] == 2 and row["plain"]
    assert row["file"] == __file__ and row["function"].endswith("made")


@pytest.mark.parametrize(
    "make",
    [
        lambda number: np.arange(400) + number,
        lambda number: filters(number),
        lambda number: np.arange(400 + number),
        lambda number: torch.arange(400) * number,
        lambda number: [list(range(number, number + 40))],
        lambda _: np.random.default_rng().random(100),
        lambda _: np.zeros(400),  # to be filled
        lambda _: 3.5,
        lambda _: torch.ones(400, requires_grad=True) * torch.arange(400),
        lambda _: object(),
        lambda _: [np.arange(300), object()],
        lambda _: torch.arange(400).to(torch.bfloat16),
        lambda _: np.array([object()] * 400),
        lambda number: (np.hanning(900), None, {"of the batch": [np.arange(600), np.arange(700) + number]}),
        lambda _: holds_itself(),
    ],
)
def test_what_is_new_or_says_little_is_not(make: Callable[[int], Any]) -> None:
    assert rows(make) == []


def test_of_one_step_nothing_is_known() -> None:
    assert rows(lambda _: np.hanning(400), steps=1) == []


def test_a_mode_of_the_program_sees_no_question() -> None:
    with torch.utils._python_dispatch.TorchDispatchMode():
        assert rows(lambda _: np.hanning(400)) == []


def test_arguments_that_can_be_keys() -> None:
    values = ReturnedValues(torch)

    def plain(n: int, sizes: tuple[int, ...], dev: torch.device) -> None:
        values.returned(sys._getframe(), list(range(40)))

    def array(given: Any) -> None:
        values.returned(sys._getframe(), list(range(41)))

    for step in range(2):
        values.begin(step)
        plain(3, (1, 2), torch.device("cpu"))
        array(np.ones(3))
    values.end()
    told = {row["function"].rpartition(".")[2]: row["plain"] for row in values.rows(lambda code: code.co_filename)}
    assert told == {"plain": True, "array": False}


def test_each_python_tells_what_returns_and_nothing_of_what_yields_or_fails(python: str, tmp_path: Path) -> None:
    told = run(
        python,
        tmp_path,
        """
        import threading, types
        def makes():
            return [1, 2]
        def numbers():
            yield 7
            return 8
        def fails():
            raise ValueError
        def nothing():
            pass
        def work():
            thread = threading.Thread(target=makes)
            thread.start(); thread.join()
            list(numbers())
            try: fails()
            except ValueError: nothing()
            return makes()[0]
        def main(run, told):
            seen = []
            told.values = types.SimpleNamespace(
                returned=lambda frame, value: seen.append([frame.f_code.co_name, value]))
            run(work)
            return [row for row in seen if row[0] != "numbers"]
        """,
    )
    assert told["result"] == [["makes", [1, 2]], ["work", 1]]

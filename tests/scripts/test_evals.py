"""The evals: the scorer tells right from wrong, and an agent that follows the skill solves the tasks with little to read."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "evals"
pytestmark = pytest.mark.traced  # its agents run nsysx in processes of their own


@pytest.fixture(scope="module")
def evals() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("nsysx_evals", str(SCRIPT))
    spec = importlib.util.spec_from_loader("nsysx_evals", loader)
    assert spec
    module = sys.modules["nsysx_evals"] = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


TASK = {"id": "a", "cause": "mask", "place": "Loss", "saving": 0.3, "false": "remove the wait"}


@pytest.mark.parametrize(
    ("cause", "place", "saving", "right"),
    [
        ("the mask sorts", "MaskedLoss", 0.25, (True, True, True, True)),
        ("the mask sorts", "MaskedLoss", 0.22, (True, True, False, True)),
        ("the mask sorts", "MaskedLoss", 0.40, (True, True, False, True)),
        ("the mask sorts", "MaskedLoss", None, (True, True, False, True)),
        ("the mask: remove the wait", "conv", 0.3, (True, False, True, False)),
        ("launches", "Loss", 0.3, (False, True, True, True)),
    ],
)
def test_what_is_right_of_an_answer(
    evals: ModuleType, cause: str, place: str, saving: float | None, right: tuple[bool, ...]
) -> None:
    line = evals.score(TASK, evals.Answer("a", cause, place, saving, 10))
    assert (line.cause, line.place, line.saving, line.nothing_false) == right
    assert line.solved == all(right)


@pytest.mark.parametrize(("answered", "truth", "right"), [(None, None, True), (0.1, None, False), (None, "any", True)])
def test_a_saving_that_cannot_be_known(evals: ModuleType, answered: object, truth: object, right: bool) -> None:
    assert evals.saving_is_right(answered, truth) == right


def test_the_tasks_are_twelve_reports_of_the_repository(evals: ModuleType) -> None:
    tasks = evals.tasks()
    assert len({task["report"] for task in tasks}) == len(tasks) == 12
    assert all((evals.ROOT / task["report"]).is_file() for task in tasks)
    lines = subprocess.run([sys.executable, str(SCRIPT), "--tasks"], capture_output=True, text=True, check=True).stdout
    given = [json.loads(line) for line in lines.splitlines()]
    assert [task["task"] for task in given] == [task["id"] for task in tasks]
    assert all(set(task) == {"task", "report", "question"} for task in given), "no answer is given away"


def test_answers_of_a_model_are_scored(evals: ModuleType, tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_text(
        json.dumps({"task": "mask", "cause": "a boolean mask", "place": "MaskedLoss", "saving": 0.33, "read": 5})
    )
    words = [sys.executable, str(SCRIPT), "--score", str(answers)]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "solved 1 of 1, 5 characters read" in told


def test_the_skill_solves_eleven_tasks_with_a_fifth_of_what_there_is_to_read(evals: ModuleType) -> None:
    skilled = evals.scored(evals.skilled(task) for task in evals.tasks())
    whole = evals.of_json(evals.tasks()[0])
    assert sum(line.solved for line in skilled) >= 11, [line for line in skilled if not line.solved]
    assert all(line.nothing_false for line in skilled)
    assert sum(line.read for line in skilled) <= whole.read / 5, "all twelve, and one task of who reads the JSON"
    if nsys := os.environ.get("NSYSX_TEST_NSYS"):
        read, left = evals.of_nsys(nsys), 5 * sum(line.read for line in skilled)
        for task in sorted(evals.tasks(), key=lambda task: -(evals.ROOT / task["report"]).stat().st_size):
            left -= read(task).read if left > 0 else 0  # no more than it takes: seconds each
        assert left <= 0


def test_who_takes_the_largest_row_for_the_cause_says_so(evals: ModuleType) -> None:
    text = (
        "\nTime (%),Total Time (ns),Name\n63.2,5,cudaStreamSynchronize\n1.0,1,cudaFree\n"
        "\nTime (%),Total Time (ns),Name\n23.6,3,wgrad\n"
    )
    answer = evals.said_of_tables("a", text)
    assert "cudaStreamSynchronize takes 63.2 %" in answer.cause and "wgrad takes 23.6 %" in answer.cause
    assert (answer.place, answer.saving, answer.read) == ("wgrad", None, len(text))

"""The words for where time goes stand in one place."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from nsysx.catalogue import CAUSES, Call, Cause, Late, StepLimit, StepPart
from nsysx.render.charts.colors import KIND_COLORS

PACKAGE = Path(__file__).resolve().parent.parent / "nsysx"

#: Codes that are also the word for something else, and what that is.
OTHER_MEANINGS = {
    "clocks": "the key of a run record",
    "compute": "a key of a budget, the compute capability of a card, a color",
    "copy": "a kernel family, a column, a call that is calibrated, a color",
    "host": "a column, a part of a comparison",
    "input": "the gradient of an input",
    "launch": "a column, a call that is calibrated, a color",
    "load": "a color, what a line of a loader does",
    "longer": "how the difference of two runs is said",
    "pause": "a column of GPU ops, what a first call makes",
    "profiler": "a color, the name of a module of torch",
    "sync": "a table of reports, a mark of the probe, a call that is calibrated, a color",
    "unknown": "what was not recorded",
    "warmup": "a kind of step",
    "work": "a part of a comparison",
}


def quoted() -> dict[str, set[str]]:
    """Return each string literal of the package and the files that hold it."""
    files = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                files[node.value].add(str(path.relative_to(PACKAGE)))
    return files


def test_no_word_is_quoted_in_more_than_two_files() -> None:
    files = quoted()
    words = {c.value for kind in (Cause, StepPart, StepLimit, Late) for c in kind} - OTHER_MEANINGS.keys()
    assert {"data_loader", "host_code", "launch_bound"} <= words
    assert {word: sorted(files[word]) for word in sorted(words) if len(files[word]) > 2} == {}
    assert [word for word in OTHER_MEANINGS if len(files[word]) <= 2] == []


#: Where a kind is that of something else.
OTHER_KINDS = {
    "analyses/helpers/event_pairs.py": "of GPU work",
    "events/python_lines.py": "of a mark of the probe",
}


def test_no_kind_of_call_is_quoted_where_the_kind_of_a_call_is_asked() -> None:
    asks = re.compile(rf'(?<!op_)(?<!cause_)kind\b.*(==|!=|is_in).*"({"|".join(Call.KINDS)})"')
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(map(asks.search, path.read_text(encoding="utf-8").splitlines()))
    }
    assert found == set(OTHER_KINDS)


def test_the_groups_of_calls_hold_kinds() -> None:
    words = {value for name, value in vars(Call).items() if isinstance(value, str) and name.isupper()}
    assert set(Call.KINDS) == words
    assert len(Call.KINDS) == len(words)
    assert all(set(group) < words for group in (Call.LAUNCHES, Call.ALLOCATOR, Call.WAITS))


def test_every_api_kind_has_one_cause() -> None:
    assert sorted(kind for cause in Cause for kind in cause.kinds) == sorted(Call.KINDS)


@pytest.mark.parametrize("word", [*Cause, *StepPart], ids=str)
def test_every_color_exists(word: Cause | StepPart) -> None:
    assert word.color in KIND_COLORS


def test_a_code_is_a_string_and_is_found_by_it() -> None:
    assert {Cause.SYNC: 1}["sync"] == 1
    assert f"{StepPart.HOST}" == str(StepPart.HOST) == "host"
    assert Late.named("clocks") is Late.CLOCKS
    assert [Cause.named(code).number for code in CAUSES] == list(range(len(CAUSES)))
    with pytest.raises(ValueError, match="'nobody' is no Late"):
        Late.named("nobody")

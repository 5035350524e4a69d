"""The words for where time goes stand in one place."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from nsysx.catalogue import CAUSES, Cause, Late, Limit, Part
from nsysx.events.correlate import KINDS
from nsysx.render.charts.colours import KIND_COLOURS

PACKAGE = Path(__file__).resolve().parent.parent / "nsysx"

#: Codes that are also the name of something else: a kind of API call, a key of a color, a part of another thing.
OTHER_MEANINGS = {
    *KINDS,
    *KIND_COLOURS,
    *("work", "pause", "host", "input", "clocks", "unknown", "warmup", "profiler", "dependency"),
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
    words = {c.value for kind in (Cause, Part, Limit, Late) for c in kind} - OTHER_MEANINGS
    assert {"data_loader", "host_code", "launch_bound"} <= words
    assert {word: sorted(files[word]) for word in sorted(words) if len(files[word]) > 2} == {}


def test_every_api_kind_has_one_cause() -> None:
    assert sorted(kind for cause in Cause for kind in cause.kinds) == sorted(KINDS)


@pytest.mark.parametrize("word", [*Cause, *Part], ids=str)
def test_every_color_exists(word: Cause | Part) -> None:
    assert word.colour in KIND_COLOURS


def test_a_code_is_a_string_and_is_found_by_it() -> None:
    assert {Cause.SYNC: 1}["sync"] == 1
    assert f"{Part.HOST}" == str(Part.HOST) == "host"
    assert Late.named("clocks") is Late.CLOCKS
    assert [Cause.named(code).number for code in CAUSES] == list(range(len(CAUSES)))
    with pytest.raises(ValueError, match="'nobody' is no Late"):
        Late.named("nobody")

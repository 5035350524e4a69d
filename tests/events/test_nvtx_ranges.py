"""The words of the probe survive the way to the reader, whatever the program calls its things."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nsysx_probe import ranges as bare

from nsysx.inject.nsysx_probe import ranges as ranges

WORD = st.text(min_size=1, max_size=300)


def test_both_sides_read_the_same_file() -> None:
    assert bare.__file__ == ranges.__file__


@given(st.integers(0, 10**12))
def test_steps(index: int) -> None:
    assert ranges.decode(ranges.step(index)) == ranges.Label("step", f"step {index}", number=index)


@given(st.sampled_from(ranges.PHASES), st.text(max_size=300))
def test_phases(name: str, detail: str) -> None:
    text = ranges.phase(name, detail)
    label = ranges.decode(text)
    assert (label.kind, label.name) == ("phase", name)
    assert len(text) <= ranges.MOST_TEXT_LETTERS


@given(st.text(max_size=400), WORD, st.lists(st.sampled_from(ranges.FLAGS), unique=True), st.booleans())
def test_modules(path: str, cls: str, flags: list[str], backward: bool) -> None:
    text = ranges.module(path, cls, *flags, backward=backward)
    label = ranges.decode(text)
    assert label.kind == ("backward_module" if backward else "module")
    assert label.cls == ranges.word(cls)[:80]
    assert label.flags == tuple(flags)
    assert len(text) <= ranges.MOST_TEXT_LETTERS
    if len(path) < 80:
        assert label.name == ranges.word(path)
    assert ranges.decode(ranges.PREFIX + text) == label


@given(st.text(max_size=400), st.integers(0, 10**6), WORD)
def test_sync_lines(file: str, line: int, function: str) -> None:
    text = ranges.sync(file, line, function)
    label = ranges.decode(text)
    assert label.kind == "sync"
    assert len(text) <= ranges.MOST_TEXT_LETTERS
    tail = label.name.rpartition(" ")
    assert tail[0].endswith(f":{line}")
    assert tail[2] == ranges.word(function)[:60]


@pytest.mark.parametrize(
    ("path", "cls", "text"),
    [
        ("", "GPT", ":GPT"),
        ("blocks.0", "Block", "blocks.0:Block"),
        ("a b", "x:y", "a_b:x_y"),
        ("step", "S", "step:S"),
        ("bwd", "S", "bwd:S"),
        ("data", "D", "data:D"),
    ],
)
def test_examples(path: str, cls: str, text: str) -> None:
    assert ranges.module(path, cls) == text
    assert ranges.decode(text).kind == "module"
    assert ranges.decode(ranges.module(path, cls, backward=True)) == ranges.decode(text)._replace(
        kind="backward_module"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "step x",
        "step -1",
        "step ²",
        "bwd",
        "bwd x",
        "forwardx",
        "a::b",
        ":",
        "x: y",
        "a:B what",
        "bwd step 1",
    ],
)
def test_what_is_not_of_the_grammar_is_other(text: str) -> None:
    assert ranges.decode(text) == ranges.Label("other", text)


@given(st.text())
def test_any_text_decodes(text: str) -> None:
    assert ranges.decode(text).kind in {"step", "phase", "module", "backward_module", "sync", "info", "other"}


def test_wrong_words_are_refused() -> None:
    with pytest.raises(ValueError, match="not a phase"):
        ranges.phase("lunch")
    with pytest.raises(ValueError, match="not a flag"):
        ranges.module("a", "B", "fast")

"""How sure an answer is: two lines in each output, the cause and the size, each with its own reason."""

from __future__ import annotations

import html
import re

import pytest

from nsysx.render import answer_words, html_page, markdown, terminal_answer
from tests.samples import Samples


@pytest.mark.parametrize("name", ["tiny_stack", "copies", "masked_lines", "event_linear", "ddp_four.rank3"])
def test_cause_and_size_are_apart_with_their_reasons_in_each_output(name: str, recorded: Samples) -> None:
    summary = recorded.summary(name)
    said = answer_words.build(summary)
    halves = (
        ["Lost time", "Gain of both"] if name == "tiny_stack" else ["Cause", "Size"]
    )  # its change is for whatever stands there
    assert [half.rpartition(" ")[0] for half, _ in said.halves] == halves[: len(said.sure)]
    assert [half.split()[-1] for half, _ in said.halves] == [s.level for s in said.sure]
    for (_, why), whole in zip(said.halves, said.sure, strict=True):
        assert why and why.casefold() in whole.reason.casefold(), "a part of the whole reason"

    lines = [line for line, _ in terminal_answer.lines(summary, 120)]
    first = next(n for n, line in enumerate(lines) if line.startswith("SURE"))
    for line, (half, why) in zip(lines[first:], said.halves, strict=False):
        assert line[7:].startswith(f"{half.lower()}: {why[:20]}"), line

    ticket = markdown.render(summary)
    page = re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", "", html_page.first(summary))))
    for half, why in said.halves:
        assert f"  - {half}: " in ticket
        assert f"{half}: {why}" in page


def test_samples_of_which_the_size_is_known_have_both_lines(recorded: Samples) -> None:
    said = answer_words.build(recorded.summary("tiny_stack"))
    assert [half for half, _ in said.halves] == ["Lost time certain", "Gain of both unknown"]
    assert said.halves[1][1].startswith("The unprofiled step was not measured")

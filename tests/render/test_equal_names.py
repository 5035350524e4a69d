"""What has one name has one value in the first screen, the terminal and Markdown, of every recorded program.

``figures_said`` reads the texts as a reader does: headline, cards, bars, list, captions and how sure the answer is.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsysx.model import Summary
from tests.render import figures_said
from tests.samples import DISTINCT, PAIR_NAMES, Samples


@pytest.mark.parametrize("name", DISTINCT)
def test_what_a_sample_says_has_one_value(name: str, recorded: Samples) -> None:
    assert figures_said.contradictions(recorded.summary(name)) == []


@pytest.mark.parametrize("name", PAIR_NAMES)
def test_what_a_program_before_a_change_says_has_one_value(name: str, pairs: Samples) -> None:
    assert figures_said.contradictions(pairs.summary(name)) == []


def _titled(summary: Summary, code: str, title: str) -> Summary:
    said = summary.answer
    findings = tuple(replace(f, title=title) if f.code == code else f for f in summary.findings or ())
    return replace(
        summary,
        findings=findings,
        answer=replace(said, also=tuple(replace(a, text=title) if a.code == code else a for a in said.also)),
    )


@pytest.mark.parametrize(
    ("name", "code", "title"),
    [
        ("copies", "NSX105", "The GPU idles 9.99 ms per step waiting for input data"),
        ("ddp_per_rank.rank0", "NSX110", "Exposed communication takes 40.00 ms per step"),
        ("ddp_per_rank.rank0", "NSX110", "Exposed communication takes 40.00 ms per step, as recorded"),
        ("masked_nonzero", "NSX120", "Masking takes 25.00 ms in MaskedLoss"),
        ("masked_nonzero", "NSX120", "Masking takes 120 % of what it did"),
    ],
)  # fmt: skip
def test_another_value_in_a_title_is_seen(name: str, code: str, title: str, recorded: Samples) -> None:
    summary = recorded.summary(name)
    if name == "copies":  # it has another name for what the GPU does then
        assert figures_said.contradictions(_titled(summary, code, title)) == []
        title = "Copies: exposed copies 9.99 ms"
    assert figures_said.contradictions(_titled(summary, code, title))


def test_another_value_in_the_headline_or_a_bar_is_seen(recorded: Samples) -> None:
    summary = recorded.summary("copies")
    said, verdict = summary.answer, summary.verdict
    of = replace(verdict, sentence=verdict.sentence.replace("of 10.8 ms", "of 11.8 ms"))
    assert of != verdict
    assert figures_said.contradictions(replace(summary, verdict=of))
    step, *others = said.picture.bars
    computes, *rest = step.parts
    for parts in ((replace(computes, ns=2 * computes.ns), *rest), (replace(computes, ns=0.9 * computes.ns), *rest)):
        drawn = replace(said.picture, bars=(replace(step, parts=parts), *others))
        assert figures_said.contradictions(replace(summary, answer=replace(said, picture=drawn)))
    late = replace(said, then_ns=(said.now_ns or 0) - 1_000_000)
    assert figures_said.contradictions(replace(summary, answer=late)) == [], "all outputs word one answer"


def test_ranks_that_wait_another_time_are_seen(recorded: Samples) -> None:
    summary = recorded.summary("ddp")
    other = replace(summary.verdict, sentence=summary.verdict.sentence.replace("waits 30.9", "waits 31.9"))
    assert other != summary.verdict
    assert figures_said.contradictions(replace(summary, verdict=other))

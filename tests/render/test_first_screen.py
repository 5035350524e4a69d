"""The first screen: what has one name has one value, whichever card, bar, list or line says it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from nsysx import units
from nsysx.advice import Also, Answer, Bar, BarPart, Picture
from nsysx.answer import subject
from nsysx.answer.bars import RANKS_BELOW
from nsysx.model import Summary
from nsysx.render import answer_text, answer_words, first_screen, html_page, terminal_answer
from nsysx.render.grids import CellTexts
from nsysx.saving import Saving
from tests.render import factory
from tests.render.factory import MS
from tests.render.test_one_number import near, times
from tests.render.test_page import Page
from tests.samples import DISTINCT, Samples

#: Words for the time under the profiler that stand beside "as recorded" no more.
#: The step in the headline: "the GPU idles 7.9 of 10.2 ms", "GPU busy 99 % of 9.0 ms".
STEP = r"(?:idles|takes?|GPU busy) <?[\d.]+(?: \w+| %)? of (?:the )?([\d.,]+ \w+)"
OTHER_WORDS = ("under the profiler", "profiler's time", "tracing is taken out", "give or take")


def said_twice(summary: Summary) -> list[str]:
    """Return what the first screen gives two values, in words."""
    screen, words, bad = first_screen.build(summary), Page(html_page.first(summary)).words(), list[str]()
    said, now, recorded = screen.answer, screen.answer.now_ns, summary.step.recorded_ns
    bad += [f"two words for one thing: {w}" for w in OTHER_WORDS if w in words]
    if now is None:
        return bad
    steps = {
        "the line of facts": [
            t for fact in said.facts if " a step" in fact for t in times(fact.partition(" a step")[0])
        ],
        "the sentence": [t for whole in re.findall(STEP, said.sentence) for t in times(whole)],
        "the worth": times(screen.now),
        "the bar": [b.total_ns for b in said.bars[:1] if b.label.startswith("GPU")],
    }
    bad += [
        f"the step is {v} ns in {k}, {now}" for k, vs in steps.items() for v in vs if not near(v, now, said.sentence)
    ]
    bad += [f"the list of what to do says: {i.what}" for i in screen.todo if i.what.startswith("Nothing")]
    if said.then_ns is not None and screen.todo:
        last = next(i for i in screen.todo if i.code == said.code)  # what is done before it has a saving of its own
        bad += [] if units.duration(now - said.then_ns) in last.worth else ["the list saves something else"]
        factor = re.search(r"([\d.]+)x", said.factor)
        if factor and abs(float(factor[1]) - now / said.then_ns) > 0.06 * now / said.then_ns:
            bad.append(f"{said.factor} is not {now} to {said.then_ns}")
    spread = re.search(r"steps, ([\d.]+ \w+ to [\d.]+ \w+)( as recorded)?", " · ".join(said.facts))
    if spread and recorded:
        low, high = times(spread[1])
        shown = recorded if spread[2] else now
        bad += [] if low <= shown <= high else [f"steps of {spread[0]}, and on average {shown}"]
    idle = re.search(r"GPU idle in all \d+ steps, ([\d.]+) % to ([\d.]+) %", said.sure[0].reason)
    if idle and said.bars and subject.rank_waited_for(summary) is None:
        share = 100 * sum(p.ns for p in said.bars[0].parts if p.idle) / said.bars[0].total_ns
        bad += [] if float(idle[1]) - 2 <= share <= float(idle[2]) + 2 else [f"idle {share} % and {idle[0]}"]
    return bad


@pytest.mark.parametrize("name", DISTINCT)
def test_what_has_one_name_has_one_value(name: str, recorded: Samples) -> None:
    assert not said_twice(recorded.summary(name))


def test_another_value_is_seen(full: Summary) -> None:
    """The property can fail: a step of another length in one place, and savings that are not the difference."""
    assert not said_twice(full)
    other = replace(full, answer=replace(full.answer, now_ns=2 * (full.answer.now_ns or 0)))
    assert said_twice(other)
    worded = replace(
        full, verdict=replace(full.verdict, sentence=f"{full.verdict.sentence} 9.1 ms under the profiler.")
    )
    assert said_twice(worded)


@pytest.mark.parametrize(
    ("then", "low", "high", "bound", "said"),
    [
        (50, 40, 80, False, "2.0x faster (1.25 to 2.5)"),
        (78, 76, 79, False, "1.28x faster (1.27 to 1.3)"),
        (50, 50, 50, False, "2.0x faster"),
        (50, None, None, False, "2.0x faster"),
        (4, 0, 100, True, "up to 25x faster"),
        (20, 1, 25, False, "5.0x faster (4.0 or more)"),
        (96, 95, 97, False, "1.04x faster (1.03 to 1.05)"),
        (100, 90, 100, False, ""),
        (None, None, None, False, ""),
    ],
)  # fmt: skip
def test_the_worth_as_a_factor(
    full: Summary, then: int | None, low: int | None, high: int | None, bound: bool, said: str
) -> None:
    given: Answer = replace(
        full.answer, now_ns=100, then_ns=then, then_low_ns=low, then_high_ns=high, bound=bound, times=()
    )
    assert answer_words.factor(given) == said


def test_a_number_never_leaves_its_unit_and_code_stays_as_it_is() -> None:
    page = html_page.typeset('<p title="5 us">takes 5 us of 10 ms (50 %), 5 users</p><pre>x = 5 us</pre><b>3 ms</b>')
    assert page == (
        '<p title="5\u00a0µs">takes 5\u00a0µs of 10\u00a0ms (50\u00a0%), 5 users</p><pre>x = 5 us</pre><b>3\u00a0ms</b>'
    )


@pytest.mark.parametrize(
    ("sentence", "head"),
    [
        ("GPU-bound: GPU busy 99 % of 9 ms. 58 % of GPU time is a.", "GPU-bound: GPU busy 99 % of 9 ms. 58 % of GPU time is a."),
        ("Host-bound: the GPU idles 2 of 9 ms. Step time grows.", "Host-bound: the GPU idles 2 of 9 ms."),
    ],
)  # fmt: skip
def test_the_headline_is_one_idea(full: Summary, sentence: str, head: str) -> None:
    said = answer_words.build(factory.changed(full, verdict=replace(full.verdict, sentence=sentence)))
    assert said.head == head
    assert f"{said.head} {said.rest}".strip().partition(" First to fix: ")[0] == sentence


@pytest.mark.parametrize(
    ("best_ms", "said"), [(40, "At best 40.00 ms."), (49, ""), (4, ""), (6, "At best 6.00 ms."), (0, "")]
)
def test_a_step_at_best_is_told_where_it_says_something(full: Summary, best_ms: int, said: str) -> None:
    """Neither one as long as the likely step of 50 ms nor one that leaves next to nothing of it."""
    given = replace(
        full.answer, now_ns=100 * MS, then_ns=50 * MS, best_ns=best_ms * MS, bound=False, replayed_ns=None, times=()
    )
    assert answer_words._replayed(given) == said


def test_changes_before_the_last_have_their_places(full: Summary) -> None:
    last = full.answer.do[-1]
    place = {"file": "train.py", "line": 17}
    first = replace(last, text="Keep the value on the GPU", where=place, saving_ns=10 * MS)
    needed = replace(last, text="Remove what is in train.py:17", where=place, saving_ns=None)
    reasons = answer_words.reasons((first, needed, last), 100 * MS, CellTexts(False))
    assert reasons == [" (train.py:17; saves 10.00 ms a step)", ", needed for (3)", ""]
    elsewhere = replace(needed, text="Remove it", where={"module": "fc"})
    assert answer_words.reasons((elsewhere, last), 100 * MS, CellTexts(False)) == [" (fc), needed for (2)", ""]


@pytest.mark.parametrize(
    ("do", "code", "where", "said"),
    [
        ("Use fewer.", "NSX102", "fc", "Use fewer (fc)."),
        ("Look at it.", "", "the kernel x", "Look at it. Most time: the kernel x."),
        ("Look at cat first: it is most.", "", "train.py:25", "Look at cat (train.py:25) first: it is most."),
        ("Look. The kernel x takes 9 %.", "", "the kernel x", "Look. The kernel x takes 9 %."),
        ("Use fewer.", "NSX102", "", "Use fewer."),
        ("Use fewer.", "NSX102", "rank 1, a.py:3", "Use fewer (rank 1, a.py:3: y = net(x))."),
        ("Use fewer of `y = net(x)`.", "NSX102", "rank 1, a.py:3", "Use fewer of `y = net(x)` (rank 1, a.py:3)."),
    ],
)
def test_a_place_is_that_of_a_change_or_of_most_time_and_is_named_once(
    full: Summary, do: str, code: str, where: str, said: str
) -> None:
    source = "y = net(x)" if "a.py" in where else ""
    worded = replace(answer_words.build(full), do=do, code=code, where=where, source=source)
    assert answer_text.what_to_do(worded) == said


@pytest.mark.parametrize(
    ("title", "ranks", "sentence", "shown"),
    [
        (RANKS_BELOW, 7, "Ranks wait: 85 % of it is waiting for other ranks.", [f"rank {r}" for r in range(6)]),
        (RANKS_BELOW, 7, "Host-bound: the GPU idles half of it.", ["GPU 0", *(f"rank {r}" for r in range(5))]),
        (RANKS_BELOW, 2, "Host-bound: the GPU idles half of the step, in train.py:12.", ["GPU 0", "rank 0", "rank 1"]),
        (
            "One step on the GPU; below, single steps",
            2,
            "It waits for other ranks for 85 % of that.",
            ["GPU 0", "rank 0"],
        ),
    ],
)
def test_ranks_stay_where_not_all_bars_fit(
    full: Summary, title: str, ranks: int, sentence: str, shown: list[str]
) -> None:
    """All ranks of a job before the step of one of them, where the sentence is about them; a sign is then explained once."""
    parts = tuple(BarPart(name, 20_000_000, name, name == "idle") for name in ("compute", "communication", "idle"))
    bars = tuple(Bar(name, 60_000_000, parts) for name in ("GPU 0", *(f"rank {r}" for r in range(ranks))))
    picture = Picture("ranks", f"{title}, as recorded", bars)
    verdict = replace(full.verdict, sentence=sentence)
    summary = replace(full, verdict=verdict, answer=replace(full.answer, picture=picture))
    text = [line for line, _ in terminal_answer.lines(summary, 56)]
    labels = [bar.label for bar in bars if any(line.startswith(f"{bar.label} ") for line in text)]
    assert labels == shown
    assert any(line.startswith("One step, rank by rank, as recorded") for line in text) == ("GPU 0" not in shown)
    assert "".join(text).count("compute 20.00 ms") == (1 if title == RANKS_BELOW else len(shown))


def test_the_lines_that_are_seen_have_numbers_that_follow_each_other() -> None:
    """What is folded in the line of its cause is numbered behind them, though it is worth more than the last of them."""
    full = factory.summary()
    first = full.findings[0]
    folded = replace(first, slug="mask-work-2", title="Masks, too", saving=Saving(2 * MS), overlaps=(0,))
    other = replace(
        first, code="NSX116", slug="fp32-math", title="Others", fix="Do this", saving=Saving(MS), overlaps=()
    )
    count = len(full.findings)
    also = (Also(folded.code, count, "Masks, too", 2 * MS, False), Also(other.code, count + 1, "Others", MS, False))
    answer = replace(full.answer, also=also)
    todo = first_screen.build(replace(full, findings=(*full.findings, folded, other), answer=answer)).todo
    assert [(i.number, i.under, i.code) for i in todo] == [(1, 0, first.code), (2, 0, "NSX116"), (3, 1, first.code)]


def test_a_part_of_less_than_a_tenth_of_a_percent_is_not_named() -> None:
    full = factory.summary()
    parts = (BarPart("compute", 9_996_000, "compute"), BarPart("stray copies", 4_000, "copy"))
    for small, named in ((parts[1], False), (replace(parts[1], ns=20_000), True)):
        bar = Bar("GPU 0", 10_000_000, (parts[0], small))
        summary = replace(full, answer=replace(full.answer, picture=Picture("step", "One step", (bar,))))
        drawn = first_screen.build(summary).bars[0]
        assert (small.label in [part.label for part, _, _ in drawn.legend]) is named
        assert len(drawn.boxes) == 2, "its box is there"
        shown = "\n".join(line for line, _ in terminal_answer.lines(summary, 80, plain=False))
        for text in (shown, answer_text.parts_text(answer_words.build(summary).bars[0])):
            assert ("stray copies" in text) is named

"""What nobody should have to read: names of our code in cells, broken English, figures that say nothing. Over all samples."""

from __future__ import annotations

import html
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from rich.console import Console

from nsysx import analyses
from nsysx.advice import Alternative
from nsysx.inject.nsysx_probe import changes
from nsysx.render import answer_words, brief, grids, markdown, terminal, terminal_answer, view
from tests.render.test_page import Page
from tests.samples import DISTINCT, KINDS, Samples

#: Patterns that no output has. With each, what to write instead.
BANNED = {
    r"null likewise|see limit_from|\bnull\b": "say when a cell is empty in words of the reader",
    r"\b(?:queue_full|cannot_tell|nothing_beside|gpu_bound|launch_wait|no_further_work)\b": "words, not names of the code",
    r"(?<![\w.])(\w{4,}): \1(?![\w.])": "a label that repeats its value",
    r"\bOf it\b": "name what it is part of",
    r"saves at most 0 ns|\bup to 0 ns": "a saving of nothing is none",
    r"\+-": "give or take",
    r"[Ss]teps \d+ (?:take|is)\b": "one step takes",
    r"\b1 (?:steps|calls|copies|launches|kernels|gaps|windows|runs|ranks|threads|checks)\b(?! of| [\d<-])": "the singular of one",
    r"\b1 (?:ranges|rows)\b": "the singular of one",
    r"\b0\.\d+ (?:\w+ )?(?:copies|calls|launches)\b": "a whole number, or how often",
    r"are not passed": "failed",
    r"what is no kernel": "name what it is",
    r"\bNone\b|\bnan\b|(?<![-\w])inf\b": "a value that is not there",
    r"\(s\)|\bn/a\b": "the plural or the singular",
    r"\d{4,}\.\d+ (?:ns|us|ms|s)\b": "a larger unit",
    r" {2,}[,.;]| ,(?! *[\d'\"])|(?<!\.)\.\.(?!\.)|;\.|(?<!\.),\.": "punctuation",
    r"\bprocess \d{7,}": "the number of a process as the report holds it",
}

#: Terms that nobody reads any more. With each, the field's own, which ``nsysx/catalogue.py`` or the text of a finding holds.
RETIRED = {
    r"to send the next kernel|waits for launches to arrive|waits for (?:Python|the host code)\b": "host-bound: waiting for kernel launches",
    r"after a synchronize\b": "idle after host syncs",
    r"only communicates|[Cc]ommunication (?:with nothing beside|alone|is exposed)": "exposed communication",
    r"only copies|[Cc]opies (?:with nothing beside|alone)\b": "exposed copies",
    r"The GPU (?:works|computes) [\d.]+(?: \w+)? of|of every [\d.]+ (?:us|ms|s)\b": "GPU busy, the GPU idles",
    r"steps are not steady|keep (?:growing|falling)": "step time grows from, falls from",
    r"the rest is open|^Replayed:": "Replay: ...; anything below assumes ...",
    r"overhead is from a table": "the unprofiled step was not measured",
    r"that takes steps": "no steps in this report",
    r"is off by up to|[Gg]ive or take|An upper bound": "replay error ±1.25 ms, upper bound",
    r"too few blocks": "small grids leave SMs idle",
    r"median reading is|\b(?:first|second|third|\d+th) place\b": "at call site 1, ... of the median event time",
    r"[Bb]udget nothing measured": "the budget checks nothing",
    r"wants two (?:sides|reports)": "compare needs two reports",
    r"all that follows is": "figures below are unprofiled time",
    r"no synchronize call: ": "stream synchronizes removed",
    r"which is not sure|Cannot tell: ": "not significant, no measurable difference",
    r"differ too much for an interval": "too few runs for a confidence interval",
    r"by how long the step is": "depending on the unprofiled step time",
    r"it writes again": "overwrites its output files",
    r"all stand still": "all ranks pause",
    r"count here": "not counted elsewhere",
    r"after [\w.]+\.(?:forward|evaluation), before": "between fc and the next conv1",
    r"[Mm]atrix products?|by a product of matrices": "GEMM",
    r"(?<!NSX102 )(?<!NSX102\s{2})\b[Ll]aunch-bound": "host-bound",
    r"\bledgers?\b(?!\w)": "breakdown",
    r"paid once|one-time work": "one-time cost",
    r"pauses between (?:queued )?kernels|\bbetween kernels \d": "inter-kernel gaps",
    r"launches in flight": "kernel launch latency",
    r"\bOff by up to": "replay error ±1.25 ms",
    r"\bFuse them\b": "name what is fused: nobody knows what them is",
    r"fastest products": "compute-bound (at 85 % of peak)",
    r"\bwould tell\b": "to measure it: the command",
}
BANNED |= RETIRED


#: Columns whose text is the program's own.
NAMES_OF_THE_PROGRAM = (
    "name",
    "path",
    "module",
    "api",
    "call",
    "file",
    "cls",
    "parent",
    "phase",
    "kernel",
    "function",
    "moves_to",
    "removed",
)


#: Keys of the brief whose text is for programs.
FOR_PROGRAMS = {"schema", "code", "id", "source", "level", "unit", "paste"}


def sentences(value: Any, key: str = "") -> Iterator[str]:
    """Yield the texts of a brief that a reader is shown."""
    if isinstance(value, str) and key not in FOR_PROGRAMS:
        yield value
    elif isinstance(value, dict):
        for inner, of in value.items():
            yield from sentences(of, inner)
    elif isinstance(value, list):
        for of in value:
            yield from sentences(of, key)


@pytest.fixture(scope="module")
def outputs(recorded: Samples) -> Callable[[str], dict[str, str]]:
    """A function from a sample's name to the text of each of its outputs."""

    @cache
    def of(name: str) -> dict[str, str]:
        summary = recorded.summary(name)
        texts = {
            "page": html.unescape(Page(recorded.page(name).read_text(encoding="utf-8")).words()),
            "markdown": html.unescape(markdown.render(summary)),
            "brief": "\n".join(sentences(json.loads(brief.answer_json(summary)))),
        }
        for title, render in (("terminal", terminal_answer.render), ("--full", terminal.render)):
            file = io.StringIO()
            render(summary, Console(file=file, width=120))
            texts[title] = re.sub(r"\s+", " ", file.getvalue())
        return texts

    return of


def found(text: str) -> Iterator[tuple[str, str]]:
    """Yield what stands in a text and must not, with what stands around it."""
    for pattern, instead in BANNED.items():
        for match in list(re.finditer(pattern, text))[:3]:
            yield instead, text[max(0, match.start() - 60) : match.end() + 30]


@pytest.mark.parametrize("name", DISTINCT)
def test_no_output_says_what_nobody_should_read(name: str, outputs: Callable[[str], dict[str, str]]) -> None:
    bad = {(title, *what) for title, text in outputs(name).items() for what in found(text)}
    assert not bad


def test_no_remedy_has_a_retired_term() -> None:
    """Few remedies are advised for a sample, and all of them somewhere."""
    assert len(changes.remedies()) > 100
    texts = {
        (r.name, what): getattr(r, what)
        for r in changes.remedies().values()
        for what in ("advice", "condition", "label", "untried")
    }
    bad = {
        (*where, term) for where, text in texts.items() for pattern, term in RETIRED.items() if re.search(pattern, text)
    }
    assert not bad


def test_the_patterns_find_what_they_ban() -> None:
    """Each sentence was once in an output."""
    for bad in (
        "when it is recorded; null likewise",
        "verdict: queue_full",
        "module: module",
        "Of it 30.88 ms is waiting",
        "saves at most 0 ns",
        "3.0 ms +- 1.0",
        "Steps 7 take 61.2 ms",
        "0.667 HtoD copies",
        "1 of 5 checks of the capture are not passed",
        "what is no kernel",
        "it waits for Python to send the next kernel",
        "waits for Python after a synchronize",
        "For 31.0 ms it only communicates with other GPUs",
        "The GPU works 4.52 of every 4.52 ms",
        "The steps are not steady, they keep growing",
        "Replay: 3.00 ms; the rest is open",
        "The profiler's overhead is from a table, not from this machine",
        "Not estimated: that takes steps",
        "An upper bound: the replay is off by up to 1.25 ms",
        "Kernels with too few blocks leave most SMs without work",
        "The first place's median reading is 6.5 % kernels",
        "Budget nothing measured",
        "compare wants two sides",
        "all that follows is in this time",
        "no synchronize call: stream",
        "2.0 ms a step faster, which is not sure",
        "Cannot tell: 0.00 ns a step faster",
        "runs differ too much for an interval",
        "1.3x to 4.2x, by how long the step is without the profiler",
        "files that it writes, it writes again",
        "all stand still together meanwhile",
        "Costs 30.81 ms: 16.95 of it count here",
        "after fc.evaluation, before conv1.evaluation",
        "54 % of its work is matrix products",
        "the GPU ledger",
        "Off by up to 1.25 ms",
        "Fuse them with torch.compile(model)",
        "54 % multiplies at 76 % of the fastest products",
        "nsysx run would tell",
        "1 calls",
        "step None",
    ):
        assert list(found(bad)), bad
    good = (
        "A step takes 12.34 ms. The GPU waits 3.1 ms for blocks.1.attn: attention; 1 of 5 steps is slow, 0.4 % of it."
    )
    assert not list(found(good))


@pytest.mark.parametrize("name", DISTINCT)
def test_cells_hold_words(name: str, recorded: Samples) -> None:
    """Values that the code names (a verdict, a cause, a grade) are words in a table; names of the program stay as they are."""
    bad = {
        (grid.key, head.label, cell.text)
        for grid in view.build(recorded.summary(name), top=50).grids
        for row in grid.rows or ()
        for head, cell in zip(grid.heads, row, strict=True)
        if head.name not in NAMES_OF_THE_PROGRAM and re.fullmatch(r"[a-z]+(_[a-z]+)+", cell.text)
    }
    assert not bad
    grids = view.build(recorded.summary(name), top=1).grids
    assert not {(g.key, h.label) for g in grids for h in g.heads if h.meaning.lower() == h.label.lower()}, (
        "says nothing"
    )


@pytest.mark.parametrize("name", DISTINCT)
def test_markdown_can_be_read_before_it_is_rendered(name: str, recorded: Samples) -> None:
    """Digits, letters and blanks stand as they are; only signs of markup are escaped."""
    text = markdown.render(recorded.summary(name))
    assert not [
        chr(int(code)) for code in re.findall(r"&#(\d+);", text) if re.fullmatch(r"[\w\s.,;%()]", chr(int(code)))
    ]
    assert len(text.splitlines()) <= 25


def test_no_two_columns_of_a_table_have_one_head() -> None:
    for analysis in analyses.load():
        shown = [c for c in analysis.COLUMNS if c.name not in analysis.SHOWN.hide]
        heads = [grids.head(column, analysis.SHOWN).label for column in shown]
        twice = {text for text in heads if heads.count(text) > 1}
        assert not twice, (analysis.KEY, twice)


def test_the_next_command_tells_something_new(recorded: Samples) -> None:
    """A change that can be made for a program is tried, what is not known is recorded, and what is known is not recorded again."""
    commands = {}
    for name in KINDS:
        summary = recorded.summary(name)
        parts = tuple(replace(part, command="") for part in summary.answer.certainty.parts)
        settled = replace(summary.answer, certainty=replace(summary.answer.certainty, parts=parts))
        known = replace(settled, do=tuple(replace(action, finding=None) for action in settled.do))
        for case, told in (("as it is", summary.answer), ("settled", settled), ("known", known)):
            words = answer_words.build(replace(summary, answer=told), command="python train.py")
            commands[name, case] = words.next
            assert words.next.startswith(("nsysx run -", "nsysx try ", "nsysx whatif ")), words.next
            open_ = any(p.command for p in told.certainty.parts)  # or there is no replay that could tell
            assert not words.next.startswith("nsysx run -- ") or open_ or summary.replay is None, (name, case)
            assert words.next.startswith("nsysx whatif ") or words.next.endswith(" -- python train.py")
    assert {command.split(" ")[1] for command in commands.values()} == {"run", "try", "whatif"}


def test_only_a_change_that_can_be_made_is_offered_to_be_tried(recorded: Samples) -> None:
    """Lines to paste are no such change by themselves: an evaluation is shared among ranks by its author."""
    offered = 0
    for name in KINDS:
        summary = recorded.summary(name)
        parts = tuple(replace(part, command="") for part in summary.answer.certainty.parts)
        summary = replace(
            summary, answer=replace(summary.answer, certainty=replace(summary.answer.certainty, parts=parts))
        )
        index = summary.answer.do[-1].finding
        if index is None or not summary.findings:
            continue
        names = ("fused", "share-the-evaluation")
        for remedy, is_change in zip(names, (True, False), strict=True):
            changed = replace(summary.findings[index], remedies=(Alternative(remedy, "do it", "code()"),))
            findings = (*summary.findings[:index], changed, *summary.findings[index + 1 :])
            words = answer_words.build(replace(summary, findings=findings), command="python train.py")
            asked = any(c.startswith("nsysx run ") for c in summary.answer.ask_next)
            assert words.next.startswith("nsysx try ") == (is_change and not asked), (name, remedy, words.next)
            offered += is_change and not asked
    assert offered

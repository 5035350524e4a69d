"""Questions that brought people here, each answered by the page itself."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from nsysx.pipeline import summarize
from nsysx.render import answer_words, glossary, html_page, view
from tests.findings import Program
from tests.render.test_page import Page
from tests.samples import Samples


@pytest.fixture(scope="module")
def page(recorded: Samples) -> Callable[[str], str]:
    """A function from a sample's name to the words of its page."""
    return cache(lambda name: html.unescape(Page(recorded.page(name).read_text(encoding="utf-8")).words()))


def test_which_places_an_event_program_times_and_why_the_first_reads_most(page: Callable[[str], str]) -> None:
    """A loop of three windows: the first holds a copy, and the GPU is idle when it begins."""
    words = page("event_linear")
    assert re.search(r"cuda\.Event reads 506 us, 54\.9 us and 36\.5 us in turn, the same kernels take 32\.7 us", words)
    assert re.search(r"call site 1 of 3 506 us .{0,20}copies 260 us \(51 %\)", words)
    for place, kernels in (("2", "32.6 us"), ("3", "32.8 us")):
        assert re.search(rf"call site {place} of 3 [\d.]+ us .{{0,40}}kernels {re.escape(kernels)}", words)


def test_only_the_first_call_of_an_operator_pays_for_its_code(page: Callable[[str], str]) -> None:
    """Its kernel takes 18.4 us the first time and 17.6 us later: what is paid is the call that loads it, 137 us for 3.8."""
    words = page("custom_add")
    assert "ms of CPU time is one-time cost" in words
    assert re.search(r"custom_add_kernel\([^)]*\) 134 us 85 137 us 3\.8 us kernel", words), "the bill of first calls"
    assert re.search(r"custom_add_kernel\([^)]*\) steady 17\.6 us 18\.4 us", words), "the spread of the kernel's times"


def test_which_step_time_is_real(tmp_path: Path) -> None:
    """Python is through a step in 0.3 ms, the GPU needs 30: the clock of the loop reads the one, the step takes the other."""

    def body(program: Program, number: int) -> None:
        for _ in range(10):
            program.launch(3_000)
            program.host(20)

    summary = summarize([Program().steps(body, 8).report.write(tmp_path / "r.sqlite")])
    said = answer_words.build(summary)
    assert said.now_ns == pytest.approx(30_000_000, rel=0.01)
    words = html.unescape(Page(html_page.render(summary)).words())
    assert re.search(r"GPU 30\.0\d ms, CPU \d+ us", words), "both are on the page, with whose they are"
    assert "GPU busy 100 % of 30.0 ms" in said.sentence


@pytest.mark.parametrize(
    ("name", "why"),
    [("nonzero", "How many"), ("unique", "Sorts"), ("item", "waits"), ("masks", "index_put")],
)
def test_what_an_operator_costs_is_explained(name: str, why: str) -> None:
    entry = glossary.lookup(name)
    assert entry is not None
    assert why in glossary.manual(entry)


def test_who_asked_for_pinned_memory(recorded: Samples) -> None:
    """The loader pins its batches: the bill of first calls, which a steady step does not pay, has the phase beside the call."""
    bill = view.build(recorded.summary("masked_slow_loader"), top=20, sections=("first_calls",)).grids[0]
    rows = [" ".join(cell.text for cell in row) for row in bill.rows or ()]
    assert any(re.match(r"cudaHostAlloc 55\.07 ms 7 [\d.]+ ms [\d.]+ ms api \(data\)", row) for row in rows), rows


def test_when_removing_a_mask_pays(page: Callable[[str], str]) -> None:
    words = page("masked_nonzero")
    assert "The masked values must be cheap enough to compute and throw away" in words
    assert re.search(r"68\.\d+ ms → 46\.\d+ ms a step", words)
    assert re.search(
        r"NSX101 A host sync of [\d.]+ ms in cudaStreamSynchronize in MaskedLoss costs next to nothing", words
    )


def test_own_ranges_stand_where_modules_do(tmp_path: Path) -> None:
    """Ranges that the program wrote itself are rows of the table of modules, with their GPU time."""

    def body(program: Program, number: int) -> None:
        for text, us in (("encoder", 1_000), ("my augmentation", 2_000)):
            begin = program.t
            program.launch(us)
            program.main.add_range(text, begin, program.t, domain="")
        program.sync()

    summary = summarize([Program().steps(body, 8).report.write(tmp_path / "r.sqlite")])
    per_step = summary.steps.scope
    assert per_step is not None
    rows = {r["path"]: per_step.per_step(r["self_gpu_ns"]) for r in summary.rows("modules")}
    assert (rows["encoder"], rows["my augmentation"]) == (1_000_000, 2_000_000)
    words = html.unescape(Page(html_page.render(summary)).words())
    assert "my augmentation" in words and "2.00 ms" in words

"""The page as a ticket: how much of it there is to read, measured in a browser at the width of a screen and of a phone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nsysx.render import html_page
from tests.render import factory
from tests.render.test_browser import CHROMIUM, DRIVER, REQUIRED, browser, js, visit
from tests.samples import DISTINCT, KINDS, NAMES, Samples

__all__ = ["browser"]  # the fixture

#: A screen in CSS pixels, and how many of them the first screen and the whole page (details closed) may fill.
SCREEN = 800
FIRST = {1280: 1.4, 390: 2.0}
WHOLE = 3.0
MOST_WORDS, MOST_BYTES = 360, 1_000_000


@pytest.fixture(scope="module")
def first(recorded: Samples, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function from a sample's name to its first screen as a page: what stands above the closed lines."""
    folder = tmp_path_factory.mktemp("first")

    def of(name: str) -> Path:
        path = folder / f"{name}.html"
        path.write_text(html_page.first(recorded.summary(name)), encoding="utf-8")
        return path

    return of


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_small(name: str, recorded: Samples) -> None:
    assert recorded.page(name).stat().st_size <= MOST_BYTES


#: How far down the first screen goes, and how many words a reader sees there.
_MEASURE = """
const words = n => n.innerText.trim().split(/\\s+/).filter(Boolean).length;
const main = document.querySelector("main");
return [main.getBoundingClientRect().bottom + scrollY, words(document.querySelector("header")) + words(main)];
"""


@pytest.mark.skipif(not (CHROMIUM and DRIVER) and not REQUIRED, reason="needs chromium and chromedriver")
@pytest.mark.parametrize("width", FIRST)
def test_the_first_screen_is_about_a_screen(width: int, browser: object, first: Callable[[str], Path]) -> None:
    """All samples in one session; what is too long is named with its length and words."""
    long = {}
    for name in DISTINCT:
        visit(browser, first(name), width=width)
        _laid_out(browser)
        bottom, words = js(browser, _MEASURE)
        if bottom > FIRST[width] * SCREEN or words > MOST_WORDS:
            long[name] = (round(bottom / SCREEN, 2), words)
    assert not long, f"screens of {SCREEN} px at {width} px, and words"


@pytest.mark.skipif(not (CHROMIUM and DRIVER) and not REQUIRED, reason="needs chromium and chromedriver")
def test_the_whole_page_is_few_screens(browser: object, recorded: Samples, tmp_path: Path) -> None:
    """Closed, the page ends soon, at both widths: that with most findings, and one that names as much as a page can."""
    crowded = tmp_path / "crowded.html"
    crowded.write_text(html_page.render(factory.summary()), encoding="utf-8")
    for path in (recorded.page("varlen"), crowded):
        for width in FIRST:
            visit(browser, path, width=width)
            assert _laid_out(browser) <= WHOLE * SCREEN, (path.name, width)


def _laid_out(browser: object) -> int:
    """Return the height of a page once it stays the same: on a busy machine it was measured before its script had drawn the timeline."""
    heights = [0]
    for _ in range(50):
        heights.append(js(browser, "return document.documentElement.scrollHeight"))
        if len(set(heights[-5:])) == 1:
            break
        time.sleep(0.1)
    return heights[-1]


#: Most of a screen of 1280x900 that the first screen fills, and most words to read when everything is unfolded.
MOST_OF_A_SCREEN, MOST_UNFOLDED = 1.2, 3500
#: Where the closed lines begin; then, with all of them open, how many words are seen.
_UNFOLDED = """
const top = document.querySelector(".more").getBoundingClientRect().top + scrollY;
document.querySelectorAll("details").forEach(d => d.open = true);
return [top / 900, document.body.innerText.trim().split(/\\s+/).length];
"""


@pytest.mark.skipif(not (CHROMIUM and DRIVER) and not REQUIRED, reason="needs chromium and chromedriver")
def test_a_page_is_read_to_its_end(browser: object, recorded: Samples) -> None:
    """One of each kind of program: the answer, the timeline and the list fit a screen, and all there is fits a coffee."""
    long = {}
    for name in KINDS:
        visit(browser, recorded.page(name))
        _laid_out(browser)
        screens, words = js(browser, _UNFOLDED)
        if screens > MOST_OF_A_SCREEN or words > MOST_UNFOLDED:
            long[name] = (round(screens, 2), words)
    assert not long, "screens of 900 px above the closed lines, and words when all is unfolded"

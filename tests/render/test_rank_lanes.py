"""The timeline of several reports in a browser: every rank has lanes, and they zoom with the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nsysx.pipeline import summarize
from nsysx.render import html_page
from tests.ranks.test_rank_table import ALL_REDUCE, reports
from tests.render.test_browser import CANVAS, CHROMIUM, DRIVER, REQUIRED, TIMELINE, browser, js, touch, visit, window
from tests.render.test_budgets import MOST_OF_A_SCREEN
from tests.samples import Samples

__all__ = ["browser"]  # the fixture

pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER) and not REQUIRED, reason="needs chromium and chromedriver")

#: What the page says under the pointer along the lane of this number, of so many, above so many strips of queues.
_SAID = f"""{TIMELINE}
const r = c.getBoundingClientRect(), row = (r.height - 22 - 18 - 26 * arguments[2]) / arguments[1], said = new Set();
for (let x = 200; x < r.width; x += 3) {{
  c.dispatchEvent(new PointerEvent("pointermove", {{clientX: r.left + x, clientY: r.top + 18 + (arguments[0] + 0.5) * row}}));
  said.add(document.querySelector("#timeline output").textContent.split(":")[0]);
}}
return [...said].filter(Boolean);"""


def names(browser) -> list[str]:
    return [lane["name"] for lane in drawn(browser)["lanes"]]


def drawn(browser) -> dict[str, list[dict]]:
    return json.loads(js(browser, "return document.querySelector('#timeline figure').dataset.live"))


def test_every_rank_has_lanes_that_zoom_and_speak(browser, tmp_path: Path) -> None:
    paths = reports(tmp_path, [300_000, 500_000], starts=[0, 700_000], clocks=[0, 40_000])
    page = tmp_path / "page.html"
    page.write_text(html_page.render(summarize(paths, timelines=True)), encoding="utf-8")
    visit(browser, page)
    lanes, strips = names(browser), len(drawn(browser)["queues"])
    for rank in range(2):
        for stream, kernel in ((7, "gemm"), (20, ALL_REDUCE)):
            lane = lanes.index(f"rank {rank}: GPU 0 stream {stream}")
            said = browser.execute_script(_SAID, lane, len(lanes), strips)
            assert said == [kernel], (rank, stream)
    start, end = window(browser)
    touch(browser, CANVAS, "+")
    near = window(browser)
    assert start <= near[0] < near[1] <= end and near[1] - near[0] < end - start
    lane = lanes.index("rank 1: GPU 0 stream 7")
    assert browser.execute_script(_SAID, lane, len(lanes), strips) == ["gemm"], "it zooms with the others"
    assert browser.get_log("browser") == []


def test_four_ranks_fit_the_first_screen(browser, recorded: Samples, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    files = [recorded.report(f"ddp_four.rank{n}") for n in range(4)]
    page.write_text(html_page.render(summarize(files, timelines=True, workers=1)), encoding="utf-8")
    visit(browser, page)
    assert {name.split(":")[0] for name in names(browser) if name.startswith("rank")} == {f"rank {n}" for n in range(4)}
    top = js(browser, "return document.querySelector('.more').getBoundingClientRect().top + scrollY")
    assert top <= MOST_OF_A_SCREEN * 900


def test_eight_ranks_fit_the_first_screen(browser, tmp_path: Path) -> None:
    """The rank that is waited for, and one that waits, say what they do; the others do with a pointer, and on a phone."""
    paths = reports(
        tmp_path,
        [300_000 + (200_000 if rank == 5 else rank) for rank in range(8)],
        starts=[7_000 * rank for rank in range(8)],
        clocks=[1_000 * rank for rank in range(8)],
    )
    page = tmp_path / "page.html"
    page.write_text(html_page.render(summarize(paths, timelines=True, workers=1)), encoding="utf-8")
    visit(browser, page)
    assert {name.split(":")[0] for name in names(browser) if name.startswith("rank")} == {f"rank {n}" for n in range(8)}
    assert js(browser, "return document.querySelector('.more').getBoundingClientRect().top + scrollY") <= (
        MOST_OF_A_SCREEN * 900
    )
    told = "return [...document.querySelectorAll('.barrow')].map(b => b.querySelector('.legend').offsetHeight > 0)"
    assert js(browser, told) == [n in (0, 5) for n in range(8)]
    visit(browser, page, width=390)
    assert js(browser, told) == [True] * 8

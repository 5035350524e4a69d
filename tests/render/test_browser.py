"""The page in a real browser: no message, no request, sorting and filtering work, and everything reads with scripts off."""

from __future__ import annotations

import base64
import contextlib
import html
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nsysx.comparing import comparison, side
from nsysx.render import compare_page, html_page
from tests.comparing import programs
from tests.render import factory

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")

#: Where this is set nothing may be left out: a check that is skipped has not passed.
REQUIRED = bool(os.environ.get("NSYSX_REQUIRE_BROWSER"))
AXE = os.environ.get("NSYSX_AXE", "")

pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER) and not REQUIRED, reason="needs chromium and chromedriver")


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    full = factory.summary()
    rows = tuple(factory.kernel_row(f"kernel_{i}<float>", (50 - i) * factory.US, count=i + 1) for i in range(40))
    many = replace(full, tables={**full.tables, "kernels": replace(full.tables["kernels"], rows=rows)})
    made = {}
    job = replace(full, tables={**full.tables, "ranks": factory.ranks(64, 60)})
    summaries = {"full": many, "bare": factory.bare(), "hostile": factory.hostile(), "ranks": job}
    for name, summary in summaries.items():
        made[name] = folder / f"{name}.html"
        made[name].write_text(html_page.render(summary), encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[object]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    assert CHROMIUM
    assert DRIVER, "NSYSX_REQUIRE_BROWSER is set: chromium and chromedriver must be there"
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
        "--window-size=1280,900",
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


def visit(
    browser, page: Path, *, width: int = 1280, dark: bool = False, scripts: bool = True, fragment: str = ""
) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not scripts})
    feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": [feature]})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(page.as_uri() + fragment)


def unfold(browser) -> None:
    """Open every part of the page, as a reader does with a click, scripts of the page on or off.

    In one call, and by no number of a node: the browser numbers its nodes anew whenever it likes.
    """
    left = js(
        browser,
        "document.querySelectorAll('details').forEach(d => d.open = true);"
        "return document.querySelectorAll('details:not([open])').length",
    )
    assert left == 0, f"{left} parts of the page do not open"


def js(browser, code: str):
    return browser.execute_script(code)


def becomes(browser, condition: str) -> bool:
    """Wait until something is so on the page, which a busy machine may bring late."""
    end = time.monotonic() + 120
    while not (there := js(browser, f"return Boolean({condition})")) and time.monotonic() < end:
        time.sleep(0.05)
    return there


def touch(browser, selector: str, keys: str = "") -> None:
    """Click what a selector names, or type there, as a reader does. No element is kept: the browser numbers its nodes anew."""
    from selenium.common.exceptions import StaleElementReferenceException

    def act() -> None:
        element = browser.find_element("css selector", selector)
        element.send_keys(keys) if keys else element.click()

    for _ in range(2):
        with contextlib.suppress(StaleElementReferenceException):
            return act()
    return act()


def press(browser, words: str, within: str = "#timeline") -> None:
    """Press the button of these words."""
    js(browser, f"[...document.querySelectorAll('{within} button')].find(b => b.textContent === '{words}').click()")


@pytest.mark.parametrize("name", ["full", "bare", "hostile", "ranks"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_no_message_no_request_no_sideways_scrolling(browser, pages, name, width, dark):
    visit(browser, pages[name], width=width, dark=dark)
    assert browser.get_log("browser") == []
    sent = [
        entry["message"]
        for entry in browser.get_log("performance")
        if '"Network.requestWillBeSent"' in entry["message"]
    ]
    urls = [part.split('"')[0] for message in sent for part in message.split('"url":"')[1:2]]
    assert [url for url in urls if not url.startswith(("file:", "data:", "about:"))] == []
    assert js(browser, "return document.documentElement.scrollWidth") <= width
    assert js(browser, "return [...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert js(browser, "return typeof window.alerted") == "undefined"


def column(browser, table: str, index: int) -> list[str]:
    return js(
        browser,
        f"return [...document.querySelectorAll('#{table} tbody tr')].map(r => r.cells[{index}].innerText.trim())",
    )


def test_tables_sort_both_ways_and_say_so(browser, pages):
    visit(browser, pages["full"])
    unfold(browser)
    heads = js(browser, "return [...document.querySelectorAll('#kernels thead th')].map(h => h.innerText.trim())")
    count = heads.index("count")
    assert column(browser, "kernels", count)[:3] == ["1", "2", "3"]
    press = f"document.querySelectorAll('#kernels thead button')[{count}].click()"
    js(browser, press)
    assert column(browser, "kernels", count)[:3] == ["40", "39", "38"]
    state = f"return document.querySelectorAll('#kernels thead th')[{count}].getAttribute('aria-sort')"
    assert js(browser, state) == "descending"
    js(browser, press)
    assert column(browser, "kernels", count)[:3] == ["1", "2", "3"]
    assert js(browser, state) == "ascending"
    js(browser, "document.querySelectorAll('#kernels thead button')[0].click()")
    names = column(browser, "kernels", 0)
    assert names == sorted(names)


def test_the_filter_hides_rows_and_counts_them(browser, pages):
    visit(browser, pages["full"])
    unfold(browser)
    touch(browser, "#kernels input[type=search]", "kernel_3 float")
    left = js(browser, "return [...document.querySelectorAll('#kernels tbody tr')].filter(r => !r.hidden).length")
    assert left == 11
    assert js(browser, "return document.querySelector('#kernels [role=status]').textContent") == "11 of 40 rows"


def test_five_rows_are_seen_and_the_others_open(browser, pages):
    visit(browser, pages["full"])
    unfold(browser)
    seen = "return [...document.querySelectorAll('#kernels tbody tr')].filter(r => r.getClientRects().length).length"
    assert js(browser, seen) == 5
    more = "return document.querySelector('#kernels button.rows')"
    assert js(browser, f"{more}.textContent") == "35 more rows"
    touch(browser, "#kernels button.rows", "\ue007")
    assert js(browser, seen) == 40
    assert js(browser, f"{more}.getAttribute('aria-expanded')") == "true"
    touch(browser, "#kernels button.rows")
    js(browser, "document.querySelectorAll('#kernels thead button')[0].click()")
    assert js(browser, seen) == 5, "sorted, too, the first five are seen"
    visit(browser, pages["full"], scripts=False)
    unfold(browser)
    assert "kernel_39<float>" in words(browser)
    visit(browser, pages["full"])


def test_the_keyboard_reaches_every_control(browser, pages):
    visit(browser, pages["full"])
    unfold(browser)
    controls = "return [...document.querySelectorAll('a,button,input,textarea,.scroll')]"
    reach = f"{controls}.filter(e => e.tabIndex < 0).length"
    assert js(browser, reach) == 0
    assert (
        js(browser, "document.querySelector('#kernels thead button').focus(); return document.activeElement.tagName")
        == "BUTTON"
    )
    assert js(browser, "return getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_a_link_to_a_word_opens_the_glossary(browser, pages):
    visit(browser, pages["full"], fragment="#g-cudaStreamSynchronize")
    assert js(browser, "return document.getElementById('g-cudaStreamSynchronize').getBoundingClientRect().top") < 900
    js(browser, "document.getElementById('words').open = false; location.hash = '#g-kernel'")
    assert becomes(browser, "document.getElementById('words').open")


def words(browser) -> str:
    tree = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    return " ".join(str(node.get("name", {}).get("value", "")) for node in tree if not node.get("ignored"))


def test_everything_reads_with_scripts_off(browser, pages):
    visit(browser, pages["full"], scripts=False)
    unfold(browser)
    text = words(browser)
    for part in (
        "The GPU computes for 81 %",
        "kernel_7<float>",
        "cudaStreamSynchronize",
        "Do this",
        "Time in which the device ran nothing",
        "re-run with: nsysx run --memory",
    ):
        assert part in text
    assert "Filter" not in text
    visit(browser, pages["full"])


def test_the_hostile_page_runs_nothing(browser, pages):
    visit(browser, pages["hostile"])
    with pytest.raises(Exception, match="no such alert"):
        _ = browser.switch_to.alert.text
    assert js(browser, "return document.querySelectorAll('script').length") == 1
    assert (
        js(
            browser,
            "return [...document.querySelectorAll('*')].filter(e => [...e.attributes].some(a => a.name.startsWith('on'))).length",
        )
        == 0
    )


def test_print_shows_the_details_and_no_controls(browser, pages):
    visit(browser, pages["full"])
    done = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    data = base64.b64decode(done["data"])
    assert data.startswith(b"%PDF")
    assert data.count(b"/Type /Page\n") + data.count(b"/Type /Page ") < 25


@pytest.mark.parametrize("name", ["full", "ranks"])
def test_no_picture_is_cut_off_on_paper(browser, pages, name):
    visit(browser, pages[name], width=703)  # A4 within its margins; narrow enough for what the page does on a phone
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        js(browser, "document.querySelectorAll('details').forEach(d => d.open = true)")
        over = "[...document.querySelectorAll('figure img')].map(i => i.getBoundingClientRect().width - i.parentElement.clientWidth)"
        found = js(browser, f"return {over}")
        twice = js(
            browser, "return [...document.querySelectorAll('.flame')].filter(f => f.getClientRects().length).length"
        )
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert found
    assert max(found) <= 0
    assert not twice, "what is clicked has a picture, and that is what is printed"


def test_no_heading_stands_alone_on_paper(browser, pages):
    visit(browser, pages["full"], width=703)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        shown = js(
            browser,
            "return [...document.querySelectorAll('.more>details')].filter(d => d.getClientRects().length).map(d => d.className)",
        )
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert shown and "screen" not in shown, "what is for the screen alone leaves no heading"


def test_a_comparison_has_its_wide_pictures_and_whole_cards_on_paper(browser, tmp_path):
    sides = [
        side.side(
            name, [programs.captured(programs.summary(tmp_path, programs.program({"a": ns, "b": 2_000_000}), name))]
        )
        for name, ns in (("before", 3_000_000), ("after", 3_100_000))
    ]
    page = tmp_path / "compared.html"
    page.write_text(compare_page.render(comparison.compare(*sides)), encoding="utf-8")
    visit(browser, page, width=703)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        browser.get(page.as_uri())  # a loaded page takes its other pictures when it likes
        narrow = "return [...document.querySelectorAll('picture img')].filter(i => i.currentSrc !== i.src).length"
        over = "return [...document.querySelectorAll('.card *')].filter(e => e.scrollWidth > e.parentElement.clientWidth).length"
        assert js(browser, narrow) == 0, "those of a phone are half as wide as the paper"
        js(browser, "document.querySelector('.big').textContent = 'No measurable difference'")
        assert js(browser, over) == 0
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


@pytest.mark.skipif(not AXE and not REQUIRED, reason="NSYSX_AXE names no axe.min.js")
@pytest.mark.parametrize("name", ["full", "bare", "hostile", "ranks"])
@pytest.mark.parametrize(("width", "dark"), [(390, False), (1280, True)])
def test_axe_finds_nothing_serious(browser, pages, name, dark, width):
    assert AXE, "NSYSX_REQUIRE_BROWSER is set: NSYSX_AXE must name axe.min.js"
    visit(browser, pages[name], dark=dark, width=width)
    js(browser, "document.querySelectorAll('details').forEach(d => d.open = true)")
    js(browser, Path(AXE).read_text(encoding="utf-8"))
    found = browser.execute_async_script(
        "const done = arguments[0]; axe.run().then(r => done(r.violations.map(v => [v.id, v.impact, v.nodes.length, v.nodes[0].html])))"
    )
    assert found == []


def test_of_many_ranks_the_late_one_is_on_the_page(browser, pages):
    visit(browser, pages["ranks"])
    unfold(browser)
    assert "The others wait for rank 60." in js(browser, "return document.querySelector('#ranks figcaption').innerText")
    assert "60" in column(browser, "ranks", 0)
    drawn = js(
        browser,
        "const i = document.querySelector('#ranks img'); return [i.naturalWidth, i.naturalHeight, i.width, i.height]",
    )
    assert drawn[0] > 0 and drawn[:2] == drawn[2:], "the browser can draw the picture, at its size"
    assert pages["ranks"].stat().st_size < 1_500_000


CANVAS = "#timeline canvas"
TIMELINE = f"const c = document.querySelector('{CANVAS}');"


def window(browser) -> tuple[int, int]:
    """Return the part of the step that the timeline shows (ns)."""
    start, end = js(browser, f"{TIMELINE} return [c.dataset.from, c.dataset.to]")
    return int(start), int(end)


def test_the_timeline_of_the_first_screen_zooms_moves_and_obeys_keys(browser, pages):
    from selenium.webdriver.common.keys import Keys

    visit(browser, pages["full"])
    assert js(browser, f"{TIMELINE} return c.getBoundingClientRect().width") > 0, "without a click"
    start, end = window(browser)
    live = js(browser, "return JSON.parse(document.querySelector('#timeline figure').dataset.live)")
    assert [start, end] == live["shown"], "the step, not what leads to it"
    press(browser, "Zoom out")
    assert window(browser) == (0, live["ns"]), "what leads to it is a click away"
    press(browser, "Whole window")
    assert window(browser) == (start, end)
    press(browser, "Zoom in")
    near = window(browser)
    assert near[1] - near[0] == pytest.approx((end - start) / 2, abs=2)
    turn = (
        f"{TIMELINE} const r = c.getBoundingClientRect(); c.dispatchEvent(new WheelEvent('wheel',"
        " {deltaY: -100, clientX: r.left + 600, clientY: r.top + 40, cancelable: true}))"
    )
    js(browser, turn)
    assert window(browser) == near, "a page that is scrolled does not zoom"
    js(browser, "document.querySelector('#timeline canvas').focus()")
    js(browser, turn)
    zoomed = window(browser)
    assert zoomed[1] - zoomed[0] == pytest.approx(0.8 * (near[1] - near[0]), abs=2), "after a click the wheel zooms"
    js(browser, turn.replace("deltaY: -100", "deltaY: 10"))
    wider = window(browser)
    assert zoomed[1] - zoomed[0] < wider[1] - wider[0] < 1.03 * (zoomed[1] - zoomed[0]), "a touchpad zooms smoothly"
    js(browser, turn.replace("deltaY: -100", "deltaX: 50, deltaY: 5"))
    aside = window(browser)
    assert aside[0] > wider[0] and aside[1] - aside[0] == pytest.approx(wider[1] - wider[0], abs=2), "sideways it moves"
    press(browser, "Whole window")
    press(browser, "Zoom in")
    near = window(browser)
    touch(browser, CANVAS, Keys.ARROW_RIGHT)
    moved = window(browser)
    assert moved[0] > near[0] and moved[1] - moved[0] == pytest.approx(near[1] - near[0], abs=2)
    touch(browser, CANVAS, "+")
    assert window(browser)[1] - window(browser)[0] < moved[1] - moved[0]
    before = window(browser)
    js(
        browser,
        f"{TIMELINE} const r = c.getBoundingClientRect();"
        "const at = (n, x) => c.dispatchEvent(new PointerEvent(n, {clientX: r.left + x, clientY: r.top + 40, pointerId: 1}));"
        "c.setPointerCapture = () => 0; at('pointerdown', 700); at('pointermove', 600); at('pointerup', 600);",
    )
    assert window(browser)[0] > before[0], "dragged to the left, later times come"
    touch(browser, CANVAS, Keys.HOME)
    assert window(browser) == (start, end)
    point = (
        f"{TIMELINE} const r = c.getBoundingClientRect(); let said = new Set();"
        "for (let y = 13; y < r.height - 22; y += 12) for (let x = 200; x < r.width; x += 5) {"
        " c.dispatchEvent(new PointerEvent('pointermove', {clientX: r.left + x, clientY: r.top + y}));"
        " said.add(document.querySelector('#timeline output').textContent); }"
        "return [...said].filter(Boolean)"
    )
    assert any("ms, begins at" in text for text in js(browser, point))
    assert browser.get_log("browser") == []


def test_a_finding_leads_to_its_time_and_its_mark_to_the_finding(browser, pages):
    visit(browser, pages["full"])
    mark = js(browser, "return JSON.parse(document.querySelector('#timeline figure').dataset.live).marks[0]")
    number, start, end = mark
    assert not js(browser, f"return document.getElementById('do-{number}').open")
    touch(browser, f"#do-{number} summary")
    touch(browser, f"#do-{number} button.goto")
    shown = window(browser)
    assert shown[0] <= start < end <= shown[1] and shown[1] - shown[0] < 6 * max(end - start, 1) + 1e6
    assert js(browser, "return document.activeElement.tagName") == "CANVAS", "keys go on from there"
    js(browser, f"document.getElementById('do-{number}').open = false")
    touch(browser, CANVAS, "0")
    touch(browser, CANVAS, str(number))
    assert window(browser) == shown


def test_flags_at_the_edge_stand_side_by_side(browser, tmp_path):
    """Six findings in the last hundredth of the step: the page opens, and each flag has a place of its own."""
    full = factory.summary()
    page = html_page.render(full)
    live = re.search(r'data-live="([^"]*)"', page)
    assert live
    data = json.loads(html.unescape(live[1]))
    ns = data["ns"]
    marks = [[number, ns - ns // 100 - number * 1000, ns - number * 1000] for number in range(1, 7)]
    crowded = tmp_path / "crowded.html"
    data["marks"] = marks
    crowded.write_text(page.replace(live[1], html.escape(json.dumps(data)), 1), encoding="utf-8")
    visit(browser, crowded)
    for number in range(1, 7):
        touch(browser, CANVAS, "0")
        touch(browser, CANVAS, str(number))
        start, end = window(browser)
        assert start <= marks[number - 1][1] < marks[number - 1][2] <= end


def test_the_still_timeline_stands_on_paper_and_without_scripts(browser, pages):
    visit(browser, pages["full"])
    wide = "return document.querySelector('#timeline img').getBoundingClientRect().width"
    assert js(browser, wide) == 0
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    assert js(browser, wide) > 100
    assert js(browser, "return getComputedStyle(document.querySelector('.live')).display") == "none"
    visit(browser, pages["full"], scripts=False)
    assert js(browser, wide) > 100
    visit(browser, pages["full"])

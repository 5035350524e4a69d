"""What a reader does on the page with the mouse: sums of a span, from a finding to its kernel and the kernel's row, search, copy."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from nsysx.render import html_page
from tests.render import factory
from tests.render.test_browser import CHROMIUM, DRIVER, REQUIRED, TIMELINE, browser, js, visit, window

__all__ = ["browser"]

pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER) and not REQUIRED, reason="needs chromium and chromedriver")

#: Times in a text, in ns.
NS = {"ns": 1.0, "µs": 1e3, "ms": 1e6, "s": 1e9}
DRAG = (
    TIMELINE + "const r = c.getBoundingClientRect(), left = Math.min(190, 0.28 * c.clientWidth);"
    "const put = (n, x, y) => c.dispatchEvent(new PointerEvent(n, {clientX: r.left + x, clientY: r.top + y, pointerId: 1,"
    " shiftKey: SHIFT}));"
    "c.setPointerCapture = () => 0; const at = share => left + share * (c.clientWidth - left);"
)


def ns_of(text: str) -> float:
    number, unit = text.split()
    return float(number.replace(",", "")) * NS[unit]


def boxes(live: dict) -> list[tuple[str, bool, list[tuple[int, int, str, float]]]]:
    """Return name, whether it is idle time, and start, end, text and filled share of the boxes of each lane."""
    lanes = []
    for lane in live["lanes"]:
        at, shown = 0, []
        for i in range(0, len(lane["at"]), 4):
            start = at + lane["at"][i]
            at = start + lane["at"][i + 1]
            shown.append((start, at, live["text"][lane["at"][i + 3]], lane["fill"].get(str(i // 4), 100) / 100))
        lanes.append((lane["name"], lane["idle"], shown))
    return lanes


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page whose table of kernels has the kernels of its timeline."""
    full = factory.summary()
    names = sorted({s.label for lane in full.timelines[0].lanes if lane.role == "stream" for s in lane.spans})
    rows = tuple(factory.kernel_row(n, 50 * factory.US, count=1) for n in names)
    made = tmp_path_factory.mktemp("driven") / "page.html"
    do = (*full.answer.do[:-1], replace(full.answer.do[-1], paste="mask = labels != 0\nloss = (losses * mask).sum()"))
    tables = {**full.tables, "kernels": replace(full.tables["kernels"], rows=rows)}
    summary = replace(full, answer=replace(full.answer, do=do), tables=tables)
    made.write_text(html_page.render(summary), encoding="utf-8")
    return made


def live_of(browser) -> dict:
    return json.loads(js(browser, "return document.querySelector('#timeline figure').dataset.live"))


def test_a_span_has_sums_that_are_those_of_its_boxes(browser, page: Path) -> None:
    visit(browser, page)
    live = live_of(browser)
    js(
        browser,
        DRAG.replace("SHIFT", "true")
        + "put('pointerdown', at(.25), 40); put('pointermove', at(.75), 40); put('pointerup', at(.75), 40)",
    )
    assert window(browser) == (0, live["ns"]), "a selection does not move the window"
    told = {}
    for line in js(browser, "return [...document.querySelectorAll('.sums li')].map(e => e.textContent)"):
        found = re.match(r"(.*): ([\d.,]+ (?:ns|µs|ms|s)) \(", line)
        assert found, line
        told[found[1]] = ns_of(found[2])
    a, b = 0.25 * live["ns"], 0.75 * live["ns"]
    wanted = {}
    for name, _, shown in boxes(live):
        if whole := sum(max(0, min(b, end) - max(a, start)) * fill for start, end, _, fill in shown):
            wanted[name] = whole
    assert told.keys() == wanted.keys() and len(told) > 2
    pixel = live["ns"] / 500
    assert all(told[n] == pytest.approx(wanted[n], rel=0.01, abs=pixel * 2) for n in told), (told, wanted)
    assert browser.get_log("browser") == []


def test_names_are_found_one_after_the_other(browser, page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    visit(browser, page)
    live = live_of(browser)
    name = next(text for lane, idle, shown in boxes(live) if not idle and "GPU" in lane for *_, text, _ in shown)
    count = sum(name.lower() in text.lower() for _, _, shown in boxes(live) for *_, text, _ in shown)
    seek = browser.find_element("css selector", "#timeline input[type=search]")
    seek.send_keys(name)
    output = "return document.querySelector('#timeline output').textContent"
    assert js(browser, output).startswith(f"{count} found, ")
    seek.send_keys(Keys.ENTER)
    assert "number 1: " in js(browser, output)
    start, end = window(browser)
    assert end - start < live["ns"], "it leads there"
    seek.clear()
    seek.send_keys("no such kernel")
    assert js(browser, output) == "Nothing here is named so"


def test_from_a_finding_to_its_kernel_to_the_row_of_that(browser, page: Path) -> None:
    visit(browser, page)
    number = live_of(browser)["marks"][0][0]
    browser.find_element("css selector", f"#do-{number} summary").click()
    browser.find_element("css selector", f"#do-{number} button.goto").click()
    js(browser, "document.querySelector('#timeline canvas').dispatchEvent(new KeyboardEvent('keydown', {key: '0'}))")
    clicked = (
        DRAG.replace("SHIFT", "false")
        + "for (let y = 20; y < r.height - 24; y += 6) for (let x = 0.02; x < 1; x += 0.02) {"
        " const o = {clientX: r.left + at(x), clientY: r.top + y, bubbles: true};"
        " put('pointerdown', at(x), y); put('pointerup', at(x), y); c.dispatchEvent(new MouseEvent('click', o));"
        " const b = document.querySelector('#timeline .torow'); if (b) { b.click();"
        " return document.querySelector('#timeline input').value; } }"
    )
    name = js(browser, clicked)
    assert name
    row = "const tr = document.querySelector('#kernels tr.here');"
    assert js(browser, f"{row} return tr.textContent").replace("…", "")[:4] in name or js(
        browser, f"{row} return tr.cells[0].title"
    )
    assert js(
        browser,
        f"{row} const r = tr.getBoundingClientRect(); return r.height > 0 && r.top >= 0 && r.bottom <= innerHeight",
    )


def test_buttons_copy_the_lines_and_the_ticket(browser, page: Path) -> None:
    visit(browser, page)
    browser.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    read = "const done = arguments[0]; navigator.clipboard.readText().then(done, e => done('refused: ' + e))"
    for selector, of in (
        (".card.do .copy", "b.dataset.copy"),
        (".copy.ticket", "document.getElementById('ticket').value"),
    ):
        button = browser.find_element("css selector", selector)
        button.click()
        wanted = js(browser, f"const b = document.querySelector('{selector}'); return {of}")
        assert wanted.strip()
        assert browser.execute_async_script(read).strip() == wanted.strip()
        assert button.text == "Copied"

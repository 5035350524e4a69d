"""What a reader does on the page with the mouse: sums of a span, from a finding to its kernel and the kernel's row, search, copy."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from nsysx.advice import Also
from nsysx.analyses import lines
from nsysx.model import Table
from nsysx.pictures import SEVERAL, Lane, Span
from nsysx.render import html_page
from nsysx.saving import Saving
from tests.render import factory
from tests.render.test_browser import (
    CHROMIUM,
    DRIVER,
    REQUIRED,
    TIMELINE,
    becomes,
    browser,
    js,
    press,
    touch,
    visit,
    window,
)

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


def named(live: dict, lane: dict, name: str) -> int:
    """Return how many boxes of a lane are not called so, but work for a module or line that is."""
    texts = [*live["text"], ""]
    pairs = zip(lane.get("of", ())[2::4], lane.get("of", ())[3::4], lane["at"][3::4], strict=False)
    return sum(
        name.lower() not in texts[own].lower() and any(name.lower() in texts[i].lower() for i in (module, line))
        for module, line, own in pairs
    )


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
    assert list(window(browser)) == live["shown"], "a selection does not move the window"
    told = {}
    for line in js(browser, "return [...document.querySelectorAll('.sums li')].map(e => e.textContent)"):
        found = re.match(r"(.*): ([\d.,]+ (?:ns|µs|ms|s)) \(", line)
        assert found, line
        told[found[1]] = ns_of(found[2])
    first, last = live["shown"]
    a, b = first + 0.25 * (last - first), first + 0.75 * (last - first)
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
    count += sum(named(live, lane, name) for lane in live["lanes"])
    seek = "#timeline input[type=search]"
    touch(browser, seek, name)
    output = "return document.querySelector('#timeline output').textContent"
    assert js(browser, output).startswith(f"{count} found, ")
    touch(browser, seek, Keys.ENTER)
    assert "number 1: " in js(browser, output)
    start, end = window(browser)
    assert end - start < live["ns"], "it leads there"
    js(browser, f"document.querySelector('{seek}').value = ''")
    touch(browser, seek, "no such kernel")
    assert js(browser, output) == "Nothing here is named so"


def test_from_a_finding_to_its_kernel_its_launch_its_line_its_row_and_back(browser, page: Path) -> None:
    visit(browser, page)
    live = live_of(browser)
    number = live["marks"][0][0]
    touch(browser, f"#do-{number} summary")
    touch(browser, f"#do-{number} button.goto")
    js(browser, "document.querySelector('#timeline canvas').dispatchEvent(new KeyboardEvent('keydown', {key: '0'}))")
    lane = next(n for n, lane in enumerate(live["lanes"]) if "of" in lane)
    row = max(12, min(21, (174 - 26 * len(live["queues"])) / len(live["lanes"])))
    js(browser, click(0.5, 18 + (lane + 0.5) * row))
    output = "return document.querySelector('#timeline output').textContent"
    kernel = js(browser, output)
    assert re.search(
        r"; launched at [\d.]+ ms by cudaLaunchKernel, [\d.]+ (µs|ms) in the queue; module blocks", kernel
    ), kernel
    assert "line project/train.py:47" in kernel
    press(browser, "Its launch", "#timeline output")
    assert js(browser, output).startswith("cudaLaunchKernel: 7.0 µs")
    near = window(browser)
    assert near[0] >= 0 and near[1] <= live["ns"], "both are seen"
    press(browser, "What it launched", "#timeline output")
    assert js(browser, output)[:60] == kernel[:60], "and back"
    press(browser, "Its row in Kernels", "#timeline output")
    here = "const tr = document.querySelector('#kernels tr.here'), r = tr.getBoundingClientRect();"
    assert js(browser, f"{here} return r.height > 0 && r.top >= 0 && r.bottom <= innerHeight")
    js(
        browser,
        "document.querySelector('#timeline canvas').dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))",
    )
    js(browser, f"{here} tr.querySelector('button.seek').click()")
    assert "number 1: " in js(browser, output), "a row of the table leads to the timeline"
    assert browser.get_log("browser") == []


def click(share: float, y: float) -> str:
    """Return a script that clicks the timeline at this share of what it shows, ``y`` pixels below its top."""
    return (
        DRAG.replace("SHIFT", "false") + f"put('pointerdown', at({share}), {y}); put('pointerup', at({share}), {y});"
        f"c.dispatchEvent(new MouseEvent('click', {{clientX: r.left + at({share}), clientY: r.top + {y}, bubbles: true}}))"
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
        button = f"const b = document.querySelector('{selector}');"
        note = "window.said = []; new MutationObserver(() => said.push(b.textContent)).observe(b, {childList: true})"
        js(browser, f"{button} {note}")  # the button says so for two seconds
        touch(browser, selector)
        assert becomes(browser, "said.length") and js(browser, "return said[0]") == "Copied"
        wanted = js(browser, f"{button} return {of}")
        assert wanted.strip()
        assert browser.execute_async_script(read).strip() == wanted.strip()


def test_a_box_of_a_flame_graph_becomes_as_wide_as_the_picture_and_leads_back(browser, page: Path) -> None:
    visit(browser, page, fragment="#modules")
    flame = "const f = document.querySelector('figure[data-flame] .flame'), all = [...f.querySelectorAll('button')];"
    share = flame + "return all.map(b => b.getBoundingClientRect().width / f.clientWidth)"
    before = js(browser, share)
    number = min(range(len(before)), key=lambda n: before[n])
    name = js(browser, f"{flame} const b = all[{number}], t = b.title; b.click(); return t")
    chosen = f"{flame} const b = all.find(b => b.title === {json.dumps(name)}); return b.getBoundingClientRect().width / f.clientWidth"
    assert before[number] < 0.9 and js(browser, chosen) == pytest.approx(1, abs=0.01)
    assert js(browser, "return document.activeElement.title") == name, "keys go on from there"
    js(browser, f"{flame} all.find(b => b.title === {json.dumps(name)}).click()")
    assert js(browser, share) == pytest.approx(before)
    assert browser.get_log("browser") == []


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page whose list has seven findings of one cause, the first at a line that stands low in the table of lines."""
    full = factory.summary()
    where = {"file": "/home/alice/secret-project/train/losses.py", "line": 88}
    first = full.findings[0]
    same = tuple(
        replace(first, slug=f"mask-work-{n}", title=f"Masks, part {n}", saving=Saving(factory.MS), overlaps=(0,))
        for n in range(6)
    )
    also = tuple(
        Also(first.code, len(full.findings) + n, f"Masks, part {n}", factory.MS, bound=False) for n in range(6)
    )
    blank = {c.name: 0 if c.dtype == "Int64" else "train" for c in lines.COLUMNS}
    rows = [{**blank, "file": where["file"], "line": n, "text": "x = x + 1"} for n in (*range(1, 30), where["line"])]
    tables = {**full.tables, lines.KEY: Table(lines.KEY, "Time by line", lines.COLUMNS, tuple(rows), shown=lines.SHOWN)}
    answer = replace(full.answer, also=also)
    summary = replace(full, findings=(*full.findings, *same), answer=answer, tables=tables)
    made = tmp_path_factory.mktemp("crowded") / "page.html"
    made.write_text(html_page.render(summary), encoding="utf-8")
    return made


def test_five_lines_of_the_list_are_seen_and_the_others_open(browser, crowded: Path) -> None:
    visit(browser, crowded)
    touch(browser, "#do-1 summary")
    seen = "return [...document.querySelectorAll('.todo .item')].filter(i => i.getClientRects().length).map(i => i.id)"
    assert js(browser, seen) == [f"do-{n}" for n in range(1, 6)]
    more = "#do-1 > button[aria-expanded]"
    assert js(browser, f"return document.querySelector('{more}').textContent") == "2 more"
    touch(browser, more)
    assert js(browser, seen) == [f"do-{n}" for n in range(1, 8)]
    visit(browser, crowded, scripts=False)
    touch(browser, "#do-1 summary")
    assert js(browser, "return document.querySelector('#do-7').getClientRects().length"), (
        "without a script all stand there"
    )
    visit(browser, crowded)


def test_the_line_of_a_finding_leads_to_its_row(browser, crowded: Path) -> None:
    visit(browser, crowded)
    row = "const tr = [...document.querySelectorAll('#lines tbody tr')].at(-1), r = tr.getBoundingClientRect();"
    assert not js(browser, f"{row} return r.height > 0"), "closed, and beyond the rows that are seen"
    touch(browser, "#do-1 summary")
    assert js(browser, "return document.querySelector('#do-1 a.toline').textContent") == "train/losses.py:88"
    touch(browser, "#do-1 a.toline")
    assert js(browser, f"{row} return tr.cells[0].textContent").startswith("train/losses.py:88")
    assert js(browser, f"{row} return r.height > 0 && r.top >= 0 && r.bottom <= innerHeight")
    assert js(browser, f"{row} return tr.classList.contains('here')")
    assert browser.get_log("browser") == []


def test_a_label_without_room_begins_with_what_tells_its_kernel(browser, page: Path) -> None:
    visit(browser, page)
    for name, shown in (
        ("indexing_backward_kernel_stride_1<float>", "indexing_b…"),  # what its brackets hold is only a type
        ("at::native::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>", "nll_loss_f…"),
        ("vectorized_elementwise_kernel<4, FillFunctor<float>, array<char*, 1ul>>", "FillFuncto…"),
        ("encoder.layers.3.down", "…ers.3.down"),
        ("encoder.blocks.down", "…locks.down"),
    ):
        assert js(browser, f"return telling({json.dumps(name)}, 10)") == shown


def test_nothing_is_written_on_a_box_of_several_names(browser, tmp_path: Path) -> None:
    full = factory.summary()
    first = full.timelines[0]
    spans = (
        Span(0, 20 * factory.MS, "compute", SEVERAL, covered_ns=20 * factory.MS),
        Span(25 * factory.MS, 45 * factory.MS, "compute", "gemm"),
    )
    picture = replace(
        first, lanes=(Lane("stream", "GPU 0 stream 7", spans),), places=(), queues=(), counters=(), marks=()
    )
    page = tmp_path / "page.html"
    page.write_text(html_page.render(replace(full, timelines=(picture,))), encoding="utf-8")
    visit(browser, page)
    written = js(
        browser,
        "const said = [], whole = CanvasRenderingContext2D.prototype.fillText;"
        "CanvasRenderingContext2D.prototype.fillText = function (text) { said.push(text); whole.apply(this, arguments); };"
        "document.querySelector('#timeline canvas').dispatchEvent(new KeyboardEvent('keydown', {key: '0'}));"
        "return new Promise(done => setTimeout(() => done(said), 300))",
    )
    assert "gemm" in written and SEVERAL not in written

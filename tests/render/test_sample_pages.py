"""The pages of the recorded samples: small, valid, usable by everybody, and photographed for eyes.

NSYSX_SCREENSHOTS names a folder that keeps each page as PNG (phone, desktop, dark) and as the PDF that printing gives.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nsysx.model import Summary
from tests.render.test_browser import AXE, CHROMIUM, DRIVER, REQUIRED, browser, js, visit
from tests.render.test_page import Page
from tests.samples import KINDS, NAMES, Samples

VALIDATE = os.environ.get("NSYSX_HTML_VALIDATE", "")

__all__ = ["browser"]  # the fixture
#: Every other kind: a page takes six seconds in a browser, and test_browser has one with everything.
SEEN = KINDS[::2]


@pytest.fixture(scope="module")
def made(recorded: Samples) -> Callable[[str], tuple[Summary, Path]]:
    """A function from a sample's name to its Summary and its page."""
    return lambda name: (recorded.summary(name), recorded.page(name))


def test_there_are_samples():
    assert len(NAMES) >= 10


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_small_well_formed_and_says_its_pictures_in_words(made, name):
    summary, path = made(name)
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < 1_000_000
    page = Page(text)
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {link["href"][1:] for link in page.all("a")} <= set(ids)
    alts = [image["alt"] for image in page.all("img")]
    assert all(any(c.isdigit() for c in alt) for alt in alts)
    assert any(alt.startswith("Timeline") for alt in alts)
    assert any("launches find an empty queue" in alt for alt in alts)
    if summary.steps.source != "capture":
        assert any("steps" in alt for alt in alts)
    # What a reader needs within ten seconds comes first.
    assert text.index("<h1") < text.index('id="timeline"') < text.index('id="ledger"') < text.index('id="kernels"')


@pytest.mark.skipif(not VALIDATE and not REQUIRED, reason="NSYSX_HTML_VALIDATE names no html-validate")
def test_the_pages_are_valid_html(made, tmp_path):
    assert VALIDATE, "NSYSX_REQUIRE_BROWSER is set: NSYSX_HTML_VALIDATE must name html-validate"
    pages = [made(name)[1] for name in NAMES]
    # The lengths of bars are styles of their elements; names of files make titles long.
    rules = {"no-inline-style": "off", "long-title": "off"}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"root": True, "extends": ["html-validate:standard"], "rules": rules}))
    words = [VALIDATE, "--config", str(config), "--formatter", "text", *map(str, pages)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (done.stdout + done.stderr)[:4000]


@pytest.mark.skipif(not (CHROMIUM and DRIVER) and not REQUIRED, reason="needs chromium and chromedriver")
@pytest.mark.parametrize("name", SEEN)
def test_a_page_works_for_everybody(browser, made, name):
    _, page = made(name)
    shots = os.environ.get("NSYSX_SCREENSHOTS")
    for look, width, dark in (("phone", 390, False), ("desktop", 1280, False), ("dark", 1280, True)):
        visit(browser, page, width=width, dark=dark)
        assert browser.get_log("browser") == []
        assert js(browser, "return document.documentElement.scrollWidth") <= width
        assert js(browser, "return [...document.images].every(i => i.complete && i.naturalWidth > 0)")
        if shots:
            keep(browser, Path(shots) / f"{name}-{look}.png", width)
        # The colors of a look are the same on all pages, and axe takes seconds: it sees every page in one of two looks.
        if look == ("phone", "dark")[SEEN.index(name) % 2] and (AXE or REQUIRED):
            assert AXE, "NSYSX_REQUIRE_BROWSER is set: NSYSX_AXE must name axe.min.js"
            js(browser, "document.querySelectorAll('details').forEach(d => d.open = true)")
            js(browser, Path(AXE).read_text(encoding="utf-8"))
            violations = browser.execute_async_script(
                "const done = arguments[0];"
                "axe.run().then(r => done(r.violations.map(v => [v.id, v.impact, v.nodes.length, v.nodes[0].html])))"
            )
            assert violations == [], look
    visit(browser, page)
    done = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True, "printBackground": True})
    paper = base64.b64decode(done["data"])
    assert paper.startswith(b"%PDF")
    if shots:
        (Path(shots) / f"{name}.pdf").write_bytes(paper)


def keep(browser, path: Path, width: int) -> None:
    """Write the whole page as one picture; browsers take no more than 16,384 pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    height = min(16_000, js(browser, "return document.documentElement.scrollHeight"))
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    path.write_bytes(base64.b64decode(shot["data"]))

"""The page as a file: well formed, self-contained, inert, small, and honest about what is missing or hidden."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest

from nsysx import analyses, findings
from nsysx.advice import Also
from nsysx.analyses import first_calls
from nsysx.catalogue import StepLimit
from nsysx.model import Table
from nsysx.render import html_page, plots, view
from tests.render import factory

VOID = {"meta", "link", "img", "input", "br", "hr", "wbr"}


class Page(HTMLParser):
    """Reads a page strictly: every tag must close in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.script = ""
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), (tag, names)
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, tag
        assert self.open.pop() == tag, (tag, self.open[-5:])

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.script += data
        elif not self.open or self.open[-1] != "style":
            self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]

    def words(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.text)).replace("µs", "us")


@pytest.fixture(scope="module")
def full_page(full):
    return html_page.render(full)


@pytest.fixture(scope="module")
def hostile_page(hostile):
    return html_page.render(hostile)


@pytest.fixture(scope="module", params=["full_page", "hostile_page", "bare_page"])
def any_page(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def bare_page(bare):
    return html_page.render(bare)


def pictures(text: str) -> list[bytes]:
    return [base64.b64decode(data) for data in re.findall(r'src="data:image/[a-z+]+;base64,([^"]+)"', text)]


def test_nothing_is_loaded_and_only_our_script_may_run(any_page):
    page = Page(any_page)
    policy = page.all("meta")[1]["content"]
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-")
    digest = base64.b64encode(hashlib.sha256(page.script.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in policy
    assert len(page.all("script")) == 1
    assert page.all("script")[0] == {}
    for tag, attrs in page.tags:
        assert tag not in ("iframe", "object", "embed", "base", "form", "video", "audio", "svg")
        for name, value in attrs.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href"):
                assert value.startswith(("#", "data:image/", "data:,")), value
            elif name == "style":
                assert re.fullmatch(r"((--w|width|flex-grow|left):[\d.]+%?;?)+", value), value
    style = any_page.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_a_reader_of_any_kind_finds_the_way(any_page):
    page = Page(any_page)
    assert page.all("html")[0]["lang"] == "en"
    for landmark in ("header", "main", "footer", "h1"):
        assert len(page.all(landmark)) == 1, landmark
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    for link in page.all("a"):
        assert link["href"][1:] in ids, link
    for attrs in page.all("section"):
        assert attrs["aria-labelledby"] in ids
    for image in page.all("img"):
        assert len(image["alt"]) > 10
        assert int(image["width"]) > 0 < int(image["height"])
    assert len(page.all("caption")) == len(page.all("table"))
    for head in page.all("th"):
        assert head["scope"] in ("col", "row")


def test_hostile_names_add_text_and_nothing_else(full_page, hostile_page):
    known, attacked = Page(full_page), Page(hostile_page)
    assert {tag for tag, _ in attacked.tags} <= {tag for tag, _ in known.tags}
    pairs = {(tag, name) for tag, attrs in attacked.tags for name in attrs}
    assert pairs <= {(tag, name) for tag, attrs in known.tags for name in attrs} | {("td", "title"), ("tr", "class")}
    words = attacked.words()
    assert "<script>alert(1)</script>" in words
    assert "{{7*7}}{% raw %}" in words
    assert not [c for c in hostile_page if c < " " and c != "\n"]
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b\x7f-\x9f]", hostile_page)
    for picture in pictures(hostile_page):
        assert b"<script" not in picture
        assert b"onerror=" not in picture or b"&lt;img" in picture
    assert len(hostile_page.encode()) < 1_000_000


def test_the_order_of_the_page(full_page):
    words = Page(full_page).words()
    heads = [
        "The GPU computes for 81 %",
        "Do this",
        "What it is worth",
        "How sure",
        "One step on the GPU",
        "Step 5, typical",
        "idle: host sync",
        "What to do",
        "More Where the step goes",
        "mean of 10 steady steps",
        "Steps over time",
        "GPU time by module",
        "Functions that ran",
        "Places where the CPU",
        "Looked for and not found",
        "How far to trust this",
        "Hidden on this page",
        "Words of this page",
    ]
    places = [words.index(head) for head in heads]
    assert places == sorted(places)
    assert "69.15 ms → 47.15 ms" in words
    assert "train/losses.py:88" in words
    assert "compute 56.00 ms 81 %" in words
    assert "Device memory re-run with: nsysx run --memory -- python train.py" in words
    assert "alpha 2.0 KiB 2.00 GB/s yes" in words
    assert "12.00 ms 5.2 us" not in words


def test_the_alt_text_says_what_the_picture_shows(full_page):
    alts = [image["alt"].replace("\u00a0", " ") for image in Page(full_page).all("img")]
    assert alts[0].startswith("Timeline with 3 CPU lanes above 3 of GPUs. Step 5, typical, a window of 67.00 ms")
    assert alts[1].startswith("GPU 0 (NVIDIA H200): 69.25 ms; compute 56.00 ms (81 %), idle: host sync 6.00 ms (8.7 %)")
    assert "CPU thread main: 69.00 ms; host syncs 40.00 ms (58 %)" in alts[1]


def test_redaction_hides_people_machines_and_arguments(full):
    page = html_page.render(full)
    everything = page + "".join(p.decode("latin-1") for p in pictures(page))
    for secret in ("alice", "hunter2", "build-7", "secret-project"):
        assert secret not in everything
    words = Page(page).words()
    assert "Hidden on this page: home folders, folders of files, options and arguments" in words
    open_page = html_page.render(full, redact=False)
    assert "/home/alice/secret-project/train/losses.py:88" in open_page
    assert "Hidden on this page" not in open_page
    assert "build-7" not in open_page


def test_what_was_not_recorded_is_said_and_never_zero(bare_page):
    words = Page(bare_page).words()
    assert "limit unknown" in words
    missing = re.search(r"Not in this capture (.*?) (?:not recorded: )?[^;]*re-run with nsysx run -t cuda", words)
    assert missing and missing[1].count(";") >= 7, "all that one flag would record stands once, with that flag"
    assert not re.search(r"\b0(\.0+)? (ns|us|ms|s|%)", words.partition("Glossary Calls")[0])
    assert Page(bare_page).all("img") == []


def test_a_long_table_is_folded_and_small(full):
    rows = tuple(factory.kernel_row(f"kernel_{i}<float, {i}>(float*)", (2000 - i) * factory.US) for i in range(1000))
    tables = {**full.tables, "kernels": replace(full.tables["kernels"], rows=rows)}
    page = html_page.render(replace(full, tables=tables))
    assert "950 more rows, see --json or --csv" in Page(page).words()
    assert "kernel_49&lt;" in page
    assert "kernel_50&lt;" not in page
    assert len(page.encode()) < 600_000
    assert len(html_page.render(replace(full, tables=tables), top=1000).encode()) < 1_200_000


def test_ten_thousand_rows_in_every_table_stay_under_the_cap(full, monkeypatch):
    def many(table):
        if not table.rows or table.key in ("gpu_ledger", "cpu_ledger"):
            return table
        first = next(c.name for c in table.columns)
        rows = (table.rows * (10_000 // len(table.rows) + 1))[:10_000]
        if isinstance(rows[0][first], str):
            rows = tuple({**row, first: f"{row[first]}_{i}"} for i, row in enumerate(rows))
        return replace(table, rows=rows)

    large = replace(full, tables={key: many(table) for key, table in full.tables.items()})
    page = html_page.render(large)
    assert len(page.encode()) < 1_000_000
    assert "9,950 more rows, see <code>--json</code> or <code>--csv</code>" in page
    # Whoever asks for more than fits gets as much as fits.
    assert len(html_page._render(large, True, 200, plots.pictures(large)).encode()) > 600_000
    monkeypatch.setattr(html_page, "MOST_PAGE_BYTES", 600_000)
    assert 300_000 < len(html_page.render(large, top=200).encode()) < 600_000


def test_columns_without_data_are_not_drawn(full):
    row = {**full.tables["waits"].rows[0], "saving_ns": None, "moves_to": None}
    tables = {**full.tables, "waits": replace(full.tables["waits"], rows=(row,))}
    (grid,) = (g for g in view.build(replace(full, tables=tables), top=10).grids if g.key == "waits")
    assert {"saving_ns", "moves_to"}.isdisjoint(h.name for h in grid.heads)


def test_a_table_that_says_nothing_of_a_steady_step_is_on_no_page(full):
    def keys(summary):
        return set(re.findall(r'<section id="(\w+)"', html_page.render(summary)))

    row = {**dict.fromkeys(c.name for c in first_calls.COLUMNS), "name": "load", "one_time_ns": 5 * factory.MS}
    table = Table("first_calls", first_calls.TITLE, first_calls.COLUMNS, (row,), shown=first_calls.SHOWN)
    summary = replace(full, tables={**full.tables, "first_calls": table})
    assert "first_calls" not in keys(summary)
    (found, *others) = summary.findings
    paid_once = replace(summary, findings=(found, *others, replace(found, code="NSX103")))
    assert "first_calls" not in keys(paid_once), "what is paid once costs a steady step nothing"
    listed = Also("NSX103", len(summary.findings), "first calls", None, False)
    paid_once = replace(paid_once, answer=replace(summary.answer, also=(*summary.answer.also, listed)))
    assert "first_calls" in keys(paid_once), "a line of the list of what to do is a reason"
    alone = replace(summary, steps=replace(summary.steps, source="capture"))
    assert "first_calls" in keys(alone), "without steps its calls may be what was looked for"


def test_what_a_table_matters_for_exists():
    known = {code for module in analyses.load() for code in module.SHOWN.matters}
    assert known
    assert known <= {rule.RULE.code for rule in findings.rules()} | {limit.value for limit in StepLimit}


def test_the_same_summary_gives_the_same_bytes(full, full_page):
    assert html_page.render(full) == full_page


def test_pictures_say_nothing_and_need_no_home(tmp_path):
    """The drawing library is told to be silent, also where it cannot keep what it learned of the fonts, and warnings are errors."""
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    code = "from tests.render import factory; from nsysx.render import html_page; html_page.render(factory.summary())"
    known = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "MPL"))}
    environment = {**known, "HOME": str(home / "none"), "MPLBACKEND": "module://no_such_backend"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_pictures_the_drawing_library_is_not_imported(tmp_path):
    code = "import sys; from tests.render import factory; from nsysx.render import html_page; html_page.first(factory.summary())"
    code += "; print([m for m in ('matplotlib', 'PIL') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("found", "told"), [(2, "2 more found, worth less; 1 looked for"), (0, "1 looked for")])
def test_the_hint_of_other_findings_names_none_where_there_are_none(found: int, told: str) -> None:
    clear, cannot_tell = (SimpleNamespace(verdict=verdict) for verdict in ("clear", "cannot_tell"))
    shown: Any = SimpleNamespace(findings=(clear, cannot_tell))
    grids: Any = (SimpleNamespace(rows=("row",) * found),)
    hint = html_page._hint_of_contents("all-findings", shown, grids, 1, True)
    assert hint == f"{told} and not found"

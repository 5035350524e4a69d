"""A Summary comes back from its JSON; what is no Summary is said to be none."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from nsysx.answer import answered
from nsysx.errors import NsysxError
from nsysx.model import Capture, Finding, Steps, Summary, Verdict
from nsysx.render import brief, declared_tables, html_page, json_text, markdown, terminal, terminal_answer
from tests.comparing.test_commands import call
from tests.reports import training
from tests.samples import KINDS, NAMES, Samples
from tests.test_cli import nsysx

EMPTY = Summary(
    "0.1.0",
    Capture((), None, None, (), (), None, ()),
    (),
    {},
    Steps("capture", "", 0, None, None, None, ()),
    Verdict("unknown", ""),
    {},
    None,
    None,
)


def values(summary: Summary) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json_text.render(summary))
    return plain


@pytest.mark.parametrize("name", NAMES)
def test_what_comes_back_is_what_was_written(name: str, recorded: Samples) -> None:
    summary = recorded.summary(name)
    back = Summary.from_json(values(summary))
    assert json_text.render(back) == json_text.render(summary)
    assert (back.version, back.verdict, back.unprofiled) == (summary.version, summary.verdict, summary.unprofiled)
    assert (back.quality, back.steps.scope) == (summary.quality, summary.steps.scope)
    assert {key: table.reason for key, table in back.tables.items() if table.rows is None} == {
        key: table.reason for key, table in summary.tables.items() if table.rows is None
    }
    assert {key: table.scope for key, table in back.tables.items()} == {
        key: table.scope for key, table in summary.tables.items()
    }


def kept(summary: Summary) -> tuple[Summary, Summary]:
    """Return a Summary as its JSON has it, without timelines, and that which is read back from the JSON."""
    read = declared_tables.of_json(Summary.from_json(values(summary)))
    return replace(summary, timelines=(), strips=()), read


def shown(render: Callable[[Summary, Console], None], summary: Summary) -> str:
    """Return what a terminal shows."""
    text = io.StringIO()
    render(summary, Console(file=text, width=120))
    return text.getvalue()


@pytest.mark.parametrize("name", NAMES)
def test_every_text_of_the_json_is_that_of_the_report(name: str, recorded: Samples) -> None:
    """Also where the answer is found anew, as for what was tried later: then what only says what to record is no item, too."""
    summary, read = kept(recorded.summary(name))
    assert answered(read).answer == answered(summary).answer
    assert markdown.render(read) == markdown.render(summary)
    assert brief.answer_json(read) == brief.answer_json(summary)
    assert shown(terminal_answer.render, read) == shown(terminal_answer.render, summary)
    assert shown(terminal.render, read) == shown(terminal.render, summary)


@pytest.mark.parametrize("name", KINDS)
def test_the_page_of_the_json_is_that_of_the_report(name: str, recorded: Samples) -> None:
    summary, read = kept(recorded.summary(name))
    assert html_page.render(read) == html_page.render(summary)


def test_a_finding_without_a_known_cause_is_none_of_the_list_when_read_back() -> None:
    finding = Finding("NSX114", "host-stall", "found", "GPU idle", "", unexplained=True)
    _, read = kept(replace(EMPTY, findings=(finding,)))
    assert read.findings == (finding,)


def test_what_a_later_version_added_is_left_out() -> None:
    later = values(EMPTY) | {"added": [{"a": 1}]}
    later["verdict"]["mood"] = "good"
    assert Summary.from_json(later).verdict == EMPTY.verdict


@pytest.mark.parametrize(
    ("change", "slug", "said"),
    [
        ({"schema": "nsysx.summary/2"}, "other-schema", "is nsysx.summary/2, but this nsysx reads nsysx.summary/1"),
        ({"schema": "chrome trace"}, "not-a-summary", "is not a Summary"),
        ({"schema": None}, "not-a-summary", "is not a Summary"),
        ({"tool": None}, "bad-summary", "tool is null, not an object"),
        ({"waits": [1]}, "bad-summary", "waits[0] is 1, not an object"),
        ({"waits": 1}, "bad-summary", "waits is 1, not a list"),
        ({"steps": {}}, "bad-summary", "Summary.steps.source is missing"),
        ({"quality": [{"check": "a", "status": "bad", "detail": ""}]}, "bad-summary", "not ok or warn or missing"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, Any], slug: str, said: str) -> None:
    with pytest.raises(NsysxError) as error:
        Summary.from_json(values(EMPTY) | change, "file.json")
    assert (error.value.slug, error.value.exit_code) == (slug, 3)
    assert error.value.message.startswith("file.json: ")
    assert said in error.value.message


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(values(EMPTY))), anything)
def test_damage_is_an_error_of_its_own(key: str, value: object) -> None:
    try:
        back = Summary.from_json(values(EMPTY) | {key: value})
    except NsysxError:
        return
    back.to_json()


def test_a_report_of_its_json_says_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(*words: object) -> str:
        code, out, err = call(capsys, monkeypatch, "report", *words)
        assert code == 0, err
        return out

    report = training(6).write(tmp_path / "r.sqlite")
    kept, page = tmp_path / "r.json", tmp_path / "r.html"
    asked = ["--section", "waits", "--section", "Kernels", "--section", "verdict"]
    said(report, "--json", kept)
    for words in ([], asked, ["--full"], ["--table", "kernels"], ["--brief", "-"]):
        assert said(kept, *words) == said(report, *words) != ""
    said(kept, "--html", page)
    text = page.read_text(encoding="utf-8")
    assert "<title>" in text and "holds no timelines" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["r.json", "other.sqlite"], "a Summary stands alone"),
        (["r.json", "--steps", "1:2"], "a Summary covers what was chosen when it was written"),
        (["none.json"], "cannot be read"),
    ],
)
def test_what_a_summary_cannot_say(tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "r.json").write_text(json_text.render(EMPTY), encoding="utf-8")
    refused = nsysx("report", *words, cwd=tmp_path)
    assert refused.returncode in (2, 3) and refused.stdout == ""
    assert said in refused.stderr

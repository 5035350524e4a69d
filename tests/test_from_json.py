"""A Summary comes back from its JSON; what is no Summary is said to be none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsysx.errors import NsysxError
from nsysx.model import Capture, Steps, Summary, Verdict
from nsysx.render import json_text
from tests.samples import NAMES, Samples

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

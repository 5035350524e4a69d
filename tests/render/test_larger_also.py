"""The terminal's room: another finding that may save more than what is to be done is never only counted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from nsysx.model import Summary
from nsysx.render import terminal_answer

MS = 1_000_000


@pytest.mark.parametrize(
    ("also_ns", "then_ns", "named"),
    [(48 * MS, 60 * MS, True), (10 * MS, 60 * MS, False), (None, 60 * MS, False), (48 * MS, None, False)],
)
def test_what_saves_more_than_the_advice_is_named(also_ns: int | None, then_ns: int | None, named: bool) -> None:
    also = (SimpleNamespace(saving_ns=also_ns),)
    summary = SimpleNamespace(
        answer=SimpleNamespace(also=also, then_ns=then_ns), step=SimpleNamespace(shown_ns=75 * MS)
    )
    assert terminal_answer._another_saves_more(cast(Summary, summary)) is named

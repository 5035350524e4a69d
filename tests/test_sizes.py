"""Files that a reader can hold: the long ones that are left are listed, and the list can only shrink.

How tangled a function may be is ruff's to say: C901 in pyproject.toml.
"""

from __future__ import annotations

from tests.test_layers import FILES, ids

#: Files that are still too long. An entry that is no longer needed fails.
LONG_FILES: set[str] = set()
MOST_LINES = 400


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    long = {ids(p) for p in FILES if len(p.read_text(encoding="utf-8").splitlines()) > MOST_LINES}
    assert long <= LONG_FILES, f"too long: {sorted(long - LONG_FILES)}"
    assert long >= LONG_FILES, f"no longer too long, take them from the list: {sorted(LONG_FILES - long)}"

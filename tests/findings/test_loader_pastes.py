"""The statement that makes a program's loader keeps what it has when an option is set in it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from nsysx.findings import _loader_pastes

ON = {"persistent_workers": "True"}


@pytest.mark.parametrize(
    ("statement", "paste"),
    [
        (
            'loader = DataLoader(Words(SIZES["clips"]), batch_size=8, num_workers=SIZES["workers"], pin_memory=CUDA)',
            'loader = DataLoader(Words(SIZES["clips"]), batch_size=8, num_workers=SIZES["workers"], pin_memory=CUDA, '
            "persistent_workers=True)",
        ),
        (
            "self.train = data.DataLoader(rows, 8, persistent_workers=keep)",
            "self.train = data.DataLoader(rows, 8, persistent_workers=True)",
        ),
        ("return DataLoader(rows, 8, )", "return DataLoader(rows, 8, persistent_workers=True)"),
        ("loader = DataLoader(wörter, 8)", "loader = DataLoader(wörter, 8, persistent_workers=True)"),
        ("loader = DataLoader(rows, **options)", ""),  # they may hold it
        ("pair = DataLoader(rows), DataLoader(others)", ""),
        ("loader = make_loader(rows)", ""),
        ("loader = DataLoader(rows,", ""),
    ],
)
def test_an_option_is_set_in_the_statement_of_the_program(statement: str, paste: str) -> None:
    assert _loader_pastes.set_in_call(statement, "DataLoader", ON) == paste


def test_a_statement_that_was_not_recorded_has_a_general_one(monkeypatch: pytest.MonkeyPatch) -> None:
    source = {"/job/train.py": {"30": "loader = DataLoader(rows, num_workers=4)", "31": "x = 1"}}
    monkeypatch.setattr(_loader_pastes, "texts", lambda _: source)
    case: Any = SimpleNamespace(profile=None)
    whole = _loader_pastes.with_options(case, "/job/train.py:30", "num_workers=4", persistent_workers="True")
    assert whole == "loader = DataLoader(rows, num_workers=4, persistent_workers=True)"
    for made in ("/job/train.py:31", "/job/train.py:40", None):
        general = _loader_pastes.with_options(case, made, "num_workers=4", persistent_workers="True")
        assert general == "loader = DataLoader(data, num_workers=4, persistent_workers=True)"

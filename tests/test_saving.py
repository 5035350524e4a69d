"""What a change saves, as one record: never above the step, and the same in the JSON of a finding and read back from it."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from nsysx.model import Finding
from nsysx.saving import FINDING_KEYS, Saving
from nsysx.scope import Scope

SCOPE = Scope("replayed", (100,), (0,), 3, 12, 10)
WHOLE = Saving(
    400,
    "Off by 10 ns",
    bound=True,
    error_ns=10,
    most_ns=900,
    mended=Saving(500, most_ns=950),
    source="replay",
    scope=SCOPE,
)


@pytest.mark.parametrize(("step_ns", "likely_ns", "most_ns"), [(1_000, 400, 900), (600, 400, 600), (300, 300, 300)])
def test_no_more_is_saved_than_a_step_takes(step_ns: int, likely_ns: int, most_ns: int) -> None:
    within = WHOLE.within(step_ns)
    assert (within.likely_ns, within.most_ns) == (likely_ns, most_ns)
    assert within.mended == (WHOLE.mended and WHOLE.mended.within(step_ns)), "nor together with what is mended"
    assert replace(within, likely_ns=400, most_ns=900, mended=WHOLE.mended) == WHOLE
    unknown = replace(WHOLE, likely_ns=None, most_ns=None, mended=None)
    assert unknown.within(step_ns) == unknown


def test_what_is_saved_once_what_is_lacking_is_mended() -> None:
    assert (WHOLE.mended_ns, Saving(400).mended_ns) == (500, None)


def test_the_json_of_a_finding_has_each_of_its_fields_and_what_it_saves() -> None:
    own = {f.name for f in fields(Finding)} - {"saving"}
    assert len(FINDING_KEYS) == len(set(FINDING_KEYS))
    assert set(FINDING_KEYS) == own | set(Saving().to_json())
    finding = Finding("NSX102", "launch-bound", "found", "A title", "", saving=WHOLE)
    assert tuple(finding.to_json()) == FINDING_KEYS


def test_the_json_says_what_is_saved_and_gives_it_back() -> None:
    written = WHOLE.to_json()
    assert written == {
        "saving_ns_per_step": 400, "confidence": "Off by 10 ns", "bound": True, "error_ns": 10, "saving_scope": SCOPE.to_json(),
        "unblocked_ns": 500, "unblocked_most_ns": 950, "most_ns": 900, "saving_source": "replay",
    }  # fmt: skip
    assert Saving().to_json()["saving_scope"] is None
    read = Saving.nested({"code": "NSX102", **written})
    assert read["code"] == "NSX102"
    assert read["saving"] == {
        "likely_ns": 400, "confidence": "Off by 10 ns", "bound": True, "error_ns": 10, "scope": SCOPE.to_json(), "most_ns": 900,
        "source": "replay", "mended": {"likely_ns": 500, "most_ns": 950},
    }  # fmt: skip
    assert "mended" not in Saving.nested(Saving(400).to_json())["saving"]
    assert Saving.nested({"code": "NSX102"})["saving"] == {}, "what is not there is not made up"

"""The JSON Schema holds for every sample, and says no to what is no Summary."""

from __future__ import annotations

import copy
import json

import pytest

from nsysx.render import json_text, summary_schema
from tests.samples import NAMES, Samples

jsonschema = pytest.importorskip("jsonschema")


@pytest.mark.parametrize("name", NAMES)
def test_every_sample_is_what_the_schema_says(recorded: Samples, name: str) -> None:
    found = json.loads(json_text.render(recorded.summary(name)))
    schema = dict(summary_schema.schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert [e.message for e in validator.iter_errors(found)][:3] == []
    assert set(found) == set(schema["properties"])
    for broken in ("waits", "steps", "unprofiled"):
        wrong = copy.copy(found)
        wrong[broken] = "text"
        assert not validator.is_valid(wrong)

"""The JSON Schema holds for every sample, and says no to what is no Summary."""

from __future__ import annotations

import copy
import json
import lzma
from pathlib import Path

import pytest

from nsysx.pipeline import summarize
from nsysx.render import json_text, summary_schema

jsonschema = pytest.importorskip("jsonschema")

SAMPLES = Path(__file__).resolve().parents[2] / "sample_reports"


@pytest.mark.parametrize("name", [p.name.removesuffix(".sqlite.xz") for p in sorted(SAMPLES.glob("*.sqlite.xz"))])
def test_every_sample_is_what_the_schema_says(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.sqlite"
    path.write_bytes(lzma.decompress((SAMPLES / f"{name}.sqlite.xz").read_bytes()))
    found = json.loads(json_text.render(summarize([path])))
    schema = dict(summary_schema.schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert [e.message for e in validator.iter_errors(found)][:3] == []
    assert set(found) == set(schema["properties"])
    for broken in ("waits", "steps", "unprofiled"):
        wrong = copy.copy(found)
        wrong[broken] = "text"
        assert not validator.is_valid(wrong)

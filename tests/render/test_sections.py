"""Sections are named as the report names them, and their JSON holds what the Summary has under the same keys."""

from __future__ import annotations

import json

import pytest

from nsysx.errors import NsysxError
from nsysx.render import json_text, sections
from tests.samples import Samples


def test_a_table_is_named_by_its_key_or_its_title(recorded: Samples) -> None:
    summary = recorded.summary("masked_nonzero")
    for key in sections.names(summary):
        assert sections.named(summary, [key, key.upper(), key.replace("_", "-")]) == [key]
        if (table := summary.tables.get(key)) is not None:
            assert sections.named(summary, [table.title]) == [key]


def test_an_unknown_section_names_the_nearest(recorded: Samples) -> None:
    with pytest.raises(NsysxError, match=r"no section is called kernles\. Did you mean kernels\?") as error:
        sections.named(recorded.summary("masked_nonzero"), ["kernles"])
    assert error.value.exit_code == 2


def test_their_json_is_that_of_the_summary(recorded: Samples) -> None:
    summary = recorded.summary("masked_nonzero")
    whole = json.loads(json_text.render(summary))
    part = json.loads(json_text.text_of(sections.to_json(summary, ["verdict", "waits", "gpu_metrics", "ledger"])))
    assert part["schema"] == "nsysx.sections/1"
    assert part["sections"] == ["verdict", "waits", "gpu_metrics", "ledger"]
    for key in ("verdict", "waits", "gpu_metrics", "gpu_ledger", "cpu_ledger"):
        assert part[key] == whole[key]
    assert part["scopes"]["waits"] == whole["scopes"]["waits"]
    assert part["gpu_metrics"] is None and part["missing"]["gpu_metrics"]
    assert "kernels" not in part

"""The error of savings is one figure: what pages, README and document say is the median of the document's own table."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent


def test_the_median_error_of_savings_is_that_of_the_table() -> None:
    document = (ROOT / "nsysx" / "docs" / "what-if.md").read_text(encoding="utf-8")
    rows = [line.split("|")[-2] for line in document.splitlines() if line.startswith("|") and "->" in line]
    errors = [abs(float(error)) for error in rows]
    said = f"{median(errors):.1f} % of the step"
    assert len(errors) == 22
    for path in ("README.md", "nsysx/docs/what-if.md", "nsysx/judging/capture_checks.py"):
        text = " ".join((ROOT / path).read_text(encoding="utf-8").split())
        assert re.search(rf"median (?:error (?:is|of savings is) )?{re.escape(said)}", text), path

"""Numbers in a text checked against a Summary: found within their rounding, or reported as unsupported."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_SCALE = {"ns": 1.0, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9}
_NUMBER = re.compile(r"(?<![\w.])(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)\s*(ns|us|µs|μs|ms|s|%)(?![\w])")


@dataclass(frozen=True)
class Claim:
    """A number in a text with its unit. ``source`` is where the Summary holds it, None if it does not."""

    text: str
    line: int
    source: str | None


def _leaves(value: Any, path: str, steps: int) -> Iterator[tuple[str, str, float]]:
    """Yield (kind, where, value) of every number: kind "ns" (whole and per step) or "share"."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key), steps)
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{i}]", steps)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        last = path.rsplit(".", 1)[-1].split("[")[0]
        if last.endswith("_ns") or "_causes." in path or ".ns[" in path:
            yield "ns", path, float(value)
            if steps > 1:
                yield "ns", f"{path} per step", value / steps
        elif "share" in last or last in ("gpu_busy", "error", "spread"):
            yield "share", path, 100.0 * value


def check(text: str, summary: Mapping[str, Any]) -> list[Claim]:
    """Return the times and percentages in a text in order, each with its place in the Summary.

    A number is found if a figure rounds to it at the number's own digits; the first such figure is named.
    """
    steps = (summary.get("steps") or {}).get("steady")
    count = steps[1] - steps[0] + 1 if steps else 1
    known = list(_leaves({k: v for k, v in summary.items() if k != "step_parts"}, "", count))
    # A share of the step is a figure too, though no key holds it.
    for row in summary.get("gpu_ledger") or ():
        whole = row.get("window_ns")
        parts = {**row, **(row.get("idle_causes") or {})}
        for k, v in parts.items():
            if whole and isinstance(v, (int, float)) and k != "process":
                known.append(("share", f"gpu_ledger {k} / window_ns", 100.0 * v / whole))
    claims = []
    for n, line in enumerate(text.splitlines(), 1):
        for match in _NUMBER.finditer(line):
            digits = match[1].replace(",", "")
            half = 0.5 * 10.0 ** -len(digits.partition(".")[2])
            kind, scale = ("share", 1.0) if match[2] == "%" else ("ns", _SCALE[match[2]])
            wanted = float(digits)
            near = (where for k, where, v in known if k == kind and abs(v / scale - wanted) <= half * (1 + 1e-9))
            claims.append(Claim(match[0], n, next(near, None)))
    return claims

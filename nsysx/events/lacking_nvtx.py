"""Whether the program's Python lacks the package nvtx, without which no range has a domain of its own: no line of code is noted then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: What is missing, and what to do about it.
LACKS_NVTX, INSTALL_NVTX = "the program's Python has no package nvtx", "pip install nvtx"


def lacks_nvtx(probes: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the probe pushed a process's ranges by torch, since it could not import the package."""
    return any(p.get("backend") == "torch" and p.get("nvtx") is None and p.get("reason") for p in probes)

"""Python objects that one rank sends to the others: whether they are weights or a batch, by the lines around that make or use them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from nsysx.analyses.lines import text_of, texts
from nsysx.events.profile import Profile
from nsysx.findings._finding_bounds import LINES_TO_A_READ
from nsysx.findings._fix import Fix

#: What is said about copies, waits and communication of a line that sends objects, and of one whose objects are weights.
SENT = Fix.by_name("tensors-sent")
#: What is said where they are what all ranks train on.
OWN_DATA = Fix.by_name("own-part-of-data")
_SENDS = re.compile(r"\bbroadcast_object_list\(\s*(?:object_list\s*=\s*)?(?P<name>\[.*|\w+)")
_WEIGHTS = re.compile(r"(?i)state_dict|parameters\(|^(\w*weights|params|state|sd)$")
_BATCH = re.compile(r"(?i)\bnext\(|\b\w*(batch|loader|images?|feed|samples?|pixel\w*|input_ids|tokens)\b")


def sends_objects(text: str) -> bool:
    """Return whether a line sends Python objects to all ranks: they are pickled and copied through the CPU."""
    return _SENDS.search(text) is not None


def what_is_sent(profile: Profile, file: str | None, line: int | None) -> Literal["weights", "batch", ""]:
    """Return what the objects are that a line sends, by itself and by the lines near it that name them; "" where none says."""
    source = texts(profile)
    sending = _SENDS.search(text_of(source, file, line) or "")
    if sending is None or not file or not line:
        return ""
    name = sending["name"]
    told = [name] if name.startswith("[") else _lines_with(source, file, line, name)
    if any(map(_WEIGHTS.search, told)):
        return "weights"
    return "batch" if any(map(_BATCH.search, told)) else ""


def _lines_with(source: Mapping[str, Any], file: str, line: int, name: str) -> list[str]:
    """Return the lines near a line that name what it sends, and the name itself."""
    near = (
        text_of(source, file, n) or "" for n in range(line - LINES_TO_A_READ, line + LINES_TO_A_READ + 1) if n != line
    )
    return [name, *(text for text in near if re.search(rf"\b{re.escape(name)}\b", text))]


def of_objects(profile: Profile, file: str | None, line: int | None, fix: Fix | None) -> Fix | None:
    """Return what to do about a line, where it sends objects by what they are: weights go as tensors, and a batch each rank can read."""
    return SENT if fix is not None and what_is_sent(profile, file, line) == "weights" else fix

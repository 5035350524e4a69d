"""The program's own calls of fully_shard, with one option changed: what is told leaves its mesh, its policy and its units as they are."""

from __future__ import annotations

import re

from nsysx.analyses import lines
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case
from nsysx.findings._costly_jobs import sharded

_CALL = re.compile(r"\bfully_shard\(\s*[\w.]+((?:\s*,\s*\w+\s*=\s*[^,()]+(?:\([^()]*\))?)*)\s*,?\s*\)")
_RESHARDS = re.compile(r"\s*,\s*reshard_after_forward\s*=\s*[\w.]+")
_POLICY = re.compile(r"\bMixedPrecisionPolicy\([^()]*\)")
_REDUCES = re.compile(r"\breduce_dtype\s*=\s*(?:torch\.)?float32\b")


def _texts(case: Case, settings: RecordedSettings) -> dict[int, str]:
    """Return the noted lines of the file that shards first, in order; none where that is not known."""
    file = settings.place("FSDP").get("file")
    if not file:
        return {}
    noted = {**lines.texts(case.profile).get(file, {}), **lines.texts_of_ranks(case.profile).get(file, {})}
    return {int(line): str(text) for line, text in sorted(noted.items(), key=lambda each: int(each[0]))}


def call_for_block(case: Case, settings: RecordedSettings, option: str = "", block: str = "block") -> str:
    """Return the call that makes a block a unit as the program shards now, and with an option: its options, as far as they are known.

    ``block``: what the program calls the block, or a list of some that are one unit.
    """
    call = _CALL.search(_texts(case, settings).get(settings.place("FSDP").get("line", 0), ""))
    if call is not None:
        options = _RESHARDS.sub("", call[1]) if option else call[1]
        return f"fully_shard({block}{options}{f', {option}' if option else ''})"
    rows = sharded(settings)
    given = {
        "mesh=mesh": any(row.get("mesh_names") for row in rows),
        "mp_policy=policy": any(row.get("parameter_dtype") or row.get("reduce_dtype") for row in rows),
        "offload_policy=offload_policy": any(row.get("offload") is True for row in rows),
    }
    return f"fully_shard({', '.join(filter(None, (block, *(each for each, is_so in given.items() if is_so), option)))})"


def reduced_as_bfloat16(case: Case, settings: RecordedSettings, policy: str) -> str:
    """Return the program's own policy, that reduces in bfloat16; else ``policy`` and where it stands."""
    for text in _texts(case, settings).values():
        own_policy = _POLICY.search(text)
        if own_policy is not None and _REDUCES.search(own_policy[0]):
            return _REDUCES.sub("reduce_dtype=torch.bfloat16", text)
    return f"policy = {policy}\n# mp_policy=policy in each fully_shard() of now; their other options stay"

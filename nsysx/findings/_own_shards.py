"""The program's own calls of fully_shard, with one option changed: what is told leaves its mesh, its policy and its units as they are."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import replace

from nsysx.advice import Alternative
from nsysx.analyses import lines
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case
from nsysx.findings._costly_jobs import sharded
from nsysx.findings._pieces_in_text import function_of_call, parsed
from nsysx.findings._work_bounds import MOST_PASTED_LINES

_CALL = re.compile(r"\bfully_shard\(\s*[\w.]+((?:\s*,\s*\w+\s*=\s*[^,()]+(?:\([^()]*\))?)*)\s*,?\s*\)")
_HANDED_ON = re.compile(r"\bfully_shard\(\s*[\w.]+\s*,\s*\*\*([\w.]+)\s*\)")
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
    text = _texts(case, settings).get(settings.place("FSDP").get("line", 0), "")
    call, handed_on = _CALL.search(text), _HANDED_ON.search(text)
    if handed_on is not None:  # options from elsewhere, this one perhaps among them
        name, _, value = option.partition("=")
        options = f"{{**{handed_on[1]}, {name!r}: {value}}}" if option else handed_on[1]
        return f"fully_shard({block}, **{options})"
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


def with_policy(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy, that with the program's own calls of fully_shard, each given the policy, where these are known."""
    settings = settings_of(case.profile)
    calls = (
        [] if settings is None or not settings.wrappers("fully_shard") else calls_with_policy(_texts(case, settings))
    )
    first = remedy.paste.partition("\n")[0]
    return title, replace(remedy, paste="\n".join((first, *calls))) if calls else remedy


def calls_with_policy(texts: Mapping[int, str]) -> list[str]:
    """Return the lines that shard, given ``policy``; nothing where one has a policy of its own."""
    changed = list[str]()
    for _, text in sorted(texts.items()):
        tree = parsed(text.partition("  #")[0].strip())
        if tree is None:
            continue
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call) or function_of_call(call) != "fully_shard":
                continue
            if any(each.arg == "mp_policy" for each in call.keywords):
                return []
            handed_on = next((each for each in call.keywords if each.arg is None), None)
            if handed_on is None:
                call.keywords.append(ast.keyword("mp_policy", ast.Name("policy")))
            else:
                handed_on.value = ast.parse(
                    f"{{**{ast.unparse(handed_on.value)}, 'mp_policy': policy}}", mode="eval"
                ).body
            changed.append(ast.unparse(tree))
    return list(dict.fromkeys(changed))[:MOST_PASTED_LINES]

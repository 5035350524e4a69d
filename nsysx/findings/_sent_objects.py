"""Python objects that one rank sends to the others: whether they are weights, a batch or a plan, by lines that make or use them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from nsysx.analyses.lines import text_of, texts
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._finding_bounds import LINES_TO_A_READ
from nsysx.findings._fix import Fix

#: What is said about copies, waits and communication of a line that sends objects, and of one whose objects are weights.
SENT = Fix.by_name("tensors-sent")
#: What is said where they are what all ranks train on.
OWN_DATA = Fix.by_name("own-part-of-data")
#: What is said of whole weights that are gathered for another network, and not to be saved.
GENERATOR = Fix.by_name("weights-to-generator")
_GATHERED = ("shards-saved", "shards-kept")
_SAVES = re.compile(r"\b\w*save\w*\(")
#: What is said of them where nothing is trained, and they are no data: a plan, or the next tokens, for ranks that share a network.
PLAN = Fix.by_name("plan-as-tensor")
_READ = re.compile(r"(?i)\bnext\(|loader|dataset|reader")
#: What loads into a network.
_LOADED = re.compile(r"(?i)\b(load|set)_(model_)?(state_dict|weights)\(|\.data\.copy_\(|\bparam\w*(\[\w+\])?\.copy_\(")
#: What gathers the weights of a network, and what sets those of another one, each with the network.
_TAKEN = re.compile(r"\bget_model_state_dict\(\s*(?:model\s*=\s*)?(?P<network>[\w.]+)\s*[,)]")
_GIVEN = re.compile(
    r"\bset_model_state_dict\(\s*(?:model\s*=\s*)?(?P<network>[\w.]+)\s*,|(?P<loading>[\w.]+)\.load_state_dict\("
)
_GROUP = re.compile(r"\bgroup\s*=\s*(?P<group>[\w.]+(?:\(\w*\))?)")
_SENDS = re.compile(r"\bbroadcast_object_list\(\s*(?:object_list\s*=\s*)?(?P<name>\[.*|\w+)")
_WEIGHTS = re.compile(r"(?i)state_dict|parameters\(|^(\w*weights|params|state|sd)$")
_BATCH = re.compile(r"(?i)\bnext\(|\b\w*(batch|loader|images?|feed|samples?|pixel\w*|input_ids|tokens)\b")


def sends_objects(text: str) -> bool:
    """Return whether a line sends Python objects to all ranks: they are pickled and copied through the CPU."""
    return _SENDS.search(text) is not None


def what_is_sent(profile: Profile, file: str | None, line: int | None) -> Literal["weights", "batch", "plan", ""]:
    """Return what the objects are that a line sends, by itself and by the lines near it that name them; "" where none says.

    A program that trains nothing sends plans and tokens to ranks that share its network, unless it reads what it sends from data.
    """
    source = texts(profile)
    sending = _SENDS.search(text_of(source, file, line) or "")
    if sending is None or not file or not line:
        return ""
    name = sending["name"]
    told = [name] if name.startswith("[") else _lines_with(source, file, line, name)
    if any(_WEIGHTS.search(text) or _LOADED.search(text) for text in told):
        return "weights"
    if not _trains(profile):
        return "batch" if any(map(_READ.search, told)) else "plan"
    return "batch" if any(map(_BATCH.search, told)) else ""


def _trains(profile: Profile) -> bool:
    """Return whether the program trains something; True where that is not known."""
    settings = settings_of(profile)
    return settings is None or settings.number("backwards") != 0 or bool(settings.rows("optimizers"))


def _lines_with(source: Mapping[str, Any], file: str, line: int, name: str) -> list[str]:
    """Return the lines near a line that name what it sends, and that made what these put into it; and the name itself."""
    near = {
        n: text_of(source, file, n) or ""
        for n in range(line - LINES_TO_A_READ, line + LINES_TO_A_READ + 1)
        if n != line
    }
    whole = [name, *(text for text in near.values() if re.search(rf"\b{re.escape(name)}\b", text))]
    before, names = [text for n, text in near.items() if n < line], [name]
    for each in names:
        made = [text for text in before if re.search(rf"(^|;)\s*{re.escape(each)}\s*=(?!=)", text)]
        whole += [text for text in made if text not in whole]
        inside = (
            word for text in made for word in re.findall(r"(?<![\w.])[A-Za-z_]\w*(?![\w(=])", text.partition("=")[2])
        )
        names += [word for word in dict.fromkeys(inside) if word not in names]
    return whole


def as_tensor(profile: Profile, file: str | None, line: int | None) -> Fix:
    """Return the advice about plans, with the group of the line."""
    group = _GROUP.search(text_of(texts(profile), file, line) or "")
    return PLAN if group is None else PLAN.but(paste=PLAN.paste.replace("group=group", f"group={group['group']}"))


def _for_another_network(profile: Profile, file: str | None, line: int | None) -> bool:
    """Return whether lines behind one that gathers weights load them into a network, or send them to one, and none saves them."""
    source = texts(profile)
    behind = [text_of(source, file, (line or 0) + n) or "" for n in range(1 + LINES_TO_A_READ)]
    if sends_objects(behind[0]):
        return False
    loaded = any(_LOADED.search(text) or sends_objects(text) for text in behind)
    return loaded and not any(map(_SAVES.search, behind))


def _between_networks(profile: Profile, file: str | None, line: int | None) -> Fix:
    """Return the advice with the names of both networks, where lines of torch's state dicts near a line say them."""
    source = texts(profile)
    near = [text_of(source, file, (line or 0) + n) or "" for n in range(-LINES_TO_A_READ, 1 + LINES_TO_A_READ)]
    taken = next((match["network"] for text in near if (match := _TAKEN.search(text))), "")
    given = next((match["network"] or match["loading"] for text in near if (match := _GIVEN.search(text))), "")
    if not taken or not given:
        return GENERATOR
    return GENERATOR.but(
        paste=f"target = dict({given}.named_parameters())\n"
        "with torch.no_grad():\n"
        f"    for name, p in {taken}.named_parameters():  # all ranks, in the same order\n"
        "        target[name].copy_(p.detach().to(target[name].dtype).full_tensor())  # cast before the gather"
    )


def _sets_what_was_taken(profile: Profile, file: str | None, line: int | None) -> bool:
    """Return whether a line sets the weights of a network that lines before it have gathered from another one."""
    source = texts(profile)
    before = [text_of(source, file, (line or 0) - n) or "" for n in range(1, 1 + LINES_TO_A_READ)]
    return _GIVEN.search(text_of(source, file, line) or "") is not None and any(map(_TAKEN.search, before))


def of_objects(profile: Profile, file: str | None, line: int | None, fix: Fix | None) -> Fix | None:
    """Return what to do about a line, where it sends objects by what they are: weights and plans go as tensors, a batch each rank reads."""
    gathers = fix is not None and fix.ways and fix.ways[0].name in _GATHERED
    if (gathers and _for_another_network(profile, file, line)) or _sets_what_was_taken(profile, file, line):
        return _between_networks(profile, file, line)
    sent = "" if fix is None else what_is_sent(profile, file, line)
    return SENT if sent == "weights" else as_tensor(profile, file, line) if sent == "plan" else fix

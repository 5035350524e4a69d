"""The call of a program's network whose pictures would be in channels last, in its own words: where they come in is where to change it."""

from __future__ import annotations

import ast
from typing import NamedTuple

from nsysx.analyses.lines import text_of, texts
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import file_and_line, settings_of
from nsysx.findings._freezing_pastes import network_name
from nsysx.findings._pieces_in_text import whole_statement
from nsysx.model import Row

_LAYOUT = "memory_format=torch.channels_last"


class CallOfNetwork(NamedTuple):
    """Where the only network of a program is called, and the lines that keep it and what it is given in channels last."""

    where: Row
    paste: str


def call_of_network(profile: Profile) -> CallOfNetwork | None:
    """Return the call of the network; None for several networks or calls, and where its line does not say what it is given."""
    settings = settings_of(profile)
    rows = list((settings.rows("inputs") if settings is not None else None) or ())
    where = file_and_line(rows[0].get("place")) if len(rows) == 1 else {}
    name = network_name(profile, otherwise="")
    text = text_of(texts(profile), where["file"], where["line"]) if where and name else None
    called = _with_layout(text or "", name)
    if not called:
        return None
    return CallOfNetwork(dict(where), f"{name} = {name}.to({_LAYOUT})  # where it is made\n{called}")


def _with_layout(text: str, name: str) -> str:
    """Return a statement in which what the network is given first is in channels last, "" where it is not called so."""
    statement = whole_statement(text)
    if statement is None:
        return ""
    calls = [each for each in ast.walk(statement) if isinstance(each, ast.Call) and ast.unparse(each.func) == name]
    if len(calls) != 1 or not calls[0].args or isinstance(calls[0].args[0], ast.Starred):
        return ""
    given = ast.unparse(calls[0].args[0])
    simple = isinstance(calls[0].args[0], ast.Name | ast.Attribute | ast.Subscript | ast.Call)
    calls[0].args[0] = ast.parse(f"{given if simple else f'({given})'}.to({_LAYOUT})", mode="eval").body
    return ast.unparse(statement)

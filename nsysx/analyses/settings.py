"""The settings of the program that change its speed, one row each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypedDict

import polars as pl

from nsysx.events.attention_backends import attention_calls
from nsysx.events.operator_flow import flow_of
from nsysx.events.profile import NotRecorded, Profile
from nsysx.events.recorded_settings import settings_of
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of

KEY = "settings"
TITLE = "Settings of the program"


class SettingRow(TypedDict):
    """One setting."""

    group: Annotated[
        str,
        Of("what it belongs to: environment, switches, optimizers, loaders, ..., and attention: what its calls chose"),
    ]
    setting: Annotated[str, Of("its name; objects of one kind are numbered from 0")]
    value: Annotated[
        str | None, Of("its value as JSON, text as it is; null where this torch or this system cannot tell")
    ]


COLUMNS = columns_of(SettingRow)
ROWS: TableOf[SettingRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="whole",
    place=250,
    group="experts",
    intro=(
        "Read once inside the program, in one step: what changes speed. Variables of the environment have values only where these say "
        "nothing about the machine."
    ),
    first=("group", "setting", "value"),
    unknown="not known",
    depth=2,
    stepless=True,
)
#: What is about the reading itself, and lines of the program, which are no settings.
_OWN = ("step", "took_ns", "saves", "places", "numbers")


def _flattened(name: str, value: Any) -> Iterator[tuple[str, str | None]]:
    """Yield each setting below a value with its name."""
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from _flattened(f"{name}.{key}" if name else str(key), below)
    elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        for number, item in enumerate(value):
            yield from _flattened(f"{name}[{number}]" if name else f"[{number}]", item)
    else:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield name, None if value is None else text


def table(profile: Profile) -> pl.DataFrame:
    """Return a row per setting, in the order in which they were read. Raises NotRecorded."""
    settings = settings_of(profile)
    if settings is None:
        raise NotRecorded("the settings of the program were not read", "nsysx run -- CMD")
    rows = [
        (str(group), name or str(group), value)
        for group, below in settings.record.items()
        if group not in _OWN
        for name, value in _flattened("", below)
    ]
    flow = flow_of(profile)
    attention = [] if flow is None else [calls.facts() for calls in attention_calls(flow)]
    rows += [("attention", name, value) for name, value in _flattened("", attention) if attention]
    return pl.DataFrame(rows, schema={c.name: pl.String for c in COLUMNS}, orient="row")

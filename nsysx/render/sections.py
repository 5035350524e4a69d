"""The sections of a report by name: what ``--section`` takes, and their JSON, ``nsysx.sections/1``."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from nsysx.errors import EXIT_USAGE, NsysxError
from nsysx.model import Summary
from nsysx.render import view
from nsysx.render.safe_text import clean

SECTIONS_SCHEMA = "nsysx.sections/1"

#: Sections that are no tables, each with its keys in the Summary; those of the ledgers are known by the tables.
_KEYS = {
    "verdict": ("verdict",),
    "first": ("answer",),
    "steps": ("steps", "unprofiled"),
    "ledger": (),
    "findings": ("findings",),
    "quality": ("quality",),
}


def names(summary: Summary) -> list[str]:
    """Return the names of all sections in the order in which they are shown."""
    ledgers = view.ledger_keys(summary)
    return [*_KEYS, *(key for key in summary.tables if key not in ledgers)]


def named(summary: Summary, asked: Iterable[str]) -> list[str]:
    """Return the sections that are meant: by name, or by the title of a table, in any case. Raises NsysxError, exit code 2."""
    every = names(summary)
    by_title = {_plain(summary.tables[key].title): key for key in every if key in summary.tables}
    meant = {**by_title, **{_plain(name): name for name in every}}
    chosen = []
    for text in asked:
        if (name := meant.get(_plain(text))) is None:
            close = difflib.get_close_matches(_plain(text), meant, n=1)
            probably = f"Did you mean {meant[close[0]]}? " if close else ""
            what = f"no section is called {clean(text, 60)}"
            hint = f"{probably}There are: {', '.join(every)}"
            raise NsysxError(what, slug="section-unknown", hint=hint, exit_code=EXIT_USAGE)
        chosen.append(name)
    return list(dict.fromkeys(chosen))


def to_json(summary: Summary, asked: Sequence[str]) -> dict[str, Any]:
    """Return the sections as plain values under their keys in the Summary, with what their sums cover.

    ``missing`` says why a table is null. Raises NsysxError, exit code 2, for a section that does not exist.
    """
    chosen = named(summary, asked)
    whole = summary.to_json()
    keys = [
        key for name in chosen for key in (view.ledger_keys(summary) if name == "ledger" else _KEYS.get(name, (name,)))
    ]
    return {
        "schema": SECTIONS_SCHEMA,
        "tool": whole["tool"],
        "sections": chosen,
        **{key: whole[key] for key in keys},
        "scopes": {key: scope for key, scope in whole["scopes"].items() if key in keys},
        "missing": {
            k: summary.tables[k].reason for k in keys if k in summary.tables and summary.tables[k].rows is None
        },
    }


def _plain(text: str) -> str:
    return " ".join(text.casefold().replace("_", " ").replace("-", " ").split())

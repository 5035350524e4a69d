"""CUDA calls, PyTorch operations and the words of a report in plain language, for the page and for ``nsysx explain``.

The text is data: ``glossary.toml`` beside this file, read once, when the first name is looked up.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

#: What is explained, in the order of ``nsysx explain``: CUDA calls, PyTorch operations, words of a report.
KINDS = ("call", "operation", "word")


@dataclass(frozen=True, slots=True)
class GlossaryEntry:
    """One explained name. ``kind`` is one of KINDS; ``normal`` and ``cheaper`` are empty where none apply."""

    name: str
    kind: str
    what: str
    normal: str = ""
    cheaper: str = ""
    aliases: tuple[str, ...] = ()


@cache
def entries() -> tuple[GlossaryEntry, ...]:
    """Return all entries, in the order of the file."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    text = tomllib.loads((files("nsysx.render") / "glossary.toml").read_text(encoding="utf-8"))
    return tuple(GlossaryEntry(kind=k, **{**e, "aliases": tuple(e.get("aliases", ()))}) for k in KINDS for e in text[k])


@cache
def _by_name() -> Mapping[str, GlossaryEntry]:
    return {name.lower(): entry for entry in entries() for name in (entry.name, *entry.aliases)}


_SUFFIX = re.compile(r"(?:_v\d+|_ptsz|_ptds)+$")


def lookup(name: str) -> GlossaryEntry | None:
    """Return the entry for a CUDA call (with any version suffix), an operation or a word of the report, else None."""
    bare = _SUFFIX.sub("", name.strip())
    return _by_name().get(bare.lower()) or _by_name().get(re.sub(r"_v\d+", "", bare).lower())


def nearest(name: str) -> list[str]:
    """Return up to five explained names similar to ``name``, the most similar first."""
    import difflib

    close = difflib.get_close_matches(_SUFFIX.sub("", name.strip()).lower()[:200], list(_by_name()), n=10, cutoff=0.5)
    names = dict.fromkeys(_by_name()[key].name for key in close)
    return list(names)[:5]


def manual(entry: GlossaryEntry) -> str:
    """Return an entry as text for a terminal: its name, what it does, when that is normal, what makes it cheaper."""
    import textwrap

    parts = [entry.name if not entry.aliases else f"{entry.name}  (also {', '.join(entry.aliases)})"]
    for title, text in (("", entry.what), ("When it is normal: ", entry.normal), ("Cheaper: ", entry.cheaper)):
        if text:
            parts.append(textwrap.fill(title + text, width=100, initial_indent="  ", subsequent_indent="  "))
    return "\n".join(parts)


def key(name: str) -> str:
    """Return the anchor of ``name`` in the glossary, "" where it is not explained. It is made of our own words only."""
    entry = lookup(name)
    return anchor(entry) if entry else ""


def anchor(entry: GlossaryEntry) -> str:
    """Return the id of an entry on the page."""
    return "g-" + re.sub(r"[^A-Za-z0-9_-]", "-", entry.name)


_TAG, _WORD = re.compile(r"<[^>]*>"), re.compile(r"[A-Za-z0-9_.()-]+")


def explained(page: str, anchors: Iterable[str]) -> tuple[GlossaryEntry, ...]:
    """Return the entries that something on a page leads to (``anchors``), and the words that its text uses."""
    text = f" {' '.join(_WORD.findall(_TAG.sub(' ', page))).lower()} "
    wanted = set(anchors)

    def says(name: str) -> bool:
        return any(f" {name.lower()}{plural} " in text for plural in ("", "s"))

    return tuple(
        e for e in entries() if anchor(e) in wanted or (e.kind == "word" and any(map(says, (e.name, *e.aliases))))
    )

"""What an explained name has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One explained name. ``kind`` is ``call``, ``word`` or ``operation``; ``normal`` and ``cheaper`` are empty where none apply."""

    name: str
    kind: str
    what: str
    normal: str = ""
    cheaper: str = ""
    aliases: tuple[str, ...] = ()

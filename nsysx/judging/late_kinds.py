"""The kinds of GPU work that a rank has more of than its peers, in words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from nsysx.catalogue import FAMILIES


def of_family(kind: Mapping[str, Any]) -> str:
    """Return a kind of work of the column ``late_work``."""
    return FAMILIES.get(kind["kind"], f"{kind['kind']} kernels")


def of_row(kind: Mapping[str, Any]) -> str:
    """Return a kind of work of the column ``late_work``, and the line that launches it where that is known."""
    name = of_family(kind)
    return f"{name}, {PurePath(kind['file']).name}:{kind['line']}" if kind["file"] else name


def with_kernels(kind: Mapping[str, Any]) -> str:
    """Return the same with the way in which its kernels differ, where that is known."""
    return f"{of_row(kind)} (kernels {kind['how']})" if kind["how"] else of_row(kind)

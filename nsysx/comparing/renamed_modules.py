"""The same module under another name: wrappers come and go, and modules are renamed in place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from nsysx.comparing.comparing_bounds import MOST_INDEX_DIGITS

#: Names that wrappers add to a path: torch.compile, DistributedDataParallel, FSDP, activation checkpointing.
_WRAPPERS = {"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"}
_PLACES = re.compile(r"\d+")


class _HasClass(Protocol):
    @property
    def cls(self) -> str | None: ...


def plain(path: str) -> str:
    """Return a module's path without the names that wrappers add; a path of wrappers only stays as it is."""
    kept = [p for p in path.split(".") if p not in _WRAPPERS]
    return ".".join(kept) if kept else path


def modules_of(captures: Iterable[Mapping[str | None, _HasClass]]) -> dict[str, str | None]:
    """Return path -> class of all captures, in order."""
    classes: dict[str, str | None] = {}
    for series in captures:
        for path, s in series.items():
            if path is not None and (classes.get(path) is None):
                classes[path] = s.cls
    return classes


def align(have: Mapping[str, str | None], want: Mapping[str, str | None]) -> dict[str, str]:
    """Return for each module of ``have`` its name in ``want``; one without a counterpart keeps its name.

    Modules are matched by path without wrappers; then those left on both sides by class and place: the k-th of a class at a
    depth matches the k-th on the other side, if both sides have equally many left.
    """
    matched = {path: path for path in have if path in want}
    taken = set(matched.values())
    by_plain: dict[str, list[str]] = {}
    for path in want:
        if path not in taken:
            by_plain.setdefault(plain(path), []).append(path)
    for path in have:
        if path not in matched and (options := by_plain.get(plain(path))):
            matched[path] = options.pop(0)
    taken = set(matched.values())
    ours = _by_place([p for p in have if p not in matched], have)
    theirs = _by_place([p for p in want if p not in taken], want)
    for key, paths in ours.items():
        others = theirs.get(key, [])
        if len(paths) == len(others):
            matched |= dict(zip(sorted(paths, key=_natural), sorted(others, key=_natural), strict=True))
    return {path: matched.get(path, path) for path in have}


def _by_place(paths: Sequence[str], cls: Mapping[str, str | None]) -> dict[tuple[str, int], list[str]]:
    """Return (class, depth) -> paths; paths without a class are left out, because only their names identify them."""
    by_place: dict[tuple[str, int], list[str]] = {}
    for path in paths:
        if (name := cls[path]) is not None:
            by_place.setdefault((name, plain(path).count(".")), []).append(path)
    return by_place


def _natural(path: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts layer.10 after layer.9."""
    return [
        (0, int(p), "") if _PLACES.fullmatch(p) and len(p) < MOST_INDEX_DIGITS else (1, 0, p) for p in path.split(".")
    ]

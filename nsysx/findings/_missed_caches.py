"""Caches of the program's own that never find what they keep: each step makes their entries again, and copies them to the GPU.

The test asks for one key and the entry is stored under another one (`_cache_texts`), and in each step of the X-ray what the test lets run
ran as often as the test itself. Where the sizes of what is copied change from step to step, new entries may be needed, and nothing is said.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from nsysx.analyses import lines
from nsysx.events import line_runs, sampled_stacks
from nsysx.events.line_shares import driver
from nsysx.events.profile import Profile
from nsysx.findings._cache_texts import UnlikeKeys, caches_with_unlike_keys, empties
from nsysx.findings._case import Case, Fix
from nsysx.findings._made_again import MadeAgain, calls_below, copies_alike
from nsysx.findings._numbers_of_lines import counts_steps

#: What is said about such a cache.
NAME = "one-cache-key"


class MissedCache(NamedTuple):
    """A cache of a function of ``file`` that never hits, and the places of the lines that make its entries ``often`` times in a step."""

    file: str
    function: str
    keys: UnlikeKeys
    places: frozenset[int]
    often: float


def caches_made_again(case: Case) -> list[MadeAgain]:
    """Return the caches that never hit."""
    code = case.profile.code()
    if code is None:
        return []
    missed = case.profile.once(_missed)
    return [_in_words(cache) for cache in missed if copies_alike(case, calls_below(case, code, cache.places))]


def _missed(profile: Profile) -> list[MissedCache]:
    code, source = profile.code(), lines.texts(profile)
    assert code is not None
    functions: dict[tuple[str, str], dict[int, int]] = {}  # place of each line
    for line_row, (file, line, function) in enumerate(code.places.iter_rows()):
        if file in source and line is not None and not sampled_stacks.is_library(file):
            functions.setdefault((file, str(function)), {})[line] = line_row
    runs, missed = profile.once(line_runs.of_lines), list[MissedCache]()
    for (file, function), place_of in functions.items():
        texts = {line: text for line in place_of if isinstance(text := source[file].get(str(line)), str)}
        for keys in caches_with_unlike_keys(texts):
            guard, store = place_of[keys.guard], place_of[keys.store]
            emptied = any(empties(text, keys.cache) for text in source[file].values() if isinstance(text, str))
            new_keys = counts_steps(keys.stored) or counts_steps(keys.asked)
            if emptied or new_keys or not _runs_each_time(profile, guard, store):
                continue
            places = frozenset(place_of[line] for line in keys.lines)
            missed.append(MissedCache(file, function, keys, places, float(runs.runs[store])))
    return missed


def _runs_each_time(profile: Profile, guard: int, store: int) -> bool:
    """Return whether what a test lets run ran each time that the test did, in each step in which lines were noted."""
    thread = driver(profile)
    if thread is None:
        return False
    tests, stores = (line_runs.begins(profile, line_row, thread) for line_row in (guard, store))
    behind = np.searchsorted(stores, np.append(tests, np.iinfo(np.int64).max))
    each_time = len(tests) > 0 and bool((np.diff(behind) > 0).all())
    steps = line_runs.noted_steps(profile)
    within = set(np.searchsorted(steps, stores, side="right").tolist())
    return each_time and within >= set(range(1, len(steps) + 1))


def _in_words(cache: MissedCache) -> MadeAgain:
    keys, name = cache.keys, PurePath(cache.file).name
    there, store = f"{name}:{keys.guard}", f"{name}:{keys.store}"
    often = f", {cache.often:.0f} times" if cache.often >= 2 else ""
    why = (
        f"What the test of `{keys.cache}` lets run ran as often as the test in each step of the X-ray{often}: {store} stores under another "
        "key than the test asks for."
    )
    text = (
        f"Ask for the key under which the entry is stored: the cache of {there} is filled anew in each step, as its test asks for "
        f"`{keys.asked}`, and {store} stores the entry under `{keys.stored}`"
    )
    return MadeAgain(
        cache.places,
        f"The cache of {there} is filled anew in each step: asked for `{keys.asked}`, stored under `{keys.stored}`",
        why,
        Fix.by_name(NAME, text=text, paste=keys.paste),
        {"file": cache.file, "line": keys.guard},
    )

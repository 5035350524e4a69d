"""Numbers as text: the only place where nanoseconds become microseconds, milliseconds or seconds."""

from __future__ import annotations

import re


def duration(ns: float | None) -> str:
    """Return ``ns`` nanoseconds in a unit that keeps three or four digits, "-" for None."""
    if ns is None:
        return "-"
    size = abs(ns)
    # What would be rounded to 1000 of a unit is 1 of the next.
    if size < 999.5:
        return f"{ns:.0f} ns"
    if size < 999_500:
        return f"{ns / 1e3:.{1 if size < 100_000 else 0}f} us"
    if size < 999_950_000:
        return f"{ns / 1e6:.{2 if size < 100_000_000 else 1}f} ms"
    return f"{ns / 1e9:.2f} s"


#: The units that a time is written in, in ns.
OF_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


def share(part: float | None, whole: float | None) -> str:
    """Return ``part`` of ``whole`` as a percentage, "-" if either is unknown or ``whole`` is 0."""
    if part is None or not whole:
        return "-"
    percent = 100 * part / whole
    if 0 < abs(percent) < 0.05:
        return "<0.1 %"
    return f"{percent:.1f} %" if 0 < abs(percent) < 10 else f"{percent:.0f} %"


#: Factors from which no digit and one digit follow the point: 1.2x would stand for a saving of 13 % as for one of 20 %.
_WHOLE_FACTOR, _ONE_DIGIT_FACTOR = 10, 1.3


def times(factor: float) -> str:
    """Return a factor of speed with as many digits as say something: "1.24x", "2.1x", "14x"."""
    return f"{factor:.{0 if factor >= _WHOLE_FACTOR else 1 if factor >= _ONE_DIGIT_FACTOR else 2}f}x"


def bound(share: float) -> str:
    """Return a share that something was compared with as it is told: 0.05 as "5 %"."""
    return f"{100 * share:g} %"


def size(count: float | None) -> str:
    """Return ``count`` bytes with a binary unit, "-" for None."""
    if count is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def bandwidth(bytes_per_s: float | None) -> str:
    """Return ``bytes_per_s`` in decimal GB/s as vendors quote it, "-" for None."""
    if bytes_per_s is None:
        return "-"
    if bytes_per_s < 0.1e9:
        return f"{bytes_per_s / 1e6:.1f} MB/s"
    return f"{bytes_per_s / 1e9:.{2 if bytes_per_s < 10e9 else 1}f} GB/s"


def count(number: float | None) -> str:
    """Return a number rounded to an integer with thousands separators, "-" for None."""
    return "-" if number is None else f"{number:,.0f}"


def several(number: float, singular: str, many: str = "") -> str:
    """Return a number with what it counts: "1 range", "2,500 ranges"; ``many`` is the plural if it is not ``singular`` + s."""
    return f"{count(number)} {singular if number == 1 else many or f'{singular}s'}"


def capitalized(text: str) -> str:
    """Return a text as the begin of a sentence; one that begins with a name of code stays as it is."""
    plain = _PLAIN_WORD.match(text)
    return f"{text[:1].upper()}{text[1:]}" if plain else text


def uncapitalized(text: str) -> str:
    """Return a sentence as it stands behind a colon: its first word small, unless that is a name or an abbreviation (GPU, DataLoader)."""
    return f"{text[:1].lower()}{text[1:]}" if _SENTENCE_WORD.match(text) else text


#: A plain word at the begin of a text: no name of code is.
_PLAIN_WORD = re.compile(r"(?!nsysx?\b)[a-z]+(?=[ ,:;)]|$)")
#: The first word of a sentence that is no name.
_SENTENCE_WORD = re.compile(r"[A-Z][a-z]*(?=[.,;:)]?(?:\s|$))")


def span(low: str, high: str) -> str:
    """Return two figures in words as a range: "1.20 ms to 3.40 ms"; one alone where both read the same."""
    return low if low == high else f"{low} to {high}"

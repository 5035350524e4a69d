"""Random small frames for slow references in plain Python: ties, nulls, no rows at all, intervals that touch and overlap."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import polars as pl

from nsysx.model import Row

#: Frames per test: the references are slow, the frames are small.
FRAMES = 40


def rounds(count: int = FRAMES) -> Iterator[random.Random]:
    """Yield sources of random numbers, the same ones in each run."""
    return (random.Random(seed) for seed in range(count))


class Columns:
    """Columns of a random frame: ``values`` is what a row may hold, drawn anew for each row, or a function that draws."""

    def __init__(self, source: random.Random, rows: int) -> None:
        self.source, self.rows = source, rows
        self._columns: dict[str, pl.Series] = {}

    def add(self, name: str, values: Sequence[Any] | Callable[[], Any], dtype: Any = pl.Int64) -> Columns:
        draw = values if callable(values) else lambda: self.source.choice(values)
        self._columns[name] = pl.Series(name, [draw() for _ in range(self.rows)], dtype=dtype)
        return self

    def names(self, name: str, values: Sequence[str | None]) -> Columns:
        return self.add(name, values, pl.Categorical)

    def times(self, last: int = 60, longest: int = 20) -> Columns:
        """Add start_ns and end_ns; some intervals have no length."""
        start = [self.source.randrange(last) for _ in range(self.rows)]
        self._columns["start_ns"] = pl.Series("start_ns", start, dtype=pl.Int64)
        self._columns["end_ns"] = pl.Series(
            "end_ns", [s + self.source.randrange(longest) for s in start], dtype=pl.Int64
        )
        return self

    def frame(self) -> pl.DataFrame:
        return pl.DataFrame(list(self._columns.values()))


def columns(source: random.Random, most: int = 12) -> Columns:
    """Return columns of so many rows, now and then of none."""
    return Columns(source, source.choice((0, *range(1, most))))


def asked(answers: dict[Any, Any]) -> Callable[[Any], Any]:
    """Return a profile's ``once`` that has these answers."""
    return lambda make: answers[make]


def always(answer: Any) -> Callable[..., Any]:
    """Return a function that has one answer, whatever it is asked."""
    return lambda *_: answer


def profile(**parts: Any) -> Any:
    """Return what stands for a Profile: everything was recorded, unless ``recorded`` says otherwise."""
    return SimpleNamespace(**{"recorded": lambda *_: True, **parts})


def rows(frame: pl.DataFrame) -> list[Row]:
    """Return the rows of a frame, its categories as strings."""
    return frame.with_columns(pl.col(pl.Categorical).cast(pl.String)).to_dicts()


def grouped(of: Sequence[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """Return the rows of each combination of keys, in their order."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in of:
        groups.setdefault(tuple(row[k] for k in keys), []).append(row)
    return groups


def same(found: Sequence[Row], expected: Sequence[Row]) -> bool:
    """Return whether rows are the same, in their order; a quotient may differ in its last bit."""
    assert len(found) == len(expected), (found, expected)
    for a, b in zip(found, expected, strict=True):
        assert a.keys() >= b.keys(), (a, b)
        for key, value in b.items():
            close = isinstance(value, float) and a[key] is not None and math.isclose(a[key], value, rel_tol=1e-12)
            assert close or a[key] == value, (key, a, b)
    return True


def last_null(value: Any) -> tuple[bool, Any]:
    """Return the key that sorts null behind all others."""
    return value is None, "" if value is None else value


def covered(*spans: tuple[int, int]) -> set[int]:
    """Return each nanosecond that lies in one of the intervals."""
    return {t for start, end in spans for t in range(start, end)}

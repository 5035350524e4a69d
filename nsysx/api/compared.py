"""A comparison as an object."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from nsysx.api.argument_errors import python_words
from nsysx.api.files import File, framed
from nsysx.comparing import comparison, side_inputs
from nsysx.comparing.difference_answer import Comparison


@dataclass(frozen=True)
class Compared:
    """Before against after. ``answer`` has everything that ``nsysx compare --json`` has: parts, tables, comparability."""

    answer: Comparison

    def __repr__(self) -> str:
        """Return the answer in a line: its first sentence."""
        from nsysx.render.answer_words import first_sentence

        return f"<nsysx.Compared {self.verdict}: {first_sentence(self.sentence)}>"

    @property
    def verdict(self) -> str:
        """Return faster, slower, same or cannot_tell."""
        return self.answer.verdict

    @property
    def sentence(self) -> str:
        """Return the answer in words."""
        return self.answer.sentence

    @property
    def difference_ns(self) -> int:
        """Return after minus before, ns per step; the parts sum to it."""
        return self.answer.difference_ns

    @property
    def parts(self) -> pl.DataFrame:
        """Return the parts of the difference: kind, name, difference_ns (per step), before_ns, after_ns, ..."""
        rows: list[dict[str, Any]] = self.to_json()["parts"]
        return pl.DataFrame(rows, infer_schema_length=None)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain values, by the contract ``nsysx.compare/1``."""
        return self.answer.to_json()

    def to_html(self, *, redact: bool = True) -> str:
        """Return the page that ``nsysx compare --html`` writes."""
        from nsysx.render import compare_page

        return compare_page.render(self.answer, redact=redact)

    def to_markdown(self) -> str:
        """Return the comparison as Markdown for a ticket."""
        from nsysx.render import compare_text

        return compare_text.markdown(self.answer)

    def _repr_html_(self) -> str:
        """Return the page for notebooks, in a frame of its own."""
        return framed(self.to_html(), "The comparison of nsysx")


@python_words
def compare(
    before: File | Iterable[File], after: File | Iterable[File], *, noise: Iterable[File] = (), margin: float = 0.01
) -> Compared:
    """Say whether ``after`` is faster than ``before``, by how much, how sure that is, and what made the difference.

    Each side is a report, a Summary (.json), or several captures of one program. ``noise``: captures of one unchanged program,
    which show how much captures differ here. ``margin``: the share of the step that counts as the same. Raises NsysxError if a
    file cannot be read, is no report or Summary, or has no steps.

    >>> pair = ("masked_nonzero", "masked_ignore_index")
    >>> c = nsysx.compare(*(f"sample_reports/{name}.sqlite.xz" for name in pair))
    >>> c.verdict, c.parts["name"][0], c.parts["difference_ns"].sum() == c.difference_ns
    ('faster', 'MaskedLoss', True)
    """

    def paths(side: File | Iterable[File]) -> list[Path]:
        return [Path(side)] if isinstance(side, str | os.PathLike) else [Path(f) for f in side]

    named = [("before", paths(before)), ("after", paths(after))]
    if others := paths(noise):
        named.append(("noise", others))
    return Compared(comparison.compare(*side_inputs.sides(named), margin=margin))

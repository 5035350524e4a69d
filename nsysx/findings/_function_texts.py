"""The text of a function of the program, by its lines that ran."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from nsysx.analyses.lines import texts
from nsysx.events.profile import Profile


def lines_of_function(profile: Profile, file: str | None, line: int | None) -> dict[int, str]:
    """Return number -> text, with its indent, of the lines around one up to those that are known to be of other functions.

    Lines that call nothing are of no known function: those at the border count for both.
    """
    code = profile.code()
    noted: Mapping[str, object] = texts(profile).get(file or "", {})
    written = {int(n): text for n, text in noted.items() if isinstance(text, str) and n.isdigit()}
    if code is None or line is None or line not in written:
        return {}
    rows = code.places.filter(pl.col("file").cast(pl.String) == file).drop_nulls("line")
    function_of = dict(rows.select("line", pl.col("function").cast(pl.String)).iter_rows())
    name = function_of.get(line, "")
    others = [n for n, function in function_of.items() if not f"{function}.".startswith(f"{name}.")] if name else []
    first = max((n for n in others if n < line), default=0)
    last = min((n for n in others if n > line), default=max(written) + 1)
    return {n: written[n] for n in sorted(written) if first < n < last}

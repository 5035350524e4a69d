"""Reports of a job that cannot be read: of all of them a reader hears at once, in one line, not of one at each try."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from nsysx.errors import EXIT_INPUT, NsysxError
from nsysx.ranks.rank_bounds import MOST_UNREADABLE_REPORTS

T = TypeVar("T")


def result_or_error(work: Callable[[Path], T], path: Path) -> T | NsysxError:
    """Return ``work(path)``, or why the file cannot be read. Any other error is raised."""
    try:
        return work(path)
    except NsysxError as error:
        if error.exit_code != EXIT_INPUT:
            raise
        return error


def without_errors(results: Sequence[T | NsysxError]) -> list[T]:
    """Return the results if all reports could be read. Raises NsysxError, exit code 3, that names all others."""
    errors = [result for result in results if isinstance(result, NsysxError)]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        each = "; ".join(error.message for error in errors[:MOST_UNREADABLE_REPORTS])
        more = f"; and {len(errors) - MOST_UNREADABLE_REPORTS} more" if len(errors) > MOST_UNREADABLE_REPORTS else ""
        hint = "Export or copy them again, or leave them out: the ranks that are missing are named"
        raise NsysxError(
            f"{len(errors)} of {len(results)} reports cannot be read: {each}{more}", slug=errors[0].slug, hint=hint
        )
    return [result for result in results if not isinstance(result, NsysxError)]

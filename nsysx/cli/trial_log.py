"""How commands write down what was tried, and say where."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nsysx.advice import Tried
from nsysx.cli.command_output import harmless, talk, wrote
from nsysx.reading import trials_log


def log(report: Path, trials: Iterable[Tried]) -> None:
    """Add what was tried to NAME.log.jsonl beside a report; a folder that cannot be written to is said, and no failure."""
    try:
        path = trials_log.append(report, trials)
    except OSError as error:
        talk(harmless(f"nsysx: what was tried is not logged: {trials_log.log_beside(report)}: {error.strerror}"))
        return
    if path is not None:
        wrote(path)

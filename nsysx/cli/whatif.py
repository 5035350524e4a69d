"""``nsysx whatif``: how long the step would take with something changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nsysx.cli.declared import with_options
from nsysx.cli.options import Reports
from nsysx.cli.talk import emit, harmless
from nsysx.option import options_of
from nsysx.replay.changes import Changes
from nsysx.selection import Selection

#: Shown below the help: what is typed after the command, and what it does.
EXAMPLES = (
    ("train.sqlite", "everything that could be changed"),
    ("train.sqlite --remove-wait losses.py:47", "without this wait"),
    ("train.sqlite --graph all", "a step in one CUDA graph"),
)


def _whatif(files: list[Path], **given: Any) -> None:
    """Say how long the step would take with something changed; without an option, list what can be changed."""
    from nsysx.ranks import parallel_reading

    parallel_reading.limit_threads()
    from nsysx import pipeline
    from nsysx.reading import inputs
    from nsysx.replay import whatif as room

    options = pipeline.Options.of(options_of(Selection, given))
    profile = pipeline.gather_job(inputs.reports(files), options).profile
    emit("\n".join(harmless(line) for line in room.lines(profile, options_of(Changes, given))))


def _command(files: Reports) -> None:
    """Hold what the command line has besides the declared options."""


whatif = with_options(_whatif, _command, Changes, Selection)

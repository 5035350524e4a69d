"""``nsysx whatif``: how long the step would take with something changed."""

from __future__ import annotations

from nsysx.cli.declared import with_options
from nsysx.cli.options import Reports
from nsysx.cli.talk import emit, harmless
from nsysx.replay.changes import Changes
from nsysx.selection import Selection

#: Shown below the help: what is typed after the command, and what it does.
EXAMPLES = (
    ("train.sqlite", "everything that could be changed"),
    ("train.sqlite --remove-wait losses.py:47", "without this wait"),
    ("train.sqlite --graph all", "a step in one CUDA graph"),
)


@with_options
def whatif(files: Reports, *, changes: Changes, selection: Selection) -> None:
    """Say how long the step would take with something changed; without an option, list what can be changed."""
    from nsysx.ranks import parallel_reading

    parallel_reading.limit_threads()
    from nsysx import pipeline
    from nsysx.reading import inputs
    from nsysx.replay import whatif as room

    profile = pipeline.gather_job(inputs.reports(files), pipeline.Options.of(selection)).profile
    emit("\n".join(harmless(line) for line in room.lines(profile, changes)))

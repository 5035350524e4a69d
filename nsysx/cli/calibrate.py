"""``nsysx calibrate``: what tracing costs on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nsysx.cli.declared_options import TYPED_ONLY

#: Shown below the help: what is typed after the command, and what it does.
EXAMPLES = (("", "once on each machine, about a minute"),)


def calibrate(
    nsys: Annotated[Path | None, typer.Option(metavar="PATH", help="The nsys to use."), TYPED_ONLY] = None,
) -> None:
    """Measure once what tracing costs on this machine, so that reports made here can tell the step without a profiler."""
    from nsysx.recording import calibration_run as room
    from nsysx.recording.find_nsys import find_nsys
    from nsysx.recording.run_messages import say

    chosen = find_nsys(nsys)
    typer.echo(room.calibrate(chosen.path, chosen.version, say))

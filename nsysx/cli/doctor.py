"""``nsysx doctor``: what works here, and how to fix what does not."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from nsysx.cli.command_output import talk
from nsysx.cli.declared_options import TYPED_ONLY
from nsysx.errors import EXIT_USAGE, NsysxError

#: Shown below the help: what is typed after the command, and what it does.
EXAMPLES = (("", "what works here"), ("--install-nsys", "on Debian, without root"))


def doctor(
    nsys: Annotated[Path | None, typer.Option(metavar="PATH", help="The nsys to check."), TYPED_ONLY] = None,
    install_nsys: Annotated[
        bool,
        typer.Option("--install-nsys", help="First install Nsight Systems for this user, on Debian, without root."),
    ] = False,
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Install into DIR. Default: a folder that run searches."),
        TYPED_ONLY,
    ] = None,
) -> None:
    """Say what works here and how to fix what does not. Exit code 0 if nsysx run will work."""
    from nsysx.recording import machine_checks as examination

    if install_nsys:
        from nsysx.recording import install_nsys as installing
        from nsysx.recording.find_nsys import user_folder

        folder = to or user_folder()
        nsys = installing.install(folder, lambda line: talk(f"nsysx: {line}"), examination.python())
        if to is not None:
            talk(f"nsysx: use it with --nsys {shlex.quote(str(nsys))}, or put {shlex.quote(str(nsys.parent))} on PATH")
    elif to is not None:
        raise NsysxError("--to goes with --install-nsys", slug="bad-option", exit_code=EXIT_USAGE)
    raise typer.Exit(examination.main(nsys))

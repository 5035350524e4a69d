"""The options of ``nsysx try``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from nsysx.option import Option


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``nsysx try``, each declared here alone."""

    change: Annotated[
        tuple[str, ...],
        Option("Try this change (repeatable); A,B: both at once. Default: what REPORT advises, else all.", "NAME"),
    ] = ()
    together: Annotated[bool, Option("At the end, try all that won at once.")] = False
    budget: Annotated[int, Option("Begin no run after this many minutes.", "MIN", least=1)] = 10
    pairs: Annotated[
        int | None,
        Option("So many pairs of runs for each change. Default: 3, then more until it is decided.", "N", least=2),
    ] = None
    steps: Annotated[
        int | None,
        Option("Measure this many steps of each run. Default: as many as take 5 s, from 30 to 200.", "N", least=5),
    ] = None
    yes: Annotated[bool, Option("Do not ask before CMD runs and writes its files again.", names=("--yes", "-y"))] = (
        False
    )
    json: Annotated[str | None, Option("Write the result as JSON.", "F|-")] = None
    force: Annotated[bool, Option("Overwrite output files.", names=("--force", "-f"))] = False
    patience: Annotated[
        int, Option("A run that makes no step for this many seconds hangs.", "S", least=1, advanced=True)
    ] = 60

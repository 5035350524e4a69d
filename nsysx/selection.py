"""The options that several commands and the library share, each declared here alone: what of a report is read, and how.

``commands`` of an option names the commands that have it. A new one is its field here and the code that uses it; a command hands
all of them on. The library's signatures are spelled out for editors, and a test holds them against these declarations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from nsysx.option import Option

#: Where no figure is per step, there is nothing to compare, to hold against a budget or to replay.
_STEPS = {"report": "A:B|all", "export": "A:B|all", "compare": "A:B", "check": "A:B", "whatif": "A:B"}


@dataclass(frozen=True)
class Selection:
    """What of a report is analyzed: the whole of it without these."""

    steps: Annotated[
        str | None,
        Option("Analyze only these steps.", _STEPS, commands=tuple(_STEPS)),
    ] = None
    step_range: Annotated[
        str | None,
        Option("NVTX ranges that are the steps.", "RE", commands=tuple(_STEPS)),
    ] = None
    device: Annotated[int | None, Option("Analyze only this GPU.", metavar="N", commands=("report",))] = None
    rank: Annotated[int | None, Option("Analyze only this rank.", metavar="N", commands=("report", "whatif"))] = None
    time_range: Annotated[
        str | None,
        Option("Read only this part of the session, in seconds.", "A:B", commands=("report", "export")),
    ] = None
    every_step: Annotated[
        bool,
        Option("Read every step of a long capture.", commands=("report", "compare", "check", "whatif")),
    ] = False
    max_size: Annotated[
        str,
        Option("Unpack no more than this of a packed report.", "SIZE", commands=tuple(_STEPS)),
    ] = "64G"


@dataclass(frozen=True)
class Handling:
    """How reports are read and results written; no figure depends on it."""

    jobs: Annotated[
        int | None,
        Option("Reports to read at once. Default: one per core.", metavar="N", least=1, commands=("report", "compare")),
    ] = None
    top: Annotated[int, Option("Rows per table.", metavar="N", least=1, commands=("report", "compare"))] = 10
    force: Annotated[
        bool,
        Option(
            "Overwrite output files.",
            names=("--force", "-f"),
            commands=("report", "compare", "check", "export", "whatif"),
            typed_only=True,
        ),
    ] = False
    redact: Annotated[
        bool,
        Option("Keep host and user names and paths.", names=("--no-redact",), commands=("report", "compare", "export")),
    ] = True

"""The options of ``nsysx try``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from nsysx.errors import EXIT_USAGE, NsysxError
from nsysx.option import Option


@dataclass(frozen=True, slots=True)
class TryOptions:
    """The options of ``nsysx try``, each declared here alone."""

    change: Annotated[
        tuple[str, ...],
        Option("Try this change (repeatable); A,B: both at once. Default: what REPORT advises, else all.", "NAME"),
    ] = ()
    bounds: Annotated[
        bool, Option("Also try bounds: what a step takes without reads, data or updates. They compute something else.")
    ] = False
    together: Annotated[bool, Option("At the end, try all that won at once.")] = False
    budget: Annotated[
        str, Option("Take no longer than this, with the reading of REPORT: 90s, 10m, 1h, or minutes.", "TIME")
    ] = "10m"
    pairs: Annotated[
        int | None,
        Option(
            "Pairs of runs, without and with the change, where it cannot be turned on and off within one run; any other has one run. "
            "Default: 3, then more until it is decided.", "N", least=2,
        ),
    ] = None  # fmt: skip
    steps: Annotated[
        int | None,
        Option("Measure this many steps of each run. Default: as many as take 5 s, from 30 to 200.", "N", least=5),
    ] = None
    dry_run: Annotated[bool, Option("Say which changes would be tried, in order; run nothing.")] = False
    yes: Annotated[bool, Option("Do not ask before CMD runs and writes its files again.", names=("--yes", "-y"))] = (
        False
    )
    json: Annotated[str | None, Option("Write the result as JSON.", "F|-", typed_only=True)] = None
    html: Annotated[str | None, Option("Write the page of REPORT, with what was measured.", "F", typed_only=True)] = (
        None
    )
    force: Annotated[bool, Option("Overwrite output files.", names=("--force", "-f"), typed_only=True)] = False
    patience: Annotated[
        int, Option("A run that makes no step for this many seconds hangs.", "S", least=1, advanced=True)
    ] = 60

    @property
    def budget_s(self) -> float:
        """Return the budget in seconds. Raises NsysxError, exit code 2, if it is none."""
        match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)\s*(s|m|min|h|)", self.budget.strip())
        if not match or not float(match[1]):
            raise NsysxError(
                f"--budget {self.budget}: not a time", slug="try-budget", hint="Write 90s, 10m, 1h, or minutes",
                exit_code=EXIT_USAGE,
            )  # fmt: skip
        return float(match[1]) * {"s": 1, "h": 3600}.get(match[2], 60)

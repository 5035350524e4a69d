"""How a network is compiled whose inputs change their shapes."""

from __future__ import annotations

from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Fix
from nsysx.findings._costly_jobs import ddp

_NAME = "compile-dynamic"
#: The compiler splits the graph of what DistributedDataParallel wraps by its buckets, and fails where it is given symbolic sizes
#: (pytorch#111636, #134182; torch 2.11 on two H200: "'int' object has no attribute 'meta'").
_UNSPLIT = "torch._dynamo.config.optimize_ddp = False  # graphs that it splits take no changing shapes\n"


def for_all_shapes(case: Case, *, text: str | None = None, comment: str = "") -> Fix:
    """Return the remedy that compiles a network once for all shapes, its paste with what DistributedDataParallel needs.

    ``text`` in place of the remedy's own; ``comment`` stands behind the line that compiles.
    """
    fix, settings = Fix.by_name(_NAME), settings_of(case.profile)
    first = _UNSPLIT if settings is not None and ddp(settings) is not None else ""
    return fix.but(text=text, paste=f"{first}{fix.paste}{comment}")

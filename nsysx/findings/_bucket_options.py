"""What DistributedDataParallel's buckets can change: communication that is theirs, by options that are not set so already."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case
from nsysx.findings._divided_comm import EARLIER
from nsysx.findings._exposed_transfer import communication, exposed_ns
from nsysx.findings._finding_bounds import MOST_SHARE
from nsysx.model import Finding
from nsysx.reading import nccl_notes

_DDP = "DistributedDataParallel"
#: Advice that holds for any way to be parallel, in place of that for the buckets of DDP.
_ANY_EARLIER = "Start communication earlier, so that it runs beside computation that does not need its result, in fewer, larger messages"


def uses_ddp(case: Case) -> bool:
    """Return whether DistributedDataParallel is or may be in use: by the program's settings, or else by the modules that were seen."""
    settings = settings_of(case.profile)
    wrappers = None if settings is None else settings.wrappers("DDP")
    if wrappers is not None:
        return bool(wrappers)
    classes = case.profile.attributed.modules["cls"].cast(pl.String)
    return not len(classes) or _DDP in case.program.networks or bool(classes.str.contains(_DDP).any())


def of_buckets(case: Case, finding: Finding) -> Finding:
    """Return the finding with what its buckets can change, and without what only DDP has, where the communication is not that of DDP."""
    if _DDP not in finding.paste or any(r.name == "replicated" for r in finding.remedies):
        return finding
    if not uses_ddp(case) or not _reduces_gradients(case):
        paste = ""
    else:
        paste = changing_options(finding.paste, settings_of(case.profile))
    if paste == finding.paste:
        return finding
    remedies = tuple(replace(r, text=_ANY_EARLIER, paste=paste) if _DDP in r.paste else r for r in finding.remedies)
    fix = _ANY_EARLIER if finding.fix == EARLIER.text else finding.fix
    return replace(finding, fix=fix, paste=paste, remedies=remedies)


def _reduces_gradients(case: Case) -> bool:
    """Return whether most of the exposed communication may be reductions of buckets: all-reduces that no forward pass asks for."""
    comm = communication(case)
    kinds = np.array([nccl_notes.kind_of(str(name)) for name in comm["name"].to_list()], np.str_)
    forward = (comm["phase"].cast(pl.String) == "forward").fill_null(value=False).to_numpy()
    exposed = exposed_ns(case, comm)
    return bool(exposed[(kinds == "allreduce") & ~forward].sum() >= MOST_SHARE * exposed.sum())


def changing_options(paste: str, settings: RecordedSettings | None) -> str:
    """Return the code without the options that every wrapper of the program has already; "" where no other is left."""
    wrappers = settings.wrappers("DDP") if settings is not None else None
    if not wrappers:
        return paste
    has = {
        ", bucket_cap_mb=25": all(row.get("bucket_cap_bytes") == 25 << 20 for row in wrappers),
        ", gradient_as_bucket_view=True": all(row.get("gradient_as_bucket_view") is True for row in wrappers),
    }
    if all(has.values()):
        return ""
    for option in (option for option, there in has.items() if there):
        paste = paste.replace(option, "")
    return paste

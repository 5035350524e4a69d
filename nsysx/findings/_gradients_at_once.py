"""A compiled network whose backward is one graph, which hands out all gradients at its end: no bucket of DDP is reduced beside it.

Compiled inside of a call of DDP, a graph is cut at the borders of DDP's buckets. What was compiled before, by a call of the network itself,
stays whole, and so does all where ``torch._dynamo.config.optimize_ddp`` is off.
"""

from __future__ import annotations

from dataclasses import replace

from nsysx import units
from nsysx.advice import Alternative
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case, Saving
from nsysx.findings._costly_jobs import ddp
from nsysx.findings._late_gradients import reduced_in_order

TITLE = "The compiled backward is one graph: all gradients are reduced behind it"


def seen(case: Case, settings: RecordedSettings) -> str:
    """Return that all buckets wait for the end of a compiled backward, "" where some are reduced beside it."""
    wrapper = ddp(settings)
    if wrapper is None or wrapper.get("find_unused_parameters") is True or not _is_whole(settings):
        return ""
    saving = reduced_in_order(case)
    if saving is None or not case.notable(saving.likely_ns or 0):
        return ""
    why = (
        "torch._dynamo.config.optimize_ddp is off"
        if settings.compiled("optimize_ddp") is False
        else "it was compiled by a call before DDP wrapped it, or cannot be cut"
    )
    return (
        f"what DDP wraps is compiled, and its backward is one graph that hands out all gradients at its end ({why}): the reductions of all "
        f"buckets begin when nearly all of backward has run, and about {units.duration(saving.likely_ns or 0)} of them could run beside it"
    )


def _is_whole(settings: RecordedSettings) -> bool:
    """Return whether a network that DDP wraps is compiled as a whole, within the wrapper or with it."""
    wrapper = ddp(settings) or {}
    return wrapper.get("compiled") is True or (
        settings.compiled("optimize_ddp") is False and bool(settings.compiled("graphs"))
    )


def worth(case: Case, _: RecordedSettings | None) -> Saving | None:
    """Return what it saves if all buckets but the last are reduced beside backward."""
    return reduced_in_order(case)


def in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return the advice, where a switch is off, to leave it on."""
    settings = settings_of(case.profile)
    if settings is None or settings.compiled("optimize_ddp") is not False:
        return title, remedy
    text = (
        "Leave torch._dynamo.config.optimize_ddp on: torch.compile then cuts the graph at the borders of DDP's buckets, and each is "
        "reduced as soon as its part of backward has run; where shapes change, compile each block instead"
    )
    paste = "torch._dynamo.config.optimize_ddp = True  # the default\n# or, of blocks: for block in module.blocks: block.compile()"
    return title, replace(remedy, text=text, paste=paste)

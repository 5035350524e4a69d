"""What ``nsysx whatif`` can change, each declared once: the command line and the library follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from nsysx.option import Option


@dataclass(frozen=True)
class Changes:
    """The changes that are asked for; a text names a module, an API function, a kernel or a call site, or is "all"."""

    remove_wait: Annotated[Sequence[str], Option("Remove these waits (API, module, file:line).", "SITE|all")] = ()
    graph: Annotated[Sequence[str], Option("Put the launches of this module into a CUDA graph.", "MODULE|all")] = ()
    kernel: Annotated[Sequence[str], Option("Make these kernels that much faster.", "NAME=2x")] = ()
    remove_module: Annotated[Sequence[str], Option("Remove the GPU work of this module.", "MODULE")] = ()
    overlap_copies: Annotated[bool, Option("Pin copies to the GPU and hide them behind kernels.")] = False
    pin_copies: Annotated[bool, Option("Pin copies to the GPU, each on its own stream.")] = False
    free_loader: Annotated[bool, Option("Let data loading take no time.")] = False
    remove_alloc: Annotated[bool, Option("Remove allocator calls from the steps.")] = False
    no_host: Annotated[bool, Option("Let host code between calls take no time.")] = False
    no_comm: Annotated[bool, Option("Let communication take no time.")] = False
    remove_sync_calls: Annotated[
        Sequence[str], Option("Remove these synchronize calls (device, stream, event).", "KIND")
    ] = ()
    fuse_optimizer: Annotated[bool, Option("Do the optimizer's work in one launch.")] = False
    keep_cache: Annotated[
        bool,
        Option("Remove frees from the steps, and the mallocs that they cause.", names=("--no-empty-cache",)),
    ] = False


@dataclass(frozen=True)
class JobChanges:
    """The changes of a job that are asked for: all its ranks are replayed together."""

    equal_ranks: Annotated[bool, Option("Job: divide the GPU work evenly over the ranks.")] = False
    usual_rank: Annotated[int | None, Option("Job: let this rank take as long as its peers.", "RANK", least=0)] = None
    faster_links: Annotated[
        int | None, Option("Job: let collectives transfer that many times as fast.", "TIMES", least=2)
    ] = None
    hide_transfer: Annotated[
        bool, Option("Job: run transfer beside computation, which it slows; late ranks are still waited for.")
    ] = False
    on_all_ranks: Annotated[
        str,
        Option(
            "Job: make this change on all ranks (no-sync, no-reshard, ddp-bucket-view, own-buffers, frozen-before-wrapping, "
            "foreach-parameters).",
            "NAME",
        ),
    ] = ""

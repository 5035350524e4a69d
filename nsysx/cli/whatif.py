"""``nsysx whatif``: how long the step would take with something changed."""

from __future__ import annotations

from typing import Annotated

import typer

from nsysx.cli.options import Reports, ShownRank, StepRange
from nsysx.cli.talk import emit, harmless

RemoveWait = Annotated[
    list[str] | None, typer.Option(metavar="SITE|all", help="Remove these waits (API, module, file:line).")
]
Graph = Annotated[
    list[str] | None, typer.Option(metavar="MODULE|all", help="Put the launches of this module into a CUDA graph.")
]
Kernel = Annotated[list[str] | None, typer.Option(metavar="NAME=2x", help="Make these kernels that much faster.")]
RemoveModule = Annotated[list[str] | None, typer.Option(metavar="MODULE", help="Remove the GPU work of this module.")]
OverlapCopies = Annotated[
    bool, typer.Option("--overlap-copies", help="Pin copies to the GPU and hide them behind kernels.")
]
PinCopies = Annotated[bool, typer.Option("--pin-copies", help="Pin copies to the GPU, each on its own stream.")]
RemoveAlloc = Annotated[bool, typer.Option("--remove-alloc", help="Remove allocator calls from the steps.")]
RemoveSyncCalls = Annotated[
    list[str] | None, typer.Option(metavar="KIND", help="Remove these synchronize calls (device, stream, event).")
]
FuseOptimizer = Annotated[bool, typer.Option("--fuse-optimizer", help="Do the optimizer's work in one launch.")]
NoEmptyCache = Annotated[
    bool, typer.Option("--no-empty-cache", help="Remove frees from the steps, and the mallocs that they cause.")
]


def whatif(
    files: Reports,
    remove_wait: RemoveWait = None,
    graph: Graph = None,
    kernel: Kernel = None,
    remove_module: RemoveModule = None,
    overlap_copies: OverlapCopies = False,
    pin_copies: PinCopies = False,
    free_loader: Annotated[bool, typer.Option("--free-loader", help="Let data loading take no time.")] = False,
    remove_alloc: RemoveAlloc = False,
    no_host: Annotated[bool, typer.Option("--no-host", help="Let host code between calls take no time.")] = False,
    no_comm: Annotated[bool, typer.Option("--no-comm", help="Let communication take no time.")] = False,
    remove_sync_calls: RemoveSyncCalls = None,
    fuse_optimizer: FuseOptimizer = False,
    no_empty_cache: NoEmptyCache = False,
    steps: Annotated[str | None, typer.Option(metavar="A:B", help="Replay these steps.")] = None,
    step_range: StepRange = None,
    rank: ShownRank = None,
) -> None:
    """Say how long the step would take with something changed; without an option, list what can be changed."""
    from nsysx.ranks import parallel_reading

    parallel_reading.limit_threads()
    from nsysx import pipeline
    from nsysx.reading import inputs
    from nsysx.replay import whatif as room

    options = pipeline.Options(steps=steps, step_range=step_range, rank=rank)
    given = pipeline.gather_job(inputs.reports(files), options).profile
    changes = room.Changes(
        remove_wait=remove_wait or (),
        graph=graph or (),
        kernel=kernel or (),
        remove_module=remove_module or (),
        overlap_copies=overlap_copies,
        pin_copies=pin_copies,
        free_loader=free_loader,
        remove_alloc=remove_alloc,
        no_host=no_host,
        no_comm=no_comm,
        remove_sync_calls=remove_sync_calls or (),
        fuse_optimizer=fuse_optimizer,
        keep_cache=no_empty_cache,
    )
    emit("\n".join(harmless(line) for line in room.lines(given, changes)))

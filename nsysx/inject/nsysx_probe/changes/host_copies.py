"""Copies from the host to the GPU: without a wait, and from pinned memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from . import Change, Remedy, Watch
from ._wrapping import replace_method

#: Holds, on a tensor, its version when it was pinned and its pinned copy.
_KEPT = "_nsysx_pinned"


def _around(torch: Any, watch: Watch, copied: Callable[[Any], Any]) -> None:
    """Let ``copied`` say which tensor is copied to the GPU in place of one of the host, without a wait; None: as it is."""

    def device_of(args: Any, kwargs: Any) -> str:
        target = kwargs.get("device", args[0] if args else None)
        if isinstance(target, torch.Tensor):
            return str(target.device.type)
        try:
            return str(torch.device(target).type) if target is not None else ""
        except (TypeError, RuntimeError):
            return ""

    def changed(original: Any, device: Callable[[Any, Any], str]) -> Any:
        @functools.wraps(original)
        def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
            here = watch.on and len(args) < 2 and not kwargs.get("non_blocking") and self.device.type == "cpu"
            source = copied(self) if here and device(args, kwargs) == "cuda" else None
            if source is None:
                return original(self, *args, **kwargs)
            watch.took()
            return original(source, *args, **{**kwargs, "non_blocking": True})

        return copy

    replace_method(torch, "to", lambda original: changed(original, device_of))
    replace_method(torch, "cuda", lambda original: changed(original, lambda _args, _kwargs: "cuda"))
    watch.can_turn()


def _non_blocking(torch: Any, watch: Watch) -> None:
    watch.why_not = "no copy from pinned memory waits"
    _around(torch, watch, lambda tensor: tensor if tensor.is_pinned() else None)


def _pinned(torch: Any, watch: Watch) -> None:
    watch.why_not = "no tensor is copied from pageable memory to the GPU"

    def copied(tensor: Any) -> Any:
        if type(tensor) is not torch.Tensor or tensor.requires_grad or tensor.layout != torch.strided:
            return None
        if tensor.is_pinned():
            return None
        version = None if tensor.is_inference() else tensor._version
        kept = getattr(tensor, _KEPT, None)
        if kept is None or version is None or kept[0] != version:
            kept = (version, tensor.pin_memory())
            setattr(tensor, _KEPT, kept)
        return kept[1]

    _around(torch, watch, copied)


CHANGES = (
    Change(
        "non-blocking", "copies from pinned memory without a wait", "batch = batch.to(device, non_blocking=True)", _non_blocking,
        needs="cuda", beware="a pinned buffer must not be overwritten before its copy has ended",
    ),
    Change(
        "pinned-copies", "batches pinned, and copied without a wait",
        "batch = batch.pin_memory()  # where it is made\nbatch = batch.to(device, non_blocking=True)", _pinned,
        alters="memory", needs="cuda", beware="batches stay in host memory that cannot be swapped out",
        advice="Pin what is copied (tensor.pin_memory() once, before the loop, or DataLoader(pin_memory=True)) and copy it with "
        "non_blocking=True",
        example='batch = batch.pin_memory()  # once, before the loop\nx = batch.to("cuda", non_blocking=True)',
        condition="Keep a pinned tensor until its copy is done.",
    ),
)  # fmt: skip
_STREAMS = "on which stream something is copied, and when it is needed, the program says"
UNTRIED = (
    Remedy(
        "tables-on-gpu",
        "Keep the tables in the GPU's memory: a plan that was made for a smaller card has them in host memory, behind a cache",
        "ParameterConstraints(compute_kernels=[\"fused\"])  # not fused_uvm_caching; Topology(hbm_cap=...) as the card has it\n"
        "# FBGEMM: EmbeddingLocation.DEVICE in place of MANAGED_CACHING",
        "Tables and the optimizer's state must fit, each rank's part of them. Where they do not: a larger cache "
        "(CacheParams(load_factor=...)), filled ahead by PrefetchTrainPipelineSparseDist.",
        untried="where the tables lie, the program's plan says",
    ),
    Remedy(
        "copy-ahead", "Copy the next batch with non_blocking=True on a separate stream, while the GPU works on this one",
        "with torch.cuda.stream(copy_stream):\n"
        '    upcoming = batch.to("cuda", non_blocking=True)\n'
        "torch.cuda.current_stream().wait_stream(copy_stream)",
        "Wait for the copy stream before you use the batch, and keep the batch until then.", untried=_STREAMS,
    ),
    Remedy(
        "copy-out-on-a-stream",
        "Give these copies a stream of their own, so that kernels run beside them: their memory is pinned and nothing waits for them "
        "already",
        "copy_stream.wait_stream(torch.cuda.current_stream())\n"
        "with torch.cuda.stream(copy_stream):\n"
        "    host.copy_(result, non_blocking=True)\n"
        "result.record_stream(copy_stream)",
        "Synchronize with the copy stream before you read what was copied.", untried=_STREAMS,
    ),
    Remedy(
        "read-later",
        "Wait for these copies a step later: record an event after each and synchronize on it when the value is needed; their memory is "
        "pinned already",
        "host.copy_(result, non_blocking=True); copied = torch.cuda.Event(); copied.record()\ncopied.synchronize()  # a step later",
        "Keep the pinned tensor until then.", untried=_STREAMS,
    ),
    Remedy(
        "new-rows-to-gpu",
        "Keep what grows on the GPU, in room that is made once, and copy the new rows there alone: each of these copies moves all rows "
        "before them again",
        "room = torch.empty(longest, *new.shape[1:], device='cuda')  # once\n"
        "room[n : n + len(new)].copy_(torch.as_tensor(new)); n += len(new)\n"
        "whole = room[:n]  # not torch.as_tensor(np.concatenate(rows)).cuda()",
        "Begin with n = 0. Rows that were copied must stay as they are: the recording shows sizes, not what is in them.",
        untried="where rows are kept, the program says",
    ),
    Remedy(
        "new-rows-to-host",
        "Copy the new rows alone to the host, and keep those before there: each of these copies moves all rows before them again",
        "rows.append(new.cpu())  # not whole.cpu()\nwhole = torch.cat(rows)  # on the host",
        "Begin with rows = []. Rows that were copied must stay as they are: the recording shows sizes, not what is in them.",
        untried="where rows are kept, the program says",
    ),
    Remedy(
        "made-on-gpu", "Create this data on the GPU (torch.randn, randint, randperm and indexing take device='cuda')",
        "generator = torch.Generator(device=device).manual_seed(seed)  # where it must come again\n"
        "noise = torch.randn(shape, generator=generator, device=device)  # not torch.randn(shape).to(device)",
        "A seed gives other numbers there than on the CPU.",
        untried="what makes the data is the program's own code",
    ),
    Remedy(
        "table-on-gpu",
        "Keep the table on the GPU, and copy the numbers of the rows alone: the CPU gathers rows in each step, and copies them",
        "x = x.to(dev)  # once, before the loop\n"
        "rows = x[n_id.to(dev, non_blocking=True)]  # not x[n_id].to(dev)",
        "All of it must fit; nothing may write into it on the host. Where it does not fit, pin it and gather from the GPU (UVA).",
        untried="what changes the table, the program says",
    ),
)  # fmt: skip

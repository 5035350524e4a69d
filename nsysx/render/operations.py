"""Operations of PyTorch that surprise people in a profile: what the GPU and the CPU do for one line of Python."""

from __future__ import annotations

from nsysx.render.entries import Entry


def _operation(name: str, what: str, normal: str, cheaper: str, *aliases: str) -> Entry:
    return Entry(name, "operation", what, normal, cheaper, aliases)


OPERATIONS = (
    _operation(
        "item",
        "Copies one value to the host and waits for it: cudaMemcpyAsync of a few bytes, then cudaStreamSynchronize. The wait "
        "lasts until everything queued before it is done, so its length is the length of the queue, not the cost of the copy.",
        "Once per logged step. While the GPU has work queued behind other streams, or right after it was idle anyway, it costs "
        "little. In every layer, or before the next step is launched, the GPU runs dry behind it.",
        "Keep the value on the GPU: add up loss.detach() and read it every N steps. Comparisons in Python (`if loss > x`), "
        "float(), int(), bool() and print() of a GPU tensor are the same.",
        ".item()",
        "Tensor.item",
        "aten::item",
        "_local_scalar_dense",
        "aten::_local_scalar_dense",
    ),
    _operation(
        "tolist",
        "Copies the tensor to pageable host memory and waits: like item(), for many values. cpu() and numpy() do the same.",
        "At the end of an epoch, for what is logged or saved.",
        "Copy to pinned memory with non_blocking=True, and read it a step later.",
        ".tolist()",
        ".cpu()",
        "cpu",
        "numpy",
    ),
    _operation(
        "nonzero",
        "Finds the places of all true elements. How many there are is known on the GPU only, but the host must allocate the "
        "result: so it counts (kernels of CUB: reduce, scan), copies the count to the host, waits for everything queued before, "
        "and only then writes the places.",
        "Rarely needed in a training step.",
        "A form with a fixed shape: torch.where with three arguments, masked_fill, multiplication with the mask, ignore_index in "
        "a loss; torch.nonzero_static where the most there can be is known.",
        "torch.nonzero",
        "aten::nonzero",
        "argwhere",
        "torch.where with one argument",
    ),
    _operation(
        "boolean mask",
        "x[mask] calls nonzero() and then gathers with an index: a wait for everything queued before, and in backward an "
        "index_put with accumulation, which sorts the indices. x[mask] = y with a tensor y does so too; with a number it is one "
        "masked_fill and does not wait.",
        "Outside the training step.",
        "Multiply with the mask, torch.where, ignore_index. It pays when computing what is masked costs less than finding, "
        "gathering and sorting what is not; nsysx prices it as the time of the kernels that go, and says so as a bound.",
        "masks",
        "mask",
        "masked_select",
        "index with a mask",
        "aten::index",
    ),
    _operation(
        "unique",
        "Sorts the whole tensor, marks where neighbours differ, and must know on the host how many are left: radix-sort kernels, "
        "a copy, and a wait for everything queued before.",
        "In data preparation.",
        "Do it on the CPU in the DataLoader, once per sample. On the GPU torch.sort alone does not wait; bincount with minlength "
        "and a known range avoids the sort.",
        "torch.unique",
        "aten::_unique2",
        "unique_consecutive",
    ),
    _operation(
        "pin_memory",
        "Copies a batch into locked host memory. The buffer comes from cudaHostAlloc (milliseconds, once per size), and is kept "
        "for the next batch; a copy with non_blocking=True from it does not hold the CPU.",
        "In the first batches, in the thread of the DataLoader that pins.",
        "Batches of one size, so that buffers are found again.",
        "pin_memory=True",
        "Tensor.pin_memory",
    ),
    _operation(
        "empty_cache",
        "Waits for the GPU and gives all cached blocks back with cudaFree. The next allocations are cudaMalloc again.",
        "Between two programs' phases that share a GPU.",
        "Leave it out of the step: PyTorch does it itself when memory runs out.",
        "torch.cuda.empty_cache",
    ),
)

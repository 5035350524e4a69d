"""How much of a batch is padding, told from what a DataLoader returns on the CPU: nothing of the GPU is read. One batch is looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .probe_bounds import LARGEST_PADDED_TENSOR, MOST_BATCH_TENSORS, SHORTEST_PADDED


def padding(torch: Any, batch: Any) -> dict[str, Any] | None:
    """Return name, rows, length, longest and real (elements of all rows) of the tensor with a mask, else of the one that is padded most.

    None where no row of any tensor ends, or begins, with a run of one value while others do not: equal lengths, or another kind of data.
    """
    best: dict[str, Any] | None = None
    for name, tensor in _tensors(torch, batch):
        if (
            tensor.dim() not in (2, 3)
            or tensor.shape[0] < 2
            or tensor.shape[1] < SHORTEST_PADDED
            or tensor.numel() > LARGEST_PADDED_TENSOR
        ):
            continue
        real = _lengths(torch, tensor)
        if real is None:
            continue
        rows, length = int(tensor.shape[0]), int(tensor.shape[1])
        about: dict[str, Any] = {
            "name": name,
            "rows": rows,
            "length": length,
            "longest": int(real.max()),
            "real": int(real.sum()),
        }
        if "mask" in name:
            return about
        if best is None or about["real"] / rows / length < best["real"] / best["rows"] / best["length"]:
            best = about
    return best


def _tensors(torch: Any, batch: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(batch, torch.Tensor):
        items: list[tuple[Any, Any]] = [("batch", batch)]
    elif isinstance(batch, Mapping):
        items = list(batch.items())
    else:
        items = list(enumerate(batch)) if isinstance(batch, (tuple, list)) else []
    for name, value in items[:MOST_BATCH_TENSORS]:
        if type(value) is torch.Tensor and value.device.type == "cpu" and value.layout == torch.strided:
            yield str(name), value.detach()


def _lengths(torch: Any, tensor: Any) -> Any:
    """Return the real length of each row, None where the rows are not padded: at the end, else at the begin."""
    if tensor.dim() == 3:  # frames of features: padding is 0 in all of them
        if not tensor.is_floating_point():
            return None
        padded = (tensor == 0).all(-1)
    elif tensor.is_floating_point() or tensor.is_complex():
        return None
    else:
        ends = tensor[:, -1]
        begins = tensor[:, 0]
        sides = [_run(torch, (tensor == ends.mode().values).flip(1)), _run(torch, tensor == begins.mode().values)]
        return next((tensor.shape[1] - run for run in sides if _is_padding(run, tensor)), None)
    run = _run(torch, padded.flip(1))
    return tensor.shape[1] - run if _is_padding(run, tensor) else None


def _run(torch: Any, padded: Any) -> Any:
    """Return how many leading elements of each row are set."""
    return padded.to(torch.int64).cumprod(1).sum(1)


def _is_padding(run: Any, tensor: Any) -> bool:
    """Return whether most rows have a run of some length, and not all the same: what one value fills by chance is short."""
    long = run >= max(2, tensor.shape[1] // 32)
    return bool(2 * long.sum() > len(run)) and bool(run.max() > run.min())

"""Makes each change alone in a program that does something for every one of them: a fork each of one process that has loaded torch.

Prints JSON: of each change its name, what its `Watch` tells, the loss of each step, and the error that ended it, "" for none.
A change that needs more is given it in `program`; one that nothing on a CPU can give it is listed in `test_changes.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

#: As it is when torch is imported: compiling is tested by itself, one of the variables is what a change takes away, and no change asks
#: for so many threads.
ENVIRONMENT = {"TORCHDYNAMO_DISABLE": "1", "CUDA_LAUNCH_BLOCKING": "1", "OMP_NUM_THREADS": "61"}
STEPS = 6


def program(torch: Any, begin: Callable[[int], object]) -> list[float]:
    """Train a little network; ``begin`` is called with the number of each step. Return the losses."""
    import numpy as np
    from torch import nn

    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.enabled = True, False
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.images = nn.Conv2d(3, 8, 2)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, images: Any) -> Any:
            x = self.layer(self.images(images).flatten(2).transpose(1, 2))
            return self.attention(x, x, x)[0]

    network, head, wide = Network(), nn.Linear(8, 1), nn.Linear(62, 1).double()
    wrapped = nn.parallel.DistributedDataParallel(head, find_unused_parameters=True)
    groups = [{"params": [p], "weight_decay": 0.1 * (p.dim() > 1)} for p in (*network.parameters(), *head.parameters())]
    optimizer, scaler = torch.optim.AdamW(groups, lr=1e-2), torch.amp.GradScaler("cpu")
    array = torch.from_numpy(np.ones(62))
    images = [torch.full((3, 3, 3), float(i)) for i in range(STEPS * 2)]
    losses: list[float] = []
    for step, batch in enumerate(torch.utils.data.DataLoader(images, batch_size=2, num_workers=1)):
        begin(step)
        optimizer.zero_grad(set_to_none=False)
        with torch.autograd.set_detect_anomaly(True, check_nan=False):
            loss = torch.fft.irfft(torch.fft.rfft(array, n=62), n=62).mean() + wide(array).mean().detach()
            for part in network(batch).float().chunk(2):
                loss = loss + wrapped(part).square().mean()
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        with contextlib.suppress(AssertionError, RuntimeError):  # there is no GPU
            torch.cuda.synchronize()
        torch.cuda.empty_cache()
        losses.append(float(loss.detach()))
    return losses


def make(torch: Any, changes: Any, name: str) -> dict[str, Any]:
    """Run the program with one change, turned off for a step where that is possible; return what became of it."""
    watch, change = changes.Watch(), changes.changes_by_name({})[name]
    losses, error = list[float](), ""
    for variable, value in change.environment.items():
        os.environ[variable] = value(os.environ.get(variable, ""))
    torch.set_num_threads(1 if "OMP_NUM_THREADS" not in change.environment else int(os.environ["OMP_NUM_THREADS"]))

    def begin(step: int) -> None:
        if watch.turns is not None and watch.count and step >= STEPS - 2:
            watch.turn(step == STEPS - 1)
        for work in (*watch.each_step, *watch.at_step.pop(step, ())):
            work()

    try:
        change.arm(torch, watch)
        losses = program(torch, begin)
        for work in watch.at_end:
            work()
    except Exception:
        error = traceback.format_exc()
    return {"name": name, "losses": losses, "error": error, **watch.record()}


def in_a_fork(torch: Any, changes: Any, name: str) -> dict[str, Any]:
    """Return what ``make`` does in a process of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        with os.fdopen(writing, "w") as file:
            json.dump(make(torch, changes, name), file)
        os._exit(0)  # gloo's threads may wait for the interpreter's lock: own_process
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    os.waitpid(child, 0)
    made: dict[str, Any] = json.loads(text)
    return made


if __name__ == "__main__":
    import torch
    import torch._dynamo

    from nsysx.inject.nsysx_probe import changes

    json.dump([in_a_fork(torch, changes, name) for name in changes.changes_by_name()], sys.stdout)

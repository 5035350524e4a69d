"""The program that ``nsysx calibrate`` runs under nsys: it times traced calls by class, a host-bound training step, and products.

Calls and steps are timed first without tracing and then, after ``cudaProfilerStart``, with it. A plain Python loop is timed
beside each figure, because a host's speed can change by half within seconds; the loop shows how much of a difference is the
host's. Run as ``python calibration.py RESULT.json`` with a Python that has torch. Standard library and torch only.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Calls in a timed round, rounds whose median counts, and steps in a timed round.
_CALLS, _ROUNDS, _STEPS = 100, 7, 4
#: Nodes of the larger graph; its launch time minus that of a one-node graph tells what a node adds.
NODES = 200
#: Rows and columns of the matrices that are multiplied, and the target length of a round (s): long enough for the device to reach
#: the clock that it can sustain.
_SIDE, _ROUND_S = 8192, 0.05
#: The range around the traced steps, by which the parent finds their calls.
STEPS_RANGE = "nsysx calibrate steps"


def _reference() -> float:
    begin = time.perf_counter_ns()
    sum(range(2_000))
    return time.perf_counter_ns() - begin


def _timed(call: Callable[[], Any], sync: Callable[[], Any], calls: int = _CALLS) -> list[float]:
    """Return ns per call and ns of the reference loop, each the median over the rounds."""
    rounds, references = [], []
    for _ in range(_ROUNDS):
        sync()
        references.append(_reference())
        begin = time.perf_counter_ns()
        for _ in range(calls):
            call()
        rounds.append((time.perf_counter_ns() - begin) / calls)
        references.append(_reference())
    sync()
    return [statistics.median(rounds), statistics.median(references)]


def _graph(torch: Any, nodes: int) -> Callable[[], Any]:
    x = torch.zeros(64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(nodes):
            x.add_(1)
    return graph.replay  # type: ignore[no-any-return]


def classes(torch: Any) -> dict[str, tuple[Callable[[], Any], int]]:
    """Return class -> a function that makes one call of it, and the number of calls in a round."""
    x, y = torch.zeros(256, device="cuda"), torch.ones(256, device="cuda")
    event, stream, nvtx = torch.cuda.Event(), torch.cuda.current_stream(), torch.cuda.nvtx

    def pair() -> None:
        nvtx.range_push("x")
        nvtx.range_pop()

    return {
        "launch": (lambda: x.add_(1), _CALLS),
        "copy": (lambda: x.copy_(y), _CALLS),
        "memset": (lambda: x.zero_(), _CALLS),
        "event": (lambda: event.record(), _CALLS),
        "sync": (lambda: stream.synchronize(), _CALLS),
        "other": (lambda: torch.cuda.current_device(), _CALLS),
        "range_pair": (pair, _CALLS),
        "mark": (lambda: nvtx.mark("x"), _CALLS),
        "graph_launch": (_graph(torch, 1), 10),
        "graph_nodes": (_graph(torch, NODES), 10),
    }


def products(torch: Any) -> dict[str, float]:
    """Return number format -> FLOP/s of a large GEMM without tracing, the median over the rounds.

    A format that this device or this torch lacks is left out. A product of two n x n matrices counts as 2 n^3 FLOP.
    """
    rates = {}
    formats = {"bf16": (torch.bfloat16, False), "fp16": (torch.float16, False), "tf32": (torch.float32, True)}
    formats["fp32"] = (torch.float32, False)
    before = torch.backends.cuda.matmul.allow_tf32
    for name, (dtype, tf32) in formats.items():
        with contextlib.suppress(Exception):  # a format that this device lacks is no failure of the calibration
            torch.backends.cuda.matmul.allow_tf32 = tf32
            a, b, out = (torch.randn(_SIDE, _SIDE, device="cuda", dtype=dtype) for _ in range(3))
            rates[name] = _product(torch, a, b, out)
    torch.backends.cuda.matmul.allow_tf32 = before
    return rates


def _product(torch: Any, a: Any, b: Any, out: Any) -> float:
    """Return the FLOP/s of ``out = a @ b``."""

    def seconds(calls: int) -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            torch.mm(a, b, out=out)
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    seconds(2)
    calls = max(2, round(_ROUND_S / seconds(1)))
    rounds = [seconds(calls) / calls for _ in range(_ROUNDS)]
    return float(2 * _SIDE**3 / statistics.median(rounds))


def step(torch: Any) -> Callable[[], Any]:
    """Return a function that runs a host-bound training step."""
    from torch import nn

    layers = [nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 256), nn.GELU()) for _ in range(24)]
    model = nn.Sequential(*layers, nn.Linear(256, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, foreach=False)
    x = torch.randn(32, 256, device="cuda")

    def once() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return once


def main(result: str) -> None:
    """Time everything without and with tracing, and write the figures to the file ``result``."""
    import torch as installed

    torch: Any = installed
    sync = torch.cuda.synchronize
    calls, train = classes(torch), step(torch)
    for _ in range(5):
        train()
    measured: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "calls": {},
        "step": {},
    }
    measured["products"] = products(torch)
    for tag in ("off", "on"):
        if tag == "on":
            torch.cuda.cudart().cudaProfilerStart()
            train()  # the first traced calls pay for buffers
        for name, (call, often) in calls.items():
            measured["calls"].setdefault(name, {})[tag] = _timed(call, sync, often)
        torch.cuda.nvtx.range_push(STEPS_RANGE)
        measured["step"][tag] = _timed(lambda: (train(), sync()), sync, _STEPS)
        torch.cuda.nvtx.range_pop()
    torch.cuda.cudart().cudaProfilerStop()
    Path(result).write_text(json.dumps({**measured, "steps": _STEPS * _ROUNDS}), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])

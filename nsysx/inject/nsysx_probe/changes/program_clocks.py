"""How a program times itself. Nothing of it makes a step shorter, so no change is tried."""

from __future__ import annotations

from . import Change, Remedy

_OWN = "it changes what the program's own clocks read, and no step"
CHANGES: tuple[Change, ...] = ()
UNTRIED = (
    Remedy(
        "busy-windows", "Move copies out of the window, warm up, and keep the stream busy while the CPU launches",
        "for _ in range(10): F.linear(x, w)   # first calls out of the way\n"
        "torch.cuda._sleep(1_000_000)         # the stream is busy while the CPU launches\n"
        "start.record(); y = F.linear(x, w); end.record()",
        "The data is on the GPU already, and you take the median of many windows.", untried=_OWN,
    ),
    Remedy(
        "benchmark-timer", "torch.utils.benchmark.Timer, or synchronize before and after, warm up, and take a median",
        'from torch.utils.benchmark import Timer\nprint(Timer("op(x)", globals=globals()).blocked_autorange())',
        "Nothing else may run on the GPU at the time.", untried=_OWN,
    ),
    Remedy(
        "timed-graph",
        "A kernel shorter than its launch cannot be timed from the CPU one call at a time, nor by repeating the call: use the time given "
        "here, or time a CUDA graph of 100 calls between two events and divide",
        "graph = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(graph):\n    for _ in range(100): y = op(x)\n"
        "start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))\n"
        "graph.replay(); start.record(); graph.replay(); end.record(); end.synchronize()\n"
        'print(start.elapsed_time(end) / 100, "ms")',
        "The operation can be captured: no value of it is read on the CPU.", untried=_OWN,
    ),
)  # fmt: skip

"""nsysx: where the step time of a PyTorch program went, from an Nsight Systems capture.

In a program that reads captures:

    s = nsysx.report("run.sqlite")                  the answer, every table, and the events behind them as frames
    nsysx.compare("before.sqlite", "after.sqlite")  before against after

In a program that is profiled, if you want to edit it:

    nsysx.step()                                    a step begins here
    with nsysx.range("augment"): ...                a range with a name
    with nsysx.capture(): ...                       nothing else is captured

``import nsysx`` imports only the standard library; heavy modules are loaded on first use.
"""

import contextlib as _contextlib
import sys as _sys

__version__ = "0.1.0"

__all__ = ["NotRecorded", "NsysxError", "__version__", "capture", "compare", "range", "report", "step"]

#: Names loaded on first use, and the modules that have them.
_LATER = {"report": "nsysx.api", "compare": "nsysx.api", "NotRecorded": "nsysx.api", "NsysxError": "nsysx.errors"}


def __getattr__(name):
    if name in _LATER:
        import importlib

        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module 'nsysx' has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *_LATER})


def step() -> None:
    """Mark where a training step begins, for loops in which the probe of ``nsysx run`` does not find it by itself.

    Call it once per iteration, at its start. Under ``nsysx run`` it ends the open step and begins the next; from then on
    only these calls make steps. Without ``nsysx run`` it does nothing. A program that must not depend on nsysx can use
    plain NVTX, ``with nvtx.annotate(f"step {i}"):`` around the iteration, and read the report with
    ``nsysx report --step-range '^step '``.

    >>> nsysx.step()
    """
    probe = _sys.modules.get("nsysx_probe.probe")
    if probe is not None:
        probe.step()


@_contextlib.contextmanager
def range(name):
    """Name the code inside: an NVTX range that reports show under "Ranges of your own".

    Also a decorator: ``@nsysx.range("augment")``. It needs the package nvtx, costs a third of a microsecond without a profiler,
    and does nothing if nvtx is not installed.

    >>> with nsysx.range("augment"):
    ...     pass
    """
    try:
        import nvtx
    except ImportError:
        yield
        return
    nvtx.push_range(name)
    try:
        yield
    finally:
        nvtx.pop_range()


@_contextlib.contextmanager
def capture():
    """Capture only the code inside, if the program runs under ``nsysx run --steps manual``.

    The window opens with cudaProfilerStart and closes with cudaProfilerStop; nsys records only the first window. Without a
    profiler, without PyTorch or without a GPU it does nothing.

    >>> with nsysx.capture():
    ...     pass
    """
    _profiler("cudaProfilerStart")
    try:
        yield
    finally:
        _profiler("cudaProfilerStop")


def _profiler(call):
    """Open or close the window of nsys once the GPUs have finished the work queued so far."""
    torch, probe = _sys.modules.get("torch"), _sys.modules.get("nsysx_probe.draining")
    # A torch without CUDA, a driver that does not answer, a pending CUDA error of the program: the program goes on.
    with _contextlib.suppress(Exception):
        if torch is not None and torch.cuda.is_available():
            if probe is not None and call == "cudaProfilerStop":
                probe.drain()
            else:
                torch.cuda.synchronize()
            getattr(torch.cuda.cudart(), call)()

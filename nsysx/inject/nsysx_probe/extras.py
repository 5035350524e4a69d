"""Recorded only on request (NSYSX_LINES=1): the Python line of each wait."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import ranges
from .output import Output


def mark_lines(torch: Any, out: Output, active: Callable[[], bool]) -> None:
    """Mark each Python line that is about to wait. Torch calls back before it synchronizes; the callbacks cannot be removed."""
    if not torch.backends.cuda.is_built():
        out.errors.append("NSYSX_LINES needs a torch built with CUDA")
        return
    libraries = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<frozen")
    foreign: dict[str, bool] = {}
    count = out.counts["sync"].__next__

    def waits(*_: Any) -> None:
        try:
            if not (active() and out.recording):
                return
            frame = sys._getframe(1)
            inner = frame
            while frame is not None:
                file = frame.f_code.co_filename
                is_foreign = foreign.get(file)
                if is_foreign is None:
                    is_foreign = foreign[file] = not file.startswith(libraries)
                if is_foreign:
                    break
                frame = frame.f_back  # type: ignore[assignment]
            frame = frame or inner
            code = frame.f_code
            out.backend.mark(out.text(ranges.sync(code.co_filename, frame.f_lineno, code.co_name)))
            count()
        except Exception as error:
            out.fail("lines", error)

    try:
        from torch.cuda import _gpu_trace

        torch._C._activate_gpu_trace()
        _gpu_trace.register_callback_for_stream_synchronization(waits)
        _gpu_trace.register_callback_for_device_synchronization(waits)
        _gpu_trace.register_callback_for_event_synchronization(waits)
    except Exception as error:
        out.wrong("lines", error)

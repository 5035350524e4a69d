"""The lines of the program that one worker of a DataLoader runs for one batch: what a sample costs, and where.

nsys sees nothing of a forked worker, and the thread that waits for it says only how long it waits. So the first worker of the first
loader that has any counts the lines of its second batch (the first one opens files and fills caches): how often each of the program's
own lines runs, how long it takes with what it calls in libraries, how often each function begins, and for all of the batch the time of the
clock, of the CPU, and the bytes read; and what compositions of libraries apply, in order (``worker_transforms``). Its parent finds that
in a file beside its own. A worker that is started anew (``spawn``, ``forkserver``) learns its number after it has imported torch: it
looks for that when its first batch begins.

The worker draws no number more or less, and makes the same batch. Where a tracer is at work already, nothing is counted. After
``WORKER_MOST_NS`` or ``WORKER_MOST_EVENTS`` counting stops within the batch, and says so, with the time of what was counted.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from . import patch
from .probe_bounds import WORKER_BATCH, WORKER_LINES, WORKER_MOST_EVENTS, WORKER_MOST_NS
from .sources import Sources
from .worker_transforms import Transforms

#: Who forks workers, by its file and function; the number of the worker is its local ``i``.
_FORKS = ("torch/utils/data/dataloader.py", "__init__")
#: Classes whose ``fetch`` makes a batch in a worker.
_FETCHERS = ("_MapDatasetFetcher", "_IterableDatasetFetcher")


def file_of(folder: str, parent: int) -> Path:
    """Return the file of what a worker of a process has counted."""
    return Path(folder) / f"worker-{parent}.json"


def noted(folder: str | None, parent: int, sources: Sources) -> dict[str, Any] | None:
    """Return what a worker of a process has counted, None as long as there is nothing; ``sources`` keeps the text of its lines."""
    try:
        text = file_of(folder, parent).read_text(encoding="utf-8") if folder else ""
        record = json.loads(text) if text else None
        for file, line, *_ in record["lines"] if record else ():
            sources.seen(file, line, False)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if isinstance(record, dict) else None


def follow(torch: Any, folder: str | None, sources: Sources) -> None:
    """Count one batch of this process if it is the first worker that a loader forks; called in the forked child."""
    if folder and _worker_number() == 0:
        _follow(torch, sources, lambda: _free(file_of(folder, os.getppid())))


def follow_started(torch: Any, environ: Mapping[str, str]) -> None:
    """Count one batch of this process if it becomes the first worker of a loader that starts it anew; called when torch is imported."""
    folder = environ.get("NSYSX_PROBE_DIR")

    def file() -> Path | None:
        info = sys.modules["torch.utils.data._utils.worker"].get_worker_info()
        parent = sys.modules["multiprocessing.process"].parent_process()
        first = info is not None and info.id == 0 and parent is not None
        return _free(file_of(str(folder), parent.pid)) if first else None

    if folder and environ.get("NSYSX_XRAY") != "none" and _is_started():
        _follow(torch, Sources(torch, environ), file)


def _free(file: Path) -> Path | None:
    return None if file.exists() else file


def _is_started() -> bool:
    """Return whether multiprocessing has started this process and makes its object now."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_main" and code.co_filename.replace("\\", "/").endswith("multiprocessing/spawn.py"):
            return True
        frame = frame.f_back
    return False


def _follow(torch: Any, sources: Sources, file: Callable[[], Path | None]) -> None:
    room: Any = sys.modules.get("torch.utils.data._utils.fetch")
    counting = _Counting(sources, file)
    for name in _FETCHERS:
        names = {
            "_nsysx_compiling": torch.compiler.is_dynamo_compiling,
            "_nsysx_enter": counting.enter,
            "_nsysx_leave": counting.leave,
        }
        template = patch.AROUND.replace("ENTER", "_nsysx_enter").replace("LEAVE", "_nsysx_leave")
        kind = getattr(room, name, None)
        if kind is not None:
            counting.patches.append(patch.Patch(kind.fetch, template.replace("FIRST", "possibly_batched_index"), names))
    for each in counting.patches:
        each.on()


def _worker_number() -> int | None:
    """Return which worker of a loader this process becomes, None where no loader forks it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == _FORKS[1] and code.co_filename.replace("\\", "/").endswith(_FORKS[0]):
            number = frame.f_locals.get("i")
            return number if isinstance(number, int) else None
        frame = frame.f_back
    return None


class _Counting:
    """Around the fetches of a worker until one batch has been counted; then they have their own code again.

    ``where`` returns the file of what is counted, None where another worker counts, or has.
    """

    def __init__(self, sources: Sources, where: Callable[[], Path | None]) -> None:
        self.sources, self.where = sources, where
        self.file: Path | None = None
        self.patches: list[patch.Patch] = []
        self.batches = self.events = 0
        self.stopped: str | None = None
        self.counted_ns: int | None = None  # of the batch, where counting stopped within it
        self._lines: dict[tuple[CodeType, int], list[int]] = {}  # runs, time (ns)
        self._calls: dict[CodeType, int] = {}
        self._open: list[tuple[CodeType, int]] = []
        self._transforms = Transforms()
        self._before: dict[str, int | None] = {}
        self._last_ns = self._begin_ns = 0

    def enter(self, index: Any) -> int:
        """A batch begins; return how many samples it has if it is the one to be counted, else 0."""
        self.batches += 1
        if self.batches == 1:
            self.file = self.where()
        if self.file is None:
            self.batches = WORKER_BATCH + 1
            return 0
        if self.batches != WORKER_BATCH + 1 or sys.gettrace() is not None or sys.getprofile() is not None:
            return 0
        samples = len(index) if isinstance(index, (list, tuple)) else 1
        self._before = _used()
        self._begin_ns = self._last_ns = time.perf_counter_ns()
        sys.settrace(self._called)
        return samples

    def leave(self, samples: int) -> None:
        """The batch is made."""
        if samples:
            if self.stopped is None:
                sys.settrace(None)
            self._step(time.perf_counter_ns())
            wall_ns = self._last_ns - self._begin_ns
            used = {
                name: None if n is None or (was := self._before[name]) is None else n - was
                for name, n in _used().items()
            }
            self._write(
                {
                    "batch": WORKER_BATCH,
                    "samples": samples,
                    "wall_ns": wall_ns,
                    **used,
                    "stopped": self.stopped,
                    "counted_ns": wall_ns if self.counted_ns is None else self.counted_ns,
                }
            )
        if self.batches > WORKER_BATCH:
            for each in self.patches:
                each.off()

    def _write(self, record: dict[str, Any]) -> None:
        most = sorted(self._lines.items(), key=lambda item: -item[1][1])[:WORKER_LINES]
        record["lines"] = [
            [self.sources.path(code), number, _name(code), runs, ns] for (code, number), (runs, ns) in most if number
        ]
        calls = sorted(self._calls.items(), key=lambda item: -item[1])[:WORKER_LINES]
        if transforms := self._transforms.rows(self.sources):
            record["transforms"] = transforms
        record["calls"] = [[self.sources.path(code), code.co_firstlineno, _name(code), often] for code, often in calls]
        if self.file is None:
            return
        try:
            scratch = self.file.with_suffix(".tmp")
            scratch.write_text(json.dumps(record), encoding="utf-8")
            scratch.replace(self.file)
        except (OSError, ValueError):
            return

    # ---- what Python tells ------------------------------------------------------------------------------------------

    def _called(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if event != "call" or self.stopped is not None:
            return None
        code = frame.f_code
        transforms = self._transforms.began(frame)
        if self.sources.kind(code) != "user":
            if not transforms:
                return None
            frame.f_trace_lines = False
            return self._within_library
        self._step(time.perf_counter_ns())
        if not _goes_on(frame):
            self._calls[code] = self._calls.get(code, 0) + 1
        self._open.append((code, 0))
        return self._within

    def _within(self, frame: FrameType, event: str, _arg: Any) -> Any:
        now = time.perf_counter_ns()
        self._step(now)
        if event == "line" and self._open:
            self._open[-1] = frame.f_code, frame.f_lineno
            self._lines.setdefault(self._open[-1], [0, 0])[0] += 1
        elif event == "return" and self._open:
            self._transforms.ended(frame)
            self._open.pop()
        self.events += 1
        if self.stopped is None and (self.events >= WORKER_MOST_EVENTS or now - self._begin_ns > WORKER_MOST_NS):
            self.stopped = f"after {self.events:,} lines and returns"
            self.counted_ns = now - self._begin_ns
            sys.settrace(None)
        return None if self.stopped is not None else self._within

    def _within_library(self, frame: FrameType, event: str, _arg: Any) -> Any:
        """A transform of a library, of which only the end is told."""
        if event == "return":
            self._transforms.ended(frame)
        return self._within_library

    def _step(self, now: int) -> None:
        """Give the time since the last event to the line that was open."""
        if self._open and self.stopped is None:
            line = self._lines.setdefault(self._open[-1], [0, 0])
            line[1] += now - self._last_ns
        self._last_ns = now


def _goes_on(frame: FrameType) -> bool:
    """Return whether a generator goes on, rather than that a function begins."""
    return frame.f_lasti > 0 and frame.f_lineno != frame.f_code.co_firstlineno


def _name(code: CodeType) -> str:
    return str(getattr(code, "co_qualname", code.co_name))


def _used() -> dict[str, int | None]:
    """Return the time on a CPU of this thread and of all of the process (ns), and what it has read so far (bytes), from files, caches of
    the system and pipes alike; None where that is not known.
    """
    read: int | None = None
    try:
        fields = Path("/proc/self/io").read_text(encoding="ascii").split()
        read = int(fields[fields.index("rchar:") + 1])
    except (OSError, ValueError, IndexError):
        pass
    return {"cpu_ns": time.thread_time_ns(), "process_cpu_ns": time.process_time_ns(), "read_bytes": read}

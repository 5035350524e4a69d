"""A small machine that runs programs: one thread, streams that are queues, calls that wait. It knows nothing of the replay.

A program is a list of actions that every step repeats:

    ("host", us)                  Python
    ("load", us)                  Python waits for data, in a range that says so
    ("launch", name, us, stream)  a kernel
    ("item", stream)              a copy to pageable memory that waits for itself, and the synchronize behind it
    ("upload", us, stream)        a copy from pageable memory, which holds Python until it is done
    ("stage", us, us, stream)     the same by a staging buffer: Python fills the first part, and is free when the last is on its way
    ("compile", us)               Python compiles, and the first of the trivial calls behind it are slow
    ("sync", stream)              a stream is waited for; None: the device
    ("free",)                     a cudaFree, which waits for the device
    ("turn",)                     the other thread goes on (autograd), until the next turn
    ("record", event, stream), ("hold", event, stream), ("await", event)   an event: recorded, waited for by a stream or by Python
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.builder import Report, Thread

US = 1_000

#: What a call costs Python, which is when its kernel can begin, the pause between two of a stream, how soon a wait returns (us),
#: and how long a copy of a few bytes takes.
CALL, PAUSE, RETURN, COPY = 5, 1, 3, 2
#: What of a staged copy still runs when its call returns (us).
LEFT = 4
#: A copy that begins this soon behind the work before it may as well have waited for it (us).
SOON = 3
#: Bytes that a link to pinned memory moves in a microsecond.
LINK = 55_000

Action = tuple[Any, ...]


@dataclass
class Machine:
    """Runs a program and writes what nsys would have seen. ``ends_us`` holds when the GPU was done with each step.

    ``hidden_us`` is how long Python filled staging buffers whose copies had to wait for their stream, or nearly: that is not seen.
    ``tracing`` is what a profiler adds before each call of a class (us).
    """

    program: Sequence[Action]
    tracing: Mapping[str, int] = field(default_factory=dict)
    report: Report = field(default_factory=Report)
    now: int = 100
    free: dict[int, int] = field(default_factory=dict)
    events: dict[int, int] = field(default_factory=dict)
    ends_us: list[int] = field(default_factory=list)
    hidden_us: int = 0

    def run(self, steps: int) -> Machine:
        """Run so many steps."""
        process = self.report.process(100)
        main, other = process.thread(100, "python"), process.thread(101, "pt_autograd_0")
        for number in range(steps):
            begin, thread, waits = self.now, main, other
            for action in self.program:
                if action[0] == "turn":
                    thread, waits = waits, thread
                else:
                    getattr(self, f"_{action[0]}")(thread, *action[1:])
            main.add_range(f"step {number}", begin * US, self.now * US, domain="nsysx")
            self.ends_us.append(max(self.free.values()))
        return self

    def step_us(self, settled: int) -> float:
        """Return the mean step behind the first ``settled`` ones."""
        return (self.ends_us[-1] - self.ends_us[settled]) / (len(self.ends_us) - 1 - settled)

    def _host(self, thread: Thread, us: int) -> None:
        self.now += us

    def _load(self, thread: Thread, us: int) -> None:
        if us:
            thread.add_range("data DataLoader", self.now * US, (self.now + us) * US, domain="nsysx")
        self.now += us

    def _start(self, stream: int) -> int:
        free = self.free.get(stream)
        return self.now + CALL if free is None else max(self.now + CALL, free + PAUSE)

    def _launch(self, thread: Thread, name: str, us: int, stream: int) -> None:
        self.now += self.tracing.get("launch", 0)
        start = self._start(stream)
        thread.launch(self.now * US, CALL * US, kernel=name, gpu_start=start * US, gpu_dur=us * US, stream=stream)
        self.free[stream] = start + us
        self.now += CALL

    def _item(self, thread: Thread, stream: int) -> None:
        self.now += self.tracing.get("copy", 0)
        start = self._start(stream)
        self.free[stream] = start + COPY
        end = start + COPY + RETURN
        thread.memcpy(
            self.now * US, (end - self.now) * US, kind="DtoH", pageable=True, gpu_start=start * US, gpu_dur=COPY * US, stream=stream
        )  # fmt: skip
        self.now = end
        self._sync(thread, stream)

    def _upload(self, thread: Thread, us: int, stream: int) -> None:
        self.now += self.tracing.get("copy", 0)
        start = self._start(stream)
        self.free[stream] = start + us
        end = start + us + RETURN
        thread.memcpy(
            self.now * US, (end - self.now) * US, pageable=True, bytes=us * LINK, gpu_start=start * US, gpu_dur=us * US, stream=stream
        )  # fmt: skip
        self.now = end

    def _stage(self, thread: Thread, first: int, us: int, stream: int) -> None:
        self.now += self.tracing.get("copy", 0)
        free = self.free.get(stream)
        filled = self.now + CALL + first
        start = filled if free is None else max(filled, free + PAUSE)
        self.hidden_us += first if free is not None and free >= self.now and start - free <= SOON else 0
        end = start + us - LEFT
        thread.memcpy(
            self.now * US, (end - self.now) * US, pageable=True, bytes=us * LINK, gpu_start=start * US, gpu_dur=us * US, stream=stream
        )  # fmt: skip
        self.free[stream] = start + us
        self.now = end

    def _compile(self, thread: Thread, us: int) -> None:
        self.now += us
        for k in range(12):
            self.now += self.tracing.get("other", 0)
            length = 4 if k < 3 else 1
            thread.call("cudaStreamIsCapturing_v10000", self.now * US, length * US)
            self.now += length

    def _wait(self, until: int) -> int:
        return max(self.now, until) + RETURN

    def _sync(self, thread: Thread, stream: int | None) -> None:
        self.now += self.tracing.get("sync", 0)
        done = max(self.free.values(), default=0) if stream is None else self.free.get(stream, 0)
        end = self._wait(done)
        name = "cudaDeviceSynchronize_v3020" if stream is None else "cudaStreamSynchronize_v3020"
        thread.sync(name, at=self.now * US, dur=(end - self.now) * US, stream=stream)
        self.now = end

    def _free(self, thread: Thread) -> None:
        self.now += self.tracing.get("alloc", 0)
        end = self._wait(max(self.free.values(), default=0))
        thread.call("cudaFree_v3020", self.now * US, (end - self.now) * US)
        self.now = end

    def _record(self, thread: Thread, event: int, stream: int) -> None:
        self.now += self.tracing.get("event", 0)
        thread.event_record(event, at=self.now * US, dur=US, stream=stream)
        self.events[event] = self.free.get(stream, 0)
        self.now += 1

    def _hold(self, thread: Thread, event: int, stream: int) -> None:
        self.now += self.tracing.get("event", 0)
        thread.wait_event(event, at=self.now * US, dur=US, stream=stream)
        self.free[stream] = max(self.free.get(stream, 0), self.events.get(event, 0))
        self.now += 1

    def _await(self, thread: Thread, event: int) -> None:
        self.now += self.tracing.get("sync", 0)
        end = self._wait(self.events.get(event, 0))
        thread.sync("cudaEventSynchronize_v3020", at=self.now * US, dur=(end - self.now) * US, event=event)
        self.now = end

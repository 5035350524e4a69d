"""Hypothesis strategies of small reports, made through the builder.

``programs()`` simulates: threads run through their actions, streams are FIFOs, a synchronize returns when its work is done.
``adversarial()`` throws rows together that no machine would produce, with small times so that ties are common.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from tests.builder import Process, Report, Thread

STREAMS = (7, 13)
KERNELS = ("gemm", "softmax", "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
RANGES = ("forward", "blocks.0:Block", "blocks.0.attn:Attention", "data DataLoader", "step 1", "")
DOMAINS = ("", "nsysx")
WAKE = 3

_short = st.integers(1, 20)
_stream = st.sampled_from(STREAMS)
_leaf = st.one_of(
    st.tuples(st.just("python"), st.integers(0, 60)),
    st.tuples(st.just("launch"), _stream, _short, _short, st.integers(1, 80), st.sampled_from(KERNELS)),
    st.tuples(st.just("first_launch"), _stream, st.integers(10, 60)),
    st.tuples(st.just("graph"), _stream, st.lists(_short, min_size=1, max_size=5)),
    st.tuples(st.just("copy"), _stream, st.sampled_from(("HtoD", "DtoH", "DtoD")), st.booleans(), _short),
    st.tuples(st.just("memset"), _stream, _short),
    st.tuples(st.just("stream_sync"), _stream, st.booleans()),
    st.tuples(st.just("device_sync"), st.booleans()),
    st.tuples(st.just("record"), _stream, st.integers(1, 2)),
    st.tuples(st.just("event_sync"), st.integers(1, 2)),
    st.tuples(st.just("wait_event"), _stream, st.integers(1, 2)),
    st.tuples(
        st.just("alloc"), st.sampled_from(("cudaMalloc_v3020", "cudaHostAlloc_v3020", "cudaMallocAsync_v11020")), _short
    ),
    st.tuples(st.just("free"), _short),
    st.tuples(
        st.just("other"), st.sampled_from(("cudaEventQuery_v3020", "cuModuleLoadData", "cudaGetDevice_v3020")), _short
    ),
    st.tuples(st.just("overhead"), _short),
    st.tuples(st.just("untraced"), _stream, _short),
)
_actions = st.recursive(
    st.lists(_leaf, max_size=6),
    lambda inner: st.lists(
        _leaf | st.tuples(st.just("range"), st.sampled_from(RANGES), st.sampled_from(DOMAINS), inner), max_size=6
    ),
    max_leaves=12,
)


@st.composite
def programs(draw: st.DrawFn, *, schema: str = "3.20.3") -> Report:
    """Draw a report that a machine could have produced: up to 2 processes, each of up to 3 threads on one device."""
    report = Report(schema)
    for number in range(draw(st.integers(1, 2))):
        process = report.process(100 + number)
        scripts = draw(st.lists(_actions, min_size=1, max_size=3))
        device = draw(st.integers(0, 1))
        starts = [draw(st.integers(0, 100)) for _ in scripts]
        run(process, scripts, starts, device=device)
    return report


def run(process: Process, scripts: Sequence[Sequence[Any]], starts: Sequence[int], *, device: int = 0) -> None:
    """Run each thread's actions in the order of time and add what a profiler would have seen."""
    free = dict.fromkeys(STREAMS, 0)
    recorded: dict[int, int] = {}
    threads = [process.thread(process.pid + i, f"thread{i}") for i in range(len(scripts))]
    todo = [_flat(script) for script in scripts]
    now = list(starts)
    opened: list[list[int]] = [[] for _ in scripts]
    clock = -1
    while any(todo):
        i = min((n for n in range(len(todo)) if todo[n]), key=lambda n: now[n])
        action, thread = todo[i].pop(0), threads[i]
        now[i] = clock = max(now[i], clock + 1)  # no two threads act at one instant: which came first would be a guess
        if action[0] == "enter":
            opened[i].append(now[i])
            now[i] += 1
        elif action[0] == "leave":
            thread.add_range(action[1], opened[i].pop(), now[i] + 1, domain=action[2])
            now[i] += 2
        else:
            now[i] = _act(process, thread, action, now[i], free, recorded, device)


def _flat(script: Sequence[Any]) -> list[Any]:
    flat: list[Any] = []
    for action in script:
        if action[0] == "range":
            flat += [("enter",), *_flat(action[3]), ("leave", action[1], action[2])]
        else:
            flat.append(action)
    return flat


def _act(
    process: Process, thread: Thread, action: Any, now: int, free: dict[int, int], recorded: dict[int, int], device: int
) -> int:
    """Do one action at ``now``; return when the thread goes on."""
    kind, *rest = action
    if kind == "python":
        return now + rest[0]
    if kind in ("launch", "first_launch"):
        stream, dur = rest[:2]
        latency, length, name = rest[2:] if kind == "launch" else (dur, 10, "gemm")
        start = max(free[stream], now + latency)
        thread.launch(now, dur, kernel=name, gpu_start=start, gpu_dur=length, stream=stream, device=device)
        if kind == "first_launch":
            thread.call("cuLibraryLoadData", now + 2, dur - 5)
        free[stream] = start + length
        return now + dur
    if kind == "graph":
        stream, lengths = rest
        at, nodes = max(free[stream], now + 12), []
        for n, length in enumerate(lengths):
            nodes.append((f"node{n}", at, length))
            at += length + 1
        thread.graph_launch(now, 10, nodes=nodes, stream=stream, device=device)
        free[stream] = at - 1
        return now + 10
    if kind == "copy":
        stream, direction, pageable, length = rest
        start = max(free[stream], now + 5)
        blocks = pageable and direction != "DtoD"
        dur = start + length + WAKE - now if blocks else 6
        thread.memcpy(
            now, dur, kind=direction, gpu_start=start, gpu_dur=length, pageable=pageable, stream=stream, device=device
        )
        free[stream] = start + length
        return now + dur
    if kind == "memset":
        stream, length = rest
        start = max(free[stream], now + 5)
        thread.memset(now, 4, gpu_start=start, gpu_dur=length, stream=stream, device=device)
        free[stream] = start + length
        return now + 4
    if kind == "stream_sync":
        end = max(now, free[rest[0]]) + WAKE
        thread.sync(at=now, dur=end - now, stream=rest[0], device=device, recorded=rest[1])
        return end
    if kind == "device_sync":
        end = max(now, *free.values()) + WAKE
        thread.sync("cudaDeviceSynchronize_v3020", at=now, dur=end - now, device=device, recorded=rest[0])
        return end
    if kind == "record":
        thread.event_record(rest[1], at=now, stream=rest[0], device=device)
        recorded[rest[1]] = free[rest[0]]
        return now + 3
    if kind == "event_sync":
        end = max(now, recorded.get(rest[0], 0)) + WAKE
        thread.sync("cudaEventSynchronize_v3020", at=now, dur=end - now, event=rest[0], device=device)
        return end
    if kind == "wait_event":
        thread.wait_event(rest[1], at=now, stream=rest[0], device=device)
        free[rest[0]] = max(free[rest[0]], recorded.get(rest[1], 0))
        return now + 3
    if kind == "alloc":
        thread.call(rest[0], now, rest[1])
        return now + rest[1]
    if kind == "free":
        end = max(now, *free.values()) + rest[0]
        thread.call("cudaFree_v3020", now, end - now)
        return end
    if kind == "other":
        thread.call(rest[0], now, rest[1])
        return now + rest[1]
    if kind == "overhead":
        thread.profiler_overhead(now, rest[0])
        return now + rest[0]
    stream, length = rest  # launched outside the trace
    start = max(free[stream], now + 1)
    process.kernel("untraced", start, length, stream=stream, device=device)
    free[stream] = start + length
    return now + 1


_APIS = (
    "cudaLaunchKernel_v7000", "cudaGraphLaunch_v10000", "cudaMemcpyAsync_v3020", "cudaMemcpy_v3020", "cudaMemsetAsync_v3020",
    "cudaStreamSynchronize_v3020", "cudaDeviceSynchronize_v3020", "cudaEventSynchronize_v3020", "cudaMalloc_v3020",
    "cudaFree_v3020", "cudaHostAlloc_v3020", "cuLibraryLoadData", "cudaEventRecord_v3020", "cudaStreamWaitEvent_v3020",
    "cudaGetDevice_v3020",
)  # fmt: skip
_NO_CALL = 999_999


@st.composite
def adversarial(draw: st.DrawFn, *, schema: str = "3.20.3") -> Report:
    """Draw rows without sense: ties, no length, overlap on one stream, GPU ops before their calls, calls that cross."""
    report = Report(schema)
    time, length = st.integers(0, 60), st.integers(0, 20)
    stream, device = _stream, st.integers(0, 1)
    for number in range(draw(st.integers(1, 2))):
        process = report.process(100 + number)
        threads = [process.thread(process.pid + i) for i in range(draw(st.integers(1, 2)))]
        which = st.sampled_from(threads)

        def op(process: Process, correlation: int | None) -> None:
            place = {"stream": draw(stream), "device": draw(device), "correlation": correlation}
            start, dur, kind = draw(time), draw(length), draw(st.integers(0, 3))
            if kind == 0:
                process.kernel(draw(st.sampled_from(KERNELS)), start, dur, **place)
            elif kind == 1:
                copy = draw(st.sampled_from(("HtoD", "DtoH", "DtoD", "PtoP", "UVM_HtoD")))
                process.copy(copy, start, dur, pageable=draw(st.booleans()), **place)
            elif kind == 2:
                process.set_memory(start, dur, **place)
            else:
                process.graph_trace(start + 1, dur, **place)

        for _ in range(draw(st.integers(0, 8))):
            thread, api, at, dur = draw(which), draw(st.sampled_from(_APIS)), draw(time), draw(length)
            event = draw(st.sampled_from((None, 1, 2)))
            if "Synchronize" in api:
                thread.sync(
                    api, at=at, dur=dur, stream=draw(st.sampled_from((None, *STREAMS))), event=event, device=draw(device),
                    recorded=draw(st.booleans()),
                )  # fmt: skip
            elif "EventRecord" in api:
                thread.event_record(event or 1, at=at, dur=dur, stream=draw(stream), device=draw(device))
            elif "WaitEvent" in api:
                thread.wait_event(event or 1, at=at, dur=dur, stream=draw(stream), device=draw(device))
            else:
                extra = draw(st.integers(0, 5))
                call = thread.call(
                    api, at, dur, alias=extra == 1, backtrace=[("frame", "module")] if extra in (1, 2) else None
                )
                for _ in range(
                    draw(st.integers(0, 3)) if api.startswith(("cudaLaunch", "cudaGraph", "cudaMem")) else 0
                ):
                    op(process, call.correlation)
        for _ in range(draw(st.integers(0, 3))):
            op(process, draw(st.sampled_from((0, None, _NO_CALL))))
        for _ in range(draw(st.integers(0, 2))):
            draw(which).profiler_overhead(draw(time), draw(length))
        for _ in range(draw(st.integers(0, 5))):
            start = draw(time)
            draw(which).add_range(
                draw(st.sampled_from(RANGES)), start, draw(st.sampled_from((None, start, start + draw(length)))),
                domain=draw(st.sampled_from(DOMAINS)), registered=draw(st.booleans()),
                ends_on=draw(st.sampled_from((None, None, None, *threads))),
            )  # fmt: skip
    return report


def reports() -> st.SearchStrategy[Report]:
    """Draw either kind."""
    return st.one_of(programs(), adversarial())

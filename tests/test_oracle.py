"""The oracle against truths worked out by hand, against a count of single nanoseconds, and against its own invariants."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import builder, oracle, strategies
from tests.builder import Report
from tests.examples import examples

US = 1000
PROCESS = 1 << 24  # vm 1; + pid

slow = settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)


def data_of(report: Report) -> oracle.Data:
    with tempfile.TemporaryDirectory() as folder:
        return oracle.read(report.write(Path(folder) / "r.sqlite"))


def waits_by_name(data: oracle.Data) -> dict[str, list[tuple[int, int, int]]]:
    found: dict[str, list[tuple[int, int, int]]] = {}
    for (_, _, name, _), split in sorted(oracle.wait_split(data).items(), key=lambda item: item[0][3]):
        found.setdefault(name, []).append(split)
    return found


def causes(data: oracle.Data, process: int, t0: int, t1: int, device: int = 0) -> dict[str, int]:
    return {cause: ns for cause, ns in oracle.idle_causes(data, process, device, t0, t1).items() if ns}


# -- canned cases --------------------------------------------------------------------------------------------------------


def test_gpu_bound_step() -> None:
    data, process = data_of(builder.case_a()), PROCESS + 100
    totals = oracle.totals(data)
    assert (totals["kernels"], totals["kernel_ns"]) == (210, 60_500 * US)
    assert (totals["memcpys"], totals["memcpy_ns"]) == (1, 2 * US)
    assert totals["kernels_by_name"]["bwd_gemm"] == (100, 40_000 * US)
    assert totals["api"]["cudaMemcpyAsync"] == (1, 19_014 * US, 19_014 * US)
    assert totals["api_by_kind"]["launch"][:2] == (210, 2100 * US)
    ledger = oracle.ledger(data, process, 0, 10 * US, 60_532 * US)
    assert (ledger["compute"], ledger["copy"], ledger["busy"], ledger["idle"]) == (
        60_500 * US,
        2 * US,
        60_502 * US,
        20 * US,
    )
    # The main thread leaves its copy 2 us after the GPU ran dry, and hands over to autograd's thread 8 us later.
    assert causes(data, process, 10 * US, 60_532 * US) == {
        "copy_call": 2 * US, "host_code": 8 * US, "launch_latency": 10 * US,
    }  # fmt: skip
    assert causes(data, process, 0, 60_534 * US) == {
        "copy_call": 2 * US, "host_code": 8 * US, "launch_latency": 20 * US, "no_further_work": 2 * US,
    }  # fmt: skip
    assert waits_by_name(data) == {
        "cudaMemcpyAsync": [(19_010 * US, 2 * US, 2 * US)],
        "cudaEventSynchronize": [(39_402 * US, 0, 2 * US)],
    }


def test_launch_bound_step() -> None:
    data, process = data_of(builder.case_b()), PROCESS + 100
    ledger = oracle.ledger(data, process, 0, 10 * US, 30_534 * US)
    assert (ledger["busy"], ledger["idle"]) == (25_502 * US, 5022 * US)
    assert causes(data, process, 10 * US, 30_534 * US) == {
        "copy_call": 2 * US, "host_code": 8 * US, "launch_latency": 5012 * US,
    }  # fmt: skip
    assert waits_by_name(data)["cudaMemcpyAsync"] == [(19_010 * US, 2 * US, 2 * US)]
    assert waits_by_name(data)["cudaEventSynchronize"] == [(404 * US, 0, 2 * US)]


def test_malloc_amid_gpu_work_is_no_wait() -> None:
    waits = waits_by_name(data_of(builder.case_malloc_trap()))
    assert waits["cudaMalloc"] == [(0, 0, 1000 * US)]
    assert waits["cudaMemcpyAsync"] == [(18_010 * US, 2 * US, 2 * US)]


def test_equal_ids_of_two_processes() -> None:
    data = data_of(builder.case_equal_ids())
    assert oracle.totals(data)["kernels_by_name"] == {"alpha": (3, 150), "beta": (3, 153)}
    for op in data.ops:
        call = data.call_of(op)
        assert call is not None and call.process == op.process
    assert causes(data, PROCESS + 200, 0, 300) == {"launch_latency": 60, "host_code": 60, "no_further_work": 30}
    assert oracle.busy(data, PROCESS + 201, 0, 0, 300) == 153


def test_one_call_with_486_kernels() -> None:
    data, process = data_of(builder.case_graph()), PROCESS + 300
    totals = oracle.totals(data)
    assert (totals["kernels"], totals["kernel_ns"], totals["gpu_ops_without_call"]) == (486, 4860, 0)
    assert totals["api"]["cudaGraphLaunch"] == (1, 50, 50)
    assert causes(data, process, 0, 7200) == {
        "host_code": 100, "launch_latency": 900, "kernel_gap": 970, "no_further_work": 370,
    }  # fmt: skip
    assert waits_by_name(data) == {"cudaDeviceSynchronize": [(6630, 0, 370)]}


def test_opaque_graph() -> None:
    data = data_of(builder.case_opaque_graph())
    assert oracle.totals(data)["kernels"] == 0
    assert oracle.ledger(data, PROCESS + 300, 0, 0, 7200)["compute"] == 5830
    assert waits_by_name(data) == {"cudaDeviceSynchronize": [(6630, 0, 370)]}


def test_kernel_before_its_call() -> None:
    data = data_of(builder.case_kernel_before_call())
    assert causes(data, PROCESS + 400, 0, 250) == {"host_code": 150, "launch_latency": 20}


def test_autograd_thread_without_ranges() -> None:
    data = data_of(builder.case_autograd_without_ranges())
    backward = next(op for op in data.ops if op.name == "bwd")
    call = data.call_of(backward)
    assert call is not None
    assert oracle.innermost(data, call.global_tid, call.start) is None
    main = next(r.global_tid for r in data.ranges)
    outer = oracle.innermost(data, main, call.start)
    assert outer is not None and outer.name == "backward"


def test_nested_ranges_of_one_name() -> None:
    data = data_of(builder.case_nested_same_name())
    found = [oracle.innermost(data, c.global_tid, c.start) for c in data.calls]
    assert [(r.start, r.end) for r in found if r] == [(100, 300), (0, 1000)]
    assert sorted((r.start, ns) for r, ns in oracle.range_self_times(data)) == [(0, 800), (100, 200)]
    at = [oracle.innermost(data, data.calls[0].global_tid, t) for t in (-1, 0, 99, 100, 299, 300, 999, 1000)]
    assert [r and r.start for r in at] == [None, 0, 0, 100, 100, 0, 0, None]


def test_library_load_inside_a_launch() -> None:
    data = data_of(builder.case_load_inside_launch())
    assert [(c.name, ns) for c, ns in oracle.self_times(data)] == [
        ("cudaLaunchKernel", 300), ("cuLibraryLoadData", 700), ("cudaLaunchKernel", 10),
    ]  # fmt: skip
    assert oracle.totals(data)["api_by_kind"] == {"launch": (2, 1010, 310), "load": (1, 700, 700)}
    assert oracle.cpu_ledger(data, data.calls[0].global_tid, 50, 1200) == {"launch": 260, "load": 700, "outside": 190}
    assert causes(data, PROCESS + 700, 0, 1160) == {"launch_latency": 1030, "host_code": 50}


def test_copies_of_calls_count_once() -> None:
    data = data_of(builder.case_copies_of_calls())
    assert {(c.name, c.start, c.end) for c in data.calls} == {
        ("cudaMalloc", 1000, 1100), ("cudaLaunchKernel", 2000, 2010), ("cudaStreamSynchronize", 3000, 3050),
        ("cuMemAlloc_v2", 4000, 4070),
    }  # fmt: skip
    assert oracle.totals(data)["gpu_ops_without_call"] == 0


def test_a_backtrace_row_alone_is_a_call() -> None:
    """Where the capture was cut only the copy may be left."""
    report = builder.case_copies_of_calls()
    rows = report.rows["CUPTI_ACTIVITY_KIND_RUNTIME"]
    report.rows["CUPTI_ACTIVITY_KIND_RUNTIME"] = [r for r in rows if r["eventClass"] == 67]
    assert oracle.totals(data_of(report))["api_calls"] == 3


def test_odd_ranges() -> None:
    data = data_of(builder.case_odd_ranges())
    found = [oracle.innermost(data, c.global_tid, c.start) for c in data.calls]
    assert [(r.name, r.domain) for r in found if r] == [
        ("epoch", ""), ("", ""), ("ncclAllReduce", "NCCL"), ("caf\ufffd \ufffd", ""),
    ]  # fmt: skip
    assert [r.name for r in data.ranges if not r.closed] == ["epoch"]


# -- single rules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recorded", "plain", "kind"),
    [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel", "launch"),
        ("cudaLaunchKernel_ptsz_v7000", "cudaLaunchKernel", "launch"),
        ("cudaLaunchKernelExC_v11060", "cudaLaunchKernelExC", "launch"),
        ("cuLaunchKernelEx", "cuLaunchKernelEx", "launch"),
        ("cudaGraphLaunch_v10000", "cudaGraphLaunch", "graph_launch"),
        ("cudaGraphInstantiateWithFlags_v11040", "cudaGraphInstantiateWithFlags", "other"),
        ("cudaMemcpy2DAsync_v3020", "cudaMemcpy2DAsync", "copy"),
        ("cuMemcpyDtoHAsync_v2", "cuMemcpyDtoHAsync_v2", "copy"),
        ("cudaMemsetAsync_v3020", "cudaMemsetAsync", "memset"),
        ("cudaEventSynchronize_v3020", "cudaEventSynchronize", "sync"),
        ("cuCtxSynchronize", "cuCtxSynchronize", "sync"),
        ("cudaStreamWaitEvent_v3020", "cudaStreamWaitEvent", "event"),
        ("cudaMallocAsync_v11020", "cudaMallocAsync", "alloc"),
        ("cuMemAlloc_v2", "cuMemAlloc_v2", "alloc"),
        ("cuMemCreate", "cuMemCreate", "alloc"),
        ("cudaFreeHost_v3020", "cudaFreeHost", "free"),
        ("cuMemUnmap", "cuMemUnmap", "free"),
        ("cudaHostAlloc_v3020", "cudaHostAlloc", "host_alloc"),
        ("cuLibraryLoadData", "cuLibraryLoadData", "load"),
        ("cuModuleGetLoadingMode", "cuModuleGetLoadingMode", "other"),
        ("cudaStreamGetCaptureInfo_v2_v11030", "cudaStreamGetCaptureInfo_v2", "other"),
        ("cudaMemGetInfo_v3020", "cudaMemGetInfo", "other"),
    ],
)
def test_names_and_kinds(recorded: str, plain: str, kind: str) -> None:
    assert oracle.plain_name(recorded) == plain
    assert oracle.api_kind(plain) == kind


def test_ledger_priorities_and_hidden_parts() -> None:
    report = Report()
    process = report.process(1)
    process.kernel("gemm", 10, 30, stream=7)  # 10..40
    process.kernel("ncclDevKernel_AllReduce", 30, 30, stream=13)  # 30..60
    process.copy("HtoD", 35, 35, stream=14)  # 35..70
    process.set_memory(65, 15, stream=15)  # 65..80
    assert oracle.ledger(data_of(report), PROCESS + 1, 0, 0, 100) == {
        "compute": 30, "comm": 20, "copy": 10, "memset": 10, "idle": 30, "busy": 70, "hidden_comm": 10, "hidden_copy": 25,
    }  # fmt: skip


def test_each_idle_cause() -> None:
    report = Report()
    process = report.process(1)
    main, other = process.thread(1), process.thread(2)
    at = 0
    truth: dict[str, int] = {}

    def gap(cause: str, ns: int = 40) -> int:
        """A kernel of 10 at ``at``, launched by ``main`` 20 before its start: what comes before is 40 of ``cause``."""
        nonlocal at
        truth[cause] = truth.get(cause, 0) + ns
        begin = at
        main.launch(begin + 40, 5, gpu_start=begin + 60, gpu_dur=10)
        truth["launch_latency"] = truth.get("launch_latency", 0) + 20
        at = begin + 70
        return begin

    for _ in range(20):  # so many that their median is what is usual
        gap("host_code")
    main.sync(at=gap("sync"), dur=40)
    for api, cause in (
        ("cudaMalloc_v3020", "alloc"), ("cudaFree_v3020", "alloc"), ("cudaHostAlloc_v3020", "alloc"),
        ("cuModuleLoadData", "load"), ("cudaMemcpyAsync_v3020", "copy_call"), ("cudaMemsetAsync_v3020", "copy_call"),
        ("cudaEventRecord_v3020", "other_api"), ("cudaGetDevice_v3020", "other_api"), ("cudaLaunchKernel_v7000", "other_api"),
    ):  # fmt: skip
        main.call(api, gap(cause), 40)
    main.add_range("data DataLoader", (begin := gap("data_loader")), begin + 40, domain="nsysx")
    other.profiler_overhead(gap("profiler"), 40)  # on any thread of the process
    other.call("cudaMalloc_v3020", gap("host_code"), 40)  # what another thread did is not asked
    main.call("cudaLaunchKernel_v7000", (begin := gap("other_api", 10)), 40)  # an innermost call wins
    main.call("cuModuleLoadData", begin, 30)
    truth["load"] += 30
    # Queued on one stream with a pause, queued behind another stream, and a launch that is still running when it falls idle.
    main.launch(at - 22, 1, gpu_start=at + 5, gpu_dur=10)  # a launch takes 20: it could have started before the gap
    truth["kernel_gap"] = 5
    main.launch(at - 8, 1, gpu_start=at + 18, gpu_dur=10, stream=13)
    truth["dependency"] = 3
    main.launch(at + 27, 20, gpu_start=at + 38, gpu_dur=10, stream=13)
    truth["launch_latency"] += 10
    process.kernel("untraced", at + 55, 10)
    truth["untraced_launch"] = 7
    data = data_of(report)
    assert causes(data, PROCESS + 1, 0, at + 75) == {**truth, "no_further_work": 10}
    assert causes(data, PROCESS + 1, -50, 0) == {"host_code": 50}
    assert causes(data, PROCESS + 1, at + 100, at + 110) == {"no_further_work": 10}


def test_profiler_is_subtracted_and_splits_no_gap() -> None:
    report = Report()
    main = report.process(1).thread()
    main.launch(0, 5, gpu_start=10, gpu_dur=10)
    main.launch(100, 5, gpu_start=120, gpu_dur=10)
    main.profiler_overhead(50, 20)
    main.profiler_overhead(60, 20)  # overlaps the first
    main.profiler_overhead(110, 4)  # inside the launch latency
    assert causes(data_of(report), PROCESS + 1, 20, 120) == {"host_code": 50, "profiler": 34, "launch_latency": 16}


def test_waits_name_stream_event_and_device() -> None:
    report = Report()
    process = report.process(1)
    main = process.thread()
    main.launch(0, 5, gpu_start=10, gpu_dur=490, stream=7, device=1)
    main.event_record(1, at=6, stream=7, device=1)
    main.launch(10, 5, gpu_start=500, gpu_dur=500, stream=7, device=1)
    main.launch(20, 5, gpu_start=30, gpu_dur=170, stream=13, device=1)
    main.launch(26, 2, gpu_start=30, gpu_dur=1300, stream=7, device=0)  # the other device is not waited for
    main.launch(28, 1, gpu_start=30, gpu_dur=150, stream=13, device=0)
    main.sync(at=30, dur=180, stream=13, device=1)
    main.sync("cudaEventSynchronize_v3020", at=220, dur=285, event=1, device=1)
    main.sync("cudaDeviceSynchronize_v3020", at=510, dur=500, device=1)
    main.sync("cudaDeviceSynchronize_v3020", at=1020, dur=350, recorded=False)  # no row: every device of the process
    assert waits_by_name(data_of(report)) == {
        "cudaStreamSynchronize": [(170, 0, 10)],
        "cudaEventSynchronize": [(280, 0, 5)],
        "cudaDeviceSynchronize": [(490, 0, 10), (310, 0, 40)],
    }


def test_what_is_not_named_means_the_whole_device() -> None:
    report = Report()
    main = report.process(1).thread()
    main.launch(0, 5, gpu_start=10, gpu_dur=100, stream=7)
    main.sync(at=20, dur=100, stream=None)
    main.launch(200, 5, gpu_start=210, gpu_dur=100, stream=7)
    main.sync("cudaEventSynchronize_v3020", at=220, dur=100, event=5)  # an event that was never recorded
    assert list(oracle.wait_split(data_of(report)).values()) == [(90, 0, 10), (90, 0, 10)]


def test_only_earlier_launches_are_awaited() -> None:
    report = Report()
    process = report.process(1)
    main, other = process.thread(1), process.thread(2)
    main.launch(0, 5, gpu_start=10, gpu_dur=50)
    main.sync(at=20, dur=100)
    other.launch(20, 5, gpu_start=60, gpu_dur=50)
    assert list(oracle.wait_split(data_of(report)).values()) == [(40, 0, 60)]


def test_an_event_means_its_last_record_before_the_call() -> None:
    report = Report()
    main = report.process(1).thread()
    for n in range(3):  # three kernels of 100, each followed by a record of the one event
        main.launch(10 * n, 2, gpu_start=100 * (n + 1), gpu_dur=100)
        main.event_record(1, at=10 * n + 3)
        if n == 1:
            main.wait_event(1, at=16, stream=13)
            main.sync(
                "cudaEventSynchronize_v3020", at=17, dur=2, event=1
            )  # gives up early: no wait, but it has a target
    main.sync(at=30, dur=280, stream=13)  # 300: the second kernel, not the third
    main.sync("cudaEventSynchronize_v3020", at=310, dur=95, event=1)  # 400: the third
    main.wait_event(1, at=410, stream=13)
    splits = oracle.wait_split(data_of(report), skew_ns=0)
    assert list(splits.values()) == [(0, 0, 2), (270, 0, 10), (90, 0, 5)]


def test_a_later_stream_wait_is_not_awaited() -> None:
    report = Report()
    process = report.process(1)
    main, other = process.thread(1), process.thread(2)
    main.launch(0, 5, gpu_start=10, gpu_dur=90)
    main.event_record(1, at=6)
    main.sync(at=20, dur=100, stream=13)
    other.wait_event(1, at=21, stream=13)
    assert list(oracle.wait_split(data_of(report)).values()) == [(0, 0, 100)]


def test_the_op_that_ends_a_gap() -> None:
    """Of ops that start together the one that was launched first; an op without length ends nothing."""
    report = Report()
    process = report.process(1)
    main, other = process.thread(1), process.thread(2)
    main.launch(0, 5, gpu_start=10, gpu_dur=10)
    main.call("cudaMalloc_v3020", 20, 20)
    main.launch(45, 2, gpu_start=100, gpu_dur=10)
    other.launch(60, 2, gpu_start=100, gpu_dur=10, stream=13)
    other.launch(40, 2, gpu_start=100, gpu_dur=0, stream=13)
    other.launch(41, 2, gpu_start=70, gpu_dur=0, stream=13)
    assert causes(data_of(report), PROCESS + 1, 20, 100) == {"alloc": 20, "host_code": 5, "launch_latency": 55}


def test_borders_of_a_gap_belong_to_its_rules() -> None:
    """A queued op is launch latency up to 20 us behind its call (what is usual when few were seen) or until the call returns."""
    for at, dur, truth in (
        (110, 0, "launch_latency"),  # begins as the gap does
        (90, 1, "kernel_gap"), (91, 1, "launch_latency"),  # 20 us behind it the gap begins, or has begun
        (80, 30, "kernel_gap"), (80, 31, "launch_latency"),  # returns as the gap begins, or in it
    ):  # fmt: skip
        report = Report()
        main = report.process(1).thread()
        main.launch(0, 5 * US, gpu_start=10 * US, gpu_dur=100 * US)
        main.launch(at * US, dur * US, gpu_start=118 * US, gpu_dur=10)
        assert causes(data_of(report), PROCESS + 1, 110 * US, 118 * US) == {truth: 8 * US}


def test_a_launch_is_over_when_its_first_op_runs() -> None:
    """The second node of a graph follows 8 us behind the first: that is a pause of the graph and no launch latency."""
    report = Report()
    main = report.process(1).thread()
    main.graph_launch(0, 5 * US, nodes=[("a", 10 * US, 2 * US), ("b", 20 * US, 2 * US)])
    assert causes(data_of(report), PROCESS + 1, 0, 22 * US) == {"launch_latency": 10 * US, "kernel_gap": 8 * US}


def test_a_stream_that_waits_for_an_event_holds_its_work() -> None:
    report = Report()
    main = report.process(1).thread()
    main.launch(0, 5, gpu_start=10, gpu_dur=490, stream=7)
    main.event_record(1, at=6, stream=7)
    main.wait_event(1, at=10, stream=13)
    main.launch(14, 5, gpu_start=500, gpu_dur=500, stream=7)  # behind the record: not waited for
    main.sync(at=20, dur=490, stream=13)
    data = data_of(report)
    assert list(oracle.wait_split(data).values()) == [(480, 0, 10)]
    assert list(oracle.wait_split(data, follow_events=False).values()) == [(0, 0, 490)]


def test_clock_error_does_not_undo_a_wait() -> None:
    """A synchronize with a known target cannot return before its work ends; an allocation can."""
    for api, recorded, late, truth in (
        ("cudaStreamSynchronize_v3020", True, 4000, (900_000, 0, 0)),
        ("cudaStreamSynchronize_v3020", True, 30_000, (0, 0, 900_000)),
        ("cudaStreamSynchronize_v3020", False, 4000, (0, 0, 900_000)),
        ("cudaMalloc_v3020", False, 4000, (0, 0, 900_000)),
    ):
        report = Report()
        main = report.process(1).thread()
        main.launch(0, 5, gpu_start=10, gpu_dur=999_990 + late)
        main.sync(api, at=100_000, dur=900_000, recorded=recorded)
        assert list(oracle.wait_split(data_of(report)).values()) == [truth]


def test_an_allocation_waits_only_when_it_returns_as_the_device_drains() -> None:
    report = Report()
    main = report.process(1).thread()
    main.launch(0, 5, gpu_start=10, gpu_dur=99_990)
    main.call("cudaFree_v3020", 1000, 109_000)
    main.launch(200_000, 5, gpu_start=200_010, gpu_dur=99_990)
    main.call("cudaHostAlloc_v3020", 201_000, 900_000)
    main.call("cudaMallocAsync_v11020", 2_000_000, 10)
    assert waits_by_name(data_of(report)) == {"cudaFree": [(99_000, 0, 10_000)], "cudaHostAlloc": [(0, 0, 900_000)]}


def test_copies_that_can_block() -> None:
    report = Report()
    main = report.process(1).thread()
    main.launch(0, 5, gpu_start=10, gpu_dur=90)
    main.memcpy(20, 150, kind="DtoH", pageable=True, gpu_start=110, gpu_dur=50)  # waits, copies, returns
    main.launch(180, 5, gpu_start=190, gpu_dur=100)
    main.memcpy(190, 10, kind="HtoD", pageable=True, gpu_start=300, gpu_dur=20)  # staged: returns at once
    main.memcpy(205, 300, kind="DtoH", gpu_start=320, gpu_dur=20)  # pinned: cannot block, however long it takes
    main.memcpy(600, 50, kind="DtoD", api="cudaMemcpy_v3020", gpu_start=610, gpu_dur=20)  # inside the device
    main.memcpy(700, 50, kind="HtoD", api="cudaMemcpy_v3020", gpu_start=710, gpu_dur=20)
    assert waits_by_name(data_of(report)) == {
        "cudaMemcpyAsync": [(80, 50, 20), (0, 0, 10)],
        "cudaMemcpy": [(0, 20, 30)],
    }


def test_an_own_op_counts_only_behind_the_backlog() -> None:
    report = Report()
    main = report.process(1).thread()
    main.launch(0, 5, gpu_start=10, gpu_dur=90)
    main.memcpy(20, 150, kind="DtoH", pageable=True, gpu_start=60, gpu_dur=100)  # overlaps on its own stream
    assert list(oracle.wait_split(data_of(report)).values()) == [(80, 60, 10)]


def test_rows_without_sense_are_left_out() -> None:
    report = Report()
    process = report.process(1)
    main = process.thread()
    main.launch(100, -50, gpu_start=200, gpu_dur=-10)  # ends before it starts
    process.graph_trace(0, 0)  # CUPTI's "no time stamp"
    main.launch(300, 5, gpu_start=400, gpu_dur=10)
    main.add_range("open", 0, None)
    data = data_of(report)
    assert ([c.start for c in data.calls], [o.start for o in data.ops]) == ([300], [400])
    assert oracle.innermost(data, data.calls[0].global_tid, 410) is not None  # open up to and with the last event


def test_gpu_steps_tile_the_device() -> None:
    report = Report()
    main = report.process(1).thread()
    main.launch(0, 5, gpu_start=100, gpu_dur=10)
    main.launch(10, 5, gpu_start=115, gpu_dur=10)
    main.launch(50, 5, gpu_start=130, gpu_dur=10)
    main.launch(210, 5, gpu_start=220, gpu_dur=10)
    data = data_of(report)
    assert oracle.gpu_steps(data, PROCESS + 1, 0, [0, 20, 100, 200, 300]) == [
        (100, 130),
        (130, 220),
        (220, 220),
        (220, 230),
    ]


def test_a_file_without_pids_still_joins() -> None:
    report = builder.case_a()
    for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"):
        report.drop(table, "globalPid")
    assert oracle.totals(data_of(report))["gpu_ops_without_call"] == 0


# -- single nanoseconds, invariants --------------------------------------------------------------------------------------


@slow
@given(strategies.adversarial())
def test_agrees_with_a_count_of_single_nanoseconds(report: Report) -> None:
    data, t0, t1 = data_of(report), -3, 85
    for process, device in data.devices:
        counts = dict.fromkeys(("compute", "comm", "copy", "memset", "idle", "busy", "hidden_comm", "hidden_copy"), 0)
        for t in range(t0, t1):
            running = [o for o in data.ops if (o.process, o.device) == (process, device) and o.start <= t < o.end]
            comm = [o for o in running if "nccl" in o.name]
            compute = [o for o in running if o.kind in ("kernel", "graph") and o not in comm]
            copies = [o for o in running if o.kind == "memcpy"]
            part = "compute" if compute else "comm" if comm else "copy" if copies else "memset" if running else "idle"
            counts[part] += 1
            counts["busy"] += bool(running)
            counts["hidden_comm"] += bool(comm and compute)
            counts["hidden_copy"] += bool(copies and (comm or compute))
        assert oracle.ledger(data, process, device, t0, t1) == counts
        assert oracle.busy(data, process, device, t0, t1) == counts["busy"]
    for tid in {c.global_tid for c in data.calls}:
        calls = [c for c in data.calls if c.global_tid == tid]
        covered = sum(any(c.start <= t < c.end for c in calls) for t in range(t0, t1))
        assert sum(ns for c, ns in oracle.self_times(data) if c.global_tid == tid) == covered
        assert sum(oracle.cpu_ledger(data, tid, t0, t1).values()) == t1 - t0
    for r in data.ranges:
        for t in (r.start, r.end - 1, r.end):
            opened = [x for x in data.ranges if x.global_tid == x.end_tid == r.global_tid and x.start <= t < x.end]
            best = max(opened, key=lambda x: (x.start, -x.end), default=None)
            found = oracle.innermost(data, r.global_tid, t)
            assert (found and (found.start, found.end)) == (best and (best.start, best.end))


@slow
@given(strategies.reports(), st.integers(0, 200), st.integers(1, 200), st.integers(1, 200))
def test_parts_sum_to_the_whole(report: Report, t0: int, first: int, second: int) -> None:
    data = data_of(report)
    windows = [(t0, t0 + first), (t0 + first, t0 + first + second)]
    whole = (t0, t0 + first + second)
    for place in data.devices:
        parts = [oracle.ledger(data, *place, *w) for w in windows]
        blames = [oracle.idle_causes(data, *place, *w) for w in windows]
        for (a, b), part, blame in zip(windows, parts, blames, strict=True):
            assert sum(part[k] for k in ("compute", "comm", "copy", "memset", "idle")) == b - a
            assert part["busy"] + part["idle"] == b - a
            assert sum(blame.values()) == part["idle"] and set(blame) == set(oracle.CAUSES)
        assert oracle.ledger(data, *place, *whole) == {k: parts[0][k] + parts[1][k] for k in parts[0]}
        assert oracle.idle_causes(data, *place, *whole) == {k: blames[0][k] + blames[1][k] for k in blames[0]}
    duration = {c.key: c.end - c.start for c in data.calls}
    for key, split in oracle.wait_split(data).items():
        assert sum(split) == duration[key] and min(split) >= 0
    for call, self_ns in oracle.self_times(data):
        assert 0 <= self_ns <= call.end - call.start


def everything(report: Report, shift: int = 0) -> Any:
    """Return all answers in a form that knows neither ids nor the order of rows."""
    data = data_of(report)
    t0, t1 = 0 + shift, 500 + shift
    return (
        oracle.totals(data),
        sorted((c.start - shift, c.name, ns) for c, ns in oracle.self_times(data)),
        {p: oracle.ledger(data, *p, t0, t1) for p in data.devices},
        {p: oracle.idle_causes(data, *p, t0, t1) for p in data.devices},
        sorted((p, n, s - shift, split) for (p, _, n, s), split in oracle.wait_split(data).items()),
        sorted((r.start - shift, r.name) for c in data.calls if (r := oracle.innermost(data, c.global_tid, c.start))),
    )


@slow
@given(strategies.programs(), st.integers(-(10**9), 10**18), st.integers(0, 9))
def test_order_times_and_ids_do_not_matter(report: Report, shift: int, seed: int) -> None:
    before = everything(report)
    report.shuffle(seed)
    assert everything(report) == before
    report.renumber(seed)
    assert everything(report) == before
    report.shift(shift)
    assert everything(report, shift) == before


@slow
@given(strategies.programs())
def test_simulated_waits_are_found(report: Report) -> None:
    """In a simulated program a recorded synchronize returns WAKE after its work: so nothing else is left to the host.

    An event that no record names yet falls back to the whole device, which promises less.
    """
    data = data_of(report)
    splits = oracle.wait_split(data)
    for call in data.calls:
        row = data.syncs.get((call.process, call.correlation))
        if row is None or call.key not in splits or "Event" in call.name:
            continue
        if any(op.correlation == 0 for op in data.ops):
            continue  # launched outside the trace: its launch time is not known
        backlog, own, host = splits[call.key]
        assert own == 0 and host == strategies.WAKE, (call, splits[call.key])
        assert backlog == call.end - call.start - strategies.WAKE

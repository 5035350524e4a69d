"""Which call launched which work: names and kinds of calls, each call once, each GPU op once."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from nsysx import pipeline
from nsysx.catalogue import Call
from nsysx.events.correlate import Correlated, api_kind, correlate, plain_name
from nsysx.frames.frame_columns import API_CALLS, GPU_OPS
from nsysx.reading.load import load
from tests import builder
from tests.builder import Report
from tests.reports import names


def read(report: Report, folder: Path) -> Correlated:
    return correlate(load(report.write(folder / "r.sqlite")))


# --- names ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recorded", "plain", "kind"),
    [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel", "launch"),
        ("cudaLaunchKernel_ptsz_v7000", "cudaLaunchKernel", "launch"),
        ("cudaLaunchKernelExC_v11060", "cudaLaunchKernelExC", "launch"),
        ("cudaLaunchCooperativeKernel_v9000", "cudaLaunchCooperativeKernel", "launch"),
        ("cuLaunchKernel", "cuLaunchKernel", "launch"),
        ("cuLaunchKernelEx", "cuLaunchKernelEx", "launch"),
        ("cudaLaunch_v3020", "cudaLaunch", "launch"),
        ("cudaLaunchHostFunc_v10000", "cudaLaunchHostFunc", "other"),  # runs on the CPU
        ("cudaGraphLaunch_v10000", "cudaGraphLaunch", "graph_launch"),
        ("cuGraphLaunch", "cuGraphLaunch", "graph_launch"),
        ("cudaMemcpyAsync_v3020", "cudaMemcpyAsync", "copy"),
        ("cudaMemcpy2DAsync_v3020", "cudaMemcpy2DAsync", "copy"),
        ("cuMemcpyDtoHAsync_v2", "cuMemcpyDtoHAsync_v2", "copy"),
        ("cudaMemsetAsync_v3020", "cudaMemsetAsync", "memset"),
        ("cuMemsetD32Async", "cuMemsetD32Async", "memset"),
        ("cudaStreamSynchronize_v3020", "cudaStreamSynchronize", "sync"),
        ("cudaStreamSynchronize_ptsz_v7000", "cudaStreamSynchronize", "sync"),
        ("cudaDeviceSynchronize_v3020", "cudaDeviceSynchronize", "sync"),
        ("cudaEventSynchronize_v3020", "cudaEventSynchronize", "sync"),
        ("cuCtxSynchronize", "cuCtxSynchronize", "sync"),
        ("cudaMalloc_v3020", "cudaMalloc", "alloc"),
        ("cudaMallocAsync_v11020", "cudaMallocAsync", "alloc"),
        ("cudaMallocManaged_v6000", "cudaMallocManaged", "alloc"),
        ("cuMemAlloc_v2", "cuMemAlloc_v2", "alloc"),
        ("cuMemCreate", "cuMemCreate", "alloc"),
        ("cuMemMap", "cuMemMap", "alloc"),
        ("cuMemSetAccess", "cuMemSetAccess", "alloc"),
        ("cuMemAddressReserve", "cuMemAddressReserve", "alloc"),
        ("cudaFree_v3020", "cudaFree", "free"),
        ("cudaFreeAsync_v11020", "cudaFreeAsync", "free"),
        ("cudaFreeHost_v3020", "cudaFreeHost", "free"),
        ("cuMemFree_v2", "cuMemFree_v2", "free"),
        ("cuMemUnmap", "cuMemUnmap", "free"),
        ("cuMemRelease", "cuMemRelease", "free"),
        ("cuMemAddressFree", "cuMemAddressFree", "free"),
        ("cudaHostUnregister_v4000", "cudaHostUnregister", "free"),
        ("cudaHostAlloc_v3020", "cudaHostAlloc", "host_alloc"),
        ("cudaMallocHost_v3020", "cudaMallocHost", "host_alloc"),
        ("cudaHostRegister_v4000", "cudaHostRegister", "host_alloc"),
        ("cuMemHostAlloc", "cuMemHostAlloc", "host_alloc"),
        ("cuMemAllocHost_v2", "cuMemAllocHost_v2", "host_alloc"),
        ("cuLibraryLoadData", "cuLibraryLoadData", "load"),
        ("cuModuleLoadData", "cuModuleLoadData", "load"),
        ("cuModuleGetLoadingMode", "cuModuleGetLoadingMode", "other"),
        ("cuLibraryGetKernel", "cuLibraryGetKernel", "load"),
        ("cuKernelGetFunction", "cuKernelGetFunction", "load"),
        ("cudaEventRecord_v3020", "cudaEventRecord", "event"),
        ("cudaEventCreateWithFlags_v3020", "cudaEventCreateWithFlags", "event"),
        ("cudaEventQuery_v3020", "cudaEventQuery", "event"),
        ("cudaStreamWaitEvent_v3020", "cudaStreamWaitEvent", "event"),
        ("cudaEventElapsedTime_v3020", "cudaEventElapsedTime", "event"),
        ("cudaGetDeviceProperties_v2_v12000", "cudaGetDeviceProperties_v2", "other"),
        ("cudaStreamIsCapturing_v10000", "cudaStreamIsCapturing", "other"),
        ("cudaGraphInstantiate_v12000", "cudaGraphInstantiate", "other"),
        ("cuGetProcAddress_v2", "cuGetProcAddress_v2", "other"),
        ("cudaMemGetInfo_v3020", "cudaMemGetInfo", "other"),
        ("", "", "other"),
    ],
)
def test_names_and_kinds(recorded: str, plain: str, kind: str) -> None:
    assert plain_name(recorded) == plain
    assert api_kind(plain) == kind
    assert kind in Call.KINDS


# --- joins ---------------------------------------------------------------------------------------------------------------


def test_equal_ids_of_two_processes(tmp_path: Path) -> None:
    found = read(builder.case_equal_ids(), tmp_path)
    process_of = dict(found.api_calls.select("call", "process").iter_rows())
    for op, call, name in names(found.gpu_ops, "process", "call", "name"):
        assert process_of[call] == op, name
    assert found.gpu_ops.height == 6
    assert found.gpu_ops["call"].n_unique() == 6


def test_one_call_with_many_kernels(tmp_path: Path) -> None:
    found = read(builder.case_graph(), tmp_path)
    assert found.gpu_ops.height == 486
    assert found.gpu_ops["call"].n_unique() == 1
    launch = found.api_calls.row(int(found.gpu_ops["call"][0]), named=True)
    assert (launch["name"], launch["gpu_ops"]) == ("cudaGraphLaunch", 486)
    assert found.api_calls["gpu_ops"].sum() == 486
    assert found.gpu_ops["queue_ns"].to_list() == [1000 + 12 * i - 150 for i in range(486)]


def test_a_kernel_before_its_call_is_clamped_and_counted(tmp_path: Path) -> None:
    path = builder.case_kernel_before_call().write(tmp_path / "r.sqlite")
    early = correlate(load(path)).gpu_ops.filter(pl.col("name").cast(pl.String) == "early")
    assert early.select("queue_ns", "latency_ns", "start_ns").row(0) == (0, 0, 200)
    (check,) = [c for c in pipeline.summarize([path], every_table=False).quality if c.check == "clock skew"]
    assert check.status == "ok"
    assert check.detail.startswith("GPU work starts up to 3 ns before its call")


def test_copies_of_calls_count_once(tmp_path: Path) -> None:
    found = read(builder.case_copies_of_calls(), tmp_path)
    rows = names(found.api_calls, "name", "start_ns", "end_ns")
    assert rows == [
        ("cudaMalloc", 1000, 1100),
        ("cudaLaunchKernel", 2000, 2010),
        ("cudaStreamSynchronize", 3000, 3050),
        ("cuMemAlloc_v2", 4000, 4070),
    ]


def test_a_backtrace_copy_alone_is_the_call(tmp_path: Path) -> None:
    report = Report()
    main = report.process(1).thread(1)
    main.call("cudaMalloc_v3020", 1000, 100, backtrace=[("f", "lib")])
    report.rows["CUPTI_ACTIVITY_KIND_RUNTIME"] = [
        r for r in report.rows["CUPTI_ACTIVITY_KIND_RUNTIME"] if r["eventClass"] == 67
    ]
    assert read(report, tmp_path).api_calls.height == 1


def test_different_functions_under_one_id_are_different_calls(tmp_path: Path) -> None:
    """A driver call inside a runtime call carries its id; the outer one launched."""
    report = Report()
    main = report.process(1).thread(1)
    outer = main.launch(100, 50, gpu_start=200, gpu_dur=10)
    main.call("cuLaunchKernel", 110, 20, correlation=outer.correlation)
    found = read(report, tmp_path)
    assert names(found.api_calls, "name", "self_ns", "gpu_ops") == [
        ("cudaLaunchKernel", 30, 1),
        ("cuLaunchKernel", 20, 0),
    ]
    assert found.gpu_ops["call"].to_list() == [0]


def test_no_id_joins_nothing(tmp_path: Path) -> None:
    report = Report()
    process = report.process(1)
    process.thread(1).call("cudaLaunchKernel_v7000", 0, 10, correlation=0)
    process.thread(1).call("cudaLaunchKernel_v7000", 20, 10, correlation=0)
    process.kernel("k", 30, 10, correlation=0)
    process.kernel("k", 50, 10, correlation=None)
    process.kernel("k", 70, 10, correlation=999)
    found = read(report, tmp_path)
    assert found.api_calls.height == 2  # without an id every row is a call
    assert found.gpu_ops["call"].to_list() == [None] * 3
    assert found.gpu_ops["queue_ns"].to_list() == [None] * 3  # not zero: unknown


def test_ids_far_apart(tmp_path: Path) -> None:
    report = Report()
    main = report.process(1).thread(1)
    for i, correlation in enumerate((1, 1 << 40, (1 << 62) + 5)):
        main.launch(100 * i, 10, gpu_start=100 * i + 20, gpu_dur=10, correlation=correlation)
    found = read(report, tmp_path)
    assert found.gpu_ops["call"].to_list() == [0, 1, 2]


def test_work_without_a_process_belongs_to_the_only_one(tmp_path: Path) -> None:
    report = Report()
    main = report.process(5).thread(5)
    main.launch(0, 10, gpu_start=20, gpu_dur=10)
    main.memcpy(40, 10, gpu_start=60, gpu_dur=10)
    report.rows["CUPTI_ACTIVITY_KIND_KERNEL"][0]["globalPid"] = None
    found = read(report, tmp_path)
    assert found.gpu_ops["call"].to_list() == [0, 1]
    assert found.gpu_ops["process"].n_unique() == 1


def test_kinds_of_gpu_work(tmp_path: Path) -> None:
    report = Report()
    main = report.process(1).thread(1)
    main.launch(0, 5, kernel="ncclDevKernel_AllReduce_Sum_f32", gpu_start=10, gpu_dur=10)
    main.launch(20, 5, kernel="gemm", gpu_start=30, gpu_dur=10)
    main.memcpy(40, 5, kind="DtoH", gpu_start=50, gpu_dur=10)
    main.memset(60, 5, gpu_start=70, gpu_dur=10)
    main.graph_launch(80, 5, opaque=(90, 10))
    main.graph_launch(100, 5, opaque=(0, 0))  # a graph launch that carries no time
    ops = read(report, tmp_path).gpu_ops
    assert names(ops, "op_kind", "cls", "name") == [
        ("kernel", "comm", "ncclDevKernel_AllReduce_Sum_f32"),
        ("kernel", "compute", "gemm"),
        ("memcpy", "copy", "DtoH"),
        ("memset", "memset", "memset"),
        ("graph", "compute", "CUDA graph (opaque)"),
    ]


def test_frames_are_as_declared(tmp_path: Path) -> None:
    found = read(builder.case_a(), tmp_path)
    for frame, declared in ((found.api_calls, API_CALLS), (found.gpu_ops, GPU_OPS)):
        assert frame.columns == [c.name for c in declared]
        assert [str(t).split("(")[0] for t in frame.dtypes] == [c.dtype for c in declared]
    assert found.api_calls["call"].to_list() == list(range(found.api_calls.height))
    assert found.gpu_ops["op"].to_list() == list(range(found.gpu_ops.height))

"""Summaries made by hand: everything that an output may meet, with numbers that add up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nsysx import analyses
from nsysx.answer import answered
from nsysx.gpus import Gpu
from nsysx.model import Capture, Check, Column, Finding, Scope, Steps, Summary, Table, TableSpec, Verdict
from nsysx.pictures import Lane, LongestStretch, Span, Timeline
from nsysx.ranks import rank_table as ranks_room
from nsysx.ranks.rank_bounds import MOST_RANKS_IN_ORDER
from nsysx.saving import Saving
from nsysx.step_time import Unprofiled

MS = 1_000_000
US = 1_000

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "{{7*7}}{% raw %}",
    "[red]not markup[/red][/oops]",
    "\x1b[31mred\x1b[0m\x1b]0;title\x07\x9b31m",
    "abc\u202eevil\u2066\u200b",
    "$\\frac{a}{b",
    "`code` | cell @everyone #123 [x](javascript:alert(1)) ![i](http://evil.example/x.png)",
    "nul\x00inside",
    "\ud800lone",
    '" onmouseover="alert(1)',
    "核函数_エモジ🚀",
    "=cmd|'/c calc'!A1",
    "M" * 1_000_000,
)


#: What the tables cover: ten steady steps of process 1, or the capture.
SCOPE = Scope("steady", (1,), (0,), 2, 11, 10)
WHOLE = Scope("capture", (1,))
SHOWN = {a.KEY: a.SHOWN for a in analyses.load()}
DECLARED = {(a.KEY, c.name): {"sums": c.sums, "label": c.label} for a in analyses.load() for c in a.COLUMNS}
PER_STEP = ("phases", "modules", "waits", "kernel_families", "launches", "copy_sites", "allocator")


def col(name: str, dtype: str = "Int64", unit: str | None = None, meaning: str = "") -> Column:
    if unit is None:
        unit = "ns" if name.endswith("_ns") else "bytes" if name == "bytes" or name.endswith("_bytes") else ""
    return Column(name, dtype, unit, meaning or f"meaning of {name}")


def table(key: str, title: str, columns: list[Column], rows: list[dict[str, Any]] | None, reason: str = "") -> Table:
    scope = SCOPE if key in PER_STEP else WHOLE if key not in ("gpu_ledger", "cpu_ledger", "data_loader") else None
    columns = [replace(c, **DECLARED.get((key, c.name), {})) for c in columns]
    return Table(
        key, title, tuple(columns), None if rows is None else tuple(rows), reason, scope, SHOWN.get(key, TableSpec())
    )


def gpu_row(process: int = 1, device: int = 0) -> dict[str, Any]:
    causes = {"sync": 60 * MS, "launch_latency": 20 * MS, "host_code": 19 * MS, "profiler": 1 * MS}
    return {
        "process": process,
        "device": device,
        "steps": 10,
        "window_ns": 692_500_000,
        "compute_ns": 560 * MS,
        "comm_ns": 0,
        "copy_ns": 30 * MS,
        "memset_ns": 2_500_000,
        "idle_ns": 100 * MS,
        "busy_ns": 592_500_000,
        "hidden_copy_ns": 4 * MS,
        "hidden_comm_ns": 0,
        "idle_causes": causes,
    }


def cpu_row(process: int = 1, thread: str = "main") -> dict[str, Any]:
    return {
        "process": process,
        "thread": 1,
        "thread_name": thread,
        "role": "main",
        "steps": 10,
        "window_ns": 690 * MS,
        "launch_ns": 90 * MS,
        "copy_ns": 20 * MS,
        "sync_wait_ns": 400 * MS,
        "alloc_ns": 5 * MS,
        "load_ns": 0,
        "other_api_ns": 15 * MS,
        "outside_api_ns": 160 * MS,
        "outside_by_phase": {},
    }


# ruff: noqa: E501
KERNEL_NAMES = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)",
    "void cub::CUB_200802_SM_90::DeviceRadixSortOnesweepKernel<cub::CUB_200802_SM_90::DeviceRadixSortPolicy<long, long, unsigned long long>::Policy900, false, long, long, unsigned long long, int, int, cub::detail::identity_decomposer_t>(unsigned long long*)",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float, float, at::native::(anonymous namespace)::LogSoftMaxForwardEpilogue>(float*, float const*, int)",
)

KERNEL_COLUMNS = [
    col("name", "String"),
    col("count"),
    col("total_ns"),
    col("mean_ns"),
    col("median_ns"),
    col("min_ns"),
    col("max_ns"),
    col("std_ns"),
    col("share", "Float64"),
    col("api_self_ns"),
    col("queue_ns"),
]


def kernel_row(name: str, total_ns: int, count: int = 100, share: float = 0.1) -> dict[str, Any]:
    mean = total_ns // count
    return {
        "name": name,
        "family": "elementwise",
        "count": count,
        "total_ns": total_ns,
        "mean_ns": mean,
        "median_ns": mean,
        "min_ns": mean // 2,
        "max_ns": mean * 2,
        "std_ns": mean / 10,
        "share": share,
        "step_ns": total_ns / 50,
        "operator": "aten::mul",
        "module": "blocks.*.loss",
        "file": "/home/somebody/project/train.py",
        "line": 47,
        "api_self_ns": count * 5 * US,
        "queue_ns": count * 90 * US,
    }


def timeline(title: str = "Step 5, typical", names: tuple[str, ...] = KERNEL_NAMES) -> Timeline:
    phases = Lane(
        "phases",
        "main: phases",
        (
            Span(0, 3 * MS, "data", "data"),
            Span(3 * MS, 20 * MS, "forward", "forward"),
            Span(20 * MS, 44 * MS, "loss", "loss"),
            Span(44 * MS, 60 * MS, "backward", "backward"),
            Span(60 * MS, 69 * MS, "optimizer", "optimizer AdamW"),
        ),
    )
    api = Lane(
        "api",
        "main: CUDA calls",
        (
            *(
                Span(3 * MS + i * 60 * US, 3 * MS + i * 60 * US + 7 * US, "launch", "cudaLaunchKernel")
                for i in range(250)
            ),
            Span(21 * MS, 43 * MS, "sync", "cudaStreamSynchronize", backlog_ns=20 * MS),
            Span(43_200 * US, 43_800 * US, "copy", "cudaMemcpyAsync"),
        ),
    )
    gpu = Lane(
        "stream",
        "GPU 0 stream 7",
        (
            *(
                Span(
                    4 * MS + i * 2_400 * US,
                    4 * MS + i * 2_400 * US + 2_300 * US,
                    "compute",
                    names[i % len(names)],
                    3 * MS + i * 600 * US,
                    1,
                    module=f"blocks.{i % 3}.loss",
                    line="/home/somebody/project/train.py:47",
                )
                for i in range(24)
            ),
            Span(63 * MS, 66 * MS, "copy", "Memcpy HtoD", 62 * MS, 1),
            Span(66 * MS, 66_500 * US, "memset", "Memset"),
        ),
    )
    idle = Lane("idle", "GPU 0 idle", (Span(43 * MS, 44 * MS, "sync", "idle: host sync"),))
    host = Lane("lines", "main", (Span(3 * MS, 40 * MS, "", "/home/somebody/project/train.py:47"),))
    of_modules = Lane(
        "modules",
        "GPU 0 modules",
        tuple(Span((4 + 20 * i) * MS, (23 + 20 * i) * MS, "", f"blocks.{i}.loss") for i in range(3)),
    )
    modules = [*dict.fromkeys((None, *HOSTILE[:3], "blocks.1.loss"))]
    places = [
        LongestStretch(20 * MS, 42 * MS, module or "", "loss", part)
        for module in modules
        for part in ("work", "host", "sync", "comm")
    ]
    lanes = (phases, api, gpu, idle, host, of_modules)
    return Timeline(title, 0, 69_250_000, lanes, merged=12, places=tuple(places), step_ns=(2 * MS, 69_000_000))


def summary(**changes: Any) -> Summary:
    """Return a full Summary of a masked-loss training run; ``changes`` replace fields."""
    steps = tuple(
        {
            "index": i,
            "start_ns": i * 69 * MS,
            "end_ns": i * 69 * MS + (400 * MS if i == 0 else 69 * MS + (i % 3) * MS),
            "warmup": i < 2,
            "steady": i >= 2,
            "gpu_ns": 69 * MS,
            "gpu_compute_ns": 56 * MS,
            "gpu_copy_ns": 3 * MS,
            "gpu_idle_ns": 10 * MS,
            "phases": {"data": 2 * MS, "forward": 18 * MS, "loss": 22 * MS, "backward": 16 * MS, "optimizer": 8 * MS},
        }
        for i in range(12)
    )
    tables = {
        "gpu_ledger": table("gpu_ledger", "GPU ledger", [col("process"), col("device"), col("window_ns")], [gpu_row()]),
        "cpu_ledger": table(
            "cpu_ledger", "CPU ledger", [col("process"), col("thread_name", "String"), col("window_ns")], [cpu_row()]
        ),
        "kernels": table(
            "kernels",
            "Kernels",
            KERNEL_COLUMNS,
            [kernel_row(n, 200 * MS // (i + 1), share=0.4 / (i + 1)) for i, n in enumerate(KERNEL_NAMES)],
        ),
        "api_calls": table(
            "api_calls",
            "API calls",
            [
                col("name", "String"),
                col("kind", "String"),
                col("calls"),
                col("total_ns"),
                col("self_ns"),
                col("backlog_ns"),
                col("own_op_ns"),
                col("host_ns"),
                col("first_ns"),
                col("steady_median_ns"),
            ],
            [
                {
                    "name": "cudaStreamSynchronize",
                    "kind": "sync",
                    "calls": 36,
                    "total_ns": 400 * MS,
                    "self_ns": 400 * MS,
                    "backlog_ns": 390 * MS,
                    "own_op_ns": 0,
                    "host_ns": 10 * MS,
                    "first_ns": 12 * MS,
                    "steady_median_ns": 11 * MS,
                },
                {
                    "name": "cudaLaunchKernel",
                    "kind": "launch",
                    "calls": 4210,
                    "total_ns": 210 * MS,
                    "self_ns": 90 * MS,
                    "backlog_ns": None,
                    "own_op_ns": None,
                    "host_ns": None,
                    "first_ns": 31 * MS,
                    "steady_median_ns": 5_200,
                },
                {
                    "name": "cudaMemcpyAsync",
                    "kind": "copy",
                    "calls": 48,
                    "total_ns": 20 * MS,
                    "self_ns": 20 * MS,
                    "backlog_ns": 11 * MS,
                    "own_op_ns": 6 * MS,
                    "host_ns": 3 * MS,
                    "first_ns": 1 * MS,
                    "steady_median_ns": 400 * US,
                },
                {
                    "name": "cudaHostAlloc",
                    "kind": "host_alloc",
                    "calls": 1,
                    "total_ns": 5 * MS,
                    "self_ns": 5 * MS,
                    "backlog_ns": 0,
                    "own_op_ns": 0,
                    "host_ns": 5 * MS,
                    "first_ns": 5 * MS,
                    "steady_median_ns": None,
                },
            ],
        ),
        "modules": table(
            "modules",
            "Modules",
            [
                col("path", "String"),
                col("cls", "String"),
                col("parent", "String"),
                col("calls"),
                col("forward_gpu_ns"),
                col("backward_gpu_ns"),
                col("self_gpu_ns"),
                col("launch_ns"),
                col("wait_ns"),
                col("idle_blamed_ns"),
                col("grade", "String"),
            ],
            [
                {
                    "path": "(Net)",
                    "cls": "Net",
                    "calls": 12,
                    "forward_gpu_ns": 200 * MS,
                    "backward_gpu_ns": 300 * MS,
                    "self_gpu_ns": 5 * MS,
                    "launch_ns": 80 * MS,
                    "wait_ns": 0,
                    "idle_blamed_ns": 0,
                    "grade": "thread",
                },
                {
                    "path": "blocks.1",
                    "cls": "Block",
                    "parent": "(Net)",
                    "calls": 12,
                    "forward_gpu_ns": 120 * MS,
                    "backward_gpu_ns": 170 * MS,
                    "self_gpu_ns": 10 * MS,
                    "launch_ns": 40 * MS,
                    "wait_ns": 0,
                    "idle_blamed_ns": 0,
                    "grade": "thread",
                },
                {
                    "path": "blocks.0",
                    "cls": "Block",
                    "parent": "(Net)",
                    "calls": 12,
                    "forward_gpu_ns": 75 * MS,
                    "backward_gpu_ns": 130 * MS,
                    "self_gpu_ns": 5 * MS,
                    "launch_ns": 35 * MS,
                    "wait_ns": 0,
                    "idle_blamed_ns": 0,
                    "grade": "seq",
                },
                {
                    "path": "blocks.1.attn.qkv",
                    "cls": "Linear",
                    "parent": "blocks.1",
                    "calls": 12,
                    "forward_gpu_ns": 60 * MS,
                    "backward_gpu_ns": 80 * MS,
                    "self_gpu_ns": 140 * MS,
                    "launch_ns": 9 * MS,
                    "wait_ns": 0,
                    "idle_blamed_ns": 0,
                    "grade": "seq",
                },
            ],
        ),
        "phases": table(
            "phases",
            "Phases",
            [col("name", "String"), col("cpu_ns"), col("gpu_busy_ns"), col("gpu_idle_ns")],
            [
                {"name": "forward", "cpu_ns": 180 * MS, "gpu_busy_ns": 200 * MS, "gpu_idle_ns": 20 * MS},
                {"name": "backward", "cpu_ns": 160 * MS, "gpu_busy_ns": 300 * MS, "gpu_idle_ns": 12 * MS},
            ],
        ),
        "waits": table(
            "waits",
            "Waits",
            [
                col("api", "String"),
                col("calls"),
                col("total_ns"),
                col("backlog_ns"),
                col("own_op_ns"),
                col("host_ns"),
                col("idle_caused_ns"),
                col("module", "String"),
                col("phase", "String"),
                col("file", "String"),
                col("line"),
                col("saving_ns"),
                col("moves_to", "String"),
            ],
            [
                {
                    "api": "cudaStreamSynchronize",
                    "calls": 12,
                    "total_ns": 380 * MS,
                    "backlog_ns": 370 * MS,
                    "own_op_ns": 1 * MS,
                    "host_ns": 9 * MS,
                    "idle_caused_ns": 60 * MS,
                    "module": "blocks.1.loss",
                    "phase": "loss",
                    "file": "/home/alice/secret-project/train/losses.py",
                    "line": 88,
                    "saving_ns": 400_000,
                    "moves_to": "unique",
                },
            ],
        ),
        "copies": table(
            "copies",
            "Copies",
            [
                col("direction", "String"),
                col("src_kind", "String"),
                col("dst_kind", "String"),
                col("count"),
                col("bytes"),
                col("total_ns"),
                col("bandwidth_bytes_per_s", "Float64", "bytes/s"),
                col("api_self_ns"),
            ],
            [
                {
                    "direction": "HtoD",
                    "src_kind": "pageable",
                    "dst_kind": "device",
                    "count": 24,
                    "bytes": 310 * 1024 * 1024,
                    "total_ns": 28 * MS,
                    "bandwidth_bytes_per_s": 11.6e9,
                    "api_self_ns": 17 * MS,
                }
            ],
        ),
        "memory": table("memory", "Device memory", [], None, "re-run with: nsysx run --memory -- python train.py"),
        "events": table("events", "torch.cuda.Event windows", [], None, "the script records no CUDA events"),
        "brand_new": table(
            "brand_new",
            "An analysis of tomorrow",
            [
                col("thing", "String"),
                col("weight_bytes"),
                col("speed_per_s", "Float64", "bytes/s"),
                col("ready", "Boolean"),
            ],
            [{"thing": "alpha", "weight_bytes": 2048, "speed_per_s": 2e9, "ready": True}],
        ),
    }
    made = Summary(
        version="0.1.0",
        capture=Capture(
            files=("/home/alice/secret-project/masked0.sqlite",),
            nsys_version="2025.3.1.90",
            schema_version="3.20.3",
            gpus=(Gpu(1, 4242, 0, "NVIDIA H200", 60 << 20, 139 << 30, 4_800_000_000_000, 132),),
            processes=(
                {
                    "process": 1,
                    "pid": 4242,
                    "name": "python",
                    "host": "build-7.corp.example",
                    "command": "python train.py --token=hunter2",
                },
            ),
            duration_ns=1_400 * MS,
            diagnostics=(
                {"severity": "warning", "text": "Not all CUDA events might have been collected. /home/alice/x"},
            ),
            options={"COMMAND": "python train.py --token=hunter2", "trace": "cuda,nvtx"},
            probe=(
                {
                    "pid": 4242,
                    "python": "3.11.7",
                    "torch": "2.13.0",
                    "nvtx": "0.2.17",
                    "backend": "nvtx",
                    "ranges_pushed": 4812,
                    "reason": None,
                    "errors": [],
                },
            ),
            exit_code=0,
        ),
        quality=(
            Check("launches and kernels", "ok", "4,210 launches, 4,210 kernels."),
            Check(
                "dropped events",
                "warn",
                "nsys says that CUDA events may be missing.",
                "Profile a shorter window: nsysx run --steps 10:20 -- python train.py",
            ),
            Check(
                "memory events", "missing", "Allocations were not recorded.", "nsysx run --memory -- python train.py"
            ),
        ),
        totals={
            "kernels": 4210,
            "kernel_ns": 610 * MS,
            "api_calls": 5120,
            "api_ns": 640 * MS,
            "memcpys": 48,
            "memcpy_ns": 33 * MS,
            "memsets": 30,
            "memset_ns": 3 * MS,
            "gpu_ops_without_call": 0,
            "api_by_kind": {},
        },
        steps=Steps(
            "nsysx",
            "nsysx ranges",
            12,
            (2, 11),
            69_100_000,
            69_250_000,
            steps,
            cpu_mean_ns=69_100_000,
            gpu_mean_ns=69_250_000,
            scope=SCOPE,
        ),
        verdict=Verdict(
            "gpu_bound",
            "The GPU computes for 81 % of the 69.25 ms step; the 40 ms that the CPU spends in cudaStreamSynchronize are not the limit.",
            ("GPU busy 85.6 % of 10 steady steps", "Removing every wait saves 0.4 ms (0.6 %)"),
            step_ns=69_150_000,
            parts={"work": 56_250_000, "copy": 3 * MS, "sync": 6 * MS, "launch": 2 * MS, "host": 1_900_000},
        ),
        tables=tables,
        replay={"recorded_ns": 69_250_000, "unchanged_ns": 69_100_000, "error": 0.002},
        unprofiled=Unprofiled(
            69_150_000, 69 * MS, 70 * MS, "in_process", 20, 69_250_000, 1, 0, 10, 0.86, 59 * MS, 10 * MS, {}, {}
        ),
        findings=(
            Finding(
                "NSX120",
                "mask-work",
                "found",
                "Boolean masks cost 22 ms of sort and gather kernels",
                "nonzero and masked indexing run sort, scan and gather kernels over the whole loss tensor.",
                {
                    "module": "blocks.1.loss",
                    "phase": "loss",
                    "file": "/home/alice/secret-project/train/losses.py",
                    "line": 88,
                },
                22_280_000,
                Saving(22_000_000, "error bar 0.2 %"),
                "Use ignore_index, or torch.where, so that shapes stay fixed.",
                ({"kernel": KERNEL_NAMES[1], "total_ns": 22 * MS, "count": 36},),
            ),
            Finding(
                "NSX101",
                "host-sync",
                "found",
                "Hidden host sync in nonzero",
                "The CPU waits 38 ms per step; the GPU is busy meanwhile.",
                {"module": "blocks.1.loss"},
                38 * MS,
                Saving(400_000, "error bar 0.2 %"),
                "Leave it.",
                (),
            ),
            Finding("NSX104", "alloc-thrash", "clear", "Allocator thrash", ""),
            Finding(
                "NSX108",
                "clocks",
                "cannot_tell",
                "Clock changes",
                "Clocks were not sampled.",
                {},
                None,
                fix="nsysx run --clocks",
            ),
        ),
        timelines=(timeline(), timeline("Step 7, slowest")),
    )
    return changed(made, **changes)


def changed(summary: Summary, **changes: Any) -> Summary:
    """Return the Summary with these parts, and the answer that they give."""
    return answered(replace(summary, **changes))


def ranks(count: int, late: int) -> Table:
    """Return the table of a job of ``count`` ranks that wait for rank ``late``: 10 steps of 9 ms."""
    rows = []
    for r in range(count):
        compute, wait = (8_500, 0) if r == late else (5_500, 3_000)
        known = {
            "rank": r, "report": f"job.rank{r}.sqlite", "process": 1, "pid": 100, "device": r % 8, "gpu": "NVIDIA H200",
            "host": r // 8, "steps": 10, "step_ns": 9_000 * US, "window_ns": 90 * MS, "compute_ns": compute * 10 * US,
            "comm_ns": (wait + 100) * 10 * US, "copy_ns": 0, "memset_ns": 0, "idle_ns": 4 * MS, "hidden_comm_ns": 0,
            "idle_causes": {"launch_latency": 4 * MS}, "collectives": 30, "transfer_ns": MS, "wait_ns": wait * 10 * US,
            "exposed_wait_ns": wait * 10 * US, "exposed_transfer_ns": MS, "exposed_unmatched_ns": 0, "bytes": 10**9,
            "bus_bytes_per_s": 1.8e11, "by_collective": [{"kind": "allreduce", "calls": 30}], "last_share": float(r == late),
            "delay_ns": 3_000 * 10 * US * (count - 1) * (r == late), "straggler": r == late,
            "late_because": {"compute": 3_000 * US} if r == late else {}, "clock_correction_ns": 12,
            "transfer_usual_ns": MS, "bubble_ns": None, "changed_ns": None, "clock_mhz": None, "most_clock_mhz": None,
            "waits_for": [{"rank": late, "ns": wait * 10 * US, "because": "compute"}] if wait else [],
        }  # fmt: skip
        behind = {
            "late_ns": 3_000 * US, "late_low_ns": 2_900 * US, "late_high_ns": 3_100 * US, "late_drift_ns": 50 * US,
            "late_cause": "compute", "price_ns": 3_000 * US, "price_share": 0.9, "alone_share": 0.9, "replay_error": 0.01,
            "even_ns": 2_000 * US, "late_kernels": None, "late_lines": None, "late_work": None, "late_spread": None,
        }  # fmt: skip
        known |= {
            "late_by_work": False,
            "lone_work": None,
            "late_at_times": None,
            "turn_wait_ns": None,
            "turn_even_ns": None,
        }
        known |= behind if r == late else dict.fromkeys(behind)
        rows.append({c.name: known[c.name] for c in ranks_room.COLUMNS})
    shown = ranks_room.SHOWN if count <= MOST_RANKS_IN_ORDER else ranks_room.SHOWN_MANY
    return Table("ranks", ranks_room.TITLE, ranks_room.COLUMNS, tuple(rows), shown=shown)


def bare() -> Summary:
    """Return a Summary of a capture that holds next to nothing: every table None."""
    full = summary()
    tables = {
        key: replace(t, rows=None, reason="no CUDA rows: re-run with nsysx run -t cuda")
        for key, t in full.tables.items()
    }
    return changed(
        full,
        capture=Capture(("x.sqlite",), None, None, (), (), None, ()),
        steps=Steps("none", "", 0, None, None, None, ()),
        verdict=Verdict("unknown", "This capture holds no GPU work, so nothing can be said about the step."),
        tables=tables,
        totals={},
        replay=None,
        findings=None,
        timelines=(),
        quality=(Check("CUDA rows", "missing", "None found.", "nsysx run"),),
    )


def hostile() -> Summary:
    """Return a Summary in which every text of the user's program is an attack."""
    full = summary()
    tables = dict(full.tables)
    tables["kernels"] = replace(
        tables["kernels"], rows=tuple(kernel_row(n, (50 - i) * MS) for i, n in enumerate(HOSTILE))
    )
    for key, column in (
        ("modules", "path"),
        ("waits", "module"),
        ("api_calls", "name"),
        ("copies", "direction"),
        ("phases", "name"),
        ("brand_new", "thing"),
    ):
        row = tables[key].rows[0]
        tables[key] = replace(tables[key], rows=tuple({**row, column: n} for n in HOSTILE))
    tables["modules"] = replace(
        tables["modules"], rows=tuple({**r, "cls": n} for r, n in zip(tables["modules"].rows, HOSTILE, strict=True))
    )
    tables["cpu_ledger"] = replace(tables["cpu_ledger"], rows=tuple(cpu_row(1, n) for n in HOSTILE[:8]))
    found = tuple(
        Finding(
            "NSX103",
            "x",
            "found",
            n,
            n,
            {"module": n, "phase": n, "file": n, "line": 1},
            1,
            Saving(1, n),
            n,
            ({"kernel": n},),
        )
        for n in HOSTILE
    )
    steps = replace(
        full.steps,
        rows=tuple({**r, "phases": dict.fromkeys(HOSTILE, 4 * MS)} for r in full.steps.rows),
        rule=HOSTILE[0],
    )
    return changed(
        full,
        tables=tables,
        findings=found,
        steps=steps,
        verdict=Verdict("gpu_bound", HOSTILE[0] + HOSTILE[4] + HOSTILE[8], HOSTILE),
        capture=replace(
            full.capture,
            files=HOSTILE[:3],
            diagnostics=tuple({"text": n} for n in HOSTILE),
            probe=({"backend": HOSTILE[0], "errors": HOSTILE},),
        ),
        quality=tuple(Check(n, "warn", n, n) for n in HOSTILE),
        timelines=(
            replace(
                timeline(names=HOSTILE),
                title=HOSTILE[1],
                lanes=tuple(replace(lane, label=HOSTILE[i]) for i, lane in enumerate(timeline(names=HOSTILE).lanes)),
            ),
        ),
    )

"""NSX127: each setting of the table with the fault, and the same program without it; and that advice knows what settings answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsysx.answer import near_limits, remarks, unnamed
from nsysx.answer.change_savings import After
from nsysx.findings import _costly_when, _unread, nsx106_input_starvation, nsx127_costly_settings
from nsysx.findings._costly import SETTINGS
from nsysx.findings._costly_when import UNKNOWN
from nsysx.findings._same_samples import SameSamples
from nsysx.findings._transform_lengths import factors
from nsysx.inject.nsysx_probe.changes.array_types import next_length
from nsysx.model import Finding, Summary
from tests.findings import Program, healthy

#: What the probe reads of a program without a fault.
CLEAN: dict[str, Any] = {
    "step": 1,
    "environment": {"values": {}, "names": []},
    "switches": {
        "anomaly": False,
        "anomaly_check_nan": True,
        "autograd_profiler": False,
        "torch_profiler": False,
        "deterministic": False,
        "cudnn": True,
        "cudnn_benchmark": True,
        "cudnn_deterministic": False,
        "matmul_tf32": True,
        "conv_tf32": True,
        "sdpa": {"flash": True, "efficient": True, "math": True, "cudnn": True},
    },
    "cpu": {"cores": 8, "allowed": 8, "quota": None, "torch_threads": 8},
    "memory": {"total_bytes": 80 << 30, "reserved_peak_bytes": 70 << 30},
    "card": {
        "power_limit_w": 700.0,
        "default_power_limit_w": 700.0,
        "clock_mhz": 1980,
        "most_clock_mhz": 1980,
        "held_by": ["power limit"],
        "others": 0,
    },
    "compile": None,
    "graphs": 0,
    "optimizers": [],
    "scalers": [],
    "autocast": {"regions": 1, "dtypes": {"cuda:bfloat16": 1}},
    "checkpoints": 0,
    "backwards": 1,
    "reducing": None,
    "networks": [{"class": "Net", "dtypes": {"float32": 100}, "convolutions": 0}],
    "wrappers": [],
    "activations": {"dtypes": {"float32": {"count": 1, "elements": 1}}, "float64_in": []},
    "loaders": [],
}
ADAM = {"class": "AdamW", "module": "torch", "fused": True, "devices": {"cuda": 4}, "state_devices": {"cuda": 8}}


ANEW = {
    "file": "train.py",
    "function": "forward",
    "line": 65,
    "count": 7,
    "reason": "0/6: self.calls == 6  # train.py:66",
}


def changed(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Return settings with a change: objects are merged, all else is replaced."""
    merged = dict(base)
    for key, value in change.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = changed(merged[key], value) if both else value
    return merged


def summary(folder: Path, settings: dict[str, Any] | None, body: Callable[[Program, int], None] = healthy) -> Summary:
    """Return the Summary of a program whose probe has read these settings."""
    return _noted(folder, settings, body).summary(folder)


def _noted(folder: Path, settings: dict[str, Any] | None, body: Callable[[Program, int], None]) -> Program:
    """Return a program, and write what its probe has read."""
    record = {"pid": 100, "backend": "nvtx", "ranges": {}, "ranges_pushed": 1, "settings": settings}
    (folder / "r.run.json").write_text(json.dumps({"probe": [record]}))
    return Program().steps(body)


def of_settings(whole: Summary) -> list[Finding]:
    return [f for f in whole.findings or () if f.code == "NSX127"]


def alone(
    folder: Path,
    settings: dict[str, Any] | None,
    body: Callable[[Program, int], None] = healthy,
    code: str = "NSX127",
) -> list[Finding]:
    """Return what one rule says of a program with these settings, with no other asked."""
    return _noted(folder, settings, body).findings(folder, code)


def names(found: list[Finding]) -> set[str]:
    """Return the settings that were found to cost."""
    return {str(f.evidence[0]["setting"]) for f in found if f.verdict == "found"}


def blocked(program: Program, number: int) -> None:
    """Launches that return 20 us after their kernel of 50 us began, with host code before each."""
    with program.range("forward"), program.range("net:Net"):
        for _ in range(20):
            program.launch(50, cost=78)
            program.host(20)


def starved(program: Program, number: int) -> None:
    """Short kernels with host code before each: the GPU idles for most of the step."""
    with program.range("forward"), program.range("net:Net"):
        for _ in range(10):
            program.host(60)
            program.launch(20)


def convolving(program: Program, number: int) -> None:
    with program.range("forward"), program.range("net:Net"):
        for _ in range(20):
            program.launch(200, "implicit_convolve_sgemm")


def reshaping(program: Program, number: int) -> None:
    """Convolutions of other shapes in each step."""
    with program.range("forward"), program.range("net:Net"):
        for i in range(20):
            program.launch(200, "implicit_convolve_sgemm", blocks=1000 + 20 * number + i)


def doubled(program: Program, number: int) -> None:
    with program.range("forward"), program.range("net:Net"):
        for _ in range(10):
            program.launch(200, "elementwise_kernel<AddFunctor<double>>")
            program.launch(200)


def behind_cache(program: Program, number: int) -> None:
    """A look-up of rows whose cache reads what it lacks from host memory."""
    with program.range("forward"), program.range("net:Net"):
        program.launch(100, "fbgemm_gpu::linearize_cache_indices_kernel<long>")
        program.launch(200, "fbgemm_gpu::lru_cache_find_uncached_kernel")
        program.launch(1200, "fbgemm_gpu::lru_cache_insert_kernel<float, float>")
        program.launch(300, "split_embedding_codegen_forward_unweighted_kernel<float>")
        for _ in range(5):
            program.launch(100)


def transforming(program: Program, number: int) -> None:
    with program.range("forward"), program.range("net:Net"):
        for _ in range(10):
            program.launch(200, "void multi_bluestein_fft<256, float>")
            program.launch(200)


def operator(program: Program, text: str, us: float, kernel: str) -> None:
    """An operator of a step, with its one kernel."""
    begin = program.t
    program.launch(us, kernel)
    program.main.add_range(f"{text.partition(',')[0]}, op_id = {begin + 1}{text[text.index(',') :]}", begin, program.t)


def in_order(program: Program, number: int) -> None:
    """A backward that adds rows in the order of their sorted indices."""
    multiplying(program, number)
    with program.range("backward"), program.range("net:Net"):
        program.launch(400, "indexing_backward_kernel_stride_1<float>")


def growing(program: Program, number: int) -> None:
    """A network that is asked for one token more in each call, of all tokens so far."""
    for token in range(4):
        with program.range("evaluation"), program.range("net:Net"):
            operator(program, f"aten::embedding, sizes = [[5000, 64], [2, {100 + token}]]", 10, "indexSelect")
            program.launch(490)


def reading(program: Program, number: int) -> None:
    """A scaler that reads a flag after backward, while the GPU has nothing else to do."""
    with program.range("forward"), program.range("net:Net"):
        for _ in range(10):
            program.launch(50)
    with program.range("optimizer GradScaler"):
        program.copy(2, "DtoH", bytes=4)
        program.host(200)
        for _ in range(5):
            program.launch(50)


def reducing(program: Program, number: int) -> None:
    """Four micro-steps, and an all-reduce with nothing beside it after each."""
    for _ in range(4):
        with program.range("forward"), program.range("net:Net"):
            program.launch(500)
        with program.range("backward"):
            program.launch(500)
            program.launch(300, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")


def bucketed(program: Program, number: int) -> None:
    """A backward that reduces gradients and copies them out of their buckets."""
    with program.range("forward"), program.range("net:Net"):
        program.launch(500)
    with program.range("backward"):
        program.launch(500)
        for _ in range(4):
            program.launch(100, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
            program.copy(50, "DtoD", bytes=1 << 20)


def sending(program: Program, number: int) -> None:
    """A forward that sends buffers."""
    with program.range("forward"), program.range("net:Net"):
        for _ in range(2):
            program.launch(100, "ncclDevKernel_Broadcast_RING_LL")
            program.launch(500)
    with program.range("backward"):
        program.launch(500)


def sharded(program: Program, number: int) -> None:
    """Parameters that are gathered in forward, again in backward, and gradients that are scattered."""
    with program.range("forward"), program.range("net:Net"):
        for _ in range(2):
            program.launch(100, "ncclDevKernel_AllGather_RING_LL")
            program.launch(500)
    with program.range("backward"):
        for _ in range(2):
            program.launch(100, "ncclDevKernel_AllGather_RING_LL")
            program.launch(500)
            program.launch(100, "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL")


def reached_late(program: Program, number: int) -> None:
    """Units whose parameters are gathered when the host comes to them, and the GPU has nothing else to do."""
    for _ in range(2):
        with program.range("forward"), program.range("net:Net"):
            program.launch(100, "ncclDevKernel_AllGather_RING_LL")
            program.launch(500)
        program.host(480)
    with program.range("backward"):
        program.launch(500)
    program.sync()


def searching_parameters(program: Program, number: int) -> None:
    """DDP walks the graph behind forward, while the GPU has nothing to do, and reduces the map of used parameters behind backward."""
    with program.range("forward"), program.range("net:Net"):
        program.launch(200)
    program.host(600)
    program.launch(50)
    with program.range("backward"):
        program.launch(400)
        program.launch(100, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
        program.launch(100, "ncclDevKernel_AllReduce_Sum_u32_RING_LL")
    program.sync()


SHARDED = {"kind": "fully_shard", "count": 2, "reshard_after_forward": True, "offload": False}
FITS = {"reserved_peak_bytes": 20 << 30, "total_bytes": 80 << 30}
SEARCHES = {"find_unused_parameters": True, "static_graph": False, "unused_parameter_bytes": 4096}
WHOLE = {"kind": "FSDP", "count": 2, "limit_all_gathers": True}
DDP = {"kind": "DDP", "count": 1, "find_unused_parameters": False, "unused_parameter_bytes": 0}
LOADER = {
    "workers": 4,
    "pin_memory": True,
    "persistent_workers": False,
    "iterators": 6,
    "first_step": 0,
    "last_step": 50,
}


#: name, the fault, the same without it, the program, and the saving in us, None where it is not known
def multiplying(program: Program, number: int) -> None:
    with program.range("forward"), program.range("net:Net"):
        for _ in range(10):
            program.launch(200, "nvjet_gemm")


def backward_twice(program: Program, number: int) -> None:
    multiplying(program, number)
    for us in (300, 200):
        with program.range("backward"), program.range("net:Net"):
            program.launch(us, "nvjet_gemm")


FAULTS: list[tuple[str, dict[str, Any], dict[str, Any], Callable[[Program, int], None], int | None]] = [
    (
        "CUDA_LAUNCH_BLOCKING",
        {"environment": {"values": {"CUDA_LAUNCH_BLOCKING": "1"}}},
        {"environment": {"values": {"CUDA_LAUNCH_BLOCKING": "0"}}},
        blocked,
        980,  # of 1,400 that launches wait, what the GPU idles
    ),
    ("anomaly detection", {"switches": {"anomaly": True}}, {"switches": {"anomaly": None}}, healthy, None),
    ("profiler", {"switches": {"torch_profiler": True}}, {"switches": {"autograd_profiler": None}}, healthy, None),
    (
        "deterministic algorithms",
        {"switches": {"deterministic": True}},
        {"switches": {"cudnn_deterministic": True}},
        healthy,
        None,
    ),
    (
        "cudnn.benchmark off",
        {"switches": {"cudnn_benchmark": False}, "networks": [{"convolutions": 3}]},
        {"switches": {"cudnn_benchmark": False}},
        convolving,
        None,
    ),
    (
        "cudnn.benchmark on",
        {"networks": [{"convolutions": 3}]},
        {"networks": [{"convolutions": 3}], "switches": {"cudnn_benchmark": False}},
        reshaping,
        None,
    ),
    (
        "cudnn off",
        {"switches": {"cudnn": False}, "networks": [{"convolutions": 3}]},
        {"switches": {"cudnn": False}},
        healthy,
        None,
    ),
    (
        "attention kernels",
        {"switches": {"sdpa": {"flash": False, "efficient": False, "cudnn": False}}},
        {"switches": {"sdpa": {"flash": False}}},
        healthy,
        None,
    ),
    (
        "float64",
        {"networks": [{"class": "Net", "dtypes": {"float64": 8}, "convolutions": 0}]},
        {"networks": [{"class": "Net", "dtypes": {"float32": 8}, "convolutions": 0}]},
        doubled,
        1000,
    ),
    (
        "FFT length",
        {},
        {},
        transforming,
        1600,  # four fifths of 2,000 us
    ),
    (
        "tables behind a cache",
        {"memory": {"total_bytes": 140 << 30, "reserved_peak_bytes": 20 << 30}},
        {"memory": {"total_bytes": 140 << 30, "reserved_peak_bytes": 130 << 30}},
        behind_cache,
        1500,
    ),
    (
        "recompile limit",
        {"compile": {"recompile_limit": 8, "recompilations": [ANEW]}},
        {"compile": {"recompile_limit": 8, "recompilations": [{**ANEW, "count": 6}]}},
        healthy,
        None,
    ),
    (
        "parameters that no optimizer holds",
        {"unheld": {"Net": [900, 1000]}},
        {"unheld": {"Net": [900, 1000]}, "gradient_readers": ["Net"]},
        backward_twice,
        225,  # of 500 us of products nine tenths of a half
    ),
    ("no cache of keys", {}, {}, growing, 1600),  # four fifths of 2,000 us
    (
        "padding",
        {"padding": {"name": "ids", "rows": 8, "length": 400, "longest": 300, "real": 800}},
        {"padding": {"name": "ids", "rows": 8, "length": 400, "longest": 390, "real": 3000}},
        multiplying,
        500,  # a quarter of 2,000 us of the network's work
    ),
    (
        "gradients that nothing reads",
        {"unread": {"Net": [0]}},
        {
            "unread": {"Net": [0]},
            "unheld": {"Net": [1000, 1000]},
        },  # it may be updated by something that is no optimizer
        backward_twice,
        300,  # the first of two backwards; 200 us of the second are read
    ),
    (
        "GradScaler with bfloat16",
        {"scalers": [{"enabled": True}]},
        {"scalers": [{"enabled": True}], "autocast": {"dtypes": {"cuda:float16": 1, "cuda:bfloat16": 0}}},
        reading,
        None,
    ),
    (
        "persistent_workers off",
        {"loaders": [LOADER]},
        {"loaders": [{**LOADER, "last_step": 50_000}, {**LOADER, "persistent_workers": True}]},
        healthy,
        None,
    ),
    (
        "find_unused_parameters",
        {
            "wrappers": [{**DDP, "find_unused_parameters": True}],
            "optimizers": [{**ADAM, "gradients": {"without": 0}}],
        },
        {
            "wrappers": [{**DDP, "find_unused_parameters": True}],
            "optimizers": [{**ADAM, "gradients": {"without": 2}}],
        },
        healthy,
        None,
    ),
    (
        "no_sync unused",
        {"wrappers": [DDP], "backwards": 4, "reducing": 4},
        {"wrappers": [DDP], "backwards": 4, "reducing": 1},
        reducing,
        3 * 300,
    ),
    (
        "gradient_as_bucket_view",
        {"wrappers": [{**DDP, "gradient_as_bucket_view": False}]},
        {"wrappers": [{**DDP, "gradient_as_bucket_view": True}]},
        bucketed,
        4 * (50 + 10),  # the copies, and the pauses before them
    ),
    (
        "broadcast_buffers",
        {"wrappers": [{**DDP, "broadcast_buffers": True, "buffers": 8}]},
        {"wrappers": [{**DDP, "broadcast_buffers": True, "buffers": 0}]},
        sending,
        200,
    ),
    (
        "small buckets",
        {"wrappers": [{**DDP, "bucket_cap_bytes": 1 << 20, "bucket_bytes": f"{1 << 20}, {3 << 20}"}]},
        {"wrappers": [{**DDP, "bucket_cap_bytes": 1 << 20, "bucket_bytes": f"{1 << 20}, {99 << 20}"}]},
        bucketed,
        round((1 - 2 / 4) * 400),
    ),
    (
        "one bucket",
        {"wrappers": [{**DDP, "bucket_cap_bytes": 1 << 30, "bucket_bytes": f"{500 << 20}"}]},
        {"wrappers": [{**DDP, "bucket_cap_bytes": 1 << 30, "bucket_bytes": f"{100 << 20}"}]},
        bucketed,
        round(0.35 * 0.95 * 400),  # hidden, it slows what it runs beside by 65 % of its time
    ),
    (
        "reshard_after_forward",
        {"wrappers": [SHARDED], "memory": FITS, "optimizers": [{**ADAM, "elements": 1 << 30}]},
        {"wrappers": [SHARDED], "memory": FITS, "optimizers": [{**ADAM, "elements": 20 << 30}]},
        sharded,
        200,
    ),
    (
        "CPU offload",
        {"wrappers": [{**SHARDED, "offload": True}]},
        {"wrappers": [SHARDED]},
        sharded,
        6 * 100,  # all that is not its own work
    ),
    ("power limit", {"card": {"power_limit_w": 400.0}}, {"card": {"power_limit_w": 690.0}}, healthy, None),
    (
        "clocks",
        {"card": {"clock_mhz": 1200, "held_by": ["temperature"]}},
        {"card": {"clock_mhz": 1200, "held_by": ["power limit"]}},
        healthy,
        None,
    ),
    ("other processes", {"card": {"others": 2}}, {"card": {"others": None}}, healthy, None),
    ("cores", {"cpu": {"allowed": 1}}, {"cpu": {"allowed": 1, "cores": 1}}, healthy, None),
    (
        "busy cores",
        {"cpu": {"ran_ns": 8_000_000_000, "waited_for_core_ns": 2_000_000_000}},
        {"cpu": {"ran_ns": 8_000_000_000, "waited_for_core_ns": 80_000_000}},
        starved,
        None,
    ),
    ("threads", {"cpu": {"torch_threads": 64}}, {"cpu": {"torch_threads": 16}}, healthy, None),
    (
        "debug backend",
        {"compile": {"backends": [{"name": "aot_eager"}]}},
        {"compile": {"backends": [{"name": "inductor"}, {"name": "eager"}]}},
        healthy,
        None,
    ),
    (
        "optimizer on the CPU",
        {"optimizers": [{**ADAM, "fused": None, "state_devices": {"cpu": 8}}]},
        {"optimizers": [ADAM]},
        healthy,
        None,
    ),
    (
        "autocast regions",
        {"autocast": {"regions": 48}},
        {"autocast": {"regions": 48}, "backwards": 8},
        healthy,
        None,
    ),
    (
        "checkpoints",
        {"checkpoints": 12, "memory": {"reserved_peak_bytes": 20 << 30}},
        {"checkpoints": 12},
        healthy,
        None,
    ),
    (
        "static_graph",
        {"wrappers": [{**DDP, **SEARCHES, "can_set_static_graph": True}]},
        {"wrappers": [{**DDP, **SEARCHES, "can_set_static_graph": False}]},
        searching_parameters,
        506,  # the map's 100, and of the host code what follows the end of the forward's kernel
    ),
    (
        "backward_prefetch",
        {"wrappers": [{**WHOLE, "forward_prefetch": True, "backward_prefetch": None}]},
        {"wrappers": [{**WHOLE, "forward_prefetch": True, "backward_prefetch": "BACKWARD_PRE"}]},
        sharded,
        200,
    ),
    (
        "forward_prefetch",
        {"wrappers": [{**WHOLE, "forward_prefetch": False, "backward_prefetch": "BACKWARD_PRE"}]},
        {"wrappers": [{**WHOLE, "forward_prefetch": True, "backward_prefetch": "BACKWARD_PRE"}]},
        reached_late,
        200,
    ),
    (
        "limit_all_gathers",
        {"wrappers": [{**WHOLE, "limit_all_gathers": False}], "memory": {"retries": 3}},
        {"wrappers": [{**WHOLE, "limit_all_gathers": False}], "memory": {"retries": 0}},
        sharded,
        None,
    ),
    *(
        (
            name,
            {"environment": {"values": {name: value}}},
            {"environment": {"values": {name: other}}},
            body,
            1200 if name == "TORCH_DISTRIBUTED_DEBUG" else None,  # four collectives of 300 us: the host holds them up
        )
        for name, value, other, body in (
            ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "0", healthy),
            ("TRITON_INTERPRET", "1", "0", healthy),
            ("TORCHDYNAMO_DISABLE", "1", "0", healthy),
            ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", "OFF", reducing),
            ("NCCL_DEBUG", "INFO", "WARN", reducing),
            ("TORCH_SHOW_CPP_STACKTRACES", "1", "0", healthy),
            ("PYTHONMALLOC", "debug", "malloc", healthy),
        )
    ),
]


@pytest.mark.parametrize(("name", "fault", "without", "body", "saving_us"), FAULTS, ids=[f[0] for f in FAULTS])
def test_a_setting_that_costs(
    tmp_path: Path,
    name: str,
    fault: dict[str, Any],
    without: dict[str, Any],
    body: Callable[[Program, int], None],
    saving_us: int | None,
) -> None:
    found = alone(tmp_path, changed(CLEAN, fault), body)
    assert names(found) == {name}
    (finding,) = found
    assert finding.fix
    assert finding.paste
    if saving_us is not None:
        assert finding.saving_ns_per_step == pytest.approx(saving_us * 1000, rel=0.05)
    elif name != "GradScaler with bfloat16":
        assert finding.saving_ns_per_step is None
        assert finding.saving.confidence == UNKNOWN
        assert finding.cost_ns_per_step is None
    # The kernels and operators show these whatever the settings say.
    seen = body in (doubled, transforming, growing)
    assert name not in names(alone(tmp_path, changed(CLEAN, without), healthy if seen else body))


def test_frozen_weights_are_not_reduced_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_unread, "exposed_transfer_ns", lambda case, chosen: 100_000)  # needs several ranks
    (finding,) = alone(tmp_path, changed(CLEAN, {"unheld": {"Net": [900, 1000]}}), backward_twice)
    most = 2 * 225_000 + 90_000
    assert (finding.saving.most_ns, finding.saving.bound) == (pytest.approx(most, rel=0.05), False)
    assert finding.saving_ns_per_step == pytest.approx((225_000 + most) / 2, rel=0.05)


def on_two_gpus(folder: Path, network: str) -> list[Finding]:
    """Return what is found of a process of which a second GPU works beside the first."""

    def body(program: Program, number: int) -> None:
        if not number:
            program.report.gpu(1, pids=[(100, 1)])
        with program.range("forward"), program.range(f"net:{network}"):
            for _ in range(10):
                program.launch(50)
                program.main.launch(
                    program.t, 5_000, kernel="gemm", gpu_start=program.t + 6_000, gpu_dur=50_000, device=1
                )
                program.host(100)
        program.sync()

    return alone(folder, changed(CLEAN, {"networks": [{"class": network}]}), body)


def test_one_process_for_all_gpus(tmp_path: Path) -> None:
    (finding,) = (f for f in on_two_gpus(tmp_path, "DataParallel") if f.evidence[0]["setting"] == "DataParallel")
    assert [way.name for way in finding.remedies] == ["process-for-each-gpu"] and finding.evidence[0]["leads"]
    assert finding.saving.bound and (finding.saving_ns_per_step or 0) >= 400_000


def test_parts_of_a_network_on_two_gpus_are_no_copies_of_it(tmp_path: Path) -> None:
    assert "DataParallel" not in names(on_two_gpus(tmp_path, "Parts"))


def test_cores_that_others_use_cost_nothing_where_the_gpu_never_waits(tmp_path: Path) -> None:
    crowded = {"cpu": {"ran_ns": 8_000_000_000, "waited_for_core_ns": 2_000_000_000}}
    assert not names(alone(tmp_path, changed(CLEAN, crowded), healthy))


@pytest.mark.parametrize(
    ("text", "line"),
    [("return checkpoint(self.body, x, use_reentrant=False)", 31), ("torch.save(net, 'checkpoint.pt')", None)],
)
def test_checkpoints_are_told_at_the_line_that_asks_for_them(tmp_path: Path, text: str, line: int | None) -> None:
    settings = changed(CLEAN, {"checkpoints": 12, "memory": {"reserved_peak_bytes": 20 << 30}})
    record = {"pid": 100, "backend": "nvtx", "ranges": {}, "ranges_pushed": 1, "settings": settings}
    record["source"] = {"/job/net.py": {"30": "x = self.norm(x)", "31": text}}
    (tmp_path / "r.run.json").write_text(json.dumps({"probe": [record]}))
    found = Program().steps(healthy, 12).findings(tmp_path, "NSX127")
    (finding,) = (f for f in found if f.evidence and f.evidence[0]["setting"] == "checkpoints")
    assert finding.where.get("line") == line


def test_micro_steps_of_one_step_are_priced_by_its_communication(tmp_path: Path) -> None:
    """One steady step is too little to tell the reductions of its backwards apart: its settings count them."""
    settings = changed(CLEAN, {"wrappers": [DDP], "backwards": 4, "reducing": 4})
    record = {"pid": 100, "backend": "nvtx", "ranges": {}, "ranges_pushed": 1, "settings": settings}
    (tmp_path / "r.run.json").write_text(json.dumps({"probe": [record]}))
    found = Program().steps(reducing, count=3).findings(tmp_path, "NSX127")
    (finding,) = found
    assert finding.evidence[0]["setting"] == "no_sync unused"
    assert finding.saving.bound and finding.saving.source == "time"
    assert finding.saving_ns_per_step == pytest.approx(3 * 300_000, rel=0.05)


def test_backwards_of_two_wrapped_networks_are_no_micro_steps(tmp_path: Path) -> None:
    """A generator and its critic, each wrapped by itself, reduce each its own gradients, in its own backward."""

    def told(backwards: int, *wrappers: object) -> list[str]:
        settings = changed(CLEAN, {"wrappers": list(wrappers), "backwards": backwards, "reducing": backwards})
        return [f.evidence[0]["setting"] for f in alone(tmp_path, settings, once) if f.verdict == "found"]

    def once(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            program.launch(500)
        with program.range("backward"):
            program.launch(500)
            program.launch(300, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
        with program.range("optimizer SGD"):
            program.launch(50)

    critic = {**DDP, "unused_parameter_bytes": None}
    assert told(2, DDP, critic) == [] and told(2, {**DDP, "count": 2}) == []
    assert told(2, DDP) == ["no_sync unused"] and told(4, DDP, critic) == ["no_sync unused"]


@pytest.mark.parametrize(
    ("memory", "told"),
    [
        ({"memory": {"reserved_peak_bytes": 20 << 30, "total_bytes": 80 << 30}}, True),
        ({}, False),
        ({"memory": None}, True),
    ],
)
def test_a_sharded_model_that_has_no_room_for_whole_gradients_reduces_them_in_each_micro_step(
    tmp_path: Path, memory: dict[str, Any], told: bool
) -> None:
    """Of 2^30 parameters whole gradients are 4 GiB, and 70 of 80 GiB are reserved already."""
    given = {"wrappers": [SHARDED], "backwards": 4, "reducing": 4, "optimizers": [{**ADAM, "elements": 1 << 30}]}
    full = {"reserved_peak_bytes": 70 << 30, "total_bytes": 80 << 30}
    found = alone(tmp_path, changed(CLEAN, {"memory": full, **given, **memory}), reducing)
    of_each = [f for f in found if f.verdict == "found" and f.evidence[0]["setting"] == "no_sync unused"]
    assert bool(of_each) is told
    for finding in of_each:
        assert "set_requires_gradient_sync() is not used" in finding.detail
        assert finding.paste.startswith("model.set_requires_gradient_sync(last)")


@pytest.mark.parametrize("phase", ["forward", "evaluation"])
@pytest.mark.parametrize("wrappers", [[SHARDED], [{**SHARDED, "reshard_after_forward": False}], []])
def test_a_sharded_model_that_only_infers_can_stay_gathered(
    tmp_path: Path, wrappers: list[dict[str, Any]], phase: str
) -> None:
    def body(program: Program, number: int) -> None:
        for _ in range(2):
            with program.range(phase), program.range("net:Net"):
                for _ in range(2):
                    program.launch(100, "ncclDevKernel_AllGather_RING_LL")
                    program.launch(500)

    given = {"wrappers": wrappers, "memory": FITS, "optimizers": [{**ADAM, "elements": 1 << 30}]}
    found = alone(tmp_path, changed(CLEAN, given), body)
    assert names(found) == ({"reshard_after_forward"} if wrappers == [SHARDED] else set())
    if wrappers == [SHARDED]:
        assert "gathers them again for the next one" in found[0].detail
        assert found[0].saving_ns_per_step == pytest.approx(4 * 100_000, rel=0.05)


@pytest.mark.parametrize("reduced", ["each", "last"])
def test_no_sync_that_is_entered_after_the_forward_holds_nothing_back(tmp_path: Path, reduced: str) -> None:
    """The wrapper decides in the forward: what backward does is believed, not that it is told to wait when backward begins."""

    def body(program: Program, number: int) -> None:
        for micro in range(4):
            with program.range("forward"), program.range("net:Net"):
                program.launch(500)
            with program.range("backward"):
                program.launch(500)
                if micro == 3 or reduced == "each":
                    program.launch(300, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
        with program.range("optimizer SGD"):
            program.launch(50)

    settings = changed(CLEAN, {"wrappers": [DDP], "backwards": 4, "reducing": 1})
    told = [f for f in alone(tmp_path, settings, body) if f.verdict == "found"]
    assert [f.evidence[0]["setting"] for f in told] == ["no_sync unused"] * (reduced == "each")
    assert all("it has to hold the forward, too" in f.detail for f in told)


#: Tested in test_costly_collectives and test_job_messages: they need lines, streams, messages or several ranks.
OF_JOBS = {
    "gradients of each micro-batch",
    "layers computed whole",
    "tokens of all ranks",
    "tokens sent by each",
    "gradients of inputs in line",
    "branch behind exchanges",
    "tensors distributed again",
    "objects in each step",
    "gathers in a loop",
    "unit called again",
    "gathers in micro-steps",
    "gathers of a frozen base",
    "gathered twice in backward",
    "gradients of one graph",
    "large root unit",
    "ZeRO stage in micro-steps",
    "ZeRO overlap_comm",
    "exchanges recomputed",
    "all forwards first",
    "gathers of a frozen network",
    "calls in turn",
    "scales one by one",
    "nested checkpoints",
    "gradients of frozen parameters",
    "gradients of weights that nothing reads",
    "gradients of activations that nothing reads",
    "parts that nothing trains",
    "DataParallel",
    "other processes in turn",
    "gradients reduced again",
    "shared optimizer state",
    "compressing hook",
    "local steps reduced",
    "parameters_as_bucket_view",
    "metrics in each step",
    "parameters one by one",
    "stream of collectives",
    "gathers into lists",
    "gathered logits",
    "rows of all ranks",
    "summed gathers",
    "outputs cut apart again",
    "reductions added up",
    "gradients of one input",
    "sent again",
    "copies sent",
    "loss of all rows",
    "batch of all ranks",
    "ranks on one GPU",
    "float32 messages",
    "exchanges in a loop",
    "SyncBatchNorm",
    "norms by hand",
    "cores of ranks",
    "samples of ranks",
    "samples of all ranks",
    "collectives through the CPU",
    "float32 reductions",
    "float32 gathers",
    "small units",
}


def test_every_setting_of_the_table_has_its_fault_here_or_is_a_variable() -> None:
    tested = {f[0] for f in FAULTS} | OF_JOBS
    assert not [s.name for s in SETTINGS if s.name not in tested and not s.name.isupper()]


@pytest.mark.parametrize("body", [healthy, convolving, reducing, blocked])
def test_a_program_without_a_fault_is_clear(tmp_path: Path, body: Callable[[Program, int], None]) -> None:
    (finding,) = alone(tmp_path, CLEAN, body)
    assert finding.verdict == "clear"


@pytest.mark.parametrize("convolves", [False, True])
def test_attention_by_cudnn_is_no_convolution(tmp_path: Path, convolves: bool) -> None:
    """A patch embedding is one, in a network that spends its time elsewhere."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            program.launch(500 if convolves else 10, "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc")
            for _ in range(8):
                program.launch(300, "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64")
                program.launch(100, "void cudnn::fusion::convert_dq_to_16bits<(bool)1>(const void *, void *)")
                program.launch(100, "triton_poi_fused__to_copy_convolution_2")

    given = {"switches": {"cudnn_benchmark": False}, "networks": [{"convolutions": 1}]}
    found = alone(tmp_path, changed(CLEAN, given), body)
    assert names(found) == ({"cudnn.benchmark off"} if convolves else set())
    assert not convolves or "convolutions take 500 us" in found[0].detail


def test_what_is_unknown_is_no_fault(tmp_path: Path) -> None:
    unknown = dict.fromkeys(CLEAN)
    (finding,) = alone(tmp_path, unknown)
    assert finding.verdict == "clear"
    strange = {
        "environment": [1],
        "switches": "x",
        "optimizers": [3],
        "loaders": {"a": 1},
        "networks": [None],
        "backwards": "4",
    }
    assert alone(tmp_path, strange)[0].verdict == "clear"


def test_without_settings_the_rule_cannot_tell(tmp_path: Path) -> None:
    (finding,) = alone(tmp_path, None)
    assert finding.verdict == "cannot_tell"
    assert Program().steps(healthy).finding(tmp_path, "NSX127").verdict == "cannot_tell"


def test_a_certain_setting_leads_whether_or_not_its_size_is_known(tmp_path: Path) -> None:
    """Before the change for the whole program, which promises more."""
    for fault in ({"switches": {"anomaly": True}}, {"environment": {"values": {"CUDA_LAUNCH_BLOCKING": "1"}}}):
        whole = summary(tmp_path, changed(CLEAN, fault), blocked)
        assert whole.answer.do[0].code == "NSX127"
    without = summary(tmp_path, CLEAN, blocked)
    assert without.answer.do[0].code != "NSX127"


def test_float64_is_seen_by_the_kernels_alone(tmp_path: Path) -> None:
    """Of tensors that are no module's result the settings know nothing, and a report without a probe has none."""
    (finding,) = alone(tmp_path, CLEAN, doubled)
    assert "outside of modules" in finding.detail and finding.saving_ns_per_step == pytest.approx(1_000_000, rel=0.05)
    (tmp_path / "r.run.json").unlink()
    (seen,) = Program().steps(doubled).findings(tmp_path, "NSX127")
    assert seen.verdict == "found" and seen.evidence[0]["setting"] == "float64"


def test_float64_with_which_equations_are_solved_is_no_oversight(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        doubled(program, number)
        for _ in range(3):
            program.launch(400, "void trsm_left_kernel<int, double>")

    assert names(alone(tmp_path, CLEAN, body)) == set()


def test_float64_of_a_program_that_is_not_pythons_is_a_remark(tmp_path: Path) -> None:
    """Who writes kernels in C++ chooses their types; libraries of Python choose by themselves."""
    states = {}
    for name in ("solver", "python"):
        program = Program()
        process = program.report.process(200, name=name)
        program.process, program.main = process, process.thread(200, name)
        for number in range(8):  # ranges of its own: no probe was there
            begin = program.t
            for _ in range(10):
                program.launch(200, "elementwise_kernel<AddFunctor<double>>")
                program.launch(200)
            program.main.add_range(f"step {number}", begin, program.t)
        (finding,) = program.findings(tmp_path, "NSX127")
        assert finding.evidence[0]["setting"] == "float64"
        states[name] = [c.state for c in finding.conditions]
    assert states["solver"] == ["violated"] and states["python"] != ["violated"]


@pytest.mark.parametrize(("numbers", "named"), [("c10::complex<double>", "complex64"), ("double", "float32")])
def test_complex_numbers_become_complex_ones(tmp_path: Path, numbers: str, named: str) -> None:
    def body(program: Program, number: int) -> None:  # transforms name the real type of either
        with program.range("forward"), program.range("net:Net"):
            program.launch(300, f"elementwise_kernel<MulFunctor<{numbers}>>")
            program.launch(900, "void regular_fft<4096, double>")
            program.launch(100, "elementwise_kernel<AddFunctor<double>>")

    (finding,) = alone(tmp_path, CLEAN, body)
    assert f"Make this {named}" in finding.fix and f"dtype=torch.{named}" in finding.paste
    assert finding.title.startswith("Complex128" if named == "complex64" else "Float64")
    assert ("complex128 outside" in finding.detail.lower()) == (named == "complex64")


def test_float64_of_a_simulation_without_a_network_is_a_remark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transforms of float64 beside elementwise work: it has its size and is never the first thing to do; in a network it is."""
    bodies = {}
    converts = (
        "elementwise_kernel<4, at::native::gpu_kernel_impl<MulFunctor<c10::complex<double>>>(T)>",
        "unrolled_elementwise_kernel<direct_copy_kernel_cuda::[lambda(float) (instance 1)], LoadWithCast<1>>",
    )
    converting = {"promoted": converts, "masked": converts[:1], "logged": converts[1:]}
    for name in ("simulation", "network", "single", *converting):

        def body(program: Program, number: int, own: str = name) -> None:
            with (
                program.range("forward") if own == "network" else nullcontext(),
                program.range("net:Net") if own == "network" else nullcontext(),
            ):
                for _ in range(10):
                    kind = "float" if own == "single" else "double"
                    program.launch(200, f"elementwise_kernel<AddFunctor<{kind}>>")
                    program.launch(200, f"void regular_fft<4096, {kind}>")
                for kernel in converting.get(own, ()):
                    program.launch(20, kernel)

        (tmp_path / name).mkdir()
        bodies[name] = summary(tmp_path / name, changed(CLEAN, {"networks": None}), body)
    states = {}
    for name, whole in bodies.items():
        if name == "single":
            continue
        (finding,) = of_settings(whole)
        assert finding.evidence[0]["setting"] == "float64" and (finding.saving.likely_ns or 0) > 0
        assert whole.answer is not None
        states[name] = ([c.state for c in finding.conditions], whole.answer.do[0].code)
    meant = (["violated"], "")
    promoted = ([], "NSX127")
    assert states == {
        "simulation": meant, "network": ([], "NSX127"), "promoted": promoted, "masked": meant, "logged": meant,
    }  # fmt: skip
    monkeypatch.setattr(near_limits, "near", lambda summary: True)
    monkeypatch.setattr(near_limits, "unseen_kernel", lambda summary: "")
    texts = {
        name: (unnamed.to_record(whole), remarks.worth(whole, None, After()))
        for name, whole in bodies.items()
        if name in ("simulation", "single")
    }
    assert texts["simulation"][0].startswith("Nothing, if float64 is needed: the GPU works near its limits.")
    assert texts["simulation"][1].startswith("Nothing found to gain in float64. In float32: up to")
    assert texts["single"][0].startswith("Nothing: the GPU works near its limits.")
    assert texts["single"][1] == "Nothing found to gain."


def test_lengths_of_transforms_are_padded_to_small_factors() -> None:
    assert factors(32767) == [7, 31, 151] and next_length(32767) == 32768
    assert factors(4096) == [2] * 12 and next_length(4096) == 4096


def keeping(program: Program, number: int) -> None:
    """Operators that take 100 us before they launch, as those that keep a traceback do, and gradients that are read."""
    with program.range("forward"), program.range("net:Net"):
        for i in range(10):
            begin = program.t
            program.host(100)
            program.launch(20)
            program.main.add_range(f"aten::addmm, seq = {i}, op_id = {20 * number + i}", begin, program.t)
    with program.range("backward"):
        for _ in range(5):
            program.launch(1)
            program.launch(1)
            program.copy(1, "DtoH", bytes=1)
            program.sync()


def test_anomaly_detection_is_worth_the_tracebacks_and_the_reads(tmp_path: Path) -> None:
    """10 operators keep theirs for 95 us beyond what any takes; the rest is the checks'."""
    (finding,) = alone(tmp_path, changed(CLEAN, {"switches": {"anomaly": True}}), keeping)
    assert 950_000 < (finding.saving_ns_per_step or 0) < 1_150_000
    assert finding.saving.most_ns is not None


def checking(phase: str, times: int) -> Callable[[Program, int], None]:
    """Return steps in which so many gradients are compared, and the answers read, in a phase."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            for _ in range(10):
                program.host(100)
                program.launch(20)
        with program.range(phase):
            for _ in range(times):
                program.launch(1)
                program.launch(1)
                program.copy(1, "DtoH", bytes=1)
                program.sync()

    return body


@pytest.mark.parametrize(
    ("phase", "times", "found"), [("backward", 12, True), ("backward", 4, False), ("clip", 12, False)]
)
def test_anomaly_detection_is_seen_without_settings_by_its_checks(
    tmp_path: Path, phase: str, times: int, found: bool
) -> None:
    """A check of all gradients behind backward is the program's own, and so are a few in it."""
    findings = alone(tmp_path, None, checking(phase, times))
    assert names(findings) == ({"anomaly detection"} if found else set())
    if found:
        (told,) = findings
        assert "12 gradients" in told.detail and told.saving.likely_ns is not None and told.saving.most_ns is not None


def launching(kernel_us: int, cost_us: int) -> Callable[[Program, int], None]:
    """Return steps of 20 kernels of this length, whose launches take this long."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            for _ in range(20):
                program.launch(kernel_us, cost=cost_us)
                program.host(20)

    return body


@pytest.mark.parametrize(
    ("kernel_us", "cost_us", "found"), [(50, 78, True), (50, 5, False), (50, 40, False), (10, 78, False)]
)
def test_launches_that_wait_for_their_kernels_are_seen_without_settings(
    tmp_path: Path, kernel_us: int, cost_us: int, found: bool
) -> None:
    """Short kernels end before a traced launch returns in any program, and long launches alone say nothing."""
    findings = alone(tmp_path, None, launching(kernel_us, cost_us))
    assert names(findings) == ({"CUDA_LAUNCH_BLOCKING"} if found else set())
    assert not found or findings[0].detail.startswith("Each launch returns when its kernel has ended")


def searching(program: Program, number: int) -> None:
    """Convolutions of other shapes in each step, each found by trials while the GPU idles."""
    with program.range("forward"), program.range("net:Net"):
        for i in range(4):
            program.host(500)
            program.launch(200, "implicit_convolve_sgemm", blocks=1000 + 20 * number + i)


def test_a_search_in_vain_is_worth_the_pauses_before_convolutions(tmp_path: Path) -> None:
    given = changed(CLEAN, {"networks": [{"class": "Net", "dtypes": {"float32": 8}, "convolutions": 4}]})
    found = [f for f in alone(tmp_path, given, searching) if f.evidence]
    assert [f.evidence[0]["setting"] for f in found] == ["cudnn.benchmark on"]
    assert 1_000_000 < (found[0].saving_ns_per_step or 0) < 2_200_000


@pytest.mark.parametrize("packs", [False, True])
def test_padding_that_the_program_leaves_out_costs_nothing(tmp_path: Path, packs: bool) -> None:
    """A recurrent layer of a packed batch multiplies no padding, though the loader's batch holds it."""

    def body(program: Program, number: int) -> None:
        if packs:
            operator(
                program,
                "aten::_pack_padded_sequence, sizes = [[8, 400, 16], [8]]",
                20,
                "CatArrayBatchedCopy",
            )
        multiplying(program, number)

    batch = {"padding": {"name": "ids", "rows": 8, "length": 400, "longest": 300, "real": 800}}
    told = {f.evidence[0]["setting"] for f in alone(tmp_path, changed(CLEAN, batch), body) if f.evidence}
    assert ("padding" in told) is not packs


@pytest.mark.parametrize("unlike", [False, True])
def test_padding_of_one_batch_goes_behind_what_all_steps_of_the_ranks_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unlike: bool
) -> None:
    settings = [each._replace(yields=lambda _: unlike) if each.yields else each for each in SETTINGS]
    assert settings != list(SETTINGS)
    monkeypatch.setattr(nsx127_costly_settings, "SETTINGS", tuple(settings))
    batch = {"padding": {"name": "ids", "rows": 8, "length": 400, "longest": 300, "real": 800}}
    found = [f for f in alone(tmp_path, changed(CLEAN, batch), multiplying) if f.evidence]
    assert [(f.evidence[0]["setting"], f.evidence[0]["leads"]) for f in found] == [("padding", not unlike)]


def test_the_table_holds_every_setting(tmp_path: Path) -> None:
    rows = summary(tmp_path, changed(CLEAN, {"loaders": [LOADER]})).tables["settings"].rows
    assert rows is not None
    values = {(r["group"], r["setting"]): r["value"] for r in rows}
    assert values["switches", "sdpa.flash"] == "true"
    assert values["cpu", "quota"] is None
    assert values["loaders", "[0].workers"] == "4"
    assert values["networks", "[0].class"] == "Net"
    assert not [group for group, _ in values if group == "step"]


def updating(program: Program, number: int) -> None:
    """A step that the launches of an optimizer limit, 40 foreach kernels."""
    with program.range("forward"), program.range("net:Net"):
        program.launch(5)
    with program.range("optimizer AdamW"):
        for _ in range(40):
            program.launch(2, "multi_tensor_apply_kernel")


def test_a_fused_optimizer_is_never_told_to_be_fused(tmp_path: Path) -> None:
    def told(optimizer: dict[str, Any]) -> bool:
        whole = summary(tmp_path, changed(CLEAN, {"optimizers": [optimizer]}), updating)
        return any(
            "fused=True" in f"{f.fix} {f.paste}" and all(c.state != "violated" for c in f.conditions)
            for f in whole.findings or ()
            if f.verdict == "found"
        )

    assert told({**ADAM, "fused": None})
    assert not told(ADAM)
    assert not told({**ADAM, "fused": None, "module": "bitsandbytes"})


def test_tf32_that_is_allowed_is_not_advised(tmp_path: Path) -> None:
    def products(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            for _ in range(20):
                program.launch(200, "ampere_sgemm_128x64_tn")

    def told(tf32: bool | None) -> str:
        return alone(tmp_path, changed(CLEAN, {"switches": {"matmul_tf32": tf32}}), products, "NSX116")[0].fix

    assert "set_float32_matmul_precision" in told(False)
    assert "set_float32_matmul_precision" in told(None)
    assert "set_float32_matmul_precision" not in told(True)


def test_loaders_are_told_what_they_lack(tmp_path: Path) -> None:
    def waiting(program: Program, number: int, wait_us: int = 2000) -> None:
        with program.range("data DataLoader"):
            program.host(wait_us)
        healthy(program, number)
        program.sync()

    def told(wait_us: int = 2000, **options: Any) -> str:
        loader = {**LOADER, "iterators": 1, "persistent_workers": True, **options}
        steps = partial(waiting, wait_us=wait_us)
        return alone(tmp_path, changed(CLEAN, {"loaders": [loader]}), steps, "NSX106")[0].fix

    assert "num_workers=8, pin_memory=True" in told(workers=0)
    assert "DataLoader(num_workers=7): it has 4 workers" in told(workers=4), (
        "the loop itself keeps a core of the eight busy"
    )
    assert "in place of 4 workers gives 1.75x at most" in told(60_000, workers=4), "a wait that more workers cannot end"
    assert "the loader has 6 workers for 8 cores" in told(workers=6), "one worker more is no remedy"
    assert "Make samples cheaper" in told(workers=7, persistent_workers=False), "workers that stay save no sample"
    assert "DataLoader(pin_memory=True): it has 8 workers" in told(workers=8, pin_memory=False)
    assert "Make samples cheaper" in told(workers=8)
    rows = {"batch_size": 8192, "collate": "default_collate"}
    assert "8,192 calls" in told(workers=4, **rows) and "__getitems__" in told(workers=0, **rows)
    assert "__getitems__" not in told(workers=4, batch_size=32, collate="default_collate")
    assert "__getitems__" not in told(workers=4, batch_size=8192, collate="own")


def test_more_workers_have_the_place_of_the_loader_and_cheaper_samples_that_of_the_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waiting(program: Program, number: int) -> None:
        with program.range("data DataLoader"):
            program.host(2000)
        healthy(program, number)
        program.sync()

    def where(**options: Any) -> tuple[object, object]:
        places = {"made": "train.py:30", "samples": "data.py:9", "place": "train.py:40"}
        loader = {**LOADER, **places, "iterators": 1, "persistent_workers": True, **options}
        evaluated = {**loader, "made": "train.py:31", "samples": None}
        both = {"loaders": [evaluated, {**loader, "iterators": 9}]}
        finding = alone(tmp_path, changed(CLEAN, both), waiting, "NSX106")[0]
        return finding.where.get("file"), finding.where.get("line")

    assert where(workers=0) == ("train.py", 30)
    assert where(workers=0, made=None) == ("train.py", 40), "a report of before: where it is iterated"
    assert where(workers=8) == ("data.py", 9)
    assert where(workers=0, batch_size=8192, collate="default_collate") == ("data.py", 9), "rows fetched one by one"
    same = SameSamples({**LOADER, "batch_size": 256, "sampler": "RandomSampler"}, 2)
    monkeypatch.setattr(nsx106_input_starvation, "same_samples", lambda *_: same)
    assert where(workers=8) == ("data.py", 9), "ranks that train on the same load as much for a step with their own"
    same = same._replace(cut={"file": "train.py", "line": 44})
    assert where(workers=8) == ("train.py", 30), "ranks that take their parts of the same: where the loader is made"


@pytest.mark.parametrize(
    ("wait_us", "options", "kept"),
    [
        ((60_000, 100), {}, True),
        ((60_000, 100), {"made_again": 9, "persistent_workers": True}, True),  # a new loader for each epoch
        ((30_000, 30_000), {}, False),  # each batch is late: the workers are slow
        ((60_000, 100), {"persistent_workers": True}, False),
        ((60_000, 100), {"iterators": 1}, False),
        ((60_000, 100), {"last_step": 50_000}, False),  # long epochs
    ],
)
def test_waits_in_which_epochs_begin_are_for_workers_that_start_anew(
    tmp_path: Path, wait_us: tuple[int, int], options: dict[str, Any], kept: bool
) -> None:
    def waiting(program: Program, number: int) -> None:
        with program.range("data DataLoader"):
            program.host(wait_us[number % 5 != 0])
        healthy(program, number)
        program.sync()

    loader = {**LOADER, "made": "train.py:30", "first_step": 0, "last_step": 45, "iterators": 10, **options}
    finding = alone(tmp_path, changed(CLEAN, {"loaders": [loader]}), waiting, "NSX106")[0]
    assert ("from one epoch to the next" in finding.fix or "before the loop over epochs" in finding.fix) == kept
    assert ("where an epoch starts new workers" in finding.title) == kept
    if kept:
        assert (finding.where["file"], finding.where["line"]) == ("train.py", 30)
        anew = bool(options)
        assert (
            finding.paste.startswith("loader = DataLoader(data, ")
            and "num_workers=4, persistent_workers=True" in finding.paste
        )
        assert ("for epoch in range(epochs):" in finding.paste) == anew == ("Make the loader once" in finding.fix)


@pytest.mark.parametrize(
    ("fault", "places", "line"),
    [
        ({"switches": {"autograd_profiler": True}}, {"profiler": "train.py:7"}, 7),
        ({"switches": {"autograd_profiler": True}}, {"scaler": "train.py:7"}, None),
        ({"networks": [{"class": "Net", "dtypes": {"float64": 9}}]}, {"double": "train.py:8"}, 8),
        ({"networks": [{"class": "Net", "dtypes": {"float32": 9}}]}, {"double": "train.py:8"}, None),
        ({"networks": [{"class": "Net", "dtypes": {"float32": 9}}]}, {"float64": "train.py:9"}, 9),
    ],
)
def test_the_line_that_sets_it_is_the_place_and_no_other(
    tmp_path: Path, fault: dict[str, Any], places: dict[str, str], line: int | None
) -> None:
    found = alone(tmp_path, changed(CLEAN, {**fault, "places": places}), doubled if "networks" in fault else healthy)
    finding = next(f for f in found if f.verdict == "found")
    assert finding.where.get("line") == line


def test_the_place_of_tf32_is_where_it_is_turned_off(tmp_path: Path) -> None:
    def products(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            for _ in range(20):
                program.launch(200, "ampere_sgemm_128x64_tn")

    for places, line in (({"no_matmul_tf32": "train.py:5"}, 5), ({}, None)):
        settings = changed(CLEAN, {"places": places, "switches": {"matmul_tf32": False}})
        assert alone(tmp_path, settings, products, "NSX116")[0].where.get("line") == line


def test_determinism_is_worth_the_kernels_that_add_in_order(tmp_path: Path) -> None:
    (finding,) = alone(tmp_path, changed(CLEAN, {"switches": {"deterministic": True}}), in_order)
    assert finding.evidence[0]["setting"] == "deterministic algorithms" and finding.evidence[0]["leads"]
    assert finding.saving_ns_per_step == pytest.approx(400_000, rel=0.05)
    (unseen,) = alone(tmp_path, changed(CLEAN, {"switches": {"deterministic": True}}))
    assert not unseen.evidence[0]["leads"] and unseen.saving_ns_per_step is None


@pytest.mark.parametrize(
    ("called", "kernel", "added"),
    [
        ("aten::scatter_add_", "radix_sort::DeviceRadixSortOnesweepKernel", True),
        ("aten::sort", "radix_sort::DeviceRadixSortOnesweepKernel", False),  # the program's own, in forward
        ("aten::scatter_add_", "sgemm_128x128", False),
        ("aten::empty", "FillFunctor<float>", True),
        ("aten::new_empty_strided", "FillFunctor<float>", True),
        ("aten::zeros", "FillFunctor<float>", False),
        ("aten::embedding", "FillFunctor<float>", False),
    ],
)
def test_determinism_sorts_where_it_would_add_and_fills_what_is_only_made(
    tmp_path: Path, called: str, kernel: str, added: bool
) -> None:
    def forward(program: Program, number: int) -> None:
        multiplying(program, number)
        with program.range("forward"), program.range("net:Net"):
            operator(program, f"{called}, sizes = [[64]]", 300, kernel)

    (finding,) = alone(tmp_path, changed(CLEAN, {"switches": {"deterministic": True}}), forward)
    assert finding.evidence[0]["leads"] is added
    assert (finding.saving_ns_per_step or 0) == pytest.approx(300_000 if added else 0, rel=0.1)


@pytest.mark.parametrize(
    ("backends", "told"),
    [(("eager",), True), (("aot_eager",), True), (("aot_eager_decomp_partition",), True), (("pre_dispatch_eager",), True),
     (("eager_noexcept",), True), (("eager_debug",), True), (("inductor",), False), (("eager", "inductor"), False), ((), False)],
)  # fmt: skip
def test_backends_that_compile_nothing_are_each_told(backends: tuple[str, ...], told: bool) -> None:
    settings: Any = SimpleNamespace(compiled=lambda _: [{"name": name} for name in backends])
    case: Any = SimpleNamespace()
    assert bool(_costly_when.debug_backend(case, settings)) is told

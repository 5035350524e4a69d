"""Settings of the process and of torch that change speed, as they are now: no tensor is touched, nothing is imported or started.

What this torch or this system cannot tell is None: unknown, which is another thing than off.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .interrupts import of_program
from .probe_bounds import LONGEST_VARIABLE

#: Variables whose values are recorded: switches and small numbers, which say nothing about the user or the machine.
_KNOWN = """
    CUDA_LAUNCH_BLOCKING CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_DEVICE_MAX_CONNECTIONS CUDA_MODULE_LOADING
    CUDA_FORCE_PTX_JIT CUDA_DISABLE_PTX_JIT CUDA_CACHE_DISABLE CUDA_SCALE_LAUNCH_QUEUES CUBLAS_WORKSPACE_CONFIG CUBLASLT_WORKSPACE_SIZE
    NVIDIA_TF32_OVERRIDE PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF PYTORCH_NO_CUDA_MEMORY_CACHING PYTORCH_JIT
    PYTORCH_NVML_BASED_CUDA_CHECK PYTORCH_TUNABLEOP_ENABLED TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_BLAS_PREFER_CUBLASLT
    TORCH_SHOW_CPP_STACKTRACES TORCH_SHOW_DISPATCH_TRACE TORCH_CPP_LOG_LEVEL TORCH_DISTRIBUTED_DEBUG TORCH_COMPILE_DISABLE
    TORCH_COMPILE_DEBUG TORCHDYNAMO_DISABLE TORCHDYNAMO_SUPPRESS_ERRORS TORCHDYNAMO_VERBOSE TORCHINDUCTOR_FX_GRAPH_CACHE
    TORCHINDUCTOR_FORCE_DISABLE_CACHES TORCHINDUCTOR_MAX_AUTOTUNE TORCHINDUCTOR_COMPILE_THREADS TORCHINDUCTOR_FREEZING
    TORCHINDUCTOR_CUDAGRAPHS TORCH_LOGS TORCH_CUDNN_V8_API_DISABLED TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT
    TORCH_CUDNN_SDPA_ENABLED TORCH_NCCL_ASYNC_ERROR_HANDLING
    TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_DESYNC_DEBUG TORCH_NCCL_ENABLE_TIMING TORCH_NCCL_AVOID_RECORD_STREAMS
    TORCH_NCCL_HIGH_PRIORITY TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_NCCL_ENABLE_MONITORING TORCH_NCCL_NAN_CHECK
    NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_ALGO NCCL_PROTO NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_SHM_DISABLE NCCL_IB_DISABLE
    NCCL_NVLS_ENABLE NCCL_NET_GDR_LEVEL NCCL_MAX_NCHANNELS NCCL_MIN_NCHANNELS NCCL_MAX_CTAS NCCL_MIN_CTAS NCCL_BUFFSIZE
    NCCL_NTHREADS NCCL_LAUNCH_MODE NCCL_BLOCKING_WAIT NCCL_ASYNC_ERROR_HANDLING NCCL_CROSS_NIC NCCL_COLLNET_ENABLE
    OMP_NUM_THREADS OMP_PROC_BIND OMP_WAIT_POLICY OMP_DYNAMIC MKL_NUM_THREADS MKL_DYNAMIC MKL_DEBUG_CPU_TYPE OPENBLAS_NUM_THREADS
    NUMEXPR_NUM_THREADS NUMEXPR_MAX_THREADS NUMBA_NUM_THREADS RAYON_NUM_THREADS RAYON_RS_NUM_CPUS POLARS_MAX_THREADS
    OPENCV_FOR_THREADS_NUM KMP_BLOCKTIME TOKENIZERS_PARALLELISM PYTHONMALLOC PYTHONDEVMODE PYTHONFAULTHANDLER PYTHONASYNCIODEBUG
    PYTHONTRACEMALLOC PYTHON_GIL TRITON_INTERPRET TRITON_DEBUG TRITON_ALWAYS_COMPILE TRITON_DISABLE_LINE_INFO
    ACCELERATE_DYNAMO_BACKEND ACCELERATE_MIXED_PRECISION
"""
VALUES = frozenset(_KNOWN.split())
#: Variables that begin so are recorded by name alone: a value may hold a path or an address.
_NAMED = ("TORCH", "PYTORCH_", "NCCL_", "CUDA_", "CUDNN_", "CUBLAS_", "OMP_", "MKL_", "KMP_", "GOMP_", "TRITON_")
#: Variables that are read only when the library runs, so a program may set them itself after it has begun.
_READ_LATE = ("TOKENIZERS_PARALLELISM", "RAYON_NUM_THREADS", "RAYON_RS_NUM_CPUS")
#: Set by nsys and by whoever starts ranks, or no setting of speed.
_NOT_SETTINGS = ("CUDA_INJECTION", "TORCHELASTIC_", "CUDA_HOME", "CUDA_PATH", "CUDA_VERSION")


def asked(question: Callable[..., Any], *given: Any) -> Any:
    """Return the answer, None where it cannot be had. Raises what is the program's."""
    try:
        return question(*given)
    except Exception as error:
        if of_program(error):
            raise
        return None


def read_late(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that count as they are now, not as the program found them."""
    return {name: environ[name] for name in _READ_LATE if name in environ}


def environment_now(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return `environment` of what the program began with, with the variables that count as they are now."""
    return environment({**environ, **read_late(os.environ)})


def environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return ``values`` of the variables that are known to change speed, and ``names`` of others of the same families."""
    every = sorted(environ.items())
    values = {
        n: v[:LONGEST_VARIABLE] for n, v in every if n in VALUES and "-" not in v and "/" not in v
    }  # no UUID and no path
    names = [n for n, _ in every if n.startswith(_NAMED) and n not in values and not n.startswith(_NOT_SETTINGS)]
    return {"values": values, "names": names[:100]}


#: Where torch tells each switch: a function without arguments, or a value.
_SWITCHES = {
    "anomaly": "is_anomaly_enabled",
    "anomaly_check_nan": "is_anomaly_check_nan_enabled",
    "autograd_profiler": "autograd._profiler_enabled",
    "torch_profiler": "autograd.profiler._is_profiler_enabled",
    "deterministic": "are_deterministic_algorithms_enabled",
    "deterministic_warn_only": "is_deterministic_algorithms_warn_only_enabled",
    "fill_uninitialized": "utils.deterministic.fill_uninitialized_memory",
    "cudnn": "_C._get_cudnn_enabled",
    "cudnn_benchmark": "_C._get_cudnn_benchmark",
    "cudnn_deterministic": "_C._get_cudnn_deterministic",
    "matmul_precision": "_C._get_float32_matmul_precision",
    "fp16_reduced_precision": "_C._get_cublas_allow_fp16_reduced_precision_reduction",
    "bf16_reduced_precision": "_C._get_cublas_allow_bf16_reduced_precision_reduction",
}
_ATTENTION = {
    "flash": "_C._get_flash_sdp_enabled",
    "efficient": "_C._get_mem_efficient_sdp_enabled",
    "math": "_C._get_math_sdp_enabled",
    "cudnn": "_C._get_cudnn_sdp_enabled",
}


def switches(torch: Any) -> dict[str, Any]:
    """Return the switches of torch that change speed."""

    def setting_at(path: str) -> Any:
        value = torch
        for name in path.split("."):
            value = getattr(value, name)
        value = value() if callable(value) else value
        return value[0] if isinstance(value, tuple) else value

    return {
        **{name: asked(setting_at, path) for name, path in _SWITCHES.items()},
        "matmul_tf32": _tf32(torch._C, "matmul", "_get_cublas_allow_tf32"),
        "conv_tf32": _tf32(torch._C, "conv", "_get_cudnn_allow_tf32"),
        "default_dtype": asked(lambda: name_of(torch.get_default_dtype())),
        "sdpa": {name: asked(setting_at, path) for name, path in _ATTENTION.items()},
    }


def _tf32(native: Any, operation: str, older: str) -> bool | None:
    """Return whether TF32 is allowed. A newer torch is asked by its newer interface: the older one may print a warning there."""
    ask = getattr(native, "_get_fp32_precision_getter", None)
    if ask is None:
        allowed: bool | None = asked(lambda: bool(getattr(native, older)()))
        return allowed
    for asks in (("cuda", operation), ("cuda", "all"), ("generic", "all")):
        precision = asked(ask, *asks)
        if precision is None:
            return None
        if precision != "none":
            return bool(precision == "tf32")
    return False


def name_of(dtype: Any) -> str:
    """Return the name of a dtype, such as float32."""
    return str(dtype).rpartition(".")[2]


def collector() -> dict[str, Any]:
    """Return how garbage is collected."""
    return {
        "enabled": gc.isenabled(),
        "threshold": list(gc.get_threshold()),
        "counts": list(gc.get_count()),
        "frozen": asked(gc.get_freeze_count),
        "collections": asked(lambda: [s["collections"] for s in gc.get_stats()]),
        "objects": asked(sys.getallocatedblocks),
    }


def processors(torch: Any) -> dict[str, Any]:
    """Return the cores that this process may use, and the threads of torch."""
    return {
        "cores": os.cpu_count(),
        "allowed": asked(lambda: len(os.sched_getaffinity(0))),
        "allowed_cores": asked(lambda: _ranges(sorted(os.sched_getaffinity(0)))),
        "quota": asked(_quota),
        "torch_threads": asked(torch.get_num_threads),
        "opencv_threads": asked(lambda: int(sys.modules["cv2"].getNumThreads())),
        "load": asked(lambda: [round(value, 1) for value in os.getloadavg()]),
        **(asked(_main_thread) or {}),
    }


def _main_thread() -> dict[str, int] | None:
    """Return how long the main thread has run since it started, and how long it could have run and had no core; None where the kernel
    counts neither (proc(5), ``schedstat``).
    """
    pid = os.getpid()
    ran_ns, waited_ns, _ = map(int, Path(f"/proc/{pid}/task/{pid}/schedstat").read_text(encoding="ascii").split())
    return {"ran_ns": ran_ns, "waited_for_core_ns": waited_ns} if ran_ns else None


def _ranges(cores: list[int]) -> str:
    """Return sorted numbers as a list of ranges, such as "0-3,8"."""
    first = [n for i, n in enumerate(cores) if not i or cores[i - 1] != n - 1]
    last = [n for i, n in enumerate(cores) if i + 1 == len(cores) or cores[i + 1] != n + 1]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(first, last))  # noqa: B905 - Python 3.9


def _quota() -> float | None:
    """Return how many cores the control group of a container grants, None without a limit."""
    limit, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    return None if limit == "max" else int(limit) / int(period)


def _of_other_devices(torch: Any, device: int) -> int:
    """Return the most that this process has reserved on each of its other devices, together; 0 where it has used one alone."""
    others = (n for n in range(torch.cuda.device_count()) if n != device)
    return sum(
        int(torch.cuda.memory_stats_as_nested_dict(n).get("reserved_bytes", {}).get("all", {}).get("peak", 0))
        for n in others
    )


def memory(torch: Any) -> dict[str, Any] | None:
    """Return the memory of the current device by what torch itself counts; None before the program has started CUDA."""
    if not torch.cuda.is_initialized():
        return None
    device = torch.cuda.current_device()
    stats = torch.cuda.memory_stats_as_nested_dict(device)
    return {
        "device": device,
        "total_bytes": int(torch.cuda.get_device_properties(device).total_memory),
        "allocated_peak_bytes": int(stats["allocated_bytes"]["all"]["peak"]),
        "reserved_peak_bytes": int(stats["reserved_bytes"]["all"]["peak"]),
        "retries": int(stats["num_alloc_retries"]),
        "other_devices_peak_bytes": asked(lambda: _of_other_devices(torch, device)),
        "share": asked(lambda: float(torch.cuda.get_per_process_memory_fraction(device))),
    }

"""The declared table of settings that only cost: when each one costs, in which words it is told, and what it is worth to change it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from nsysx.events.settings import Settings
from nsysx.findings import _costly_when as when
from nsysx.findings._case import Case, Worth


class Costly(NamedTuple):
    """A setting. ``when`` returns what was seen if it costs, else ""; ``worth`` asks the replay, None: it has to be tried.

    ``leads``: what it costs cannot be small and nothing else is worth doing before it, known or not. ``phase``: where it acts;
    ``place``: where it is set, if not in the program's code.
    """

    name: str
    when: Callable[[Case, Settings], str]
    title: str
    fix: str
    paste: str
    condition: str = ""
    worth: Callable[[Case, Settings], Worth] | None = None
    leads: bool = False
    phase: str | None = None
    place: str | None = None


SETTINGS = (
    Costly(
        "CUDA_LAUNCH_BLOCKING",
        when.blocking,
        "Every launch waits for its kernel (CUDA_LAUNCH_BLOCKING)",
        "Unset CUDA_LAUNCH_BLOCKING: it is for finding the operator that fails, and makes the host wait for each kernel",
        "unset CUDA_LAUNCH_BLOCKING  # in the shell, or take it out of os.environ",
        worth=when.unblocked,
        leads=True,
        place="the environment",
    ),
    Costly(
        "anomaly detection",
        when.anomaly,
        "Anomaly detection is on",
        "Turn anomaly detection off: it is for finding where a NaN comes from",
        "torch.autograd.set_detect_anomaly(False)",
        leads=True,
        phase="backward",
    ),
    Costly(
        "profiler",
        when.profiler,
        "A profiler of torch is on in the steps",
        "Run without torch's own profiler, or give it a schedule of few steps",
        "schedule = torch.profiler.schedule(wait=100, warmup=2, active=4, repeat=1)",
        leads=True,
    ),
    Costly(
        "deterministic algorithms",
        when.deterministic,
        "Deterministic algorithms are asked for",
        "Allow algorithms that add in any order",
        "torch.use_deterministic_algorithms(False); torch.backends.cudnn.deterministic = False",
        "Two runs then differ by rounding: keep it where they must be alike bit for bit.",
    ),
    Costly(
        "cudnn.benchmark off",
        when.no_benchmark,
        "cuDNN does not look for its fastest convolutions",
        "Let cuDNN try its algorithms once for each shape",
        "torch.backends.cudnn.benchmark = True",
        "Shapes must stay the same: each new one is tried again.",
    ),
    Costly(
        "cudnn.benchmark on",
        when.benchmark_in_vain,
        "cuDNN tries its convolutions again for each new shape",
        "Turn the search off, or pad inputs to few shapes",
        "torch.backends.cudnn.benchmark = False",
    ),
    Costly(
        "cudnn off",
        when.no_cudnn,
        "cuDNN is turned off",
        "Turn cuDNN on",
        "torch.backends.cudnn.enabled = True",
        leads=True,
    ),
    Costly(
        "attention kernels",
        when.slow_attention,
        "Fast attention kernels are turned off",
        "Allow the fast kernels of scaled_dot_product_attention",
        "torch.backends.cuda.enable_flash_sdp(True); torch.backends.cuda.enable_mem_efficient_sdp(True)",
    ),
    Costly(
        "float64",
        when.float64,
        "Float64 on the GPU",
        "Make this float32 where it is made (numpy's default is float64)",
        "x = torch.as_tensor(array, dtype=torch.float32)",
        "The result must not need 16 digits.",
        worth=when.halved,
    ),
    Costly(
        "GradScaler with bfloat16",
        when.scaler,
        "A gradient scaler beside bfloat16",
        "Leave the GradScaler out: bfloat16 has the range of float32",
        "loss.backward(); optimizer.step()",
        worth=when.without_scaler,
        phase="optimizer",
    ),
    Costly(
        "persistent_workers off",
        when.anew,
        "The loader starts its workers anew again and again",
        "Keep the workers",
        "loader = DataLoader(data, num_workers=..., persistent_workers=True)",
        phase="data",
    ),
    Costly(
        "find_unused_parameters",
        when.finds_unused,
        "DDP looks for unused parameters, and there are none",
        "Leave find_unused_parameters out",
        "model = DistributedDataParallel(module, gradient_as_bucket_view=True)",
        "Every parameter must get a gradient in every step.",
        phase="backward",
    ),
    Costly(
        "no_sync unused",
        when.reduces_each,
        "Gradients are reduced in each micro-step",
        "Reduce gradients in the last micro-step alone: no_sync() around the others, forward and backward "
        "(fully_shard: set_requires_gradient_sync)",
        "with model.no_sync() if not last else contextlib.nullcontext():\n    model(x).backward()",
        "Gradients of all micro-steps are kept until then; a sharded model keeps them whole.",
        worth=when.reduced_once,
        leads=True,
        phase="backward",
    ),
    Costly(
        "cores",
        when.one_core,
        "One core for the whole program",
        "Give the program more cores, near its GPU",
        "taskset -c 0-7 python ...  # or the scheduler's option, such as --cpus-per-task=8",
    ),
    Costly(
        "threads",
        when.too_many_threads,
        "More threads than cores",
        "Let torch use as many threads as the program has cores",
        "torch.set_num_threads(len(os.sched_getaffinity(0)))  # or OMP_NUM_THREADS",
    ),
    Costly(
        "debug backend",
        when.debug_backend,
        "torch.compile uses a backend for debugging",
        "Compile with the default backend",
        "model = torch.compile(model)",
        leads=True,
    ),
    Costly(
        "optimizer on the CPU",
        when.on_host,
        "The optimizer works on the CPU",
        "Keep parameters and state on the GPU if they fit: make the optimizer after model.cuda()",
        'model = model.to("cuda"); optimizer = torch.optim.AdamW(model.parameters(), fused=True)',
        phase="optimizer",
    ),
    Costly(
        "autocast regions",
        when.many_regions,
        "Autocast is entered again and again",
        "Enter autocast once around forward and loss: weights are then cast once",
        'with torch.autocast("cuda", torch.bfloat16):\n    loss = loss_of(model(x), y)',
        phase="forward",
    ),
    Costly(
        "checkpoints",
        when.needless_checkpoints,
        "Activations are recomputed although memory is free",
        "Checkpoint fewer parts, or none",
        "y = block(x)  # not checkpoint(block, x)",
        "What is kept must fit: try half of the parts first.",
        phase="backward",
    ),
    *(
        Costly(
            each.name,
            when.variable_costs(each),
            f"{each.name} is set",
            f"Unset {each.name}: {each.does}",
            f"unset {each.name}  # in the shell, or take it out of os.environ",
            leads=each.leads,
            place="the environment",
        )
        for each in when.VARIABLES
    ),
)

"""Time a custom CUDA kernel in the four ways that people try, behind a matrix product that keeps the GPU busy.

Building the extension takes up to a minute: run once with --build, then without.
"""

import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

NAME = "custom_add_op"
CUDA_SOURCE = """
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/types.h>

__global__ void custom_add_kernel(const float* a, const float* b, float* out, int64_t n) {
  int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < n) out[i] = a[i] + b[i];
}

torch::Tensor custom_add(torch::Tensor a, torch::Tensor b) {
  auto out = torch::empty_like(a);
  const int64_t n = a.numel();
  const int threads = 256;
  const int64_t blocks = (n + threads - 1) / threads;
  custom_add_kernel<<<blocks, threads, 0, c10::cuda::getCurrentCUDAStream()>>>(
      a.data_ptr<float>(), b.data_ptr<float>(), out.data_ptr<float>(), n);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}
"""
WAYS = {  # name: (synchronize before the clock starts, synchronize before it stops)
    "sync_before_and_after": (True, True),
    "sync_before": (True, False),
    "sync_after": (False, True),
    "no_sync": (False, False),
}


def build(folder):
    from torch.utils.cpp_extension import load_inline

    major, minor = torch.cuda.get_device_capability()
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", f"{major}.{minor}")
    # ninja lies beside a virtual environment's Python, which need not be on the PATH.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    folder.mkdir(parents=True, exist_ok=True)
    load_inline(
        NAME,
        cpp_sources="torch::Tensor custom_add(torch::Tensor a, torch::Tensor b);",
        cuda_sources=CUDA_SOURCE,
        functions=["custom_add"],
        build_directory=str(folder),
    )


def load(folder):
    built = folder / f"{NAME}.so"
    if not built.is_file():
        build(folder)
    spec = importlib.util.spec_from_file_location(NAME, built)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.custom_add


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", action="store_true", help="only build the extension")
    parser.add_argument("--build-dir", type=Path, default=Path(tempfile.gettempdir()) / NAME)
    parser.add_argument("--steps", type=int, default=20, help="readings in each way")
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--size", type=int, default=1 << 22, help="elements to add")
    parser.add_argument("--device", default="cuda", help="on a CPU torch.add stands in for the kernel")
    parser.add_argument("--tiny", action="store_true", help="sizes for a smoke test on a CPU")
    args = parser.parse_args()
    if args.build:
        build(args.build_dir)
        return
    if args.tiny:
        args.size, args.steps = 1024, 3

    cuda = torch.device(args.device).type == "cuda"
    sync = torch.cuda.synchronize if cuda else lambda: None
    custom_add = load(args.build_dir) if cuda else torch.add
    torch.manual_seed(0)
    a = torch.randn(args.size, device=args.device)
    b = torch.randn(args.size, device=args.device)
    square = torch.randn(64 if args.tiny else 1280, 64 if args.tiny else 1280, device=args.device)
    for _ in range(args.warmup):
        square @ square
        custom_add(a, b)

    readings = {}
    out = a
    whole = time.perf_counter()
    for way, (before, after) in WAYS.items():
        sync()
        readings[way] = []
        for _ in range(args.steps):
            square @ square  # earlier work, about 100 us of it
            if before:
                sync()
            began = time.perf_counter()
            out = custom_add(a, b)
            if after:
                sync()
            readings[way].append((time.perf_counter() - began) * 1e6)
    sync()
    step_ms = (time.perf_counter() - whole) * 1e3 / (args.steps * len(WAYS))
    for way, us in readings.items():
        print(json.dumps({"way": way, "median_us": round(statistics.median(us), 2), "us": [round(t, 2) for t in us]}))
    summary = {way: round(statistics.median(us), 2) for way, us in readings.items()}
    checksum = round(float(out.double().sum()), 3)
    steps = args.steps * len(WAYS)
    print(json.dumps({"steps": steps, "step_ms": round(step_ms, 4), "loss": checksum, "median_us": summary}))


if __name__ == "__main__":
    main()

"""Time F.linear with CUDA events in three ways and get three answers for the same kernel.

cpu_inputs: the inputs are copied to the GPU inside of the timed window. gpu_inputs: they are there already.
l2_flush: as gpu_inputs, with the L2 cache overwritten just before, which also keeps the GPU busy while the host launches.
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10, help="event pairs in each way")
    parser.add_argument("--warmup", type=int, default=0, help="untimed calls first (0 shows the first call's price)")
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--width", type=int, default=1024)
    args = parser.parse_args()

    torch.manual_seed(0)
    x_cpu = torch.randn(args.rows, args.width)
    w_cpu = torch.randn(args.width, args.width)
    x_gpu, w_gpu = x_cpu.cuda(), w_cpu.cuda()
    l2_bytes = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 64 << 20)
    flush = torch.empty(4 * l2_bytes, dtype=torch.int8, device="cuda")
    for _ in range(args.warmup):
        F.linear(x_gpu, w_gpu)

    windows = {"cpu_inputs": [], "gpu_inputs": [], "l2_flush": []}
    out = x_gpu
    whole = time.perf_counter()
    for _ in range(args.steps):
        for way, readings in windows.items():
            start = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            if way == "l2_flush":
                flush.zero_()
            start.record()
            if way == "cpu_inputs":
                out = F.linear(x_cpu.cuda(), w_cpu.cuda())
            else:
                out = F.linear(x_gpu, w_gpu)
            end.record()
            torch.cuda.synchronize()
            readings.append(start.elapsed_time(end) * 1e3)
    steps = args.steps * len(windows)
    step_ms = (time.perf_counter() - whole) * 1e3 / steps
    for way, us in windows.items():
        print(json.dumps({"way": way, "median_us": round(statistics.median(us), 2), "us": [round(t, 3) for t in us]}))
    summary = {way: round(statistics.median(us), 2) for way, us in windows.items()}
    checksum = round(float(out.double().abs().sum()), 2)
    print(json.dumps({"steps": steps, "step_ms": round(step_ms, 4), "loss": checksum, "median_us": summary}))


if __name__ == "__main__":
    main()

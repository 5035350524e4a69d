"""Train with DistributedDataParallel, the last rank with twice the batch of the others: they wait for it.

Much compute and few parameters, so that what the others spend in a collective is waiting and hardly any of it transfer.
Run it with: torchrun --standalone --nproc-per-node 2 ddp.py
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--balanced", action="store_true", help="the same batch on every rank")
    parser.add_argument("--steps", type=int, default=10, help="timed steps, after the warm-up")
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32768)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes for a smoke test on a CPU")
    args = parser.parse_args()
    if args.tiny:
        args.batch, args.width, args.depth = 8, 32, 2

    cuda = args.device == "cuda"
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    sync = torch.cuda.synchronize if cuda else lambda: None
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    model = nn.Sequential(*[Block(args.width) for _ in range(args.depth)]).to(device)
    model = DistributedDataParallel(model, device_ids=[local_rank] if cuda else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rows = args.batch * (2 if rank == world - 1 and not args.balanced else 1)
    x = torch.randn(rows, args.width, device=device)
    total = torch.zeros((), device=device)

    began = 0.0
    for step in range(args.warmup + args.steps):
        if step == args.warmup:
            sync()
            began = time.perf_counter()
        loss = F.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    sync()
    step_ms = (time.perf_counter() - began) * 1e3 / args.steps
    dist.all_reduce(total)
    if rank == 0:
        checksum = total.item() / world / (args.warmup + args.steps)
        result = {"steps": args.steps, "step_ms": round(step_ms, 4), "loss": round(checksum, 4), "ranks": world}
        print(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

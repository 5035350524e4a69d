"""Train a deep stack of tiny layers: the GPU waits for the host to launch. --big makes it the other way round."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + F.gelu(self.linear(self.norm(x)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", action="store_true", help="capture the whole step in a CUDA graph and replay it")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--item", action="store_true", help="read the loss on the host in every step")
    parser.add_argument("--item-each-layer", action="store_true", help="check every layer's output on the host")
    parser.add_argument("--big", action="store_true", help="few wide layers: bound by the GPU")
    parser.add_argument("--harmless-sync", action="store_true", help="--big with one wait at the end of each step")
    parser.add_argument("--steps", type=int, default=20, help="timed steps, after the warm-up")
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes for a smoke test on a CPU")
    args = parser.parse_args()
    args.big = args.big or args.harmless_sync
    depth, width, rows = (8, 4096, 2048) if args.big else (64, 64, 32)
    if args.tiny:
        depth, width, rows = 4, 32, 8

    device = torch.device(args.device)
    sync = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    torch.manual_seed(0)
    model = nn.Sequential(*[Layer(width) for _ in range(depth)], nn.Linear(width, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=args.graph)
    x = torch.randn(rows, width, device=device)
    y = torch.randn(rows, 1, device=device)
    forward = torch.compile(model) if args.compile else model
    total = torch.zeros((), device=device)
    history = []

    if args.item_each_layer:

        def check(module, inputs, output):
            if output.abs().max().item() > 1e4:
                raise FloatingPointError("activations explode")

        for layer in model:
            layer.register_forward_hook(check)

    def train_step():
        loss = F.mse_loss(forward(x), y)
        loss.backward()
        optimizer.step()
        total.add_(loss.detach())
        return loss

    if args.graph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                optimizer.zero_grad()
                train_step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        optimizer.zero_grad()
        with torch.cuda.graph(graph):
            train_step()
        total.zero_()

    began = 0.0
    for step in range(args.warmup + args.steps):
        if step == args.warmup:
            sync()
            began = time.perf_counter()
        if args.graph:
            graph.replay()
        else:
            optimizer.zero_grad()
            loss = train_step()
            if args.item:
                history.append(loss.item())
        if args.harmless_sync:
            sync()
    sync()
    step_ms = (time.perf_counter() - began) * 1e3 / args.steps
    checksum = total.item() / (args.warmup + args.steps)
    print(json.dumps({"steps": args.steps, "step_ms": round(step_ms, 4), "loss": round(checksum, 4)}))


if __name__ == "__main__":
    main()

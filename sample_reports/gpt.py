"""Train a small GPT: bf16 autocast, AdamW, clipped gradients; eager, compiled, or each step as one CUDA graph."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ln2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocab, context, width, heads, depth):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", action="store_true", help="capture the whole step in a CUDA graph and replay it")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--optimizer", choices=["loop", "foreach", "fused"], default="foreach")
    parser.add_argument(
        "--log-every", type=int, default=0, help="print the loss each so many steps (waits for the GPU)"
    )
    parser.add_argument("--steps", type=int, default=20, help="timed steps, after the warm-up")
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes for a smoke test on a CPU")
    args = parser.parse_args()
    if args.tiny:
        args.batch, args.context, args.width, args.depth = 2, 16, 32, 2

    device = torch.device(args.device)
    cuda = device.type == "cuda"
    sync = torch.cuda.synchronize if cuda else lambda: None
    torch.manual_seed(0)
    vocab = 8192
    text = torch.randint(vocab, (100_000,))
    model = GPT(vocab, args.context, args.width, 8, args.depth).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=3e-4,
        foreach=args.optimizer == "foreach",
        fused=args.optimizer == "fused",
        capturable=args.graph,
    )
    forward = torch.compile(model) if args.compile else model
    total = torch.zeros((), device=device)

    def batch():
        starts = torch.randint(len(text) - args.context - 1, (args.batch,)).tolist()
        x = torch.stack([text[s : s + args.context] for s in starts])
        y = torch.stack([text[s + 1 : s + 1 + args.context] for s in starts])
        if cuda:
            x, y = x.pin_memory(), y.pin_memory()
        return x.to(device, non_blocking=True), y.to(device, non_blocking=True)

    def train_step(x, y):
        # The cache of cast weights must not outlive a captured step.
        with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=not args.graph):
            loss = forward(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        total.add_(loss.detach())
        return loss

    if args.graph:
        static_x, static_y = batch()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                optimizer.zero_grad()
                train_step(static_x, static_y)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        optimizer.zero_grad()
        with torch.cuda.graph(graph):
            train_step(static_x, static_y)
        total.zero_()

    began = 0.0
    for step in range(args.warmup + args.steps):
        if step == args.warmup:
            sync()
            began = time.perf_counter()
        x, y = batch()
        if args.graph:
            static_x.copy_(x)
            static_y.copy_(y)
            graph.replay()
        else:
            optimizer.zero_grad()
            loss = train_step(x, y)
            if args.log_every and step % args.log_every == 0:
                print(f"step {step} loss {loss.item():.4f}")
    sync()
    step_ms = (time.perf_counter() - began) * 1e3 / args.steps
    checksum = total.item() / (args.warmup + args.steps)
    print(json.dumps({"steps": args.steps, "step_ms": round(step_ms, 4), "loss": round(checksum, 4)}))


if __name__ == "__main__":
    main()

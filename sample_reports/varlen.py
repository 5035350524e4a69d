"""Train a transformer on batches sorted by length, in a GPU's memory share that the longest just fits.

Each batch is longer than all before it, so no block that the caching allocator holds is large enough: it asks for new
ones, and at the end of the share it gives all of them back and asks again. That is cudaMalloc and cudaFree in the middle
of training. --padded (one shape) and --expandable (segments that grow) are two cures.
"""

import argparse
import json
import os
import time


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--padded", action="store_true", help="pad every batch to the longest length")
    parser.add_argument("--expandable", action="store_true", help="expandable_segments:True")
    parser.add_argument("--margin", type=float, default=1.2, help="memory share over what the longest batch needs")
    parser.add_argument("--steps", type=int, default=20, help="timed steps, after the warm-up")
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--longest", type=int, default=1024)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes for a smoke test on a CPU")
    args = parser.parse_args()
    if args.tiny:
        args.batch, args.longest, args.width, args.depth = 2, 32, 32, 1
    if args.expandable:  # is read when torch first asks for memory
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

    import torch
    import torch.nn.functional as F
    from torch import nn

    class Tagger(nn.Module):
        def __init__(self, vocab, longest, width, depth, tags):
            super().__init__()
            self.tokens = nn.Embedding(vocab, width)
            self.positions = nn.Parameter(torch.zeros(longest, width))
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
                for _ in range(depth)
            )
            self.head = nn.Linear(width, tags)

        def forward(self, tokens):
            x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    device = torch.device(args.device)
    cuda = device.type == "cuda"
    torch.backends.cuda.enable_cudnn_sdp(False)  # cuDNN plans its attention anew for each length, for 80 ms
    sync = torch.cuda.synchronize if cuda else lambda: None
    torch.manual_seed(0)
    vocab, tags = 8192, 2048
    model = Tagger(vocab, args.longest, args.width, args.depth, tags).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    total = torch.zeros((), device=device)

    count = args.warmup + args.steps
    shortest = args.longest // 4
    lengths = [(shortest + (args.longest - shortest) * i // max(1, count - 1)) // 8 * 8 for i in range(count)]
    if args.padded:
        lengths = [args.longest] * count

    def train_step(length):
        tokens = torch.randint(vocab, (args.batch, length)).to(device)
        targets = torch.randint(tags, (args.batch, length)).to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total.add_(loss.detach())

    retries = 0
    if cuda:
        # Twice: the optimizer's state exists only after the first step.
        train_step(args.longest)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        train_step(args.longest)
        share = args.margin * torch.cuda.max_memory_reserved() / torch.cuda.get_device_properties(device).total_memory
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(min(1.0, share))
        total.zero_()

    began = 0.0
    for step, length in enumerate(lengths):
        if step == args.warmup:
            sync()
            began = time.perf_counter()
            if cuda:
                retries = torch.cuda.memory_stats()["num_alloc_retries"]
        train_step(length)
    sync()
    step_ms = (time.perf_counter() - began) * 1e3 / args.steps
    result = {"steps": args.steps, "step_ms": round(step_ms, 4), "loss": round(total.item() / count, 4)}
    if cuda:
        result["num_alloc_retries"] = torch.cuda.memory_stats()["num_alloc_retries"]
        result["num_alloc_retries_timed"] = result["num_alloc_retries"] - retries
    print(json.dumps(result))


if __name__ == "__main__":
    main()

"""Train on batches that come from host memory: pageable (the default), pinned, or pinned and a step ahead."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pinned", action="store_true", help="pinned batches, copied with non_blocking=True")
    parser.add_argument("--prefetch", action="store_true", help="also copy the next batch on a stream of its own")
    parser.add_argument("--steps", type=int, default=20, help="timed steps, after the warm-up")
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes for a smoke test on a CPU")
    args = parser.parse_args()
    args.pinned = args.pinned or args.prefetch
    if args.tiny:
        args.batch, args.size = 2, 32

    device = torch.device(args.device)
    sync = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 7, stride=4, padding=3),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, stride=2, padding=1),
        nn.BatchNorm2d(128),
        nn.ReLU(),
        nn.Conv2d(128, 256, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, 1000),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    total = torch.zeros((), device=device)

    def host_batch():
        images = torch.randn(args.batch, 3, args.size, args.size)
        labels = torch.randint(1000, (args.batch,))
        return (images.pin_memory(), labels.pin_memory()) if args.pinned else (images, labels)

    batches = [host_batch() for _ in range(4)]
    ahead = torch.cuda.Stream() if args.prefetch else None

    def upload(step):
        images, labels = batches[step % len(batches)]
        return images.to(device, non_blocking=args.pinned), labels.to(device, non_blocking=args.pinned)

    def upload_ahead(step):
        with torch.cuda.stream(ahead):
            return upload(step)

    count = args.warmup + args.steps
    upcoming = upload_ahead(0) if ahead else None
    began = 0.0
    for step in range(count):
        if step == args.warmup:
            sync()
            began = time.perf_counter()
        if ahead:
            torch.cuda.current_stream().wait_stream(ahead)
            images, labels = upcoming
            for tensor in upcoming:
                tensor.record_stream(torch.cuda.current_stream())
            upcoming = upload_ahead(step + 1)
        else:
            images, labels = upload(step)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    sync()
    step_ms = (time.perf_counter() - began) * 1e3 / args.steps
    print(json.dumps({"steps": args.steps, "step_ms": round(step_ms, 4), "loss": round(total.item() / count, 4)}))


if __name__ == "__main__":
    main()

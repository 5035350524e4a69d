"""Train a small segmentation net whose loss must skip void pixels, four ways that give the same loss.

--loss nonzero       void pixels by nonzero, classes by unique, the rest by a boolean mask: three waits a step
--loss where         nonzero replaced by torch.where: two of the waits are left
--loss sort          unique replaced by sort: only the boolean mask waits
--loss ignore_index  cross_entropy skips void pixels itself: no wait, and no sort, scan or gather kernels
"""

import argparse
import json
import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOID = 255  # as the label files have it
IGNORE = -1  # as the loss has it


class Net(nn.Module):
    def __init__(self, width, classes, depth):
        super().__init__()
        self.conv_in = nn.Conv2d(3, width, 3, padding=1)
        layers = []
        for _ in range(depth):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
        self.hidden = nn.Sequential(*layers)
        self.conv_out = nn.Conv2d(width, classes, 3, padding=1)

    def forward(self, images):
        return self.conv_out(self.hidden(self.conv_in(images)))


class MaskedLoss(nn.Module):
    """Cross entropy over the pixels that are not void; classes absent from the batch get weight 0."""

    def __init__(self, kind, classes):
        super().__init__()
        self.kind = kind
        self.classes = classes

    def forward(self, logits, target):
        if self.kind == "nonzero":
            void = (target == VOID).nonzero(as_tuple=True)
            target = target.clone()
            target[void] = IGNORE
        else:
            target = torch.where(target == VOID, IGNORE, target)
        if self.kind == "ignore_index":
            return F.cross_entropy(logits, target, ignore_index=IGNORE)

        if self.kind == "sort":
            ordered = target.flatten().sort().values
            edges = torch.searchsorted(ordered, torch.arange(self.classes + 1, device=target.device))
            weight = (edges[1:] > edges[:-1]).to(logits.dtype)
        else:
            weight = torch.zeros(self.classes + 1, device=logits.device, dtype=logits.dtype)
            weight[target.unique() + 1] = 1
            weight = weight[1:]

        keep = target != IGNORE
        channels_last = logits.permute(0, 2, 3, 1)
        picked = channels_last[keep.unsqueeze(-1).expand_as(channels_last)].view(-1, self.classes)
        return F.cross_entropy(picked, target[keep], weight=weight)


class Scenes(Dataset):
    """Pictures drawn on the fly, as slow as decoding and augmenting real ones."""

    def __init__(self, length, size, classes):
        self.length = length
        self.size = size
        self.classes = classes

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        size = self.size
        image = torch.randn(3, size, size, generator=generator)
        image = F.avg_pool2d(image, 3, stride=1, padding=1)
        image = (image - image.mean()) / image.std()
        label = torch.randint(self.classes, (size, size), generator=generator)
        label[torch.rand(size, size, generator=generator) < 0.18] = VOID
        return image, label


def preloaded(args, device):
    """The same batch, again and again: the loader costs nothing."""
    generator = torch.Generator().manual_seed(0)
    shape = (args.batch, args.size, args.size)
    images = torch.randn(args.batch, 3, args.size, args.size, generator=generator)
    labels = torch.randint(args.classes, shape, generator=generator)
    labels[torch.rand(shape, generator=generator) < 0.18] = VOID
    images, labels = images.to(device), labels.to(device)
    while True:
        yield images, labels


def loaded(args, device):
    # One batch more than steps: the clock starts and stops right after a fetch.
    scenes = Scenes(args.batch * (args.warmup + args.steps + 1), args.size, args.classes)
    loader = DataLoader(scenes, batch_size=args.batch, num_workers=args.workers, pin_memory=device.type == "cuda")
    for images, labels in loader:
        yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loss", choices=["nonzero", "where", "sort", "ignore_index"], default="nonzero")
    parser.add_argument("--loader", choices=["preload", "slow"], default="preload")
    parser.add_argument("--workers", type=int, default=0, help="worker processes of the slow loader")
    parser.add_argument("--steps", type=int, default=20, help="timed steps, after the warm-up")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes for a smoke test on a CPU")
    args = parser.parse_args()
    if args.tiny:
        args.batch, args.size = 2, 16
    if args.loader == "slow":
        torch.set_num_threads(min(4, os.cpu_count() or 1))

    device = torch.device(args.device)
    sync = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    torch.manual_seed(0)
    model = Net(10, args.classes, 10).to(device)
    criterion = MaskedLoss(args.loss, args.classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    total = torch.zeros((), device=device)
    batches = loaded(args, device) if args.loader == "slow" else preloaded(args, device)

    began = 0.0
    for step, (images, labels) in enumerate(batches):
        if step == args.warmup:
            sync()
            began = time.perf_counter()
        if step == args.warmup + args.steps:
            break
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    sync()
    step_ms = (time.perf_counter() - began) * 1e3 / args.steps
    checksum = total.item() / (args.warmup + args.steps)
    print(json.dumps({"steps": args.steps, "step_ms": round(step_ms, 4), "loss": round(checksum, 4)}))


if __name__ == "__main__":
    main()

"""Small programs of several kinds, each with one thing wrong before, and right after."""

import sys
from pathlib import Path

import baton
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import masked_loss

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")


class Tiny(nn.Module):
    """A layer that the GPU is done with before the next one is launched."""

    def __init__(self, width, reads):
        super().__init__()
        self.norm, self.linear, self.reads = nn.LayerNorm(width), nn.Linear(width, width), reads

    def forward(self, x):
        x = x + F.gelu(self.linear(self.norm(x)))
        if self.reads and x.sum().item() == 0.5:
            raise AssertionError
        return x


def tiny_stack(steps, tick, *, reads=False, graph=False, **optimizer):
    torch.manual_seed(0)
    model = nn.Sequential(*[Tiny(64, reads) for _ in range(64)], nn.Linear(64, 1)).to(DEVICE)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-5, **optimizer)
    x = torch.randn(32, 64, device=DEVICE)

    def step():
        adam.zero_grad()
        model(x).square().mean().backward()
        adam.step()

    if graph and CUDA:
        from language_model import captured

        step = captured(step).replay
    for _ in range(steps):
        step()
        tick()


def layer_items(side, steps, tick):
    """Every layer's output read by the CPU -> none."""
    tiny_stack(steps, tick, reads=side == "before")


def stack_graph(side, steps, tick):
    """64 tiny layers launched kernel by kernel -> one CUDA graph."""
    tiny_stack(steps, tick, graph=side == "after", capturable=True)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.cell, self.head = nn.Embedding(100, 128), nn.LSTMCell(128, 256), nn.Linear(256, 100)

    def forward(self, tokens, reads):
        hidden = cell = tokens.new_zeros(tokens.shape[0], 256, dtype=torch.float)
        out = []
        for t in range(tokens.shape[1]):
            hidden, cell = self.cell(self.words(tokens[:, t]), (hidden, cell))
            out.append(self.head(hidden))
            if reads and not out[-1].isfinite().all():  # the CPU has to know
                raise AssertionError
        return torch.stack(out, 1)


def recurrent(side, steps, tick):
    """A check of every token's output by the CPU -> none."""
    torch.manual_seed(0)
    model = Recurrent().to(DEVICE)
    adam = torch.optim.Adam(model.parameters(), fused=CUDA)
    tokens = torch.randint(0, 100, (32, 40), device=DEVICE)
    for _ in range(steps):
        adam.zero_grad()
        F.cross_entropy(model(tokens[:, :-1], side == "before").flatten(0, 1), tokens[:, 1:].flatten()).backward()
        adam.step()
        tick()


def gan(side, steps, tick):
    """Two optimizers with a kernel per parameter and operation -> fused."""
    torch.manual_seed(0)
    how = {"foreach": False} if side == "before" else {"fused": CUDA}

    def network(before, after):
        hidden = [layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.LeakyReLU())]
        return nn.Sequential(nn.Linear(before, 512), nn.LeakyReLU(), *hidden, nn.Linear(512, after)).to(DEVICE)

    maker, judge = network(64, 784), network(784, 1)
    makers, judges = torch.optim.Adam(maker.parameters(), **how), torch.optim.Adam(judge.parameters(), **how)
    judged = F.binary_cross_entropy_with_logits
    one, zero = torch.ones(128, 1, device=DEVICE), torch.zeros(128, 1, device=DEVICE)
    real, noise = torch.randn(128, 784, device=DEVICE), torch.randn(128, 64, device=DEVICE)
    for _ in range(steps):
        fake = maker(noise)
        judges.zero_grad()
        (judged(judge(real), one) + judged(judge(fake.detach()), zero)).backward()
        judges.step()
        makers.zero_grad()
        judged(judge(fake), one).backward()
        makers.step()
        tick()


def masked(steps, tick, kind):
    torch.manual_seed(0)
    batch, size = (64, 256) if CUDA else (2, 16)
    model, criterion = masked_loss.Net(10, 10, 10).to(DEVICE), masked_loss.MaskedLoss(kind, 10)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    images = torch.randn(batch, 3, size, size, device=DEVICE)
    labels = torch.randint(10, (batch, size, size), device=DEVICE)
    labels[torch.rand(labels.shape, device=DEVICE) < 0.18] = masked_loss.VOID
    for _ in range(steps):
        loss = criterion(model(images), labels)
        adam.zero_grad()
        loss.backward()
        adam.step()
        tick()


def mask_wait(side, steps, tick):
    """``nonzero`` -> ``where``: a wait goes, the GPU's work stays."""
    masked(steps, tick, "nonzero" if side == "before" else "where")


def mask_work(side, steps, tick):
    """Masks -> ``ignore_index``: the loss has next to no work left."""
    masked(steps, tick, "sort" if side == "before" else "ignore_index")


def images(steps, tick, *, pinned, width=64):
    torch.manual_seed(0)
    batch, size = (128, 160) if CUDA else (2, 8)
    layers = [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(nn.Conv2d(3, width, 3, stride=2), nn.ReLU(), *layers, nn.Flatten(2), nn.LazyLinear(1))
    model = model.to(DEVICE)
    model(torch.zeros(1, 3, size, size, device=DEVICE))
    sgd = torch.optim.SGD(model.parameters(), lr=1e-4)
    batches = [torch.randn(batch, 3, size, size) for _ in range(4)]
    if pinned and CUDA:
        batches = [b.pin_memory() for b in batches]
    for number in range(steps):
        x = batches[number % 4].to(DEVICE, non_blocking=pinned)
        sgd.zero_grad()
        model(x).square().mean().backward()
        sgd.step()
        tick()


def pageable(side, steps, tick):
    """Batches copied from pageable memory -> pinned, ``non_blocking``."""
    images(steps, tick, pinned=side == "after")


class Pictures(Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        picture = torch.randn(3, 64, 64, generator=torch.Generator().manual_seed(index))
        return F.avg_pool2d(picture, 3, stride=1, padding=1), index % 10


def loader(side, steps, tick):
    """A DataLoader without workers -> with 8."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    width = 64 if CUDA else 4
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
    model = nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, width, 3), *head).to(DEVICE)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = DataLoader(Pictures(), 64, num_workers=8 if side == "after" else 0, pin_memory=CUDA)
    for number, (x, y) in enumerate(batches):
        if number == steps:
            break
        sgd.zero_grad()
        F.cross_entropy(model(x.to(DEVICE, non_blocking=True)), y.to(DEVICE, non_blocking=True)).backward()
        sgd.step()
        tick()


if __name__ == "__main__":
    programs = (layer_items, stack_graph, recurrent, gan, mask_wait, mask_work, pageable, loader)
    baton.main({program.__name__: program for program in programs})

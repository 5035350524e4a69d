"""A language model of 8 blocks, each program with one thing wrong before, and right after."""

import baton
import torch
import torch.nn.functional as F
from torch import nn

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
WORDS, WIDTH, LENGTH = (8192, 512, 512) if CUDA else (64, 16, 8)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class LanguageModel(nn.Module):
    def __init__(self, layers=8):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.blocks = nn.Sequential(*[Block(WIDTH, 8) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.words(tokens) + self.places[: tokens.shape[1]])))


def start(batch, **optimizer):
    """Return a model, its AdamW and a batch of tokens."""
    torch.manual_seed(0)
    model = LanguageModel().to(DEVICE)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-5, **optimizer)
    return model, adam, torch.randint(0, WORDS, (batch, LENGTH), device=DEVICE)


def loss_of(model, tokens):
    with torch.autocast(DEVICE, torch.bfloat16):
        return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def train_step(model, adam, tokens):
    adam.zero_grad()
    loss_of(model, tokens).backward()
    adam.step()


def optimizer(side, steps, tick):
    """A kernel per parameter and operation in AdamW -> fused."""
    model, adam, tokens = start(4, **({"foreach": False} if side == "before" else {"fused": True}))
    for _ in range(steps):
        train_step(model, adam, tokens)
        tick()


def optimizer_foreach(side, steps, tick):
    """AdamW as it comes (foreach) -> fused."""
    model, adam, tokens = start(4, **({"foreach": True} if side == "before" else {"fused": True}))
    for _ in range(steps):
        train_step(model, adam, tokens)
        tick()


def captured(step):
    """Return a CUDA graph of ``step``."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def graph(side, steps, tick):
    """Every launch of a step -> one CUDA graph."""
    model, adam, tokens = start(2, fused=True, capturable=True)
    if side == "before" or not CUDA:
        for _ in range(steps):
            train_step(model, adam, tokens)
            tick()
        return
    replayed = captured(lambda: train_step(model, adam, tokens))
    for _ in range(steps):
        replayed.replay()
        tick()


def micro_item(side, steps, tick):
    """The loss of each of four micro-steps is read by the CPU -> none is."""
    model, adam, tokens = start(2, fused=True)
    total = 0.0
    for _ in range(steps):
        adam.zero_grad()
        for _ in range(4):
            loss = loss_of(model, tokens) / 4
            loss.backward()
            if side == "before":
                total += loss.item()
        adam.step()
        tick()


def empty_cache(side, steps, tick):
    """``torch.cuda.empty_cache()`` after each step -> never."""
    model, adam, tokens = start(16, fused=True)
    for _ in range(steps):
        train_step(model, adam, tokens)
        if side == "before":
            torch.cuda.empty_cache()
        tick()


def phase_syncs(side, steps, tick):
    """A synchronize after each phase, as people do who time phases -> none."""
    model, adam, tokens = start(24, fused=True)
    wait = baton.synchronize if side == "before" else lambda: None
    for _ in range(steps):
        adam.zero_grad()
        loss = loss_of(model, tokens)
        wait()
        loss.backward()
        wait()
        adam.step()
        wait()
        tick()


def clip(side, steps, tick):
    """Gradients clipped with a check for infinity, which waits, and their norm read -> without."""
    model, adam, tokens = start(8, fused=True)
    worst = 0.0
    for _ in range(steps):
        adam.zero_grad()
        loss_of(model, tokens).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=side == "before")
        if side == "before":
            worst = max(worst, norm.item())
        adam.step()
        tick()


@torch.no_grad()
def decode(side, steps, tick):
    """A token at a time, launch by launch -> the step in a CUDA graph."""
    torch.manual_seed(0)
    model = LanguageModel(layers=12).to(DEVICE, torch.bfloat16).eval()
    token = torch.randint(0, WORDS, (1, 1), device=DEVICE)

    def step():
        token.copy_(model(token)[:, -1].argmax(-1, keepdim=True))

    if side == "before" or not CUDA:
        for _ in range(steps):
            step()
            tick()
        return
    replayed = captured(step)
    for _ in range(steps):
        replayed.replay()
        tick()


if __name__ == "__main__":
    programs = (optimizer, optimizer_foreach, graph, micro_item, empty_cache, phase_syncs, clip, decode)
    baton.main({program.__name__: program for program in programs})

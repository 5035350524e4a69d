"""NSX131: attention over the whole room of a cache of which little was written, and caches that are read as far as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nsysx.findings._cut_keys import with_written_keys
from nsysx.findings._fix import Fix
from nsysx.model import Finding
from tests.findings.recorded_programs import from_host, recorded

ROOM, HEADS, KEY_HEADS, SIZE, PROMPT, TOKENS, LAYERS = 2048, 4, 2, 4, 6, 5, 2
WIDTH = HEADS * SIZE


class Attention(nn.Module):
    """Attention with a cache; ``form``: how it writes into that, and what it reads of it."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * KEY_HEADS) * SIZE)
        self.make()

    def make(self) -> None:
        self.k, self.v = (torch.zeros(2, KEY_HEADS, ROOM, SIZE) for _ in range(2))

    def forward(self, x: torch.Tensor, pos: torch.Tensor, mask: torch.Tensor, first: int) -> torch.Tensor:
        parts = self.qkv(x).split([HEADS * SIZE, KEY_HEADS * SIZE, KEY_HEADS * SIZE], -1)
        q, k, v = (part.view(*part.shape[:2], -1, SIZE).transpose(1, 2) for part in parts)
        k, v = (self.written(cache, pos, new, first) for cache, new in ((self.k, k), (self.v, v)))
        if self.form == "cut":
            n = -(-(first + x.size(1)) // 512) * 512
            k, v, mask = k[:, :, :n], v[:, :, :n], mask[..., :n]
        elif self.form == "full":
            k, v, mask = k[:, :, : PROMPT + TOKENS], v[:, :, : PROMPT + TOKENS], mask[..., : PROMPT + TOKENS]
        if self.form == "repeated":
            k, v = (t.repeat_interleave(HEADS // KEY_HEADS, 1) for t in (k, v))
        if self.form == "by hand":
            scores = (q[:, :KEY_HEADS] @ k.transpose(-2, -1)) * SIZE**-0.5
            y = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
            return x + torch.cat([y, y], 1).transpose(1, 2).flatten(2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=self.form != "repeated")
        return x + y.transpose(1, 2).flatten(2)

    def written(self, cache: torch.Tensor, pos: torch.Tensor, new: torch.Tensor, first: int) -> torch.Tensor:
        if self.form == "copied":
            cache.index_copy_(2, pos, new)
        elif self.form in ("slices", "in place"):
            cache[:, :, first : first + new.size(2)] = new
        else:
            cache[:, :, pos] = new
        return cache


class Net(nn.Module):
    def __init__(self, form: str, layers: int = LAYERS) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention(form) for _ in range(layers))
        self.register_buffer("causal", torch.ones(ROOM, ROOM, dtype=torch.bool).tril())

    def forward(self, x: torch.Tensor, pos: torch.Tensor, first: int) -> torch.Tensor:
        mask = self.causal[None, None, pos]
        for layer in self.layers:
            x = layer(x, pos, mask, first)
        return x


def found(form: str, folder: Path) -> list[Finding]:
    net = Net(form)

    @torch.no_grad()
    def step() -> None:
        first = 0
        if form == "slices":  # a cache for each answer
            for layer in net.layers:
                layer.make()  # type: ignore[operator]
        if form != "goes on":
            x = net(from_host(torch.randn(2, PROMPT, WIDTH)), torch.arange(PROMPT), 0)[:, -1:]
            first = PROMPT
        else:
            x = from_host(torch.randn(2, 1, WIDTH))
        pos = torch.tensor([first])
        for n in range(TOKENS):
            x = net(x, pos, first + n)
            pos = pos + 1

    attends = "scaled_dot_product_attention"
    findings = recorded(step, net, __file__, folder, slow=(attends, "repeat_interleave", "linear")).found(
        folder, "NSX131"
    )
    return [each for each in findings if each.remedies and each.remedies[0].name == "written-keys"]


@pytest.mark.parametrize("form", ["by number", "repeated", "copied", "slices"])
def test_attention_over_a_cache_that_is_mostly_empty(form: str, tmp_path: Path) -> None:
    (finding,) = found(form, tmp_path)
    assert "12 calls of attention in a step, of few queries each, are given all 2,048 keys" in finding.detail
    assert "has written 11 of them at most, 0.4 % on average" in finding.detail
    assert ("enable_gqa=True" in finding.paste) == (form == "repeated")
    calls = LAYERS * (1 + TOKENS)  # a short prompt is few queries, too
    attends_us = calls * (60 + (120 if form == "repeated" else 0))
    # A quarter of the keys stay, in steps of 512; then the host has its say.
    gone = 0.75 * attends_us * 1000
    assert 0.75 * gone < (finding.saving_ns_per_step or 0) <= gone and finding.saving.bound


@pytest.mark.parametrize("form", ["cut", "full", "goes on"])
def test_caches_that_are_read_as_far_as_they_are_written(form: str, tmp_path: Path) -> None:
    """What a step goes on with may be a full cache."""
    assert not found(form, tmp_path)


EVERY, MANY, MORE_PRODUCTS = 16, 4, 20


def passes(form: str, folder: Path, *, prompt: int = PROMPT, every: int = EVERY, sees: int = 0) -> list[Finding]:
    """Return what is told of steps that are a pass over one token each, but every so many the pass over a prompt; one is X-rayed."""
    net, calls = Net(form, MANY), iter(range(4))
    head = nn.Linear(WIDTH, WIDTH)

    @torch.no_grad()
    def step() -> None:
        tokens = prompt if next(calls) == 1 else 1
        first = 0 if tokens > 1 else prompt
        x = net(from_host(torch.randn(2, tokens, WIDTH)), torch.arange(first, first + tokens), first)
        for _ in range(MORE_PRODUCTS if tokens > 1 else 0):
            x = head(x)

    program = recorded(step, net, __file__, folder, slow=("scaled_dot_product_attention", "linear", "matmul"))
    usual, prompt_ns = 720_000, 720_000 + 60_000 * MORE_PRODUCTS
    lengths = [prompt_ns if every and n % every == 5 else usual + n for n in range(96)]
    program.probe["unrecorded_steps"] = {"lengths_ns": lengths, "fetch_ns": [0] * len(lengths), "count": len(lengths)}
    if sees:  # as the probe has read the masks of the last step
        program.settings = {"given_masks": [{"shape": [1, 1, 1, ROOM], "sees": sees}]}
    return [*program.found(folder, "NSX131"), *program.found(folder, "NSX109")]


@pytest.mark.parametrize("form", ["in place", "by number", "copied"])
def test_a_cache_that_is_older_than_the_step(form: str, tmp_path: Path) -> None:
    """How many rows of it are written, the pass over the prompt tells, and how many steps lie between two of them."""
    told = passes(form, tmp_path)
    (finding,) = (each for each in told if each.code == "NSX131")
    assert "A prompt is 6 tokens" in finding.detail and "comes every 16th step" in finding.detail
    assert "21 of them are written at most" in finding.detail and "was written at most" in finding.title
    where = "first" if form == "in place" else "position"  # a number of the host, or a tensor
    assert finding.paste.startswith(f"n = min(-(-({where} + q.size(-2)) // 512) * 512, k.size(-2))")
    assert "F.scaled_dot_product_attention(q, k[:, :, :n], v[:, :, :n], attn_mask=mask[..., :n]" in finding.paste
    assert finding.saving.bound and finding.evidence == ({"keys": ROOM, "written_at_most": 21},)
    (longer,) = (each for each in told if each.code == "NSX109")
    assert longer.title.startswith("Every 16th step takes 1.92 ms")
    assert longer.title.endswith("the pass over a prompt of 6 tokens")


def test_attention_that_is_written_out(tmp_path: Path) -> None:
    (finding,) = (
        each
        for each in passes("by hand", tmp_path, sees=600)
        if each.code == "NSX131" and each.remedies[0].name == "written-keys"
    )
    assert "4 calls of attention in a step" in finding.detail and "lets see the first 600 of them" in finding.detail
    assert "F.scaled_dot_product_attention(q, k[:, :, :n]" in finding.paste


def test_a_mask_that_was_read_tells_it(tmp_path: Path) -> None:
    """No pass over a prompt has to be seen."""
    (finding,) = (each for each in passes("in place", tmp_path, every=0, sees=600) if each.code == "NSX131")
    assert "it lets see the first 600 of them" in finding.detail and "at most" not in finding.title
    assert not finding.saving.bound and not finding.evidence


def test_a_mask_that_lets_see_nearly_all(tmp_path: Path) -> None:
    assert not [each for each in passes("in place", tmp_path, sees=ROOM - 40) if each.code == "NSX131"]


@pytest.mark.parametrize(
    ("form", "prompt", "every"),
    [("cut", PROMPT, EVERY), ("in place", 1, EVERY), ("in place", PROMPT, 0), ("in place", ROOM - EVERY, EVERY)],
)
def test_an_older_cache_of_which_no_more_is_read(form: str, prompt: int, every: int, tmp_path: Path) -> None:
    """Keys are cut to a length; no pass over a prompt was seen, or none comes; the last fills the cache."""
    assert not [each for each in passes(form, tmp_path, prompt=prompt, every=every) if each.code == "NSX131"]


def test_the_call_is_cut_in_its_own_names() -> None:
    text = "o = F.scaled_dot_product_attention(self.q, keys, values, m[:, -t:], scale=s)"
    written = "-(-(position + self.q.size(-2)) // 512) * 512, keys.size(-2))"
    remark = "  # position: of the first query, the loop's own counter, a number of the host, not .item()"
    cut = "o = F.scaled_dot_product_attention(self.q, keys[:, :, :n], values[:, :, :n], m[:, -t:][..., :n], scale=s)"
    assert with_written_keys(text, "self.k[at] = k", []) == f"n = min({written}{remark}\n{cut}"
    started = with_written_keys(text, "self.k[i, :, p:p + t].copy_(k)", ["k = self.cache(k, p)"])
    assert started is not None and started.startswith("n = min(-(-(p + self.q.size(-2))")
    for other in (
        "o = attend(q, k, v, m)",
        "o = F.scaled_dot_product_attention(q, k, v)",
        "o = (",
        "scaled_dot_product_attention(*qkv)",
    ):
        assert with_written_keys(other, "", []) is None


def test_the_paste_gives_the_same() -> None:
    q, k, v = (torch.randn(2, 2, n, 8) for n in (1, ROOM, ROOM))
    mask = (torch.arange(ROOM) <= 700)[None, None, None]
    given: dict[str, object] = {"F": F, "q": q, "k": k, "v": v, "mask": mask, "position": 700}
    exec(Fix.by_name("written-keys").paste, given)
    whole = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert given["n"] == 1024 and torch.allclose(given["y"], whole, atol=1e-6)  # type: ignore[arg-type]

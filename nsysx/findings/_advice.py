"""Code to paste for the advice of a finding, and what must hold for it: one entry for each thing that a rule may advise.

An entry stands for a finding whose ``fix`` holds its words, so that code never shows another change than the one advised.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from nsysx.model import Finding


class Advice(NamedTuple):
    """What to paste where a finding of ``code`` says these words in its fix, and the condition in one sentence."""

    code: str
    words: str
    paste: str
    condition: str


_FIXED_SHAPES = (
    "Shapes must stay the same from step to step, and nothing in the step may read a value back (.item(), x[mask])."
)
_FUSED = "optimizer = torch.optim.AdamW(model.parameters(), fused=True)"

_ALL = (
    Advice(
        "NSX101", "Keep the value", "running += loss.detach()  # .item() once in 100 steps", "The value may be late."
    ),
    Advice(
        "NSX102",
        "fused=True",
        f'model = torch.compile(model, mode="reduce-overhead")\n{_FUSED}',
        _FIXED_SHAPES,
    ),
    Advice("NSX102", "torch.compile(model", 'model = torch.compile(model, mode="reduce-overhead")', _FIXED_SHAPES),
    Advice(
        "NSX102",
        "torch.compile(...",
        'torch.compile(..., mode="reduce-overhead")  # where it is compiled',
        _FIXED_SHAPES,
    ),
    Advice(
        "NSX102",
        "CUDA graph",
        "",
        "Shapes must stay the same, and nothing in the graph may wait, allocate or read a value back.",
    ),
    Advice(
        "NSX104",
        "expandable_segments",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py",
        "No torch.cuda.empty_cache() in the loop.",
    ),
    *(
        Advice(
            code,
            "gc.freeze()",
            "gc.collect(); gc.freeze(); gc.disable()  # after warm-up\ngc.collect()  # between epochs",
            "Memory grows by the garbage in reference cycles that steps leave until the next collection.",
        )
        for code in ("NSX109", "NSX114")
    ),
    Advice(
        "NSX105",
        "Pin the memory",
        "loader = DataLoader(data, pin_memory=True, ...)\n"
        "with torch.cuda.stream(copy_stream):\n"
        '    upcoming = batch.to("cuda", non_blocking=True)\n'
        "torch.cuda.current_stream().wait_stream(copy_stream)",
        "Wait for the copy stream before the batch is used, and keep the batch until then.",
    ),
    Advice(
        "NSX105",
        "Copy the next batch",
        "with torch.cuda.stream(copy_stream):\n"
        '    upcoming = batch.to("cuda", non_blocking=True)\n'
        "torch.cuda.current_stream().wait_stream(copy_stream)",
        "Wait for the copy stream before the batch is used, and keep the batch until then.",
    ),
    Advice(
        "NSX106",
        "DataLoader(",
        "loader = DataLoader(data, num_workers=8,\n    pin_memory=True, persistent_workers=True)",
        "The machine must have that many idle cores, and the storage must keep up.",
    ),
    Advice(
        "NSX107",
        "warm up",
        "for _ in range(10): F.linear(x, w)   # first calls out of the way\n"
        "torch.cuda._sleep(1_000_000)         # the stream is busy while the CPU launches\n"
        "start.record(); y = F.linear(x, w); end.record()",
        "Data that is on the GPU already; the median of many windows.",
    ),
    Advice(
        "NSX110",
        "Start communication earlier",
        "model = DistributedDataParallel(model, bucket_cap_mb=25, gradient_as_bucket_view=True)",
        "The links must have room left beside the computation.",
    ),
    Advice(
        "NSX111",
        "Give every rank the same work",
        "sampler = DistributedSampler(data, shuffle=True)  # batches of equal length on every rank",
        "The work of a rank must be what differs: batch size, sequence lengths, an uneven shard.",
    ),
    Advice(
        "NSX112",
        "torch.compile(model)",
        "model = torch.compile(model)",
        "A graph break (print, .item(), a branch on data) leaves what lies around it as it is.",
    ),
    Advice("NSX113", "fused=True", _FUSED, "Parameters must be on the GPU, in floating point."),
    Advice(
        "NSX115",
        "Timer",
        'from torch.utils.benchmark import Timer\nprint(Timer("op(x)", globals=globals()).blocked_autorange())',
        "Nothing else may run on the GPU meanwhile.",
    ),
    Advice(
        "NSX116",
        "set_float32_matmul_precision",
        'torch.set_float32_matmul_precision("high")    # TF32\n'
        'with torch.autocast("cuda", torch.bfloat16):  # or BF16\n'
        "    loss = model(x).sum()",
        "TF32 keeps 10 bits of the mantissa, BF16 7: the loss must still converge.",
    ),
    Advice(
        "NSX116",
        "channels_last",
        "model = model.to(memory_format=torch.channels_last)\n"
        'with torch.autocast("cuda", torch.bfloat16):\n'
        "    y = model(images.to(memory_format=torch.channels_last))",
        "BF16 keeps 7 bits of the mantissa: the loss must still converge.",
    ),
    Advice(
        "NSX117",
        "channels_last",
        "model = model.to(memory_format=torch.channels_last)\ny = model(images.to(memory_format=torch.channels_last))",
        "Every layer between must keep the layout.",
    ),
    Advice(
        "NSX118",
        "scaled_dot_product_attention",
        "y = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        "The scores themselves must not be needed.",
    ),
    Advice(
        "NSX120",
        "fixed shape",
        "loss = F.cross_entropy(logits, target, ignore_index=IGNORE)\n"
        "# or: loss = (per_pixel * keep).sum() / keep.sum()",
        "What is masked must be cheap enough to compute and throw away.",
    ),
)


def add(finding: Finding, *, torch: bool = True) -> Finding:
    """Return a finding with the code and the condition of what it advises, none where there is nothing to paste.

    All code is PyTorch's: a program without it gets none.
    """
    if finding.verdict != "found":
        return finding
    advice = next((a for a in _ALL if a.code == finding.code and a.words in finding.fix), None)
    return replace(
        finding, paste=advice.paste if advice and torch else "", condition=advice.condition if advice else ""
    )

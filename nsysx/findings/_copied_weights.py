"""Copies of the weights that go to the host, or come from there, in the steps: averages, snapshots or an optimizer kept on the CPU.

The probe knows how many parameters there are and how many bytes they have: copies of as many tensors with as many bytes are theirs.
Where it is not known, the line says it. Gradients and the state of an optimizer have the sizes of the weights, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import polars as pl

from nsysx.analyses import lines
from nsysx.analyses.helpers import limits_of_work
from nsysx.events.profile import NotRecorded
from nsysx.events.recorded_settings import settings_of
from nsysx.findings import _line_remedies
from nsysx.findings._case import Case, Fix
from nsysx.findings._finding_bounds import BYTES_OF_BUFFERS_SHARE, FEWEST_WEIGHT_COPIES, UPDATE_PASSES
from nsysx.findings._made_there import makes_on_gpu
from nsysx.model import Row
from nsysx.records import count_or_zero

ON_GPU = Fix.by_name("weights-on-gpu")
#: Weights that are split over the ranks, gathered for what is kept of them.
_GATHERED = re.compile(r"\.full_tensor\(|\bDTensor\b")
_OF_SHARDS = (
    "averages = [p.detach().to_local().clone() for p in model.parameters()]  # once, on each rank: its own shards\n"
    "torch._foreach_lerp_(averages, [p.detach().to_local() for p in model.parameters()], 1 - decay)"
)
#: Advice for lines that only look at the weights: nothing of them is kept.
_ONLY_SEEN = (_line_remedies.SAVED, Fix.by_name("histograms-rarely"))
#: What a line calls weights, their gradients and what is kept of them.
_WEIGHTS = re.compile(
    r"\b(named_)?parameters\(\)|\bstate_dict\(|(?<!autograd)\.grad\b|\b(ema|shadow|swa|teacher|averages?|avg)\w*\b"
)
#: What takes a tensor to the CPU.
_TO_CPU = re.compile(r"\.cpu\(|\.to\(\s*[\"']cpu")
#: What draws numbers: noise has the sizes of the weights, and is none of them.
_DRAWS = re.compile(
    r"\brand(n|int)?(_like)?\(|\b(torch|np|numpy)\.normal\(|\b(rng|random)\.\w*normal\(|\.(normal|uniform|bernoulli)_\("
)
_DRAWN = Fix.by_name(
    "made-on-gpu",
    text="Draw this noise on the GPU, with a generator of that device: the CPU draws number after number, whatever threads it has, and "
    "each tensor is copied",
    paste="generator = torch.Generator(device=p.device).manual_seed(seed)  # once: alike on all ranks with GPUs of one kind\n"
    "noise = torch.randn(p.shape, generator=generator, device=p.device)",
    condition="The seed gives other numbers than on the CPU.",
)
_SIZES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def of_weights(case: Case, count: int, moved: int, text: str = "") -> bool:
    """Return whether so many copies, of so many bytes together, are those of the weights; ``text``: the line that makes them."""
    if count < FEWEST_WEIGHT_COPIES or _line_remedies.fix_of(_line_remedies.Seen(text)) in _ONLY_SEEN:
        return False
    sizes = list(_weights(case))
    if not sizes:
        return count >= FEWEST_WEIGHT_COPIES * case.steps and _WEIGHTS.search(text) is not None
    return any(_all_of(count / case.steps, moved / case.steps, *each) for each in sizes)


def kept_on_cpu(text: str) -> bool:
    """Return whether a line takes to the CPU, by its text, what it calls weights or what is kept of them."""
    return _WEIGHTS.search(text) is not None and _TO_CPU.search(text) is not None


def on_gpu(texts: Iterable[str], text: str, of_shards: str) -> Fix:
    """Return the advice to keep on the GPU what is kept of the weights, in these words; ``of_shards``: those for weights that these
    lines (``texts``) gather from the ranks.
    """
    if not any(map(_GATHERED.search, texts)):
        return ON_GPU.but(text=text)
    condition = "Each rank keeps a copy of its own shards; they are gathered (full_tensor) only where they are saved or evaluated."
    return ON_GPU.but(text=of_shards, paste=_OF_SHARDS, condition=condition)


def _all_of(count: float, moved: float, parameters: int, size: int) -> bool:
    """Return whether the copies of a step, with so many bytes, are those of all parameters, once or twice."""
    times = round(moved / size)
    if times not in (1, 2) or abs(moved - times * size) > BYTES_OF_BUFFERS_SHARE * times * size:
        return False
    return parameters <= 2 * (count / times) <= 4 * parameters


def _weights(case: Case) -> Iterator[tuple[int, int]]:
    """Yield parameters and bytes of each network, of all of them, and of each optimizer."""
    settings = settings_of(case.profile)
    if settings is None:
        return
    each = [(count_or_zero(row.get("parameters")), _bytes(row)) for row in settings.rows("networks") or ()]
    each += [(sum(count for count, _ in each), sum(size for _, size in each))]
    each += [
        (count_or_zero(r.get("parameters")), 4 * count_or_zero(r.get("elements")))
        for r in settings.rows("optimizers") or ()
    ]
    yield from ((count, size) for count, size in dict.fromkeys(each) if count and size)


def _bytes(network: Row) -> int:
    kinds = network.get("dtypes")
    return (
        sum(_SIZES.get(str(kind), 1) * count_or_zero(n) for kind, n in kinds.items()) if isinstance(kinds, dict) else 0
    )


def made_on_gpu(
    case: Case, line: tuple[str | None, int | None], fix: Fix, calls: pl.Series, *, looping: bool
) -> Fix | None:
    """Return the advice for a line (file, number) whose text makes data that may be made on the GPU, as ``fix`` says; ``calls``: its own.

    A line that launches kernels and copies nothing from the host makes it there, whatever its text says: where it does so in a loop, one
    operation for all rounds is left to be told. A line of a function that draws numbers on the CPU has words of its own.
    """
    if makes_on_gpu(case, calls):
        return _line_remedies.BATCHED if looping else None
    return drawn(case, *line) or fix


def drawn(case: Case, file: str | None, line: int | None) -> Fix | None:
    """Return the advice for a line of a function that draws numbers on the CPU which are copied to the GPU, None for others."""
    rows = case.typed_rows(lines.ROWS)
    function = next((row["function"] for row in rows if (row["file"], row["line"]) == (file, line)), None)
    return _DRAWN if (file, function) in _drawing(case) else None


def _drawing(case: Case) -> frozenset[tuple[str | None, str]]:
    """Return the functions, by file and name, with a line that draws numbers and launches nothing."""
    drawing = (r for r in case.typed_rows(lines.ROWS) if not r["launches"] and _DRAWS.search(str(r["text"] or "")))
    return frozenset((row["file"], row["function"]) for row in drawing)


def functions(case: Case) -> frozenset[tuple[str | None, str]]:
    """Return the functions, by file and name, with a line that copies weights; none where lines were not noted."""
    copying = (
        (row["file"], row["function"])
        for row in case.typed_rows(lines.ROWS)
        if of_weights(case, row["copies"], row["copy_bytes"], str(row["text"] or ""))
    )
    return frozenset(copying) - _drawing(case)


def update_ns(case: Case, moved: int) -> float:
    """Return what the GPU needs to do with so many bytes of weights what the CPU does (ns), 0 where the rate of its memory is not known."""
    try:
        rates = case.profile.once(limits_of_work.device_rates)
    except NotRecorded:
        return 0.0
    return rates.memory_ns(UPDATE_PASSES * moved) or 0.0

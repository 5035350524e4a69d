"""What the GPU works on in the steady steps, in the words of one sentence."""

from __future__ import annotations

import re
from functools import cache

import polars as pl

from nsysx import units
from nsysx.events.profile import Profile
from nsysx.frames import lookup

#: Modules are named when the largest has this share of the GPU's work; a second one from the lower share on.
_FIRST, _MODULE = 1 / 3, 0.2
#: A kind of work is named from this share of all work on; as that of a module, when it is half of the module's.
_KIND, _MOST = 0.1, 0.5

#: Kinds of work, in words; a family that is not here is named as it is called.
WORDS = {
    "gemm": "matrix products",
    "convolution": "convolutions",
    "attention": "attention",
    "elementwise": "elementwise kernels",
    "norm": "normalization",
    "reduction": "reductions",
    "sort, scan and gather": "sorting and indexing",
    "softmax and loss": "softmax and loss",
    "optimizer": "optimizer kernels",
    "communication": "communication",
    "embedding": "embeddings",
    "random": "random numbers",
    "copy": "copies inside the GPU",
    "memcpy": "copies",
    "graph": "CUDA graphs whose kernels were not recorded",
}
#: Families that say nothing to a reader.
_UNKNOWN = ("other",)


@cache
def folded(name: str) -> str:
    """Return a name with the numbers in it as one: blocks.3.mlp and blocks.4.mlp are blocks.*.mlp, token_7 is token_*."""
    return re.sub(r"\d+", "*", re.sub(r"(?<=[A-Za-z])\d+(?=[A-Za-z])", "#", name)).replace("#", "*")


def _work(profile: Profile, process: int, device: int) -> pl.DataFrame:
    """Return the kernels, copies and memsets of the steady steps: family, module (folded), own (its number), op_kind, name, ns."""
    ops = profile.steady_ops
    ops = ops.filter((ops["process"] == process) & (ops["device"] == device))
    return ops.select(
        pl.col("family").cast(pl.String),
        lookup.changed(ops["module"], folded).cast(pl.String).alias("module"),
        pl.col("module").to_physical().alias("own"),
        "op_kind",
        pl.col("name").cast(pl.String),
        ns=pl.col("end_ns") - pl.col("start_ns"),
    )


def kernels(profile: Profile, process: int, device: int) -> tuple[int, float | None]:
    """Return how many kernels the steady steps run on a device, and the median length of one (ns)."""
    work = _work(profile, process, device)
    kernel_ns = work.filter(work["op_kind"] == "kernel")["ns"]
    median = kernel_ns.median()
    return len(kernel_ns), float(median) if isinstance(median, (int, float)) else None


def most(profile: Profile, process: int, device: int) -> str:
    """Return a sentence on what most of the work is: of which modules, or of which kinds. "" where there is none."""
    work = _work(profile, process, device)
    whole = int(work["ns"].sum())
    if not whole:
        return ""
    sums = _sums(work.drop_nulls("module"), "module")
    # What lies outside of modules is none, a root is all of them, and a name of numbers alone says nothing.
    no_path = {folded(name) for name in profile.attributed.without_path}
    modules = [(m, ns) for m, ns in sums if m not in no_path and re.search("[A-Za-z]", m)]
    if modules and modules[0][1] >= _FIRST * whole:
        said = []
        for name, ns in modules[:2]:
            if ns >= _MODULE * whole:
                of_module = work.filter(pl.col("module") == name)
                count, kind = of_module["own"].n_unique(), _kind(of_module)
                more = [f"{count} modules"] * (count > 1) + [f"most of it {kind}"] * bool(kind)
                said.append(f"{units.share(ns, whole)} is {name[:80]}" + (f" ({', '.join(more)})" if more else ""))
        return f"Of its work, {' and '.join(said)}."
    kinds = [(WORDS.get(f, f), t) for f, t in _sums(work, "family") if f not in _UNKNOWN and t >= _KIND * whole][:3]
    if kinds:
        return f"Of its work, {', '.join(f'{units.share(t, whole)} is {f}' for f, t in kinds)}."
    kernels = _sums(work.filter(pl.col("op_kind") == "kernel"), "name")
    if not kernels or kernels[0][1] < _KIND * whole:
        return ""
    name = re.sub(r"^void |[<(].*", "", kernels[0][0])[:60]
    return f"Of its work, {units.share(kernels[0][1], whole)} is the kernel {name}."


def _kind(work: pl.DataFrame) -> str:
    whole = int(work["ns"].sum())
    family, ns = _sums(work, "family")[0]
    return WORDS.get(family, family) if ns >= _MOST * whole and family not in _UNKNOWN else ""


def _sums(work: pl.DataFrame, column: str) -> list[tuple[str, int]]:
    grouped = work.group_by(column).agg(pl.col("ns").sum())
    return list(grouped.sort("ns", column, descending=[True, False]).select(column, "ns").iter_rows())

"""What exactly a pasted change alters, as edits of the replay: what lies beside a compiled module stays as it is."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from nsysx.findings._case import Case, Fix, Saving, calls_of, ops_of
from nsysx.findings._once import calls_that_launch
from nsysx.findings.nsx112_fusion import chains_of, of_networks
from nsysx.findings.nsx113_tiny_launches import recurrent
from nsysx.replay.engine import Edit, Fuse, Graph, RemoveOps

#: What a wrapper of ranks wraps may gain nothing: a compiled backward hands over all gradients at its end, so their reductions run
#: beside nothing. Tried on a ViT of 2,457 launches on two H200: 114 ms in place of 91 (116 ms with the wrapper compiled, too).
_WRAPPED = "compile-wrapped"
#: Remedies that put the launches of a compiled module into CUDA graphs, and those that only fuse its kernels.
_GRAPHED, _COMPILED = ("compile-reduce-overhead",), ("compile", "compile-dynamic", _WRAPPED, "compile-blocks")


def edits_of_paste(case: Case, fix: Fix, kept: frozenset[int]) -> tuple[Edit, ...]:
    """Return the edits that the first remedy of a fix makes, none where they are not known; ``kept`` calls are in no graph.

    A compiled module has fused kernels, and with CUDA graphs one launch for those of its forward, and one for those of its backward.
    The loss, the optimizer and what Python does between stay, and so do recurrent layers of cuDNN. A fused optimizer makes one launch.
    """
    names = fix.ways[0].name.split(",") if fix.ways else []
    inside = case.replayed.filter(pl.Series(of_networks(case.profile, case.replayed), dtype=pl.Boolean))
    inside = inside.filter(~inside["module"].cast(pl.String).is_in(list(recurrent(case))).fill_null(value=False))
    edits: list[Edit] = []
    if inside.height and not {*names}.isdisjoint((*_GRAPHED, *_COMPILED)):
        fusible = case.profile.once(chains_of)
        extra = ops_of(fusible.filter(~fusible["longest"])) if not case.program.compiled else frozenset()
        edits += [RemoveOps(extra)] if extra else []
        if not {*names}.isdisjoint(_GRAPHED):
            edits.append(Graph(calls_of(inside) - kept, by="compiled"))
        elif fusible.height:
            edits.append(Fuse(calls_that_launch(case.ops, fusible["op"])))
    if edits and "fused" in names:
        calls = case.replayed.filter(case.replayed["phase"].cast(pl.String).eq_missing(pl.lit("optimizer")))
        edits += [Fuse(calls_of(calls))] if calls.height else []
    return tuple(edits)


def likely(case: Case, fix: Fix, whole: Saving, kept: frozenset[int], *before: Edit) -> Saving:
    """Return a saving at best (``whole``) whose likely one is that of exactly what is pasted, where a replay can say it.

    ``before``: what has to be mended first, a part of the same saving.
    """
    edits = edits_of_paste(case, fix, kept)
    exact = case.worth(*before, *edits) if edits and whole.likely_ns is not None else Saving()
    worth = whole
    if whole.likely_ns is not None and exact.likely_ns is not None:
        most = max(whole.most_ns or whole.likely_ns, whole.likely_ns)
        worth = replace(whole, likely_ns=min(exact.likely_ns, most), most_ns=most, error_ns=exact.error_ns)
    if worth.likely_ns is not None and fix.ways and _WRAPPED in fix.ways[0].parts:
        return replace(worth, error_ns=max(worth.error_ns or 0, worth.likely_ns))
    return worth

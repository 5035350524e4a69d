"""Attention of a chunk of queries over more keys, which is given what each query may see as a mask: the causal one of a later place.

Ranks that gather the keys and values of a sequence of which each has a chunk, and a prefill by chunks, write it like that, because
is_causal=True aligns queries and keys at their beginning. The kernel then computes all scores, those of keys behind the chunk, too.
Keys that no query sees can be cut off, and a causal mask that is aligned at the end needs no tensor. Ranks have unlike shares of the
scores then: each of them is given a chunk of the beginning and one of the end.
"""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.analyses.helpers import operator_work
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._empty_masks import Content, contents, mask_of
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._rank_rows import rank_rows
from nsysx.findings._work_bounds import CAUSAL_SCORES_LEFT, SHORTEST_ATTENTION
from nsysx.model import Finding
from nsysx.replay.edits import ScaleOps


class _Chunk(NamedTuple):
    """A mask of so many queries and keys, of which the first query sees ``first``, and each one more."""

    queries: int
    keys: int
    first: int

    @property
    def needed(self) -> float:
        """The share of the scores that is not masked."""
        return (self.first + (self.queries - 1) / 2) / self.keys

    @property
    def begins_behind_chunks(self) -> bool:
        """Whether as many keys are before it as some chunks have."""
        return (self.first - 1) % self.queries == 0


def findings(case: Case, rule: Rule, fused: pl.DataFrame) -> list[Finding]:
    """Return one finding where attention with such masks takes 1 % of the step or more; ``fused``: of the numbered operators."""
    seen = {mask: content for mask, content in contents(case).items() if _is_chunk(mask, content)}
    if not seen:
        return []
    kinds = fused.select("shapes").unique()
    given = [mask_of(shapes, seen) for shapes in kinds["shapes"]]
    kinds = kinds.with_columns(pl.Series("queries", [mask and mask[-2] for mask in given], dtype=pl.Int64))
    ops = operator_work.work_of(
        case.profile, fused.join(kinds.drop_nulls(), on="shapes", how="inner"), "shapes", "queries"
    )
    taken = case.per_step(int(ops["ns"].sum()))
    masks = [mask for mask in given if mask is not None]
    if not masks or not case.notable(taken):
        return []
    longest = max(masks, key=lambda mask: mask[-1])
    chunk = _Chunk(longest[-2], longest[-1], seen[longest].first or 0)
    several = len(rank_rows(case)) > 1 and chunk.begins_behind_chunks
    # The ranks wait for the one with the last chunk, which needs nearly all: what each needs once all have as much is what all need.
    left = CAUSAL_SCORES_LEFT if several else chunk.needed
    worth = case.worth(ScaleOps(ops_of(ops), left, less_work=True), cause=rule.cause)
    title = (
        f"Attention of a chunk computes all scores and masks {units.share(1 - chunk.needed, 1)}: "
        f"{units.duration(taken)} {case.per}"
    )
    detail = (
        f"Fused attention takes {case.share(taken)} of the step and is given a mask of {chunk.queries} x {chunk.keys}: the first query "
        f"sees {units.several(chunk.first, 'key')}, each one more than the one before. FlashAttention takes no mask as a tensor."
    )
    if several:
        detail += " The rank with the last chunk needs nearly all scores: the saving is that of chunks dealt so that each needs half."
    return [
        Found(
            rule, title, detail, worth=worth, cost_ns=taken, fix=_fix(chunk, several=several), takes=Takes(ops_of(ops)),
            where={"near": "attention"},
        ).as_finding(case)
    ]  # fmt: skip


def _is_chunk(mask: tuple[int, ...], content: Content) -> bool:
    return content.first is not None and len(mask) > 1 and mask[-2] >= SHORTEST_ATTENTION


def _fix(chunk: _Chunk, *, several: bool) -> Fix:
    last = chunk.first + chunk.queries - 1
    seen = (
        "k.size(-2)"
        if last == chunk.keys
        else f"{chunk.first - 1} + q.size(-2)  # the place of the first query, and all queries"
    )
    if several:
        seen = "(rank + 1) * q.size(-2)  # of contiguous chunks: what this rank's queries may see"
    lines = [
        "from torch.nn.attention.bias import causal_lower_right",
        f"n = {seen}",
        "y = F.scaled_dot_product_attention(q, k[..., :n, :], v[..., :n, :], attn_mask=causal_lower_right(q.size(-2), n))",
    ]
    text = (
        "Cut off the keys that no query sees, and give the causal mask that is aligned at the end (causal_lower_right), no tensor. "
        "is_causal=True aligns at the beginning: another result"
    )
    if several:
        lines.append(
            "ids = torch.cat([c[rank], c[2 * world - 1 - rank]], 1)  # c = all_ids.chunk(2 * world, 1); one call for each of the two"
        )
        text += ". Give each rank a chunk of the beginning and one of the end, so that all have as many scores"
    return Fix.by_name("causal-of-chunk", text=text, paste="\n".join(lines))

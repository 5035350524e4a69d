"""What the device's limits leave to gain for work that stays as it is: the same operations on the same bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import polars as pl

from nsysx.analyses.helpers import limits_of_work
from nsysx.events.profile import NotRecorded, Profile
from nsysx.findings._finding_bounds import NEAR_ROOF_SHARE
from nsysx.frames import lookup
from nsysx.replay.engine import Edit, ScaleOps


def within_roofs(profile: Profile, edits: Sequence[Edit]) -> tuple[Edit, ...]:
    """Return edits in which no kernel that is near its roof gets past it, unless they leave less work."""
    return tuple(part for edit in edits for part in _parts(profile, edit))


def _parts(profile: Profile, edit: Edit) -> Iterator[Edit]:
    if not isinstance(edit, ScaleOps) or edit.less_work:
        yield edit
        return
    near = {ops & edit.ops: share for share, ops in profile.once(_near_roofs) if ops & edit.ops and share > edit.factor}
    left = edit.ops - frozenset[int]().union(*near)
    yield from (replace(edit, ops=ops, factor=share) for ops, share in near.items())
    if left:
        yield replace(edit, ops=left)


def _near_roofs(profile: Profile) -> list[tuple[float, frozenset[int]]]:
    """Return the share of its roof that each kernel near it reaches, with its GPU ops; empty where no limits are known."""
    try:
        done = profile.once(limits_of_work.executions).filter(pl.col("limit_ns").is_not_null())
    except NotRecorded:
        return []
    reached = done.group_by("kernel").agg(share=pl.col("limit_ns").sum() / pl.col("gpu_ns").sum())
    near = reached.filter(reached["share"] >= NEAR_ROOF_SHARE)
    ops = profile.steady_ops.select("op", kernel=lookup.text(profile.steady_ops["name"]))
    ops = ops.join(near, on="kernel", how="inner")
    held = ops.group_by("kernel", maintain_order=True).agg("op", pl.col("share").first())
    return [(share, frozenset(op)) for op, share in held["op", "share"].iter_rows()]

"""What even shares of attention save: a rank's parts are calls of their own, and keys before them ask for another kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nsysx.findings._finding_bounds import MOST_SHARE
from nsysx.judging.judging_bounds import UNEVEN_CUT_SHARE
from nsysx.model import Row
from nsysx.saving import Saving


def in_parts(saving: Saving, late: Row, rows: Sequence[Row]) -> Saving:
    """Return what even shares of attention save where each rank's is cut in parts, which are calls of their own with fewer rows each.

    Tried on two jobs of two H100s with zigzag: 75 and 78 % of what the same kernels would save, evenly spread. ``saving``: that.
    """
    even_ns, same = saving.likely_ns or 0, _of_same_kernels_ns(late, rows)
    spread = even_ns if same is None else min(even_ns, same)
    lost = round(UNEVEN_CUT_SHARE * spread)
    why = f"{saving.confidence}; a rank's parts are attention calls of their own"
    if spread < even_ns:
        why += f", most of them with the slower kernels of rank {late['rank']}"
    return replace(saving, likely_ns=spread - lost, confidence=why, error_ns=lost, most_ns=even_ns)


def _of_same_kernels_ns(late: Row, rows: Sequence[Row]) -> int | None:
    """Return what even shares save if all attention runs in the kernels of the late rank (ns a step); None where others run them, too.

    A stretch behind others has keys before its own, and a mask that is not square: not all kernels take one. The first rank's stretch has
    none, and those of even shares nearly all have. Of n stretches of a causal sequence the last one computes 2n - 1 parts of n x n.
    """
    kind: Row = (late["late_work"] or ({},))[0]
    ranks = len(rows)
    last = late["rank"] == max(row["rank"] for row in rows)
    alone_ns = sum(each["ns"] for each in late["late_kernels"] or () if not each["others_count"])
    if kind.get("kind") != "attention" or not last or alone_ns < MOST_SHARE * kind["ns"]:
        return None
    kind_ns: int = kind["ns"]
    return round(kind_ns * (ranks - 1) / (2 * ranks - 1))

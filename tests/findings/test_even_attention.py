"""NSX111: what even shares of attention save where the late rank's kernels are others than those of its peers."""

from __future__ import annotations

import pytest

from nsysx.findings._even_attention import in_parts
from nsysx.model import Row
from nsysx.saving import Saving


def rank(number: int, **more: object) -> Row:
    return {"rank": number, "late_work": None, "late_kernels": None, **more}


@pytest.mark.parametrize(
    ("late", "kind", "others_count", "even", "likely"),
    [
        (
            1,
            "attention",
            0.0,
            35,
            24,
        ),  # all of 90 ms are in kernels of its own: 90 / 3 go, and a fifth of that does not
        (1, "attention", 12.0, 35, 28),  # the same kernels on both: what was replayed
        (0, "attention", 0.0, 35, 28),  # of stretches of one sequence the last has most: these are others
        (1, "gemm", 0.0, 35, 28),
        (1, "attention", 0.0, 20, 16),  # kernels that are no slower
    ],
)
def test_a_mask_that_is_not_square_keeps_its_kernels_in_even_shares(
    late: int, kind: str, others_count: float, even: int, likely: int
) -> None:
    kernels = [{"kernel": "flash_bwd", "ns": 90, "others_count": others_count}]
    row = rank(late, late_work=[{"kind": kind, "ns": 90}], late_kernels=kernels)
    saving = in_parts(Saving(even, "replayed", source="replay"), row, [row, rank(1 - late)])
    assert (saving.likely_ns, saving.most_ns) == (likely, even)
    assert ("slower kernels" in saving.confidence) == (likely == 24)

"""NSX133: fused attention that is given a mask of all queries and keys, by the shapes that its operator shows."""

from __future__ import annotations

import json

import pytest

from nsysx.findings.nsx133_fixed_mask import fixed_mask

Q = [8, 16, 2048, 64]


@pytest.mark.parametrize(
    ("mask", "stored", "length"),
    [
        ([1, 1, 2048, 2048], [1, 1, 2048, 2048], 2048),
        ([8, 16, 2048, 2048], [1, 1, 2048, 2048], 2048),  # expanded
        ([8, 16, 2048, 2048], [2048, 2048], 2048),
        ([8, 1, 2048, 2048], [8, 1, 2048, 2048], None),  # each sequence has its own
        ([8, 16, 2048, 2048], [8, 1, 1, 2048], None),  # of keys alone: padding
        ([], [], None),
    ],
)
def test_a_mask_is_fixed_where_no_sequence_and_no_head_has_its_own(
    mask: list[int], stored: list[int], length: int | None
) -> None:
    shapes, read = json.dumps([Q, Q, Q, mask, []]), json.dumps([Q, Q, Q, stored, []])
    assert fixed_mask(shapes, read) == length
    if mask == stored:
        assert fixed_mask(shapes, None) == length
    # The gradient is given it behind the results.
    assert (
        fixed_mask(
            json.dumps([Q, Q, Q, Q, Q, [8, 16, 2048, 1], mask]), json.dumps([Q, Q, Q, Q, Q, [8, 16, 2048, 1], stored])
        )
        == length
    )


def test_short_sequences_and_odd_sizes_are_none() -> None:
    short = [8, 16, 64, 64]
    assert fixed_mask(json.dumps([short, short, short, [64, 64]]), None) is None
    assert fixed_mask(None, None) is None and fixed_mask("[]", "[]") is None
    cross = [8, 16, 300, 64]
    assert fixed_mask(json.dumps([Q, cross, cross, [2048, 300]]), None) is None, "keys of another length"

"""What of a mask is padding: which of its two values, and on which side."""

from __future__ import annotations

import pytest
import torch
from nsysx_probe import batch_padding

LENGTH = 96
#: Frames of a bucket, filled up to a multiple; texts of a batch, one of them as long as all rows; texts filled up to a fixed length.
ALIKE, MIXED, SHORT = [93, 94, 95, 92, 93, 90], [96, 20, 30, 40, 50, 60], [40, 30, 70, 22]


def rows(lengths: list[int]) -> torch.Tensor:
    """Return a mask that is set where these rows are real."""
    return torch.arange(LENGTH)[None] < torch.tensor(lengths)[:, None]


@pytest.mark.parametrize("name", ["valid", "mask", "attention_mask", "pad_mask", "key_padding_mask", "skipped"])
@pytest.mark.parametrize("lengths", [ALIKE, [96, 96, 96, 96, 50, 96], [96] * 6])
def test_rows_with_hardly_any_padding_have_no_long_one_on_their_other_side(name: str, lengths: list[int]) -> None:
    """What rows begin with is no padding of a batch whose rows are nearly full, whichever value that is."""
    mask = rows(lengths) if name in {"valid", "mask", "attention_mask"} else ~rows(lengths)
    for same in (mask, mask.long()) if "mask" in name else (mask,):
        found = batch_padding.padding(torch, {name: same})
        assert found is None or found["real"] == sum(lengths)


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        ("valid", rows(MIXED)),
        ("attention_mask", rows(MIXED).long()),
        ("attention_mask", rows(MIXED).long().flip(1)),
        ("mask", ~rows(MIXED)),
        ("mask", torch.where(rows(MIXED), 0.0, -1e9)),
        ("pad_mask", ~rows(MIXED)),
        ("pad_mask", ~rows(MIXED).flip(1)),
        ("padding_mask", rows(MIXED)),
        ("skipped", ~rows(MIXED)),
    ],
)
def test_a_mask_keeps_what_each_row_has_some_of(name: str, mask: torch.Tensor) -> None:
    found = batch_padding.padding(torch, {name: mask})
    assert found is not None and (found["longest"], found["real"]) == (96, sum(MIXED))


@pytest.mark.parametrize(
    ("name", "mask", "told"),
    [
        ("valid", rows(SHORT), True),
        ("valid", rows(SHORT).flip(1), False),
        ("attention_mask", rows(SHORT).flip(1), True),
        ("pad_mask", ~rows(SHORT), True),
        ("padding_mask", rows(SHORT), False),
        ("skipped", ~rows(SHORT), False),
        ("dones", rows([1, 0, 0, 0]), False),
    ],
)
def test_what_does_not_tell_which_of_its_values_is_padding_tells_nothing(
    name: str, mask: torch.Tensor, told: bool
) -> None:
    found = batch_padding.padding(torch, {name: mask})
    assert (found and (found["longest"], found["real"])) == ((70, sum(SHORT)) if told else None)

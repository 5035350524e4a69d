"""NSX133: fused attention that is given a mask of all queries and keys, by the shapes that its operator shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nsysx.findings.nsx133_fixed_mask import fixed_mask
from tests.analyses.test_operators import GEMM, Torch, summary
from tests.findings import Program

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


def masked(mask: str) -> Callable[[Program, int], None]:
    """Return a step of attention for 600 us and a product for 400 us, with the mask's sizes."""

    def body(program: Program, number: int) -> None:
        assert isinstance(program, Torch)
        with program.range("forward"), program.range("net:Net"):
            with program.op("aten::_scaled_dot_product_cudnn_attention", f"[{Q}, {Q}, {Q}, {mask}, [], []]"):
                program.launch(600, "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_26")
            with program.op("aten::addmm", "[[4096], [4096, 4096], [4096, 4096], [], []]"):
                program.launch(400, GEMM)

    return body


def test_half_of_the_masked_work_is_what_could_go(tmp_path: Path) -> None:
    found = summary(Torch().steps(masked("[1, 1, 2048, 2048]")), tmp_path)
    (one,) = (f for f in found.findings or () if f.code == "NSX133")
    assert (one.verdict, one.cost_ns_per_step) == ("found", 600_000)
    assert one.saving.likely_ns == pytest.approx(300_000, rel=0.1)
    assert "is_causal=True" in (one.fix or "") and "2048 x 2048" in one.detail


@pytest.mark.parametrize("mask", ["[]", "[8, 1, 1, 2048]"])
def test_without_such_a_mask_it_is_clear(mask: str, tmp_path: Path) -> None:
    found = summary(Torch().steps(masked(mask)), tmp_path)
    assert [f.verdict for f in found.findings or () if f.code == "NSX133"] == ["clear"]

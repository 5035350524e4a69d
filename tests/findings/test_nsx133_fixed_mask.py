"""NSX133: fused attention that is given a mask of all queries and keys, by the shapes that its operator shows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from nsysx.findings import _chunk_masks
from nsysx.findings.nsx133_fixed_mask import fixed_mask
from nsysx.inject.nsysx_probe import attention_masks
from nsysx.model import Finding
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


def test_half_of_the_masked_work_goes_and_what_the_mask_slows_down(tmp_path: Path) -> None:
    found = summary(Torch().steps(masked("[1, 1, 2048, 2048]")), tmp_path)
    (one,) = (f for f in found.findings or () if f.code == "NSX133")
    assert (one.verdict, one.cost_ns_per_step) == ("found", 600_000)
    assert one.saving.likely_ns is not None and one.saving.most_ns is not None
    assert (
        300_000 < one.saving.likely_ns <= one.saving.most_ns
    )  # attention without a mask is faster than these kernels are
    assert "is_causal=True" in (one.fix or "") and "2048 x 2048" in one.detail


@pytest.mark.parametrize("mask", ["[]", "[8, 1, 1, 2048]"])
def test_without_such_a_mask_it_is_clear(mask: str, tmp_path: Path) -> None:
    found = summary(Torch().steps(masked(mask)), tmp_path)
    assert [f.verdict for f in found.findings or () if f.code == "NSX133"] == ["clear"]


EACH = [8, 1, 2048, 2048]  # each sequence has a mask of its own
CONVERTED = "elementwise_kernel<where_kernel_impl>"


def given(mask: list[int], kernel: str = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_26") -> Any:
    """Return a step of attention for 1,600 us, whose mask takes 100 us to be converted, and a product at 916 TFLOP/s."""

    def body(program: Program, number: int) -> None:
        assert isinstance(program, Torch)
        with program.range("forward"), program.range("net:Net"):
            with program.op("aten::scaled_dot_product_attention", f"[{Q}, {Q}, {Q}, {mask}, [], []]"):
                with program.op("aten::where", f"[{mask}, [], []]"):
                    program.launch(100, CONVERTED)
                with program.op("aten::_scaled_dot_product_cudnn_attention", f"[{Q}, {Q}, {Q}, {mask}, [], []]"):
                    program.launch(1600, kernel)
            with program.op("aten::addmm", "[[4096], [4096, 4096], [4096, 4096], [], []]"):
                program.launch(150, GEMM)

    return body


def told(folder: Path, body: Any, *masks: dict[str, Any]) -> list[Finding]:
    """Return what the rule says of a program in whose masks the probe has seen this."""
    record = {"pid": 100, "backend": "nvtx", "ranges": {}, "ranges_pushed": 1, "settings": {"masks": list(masks)}}
    (folder / "r.run.json").write_text(json.dumps({"probe": [record]}))
    return Torch().steps(body).findings(folder, "NSX133")


def seen(holds: str, shape: list[int] = EACH, masked: float = 0.0) -> dict[str, Any]:
    return {"shape": shape, "tensors": 1, "looked": 1, "holds": holds, "masked": masked}


def test_a_mask_that_masks_nothing_is_told_with_what_the_fast_kernel_takes(tmp_path: Path) -> None:
    (one,) = told(tmp_path, given(EACH), seen("nothing"))
    assert (one.verdict, one.cost_ns_per_step) == ("found", 1_700_000), "with what makes the mask ready"
    assert "no attn_mask" in (one.paste or "") and "8 x 1 x 2048 x 2048" in one.detail and "100 us" in one.detail
    worth, operations, rate = one.saving, 4 * math.prod(Q) * Q[2], 2 * 4096**3 / 150e-6
    likely, least, most = (
        1_700_000 - min(1_600_000, operations / rate / (0.52 / (1 + 256 / 2048)) / times * 1e9)
        for times in (1, 0.75, 1.3)
    )
    assert worth.likely_ns == pytest.approx(likely, rel=0.05)
    assert worth.likely_ns - (worth.error_ns or 0) == pytest.approx(least, rel=0.1)
    assert worth.most_ns == pytest.approx(most, rel=0.1)
    assert "of the rate of products" in worth.confidence


def test_an_empty_mask_of_all_sequences_is_no_causal_one(tmp_path: Path) -> None:
    shape = [1, 1, 2048, 2048]
    (one,) = told(tmp_path, given(shape), seen("nothing", shape))
    assert "no attn_mask" in (one.paste or "") and "causal" not in one.detail


@pytest.mark.parametrize(
    ("shape", "masks"),
    [
        (EACH, ()),  # the probe has looked at none
        (EACH, (seen("other", masked=0.01),)),
        (EACH, ({"shape": EACH, "tensors": 1, "looked": 0},)),
        (EACH, (seen("nothing", [8, 1, 1, 2048]),)),  # that of another call
        ([], (seen("nothing"),)),
        ([1, 1, 2048, 2048], (seen("other", [1, 1, 2048, 2048], 0.1),)),  # little could be left out
    ],
)
def test_a_mask_that_is_not_seen_to_be_empty_is_none(shape: list[int], masks: Any, tmp_path: Path) -> None:
    assert [f.verdict for f in told(tmp_path, given(shape), *masks)] == ["clear"]


def test_without_16_bits_what_the_fast_kernel_takes_is_not_known(tmp_path: Path) -> None:
    (one,) = told(tmp_path, given(EACH, "fmha_cutlassF_f32_aligned_64x64_rf_sm80(Params)"), seen("nothing"))
    assert one.verdict == "found" and one.saving.likely_ns is None


def test_a_mask_is_causal_by_what_it_holds(tmp_path: Path) -> None:
    """Also where each sequence has one of its own."""
    (one,) = told(tmp_path, given(EACH), seen("causal", masked=0.4998))
    assert "which is the causal one" in one.detail and "If" not in one.detail and "is_causal=True" in (one.fix or "")
    shape = [1, 1, 2048, 2048]
    (window,) = told(tmp_path, given(shape), seen("other", shape, 0.9))
    assert "90 % of the scores are computed and masked" in window.detail and "causal one" not in window.detail


CHUNK, OF_ALL = [8, 16, 512, 64], [8, 16, 2048, 64]


def chunk(mask: list[int]) -> Any:
    """Return a step of attention of 512 queries over 2048 keys for 1,600 us, and a product for 400 us."""

    def body(program: Program, number: int) -> None:
        assert isinstance(program, Torch)
        with program.range("forward"), program.range("net:Net"):
            sizes = f"[{CHUNK}, {OF_ALL}, {OF_ALL}, {mask}, [], []]"
            with program.op("aten::_scaled_dot_product_efficient_attention", sizes):
                program.launch(1600, "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(Params)")
            with program.op("aten::addmm", "[[4096], [4096, 4096], [4096, 4096], [], []]"):
                program.launch(400, GEMM)

    return body


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("first", [513, 1537])
def test_a_chunk_is_given_the_keys_that_it_sees(
    first: int, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_chunk_masks, "rank_rows", lambda case: [{}] * ranks)
    shape = [8, 16, 512, 2048]
    mask = {**seen("other", shape, 0.5), "first": first}
    (one,) = told(tmp_path, chunk(shape), mask)
    needed = 0.5 if ranks > 1 else (first + 255.5) / 2048
    assert one.saving.likely_ns == pytest.approx(1_600_000 * (1 - needed), rel=0.05)
    assert "is_causal=True aligns at the beginning" in (one.fix or "")
    told_keys = (
        "n = (rank + 1) * q.size(-2)" if ranks > 1 else "n = k.size(-2)" if first > 1500 else "n = 512 + q.size(-2)"
    )
    assert told_keys in one.paste and ("2 * world - 1 - rank" in one.paste) is (ranks > 1)


@pytest.mark.parametrize("mask", [{}, {"first": None}, {"first": "513"}])
def test_other_masks_of_a_chunk_are_none(mask: dict[str, Any], tmp_path: Path) -> None:
    shape = [8, 16, 512, 2048]
    assert [f.verdict for f in told(tmp_path, chunk(shape), {**seen("other", shape, 0.5), **mask})] == ["clear"]


@pytest.mark.parametrize(("place", "keys"), [(0, 24), (8, 24), (16, 24), (3, 11)])
def test_the_paste_gives_the_same(place: int, keys: int) -> None:
    q, k, v = torch.randn(1, 2, 8, 4), torch.randn(1, 2, keys, 4), torch.randn(1, 2, keys, 4)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=sees(place, 8, keys))
    given = {"q": q, "k": k, "v": v, "F": F}
    exec(_chunk_masks._fix(_chunk_masks._Chunk(8, keys, place + 1), several=False).paste, given)
    assert torch.allclose(given["y"], y, atol=1e-6)  # type: ignore[arg-type]


def sees(place: int, queries: int, keys: int) -> torch.Tensor:
    return torch.arange(place, place + queries)[:, None] >= torch.arange(keys)[None]


def test_what_the_probe_says_of_masks_of_chunks() -> None:
    bias = torch.zeros(8, 24).masked_fill(~sees(8, 8, 24), float("-inf"))
    chunks = [sees(8, 8, 24), bias, sees(8, 8, 24).expand(2, 3, 8, 24), sees(16, 8, 24)]
    assert [attention_masks.keys_of_first(torch, mask) for mask in chunks] == [9, 9, 9, 17]
    padding = torch.arange(24)[None].expand(8, 24) < 20
    window = sees(8, 8, 24) & ~sees(4, 8, 24)
    others = [padding, window, sees(0, 24, 24), bias + 0.5, sees(20, 8, 24), sees(0, 1, 24)]
    assert [attention_masks.keys_of_first(torch, mask) for mask in others] == [None] * len(others)

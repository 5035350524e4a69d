"""Bytes that operators must move, against what Nsight Compute counted in the memory of an H100: GPT-2, and operators on 1 GB and more.

The counters count what reaches the memory. Half of the L2 cache or more of what an operator writes last, or what the one before it wrote,
stays in the cache, and a kernel may read something twice.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from nsysx.events import gpu_samples
from nsysx.pipeline import ReadingOptions, gather
from nsysx.roofline.element_types import types_of
from nsysx.roofline.operator_bytes import OperatorCall, bytes_of

FOLDER = Path(__file__).parent
COUNTED: list[dict[str, Any]] = json.loads((FOLDER / "nsight_compute_h100.json").read_text())
ACCURACY = (FOLDER.parents[1] / "nsysx" / "docs" / "accuracy.md").read_text(encoding="utf-8")
CACHE = 50 << 20
#: Above this, what the cache may hold is less than a quarter.
LARGE = 190_000_000


def must_move(row: dict[str, Any]) -> int:
    call = OperatorCall(
        row["operator"], row["sizes"], row["read"] or row["sizes"], types_of(row["kernel"]), row["width"]
    )
    moved = bytes_of(call, row["kernel"])
    assert moved is not None
    return moved


def why_more(row: dict[str, Any]) -> str:
    """Return why a kernel moves more than it must, or than its name says; "" for none."""
    if "cunn_SoftMax" in row["kernel"]:
        return "reads its input once for the largest number, once for the sum and once for the result"
    if "LoadWithCast" in row["kernel"]:
        return "converts, and its name does not say from what: a byte is counted"
    if row["operator"] == "aten::mm" and row["sizes"][0][0] > 10 * row["sizes"][1][1]:
        return "reads a factor again for each band of tiles"
    return ""


@pytest.mark.parametrize("row", COUNTED, ids=lambda r: f"{r['operator']}-{r['sizes'][0]}"[6:])
def test_no_operator_must_move_more_than_nsight_compute_saw_it_move(row: dict[str, Any]) -> None:
    moved = must_move(row)
    assert moved - CACHE <= 1.1 * row["dram_bytes"], "beyond the cache, all of it was seen"
    if moved >= LARGE and not why_more(row):
        assert row["dram_bytes"] == pytest.approx(moved, rel=0.1)


def test_enough_of_them_are_far_beyond_the_cache_and_those_that_move_more_have_a_reason() -> None:
    large = [(must_move(r), r["dram_bytes"], why_more(r)) for r in COUNTED if must_move(r) >= LARGE]
    near = [seen / moved for moved, seen, why in large if not why]
    assert len(COUNTED) >= 40 and len(near) >= 14 and all(0.9 <= share <= 1.1 for share in near)
    assert all(seen > moved for moved, seen, why in large if why), "what is not near moves more, never less"


def shares(rows: list[dict[str, Any]], digits: int = 2) -> str:
    """Return the lowest and the highest of counted bytes over those that must move, as the document has them."""
    found = [row["dram_bytes"] / must_move(row) for row in rows]
    return f"{round(min(found), digits):.{digits}f} to {round(max(found), digits):.{digits}f}"


def test_the_table_of_bytes_is_what_was_counted() -> None:
    of_gpt, of_1_gb = COUNTED[:30], COUNTED[30:]
    sizes = {id(row): must_move(row) / 1e6 for row in COUNTED}
    plain = [r for r in of_gpt if not why_more(r) and sizes[id(r)] >= 190]
    elementwise = [r for r in of_gpt if 100 <= sizes[id(r)] < 190]
    short = [r for r in of_gpt if sizes[id(r)] < 100]
    (gradient, forward), converted = (
        of_gpt[:2],
        [r for r in of_gpt if "LoadWithCast" in r["kernel"] and sizes[id(r)] >= 190],
    )
    (again,) = [r for r in of_gpt if "band of tiles" in why_more(r)]
    one = lambda row: f"{row['dram_bytes'] / must_move(row):.2f}"  # noqa: E731
    assert min(sizes[id(r)] for r in of_1_gb) > 1_000 and max(sizes[id(r)] for r in plain) < 1_240
    for row in (
        f"| copies, fill and products of 230 to 1,240 MB | 1 | {shares(plain)} | |",
        f"| elementwise, 100 to 150 MB | 1 | {shares(elementwise)} |",
        f"| 30 to 76 MB | 1 | {shares(short)} |",
        f"| conversions to FP32, 190 and 1,030 MB | 1 | {', '.join(sorted(map(one, converted)))} |",
        f"| a product, {sizes[id(again)]:.0f} MB | 1 | {one(again)} |",
        f"| log_softmax, its gradient | 1 | {one(forward)}, {one(gradient)} |",
        f"| operators on 1 GB and more ({len(of_1_gb)}) | 1 | {shares(of_1_gb)} | |",
    ):
        assert row in ACCURACY, row


@pytest.fixture(scope="module")
def sampled() -> pl.DataFrame:
    """Operators on 1 GB and more under plain ``nsysx run``, sampled at 2 kHz; Nsight Compute profiled one launch of each alone."""
    profile = gather(FOLDER / "large_h100.sqlite.xz", ReadingOptions())
    bandwidth = profile.trace.limits[profile.process, profile.device or 0].memory_bandwidth
    assert bandwidth
    launch = ["name", "grid", "block"]
    mean_ns = profile.steady_ops.group_by(launch).agg(ns=(pl.col("end_ns") - pl.col("start_ns")).mean())
    sampled = gpu_samples.of_kernels(profile).join(mean_ns, on=launch, how="inner", nulls_equal=True)
    sampled = sampled.with_columns(
        moved=pl.col("dram") * bandwidth * pl.col("ns") / 1e9, name=pl.col("name").cast(pl.String)
    )
    counted = pl.read_json(FOLDER / "large_h100_counted.json")
    both = counted.join(sampled, on=["name", "grid"], how="inner")
    assert both.height == counted.height == 26
    return both


def test_bytes_by_sampled_counters_are_those_of_nsight_compute(sampled: pl.DataFrame) -> None:
    both = sampled
    assert ((both["moved"] / both["dram_bytes"] - 1).abs() <= 0.1).all()
    far = both.filter(pl.col("dram_bytes") > 1e9)
    assert far.height == 22 and ((far["moved"] / far["dram_bytes"] - 1).abs() <= 0.04).all()
    products = both.filter(pl.col("tensor_share") > 0.05)
    assert products.height == 3 and ((products["tensor_active"] - products["tensor_share"]).abs() <= 0.07).all()


def test_the_table_of_counters_is_what_was_sampled(sampled: pl.DataFrame) -> None:
    share = sampled["moved"] / sampled["dram_bytes"]
    far = sampled["dram_bytes"] > 1e9
    for height, part, row in (
        (22, share.filter(far), "| 22 that move 1.05 to 6.5 GB: "),
        (4, share.filter(~far), "| 4 that move 0.23 to 0.8 GB: "),
    ):
        assert part.len() == height
        line = next(line for line in ACCURACY.splitlines() if line.startswith(row))
        assert line.endswith(f"| {part.min():.2f} to {part.max():.2f} |"), line
    used = sampled.filter(pl.col("tensor_share") > 0.05).sort("tensor_share", descending=True)
    told = [
        f"{100 * a:.1f}{' %' if not n else ''} ({100 * b:.1f})"
        for n, (a, b) in enumerate(used.select("tensor_active", "tensor_share").rows())
    ]
    assert f"| {', '.join(told)} |" in ACCURACY

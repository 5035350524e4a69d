"""NSX127: weights that get gradients which nothing reads, because another network's loss leads back through them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nsysx.model import Finding
from tests.findings import Program
from tests.findings.test_nsx127_costly_settings import CLEAN, alone, changed
from tests.findings.test_untrained import DDP
from tests.ranks.test_rank_table import ALL_REDUCE

NAME = "gradients of weights that nothing reads"
WRAPPED = {"wrappers": [DDP, DDP], "unread_weights": {"Critic": [1]}}


def backward_of(program: Program, path: str, cls: str, *, reduced: int, kernels: tuple[str, ...]) -> None:
    with program.range(f"{path}:{cls}"):
        for kernel in kernels:
            program.launch(200, kernel)
        program.launch(100, "elementwise_kernel")
    for _ in range(reduced):
        program.launch(40, ALL_REDUCE, stream=20)


def training(
    program: Program, number: int, *, kernels: tuple[str, ...] = ("nvjet_gemm", "nvjet_gemm"), reduced: int = 2
) -> None:
    """A critic's step, and one of the generator, whose loss leads back through the critic."""
    for own in (True, False):
        with program.range("forward"), program.range("critic:Critic"):
            program.launch(100)
        with program.range("backward"):
            backward_of(program, "critic", "Critic", reduced=reduced, kernels=kernels)
            if not own:
                backward_of(program, "generator", "Generator", reduced=reduced and 1, kernels=("nvjet_gemm",))
        with program.range("optimizer"):
            program.launch(20, "multi_tensor_apply_kernel")
    program.sync()


def found(folder: Path, settings: Mapping[str, Any], **kinds: Any) -> list[Finding]:
    told = alone(folder, changed(CLEAN, dict(settings)), lambda program, number: training(program, number, **kinds))
    return [f for f in told if f.verdict == "found" and f.evidence[0]["setting"] == NAME]


@pytest.mark.parametrize(
    ("kernels", "gone_us"),
    [
        (("nvjet_gemm", "nvjet_gemm"), 200),  # half of the products
        (("sm90_xmma_wgrad_bf16", "sm90_xmma_dgrad_bf16"), 200),  # the one that makes gradients of weights
        (("cudnn_dgrad_a", "nvjet_gemm"), 100),
    ],
)
def test_the_gradients_of_weights_go_and_those_of_inputs_stay(
    kernels: tuple[str, ...], gone_us: int, tmp_path: Path
) -> None:
    (told,) = found(tmp_path, WRAPPED, kernels=kernels)
    assert "nother network's loss leads back through Critic" in told.detail and "the ranks reduce them" in told.detail
    assert told.fix.startswith(
        "Freeze Critic while another network is trained through it, and call it past its wrapper"
    )
    assert told.paste.splitlines() == [
        "critic.requires_grad_(False)",
        "loss = -critic.module(made).mean(); loss.backward()",
        "critic.requires_grad_(True)",
    ]
    # Of the two reductions that are the critic's, which run beside what is left, little or nothing is seen.
    assert told.saving.likely_ns is not None and gone_us - 10 <= told.saving.likely_ns / 1000 <= gone_us + 90


def test_without_a_wrapper_there_is_nothing_to_call_past(tmp_path: Path) -> None:
    (told,) = found(tmp_path, {**WRAPPED, "wrappers": []}, reduced=0)
    assert "critic(made)" in told.paste and "wrapper" not in told.fix and "the ranks reduce" not in told.detail


@pytest.mark.parametrize(
    "settings",
    [
        {"unread_weights": {}},
        {"unread_weights": None},  # a probe of before
        {"unread_weights": {"Critic": [2]}},  # no such backward
        {"unread_weights": {"Judge": [1]}},
    ],
)
def test_what_the_probe_has_not_seen_is_not_told(settings: dict[str, Any], tmp_path: Path) -> None:
    assert found(tmp_path, {**WRAPPED, **settings}) == []


def test_little_of_a_step_is_not_told(tmp_path: Path) -> None:
    assert found(tmp_path, WRAPPED, kernels=("cudnn_dgrad_a",) * 2, reduced=0) == []

"""NSX127: parts of a network that are only left out of the optimizer, though their gradients are computed and reduced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from nsysx.findings import _freezing_pastes, _untrained_sizes
from nsysx.model import Finding
from tests.findings import Program
from tests.findings.lined import FILE, Lined
from tests.findings.test_nsx127_costly_settings import CLEAN, alone, changed
from tests.findings.test_nsx135_weights_in_calls import operator
from tests.ranks.test_rank_table import ALL_REDUCE

NAME = "parts that nothing trains"
ROW = {"class": "Net", "elements": 600, "of": 1000, "parts": ["low.0", "low.1"], "trained": ["high"]}
DDP: dict[str, Any] = {
    "kind": "DDP",
    "count": 1,
    "find_unused_parameters": False,
    "unused_parameter_bytes": 0,
    "bucket_bytes": "2000, 2000",
}
VIEWS: dict[str, Any] = {**DDP, "gradient_as_bucket_view": True}
#: What the settings of a program hold whose optimizer has 400 of 1000 numbers.
OF_DDP: dict[str, Any] = {
    "wrappers": [DDP],
    "networks": [{"class": "DistributedDataParallel", "dtypes": {"float32": 1000}}],
    "inputs": [{"class": "Net", "place": f"{FILE}:9", "rows": 4, "sums": [1]}],
    "optimizers": [{"class": "AdamW", "elements": 400, "dtypes": {"float32": 4}, "made": f"{FILE}:5", "gradients": {"without": 0}}],
    "places": {"DDP": f"{FILE}:6"},
}  # fmt: skip


def training(program: Program, number: int, *, backwards: int = 1, low_first: bool = False) -> None:
    """A network of two low parts and a high one, whose gradients are reduced in three messages beside backward."""
    parts = ("low.0", "low.1", "high")
    for _ in range(backwards):
        with program.range("forward"), program.range("net:Net"):
            for part in parts:
                with program.range(f"net.{part}:Linear"):
                    program.launch(100)
        with program.range("backward"):
            for part in parts if low_first else reversed(parts):
                with program.range(f"net.{part}:Linear"):
                    program.launch(200, "nvjet_gemm")
                    program.launch(100, "elementwise_kernel")
                program.launch(40, ALL_REDUCE, stream=20)
    with program.range("optimizer"):
        program.launch(20, "multi_tensor_apply_kernel")
    program.sync()


def found(folder: Path, settings: Mapping[str, Any], body: Callable[[Program, int], None] = training) -> list[Finding]:
    told = alone(folder, changed(CLEAN, dict(settings)), body)
    return [f for f in told if f.verdict == "found" and f.evidence[0]["setting"] == NAME]


@pytest.mark.parametrize("backwards", [1, 3])
def test_all_of_the_backward_below_what_is_trained_goes(backwards: int, tmp_path: Path) -> None:
    (told,) = found(
        tmp_path,
        OF_DDP | {"untrained": [ROW]},
        lambda program, number: training(program, number, backwards=backwards),
    )
    assert told.title == "Gradients are computed of parts that nothing trains"
    assert "60 % of the parameters of Net (low.0, low.1) get gradients in each step" in told.detail
    assert "the ranks reduce them" in told.fix
    assert told.paste == "model.low[:2].requires_grad_(False)  # before the network is wrapped"
    assert (told.where["file"], told.where["line"]) == (FILE, 6)
    # The parts' 600 us of each backward, and the last reduction, with which nothing runs.
    assert told.saving.likely_ns == pytest.approx(backwards * 600_000, rel=0.15)


def test_between_trained_parts_half_of_the_products_go(tmp_path: Path) -> None:
    (told,) = found(
        tmp_path,
        {"untrained": [ROW]},
        lambda program, number: training(program, number, low_first=True),
    )
    assert told.saving.likely_ns == pytest.approx(200_000, rel=0.25)  # and at most reductions beside them
    assert "ranks" not in told.fix and told.paste.endswith("# before training")


@pytest.mark.parametrize(
    "row",
    [{"parts": [], "trained": []}, {"trained": ["prompt"]}, None],
    ids=["many parts", "a parameter by itself", "sizes alone"],
)
def test_where_the_parts_are_is_not_known(
    row: dict[str, Any] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many parts to list them; a prompt at the bottom, to which backward goes down; a probe of before, which has sizes alone."""
    monkeypatch.setattr(_untrained_sizes, "_written", lambda profile: 0)
    (told,) = found(tmp_path, OF_DDP | ({"untrained": [ROW | row]} if row else {}))
    assert "60 % of the parameters of Net" in told.detail
    assert told.paste.startswith("held = {id(p) for g in optimizer.param_groups") is (row != {"trained": ["prompt"]})
    likely, error, most = told.saving.likely_ns, told.saving.error_ns, told.saving.most_ns
    assert likely is not None and error is not None and most is not None
    assert likely - error <= 0.3 * 600_000 * 1.1 and most >= 0.6 * 900_000 * 0.9


@pytest.mark.parametrize(
    "settings",
    [
        OF_DDP | {"untrained": []},  # their numbers change: something else trains them
        OF_DDP | {"optimizers": [{**OF_DDP["optimizers"][0], "elements": 1000}]},
        OF_DDP | {"optimizers": [{**OF_DDP["optimizers"][0], "elements": 1000, "dtypes": {"float64": 4}}]},  # of masters
        OF_DDP | {"untrained": [], "gradient_readers": ["Net"]},  # hooks
        OF_DDP | {"untrained": [], "gradient_readers": ["Net"], "gradient_buffers": [], "wrappers": [VIEWS]},
        OF_DDP | {"optimizers": [{**OF_DDP["optimizers"][0], "shared": {"overlaps": True}}]},
        OF_DDP | {"optimizers": OF_DDP["optimizers"] * 20, "unheld": {}},  # more may live
        OF_DDP | {"optimizers": []},
        OF_DDP | {"wrappers": [{**DDP, "find_unused_parameters": True}]},
        OF_DDP | {"wrappers": [{**DDP, "count": 2}]},
        OF_DDP | {"unheld": {"Net": [600, 1000]}},  # its own finding
        {"optimizers": OF_DDP["optimizers"]},
    ],
)  # fmt: skip
def test_what_is_trained_or_may_be_is_not_told(
    settings: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_untrained_sizes, "_written", lambda profile: 0)
    assert not found(tmp_path, settings)


def test_two_kinds_of_numbers_and_the_wrapped_network_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adapters of float32 in a base of bfloat16, which is called past its wrapper, too: a probe of before took views for other buffers."""
    monkeypatch.setattr(_untrained_sizes, "_written", lambda profile: 0)
    kinds: dict[str, Any] = {"dtypes": {"bfloat16": 900, "float32": 100}}
    networks = [{"class": "DistributedDataParallel", **kinds}, {"class": "Net", **kinds}]
    of_wrapper = {"wrappers": [{**VIEWS, "bucket_bytes": "1800, 400"}], "networks": networks}
    optimizers = [{**OF_DDP["optimizers"][0], "elements": 100}]
    old = {"untrained": [], "gradient_readers": ["Net"], "optimizers": optimizers}
    (told,) = found(tmp_path, OF_DDP | of_wrapper | old)
    assert "90 % of the parameters of Net" in told.detail


@pytest.mark.parametrize("healthy", ["own kernel", "sent by others"])
def test_weights_that_something_else_brings_are_not_told(
    healthy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fused update of the program's own, and one that ranks share out by hand: each sends what it has updated."""
    monkeypatch.setattr(_untrained_sizes, "_written", lambda profile: 0)

    def body(program: Program, number: int) -> None:
        training(program, number)
        program.launch(
            50, "fused_update" if healthy == "own kernel" else "ncclDevKernel_Broadcast_RING_LL(ncclDevComm*)"
        )

    assert not found(tmp_path, OF_DDP, body)


@pytest.mark.parametrize("kind", ["reset", "by hand", "average", "copied back"])
def test_sizes_tell_only_where_nothing_else_writes_weights(kind: str, tmp_path: Path) -> None:
    """Lines that update weights by hand, or average them, write into as many numbers as no optimizer holds."""

    def body(program: Lined, number: int) -> None:
        training(program, number)
        if kind != "reset":
            for each in range(4):
                operator(
                    program,
                    {"by hand": "add_", "average": "lerp_"}.get(kind, "copy_"),
                    100 * number + each + 10,
                    [-1, -1],
                    5,
                )
        elif program.noted is not None:
            operator(program, "zero_", 100 * number + 10, [-1], 5)

    lost = 4096 * 2
    sizes = {"wrappers": [{**DDP, "bucket_bytes": str(4 * (400 + lost))}]}
    program = Lined({}, {**CLEAN, **OF_DDP, **sizes}).run(body)
    told = [f for f in program.found(tmp_path, "NSX127") if f.evidence[0]["setting"] == NAME]
    assert bool(told) is (kind == "reset")


def test_a_program_of_which_nothing_is_seen_is_not_told(tmp_path: Path) -> None:
    """No operators were recorded: what writes into weights is not known."""
    assert not found(tmp_path, OF_DDP)


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        (["front", "layers.0", "layers.1", "layers.3"], ["model.front", "model.layers[:2]", "model.layers[3:4]"]),
        (["layers.2.attn.base"], ["model.layers[2].attn.base"]),
        ([], []),
    ],
)
def test_parts_as_code(parts: list[str], code: list[str]) -> None:
    assert _freezing_pastes.parts_as_code(parts, "model") == code

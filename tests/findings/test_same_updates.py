"""NSX129: products of an optimizer that all ranks repeat, and optimizers of ranks that share them, or hold unlike weights."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsysx import pipeline
from nsysx.findings import _same_updates
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined
from tests.findings.test_nsx127_costly_settings import CLEAN
from tests.ranks.test_rank_table import KERNELS, noted

BACKWARD, REDUCES, PRODUCT, STEP = 21, 22, 31, 40
SOURCE = {BACKWARD: "loss.backward()", REDUCES: "dist.all_reduce(flat)", PRODUCT: "a = x @ x.mT", STEP: "opt.step()"}
MATRICES, PRODUCTS, PRODUCT_US = 4, 5, 50
WEIGHTS = 1_000_000
GEMM, FOREACH = "nvjet_tst_128x128_64x6_1x2_h_bz_NNT", "multi_tensor_apply_kernel<TensorListMetadata, Functor<float>>"
MUON = {
    "class": "Muon",
    "module": "train",
    "parameters": MATRICES,
    "elements": WEIGHTS,
    "dtypes": {"float32": MATRICES},
}
ADAM = {"class": "AdamW", "module": "torch", "parameters": 90, "elements": 9 * WEIGHTS, "fused": True}
DDP = {"kind": "DDP", "count": 1}
WORLD = {"name": "0", "ranks": [0, 1], "collectives": 2, "wrapper": "DDP"}


class Job(Lined):
    """A rank whose NCCL notes what it sends."""

    def sends(self, name: str, size: int) -> None:
        self.host(2)
        begin = self.t
        self.launch(40, KERNELS[name], stream=20)
        noted(self.main, name, begin, self.t, comm=5, size=size)


def step(program: Lined, number: int, *, kind: str) -> None:
    """2 ms of forward and backward, and 5 products of 50 us for each of 4 matrices: 1 ms, with 60 us between them."""
    assert isinstance(program, Job)
    if not number:
        noted(program.main, "ncclCommInitRankConfig", 1, 2, comm=5, of=2, Rank=0)
    with program.line(20), program.range("forward"), program.range("net:Net"):
        program.launch(700, GEMM)
        if kind == "experts":
            program.sends("ncclAlltoAll", WEIGHTS)
    with program.line(BACKWARD), program.range("backward"):
        program.launch(1300, GEMM)
        if kind != "by hand":
            program.sends("ncclAllReduce", 40 * WEIGHTS)
    if kind == "by hand":
        with program.line(REDUCES):
            program.sends("ncclAllReduce", 40 * WEIGHTS)
    with program.line(STEP), program.range("optimizer Muon"):
        if kind == "reduced in step":
            program.sends("ncclAllReduce", 4 * WEIGHTS)
        if kind == "closure":
            with program.range("forward"), program.range("net:Net"):
                update(program, kind, 0)
            with program.range("backward"):
                update(program, kind, 1)
        for matrix in range(MATRICES if kind != "closure" else 0):
            update(program, kind, matrix)
        if kind == "norm":
            program.sends("ncclAllReduce", 4)
        program.launch(300, FOREACH)
    if kind == "sent behind":
        program.sends("ncclBroadcast", 4 * WEIGHTS)
    program.sync()


def update(program: Job, kind: str, matrix: int) -> None:
    with program.line(PRODUCT, "orthogonal"):
        for _ in range(PRODUCTS):
            kernel = {"no products": FOREACH, "vectors": "void cublas::dot_kernel<float>"}.get(kind, GEMM)
            program.launch(5 if kind == "small" else PRODUCT_US, "geqrf_kernel" if kind == "solver" else kernel)
    program.launch(20, "vectorized_elementwise_kernel")
    if kind == "shared" and matrix % 2:
        program.sends("ncclAllGather", WEIGHTS)


def job(kind: str, **settings: Any) -> Job:
    record = {**CLEAN, "wrappers": [DDP], "groups": [WORLD], "optimizers": [MUON, ADAM], "backwards": 1, **settings}
    program = Job(SOURCE, record)
    program.run(lambda program, number: step(program, number, kind=kind))
    return program


def found(folder: Path, kind: str = "repeated", **settings: Any) -> list[Finding]:
    return [f for f in job(kind, **settings).found(folder, "NSX129") if f.remedies[0].name == "shared-updates"]


@pytest.mark.parametrize("kind", ["repeated", "reduced in step", "norm", "solver"])
def test_products_that_every_rank_repeats(kind: str, tmp_path: Path) -> None:
    (finding,) = found(tmp_path, kind)
    assert (finding.where["file"], finding.where["line"]) == (FILE, PRODUCT)
    kinds = "GEMMs and solvers" if kind == "solver" else "GEMMs"
    assert finding.title == f"Each of 2 ranks makes the same update: 1.00 ms of {kinds} in its optimizer"
    assert "makes the updates of 50 % of 4 tensors" in finding.detail and "others: 1.9 MiB" in finding.detail
    # Half of 1.06 ms goes; how long the other half's transfer takes one rank alone does not tell.
    assert finding.saving_ns_per_step == pytest.approx(530_000, rel=0.05)
    assert finding.saving.bound and "take to come is not known" in finding.saving.confidence


def test_gradients_that_are_averaged_by_hand(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "by hand", wrappers=[])
    assert finding.saving_ns_per_step == pytest.approx(530_000, rel=0.05)


def test_the_transfer_of_the_updates_is_taken_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 MB of weights of the other rank, at 10 GB/s: 200 us."""
    monkeypatch.setattr(_same_updates, "_rate", lambda case: 1e10)
    (finding,) = found(tmp_path)
    assert finding.saving_ns_per_step == pytest.approx(330_000, rel=0.08)
    assert not finding.saving.bound and finding.saving.most_ns == pytest.approx(530_000, rel=0.05)
    assert "200 us at the rate of its other collectives" in finding.detail
    monkeypatch.setattr(_same_updates, "_rate", lambda case: 4e9)
    assert not found(tmp_path), "the transfer takes as long as the products that go"


@pytest.mark.parametrize("kind", ["shared", "sent behind", "experts", "closure", "no products", "vectors", "small"])
def test_updates_that_are_shared_or_short(kind: str, tmp_path: Path) -> None:
    assert not found(tmp_path, kind)


@pytest.mark.parametrize(
    "settings",
    [
        {"wrappers": [{"kind": "fully_shard", "count": 5}]},
        {"wrappers": [DDP, {"kind": "FSDP", "count": 5}]},
        {"wrappers": []},  # gradients are reduced in backward by something that is not known
        {"reducing": 0},  # no step reduces gradients: weights are averaged now and then
        {"groups": []},
        {"groups": [{**WORLD, "ranks": [0]}]},
        {
            "groups": [{**WORLD, "ranks": [0, 1, 2, 3]}, {"name": "1", "ranks": [0, 1], "collectives": 8}]
        },  # tensor parallel
        {"optimizers": [{**MUON, "parameters": 1}, ADAM]},
    ],
)
def test_ranks_with_parts_of_the_weights_or_nothing_to_deal_out(settings: dict[str, Any], tmp_path: Path) -> None:
    assert not found(tmp_path, **settings)


@pytest.mark.parametrize(("kind", "told"), [("repeated", True), ("small", False), ("no products", False)])
def test_other_ranks_must_make_the_same_products(
    kind: str, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    job(kind).write(tmp_path / "other")
    other = pipeline.gather(tmp_path / "other" / "r.sqlite", pipeline.ReadingOptions())
    monkeypatch.setattr(_same_updates, "peers", SimpleNamespace(others=lambda profile: iter([other])))
    assert bool(found(tmp_path)) is told


def test_the_rate_is_that_of_the_collectives_that_move_most() -> None:
    rows = [
        {"bytes": 8, "bus_bytes_per_s": 1.0},
        {"bytes": 900, "bus_bytes_per_s": 5.0},
        {"bytes": 9_000, "bus_bytes_per_s": None},
    ]
    case: Any = SimpleNamespace(process=7, ranks=SimpleNamespace(rows=[{"process": 7, "by_collective": rows}]))
    assert _same_updates._rate(case) == 5.0
    assert _same_updates._rate(SimpleNamespace(process=7, ranks=None)) is None  # type: ignore[arg-type]

"""NSX129: the optimizer's kernels on the GPU, with a fused form that is not used, with dense gradients of embeddings, and without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nsysx.model import Finding
from tests.findings import Program
from tests.findings.test_nsx127_costly_settings import ADAM, CLEAN, changed, summary

FOREACH = "multi_tensor_apply_kernel<TensorListMetadata, BinaryOpListAlphaFunctor<float>>"


def updating(program: Program, number: int, *, kernel: str = FOREACH, embeds: bool = False, update: int = 300) -> None:
    with program.range("forward"), program.range("net:Net"):
        for _ in range(5):
            program.launch(20, "sgemm_128x128")
    with program.range("backward"):
        program.launch(50, "embedding_backward_feature_kernel<float>" if embeds else "sgemm_128x128")
    with program.range("optimizer Adam"):
        for _ in range(5):
            program.launch(update, kernel)


def embedding(program: Program, number: int) -> None:
    updating(program, number, embeds=True)


def small(program: Program, number: int) -> None:
    updating(program, number, update=2)


def found(folder: Path, optimizer: dict[str, Any], body: Callable[[Program, int], None]) -> Finding:
    whole = summary(folder, changed(CLEAN, {"optimizers": [ADAM | optimizer]}), body)
    (finding,) = [f for f in whole.findings or () if f.code == "NSX129"]
    return finding


def test_foreach_kernels_move_the_same_numbers_eighteen_times(tmp_path: Path) -> None:
    """1.5 ms of updates, of which a fused one takes 7 parts of 18."""
    finding = found(tmp_path, {"class": "Adam", "fused": None}, updating)
    assert [way.name for way in finding.remedies] == ["fused"] and "fused=True" in finding.paste
    assert finding.saving_ns_per_step == pytest.approx(1_500_000 * 11 / 18, rel=0.03)
    assert finding.where == {"phase": "optimizer"}, "where the optimizer is made is not known"


def test_the_place_is_where_the_optimizer_is_made_that_could_be_fused(tmp_path: Path) -> None:
    made = {"class": "Adam", "fused": None, "made": "/home/me/my run/train.py:12"}
    assert found(tmp_path, made, updating).where == {
        "phase": "optimizer",
        "file": "/home/me/my run/train.py",
        "line": 12,
    }
    (tmp_path / "b").mkdir()
    sparse = found(tmp_path / "b", made, embedding)
    assert sparse.where["line"] == 12, "an optimizer for sparse gradients stands beside it"


def test_dense_gradients_of_embeddings_update_every_row(tmp_path: Path) -> None:
    finding = found(tmp_path, {"class": "Adam", "fused": None}, embedding)
    assert [way.name for way in finding.remedies] == ["sparse-embeddings", "fused"]
    # A fifth of the update stays, and the host needs 300 us for the sparse gradient of one table, or twice as long.
    assert finding.saving_ns_per_step == pytest.approx(1_500_000 * 0.8 - 300_000, rel=0.03)
    assert not finding.saving.bound and finding.saving.error_ns == pytest.approx(300_000, rel=0.01)
    assert finding.saving.most_ns == pytest.approx(1_500_000 * 0.8, rel=0.03)
    (tmp_path / "b").mkdir()
    fused = found(tmp_path / "b", {"class": "Adam", "fused": True}, embedding)
    assert [way.name for way in fused.remedies] == ["sparse-embeddings"]


@pytest.mark.parametrize(
    ("optimizer", "body"), [({"fused": True}, updating), ({"class": "Adam", "fused": None}, small)]
)
def test_a_fused_or_a_short_update_is_clear(
    tmp_path: Path, optimizer: dict[str, Any], body: Callable[[Program, int], None]
) -> None:
    assert found(tmp_path, optimizer, body).verdict == "clear"


@pytest.mark.parametrize(("groups", "way"), [(200, "groups-merged"), (28, "fused")])
def test_an_optimizer_with_a_group_for_each_tensor_merges_them(tmp_path: Path, groups: int, way: str) -> None:
    finding = found(tmp_path, {"class": "Adam", "fused": None, "groups": groups, "parameters": 200}, updating)
    assert finding.remedies[0].name == way and "torch.optim.Adam(" in finding.paste
    assert ("fused=True" in finding.paste) is (way == "fused"), "what its trial makes"


@pytest.mark.parametrize(("groups", "way"), [(200, "groups-merged"), (28, "fused")])
def test_tiny_launches_of_many_groups_are_a_cause_of_their_own(tmp_path: Path, groups: int, way: str) -> None:
    """Launches of each group in turn; the few launches that are left save the idle time between them."""

    def launching(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            program.launch(500, "sgemm_128x128")
        with program.range("optimizer Adam"):
            for _ in range(100):
                program.host(20)
                program.launch(4, FOREACH)

    many = ADAM | {"class": "Adam", "fused": None, "groups": groups, "parameters": 200}
    whole = summary(tmp_path, changed(CLEAN, {"optimizers": [many]}), launching)
    (finding,) = [f for f in whole.findings or () if f.code == "NSX113"]
    assert finding.remedies[0].name == way and not finding.saving.bound
    likely = finding.saving_ns_per_step or 0
    assert likely > 1_000_000
    # Kernels of one tensor each mostly begin and end: merged, most of their time may go as well (100 of 4 us).
    assert finding.saving.most_ns == (pytest.approx(likely + 400_000, rel=0.01) if way == "groups-merged" else None)

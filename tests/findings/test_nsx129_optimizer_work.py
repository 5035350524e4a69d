"""NSX129: the optimizer's kernels on the GPU, with a fused form that is not used, with dense gradients of embeddings, and without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from nsysx.findings import _sparse_tables, _tables_of_ranks
from nsysx.findings._sparse_tables import with_sparse
from nsysx.findings._tables_of_ranks import FewRows, LookedUp
from nsysx.model import Finding
from tests.findings import Program
from tests.findings.test_nsx127_costly_settings import ADAM, CLEAN, alone, changed

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
    (finding,) = alone(folder, changed(CLEAN, {"optimizers": [ADAM | optimizer]}), body, "NSX129")
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
    ("looked_up", "held", "left"),
    [
        (10_000, 80_000_000, 0.25),  # a tenth of the rows, each of which takes two and a half times as long
        (1_000, 80_000_000, 0.2),
        (10_000, 200_000_000, None),  # the tables are less than half of what the optimizer holds
        (10_000, 40_000_000, None),  # another optimizer holds them
        (30_000, 80_000_000, None),  # most rows are looked up
    ],
)
def test_tables_beside_as_many_products_are_known_by_what_is_looked_up(
    looked_up: int, held: int, left: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The update takes no longer than the products: sizes tell that most numbers are rows which no input uses."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            program.launch(1000, "sgemm_128x128")
        with program.range("backward"):
            program.launch(50, "compute_grad_weight_bags<float, long>")
        with program.range("optimizer Adagrad"):
            for _ in range(5):
                program.launch(300, FOREACH)

    tables = FewRows(64_000_000, 100_000, looked_up, {"file": "/job/train.py", "line": 47})
    few = SimpleNamespace(rows=lambda profile, most_share: tables if tables.share <= most_share else None)
    monkeypatch.setattr(_tables_of_ranks, "few_rows", few.rows)
    finding = found(tmp_path, {"class": "Adagrad", "fused": None, "elements": held}, body)
    if left is None:
        assert finding.verdict == "clear" and "has no fused form" in finding.detail
        return
    assert [way.name for way in finding.remedies] == ["sparse-embeddings"] and finding.paste.startswith("sparse=True")
    assert "Adagrad takes such gradients: keep it" in finding.fix and "SparseAdam" not in finding.paste
    assert "Make Adagrad without fused=True and weight decay" in finding.condition
    assert finding.where == {"phase": "optimizer", "file": "/job/train.py", "line": 47}
    assert f"A step looks up {looked_up:,} of 100,000 rows at most" in finding.detail
    assert finding.saving.likely_ns == pytest.approx(1_500_000 * (1 - left) - 300_000, rel=0.03)
    assert f"{100 * left:.0f} % of the dense update stay" in finding.saving.confidence


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
    (finding,) = alone(tmp_path, changed(CLEAN, {"optimizers": [many]}), launching, "NSX113")
    assert finding.remedies[0].name == way and not finding.saving.bound
    likely = finding.saving_ns_per_step or 0
    assert likely > 1_000_000
    # Kernels of one tensor each mostly begin and end: merged, most of their time may go as well (100 of 4 us).
    assert finding.saving.most_ns == (pytest.approx(likely + 400_000, rel=0.01) if way == "groups-merged" else None)


def test_tables_of_one_rank_with_a_fused_optimizer_and_clipped_gradients(tmp_path: Path) -> None:
    """Norms and scales of all rows go with the dense gradient; what clips sparse gradients is pasted with it."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            program.launch(1000, "sgemm_128x128")
        with program.range("backward"):
            program.launch(50, "embedding_backward_feature_kernel<float>")
        with program.range("clip"):
            program.launch(400, "multi_tensor_apply_kernel<LpNormFunctor<float>>")
        with program.range("optimizer AdamW"):
            program.launch(2400, "multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>")

    tables = FewRows(64_000_000, 100_000, 700, {"file": "/job/train.py", "line": 47})
    with patch.object(_tables_of_ranks, "few_rows", lambda profile, most_share: tables):
        finding = found(tmp_path, {"class": "AdamW", "fused": True, "elements": 64_000_000}, body)
    assert [way.name for way in finding.remedies] == [
        "sparse-embeddings"
    ] and "does not take sparse" in finding.condition
    assert finding.saving_ns_per_step == pytest.approx(2_800_000 * 0.8 - 300_000, rel=0.05)
    table = torch.nn.Embedding(9, 2, sparse=True)
    table(torch.tensor([1, 2, 2])).sum().mul(9).backward()
    exec("\n".join(finding.paste.splitlines()[-2:]), {"table": table})
    assert table.weight.grad is not None and table.weight.grad.values().norm().item() == pytest.approx(1, rel=1e-4)


MADE = "self.tables = nn.ModuleList(nn.EmbeddingBag(n, dim, mode=mode) for n in rows)"
SPARSE = "self.tables = nn.ModuleList(nn.EmbeddingBag(n, dim, mode=mode, sparse=True) for n in rows)"


@pytest.mark.parametrize(
    ("text", "cls", "told"),
    [
        (MADE, "EmbeddingBag", SPARSE),
        ("nn.Embedding(n, d,),", "Embedding", "nn.Embedding(n, d, sparse=True),"),
        ("a = nn.Embedding(4, 2, sparse=False)", "Embedding", "a = nn.Embedding(4, 2, sparse=True)"),
        ("for n in rows: made.append(Rows(n, d))", "Rows", "for n in rows: made.append(Rows(n, d, sparse=True))"),
        ("e = nn.Embedding.from_pretrained(w)", "Embedding", "e = nn.Embedding.from_pretrained(w, sparse=True)"),
        ("return F.embedding(ids, w)", "embedding", "return F.embedding(ids, w, sparse=True)"),
        ("net = Model.from_pretrained(name)", "Embedding", None),  # a library makes the table
        ("super().__init__(n, d)", "Rows", None),
        ("e = nn.Embedding(..., d)", "Embedding", None),  # the rest stands on other lines
        ("nn.Embedding(n,", "Embedding", None),
    ],
)
def test_a_line_gets_the_argument_of_sparse_gradients(text: str, cls: str, told: str | None) -> None:
    assert with_sparse(text, cls) == told


@pytest.mark.parametrize(("of_tables", "keeps"), [("Adagrad", True), ("Adam", False)])
def test_tables_with_an_optimizer_of_their_own_get_sparse_gradients_where_they_are_made(
    of_tables: str, keeps: bool, tmp_path: Path
) -> None:
    """Beside the optimizer of the rest; the line is that which makes them, with its own names."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            program.launch(1000, "sgemm_128x128")
        with program.range("backward"):
            program.launch(50, "compute_grad_weight_bags<float, long>")
        with program.range(f"optimizer {of_tables}"):
            for _ in range(5):
                program.launch(300, FOREACH)

    table = LookedUp(100_000, 640, 700, 0, "net.tables.0", "EmbeddingBag")
    tables = FewRows(64_000_000, 100_000, 700, {"file": "/job/train.py", "line": 47}, table, 1, 3)
    optimizers = [
        ADAM | {"class": "AdamW", "fused": True, "elements": 9_000_000},
        ADAM | {"class": of_tables, "fused": None, "elements": 64_500_000},
    ]
    noted = [{"class": "EmbeddingBag", "rows": 100_000, "width": 640, "made": "/job/train.py:12"}]
    settings = changed(CLEAN, {"optimizers": optimizers, "tables": noted})
    texts = {"/job/train.py": {"12": MADE}}
    with (
        patch.object(_tables_of_ranks, "few_rows", lambda profile, most_share: tables),
        patch.object(_sparse_tables.lines, "texts", lambda profile: texts),
        patch.object(_sparse_tables, "flow_of", lambda profile: None),
    ):
        (finding,) = alone(tmp_path, settings, body, "NSX129")
    assert (finding.where["file"], finding.where["line"]) == ("/job/train.py", 12)
    assert finding.paste.splitlines()[0] == SPARSE and "rows at most, in 1 of 3 tables" in finding.detail
    assert ("SparseAdam" in finding.paste) is not keeps and ("keep it" in finding.fix) is keeps

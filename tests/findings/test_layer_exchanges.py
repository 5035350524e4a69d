"""NSX110: what layers send each other: blocks of a sequence that go around, no stages of a pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.findings import _layer_exchanges
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined, all_is_transfer
from tests.findings.test_smaller_operators import operator
from tests.findings.test_widened_messages import GATHER
from tests.ranks.test_rank_table import noted

SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
ATTENTION = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 128, 4>>(Flash_fwd_params)"
SOURCE = {20: "y = net(x)", 34: "works = dist.batch_isend_irecv(ops)", 36: "out = attend(q, k, v)"}
Q = "[1, 8, 1024, 128]"


def labelled(program: Lined, name: str, number: int, made: int) -> None:
    if program.noted is not None:
        given = f"({max(made, 0)},{-1 if made < 0 else 0})"
        label = f"c10d::{name}, op_id = {number}, sizes = [{Q}, []], input_op_ids = [{given}, (0,-1)]"
        program.host(1)
        program.main.add_range(label, program.t - 1, program.t)


def attends(program: Lined, number: int, q: int, k: int) -> None:
    with program.line(36, "Ring.forward"):
        operator(program, "scaled_dot_product_attention", number, [q, k, k], f"{Q}, {Q}, {Q}", 300, ATTENTION)


def step(program: Lined, number: int, *, kind: str) -> None:
    """Two layers: q and k (100 us), an exchange of k (200 us), and attention to the k that was there, and to the one that came.

    ``scored``: as before, with no backward.
    """
    at = 1000 * number + 10
    with program.range("evaluation" if kind == "scored" else "forward"), program.line(20):
        for layer in range(2):
            with program.range("net:Stage" if kind == "stage" else f"net.layers.{layer}:Ring"):
                first = at + 100 * layer
                operator(program, "mm", first, [-1, -1], f"{Q}, {Q}", 50)
                operator(program, "mm", first + 1, [-1, -1], f"{Q}, {Q}", 50)
                operator(program, "empty_like", first + 2, [first + 1], Q)
                if kind == "behind":
                    attends(program, first + 5, first, first + 1)
                sent = first + 5 if kind == "stage" else first + 1
                if kind == "stage":
                    attends(program, first + 5, first, first + 1)
                with program.line(34, "Ring.forward"):
                    labelled(program, "send", first + 3, sent)
                    labelled(program, "recv_", first + 4, first + 2)
                    program.launch(200, SEND, stream=20 if kind == "beside" else 7)
                if kind not in ("behind", "stage"):
                    attends(program, first + 6, first, first + 1 if kind != "needed" else first + 2)
                attends(program, first + 7, first, first + 2)
                operator(program, "sum", first + 8, [first + 7], Q, 5)
    if kind != "scored":
        with program.line(21), program.range("backward"):
            program.launch(200)
    program.sync()


def exposed(folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> Finding:
    all_is_transfer(monkeypatch, _layer_exchanges)
    (found,) = Lined(SOURCE).run(lambda program, number: step(program, number, kind=kind)).found(folder, "NSX110")
    return found


@pytest.mark.parametrize("kind", ["before", "behind", "scored"])
def test_an_exchange_that_attention_could_hide_is_started_ahead(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = exposed(tmp_path, kind, monkeypatch)
    assert [r.name for r in found.remedies] == ["exchanged-ahead"]
    assert (found.where["file"], found.where["line"]) == (FILE, 34)
    saved, error = found.saving_ns_per_step or 0, found.saving.error_ns or 0
    assert saved + error <= 400_000 and saved > 100_000


@pytest.mark.parametrize("kind", ["needed", "stage"])
def test_what_the_next_work_needs_is_waited_for(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = exposed(tmp_path, kind, monkeypatch)
    assert "exchanged-ahead" not in [r.name for r in found.remedies]
    # Calls of several layers are no stages; those of one may be.
    assert ("micro-batches" in found.fix) == (kind == "stage")


def test_an_exchange_that_runs_beside_attention_is_not_told(tmp_path: Path) -> None:
    program = Lined(SOURCE).run(lambda program, number: step(program, number, kind="beside"))
    assert not program.found(tmp_path, "NSX110")


@pytest.mark.parametrize(
    ("kind", "columns"), [("columns", True), ("rows", False), ("a list of rows", False), ("no sizes", True)]
)
def test_layers_that_gather_rows_are_not_told_to_stay_split(kind: str, columns: bool, tmp_path: Path) -> None:
    """Rows of all ranks, such as those of a graph's nodes, are no outputs of a layer that is split over the ranks."""

    def body(program: Lined, number: int) -> None:
        if not number:
            noted(program.main, "ncclCommInitRankConfig", 1, 2, comm=5, of=2, Rank=0)
        at = 1000 * number + 10
        with program.range("forward"):
            for layer in range(2):
                with program.range(f"net.layers.{layer}:Conv"), program.line(20):
                    first = at + 100 * layer
                    operator(program, "mm", first, [-1, -1], "[512, 64], [64, 64]", 100)
                    with program.line(34, "Gather.forward"):
                        begin = program.t
                        program.launch(400, GATHER)
                        if program.noted is not None and kind != "no sizes":
                            name, whole = ("allgather_", "[]") if "list" in kind else ("_allgather_base_", "[1024, 64]")
                            given = f"sizes = [{whole}, [512, 64], []], input_op_ids = [(0,-1), ({first},0), (0,-1)]"
                            program.main.add_range(f"c10d::{name}, op_id = {first + 1}, {given}", begin, program.t)
                    shape = "[512, 128]" if columns else "[1024, 64]"
                    operator(program, "relu", first + 2, [first + 1], shape, 50)
                    operator(program, "sum", first + 3, [first + 2], shape, 5)
        program.sync()

    (found,) = Lined(SOURCE, {"wrappers": []}).run(body).found(tmp_path, "NSX110")
    assert ([r.name for r in found.remedies] == ["paired-splits"]) == columns


@pytest.mark.parametrize(
    ("kind", "told"), [("picked", True), ("viewed and picked", True), ("also whole", False), ("products", False)]
)
def test_rows_that_layers_take_by_number_are_sent_to_who_takes_them(
    kind: str, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(program: Lined, number: int) -> None:
        at = 1000 * number + 10
        with program.range("forward"):
            for layer in range(2):
                with program.range(f"net.layers.{layer}:Conv"), program.line(20):
                    rows = at + 100 * layer
                    operator(program, "mm", rows, [-1, -1], "[512, 64], [64, 64]", 100)
                    with program.line(34, "Gather.forward"):
                        begin = program.t
                        program.launch(400, GATHER)
                        if program.noted is not None:
                            given = f"sizes = [[1024, 64], [512, 64], []], input_op_ids = [(0,-1), ({rows},0), (0,-1)]"
                            program.main.add_range(
                                f"c10d::_allgather_base_, op_id = {rows + 1}, {given}", begin, program.t
                            )
                    gathered = rows + 1
                    if kind == "viewed and picked":
                        operator(program, "view", rows + 2, [gathered, -1], "[1024, 64], []")
                        gathered = rows + 2
                    name, by = ("mm", "[64, 64]") if kind == "products" else ("index_select", "[], [8000]")
                    operator(program, name, rows + 3, [gathered, -1, -1], f"[1024, 64], {by}", 100)
                    if kind == "also whole":
                        operator(program, "sum", rows + 4, [gathered], "[1024, 64]", 5)
                    operator(program, "sum", rows + 5, [rows + 3], "[8000, 64]", 5)
        program.sync()

    monkeypatch.setattr(_layer_exchanges, "exposed_transfer_ns", lambda *_: 500_000)
    (found,) = Lined(SOURCE, {"wrappers": []}).run(body).found(tmp_path, "NSX110")
    assert ([r.name for r in found.remedies] == ["rows-exchanged"]) == told
    if told:
        assert (found.where["file"], found.where["line"]) == (FILE, 34)
        assert found.saving.bound and found.saving_ns_per_step == 500_000

"""Messages of layers that are split over ranks: needed at once, cut apart again, added up; and layers that would fit on each GPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import polars as pl
import pytest

from nsysx.events.messages_of_layers import LayerMessages
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings import _added_reductions, _cut_outputs, _layer_messages
from nsysx.findings._case import Case
from nsysx.model import Finding
from nsysx.saving import Saving
from tests.findings import said_of
from tests.findings.lined import FILE, Lined
from tests.findings.test_smaller_operators import operator
from tests.ranks.test_rank_table import KERNELS, noted

SENDING = 34
SOURCE = {20: "y = self.up(x)", SENDING: "dist.all_reduce(y)", 40: "loss.backward()"}
OWN, ALL, SQUARE = "[64, 128]", "[64, 256]", "[128, 128]"
SETTINGS = {"wrappers": [], "checkpoints": 0}


def message(program: Lined, name: str, number: int, made: int, *, size: int = 16_384, us: float = 200) -> int:
    """A collective of what operator ``made`` made; returns the number of what came."""
    operator_of, sizes, result = {
        "ncclAllReduce": ("c10d::allreduce_", f"{OWN}, []", made),
        "ncclAllGather": ("c10d::_allgather_base_", f"{ALL}, {OWN}, []", number),
    }[name]
    given = f"({made},0)" if result == made else f"(0,-1), ({made},0)"
    begin = program.t
    with program.line(SENDING, "Row.forward"):
        program.host(2)
        start = program.t
        program.launch(us, KERNELS[name])
        noted(program.main, name, start, program.t, comm=5, size=size)
    if program.noted is not None:
        label = f"{operator_of}, op_id = {number}, sizes = [{sizes}], input_op_ids = [{given}, (0,-1)]"
        program.main.add_range(label, begin, program.t)
    return result


def layers(program: Lined, at: int, kind: str) -> None:
    """A product (300 us) whose result is sent (200 us), and what follows."""
    size = 512 if kind == "a metric" else 16_384
    operator(program, "linear", at, [-1, -1], f"{OWN}, {SQUARE}", 300)
    if kind in ("cut", "attended", "worked on and cut", "copied into", "read whole", "put together"):
        came = message(program, "ncclAllGather", at + 1, at)
        if kind == "put together":  # the parts of all ranks, beside each other
            operator(program, "chunk", at + 2, [came], ALL)
            operator(program, "cat", at + 3, [at + 2, at + 2], f"{OWN}, {OWN}", 5)
            came = at + 3
        if kind not in ("cut", "attended"):
            operator(program, "gelu", at + 4, [came], ALL, 10, "gelu")
            came = at + 4
        if kind != "put together":
            operator(program, "slice", at + 5, [came, -1], f"{ALL}, []")
            begin = program.t
            if kind == "copied into":  # what an operator makes for itself, and reads
                operator(program, "empty_like", at + 11, [at + 5], OWN)
                operator(program, "copy_", at + 12, [at + 11, at + 5], f"{OWN}, {OWN}", 5, "copy")
            operator(program, "clone", at + 9, [at + 5], OWN, 5, "copy", begin=begin)
            name, sizes = (
                ("scaled_dot_product_attention", f"{OWN}, {OWN}")
                if kind == "attended"
                else ("linear", f"{OWN}, {SQUARE}")
            )
            operator(program, name, at + 6, [at + 9, -1], sizes, 100)
        if kind in ("read whole", "put together"):
            operator(program, "linear", at + 7, [came, -1], f"{ALL}, [256, 128]", 100)
        return
    came = message(program, "ncclAllReduce", at + 1, at, size=size)
    if kind == "beside":
        operator(program, "linear", at + 2, [-1, -1], f"{OWN}, {SQUARE}", 100)
    if kind in ("a bias is converted", "as much is converted"):
        operator(program, "to", at + 2, [-1, -1], "[128], []" if "bias" in kind else f"{OWN}, []", 5)
    if kind in ("added", "three added", "scaled", "scaled by a tensor", "read between"):
        operator(program, "linear", at + 3, [-1, -1], f"{OWN}, {SQUARE}", 100)
        other = message(program, "ncclAllReduce", at + 4, at + 3)
        if kind.startswith("scaled"):  # a tensor may differ from rank to rank
            operator(program, "mul", at + 9, [other, at if "tensor" in kind else -1], f"{OWN}, []", 5)
            other = at + 9
        operator(program, "add", at + 5, [came, -1], f"{OWN}, {OWN}, []", 5)
        operator(program, "add", at + 6, [at + 5, other], f"{OWN}, {OWN}, []", 5)
        if kind == "three added":
            operator(program, "linear", at + 13, [-1, -1], f"{OWN}, {SQUARE}", 100)
            last = message(program, "ncclAllReduce", at + 14, at + 13)
            operator(program, "add", at + 16, [at + 6, last], f"{OWN}, {OWN}, []", 5)
        if kind == "read between":
            operator(program, "gelu", at + 7, [came], OWN, 5, "gelu")
        return
    operator(program, "add", at + 8, [came, -1], f"{OWN}, {OWN}, []", 5)
    if kind == "one input":
        for part in range(3):
            operator(program, "linear", at + 10 + part, [at + 8, -1], f"{OWN}, {SQUARE}", 100)


def step(program: Lined, number: int, *, kind: str, back: int) -> None:
    """Layers, and a backward that reduces ``back`` times as many bytes."""
    at = 1000 * number + 10
    if not number:
        noted(program.main, "ncclCommInitRankConfig", 1, 2, comm=5, of=2, Rank=0)
    if kind == "a gradient":  # an optimizer of its own, behind backward
        layers(program, at + 100, "needed")
    with program.line(20), program.range("forward"), program.range("net:Net"):
        operator(program, "linear", at + 90, [-1, -1], f"{OWN}, {SQUARE}", 300)
        if kind != "a gradient":
            layers(program, at, kind)
    with program.line(40), program.range("backward"):
        for _ in range(back):
            message(program, "ncclAllReduce", at + 60, at + 50)
        program.launch(300)
    program.sync()


def told(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch, *, back: int = 1, given: dict[str, object] | None = None
) -> dict[str, Finding]:
    """Return what NSX127 says of each setting, and NSX110 by its code."""

    def transfer(case: _layer_messages.Case, ops: frozenset[int]) -> int:
        theirs = case.ops.filter(case.ops["op"].is_in(list(ops)))
        return case.per_step(int((theirs["end_ns"] - theirs["start_ns"]).sum()))

    # One rank alone does not tell transfer from waiting.
    for room in (_cut_outputs, _added_reductions):
        monkeypatch.setattr(room, "transfer_of_ops_ns", transfer)
    program = Lined(SOURCE, {**SETTINGS, **(given or {})})
    program.run(lambda program, number: step(program, number, kind=kind, back=back))
    found = [f for f in said_of(program.write(folder)) if f.code in ("NSX110", "NSX127")]
    return {str(f.evidence[0]["setting"]) if f.code == "NSX127" and f.evidence else f.code: f for f in found}


@pytest.mark.parametrize(
    ("kind", "clear"),
    [
        ("needed", True),
        ("one input", True),
        ("put together", True),
        ("a bias is converted", True),  # too little to hide it
        ("as much is converted", False),
        ("beside", False),  # a product that needs nothing of it
        ("a metric", False),
        ("a gradient", False),
    ],
)
def test_what_the_next_operator_needs_cannot_begin_earlier(
    kind: str, clear: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = told(tmp_path, kind, monkeypatch)
    assert (found["NSX110"].verdict == "clear") is clear
    assert clear is ("needed by the next operator at once" in found["NSX110"].detail)
    assert not clear or "stream of collectives" not in found


def test_a_wrapper_that_gathers_parameters_sends_nothing_of_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = {"kind": "fully_shard", "count": 4}
    assert told(tmp_path, "needed", monkeypatch, given={"wrappers": [wrapper]})["NSX110"].verdict == "found"


@pytest.mark.parametrize(
    ("kind", "cut"),
    [
        ("cut", True),
        ("worked on and cut", True),
        ("copied into", True),
        ("read whole", False),
        ("put together", False),
        ("attended", False),
    ],
)
def test_outputs_that_are_gathered_and_cut_apart_again_stay_split(
    kind: str, cut: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cut_outputs, "gathers_outputs", lambda case: False)
    found = told(tmp_path, kind, monkeypatch, back=0).get("outputs cut apart again")
    assert (found is not None) is cut
    if found is not None:
        assert [way.name for way in found.remedies] == ["paired-splits"] and found.where["line"] == SENDING
        assert found.saving.bound and found.saving_ns_per_step == pytest.approx(200_000, rel=0.05)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("added", 1),
        ("three added", 2),
        ("scaled", 1),
        ("scaled by a tensor", 0),
        ("read between", 0),
        ("needed", 0),
    ],
)
def test_reductions_that_are_only_added_could_be_one(
    kind: str, more: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = told(tmp_path, kind, monkeypatch, back=0).get("reductions added up")
    assert (found is not None) is bool(more)
    if found is not None:
        assert [way.name for way in found.remedies] == ["sum-reduced-once"]
        assert (found.where["file"], found.where["line"]) == (FILE, SENDING)
        assert not found.saving.bound and found.saving_ns_per_step == pytest.approx(more * 200_000, rel=0.05)


GB = 1 << 30


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, True),
        ({"peak": 40}, False),  # two of it do not fit on one GPU
        ({"size": 64 << 20}, False),  # wide layers
        ({"share": 0.1}, False),
        ({"trains": False}, False),  # each GPU would read all weights for half of the requests
        ({"wrappers": [{"kind": "DDP"}]}, False),  # features of all samples, for a loss
        ({"late": True}, False),
        ({"count": 2}, False),
        ({"elements": 1 << 20}, True),  # gradients are as many bytes as the messages: backward hides them
        ({"elements": 4 << 20}, False),  # they take longer than the whole computation
        ({"added": True}, False),  # layers send more than they need
        ({"inputs": [{"rows": 2}]}, True),
        ({"again": True}, False),  # one tensor is sent for each of the layers
        ({"inputs": [{"rows": 1}]}, False),  # one sequence has no part for each of two ranks
    ],
)
def test_small_layers_that_fit_whole_on_each_gpu_need_no_messages(
    changed: dict[str, object], told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual: dict[str, object] = {
        "peak": 4,
        "size": 1 << 20,
        "share": 0.5,
        "trains": True,
        "wrappers": [],
        "late": False,
        "count": 8,
        "elements": 0,
        "added": False,
        "again": False,
        "inputs": None,
    }
    kind = SimpleNamespace(**{**usual, **changed})
    memory = {"total_bytes": 80 * GB, "reserved_peak_bytes": kind.peak * GB}
    monkeypatch.setattr(
        _layer_messages,
        "of_layers",
        lambda case: LayerMessages(at_once=frozenset(range(kind.count)), most_bytes=kind.size),
    )
    settings = {
        "memory": memory,
        "wrappers": kind.wrappers,
        "optimizers": [{"elements": kind.elements}],
        "inputs": kind.inputs,
    }
    monkeypatch.setattr(_layer_messages, "settings_of", lambda profile: RecordedSettings(settings))
    monkeypatch.setattr(_layer_messages, "gradients_apart", lambda case: "they are" if kind.added else "")
    monkeypatch.setattr(_layer_messages, "again_sent", lambda case: "they are" if kind.again else "")
    monkeypatch.setattr(_layer_messages, "added_up", lambda case: "")
    monkeypatch.setattr(_layer_messages, "exposed_share", lambda case, ops: 1.0)
    case = SimpleNamespace(
        ranks=SimpleNamespace(rows=({"straggler": kind.late}, {})),
        profile=None,
        steps=1,
        ops=pl.DataFrame({"op": [1], "phase": ["backward" if kind.trains else "forward"]}),
        step_ns=1000,
        taken_by=lambda parts: round(1000 * kind.share),
        bound=lambda ns, why: Saving(ns, why, bound=True),
    )
    found = _layer_messages.split_for_little(cast("Case", case), Finding("NSX110", "exposed-comm", "found", "", ""))
    assert (found is not None) is told
    if found is not None:
        assert [way.name for way in found.remedies] == ["data-parallel"] and found.saving.likely_ns == 500
        assert found.saving.bound and "8.0 GiB of 80.0 GiB" in found.detail

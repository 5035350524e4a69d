"""NSX127: calls of a sharded network before one backward that gather its parameters each, and calls that have to be by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nsysx.findings._fix import Fix
from nsysx.model import Finding
from tests.findings.lined import FILE
from tests.findings.test_added_reductions import Both
from tests.findings.test_smaller_operators import operator
from tests.findings.test_untrained_gathers import COPIES_OUT, GATHER, SCATTER, ordered

CHOSEN, REJECTED = 31, 32
SOURCE = {CHOSEN: "lp_c = seq_logp(model(chosen), labels_c)", REJECTED: "lp_r = seq_logp(model(rejected), labels_r)"}
UNITS, GATHER_US, KERNEL_US = 4, 400, 100


def settings(kind: str) -> dict[str, Any]:
    return {"wrappers": [{"kind": kind, "count": UNITS, "parameter_dtype": "bfloat16"}] if kind else [], "networks": []}


def call(program: Both, at: int, line: int, given: int, *, units: int = UNITS, gathers: bool = True) -> int:
    """A forward of a sharded network; return the number of what it makes."""
    with program.line(line, "main"), program.range("forward"), program.range("net:Net"):
        for unit in range(units):
            with program.range(f"net.blocks.{unit}:Block"), program.line(50, "Block.forward"):
                if gathers:
                    program.launch(GATHER_US, GATHER, stream=19)
                    ordered(program, 19, 7)
                    program.launch(5, COPIES_OUT)
                begin = program.t
                program.host(5)
                program.launch(KERNEL_US)
                if program.noted is not None:
                    made = f"({max(given, 0)},{-1 if given < 0 else 0})"
                    sizes = "sizes = [[64, 128], [128, 128]]"
                    text = f"aten::linear, seq = {at + unit}, op_id = {at + unit}, {sizes}, input_op_ids = [{made}, (0,-1)]"
                    program.main.add_range(text, begin, program.t)
                given = at + unit
    return given


def back(program: Both, *firsts: int) -> None:
    with program.backward():
        for at in reversed(firsts):
            for unit in reversed(range(UNITS)):
                program.launch(GATHER_US, GATHER, stream=19)
                ordered(program, 19, 7)
                begin = program.t
                program.launch(2 * KERNEL_US)
                program.node(f"LinearBackward0, seq = {at + unit}", begin)
                ordered(program, 7, 20)
                program.launch(GATHER_US, SCATTER, stream=20)


def step(program: Both, number: int, kind: str) -> None:
    at = 1000 * number + 10
    first = call(program, at, CHOSEN, -1)
    if kind == "micro-batches":
        back(program, at)
    if kind == "once":
        back(program, at)
    elif kind == "without gradients":
        call(program, at + 100, REJECTED, -1)
        back(program, at)
    else:
        given = first if kind == "of the result before" else -1
        call(program, at + 100, REJECTED, given, gathers=kind != "kept gathered")
        back(program, *((at + 100,) if kind == "micro-batches" else (at, at + 100)))
    operator(program, "mul_", at + 200, [-1, -1], "[128], []", 5)
    program.sync()


def found(folder: Path, kind: str = "", wrapper: str = "fully_shard") -> Finding | None:
    program = Both()
    program.source = {str(line): text for line, text in SOURCE.items()}
    program.settings = settings(wrapper)
    program.run(lambda program, number: step(program, number, kind))  # type: ignore[arg-type]
    told = program.found(folder, "NSX127")
    return next((f for f in told if f.evidence[0]["setting"] == "calls in turn"), None)


@pytest.mark.parametrize("wrapper", ["fully_shard", "FSDP"])
def test_chosen_and_rejected_answers_go_through_the_network_together(wrapper: str, tmp_path: Path) -> None:
    finding = found(tmp_path, wrapper=wrapper)
    assert finding is not None and (finding.where["file"], finding.where["line"]) == (FILE, REJECTED)
    assert [way.name for way in finding.remedies] == ["rows-in-one-call"] and finding.saving.bound
    assert "2 calls of Net (train.py:31, train.py:32)" in finding.detail and "4 units" in finding.detail
    # Of each unit a gather in forward, one in backward, and a scatter, some of which kernels hide.
    assert 0.4 * 3 * UNITS * GATHER_US < (finding.saving_ns_per_step or 0) / 1000 <= 3 * UNITS * GATHER_US * 1.02


@pytest.mark.parametrize(
    "kind", ["once", "micro-batches", "of the result before", "without gradients", "kept gathered"]
)
def test_calls_that_are_by_themselves_for_a_reason(kind: str, tmp_path: Path) -> None:
    assert found(tmp_path, kind) is None


def test_what_is_not_sharded_gathers_nothing_again(tmp_path: Path) -> None:
    assert found(tmp_path, wrapper="") is None


def test_the_paste_gives_the_same_rows() -> None:
    torch.manual_seed(0)
    words = nn.Embedding(20, 8)
    names: dict[str, Any] = {
        "torch": torch, "F": F, "model": words, "a": torch.randint(0, 20, (2, 5)), "b": torch.randint(0, 20, (3, 7)), "pad": 0,
    }  # fmt: skip
    exec(Fix.by_name("rows-in-one-call").paste, names)
    torch.testing.assert_close(names["first"][:, :5], words(names["a"]))
    torch.testing.assert_close(names["second"], words(names["b"]))

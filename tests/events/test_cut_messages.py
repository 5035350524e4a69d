"""Messages of which ranks cut their part again, among others of as many bytes."""

from __future__ import annotations

import polars as pl
import pytest

from nsysx.events.cut_messages import CutBack, Cuts, Sent, SentInLayer, ops_of_cuts

GATHER, REDUCTION = Sent("allgather", "7", 4096), Sent("reducescatter", "7", 4096)
#: Kind of message, module, whether each rank takes its part of it; and what backward sends.
FORWARD = [(GATHER, "attn", False), (GATHER, "attn.q", True), (GATHER, "attn.k", True), (REDUCTION, "attn.out", False)]
BACKWARD = [(GATHER, "attn.out"), (GATHER, "attn.out"), (REDUCTION, "attn.q")]
STEPS, LAYERS = 3, 2


def steady(*, cut: bool, modules: bool) -> tuple[pl.DataFrame, list[SentInLayer], Cuts]:
    xray, starts, back = [], set[int](), set[CutBack]()
    for layer in range(LAYERS):
        for i, (sent, name, is_cut) in enumerate(FORWARD):
            begin = 100 * layer + 10 * i
            path = f"layers.{layer}.{name}" if modules else f"layers.{layer}.attn"
            xray.append(SentInLayer(sent, path, begin))
            starts |= {begin} if is_cut and cut else set()
        if cut:
            back.add(CutBack(GATHER, f"layers.{layer}.{'attn.out' if modules else 'attn'}", 100 * layer + 25))
    rows = []
    for _ in range(STEPS):
        rows += [(sent, each, "forward") for each in range(LAYERS) for sent, *_ in FORWARD]
        rows += [(sent, each, "backward") for each in reversed(range(LAYERS)) for sent, _ in BACKWARD]
    names = [*(name for _, name, _ in FORWARD)] * LAYERS + [name for _, name in BACKWARD] * LAYERS
    frame = pl.DataFrame(
        [
            (i, 10 * i, False, phase, *sent, f"layers.{layer}.{names[i % len(names)] if modules else 'attn'}")
            for i, (sent, layer, phase) in enumerate(rows)
        ],
        schema=["op", "call_start_ns", "recompute", "phase", "kind", "communicator", "bytes", "module"],
        orient="row",
    )
    return frame, xray, Cuts(starts, back)


@pytest.mark.parametrize("modules", [True, False], ids=["modules", "functions"])
def test_gathers_of_outputs_are_told_from_those_of_inputs(modules: bool) -> None:
    frame, xray, cuts = steady(cut=True, modules=modules)
    ops = ops_of_cuts(frame, xray, cuts, STEPS)
    step = len(FORWARD) * LAYERS + len(BACKWARD) * LAYERS
    # In backward the gradient of the reduction comes first, then that of the cut.
    assert sorted(op for op in ops.ops if op < step) == [1, 2, 5, 6, 9, 12]
    assert len(ops.ops) == 6 * STEPS and ops.starts_ns == frozenset(cuts.starts_ns)


def test_inputs_that_are_needed_whole_are_no_cut_outputs() -> None:
    frame, xray, cuts = steady(cut=False, modules=True)
    assert not ops_of_cuts(frame, xray, cuts, STEPS).ops

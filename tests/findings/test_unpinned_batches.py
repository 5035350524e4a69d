"""Batches of a class of the program's own, which pin_memory=True of the loader leaves as they are; what else is copied has other advice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsysx.model import Finding
from tests.findings.lined import Lined, forward
from tests.findings.recorded_programs import from_host, recorded

COPY, BYTES = 14, 64 << 20
LOADER = {"pin_memory": True, "iterators": 1, "collate": "collate", "drawn": [7], "batches": [], "parts": []}
FOR_TESTS = {**LOADER, "pin_memory": False, "drawn": []}
METHOD = "Batch.to"
LINE = "return Batch(*(t.to(device, non_blocking=True) for t in (self.wave, self.label)))"


def told(
    folder: Path,
    text: str = LINE,
    function: str = METHOD,
    loaders: Iterable[Mapping[str, object]] = (LOADER,),
    pinned: int = 0,
) -> Finding:
    """Each step copies 64 MiB from pageable memory (6 ms), and some from pinned memory; then a network runs."""

    def body(program: Lined, number: int) -> None:
        with program.line(COPY, function):
            program.copy(6_000, "HtoD", bytes=BYTES)
        if pinned:
            with program.line(COPY + 1):
                program.copy(20, "HtoD", bytes=pinned, pageable=False)
        forward(program)
        program.sync()

    summary = Lined({COPY: text, COPY + 1: "y = y.cuda()"}, {"loaders": list(loaders)}).run(body).summary(folder)
    assert summary.answer is not None and summary.answer.do[0].where["line"] == COPY, "it is the first thing to do"
    return next(f for f in summary.findings or () if f.where.get("line") == COPY)


@pytest.mark.parametrize(
    ("text", "function", "loaders", "name"),
    [
        (LINE, METHOD, [LOADER], "Batch"),
        (LINE, "collated.<locals>.Clips.to.<locals>.<genexpr>", [LOADER], "Clips"),
        ("return Batch(self.wave.to(device, non_blocking=True), self.label)", METHOD, [LOADER], "Batch"),
        ("setattr(self, name, value.cuda(non_blocking=True))", "Graphs.move_to", [LOADER], "Graphs"),
        ("image = batch.image.to(device, non_blocking=True)", "main", [LOADER], "the class of the batch"),
        (LINE, METHOD, [LOADER, FOR_TESTS], "Batch"),
        (LINE, METHOD, [{**LOADER, "drawn": []}], "Batch"),
    ],
)
def test_the_class_of_the_batch_gets_a_method_that_pins(
    text: str, function: str, loaders: list[Mapping[str, object]], name: str, tmp_path: Path
) -> None:
    found = told(tmp_path, text, function, loaders)
    assert [way.name for way in found.remedies] == ["batch-that-pins"]
    assert f"Give {name} a method pin_memory()" in found.fix and f"a method of {name}\n" in found.paste
    assert found.saving_ns_per_step == pytest.approx(6_000_000, rel=0.1)
    assert not found.condition


def test_copies_that_block_need_more(tmp_path: Path) -> None:
    assert "non_blocking" in told(tmp_path, "self.wave = self.wave.to(device)").condition


@pytest.mark.parametrize(
    "kind",
    [
        {"loaders": [{**LOADER, "pin_memory": False}]},
        {"loaders": [{**LOADER, "collate": "default_collate"}]},
        {"loaders": [FOR_TESTS]},
        {"loaders": []},
        {"pinned": 32 << 20},
        {"text": "x = torch.from_numpy(frames).to(device, non_blocking=True)", "function": "main"},
    ],
)
def test_what_is_no_batch_of_that_loader_gets_other_advice(kind: dict[str, Any], tmp_path: Path) -> None:
    assert "batch-that-pins" not in [way.name for way in told(tmp_path, **kind).remedies]


@pytest.mark.parametrize("made", [False, True])
def test_what_the_step_makes_on_the_cpu_is_no_batch(
    made: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Lined.copy
    monkeypatch.setattr(Lined, "copy", lambda program, us, **kind: copy(program, 40 * us, **{**kind, "pageable": True}))
    model, frames = nn.Linear(64, 64), torch.randn(32, 64)

    def step() -> None:
        x = frames[:16]
        if made:
            x = x.mul(2.0)[:, :64]
        model(from_host(x)).pow(2).mean().backward()

    program = recorded(step, model, __file__, tmp_path)
    program.settings = {"loaders": [LOADER]}
    found = program.found(tmp_path, "NSX105")
    assert [way.name for way in found[0].remedies] == (["pinned-copies"] if made else ["batch-that-pins"])


class Batch:
    def __init__(self, wave: Tensor, boxes: list[Tensor], rate: int) -> None:
        self.wave, self.boxes, self.rate = wave, boxes, rate


def test_the_pasted_method_pins_all_that_an_object_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[Tensor] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor.clone())
    names: dict[str, Any] = {"torch": torch}
    exec(told(tmp_path).paste, names)
    monkeypatch.setattr(Batch, "pin_memory", names["pin_memory"], raising=False)
    batch = Batch(torch.ones(3), [torch.zeros(2), torch.ones(2)], 16_000)
    same = torch.utils.data._utils.pin_memory.pin_memory(batch)
    assert same is batch and len(pinned) == 3 and batch.rate == 16_000
    assert torch.equal(batch.wave, torch.ones(3)) and torch.equal(batch.boxes[1], torch.ones(2))

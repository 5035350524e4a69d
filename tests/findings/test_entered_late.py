"""NSX127: ``no_sync()`` that is entered behind the forward is told at its line, with the program's own lines as they are right."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from nsysx.findings._entered_late import Entered, pasted
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined
from tests.findings.test_nsx127_costly_settings import CLEAN, DDP

MICRO_STEPS = 4
SOURCE = {
    30: "        logits = self.model(video)",
    43: "        sync = contextlib.nullcontext() if last else self.model.no_sync()",
    44: "        with sync:",
    45: "            (loss / self.accum).backward()",
    50: "        for i, batch in enumerate(batches):",
    51: "            loss = self.compute_loss(batch)",
    52: "            self.backward(loss, last=i + 1 == self.accum)",
    54: "        self.optimizer.step()",
    60: "return engine.train_batch(batches)",
}
TRAIN = "Engine.train_batch"
OURS = "with contextlib.nullcontext() if i + 1 == self.accum else self.model.no_sync():"


def forward(program: Lined) -> None:
    with program.line(51, TRAIN):
        program.host(1)
        with program.line(30, "Engine.compute_loss"):
            program.host(1)
            with program.range("forward"), program.range("net:Net"):
                program.launch(500)


def backward(program: Lined, number: int) -> None:
    for line in (43, 44):
        with program.line(line, "Engine.backward"):
            program.host(1)
    with program.line(45, "Engine.backward"), program.range("backward"):
        program.launch(500)
        program.launch(300, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")


def told(folder: Path, *, late: bool) -> Finding:
    def body(program: Lined, number: int) -> None:
        with program.line(60, "step"):
            program.host(1)
            for micro in range(MICRO_STEPS):
                with program.line(50, TRAIN):
                    program.host(1)
                if not late:  # and something else is wrong: it is around both
                    with program.line(43, TRAIN):
                        program.host(1)
                forward(program)
                with program.line(52, TRAIN):
                    program.host(1)
                    backward(program, micro) if late else reduced(program)
            with program.line(54, TRAIN), program.range("optimizer SGD"):
                program.launch(50)

    settings = {**CLEAN, "wrappers": [DDP], "backwards": MICRO_STEPS, "reducing": 1}
    found = Lined(SOURCE, settings).run(body).found(folder, "NSX127")
    (finding,) = (f for f in found if f.evidence[0]["setting"] == "no_sync unused")
    return finding


def reduced(program: Lined) -> None:
    with program.line(45, "Engine.backward"), program.range("backward"):
        program.launch(500)
        program.launch(300, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")


def test_the_line_and_the_program_s_own_lines(tmp_path: Path) -> None:
    finding = told(tmp_path, late=True)
    assert (finding.where["file"], finding.where["line"]) == (FILE, 43)
    assert "train.py:43 enters it behind the forward" in str(finding.fix)
    assert finding.paste.splitlines() == [
        OURS,
        "    loss = self.compute_loss(batch)",
        "    self.backward(loss, last=i + 1 == self.accum)",
    ]


def test_what_is_entered_before_the_forward_is_no_such_line(tmp_path: Path) -> None:
    finding = told(tmp_path, late=False)
    assert finding.where.get("line") == 45 and "model.no_sync() if not last" in finding.paste


IN_LOOP = Entered(FILE, 12, "main", 11, 14, "main")


@pytest.mark.parametrize(
    ("late", "text", "paste"),
    [
        (
            IN_LOOP,
            {11: "    loss = model(x) / n", 12: "    sync = model.no_sync() if i < n - 1 else nullcontext()", 13: "    with sync:",
             14: "        scaler.scale(loss).backward()"},
            "with model.no_sync() if i < n - 1 else nullcontext():\n    loss = model(x) / n\n    scaler.scale(loss).backward()",
        ),
        (
            IN_LOOP._replace(line=13),
            {11: "    loss = model(x)", 12: "    if i < n - 1:", 13: "        with model.no_sync():", 14: "            loss.backward()",
             16: "        loss.backward()"},
            "with model.no_sync() if i < n - 1 else contextlib.nullcontext():\n    loss = model(x)\n    loss.backward()",
        ),
        (
            Entered(FILE, 3, "backward_of", 11, 12, "main"),
            {3: "    with net.no_sync() if wait else nullcontext():", 11: "    loss = net(x)", 12: "    backward_of(loss, i < 3)"},
            "with net.no_sync() if wait else nullcontext():  # net, wait: as at line 3\n    loss = net(x)\n    backward_of(loss, i < 3)",
        ),
        (IN_LOOP, {11: "    loss = model(x", 12: "    sync = model.no_sync()", 14: "    loss.backward()"}, None),
        (IN_LOOP, {11: "    loss = model(x)", 12: "    stack.enter_context(model.no_sync())", 14: "    loss.backward()"}, None),
    ],
)  # fmt: skip
def test_other_forms(late: Entered, text: Mapping[int, str], paste: str | None) -> None:
    assert pasted(late, text) == paste

"""NSX127: stages that run all forwards first and recompute them, and checkpoints that another order does not spare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsysx.model import Finding
from tests.findings.lined import FILE, Lined

SEND, REDUCE = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096>)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
BATCHES, ASKS, SCHEDULE, WORK_US = 6, 22, 9, 600
SOURCE = {20: "out = stage(x)", ASKS: "h = checkpoint(layer, h, use_reentrant=False)", 30: "out.backward(grad)"}


def forward(program: Lined, sent: str) -> None:
    outer = program.line(20), program.range("forward Stage"), program.range("net:Stage")
    with outer[0], outer[1], outer[2], program.line(ASKS, "forward"), program.range("net.layers.0:Layer"):
        program.launch(WORK_US)
    program.launch(20, sent)


def backward(program: Lined, sent: str, *, again: bool) -> None:
    with program.line(30), program.range("backward"):
        if again:
            with program.range("net.layers.0:Layer recompute"):
                program.launch(WORK_US)
        program.launch(2 * WORK_US)
    program.launch(20, sent)


def step(
    program: Lined, number: int, *, sent: str = SEND, again: bool = True, in_turn: bool = False, batches: int = BATCHES
) -> None:
    for _ in range(batches):
        forward(program, sent)
        if in_turn:
            backward(program, sent, again=again)
    for _ in range(0 if in_turn else batches):
        backward(program, sent, again=again)
    with program.range("optimizer SGD"):
        program.launch(50)
    program.sync()


def told(
    folder: Path,
    *,
    checkpoints: int = BATCHES,
    used: float = 0.9,
    source: dict[int, str] | None = None,
    named: dict[int, str] | None = None,
    **how: Any,
) -> list[Finding]:
    settings = {
        "checkpoints": checkpoints,
        "backwards": BATCHES,
        "places": {"schedule": f"{FILE}:{SCHEDULE}"},
        "memory": {"total_bytes": 140 << 30, "reserved_peak_bytes": round(used * (140 << 30))},
    }
    program = Lined({**SOURCE, **(source or {})}, settings)
    program.probe["of_ranks"] = {FILE: {str(line): text for line, text in (named or {}).items()}}
    found = program.run(lambda p, n: step(p, n, **how)).found(folder, "NSX127")
    return [f for f in found if f.evidence[0]["setting"] == "all forwards first"]


def test_all_forwards_first_that_need_checkpoints(tmp_path: Path) -> None:
    (finding,) = told(tmp_path)
    assert "All 6 forwards of a step run before its first backward" in finding.detail
    assert "that of 2 micro-batches at most" in finding.detail
    assert (finding.where["file"], finding.where["line"]) == (FILE, SCHEDULE)
    assert "Schedule1F1B(stage, n_microbatches=6," in finding.paste
    saving = finding.saving
    assert saving.bound and saving.likely_ns == pytest.approx(BATCHES * WORK_US * 1000, rel=0.05)


@pytest.mark.parametrize(
    "how",
    [
        {"in_turn": True},
        {"again": False},
        {"checkpoints": 0},
        {"used": 0.3},  # checkpoints are needless as it is
        {"batches": 2},  # as many as stages
        {"sent": REDUCE},  # no stages
    ],
    ids=["1F1B", "not recomputed", "no checkpoints", "free memory", "few", "no stages"],
)
def test_checkpoints_that_another_order_does_not_spare(how: dict[str, Any], tmp_path: Path) -> None:
    assert not told(tmp_path, **how)


BY_NAME = "schedule = get_schedule_class(t.order)(stage, n, loss_fn=loss_fn)"


@pytest.mark.parametrize(
    ("made", "named", "where", "pasted"),
    [
        (
            "schedule = ScheduleGPipe(stage, n, loss_fn=loss_fn)",
            {},
            SCHEDULE,
            "schedule = Schedule1F1B(stage, n, loss_fn=loss_fn)",
        ),
        (BY_NAME, {3: 'order: str = "GPipe"'}, 3, 'order: str = "1F1B"'),
        (
            BY_NAME,
            {3: "    parser.add_argument('--order', default='gpipe')"},
            3,
            "parser.add_argument('--order', default='1F1B')",
        ),
        (BY_NAME, {}, SCHEDULE, 'schedule = get_schedule_class("1F1B")(stage, n, loss_fn=loss_fn)'),
        (
            BY_NAME,
            {3: 'a = "GPipe"', 4: 'b = "GPipe"'},
            SCHEDULE,
            'schedule = get_schedule_class("1F1B")(stage, n, loss_fn=loss_fn)',
        ),
    ],
)
def test_the_order_is_changed_where_the_program_says_it(
    made: str, named: dict[int, str], where: int, pasted: str, tmp_path: Path
) -> None:
    (finding,) = told(tmp_path, source={SCHEDULE: made}, named=named)
    first, checkpoints = finding.paste.splitlines()
    assert (finding.where["line"], first.partition("  # ")[0]) == (where, pasted)
    assert checkpoints == f"# and, where memory then does, no checkpoints: line {ASKS} ({SOURCE[ASKS]})"

"""NSX110: lines that reduce activations, or the gradients of these, and lines that reduce the gradients of parameters."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsysx.findings import _line_causes, nsx114_host_stall
from tests.findings.lined import FILE, Lined
from tests.ranks.test_rank_table import ALL_REDUCE

LINE, TIMES = 30, 30


def step(program: Lined, number: int, *, where: str, evaluated: str, function: str) -> None:
    """A forward and a backward of 1 ms each, and 30 reductions of 50 us of a line: in one of them, or behind both."""
    main = program.main
    with program.line(20), program.range("forward"), program.range("net:Net"):
        program.launch(1000)
        if where == "forward":
            with program.line(LINE, function):
                for _ in range(TIMES):
                    program.launch(50, ALL_REDUCE)
    with program.line(21), program.range("backward"):
        if where == "backward":
            program.main = program.process.thread(150, "pt_autograd_0")
        program.launch(1000)
        for _ in range(TIMES if where == "backward" else 0):
            begin = program.t
            program.host(1)
            inside = program.t
            program.launch(50, ALL_REDUCE)
            if program.noted is not None:
                program.main.line(f"{FILE}:{LINE} {function}", inside, program.t)
            program.host(1)
            if program.noted is not None and evaluated:
                program.main.add_range(f"autograd::engine::evaluate_function: {evaluated}, op_id = 7", begin, program.t)
        program.main = main
    if where == "behind":
        with program.line(LINE, function):
            for _ in range(TIMES):
                program.launch(50, ALL_REDUCE)


@pytest.mark.parametrize(
    ("text", "where", "evaluated", "function", "of_parameters"),
    [
        ("dist.all_reduce(g)", "backward", "CopiedBackward", "Copied.backward", False),
        ("dist.all_reduce(grad)", "backward", "CopiedBackward", "Copied.backward", False),
        ("dist.all_reduce(grad)", "backward", "MulBackward0", "hook", False),  # a hook of an activation
        ("dist.all_reduce(g)", "backward", "", "Copied.backward", False),  # operators were not recorded
        ("dist.all_reduce(y)", "forward", "", "Row.forward", False),
        ("dist.all_reduce(grad)", "backward", "torch::autograd::AccumulateGrad", "hook", True),
        ("dist.all_reduce(p.grad)", "backward", "torch::autograd::AccumulateGrad", "hook", True),
        ("dist.all_reduce(p.grad)", "backward", "", "hook", True),
        ("dist.all_reduce(p.grad)", "backward", "RegisterPostBackwardFunctionBackward", "hook", True),
        ("dist.all_reduce(p.grad)", "behind", "", "step", True),
        ("dist.all_reduce(g)", "behind", "", "Trainer.backward", True),  # on the program's own thread
    ],
)
def test_gradients_of_activations_are_in_no_buckets(
    text: str, where: str, evaluated: str, function: str, of_parameters: bool, tmp_path: Path
) -> None:
    program = Lined({LINE: text})
    program.run(lambda p, n: step(p, n, where=where, evaluated=evaluated, function=function))
    told = [
        r.name
        for f in program.findings(tmp_path, "NSX110")
        for r in f.remedies
        if r.name in ("gradients-in-buckets", "waited-behind-backward")
    ]
    assert bool(told) is of_parameters


@pytest.mark.parametrize("backward", [{3}, set()])
def test_a_pause_at_such_a_line_has_no_advice_for_parameters(
    backward: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = {"file": FILE, "line": LINE, "function": "hook"}
    case: Any = SimpleNamespace(
        profile=SimpleNamespace(code=object),
        typed_rows=lambda table: [{"file": FILE, "line": LINE, "text": "dist.all_reduce(g)"}],
    )
    monkeypatch.setattr(nsx114_host_stall, "row_of", lambda code, line: 3)
    lines = SimpleNamespace(backward=backward, forward=set())
    monkeypatch.setattr(_line_causes, "activation_lines", lambda profile: lines)
    advice = nsx114_host_stall._of_its_text(case, where)
    assert (advice is None) == bool(backward)

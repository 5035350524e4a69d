"""NSX123: a line whose operators work on the CPU with one thread of many cores is told to take more; others are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.findings.lined import FILE, Lined, forward

CPU: dict[str, Any] = {"allowed": 16, "cores": 16, "quota": None, "torch_threads": 1}


def looking_up(program: Lined, operator: str, copies: bool) -> None:
    """A line that works on the CPU for 2 ms, in one operator or in Python, and a network that waits for it."""
    with program.line(30, "features"):
        begin = program.t
        program.host(2000)
        if copies:
            program.copy(5)
        if operator:
            program.main.add_range(f"{operator}, seq = 7, op_id = {begin}, sizes = [[9, 4], [9]]", begin, program.t)
    forward(program, launches=4, kernel_us=100)
    program.sync()


@pytest.mark.parametrize(
    ("operator", "copies", "cpu", "told"),
    [
        ("aten::index", False, {}, True),
        ("aten::index", False, {"torch_threads": 16}, False),
        ("aten::index", False, {"allowed": 2}, False),
        ("aten::index", False, {"quota": 1.5}, False),
        ("aten::randn", False, {}, False),  # numbers are drawn in turn
        ("aten::to", True, {}, False),  # it copies to the GPU
        ("", False, {}, False),
    ],
)
def test_a_line_that_works_on_the_cpu_with_one_thread_is_told_to_take_more(
    operator: str, copies: bool, cpu: dict[str, Any], told: bool, tmp_path: Path
) -> None:
    program = Lined({30: "return (table[songs] - mean) / std", 20: "y = net(x)"}, {"cpu": {**CPU, **cpu}})
    program.run(lambda p, _: looking_up(p, operator, copies))
    (found,) = program.found(tmp_path, "NSX123")
    assert (found.where["file"], found.where["line"]) == (FILE, 30)
    assert ("threads-cores" in [r.name for r in found.remedies]) == told
    assert ("torch.set_num_threads(16)" in found.paste) == told
    # What more threads leave is not known exactly; what another change leaves of it is not known at all.
    assert found.saving.bound != told
    assert found.saving_ns_per_step == pytest.approx(2_000_000, rel=0.1)

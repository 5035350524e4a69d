"""The line that calls a network between steps: of an X-ray that was still open when it was called."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from nsysx.events.code_lines import CodeLines
from nsysx.findings import _entered_networks as room
from nsysx.frames.intervals import StepFunction

#: Lines of main (its loop, and where it asks for an index), of what makes an index, and of a network that calls a layer.
LOOP, ASKS, MAKES, CALLS, LAYER = range(5)
PLACES = pl.DataFrame({"file": ["a.py"] * 5, "line": [90, 80, 50, 20, 10], "function": ["main"] * 5})
#: Stacks: 0 the loop, 1 to 3 from it to the layer in training, 4 to 7 to the layer by way of the index.
PLACE, PARENT = [LOOP, CALLS, LAYER, LOOP, ASKS, MAKES, CALLS, LAYER], [-1, 0, 1, -1, 0, 4, 5, 6]


def case(open_at_the_end: int, *, looked_at: bool = True, phase: str = "forward") -> Any:
    """Return a case whose step 3, from 1000 ns on, is followed by a network that is called at 2000 ns."""
    since = 1000 if looked_at else 100
    lines = StepFunction(np.array([since, since + 500, 2300]), np.array([0, open_at_the_end], np.int32))
    code = CodeLines(
        PLACES,
        place=np.array(PLACE),
        parent=np.array(PARENT),
        op=np.array([2, 1]),
        open={7: lines if looked_at else StepFunction(lines.times - 1500, lines.labels)},
    )
    steps = {"process": [1, 1], "index": [3, 4], "thread": [7, 7], "start_ns": [1000, 3000]}
    between = {"process": [1], "index": [3], "cpu_start_ns": [2000], "evaluation": [True]}
    profile = SimpleNamespace(
        code=lambda: code,
        attributed=SimpleNamespace(gpu_ops=pl.DataFrame({"op": [0, 1], "phase": [phase, phase]})),
        steps=SimpleNamespace(cpu=pl.DataFrame(steps), between=pl.DataFrame(between)),
    )
    return SimpleNamespace(profile=profile)


@pytest.fixture(autouse=True)
def no_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "texts", lambda _: {})


@pytest.mark.parametrize(("stack", "line"), [(7, 50), (6, 50), (5, 50), (4, 80), (2, None), (0, None), (-1, None)])
def test_the_innermost_line_that_no_forward_has_calls_it(stack: int, line: int | None) -> None:
    found = room.line_between_steps(case(stack))
    assert found == ({} if line is None else {"file": "a.py", "line": line})


def test_nothing_is_said_where_no_x_ray_saw_it_or_no_forward() -> None:
    assert room.line_between_steps(case(7, looked_at=False)) == {}
    assert room.line_between_steps(case(7, phase="backward")) == {}


def test_a_loop_that_ended_calls_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "texts", lambda _: {"a.py": {"50": "for batch in loader:"}})
    assert room.line_between_steps(case(7)) == {}

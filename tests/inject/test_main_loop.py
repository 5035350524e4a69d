"""The main loop of a program that calls no network, in each Python of this machine that tells of jumps (3.12 on)."""

from __future__ import annotations

import itertools
import json
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.inject.test_line_ranges import INJECT, _pythons
from tests.inject.test_probe import Lab, Net

#: Runs ``main`` of case.py beside the search, which is quick here; prints the rounds that were told and what is left behind.
HARNESS = """
import json, os, sys, threading, time, types
sys.path[:0] = [INJECT]
from nsysx_probe import main_loop, output, sources
from nsysx_probe.backend import nowhere

for name, value in {"LOOP_LOOK_S": 0.05, "LOOP_WATCH_S": 0.4, "LOOP_QUIET_S": 0.2}.items():
    setattr(main_loop, name, value)
torch = types.SimpleNamespace(__file__="/nowhere/torch/__init__.py", version=types.SimpleNamespace(cuda=None))
rounds, other = [], []
class Work:
    prepares = staticmethod(lambda: False)
    has_other_steps = staticmethod(lambda loop: bool(other))
    def round(self, what, place, *, anew):
        assert threading.current_thread() is threading.main_thread()
        rounds.append([os.path.basename(place[0]), place[1], anew, case.number])
        case.told += 1
faults = []
out = output.Output(nowhere("off"), {}, lambda: None)
out.fail = lambda what, error, *_: faults.append(repr(error)) or 0
found = main_loop.MainLoop(torch, out, sources.Sources(torch, {}), Work())
import case
found.start()
case.main(other)
before = len(rounds)
found.stop()
case.after()
monitoring = getattr(sys, "monitoring", None)
left = [] if monitoring is None else [monitoring.get_tool(n) for n in (3, 4, 5) if monitoring.get_tool(n) is not None]
print("\\n" + json.dumps({"rounds": rounds, "after": len(rounds) - before, "left": left,
    "faults": faults + out.errors, "told": monitoring is not None}))
"""

#: Begins each case; ``work`` has a loop of its own, whose rounds are short. A loop goes on until some of its rounds were told.
HEAD = """
import sys, time
number = told = 0
END = time.perf_counter() + (100 if hasattr(sys, "monitoring") else 1)
def goes_on():
    global number
    number += 1
    return told < 20 and time.perf_counter() < END
def work(s=0.004):
    end = time.perf_counter() + s
    while time.perf_counter() < end:
        sum(i for i in range(20))
def after():
    for _ in range(20):
        work(0.001)
"""


def run(python: str, folder: Path, case: str) -> dict[str, Any]:
    (folder / "case.py").write_text(HEAD + textwrap.dedent(case))
    (folder / "harness.py").write_text(f"INJECT = {str(INJECT)!r}\n{HARNESS}")
    done = subprocess.run(
        [python, "-B", str(folder / "harness.py")], env={"PATH": ""}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert told["left"] == [] and told["faults"] == [] and told["after"] == 0
    return told


@pytest.fixture(params=_pythons(), ids=lambda path: Path(path).parents[1].name if "versions" in path else "this")
def python(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def lines(told: dict[str, Any]) -> set[int]:
    return {line for _, line, *_ in told["rounds"]}


def line_of(folder: Path, text: str) -> int:
    return next(n for n, line in enumerate((folder / "case.py").read_text().splitlines(), 1) if text in line)


LOOPS = {
    "while": """
        def main(other):
            while goes_on():  # the loop
                for _ in range(2): work(0.002)
    """,
    "for, in a generator's hands": """
        def batches():
            while goes_on():
                work(0.002)
                yield 1
        def main(other):
            for x in batches():  # the loop
                work(0.002)
                if number % 2:
                    continue
                work(0.001)
    """,
    "asynchronous": """
        import asyncio
        async def serve():
            while goes_on():  # the loop
                await asyncio.sleep(0)
                work()
        def main(other):
            asyncio.run(serve())
    """,
    "in epochs of a second": """
        def epoch():
            for _ in range(200):  # the loop
                if not goes_on(): return
                work()
        def main(other):
            while told < 20 and time.perf_counter() < END:
                epoch()
    """,
}


@pytest.mark.parametrize("case", LOOPS.values(), ids=list(LOOPS))
def test_rounds_of_the_main_loop_are_told(python: str, tmp_path: Path, case: str) -> None:
    told = run(python, tmp_path, case)
    if not told["told"]:
        assert told["rounds"] == []
        return
    rounds = told["rounds"]
    numbers = [number for *_, number in rounds]
    apart = {after - before for before, after in itertools.pairwise(numbers)}
    assert len(rounds) >= 20 and apart <= {1, 2}, "each round once; two where an epoch ends"
    assert sum(after - before == 2 for before, after in itertools.pairwise(numbers)) <= 2
    assert rounds[0][0] == "case.py" and not any(anew for _, _, anew, _ in rounds)
    assert lines(told) <= {line_of(tmp_path, "# the loop"), line_of(tmp_path, "# the loop") + 1}


def test_another_loop_that_follows_is_found_anew(python: str, tmp_path: Path) -> None:
    told = run(
        python,
        tmp_path,
        """
        def main(other):
            global told
            while goes_on(): work()
            told = 0
            while goes_on(): work()
        """,
    )
    if told["told"]:
        first, second = sorted(lines(told))
        news = [n for n, (_, _, anew, _) in enumerate(told["rounds"]) if anew]
        assert len(news) == 1 and told["rounds"][news[0]][1] == second and told["rounds"][0][1] == first


@pytest.mark.parametrize(
    "case",
    [
        """
        def main(other):
            end = time.perf_counter() + 1.5
            while time.perf_counter() < end:
                sum(i for i in range(100))
        """,
        """
        def main(other):
            other.append("a network is called")
            for _ in range(300): work()
        """,
        """
        import sys
        def main(other):
            if hasattr(sys, "monitoring"):
                sys.monitoring.use_tool_id(sys.monitoring.COVERAGE_ID, "coverage")
            for _ in range(300): work()
        """,
        """
        def main(other):
            work(1.5)
        """,
    ],
    ids=["short rounds", "other steps", "coverage", "no loop of its own"],
)
def test_where_no_loop_is_the_main_one_nothing_is_told(python: str, tmp_path: Path, case: str) -> None:
    assert run(python, tmp_path, case)["rounds"] == []


def test_rounds_are_steps_until_a_network_is_called() -> None:
    lab = Lab(NSYSX_MARKS="few")
    try:
        work, steps = lab.probe.phases.sole_work, lab.probe.steps
        for _ in range(6):
            work.round("loop", ["/a/solve.py", 24], anew=False)
        told = lab.probe.status.record()["steps"]
        assert (told["rule"], told["count"], told["loop"]) == ("loop/round", 6, ["/a/solve.py", 24])
        work.round("another", ["/a/solve.py", 30], anew=True)
        assert (steps.first, steps.count, steps.loop) == (6, 1, ["/a/solve.py", 30])
        assert not work.has_other_steps(loop=True)
        net = Net()
        for _ in range(3):
            with torch.no_grad():
                net(torch.ones(2, 8))
        assert work.has_other_steps(loop=True)
        work.round("another", ["/a/solve.py", 30], anew=False)
        assert (steps.rule, steps.count, steps.loop) == ("forward/forward", 3, None)
    finally:
        lab.close()
    assert not lab.probe.out.errors

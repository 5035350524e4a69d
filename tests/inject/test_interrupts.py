"""Exceptions of the program's signal handlers that strike in the probe: each reaches the program, and the probe goes on."""

from __future__ import annotations

import dis
import functools
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nsysx_probe.interrupts
import nsysx_probe.line_tracing
import nsysx_probe.monitoring
import nsysx_probe.phase_ranges
import pytest

from tests.inject.test_probe_e2e import compare, nsys, profile
from tests.inject.test_starts import interpreters
from tests.light_torch import WITHOUT_META

__all__ = ["nsys"]

#: Nearly all of its time goes into the probe: its networks compute nothing, its optimizer has one parameter.
PROGRAM = (
    WITHOUT_META
    + """import json, random, signal, torch
Ended = tuple(type("Ended", (kind,), {}) for kind in KINDS)
torch.set_num_threads(1)
net = torch.nn.Sequential(*[torch.nn.Identity() for _ in range(4)])
weight = torch.ones(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.01)
def step():
    optimizer.zero_grad()
    net(weight).backward()
    optimizer.step()
def handler(number, frame):
    global raised
    raised += 1
    raise Ended[raised % len(Ended)]("time is up")
def until(before):  # in Python 3.13 what strikes in a loop's condition passes the handlers of exceptions beside the loop
    while raised == before:
        step()
signal.signal(signal.SIGALRM, handler)
for _ in range(20):
    step()
random.seed(1)
raised = reached = 0
for _ in range(TRIALS):
    before, reached_before = raised, reached
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.001))
            until(before)
        except Ended:
            reached += 1
    except Ended:
        reached += 1
    assert reached - reached_before == 1, (raised, reached)
print(raised == reached)
step()  # a step that was interrupted goes on in this one
probe = sys.modules.get("nsysx_probe.probe")
first = probe and probe._probe.steps.index
for _ in range(50):
    step()
if probe:
    out = probe._probe.out
    with open("after.json", "w") as file:
        json.dump([probe._probe.steps.index - first, out.thread.open, len(out.thread.phases), out.errors], file)
"""
)


def test_every_exception_of_a_handler_reaches_the_program(tmp_path: Path) -> None:
    """Of each kind 400, in turn."""
    kinds = "(Exception, TimeoutError, BaseException, KeyboardInterrupt)"
    (tmp_path / "program.py").write_text(PROGRAM.replace("KINDS", kinds).replace("TRIALS", "1600"))
    done, _ = compare(tmp_path, [sys.executable, "program.py"])
    assert (done.stdout, done.stderr) == ("True\n", "")
    assert json.loads((tmp_path / "after.json").read_text()) == [50, 0, 0, []]


def test_ranges_are_balanced_after_interrupts(nsys: str, tmp_path: Path) -> None:
    """In the report each range has an end (``profile`` checks it), and nothing nests deeper than before."""
    (tmp_path / "program.py").write_text(PROGRAM.replace("KINDS", "[Exception]").replace("TRIALS", "200"))
    run = profile(nsys, tmp_path, [sys.executable, "program.py"])
    assert (run.code, run.out.splitlines()[0]) == (0, "True"), run.err
    assert json.loads((tmp_path / "after.json").read_text()) == [50, 0, 0, []]
    assert depth(tmp_path / "r.sqlite") <= 4  # step, forward, network, its child


#: The probe sends to a list, by calls of C as those of nvtx are; what stays open after a strike is counted two steps later.
OPEN = """
import threading, nsysx_probe.backend, nsysx_probe.probe
sent = []
tape = nsysx_probe.backend.Backend("tape", str, sent.append, sent.pop, "".format, str, "".format)
nsysx_probe.probe.Probe(torch, tape, {"NSYSX_MARKS": "WHICH", "NSYSX_PAUSES": "0"}).arm()
"""


@pytest.mark.parametrize("marks", ["all", "few"])
def test_no_range_stays_open_wherever_a_signal_strikes(tmp_path: Path, marks: str) -> None:
    """4 in 1,000 strikes left a step open that had just ended, and all that followed was one level deeper."""
    lines = PROGRAM.replace("KINDS", "[Exception]").replace("TRIALS", "1500").split("print(raised == reached)")[0]
    program = lines.replace("torch.set_num_threads(1)", OPEN.replace("WHICH", marks) + "torch.set_num_threads(1)")
    (tmp_path / "program.py").write_text(program + f"step()\nstep()\nprint(raised == reached, len(sent)){LEAVE}")
    path = str(Path(nsysx_probe.interrupts.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("True 1\n", "")  # the open step


#: Nobody ends a probe that is armed by hand.
LEAVE = "\nimport os\nsys.stdout.flush()\nos._exit(0)\n"


#: Lines are on where the program begins to handle a signal, and so are followed by a tracer that its exceptions strike, too.
MID_STEP = (
    """
import nsysx_probe.xray
nsysx_probe.xray.backends.of_lines = lambda _: nsysx_probe.backend.Backend("tape", str, lines.append, lines.pop, "".format, str, "".format)
lines = []
"""
    + OPEN.replace(".arm()", "").replace("nsysx_probe.probe.Probe", "probe = nsysx_probe.probe.Probe")
    + "probe.arm()\n"
)
MID_STEP_TRIALS = """
random.seed(2)
xray, on, counted = probe.parts.xray.lines, 0, set()
raised = reached = 0
for _ in range(400):
    before = raised
    try:
        try:
            optimizer.zero_grad()
            net(weight)
            on += xray.on
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00005, 0.002))
            until(before)
        except Ended:
            reached += 1
    except Ended:
        reached += 1
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
    xray.why_not = None
    step()
    first = probe.steps.index
    for _ in range(5):
        step()
    counted.add(probe.steps.index - first)
print(raised == reached, on, counted, len(sent), probe.out.thread.phases, probe.out.errors)
"""


@pytest.mark.parametrize("waits", ["step()", "all(p is None for p in (1, 2)); any(given(3)); any(given(3))"])
def test_steps_are_counted_on_where_a_handler_is_new_in_an_xray_step(tmp_path: Path, waits: str) -> None:
    """About 1 in 100 strikes left a phase open, and no step was counted any more (Python 3.10 and 3.11).

    A generator that is given up drops what is raised in it: so is one of torch's optimizers, in each step.
    """
    begins = PROGRAM.replace("KINDS", "[Exception]").split("signal.signal(")[0]
    begins = begins.replace("        step()\n", f"        {waits}\n")
    begins += "def given(count):\n    for i in range(1, count):\n        yield i\n"
    begins = begins.replace("torch.set_num_threads(1)", MID_STEP.replace("WHICH", "all") + "torch.set_num_threads(1)")
    (tmp_path / "program.py").write_text(begins + "for _ in range(20):\n    step()\n" + MID_STEP_TRIALS + LEAVE)
    path = str(Path(nsysx_probe.interrupts.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True 400 {5} 1 [] []\n", "")


def test_no_handler_runs_between_a_functions_call_and_a_shielded_beginning() -> None:
    """What is told of each function that begins leaves the probe's own alone before it calls anything, after which handlers run.

    So it does with a generator that is given up, which drops what is raised in it: 25 of 600 exceptions were lost by Python 3.10.
    """
    code = nsysx_probe.phase_ranges.Phases.leave_simple.__code__
    engine: Any
    if hasattr(sys, "monitoring"):
        engine = nsysx_probe.monitoring.Monitoring(SimpleNamespace(passed_over=0))
        assert engine._begins(code, 0) is sys.monitoring.DISABLE
        told = nsysx_probe.monitoring.Monitoring._begins
    else:
        engine = nsysx_probe.line_tracing.Tracing(SimpleNamespace(passed_over=0))
        assert engine._called(SimpleNamespace(f_code=code), "call", None) is None
        told = nsysx_probe.line_tracing.Tracing._called
    before = itertools.takewhile(lambda i: not i.opname.startswith("RETURN"), dis.get_instructions(told))
    names = [instruction.opname for instruction in before]
    assert "CONTAINS_OP" in names and not [name for name in names if "CALL" in name]
    if told is nsysx_probe.line_tracing.Tracing._called:  # Python 3.10 runs handlers at jumps that are made
        assert len([name for name in names if "JUMP" in name]) == 1


#: Half of the jumps back are those of a condition. Standard library only.
LOOPS = """
import signal
from nsysx_probe import patch
entered = left = struck = 0
def enter(_):
    global entered
    entered += 1
def leave(_):
    global left
    left += 1
def work(items):
    while True:
        for item in items:
            if item is not None:
                item.real
def handler(number, frame):
    raise TimeoutError
patcher = patch.Patcher(lambda: False, print)
patcher.around(work, "work", "None", enter, leave)
signal.signal(signal.SIGALRM, handler)
items = [None, 1] * 1000
for _ in range(200):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        work(items)
    except TimeoutError:
        struck += 1
print(struck, entered == left > 100)
"""


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13), (3, 14)], ids=lambda v: ".".join(map(str, v)))
def test_what_strikes_where_a_loop_begins_again_leaves_by_the_probes_way(
    tmp_path: Path, version: tuple[int, int]
) -> None:
    """Python 3.13 has no handler of exceptions where a condition jumps back; three ranges stayed open after 1,500 strikes."""
    python = interpreters().get(version)
    if python is None:
        pytest.skip(f"no Python {version[0]}.{version[1]} on this machine")
    path = str(Path(nsysx_probe.interrupts.__file__).parents[1])
    environment = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    (tmp_path / "loops.py").write_text(LOOPS)
    command = [python, str(tmp_path / "loops.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("200 True\n", "")


def depth(database: Path) -> int:
    """Return how deep the ranges of steps, phases and modules nest: X-ray steps have those of operators and lines, too."""
    import sqlite3

    db = sqlite3.connect(database)
    rows = db.execute(
        "select globalTid, start, end from NVTX_EVENTS e left join StringIds s on s.id = e.textId"
        " where eventType = 59 and coalesce(e.text, s.value) not like '%op_id = %'"
        " and coalesce(e.text, s.value) not like '%program.py:%' order by 1, 2, 3 desc"
    ).fetchall()
    db.close()
    deepest, open_ = 0, []
    for thread, start, end in rows:
        open_ = [(t, e) for t, e in open_ if t == thread and e > start]
        open_.append((thread, end))
        deepest = max(deepest, len(open_))
    return deepest


def _caught(call: Any) -> BaseException:
    """Return the exception of ``call``, caught as the probe does."""
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_what_is_the_programs_and_what_is_the_probes() -> None:
    """A handler is known by its frame, also below library code, with any signature; another failure is the probe's."""
    of_program = nsysx_probe.interrupts.of_program

    def plain(_number: int, _frame: Any) -> None:
        raise TimeoutError

    def any_arguments(*_args: Any) -> None:
        raise ValueError

    class Callable:
        def __call__(self, number: int, frame: Any) -> None:
            raise OSError

    before = signal.getsignal(signal.SIGUSR1)
    try:
        for handler in (plain, any_arguments, Callable(), functools.partial(plain)):
            signal.signal(signal.SIGUSR1, handler)
            assert of_program(_caught(lambda: signal.raise_signal(signal.SIGUSR1)))
            assert of_program(_caught(lambda: sorted([1, 2], key=lambda _: signal.raise_signal(signal.SIGUSR1))))
            assert not of_program(_caught(lambda: json.loads("{")))
            assert not of_program(_caught(lambda: [][1]))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert of_program(_caught(lambda: sys.exit(1)))
    assert of_program(KeyboardInterrupt())

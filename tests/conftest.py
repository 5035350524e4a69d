"""What all tests share: property tests try the same examples every time, so that a failure belongs to the change at hand.

``pytest --hypothesis-profile=search`` tries others, and makes what fails as small as it can; ``NSYSX_EXAMPLES=300`` tries more.
"""

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import Phase, settings

# Each worker of pytest-xdist, and each program that a test starts, computes on one core: networks here are so small that a second
# thread only waits, which took more than half of the processor time of the tests with PyTorch.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Frames of a few rows, too: two threads of polars gave the core away to each other a million times in 66 tests, which took a sixth
# of their processor time. polars counts them when it is imported. What several threads make of a report: test_pipeline.
os.environ.setdefault("POLARS_MAX_THREADS", "1")

from nsysx.replay import tracing_costs
from tests.examples import examples
from tests.samples import PAIRS, Samples

# A job in the background of a script ignores Ctrl-C, and one of nohup that its terminal has gone, and so would each program that a
# test starts and interrupts, for good.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Looking for garbage took a third of the time in which the tests are collected: hundreds of thousands of objects, all of which stay.
gc.disable()


#: So many new objects make Python look for garbage among them, in place of 700: it looked among all objects, PyTorch's too, once in five
#: tests, which took a sixth of their time. A test makes twenty thousand; what it leaves goes within ten tests.
LOOK_FOR_GARBAGE_AFTER = 20_000


def pytest_collection_finish() -> None:
    """Look for garbage again, but not among the tests themselves."""
    gc.freeze()
    gc.set_threshold(LOOK_FOR_GARBAGE_AFTER, *gc.get_threshold()[1:])
    gc.enable()


#: Rooms whose tests start programs, and take minutes together: where the tests are shared out, they begin, so that none is left at the end.
PROGRAMS_FIRST = ("inject", "recording", "trying", "scripts", "serving")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that mostly wait for programs before those that compute, in the shares of half of the workers.

    Each worker begins with a stretch of one length: one alone would wait for programs to the very end, and all at once leave cores idle.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    programs: dict[Path, list[pytest.Item]] = {}
    computing = []
    for item in items:
        if item.path.parent.name in PROGRAMS_FIRST:
            programs.setdefault(item.path, []).append(item)  # a file stays whole: what its tests share is made once
        else:
            computing.append(item)
    waiting, total, begun = max(1, workers // 2), len(items), 0
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        if worker < waiting:
            ordered += (item for file in list(programs.values())[worker::waiting] for item in file)
        room = max(0, (worker + 1) * total // workers - len(ordered))
        ordered += computing[begun : begun + room]
        begun += room
    items[:] = ordered + computing[begun:]


# A report of a program takes half a second to read: making a failing one smaller took five minutes for each test.
_AS_FOUND = tuple(phase for phase in Phase if phase not in (Phase.shrink, Phase.explain))
settings.register_profile("same", derandomize=True, deadline=None, max_examples=examples(50), phases=_AS_FOUND)
settings.register_profile("search", derandomize=False, deadline=None, max_examples=examples(100))
settings.load_profile("same")

_FREE = tracing_costs.TracingCosts(
    "assumed", tracing_costs.ASSUMED.launch_ns, {name: tracing_costs.Cost(0, 0, 0) for name in tracing_costs.ASSUMED.of}
)


@pytest.fixture(autouse=True)
def untraced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracing costs nothing in reports that tests build: their truth is stated in the times that they hold.

    Marked ``traced`` are tests whose reports were recorded under a profiler, that are about what that costs, or that start
    processes of their own, where nothing is patched.
    """
    if not request.node.get_closest_marker("traced"):
        monkeypatch.setattr(tracing_costs, "ASSUMED", _FREE)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """The recorded samples. Processes of one session (pytest-xdist) share what is made of them."""
    folder = tmp_path_factory.getbasetemp()
    return Samples((folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "samples")


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """The recorded programs before a change, shared like the samples."""
    folder = tmp_path_factory.getbasetemp()
    return Samples((folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "pairs", PAIRS)

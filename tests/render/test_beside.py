"""Pictures that a process of its own draws: the same as here, and none is lost when that process is."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from nsysx.model import Summary
from nsysx.render import html_page, plots
from nsysx.render.charts import beside, canvas
from nsysx.render.charts.beside import DrawingProcess
from nsysx.render.charts.canvas import Chart
from tests.render import factory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")


@pytest.fixture
def job() -> Summary:
    """A Summary that has all pictures."""
    full = factory.summary()
    return replace(full, tables={**full.tables, "ranks": factory.ranks(4, 2)})


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> DrawingProcess:
    """A process that draws, also on a machine with one core."""
    monkeypatch.setattr(beside, "cores", lambda: 2)
    drawing = DrawingProcess.start()
    assert drawing is not None
    return drawing


def _drawn_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the figures that this process writes as SVG from now on."""
    seen: list[str] = []
    drawn: Callable[[Figure], bytes] = canvas.svg

    def svg(figure: Figure, title: str = "") -> bytes:
        seen.append(title)
        return drawn(figure)

    monkeypatch.setattr(canvas, "svg", svg)
    return seen


def test_the_page_is_the_same_and_nothing_of_it_is_drawn_here(
    job: Summary, process: DrawingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = html_page.render(job)
    here = _drawn_here(monkeypatch)
    with process:
        assert html_page.render(job, drawing=process) == alone
    assert not here and "data:image/svg" in alone
    with pytest.raises(ProcessLookupError):
        os.kill(process._pid, 0)


def test_a_process_that_dies_loses_no_picture(
    job: Summary, process: DrawingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = html_page.render(job)
    os.kill(process._pid, signal.SIGKILL)
    here = _drawn_here(monkeypatch)
    with process:
        assert html_page.render(job, drawing=process) == alone
    assert len(here) == alone.count("data:image/svg")


def test_a_process_that_hangs_is_given_up(
    job: Summary, process: DrawingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "DRAWING_PATIENCE_S", 0.05)
    os.kill(process._pid, signal.SIGSTOP)
    with process:
        assert html_page.render(job, drawing=process) == html_page.render(job)


def test_what_cannot_be_sent_is_drawn_here(job: Summary, process: DrawingProcess) -> None:
    one, other = list(plots.pictures(job))[:2]
    local = Chart("local", lambda: one.drawing(), "", "")
    with process:
        drawn = process.ahead([local, other])
        assert [chart.image for chart in drawn] == [one.image, other.image]


def test_there_is_none_where_no_process_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(beside, "cores", lambda: 2)
    monkeypatch.setattr(os, "fork", refused)
    assert DrawingProcess.start() is None
    monkeypatch.setattr(beside, "cores", lambda: 1)
    assert DrawingProcess.start() is None


_STARTED = """
import sys, time
from nsysx.render import html_page
from nsysx.render.charts import beside
beside.cores = lambda: 2
assert beside.DrawingProcess.start()
print("started", flush=True)
time.sleep(60)
"""


def test_it_ends_when_the_process_that_started_it_is_killed() -> None:
    end, held = os.pipe()
    with subprocess.Popen([sys.executable, "-c", _STARTED], stdout=subprocess.PIPE, pass_fds=(held,)) as program:
        os.close(held)
        assert program.stdout is not None and program.stdout.readline()
        assert not select.select([end], [], [], 0)[0], "both processes hold it"
        program.kill()
    assert select.select([end], [], [], 300)[0] and not os.read(end, 1), "none holds it any more"
    os.close(end)


_ENDED = """
from nsysx.render import html_page
from nsysx.render.charts import beside
beside.cores = lambda: 2
with beside.DrawingProcess.start():
    pass
"""


def test_it_leaves_no_folder_where_the_home_cannot_be_written(tmp_path: Path) -> None:
    made = {**os.environ, "HOME": "/nonexistent", "MPLCONFIGDIR": "/proc/none", "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", _ENDED], env=made, check=True)
    assert not list(tmp_path.iterdir())

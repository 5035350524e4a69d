"""Pictures drawn by a process of their own, while the report is read and its tables are written."""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import TracebackType
from typing import NoReturn

from nsysx.ranks.parallel_reading import cores
from nsysx.render.charts.canvas import Chart, Image
from nsysx.render.charts.style import import_now
from nsysx.render.render_bounds import DRAWING_PATIENCE_S

#: What can go wrong between two processes, and in what is sent from one to the other.
_LOST = (OSError, EOFError, pickle.PickleError, AttributeError, TypeError)


class DrawingProcess:
    """A copy of this process that imports matplotlib and draws; what it does not give is drawn here, so that no picture is lost.

    It is forked, because a new interpreter would import numpy and these modules once more: 0.2 s of processor time. Where that is not
    possible, and on a single processor, there is none. It ends when this process closes it or ends. It touches no table: polars' threads
    do not exist in it.
    """

    def __init__(self, pid: int, pipe: Connection) -> None:
        """Use `start`."""
        self._pid, self._pipe = pid, pipe
        self._images: list[Image] = []
        self._lost = False

    @staticmethod
    def start() -> DrawingProcess | None:
        """Return a process that draws, None where there can be none. Everything that draws must be imported."""
        if sys.platform != "linux" or cores() < 2:
            return None
        try:
            here, there = Pipe()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which are polars' own
                pid = os.fork()
        except OSError:
            return None
        if not pid:
            here.close()
            _draw(there)
        there.close()
        return DrawingProcess(pid, here)

    def ahead(self, charts: Sequence[Chart]) -> list[Chart]:
        """Return the charts, which are now being drawn; what cannot be sent is not among these. To be called once."""
        recipes: list[bytes] = []
        drawn = []
        for chart in charts:
            try:
                recipes.append(pickle.dumps(chart.drawing))
                drawn.append(replace(chart, ahead=partial(self._image, len(recipes) - 1)))
            except _LOST:
                drawn.append(chart)
        try:
            self._pipe.send(recipes)
        except _LOST:
            self._lost = True
        return drawn

    def _image(self, number: int) -> Image | None:
        """Return one of the pictures, None where the process does not give it."""
        try:
            while not self._lost and len(self._images) <= number:
                self._lost = not self._pipe.poll(DRAWING_PATIENCE_S)
                if not self._lost:
                    self._images.append(self._pipe.recv())
        except _LOST:
            self._lost = True
        return self._images[number] if number < len(self._images) else None

    def __enter__(self) -> DrawingProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        try:
            if self._lost:
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0 if kind is None else os.WNOHANG)  # after an error nobody waits for it
        except OSError:
            pass  # it has ended


def _draw(pipe: Connection) -> NoReturn:
    """Draw what is asked for until the other end is closed, and end this process without a word."""
    atexit._clear()  # that is for the process that this one was
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        import_now()
        for recipe in pipe.recv():
            chart = Chart("", pickle.loads(recipe), "", "")
            pipe.send(chart.image)
    finally:
        atexit._run_exitfuncs()  # a folder that matplotlib made where the home cannot be written
        os._exit(0)

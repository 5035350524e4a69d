"""What the probe reports about itself, in marks inside the capture and in probe-<pid>.json."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import at_work, bootstrap, capture_range, draining, worker_lines
from .backward import BackwardMarks
from .interrupts import of_program
from .output import Output
from .probe_parts import ProbeParts
from .qualified_names import Naming
from .settings_reader import SettingsReader
from .step_follower import StepFollower


class Status:
    """Collects the state of the probe's parts when it is asked."""

    def __init__(
        self,
        torch: Any,
        out: Output,
        parts: ProbeParts,
        backward: BackwardMarks,
        naming: Naming,
        steps: Callable[[], StepFollower],  # they tell ``borders``, which tells the status
    ) -> None:
        self.torch = torch
        self.out = out
        self.parts = parts
        self.steps = steps
        self.backward = backward
        self.naming = naming
        self.pid = os.getpid()
        self.reason: str | None = None
        self.lacks = ""  # the missing package without which there are no ranges
        self.pair_cost_ns: int | None = None
        self.forks = 0  # children of this process that are not followed
        self.kept: dict[str, Any] | None = (
            None  # the record of the kind of steps that has a window, until another one has
        )
        self.ended = False  # the counts are final, because Python is exiting or the capture has ended
        self.settings: SettingsReader | None = None
        self.profilers = 0  # how often the program started torch's profiler
        self.traces_cuda = False  # whether it asked that for CUDA

    def profiler_starts(self, profiler: Any) -> None:
        """Note that the program starts torch's own profiler; that of CUDA needs the one place that CUPTI has."""
        self.profilers += 1
        if self.settings is not None:
            self.settings.places.note("profiler")
        asked = getattr(profiler, "kineto_activities", None) or ()
        self.traces_cuda = self.traces_cuda or any(getattr(each, "name", "") == "CUDA" for each in asked)

    def forked(self) -> None:
        """Count a child; called in the parent."""
        self.forks += 1

    def hello(self) -> None:
        """Send a mark that tells the report which process records here, how, and at what cost."""
        self.out.info(
            {
                "pid": self.pid,
                "backend": self.out.backend.name,
                "pair_cost_ns": self.pair_cost_ns,
                "torch": str(self.torch.__version__),
                "backward": self.backward.wanted,
                "marks": self.parts.marking.on,
                "pauses": self.parts.pauses.listens,
            }
        )

    def counts(self) -> dict[str, Any]:
        """Return what the report needs to judge the ranges; the mark that carries the counts is not among them."""
        return {
            "pid": self.pid,
            "ranges": self.out.counted(),
            "steps": self._steps(),
            "marked_steps": self.parts.marking.steps,
        }

    def _steps(self) -> dict[str, Any]:
        steps = self.steps()
        return {
            "rule": steps.rule,
            "loop": steps.loop,
            "count": steps.count,
            "ranges": steps.index + 1,
            "first": steps.first,
            "last_closed_by": steps.closed_by,
            "empty": steps.empty,
            "unmarked_from": self.parts.marking.unmarked_from,
        }

    def record(self) -> dict[str, Any]:
        """Return the content of the probe file."""
        counted = self.out.counted()
        parts, window = self.parts, self.parts.window
        if self.settings is not None:  # what they say is changed there, before the steps
            places = self.settings.places
            made = [*(table["made"] for table in places.tables), *places.loader_lines]
            for line in (*made, *(places.noted.get(name, "") for name in ("checkpoint", "schedule"))):
                parts.xray.sources.ask(line)
        worker = worker_lines.noted(self.out.environ.get("NSYSX_PROBE_DIR"), self.pid, parts.xray.sources)
        return {
            "pid": self.pid,
            "replaced": capture_range.replaced(),
            "ppid": os.getppid(),
            "python": ".".join(map(str, sys.version_info[:3])),
            "torch": str(getattr(self.torch, "__version__", "")),
            "nvtx": _version("nvtx") if self.out.backend.name.startswith("nvtx") else None,
            "backend": self.out.backend.name,
            "reason": self.reason,
            "lacks": self.lacks,
            "ended": self.ended,
            "forks": self.forks,
            "ranges": counted,
            "ranges_pushed": sum(counted.values()),
            "pair_cost_ns": self.pair_cost_ns,
            "errors": self.out.errors,
            "backward": self.backward.wanted,
            "marks": parts.marking.wanted,
            "marked_steps": parts.marking.steps,
            "marks_cost_ns_per_step": window.marks_cost(),
            "unrecorded_steps": window.unrecorded(),
            "rest": parts.odometer.record(),
            "steps": self._steps(),
            "modules": len(self.naming.names),
            "aliases": self.naming.aliases,
            "capture_steps": None if window.first is None or window.last is None else [window.first, window.last + 1],
            "window_pauses_ns": window.pauses_ns,
            "windows": window.count,
            "earlier_kinds": parts.later.earlier,
            "windows_of": window.others or capture_range.had_by() or None,
            "device_waits": draining.waits,
            "tracing_waits": at_work.waits,
            "window_missed": window.never_opened(self.steps().index + 1, self.steps().rule),
            "operators": parts.operators.record(),
            "own_profiler": {"times": self.profilers, "cuda": self.traces_cuda} if self.profilers else None,
            "pauses": parts.pauses.listens,
            "pauses_left_out": parts.pauses.left_out,
            "ranks_apart": window.apart or None,
            "rank": self.out.environ.get("RANK") or self.parts.window.rank,
            "xray": parts.xray.record(),
            "long_steps": parts.long_steps.record(),
            "worker": worker,
            "source": parts.xray.sources.texts(),
            "of_ranks": parts.xray.sources.of_ranks(),
            "orders_of_ranks": parts.xray.sources.orders_of_ranks(),
            "options_of_layers": parts.xray.sources.options_of_layers(),
            "settings": self.settings.record(last=self.ended) if self.settings is not None else None,
        }

    def finish(self) -> None:
        """Write the final counts."""
        self.ended = True
        self.write()

    def closed(self) -> None:
        """Write the final counts, because the last window has closed; if ``nsysx run`` waits for that, make the file that tells it."""
        self.finish()
        folder = self.out.environ.get("NSYSX_PROBE_DIR")
        if folder and self.out.environ.get("NSYSX_THEN") == "stop":
            try:
                # Whoever ends one rank of a job has the others, or a new start of all: the launcher ends them together.
                process = os.getppid() if self.parts.window.together else self.pid
                (Path(folder) / capture_range.CLOSED).write_text(str(process))
            except OSError as error:
                self.out.wrong("NSYSX_THEN", error)

    def write(self) -> None:
        """Write the probe file, completely or not at all, if NSYSX_PROBE_DIR names a folder."""
        folder = self.out.environ.get("NSYSX_PROBE_DIR")
        if not folder:
            return
        try:
            path = Path(bootstrap.record_file(folder))
            scratch = path.with_suffix(".tmp")
            record = self.record() if self.kept is None else {**self.kept, "ended": self.ended}
            if self.parts.timing is not None and self.parts.timing.ended:
                record["timing"] = self.parts.timing.record()
            scratch.write_text(json.dumps(record) + "\n", encoding="utf-8")
            scratch.replace(path)
        except OSError as error:
            if of_program(error):  # a TimeoutError is an OSError
                raise


def _version(package: str) -> str | None:
    try:
        from importlib.metadata import version

        return version(package)
    except Exception:
        return None

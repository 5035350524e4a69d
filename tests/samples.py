"""The recorded samples, unpacked and summarized once in a test session, whichever of its processes asks first."""

from __future__ import annotations

import fcntl
import lzma
import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nsysx.model import Summary
from nsysx.pipeline import summarize
from nsysx.render import html_page
from nsysx.replay import tracing_costs

SAMPLES = Path(__file__).resolve().parent.parent / "sample_reports"
#: Programs before a change, for tests that need many kinds; ``Samples`` of this folder are the fixture ``pairs``.
PAIRS = SAMPLES / "pairs" / "reports"
PAIR_NAMES = sorted(f.name.removesuffix(".sqlite.xz") for f in PAIRS.glob("*.sqlite.xz"))
NAMES = sorted(f.name.removesuffix(".sqlite.xz") for f in SAMPLES.glob("*.sqlite.xz"))
#: Ranks that look like another one of theirs, for tests that are slow.
_ALIKE = ("ddp_four.rank1", "ddp_four.rank2", "ddp_per_rank.rank1")
DISTINCT = [name for name in NAMES if name not in _ALIKE]
#: One of each kind of program, for tests that take seconds for each.
KINDS = (
    "copies", "custom_add", "ddp", "event_linear", "gpt", "masked_nonzero", "masked_slow_loader", "tiny_stack", "varlen",
)  # fmt: skip

#: Before any test makes tracing free: the samples were recorded under a profiler.
RECORDED_COSTS = tracing_costs.ASSUMED


def unpack(name: str, folder: Path, source: Path = SAMPLES) -> Path:
    """Write a sample's report into a folder, with what the probe wrote beside it."""
    report = folder / f"{name}.sqlite"
    report.write_bytes(lzma.decompress((source / f"{name}.sqlite.xz").read_bytes()))
    beside = source / f"{name}.run.json"
    if beside.is_file():
        shutil.copy(beside, folder)
    return report


class Samples:
    """What is made of the samples, in a folder that the processes of a session share. Nobody changes what is in it."""

    def __init__(self, folder: Path, source: Path = SAMPLES) -> None:
        self._folder, self._source = folder, source
        self._reports = folder / "reports"
        self._reports.mkdir(parents=True, exist_ok=True)
        self._summaries: dict[str, Summary] = {}

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        with (self._folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _once(self, path: Path, make: Callable[[], Any]) -> Path:
        """Let ``make`` write a file, unless that was done; it has its name only when it is whole."""
        with self._alone(path.name):
            if not path.exists():
                part = path.with_name(f"{path.name}.part")
                part.write_bytes(make())
                part.rename(path)
        return path

    def report(self, name: str) -> Path:
        """Return the report of a sample, with its run.json beside it."""
        with self._alone(name):
            path = self._reports / f"{name}.sqlite"
            if not path.exists():
                folder = self._folder / f"{name}.part"
                folder.mkdir(exist_ok=True)
                unpack(name, folder, self._source)
                for file in sorted(folder.iterdir(), key=lambda f: f.suffix == ".sqlite"):  # the report is last
                    file.rename(self._reports / file.name)
        return path

    def summary(self, name: str) -> Summary:
        """Return the Summary of a sample, with its timelines."""
        if name not in self._summaries:
            path = self._once(self._folder / f"{name}.pickle", lambda: pickle.dumps(self._summarized(name)))
            self._summaries[name] = pickle.loads(path.read_bytes())
        return self._summaries[name]

    def _summarized(self, name: str) -> Summary:
        report = self.report(name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tracing_costs, "ASSUMED", RECORDED_COSTS)
            patch.chdir(report.parent)
            return summarize([Path(report.name)], timelines=True)

    def page(self, name: str) -> Path:
        """Return the page of a sample."""
        return self._once(self._folder / f"{name}.html", lambda: html_page.render(self.summary(name)).encode())

"""Every frame that a room hands to others has the columns that are declared for it, on all samples and with hardly a row."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from nsysx.analyses.helpers import kernel_shapes, one_time_cost
from nsysx.events import host_pieces, sampled_lines, work_operators
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import derived
from nsysx.frames.frame_columns import GPU_WINDOWS, HANDED_ON, undeclared
from nsysx.model import Column
from nsysx.pipeline import ReadingOptions, gather
from nsysx.replay.engine import idle_of
from tests.analyses.test_gil_waits import contended
from tests.analyses.test_gpu_metrics import report as sampled
from tests.analyses.test_gpu_metrics import true
from tests.analyses.test_host_lines import planted
from tests.analyses.test_operators import Torch, body
from tests.builder import Report
from tests.events.test_code_lines import program as xrayed
from tests.findings import Program

SAMPLES = sorted((Path(__file__).resolve().parents[2] / "sample_reports").glob("*.sqlite.xz"))


def wrong(profile: Profile) -> dict[str, list[str]]:
    found = {name: undeclared(operator.attrgetter(name)(profile), columns) for name, columns in HANDED_ON.items()}
    return {name: differences for name, differences in found.items() if differences}


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.name.removesuffix(".sqlite.xz"))
def test_frames_of_samples_are_as_declared(path: Path) -> None:
    assert wrong(gather(path, ReadingOptions())) == {}
    assert wrong(gather(path, ReadingOptions(steps="all"))) == {}


def test_frames_of_a_report_with_one_launch_are_as_declared(tmp_path: Path) -> None:
    report = Report()
    report.process(100).thread(100).launch(at=1000, dur=5, kernel="gemm", gpu_start=2000, gpu_dur=200)
    report.write(tmp_path / "one.sqlite")
    assert wrong(gather(tmp_path / "one.sqlite", ReadingOptions())) == {}


#: What makes each derived frame; None where the report does not hold it.
MAKES: dict[str, Callable[[Profile], pl.DataFrame | None]] = {
    "DOMAINS": lambda p: p.trace.domains,
    "NCCL_RANGES": lambda p: p.trace.nccl,
    "BACKTRACES": lambda p: p.trace.python_lines,
    "COUNTERS": lambda p: p.trace.gpu_metrics,
    "GIL": lambda p: p.ranges.gil,
    "LINE_RANGES": lambda p: p.ranges.lines,
    "LINES": lambda p: p.lines(),
    "WAIT_SITES": lambda p: p.wait_sites(),
    "IDLE_PIECES": lambda p: p.shown_idle(),
    "REAL_IDLE": lambda p: p.once(idle_of),
    "HOST_PIECES": lambda p: p.once(host_pieces.host_pieces),
    "OPERATORS": lambda p: work_operators.find(p.trace, p.ranges, p.attributed).rows,
    "HOST_LINES": lambda p: p.once(sampled_lines.host_lines).rows,
    "IDLE_SAMPLES": lambda p: p.once(sampled_lines.host_lines).seen,
    "PLACES": lambda p: p.once(sampled_lines.host_lines).places.places,
    "ONE_TIME_COSTS": one_time_cost.costs,
    "KERNEL_SHAPES": lambda p: p.once(kernel_shapes.shapes),
}


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> list[Profile]:
    """Reports that hold between them all that a derived frame is made of."""
    folder = tmp_path_factory.mktemp("derived")
    names = ("masked_lines", "ddp_per_rank.rank0", "event_linear")
    made = {
        "counters": sampled(true),
        "lock": Program().steps(contended, 12).report,
        "lines": Program().steps(planted, 12).report,
        "ops": Torch().steps(body, 3).report,
        "xray": xrayed().report,
    }
    files = [SAMPLES[0].with_name(f"{n}.sqlite.xz") for n in names]
    files += [report.write(folder / f"{name}.sqlite") for name, report in made.items()]
    return [gather(path, ReadingOptions()) for path in files]


def test_every_derived_frame_has_a_maker() -> None:
    declared = {n for n, c in vars(derived).items() if not n.startswith("_") and isinstance(c, tuple)}
    assert declared == set(MAKES)


@pytest.mark.parametrize("name", MAKES)
def test_derived_frames_are_as_declared(name: str, profiles: list[Profile]) -> None:
    columns: tuple[Column, ...] = getattr(derived, name)
    full = 0
    for profile in profiles:
        try:
            frame = MAKES[name](profile)
        except NotRecorded:
            continue
        if frame is not None:
            assert undeclared(frame, columns) == [], profile.trace.path.name
            full += frame.height > 0
    assert full, "a frame without a row says nothing"


def test_what_differs_from_a_declaration_is_named() -> None:
    frame = pl.DataFrame({"process": [1], "device": ["0"], "more": [1]})
    assert undeclared(frame, GPU_WINDOWS) == [
        "device: String instead of Int64",
        "end_ns: missing instead of Int64",
        "more: Int64 instead of nothing",
        "start_ns: missing instead of Int64",
    ]

"""Every frame that a room hands to others has the columns that are declared for it, on all samples and with hardly a row."""

from __future__ import annotations

import operator
from pathlib import Path

import polars as pl
import pytest

from nsysx.events.profile import Profile
from nsysx.frames.declared import GPU_WINDOWS, HANDED_ON, undeclared
from nsysx.pipeline import Options, gather
from tests.builder import Report

SAMPLES = sorted((Path(__file__).resolve().parents[2] / "sample_reports").glob("*.sqlite.xz"))


def wrong(profile: Profile) -> dict[str, list[str]]:
    found = {name: undeclared(operator.attrgetter(name)(profile), columns) for name, columns in HANDED_ON.items()}
    return {name: differences for name, differences in found.items() if differences}


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.name.removesuffix(".sqlite.xz"))
def test_frames_of_samples_are_as_declared(path: Path) -> None:
    assert wrong(gather(path, Options())) == {}
    assert wrong(gather(path, Options(steps="all"))) == {}


def test_frames_of_a_report_with_one_launch_are_as_declared(tmp_path: Path) -> None:
    report = Report()
    report.process(100).thread(100).launch(at=1000, dur=5, kernel="gemm", gpu_start=2000, gpu_dur=200)
    report.write(tmp_path / "one.sqlite")
    assert wrong(gather(tmp_path / "one.sqlite", Options())) == {}


def test_what_differs_from_a_declaration_is_named() -> None:
    frame = pl.DataFrame({"process": [1], "device": ["0"], "more": [1]})
    assert undeclared(frame, GPU_WINDOWS) == [
        "device: String instead of Int64",
        "end_ns: missing instead of Int64",
        "more: Int64 instead of nothing",
        "start_ns: missing instead of Int64",
    ]

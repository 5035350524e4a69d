"""Files beside a report, and packed ones, that never end, never begin or hold more than they say: said in a line, or left alone."""

from __future__ import annotations

import json
import lzma
import os
from pathlib import Path

import pytest

from nsysx import pipeline
from nsysx.errors import NsysxError
from nsysx.reading import as_sqlite, sidecar_files, tried
from tests.builder import Report
from tests.test_cli import nsysx


@pytest.fixture
def report(tmp_path: Path) -> Path:
    made = Report()
    made.process(100).thread(100, name="python").launch(at=1000, dur=500, kernel="gemm", gpu_start=2000, gpu_dur=4000)
    made.write(tmp_path / "t.sqlite")
    return tmp_path / "t.sqlite"


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _never(path: Path) -> None:
    os.mkfifo(path)


def _deep(path: Path) -> None:
    path.write_text("[" * 200_000 + "]" * 200_000)


def _folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [_endless, _never, _deep, _folder])
def test_a_file_beside_a_report_that_is_none_is_left_alone(report: Path, make: object) -> None:
    for ending in ("run", "try"):
        make(report.with_name(f"t.{ending}.json"))  # type: ignore[operator]
    done = nsysx("report", report)
    assert done.returncode == 0, done.stderr
    assert sidecar_files.run_json(report) == {} and tried.beside(report) == ()


def test_the_folder_of_a_report_by_its_shortest_name(report: Path) -> None:
    (report.with_name("t.run.json")).write_text(json.dumps({"command": ["python", "t.py"]}))
    for name in (".", "./", str(report.parent)):
        done = nsysx("report", name, cwd=report.parent, env={"COLUMNS": "200"})
        assert done.returncode == 0, done.stderr
        assert "-- python t.py" in done.stdout, "the record beside the report is read, not beside its folder"


def test_unpacking_stops_at_a_bound(report: Path, tmp_path: Path) -> None:
    """A few kB of zeros behind a small database unpack to 64 MiB."""
    packed = tmp_path / "b.sqlite.xz"
    packed.write_bytes(lzma.compress(report.read_bytes() + bytes(64 << 20)))
    for size, told in (("1M", "1.0 MiB"), ("33m", "33.0 MiB"), ("40000000", "38.1 MiB")):
        done = nsysx("report", packed, "--max-size", size)
        assert done.returncode == 3, done.stderr
        assert f"b.sqlite.xz: unpacks to more than {told}. If it is" in done.stderr
    (tmp_path / "nsysx.toml").write_text('[report]\nmax-size = "1M"\n')
    assert "more than 1.0 MiB" in nsysx("report", packed, cwd=tmp_path).stderr
    assert pipeline.summarize([packed], max_size="1G").capture.files == ("b.sqlite.xz",)


@pytest.mark.parametrize("size", ["", "0", "-1", "64X", "1.5G", "1e9", "9" * 5000])
def test_what_is_no_size_is_said(size: str) -> None:
    with pytest.raises(NsysxError, match="not a size"):
        as_sqlite.bytes_of(size)


def test_sizes() -> None:
    told = {"5": 5, "5k": 5 << 10, "5MB": 5 << 20, "5GiB": 5 << 30, "1T": 1 << 40}
    assert {size: as_sqlite.bytes_of(size) for size in told} == told


def test_a_file_beside_a_report_is_read(report: Path) -> None:
    report.with_name("t.run.json").write_text('{"exit_code": 3, "probe": [1, {"pid": 2}]}')
    assert sidecar_files.run_json(report) == {"exit_code": 3, "probe": [{"pid": 2}]}

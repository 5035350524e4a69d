"""``nsysx calibrate``: what its timings become, where they are kept, and what happens where nothing can be measured."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nsysx.errors import NsysxError
from nsysx.inject.nsysx_probe import calibration
from nsysx.recording import calibration_run
from nsysx.replay import tracing_costs
from tests.builder import Report

US = 1_000.0


def timings(added: float, host: float = 1.0, in_place: float = 1.0) -> dict[str, Any]:
    """One process in which every traced call costs ``added`` more, on a host that is ``host`` times as slow while it traces."""

    def pair(off: float, more: float) -> dict[str, list[float]]:
        return {"off": [off, 20 * US], "on": [off * host + more, 20 * US * host]}

    names = ["launch", "copy", "memset", "event", "sync", "other", "range_pair", "mark", "graph_launch"]
    calls = {name: pair(8 * US, added) for name in names}
    calls["graph_nodes"] = pair(10 * US, added + calibration.NODES * 100)
    counts = dict.fromkeys(("launch", "copy", "memset", "sync", "event", "other"), 0) | {"launch": 1000, "other": 500}
    step = pair(5_000 * US, 150 * added * in_place)
    return {
        "calls": calls,
        "step": step,
        "steps": 10,
        "counts": counts,
        "launch_ns": 6 * US,
        "other_ns": 90,
        "torch": "2",
    }


def test_costs_are_the_difference_at_the_hosts_speed() -> None:
    told = calibration_run.costs([timings(2 * US), timings(2 * US, host=1.8), timings(3 * US)])
    assert told["launch_ns"] == 6 * US
    assert told["costs"]["launch"] == {"ns": 2000, "low_ns": 2000, "high_ns": 3000}
    assert told["costs"]["range"]["ns"] == 1000
    assert told["costs"]["graph_node"]["ns"] == 100


def test_calls_in_a_program_cost_more_than_in_a_loop() -> None:
    told = calibration_run.costs([timings(2 * US, in_place=2.0)])["costs"]
    assert (told["launch"]["ns"], told["graph_launch"]["ns"]) == (4000, 2000)


def test_the_fastest_products_of_the_runs_are_kept() -> None:
    runs = [timings(2 * US) | {"products": p} for p in ({"bf16": 7e14, "tf32": 4e14}, {"bf16": 8e14}, {})]
    assert calibration_run.costs(runs)["products"] == {"bf16": 8e14, "tf32": 4e14}
    assert calibration_run.costs([timings(2 * US)])["products"] == {}


def test_the_reader_takes_what_is_written() -> None:
    told = {"schema": calibration_run.SCHEMA, **calibration_run.costs([timings(2 * US)])}
    read = tracing_costs.parsed(json.loads(json.dumps(told)), "modelled")
    assert read is not None
    assert (read.source, read.of["launch"].ns, read.of["graph_node"].ns) == ("modelled", 2000, 100)
    assert set(told["costs"]) <= set(read.of)


def test_traced_calls_are_counted_in_the_steps(tmp_path: Path) -> None:
    report = Report()
    process = report.process(100)
    process.context()
    main = process.thread(100, "python")
    main.launch(0, 9, kernel="before", gpu_start=100, gpu_dur=5)
    for k in range(3):
        main.launch(1000 + k * 100, 10 + k, kernel="a", gpu_start=2000 + k * 100, gpu_dur=5)
    main.call("cudaGetDevice_v3020", 1500, 5)
    main.add_range(calibration.STEPS_RANGE, 900, 3000)
    with closing(sqlite3.connect(report.write(tmp_path / "r.sqlite"))) as rows, rows:
        told = calibration_run.traced_calls(rows)
    assert (told["counts"]["launch"], told["counts"]["other"], told["launch_ns"]) == (3, 1, 11)


def test_a_profile_is_found_again_by_gpu_driver_and_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration_run, "gpu_and_driver", lambda: ("NVIDIA H200", "580.1"))
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    assert calibration_run.profile_of_machine("2025.3", cache) is None
    place = calibration_run.profile_path("NVIDIA H200", "580.1", "2025.3", cache)
    place.parent.mkdir()
    place.write_text(json.dumps({"schema": calibration_run.SCHEMA, "launch_ns": 1}))
    assert calibration_run.profile_of_machine("2025.3", cache) == {"schema": calibration_run.SCHEMA, "launch_ns": 1}
    assert calibration_run.profile_of_machine("2026.1", cache) is None
    place.write_text("half a fi")
    assert calibration_run.profile_of_machine("2025.3", cache) is None


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration_run, "gpu_and_driver", lambda: None)
    with pytest.raises(NsysxError, match="no NVIDIA GPU") as error:
        calibration_run.calibrate(Path("nsys"), "1", str)
    assert error.value.exit_code == 125
    assert calibration_run.profile_of_machine("1") is None


@pytest.mark.parametrize("nsys", ["/bin/false", "/nowhere/nsys", "/bin/true"])
def test_an_nsys_that_fails_leaves_no_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nsys: str) -> None:
    monkeypatch.setattr(calibration_run, "gpu_and_driver", lambda: ("GPU", "1"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(NsysxError, match="calibrate:"):
        calibration_run.calibrate(Path(nsys), "1", str)
    assert not list(tmp_path.rglob("*.json"))

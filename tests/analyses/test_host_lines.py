"""Host time by line: parts that sum to the ledger, and lines whose time is known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsysx import pipeline
from nsysx.analyses import cpu_ledger, gpu_ledger, host_lines
from nsysx.events.profile import NotRecorded, Profile
from nsysx.events.sampled_lines import interval, shared_out
from tests.findings import SAMPLED, US, Program, healthy

SITE = "/opt/venv/lib/python3.12/site-packages/torch"
LINE = "/home/me/train.py:12 augment"
OTHER = "/home/me/train.py:20 log"
ENGINE = f"{SITE}/autograd/graph.py:869 _engine_run_backward"


def gathered(program: Program, folder: Path) -> Profile:
    return pipeline.gather(program.report.write(folder / "r.sqlite"), pipeline.ReadingOptions())


def ledger(profile: Profile, cause: str) -> int:
    (row,) = gpu_ledger.table(profile).to_dicts()
    return int(row["idle_causes"].get(cause) or 0)


def rows(frame: pl.DataFrame, *columns: str) -> list[dict[str, Any]]:
    return frame.select(columns).to_dicts()


def planted(program: Program, number: int) -> None:
    """A step with 2 ms in one line of the user's, 1 ms in another inside a hook of torch, and launches that need no time."""
    with program.range("forward"):
        program.python(2_000, LINE, "/home/me/train.py:40 main")
        with program.range("net:Net"):
            program.launch(50)
            program.python(1_000, f"{SITE}/optim/adam.py:877 _fused_adam", OTHER, "/home/me/train.py:40 main")
            program.launch(50)
    program.sync()


def test_planted_lines_have_their_time(tmp_path: Path) -> None:
    profile = gathered(Program().steps(planted, 12), tmp_path)
    table = host_lines.table(profile)
    per_step = {r["line"]: profile.scope.per_step(r["idle_ns"]) for r in table.to_dicts()}
    assert per_step[12] == pytest.approx(2_000 * US, rel=0.1)
    assert per_step[20] == pytest.approx(1_000 * US, rel=0.1)
    first, second = rows(table, "file", "line", "function", "framework", "module", "phase")[:2]
    assert first == {
        "file": "/home/me/train.py", "line": 12, "function": "augment", "framework": None, "module": "net", "phase": "forward",
    }  # fmt: skip
    assert second["framework"] == "torch/optim/adam.py:_fused_adam"
    assert table["self_ns"].to_list()[:2] == [table["idle_ns"][0], 0]


def test_the_parts_sum_to_the_ledgers_to_the_nanosecond(tmp_path: Path) -> None:
    profile = gathered(Program().steps(planted, 12), tmp_path)
    table = host_lines.table(profile)
    assert table["idle_ns"].sum() == ledger(profile, "host_code")
    assert table["loader_idle_ns"].sum() == ledger(profile, "data_loader")
    (cpu,) = cpu_ledger.table(profile).to_dicts()
    assert table["host_ns"].sum() == cpu["outside_api_ns"]


def test_the_interval_holds_the_truth_and_names_itself(tmp_path: Path) -> None:
    profile = gathered(Program().steps(planted, 12), tmp_path)
    row = host_lines.table(profile).row(0, named=True)
    assert row["low_ns"] < row["idle_ns"] < row["high_ns"]
    assert row["samples"] == pytest.approx(profile.scope.steps * 2_000 / SAMPLED, rel=0.05)


def test_a_callers_line_holds_all_below_it(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        program.python(500, LINE, OTHER)
        program.launch(50)
        program.python(500, OTHER)
        program.launch(50)
        program.sync()

    profile = gathered(Program().steps(body, 12), tmp_path)
    table = host_lines.table(profile)
    total = dict(table.select("line", "total_ns").drop_nulls().iter_rows())
    own = dict(table.group_by("line").agg(pl.col("idle_ns").sum()).iter_rows())
    assert total[12] == pytest.approx(own[12], abs=10)
    assert total[20] == pytest.approx(own[12] + own[20], abs=10)


def test_time_without_a_sample_is_a_row_of_its_own(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        program.python(500, LINE)
        program.launch(50)
        program.host(3_000)
        program.launch(50)
        program.sync()

    profile = gathered(Program().steps(body, 12), tmp_path)
    table = host_lines.table(profile)
    (rest,) = table.filter(pl.col("function") == host_lines.NOT_SAMPLED).to_dicts()
    assert (rest["file"], rest["line"], rest["samples"], rest["low_ns"]) == (None, None, 0, None)
    # A sample speaks for ten periods before and behind it, at the most.
    assert profile.scope.per_step(rest["idle_ns"]) == pytest.approx((3_000 - 20 * SAMPLED) * US, rel=0.1)
    assert table["idle_ns"].sum() == ledger(profile, "host_code")


def backward(program: Program, number: int) -> None:
    """Autograd's thread launches late, and the main thread waits for its backward pass."""
    program.launch(20)
    begin, autograd = program.t, program.process.thread(101)
    for _ in range(3):
        program.python(400, ENGINE, LINE)
        start = program.queue(20, 7)
        autograd.launch(program.t, 5 * US, kernel="dgrad", gpu_start=start, gpu_dur=20 * US)
        program.host(6)
    program.main.add_range("backward", begin, program.t, domain="nsysx")
    program.sync()


def test_for_autograds_thread_speaks_who_called_backward(tmp_path: Path) -> None:
    profile = gathered(Program().steps(backward, 12), tmp_path)
    table = host_lines.table(profile)
    first = table.row(0, named=True)
    assert (first["line"], first["framework"]) == (12, "torch/autograd/graph.py:_engine_run_backward")
    assert first["idle_ns"] > 0.9 * ledger(profile, "host_code")
    assert table["idle_ns"].sum() == ledger(profile, "host_code")


def test_another_threads_samples_say_nothing_of_it(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        begin = program.t
        planted(program, number)
        other = program.process.thread(107, "logger")
        for at in range(begin, program.t, SAMPLED * US):
            other.sample(at, ["/home/me/logger.py:3 write"])

    table = host_lines.table(gathered(Program().steps(body, 12), tmp_path))
    assert "/home/me/logger.py" not in table["file"].to_list()


def test_what_would_record_it(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        program.host(100)
        program.launch(20)
        program.sync()

    with pytest.raises(NotRecorded) as said:
        host_lines.table(gathered(Program().steps(body), tmp_path))
    assert said.value.fix == "nsys profile --python-sampling=true"


def test_samples_without_frames_are_no_zero(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        planted(program, number)

    program = Program().steps(body)
    program.report.null("NVTX_EVENTS", "jsonText")
    profile = gathered(program, tmp_path)
    with pytest.raises(NotRecorded, match="hold no frames"):
        host_lines.table(profile)


@given(
    st.lists(st.tuples(st.integers(0, 1 << 59), st.lists(st.integers(1, 1_000), min_size=1, max_size=30)), max_size=5)
)
def test_whole_parts_sum_to_the_stratum(strata: list[tuple[int, Sequence[int]]]) -> None:
    frame = pl.DataFrame(
        [(i, whole, sum(counts), n) for i, (whole, counts) in enumerate(strata) for n in counts],
        schema=dict.fromkeys(("stratum", "whole", "all", "weight"), pl.Int64),
        orient="row",
    )
    out = shared_out(frame)
    sums = dict(out.group_by("stratum").agg(pl.col("ns").sum()).iter_rows())
    assert sums == {i: whole for i, (whole, _) in enumerate(strata)}
    exact = out["whole"].to_numpy() / out["all"].to_numpy() * out["weight"].to_numpy()
    assert np.allclose(out["ns"].to_numpy(), exact, rtol=1e-9, atol=1)


def test_wilsons_interval() -> None:
    """Held against the figures that the paper's formula gives by hand: 8 of 10 lie between 49.0 % and 94.3 %."""
    frame = pl.DataFrame({"n": [8, 0, 10], "of": [10, 10, 10], "whole": [100_000] * 3})
    found = frame.select(interval(pl.col("n") / pl.col("of"), pl.col("of"), pl.col("whole")))
    assert found.rows()[0] == (pytest.approx(49_016, abs=5), pytest.approx(94_331, abs=5))
    assert found.rows()[1][0] == 0
    assert found.rows()[2][1] == 100_000


def test_the_quality_of_the_capture_says_how_much_was_sampled(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        planted(program, number)
        program.host(9_000)
        program.launch(50)
        program.sync()

    (whole,) = [c for c in Program().steps(planted, 12).summary(tmp_path).quality if c.check == "python samples"]
    assert whole.status == "ok"
    assert "on 1 thread, one every 50.0 us" in whole.detail and "100 % of its time has a line" in whole.detail
    (part,) = [c for c in Program().steps(body, 12).summary(tmp_path).quality if c.check == "python samples"]
    assert part.status == "warn"
    assert not [c for c in Program().steps(healthy).summary(tmp_path).quality if c.check == "python samples"]

"""How long the device idles for a line is one figure, in the headline and in the finding: tracing is taken out gap by gap in both."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from nsysx import units
from nsysx.catalogue import Cause
from nsysx.events.code_lines import CodeLines
from nsysx.events.profile import Profile
from nsysx.pipeline import ReadingOptions, gather
from nsysx.replay.engine import idle_of, replay_of
from nsysx.replay.idle_lines import by_line
from tests.findings.lined import FILE, Lined, forward
from tests.samples import NAMES, Samples

TEXT = {12: "order = sorted(rows, key=cost)", 20: "loss = net(x)", 30: "loss.item()"}


def traced_launches_beside_a_line(program: Lined, number: int) -> None:
    """Line 12 computes on the CPU without a call, so no tracing is in it; line 20 makes 200 launches, each of which is traced."""
    with program.line(12):
        program.host(4_000)
    forward(program, 200)
    with program.line(30):
        program.sync()


@pytest.mark.traced
def test_the_headline_and_the_finding_say_the_same_time(tmp_path: Path) -> None:
    summary = Lined(TEXT).run(traced_launches_beside_a_line).summary(tmp_path)
    (finding,) = (f for f in summary.findings or () if f.code == "NSX123" and f.verdict == "found")
    assert finding.where["line"] == 12
    told = re.search(r", ([\d.]+ ms) of it in train\.py:12", summary.verdict.sentence)
    assert told is not None, summary.verdict.sentence
    cost_ns = finding.cost_ns_per_step or 0
    assert float(told[1].split()[0]) == pytest.approx(cost_ns / 1e6, abs=0.06)
    assert units.duration(cost_ns) in finding.title
    # Evenly divided, the line would lose as large a share as the launches do.
    (row,) = (r for r in summary.tables["lines"].rows if r["line"] == 12)
    profile = gather(tmp_path / "r.sqlite", ReadingOptions())
    idle = profile.once(idle_of)
    evenly = row["idle_caused_ns"] / profile.scope.steps * idle["real_ns"].sum() / idle["ns"].sum()
    assert cost_ns > 1.1 * evenly, "the case tells nothing: both divisions agree"


def check_sums(profile: Profile) -> None:
    """The idle time of lines and the device's own are all idle time, which is that of the step."""
    idle, lines = profile.once(idle_of), by_line(profile)
    launching = idle["cause"] == Cause.LAUNCH_LATENCY.number
    own = idle.filter(idle["thread"].is_null() & ~launching)
    for column in ("ns", "real_ns"):
        assert lines[column].sum() + own[column].sum() == pytest.approx(idle[column].sum(), rel=1e-9)


@pytest.mark.traced
def test_the_parts_are_all_idle_time(tmp_path: Path) -> None:
    Lined(TEXT).run(traced_launches_beside_a_line).write(tmp_path)
    profile = gather(tmp_path / "r.sqlite", ReadingOptions())
    check_sums(profile)
    replay = replay_of(profile)
    of_step = replay.unprofiled.step_ns * (1 - replay.unprofiled.gpu_busy)
    assert profile.scope.per_step(profile.once(idle_of)["real_ns"].sum()) == pytest.approx(of_step, abs=2)


@pytest.mark.traced
@pytest.mark.parametrize("name", NAMES)
def test_the_parts_of_samples_are_all_idle_time(recorded: Samples, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line was noted in the samples, so calls and GPU ops get one of two in turn."""
    profile = gather(recorded.report(name), ReadingOptions())
    places = pl.DataFrame({"file": [FILE] * 2, "line": [12, 20], "function": ["step"] * 2})
    both, calls = np.arange(2), np.arange(profile.attributed.api_calls.height)
    alone = np.full(2, -1)
    code = CodeLines(
        places, both, alone, both, alone > 0, calls % 2, np.arange(profile.attributed.gpu_ops.height) % 2, of=calls
    )
    monkeypatch.setattr(Profile, "code", lambda _: code)
    check_sums(profile)
    assert set(by_line(profile)["place"]) <= {0, 1}

"""Idle time that a line of the program explains is never given to launches."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from nsysx.findings import _held
from tests import reports
from tests.findings import US, Program
from tests.findings.lined import Lined, forward

TEXT = {12: "x = torch.tensor([rows[j] for j in k])", 20: "loss = net(x)"}


def launches_alone(program: Lined, number: int) -> None:
    forward(program, 160)
    with program.line(21), program.range("optimizer AdamW"):
        program.launch(4)
    with program.line(30):
        program.sync()


def with_data(program: Lined, number: int) -> None:
    """Line 12 makes 9 ms of data from lists, which are copied; then the same launches."""
    with program.line(12):
        program.host(9_000)
    with program.line(13):
        program.copy(20)
    launches_alone(program, number)


def test_launches_get_nothing_of_what_a_line_takes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (without,) = Lined(TEXT).run(launches_alone).findings(tmp_path / "a", "NSX102")
    (with_,) = Lined(TEXT).run(with_data).findings(tmp_path / "b", "NSX102")
    assert without.verdict == "found"
    assert 1_000 * US < (without.saving.likely_ns or 0) <= (without.saving.most_ns or 0) < 2_500 * US
    assert with_.verdict == "found", "the launches are still there"
    assert "other host code" not in without.title
    assert with_.title.partition(", and ")[2].endswith(" for other host code"), "the bar of the step has both as one"
    assert (with_.saving.likely_ns or 0) == pytest.approx(without.saving.likely_ns, rel=0.2)
    assert (with_.saving.most_ns or 0) < 2_800 * US, "not at best, either"
    assert (with_.cost_ns_per_step or 0) < 3_500 * US


def test_a_pause_of_an_unknown_line_is_not_saved_either(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        for part in range(40):
            program.host(10 if part != 20 else 4_000)
            program.launch(4)
        program.sync()

    finding = Program().steps(body).finding(tmp_path, "NSX102")
    assert finding.verdict == "found"
    assert 300 * US < (finding.saving.likely_ns or 0) < 900 * US


def test_a_slow_host_is_not_a_line(tmp_path: Path) -> None:
    """A line that takes 80 us for each of its launches, as all others do: that is what launching costs there."""

    def body(program: Lined, number: int) -> None:
        with program.line(20), program.range("forward"), program.range("net:Net"):
            for _ in range(60):
                program.host(80)
                program.launch(4)
        with program.line(30):
            program.sync()

    (finding,) = Lined(TEXT).run(body).findings(tmp_path, "NSX102")
    assert finding.verdict == "found"
    assert (finding.saving.likely_ns or 0) > 2_000 * US


@pytest.mark.parametrize(("pause_us", "apart"), [(450, False), (700, False), (900, True), (1_700, True)])
def test_a_pause_is_apart_from_half_a_millisecond_and_twenty_usual_ones_on(
    tmp_path: Path, pause_us: int, apart: bool
) -> None:
    """Of a host that takes 40 us from launch to launch."""

    def body(program: Program, number: int) -> None:
        for part in range(30):
            program.host(40 if part != 15 else pause_us)
            program.launch(4)
        program.sync()

    program = Program().steps(body)
    profile = reports.gather(program.report, tmp_path)
    assert len(_held.held(profile)) == (profile.scope.steps if apart else 0)


def test_what_was_waiting_for_a_later_rank_is_held_as_that_rank_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three quarters of 400 ns were waiting for a rank that idles 100 ns, 20 of them for such code; the rest is as here, 40 of 400."""
    here, late = (SimpleNamespace(once=lambda _, ns=ns: pl.DataFrame({"real_ns": [ns]})) for ns in (400, 100))
    replay: Any = object.__new__(_held.Replay)
    monkeypatch.setattr(_held.Replay, "turned_share", 0.75)
    monkeypatch.setattr(_held, "replay_of", lambda _: replay)
    monkeypatch.setattr(_held, "late_rank_of", lambda _: late)
    monkeypatch.setattr(_held, "_idle_ns", lambda profile: 20.0 if profile is late else 40.0)
    shown: Any = here
    assert _held.idle_ns(shown) == pytest.approx(0.25 * 40 + 0.75 * 400 * 0.2)
    monkeypatch.setattr(_held, "late_rank_of", lambda _: None)
    assert _held.idle_ns(shown) == 40

"""Idle time that waiting in collectives turns into has the causes of the rank that was waited for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsysx.catalogue import Cause
from nsysx.events.profile import Profile
from nsysx.pipeline import ReadingOptions, gather
from nsysx.replay import late_causes, peers
from nsysx.replay.device_round import DeviceRound
from tests.replay.test_peers import job

pytestmark = pytest.mark.traced
NOTHING: Any = None
LATENCY, GAP, HOST = Cause.LAUNCH_LATENCY.value, Cause.KERNEL_GAP.value, Cause.HOST_CODE.value


def of_ranks(folder: Path, marks: tuple[int, int]) -> Profile:
    return gather(job(marks=marks).write(folder / "r.sqlite"), ReadingOptions())


def round_of(exposed: int, **causes: int) -> DeviceRound:
    return DeviceRound(1_000, 1_000 - sum(causes.values()), exposed, causes, {}, NOTHING)


def told(
    profile: Profile, recorded: DeviceRound, shown: DeviceRound, monkeypatch: pytest.MonkeyPatch
) -> dict[str, int]:
    return turned(profile, recorded, shown, monkeypatch).causes


def turned(profile: Profile, recorded: DeviceRound, shown: DeviceRound, monkeypatch: pytest.MonkeyPatch) -> DeviceRound:
    monkeypatch.setattr(late_causes, "on_device", lambda *_: recorded)
    return late_causes.as_late_rank_idles(profile, NOTHING, NOTHING, shown)


def test_what_was_waiting_idles_for_the_host_code_of_the_late_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second rank's host has more to do before its launches, and the first one stands in their all-reduce."""
    profile, shown = of_ranks(tmp_path, (1, 20)), round_of(20, **{LATENCY: 600, GAP: 50})
    causes = told(profile, round_of(900, **{GAP: 50}), shown, monkeypatch)
    assert sum(causes.values()) == 650 and causes[GAP] == 50
    assert causes[HOST] > 200, "its device idles for host code, and for what its launches take"
    # Idle time that the recording has stays what it is: only 200 more are waiting that was.
    kept = told(profile, round_of(900, **{LATENCY: 400, GAP: 50}), shown, monkeypatch)
    assert kept[LATENCY] >= 400 and sum(kept.values()) == 650
    # How much of it turned is known, and so is whose host it is for.
    assert turned(profile, round_of(900, **{GAP: 50}), shown, monkeypatch).turned_ns == 600
    assert turned(profile, round_of(900, **{LATENCY: 400, GAP: 50}), shown, monkeypatch).turned_ns == 200
    late = late_causes.late_rank_of(profile)
    assert late is not None and [late] == [*peers.others(profile)]


@pytest.mark.parametrize(
    ("itself", "recorded"),
    [(True, round_of(900, **{GAP: 50})), (False, round_of(20, **{GAP: 50})), (False, round_of(900, **{LATENCY: 700}))],
    ids=["the late rank itself", "no longer waits", "idled as recorded"],
)
def test_idle_time_that_was_no_waiting_keeps_its_causes(
    itself: bool, recorded: DeviceRound, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, profile = round_of(20, **{LATENCY: 600, GAP: 50}), of_ranks(tmp_path, (1, 20))
    if itself:
        (profile,) = peers.others(profile)
    assert turned(profile, recorded, shown, monkeypatch) == shown and shown.turned_ns == 0
    assert (late_causes.late_rank_of(profile) is None) == itself


def test_a_rank_of_its_own_report_alone_keeps_its_causes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = gather(job(marks=(1, 20), only=100).write(tmp_path / "r.sqlite"), ReadingOptions())
    assert len(peers.ranks(profile)) == 1
    shown = round_of(20, **{LATENCY: 600})
    assert told(profile, round_of(900), shown, monkeypatch) == shown.causes

"""Reports given together are ranks of one job: whatever shows that they are not is refused, and said."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsysx.errors import NsysxError
from nsysx.pipeline import summarize
from nsysx.ranks import one_job
from nsysx.ranks.rank_record import Rank
from nsysx.reading.nccl_notes import CommunicatorMember
from tests.builder import Report
from tests.ranks.test_rank_table import rank_reports

SECOND = 1_000_000_000
NOTHING = np.empty(0, np.int64)


def rank(report: int, **facts: Any) -> Rank:
    """Return a rank of a session of ten seconds that says nothing of itself but ``facts``."""
    known: dict[str, Any] = {
        "report": report, "file": f"r{report}.sqlite", "process": report, "pid": 1, "device": 0, "gpu": "H200",
        "host": "a", "number": None, "utc_epoch_ns": 0, "steps": 1, "step_ns": 1, "window": (0, 1), "parts": {},
        "idle_causes": {}, "tiles": None, "members": {}, "noted": "nothing", "series": (), "belongs": NOTHING,
        "start_ns": NOTHING, "end_ns": NOTHING, "message_bytes": NOTHING, "exposed": (NOTHING, NOTHING),
        "span": (0, 10 * SECOND), "content_id": str(report),
    }  # fmt: skip
    return Rank(**known | facts)


def in_world(size: int | None, comm: str = "world") -> dict[str, CommunicatorMember]:
    return {comm: CommunicatorMember(size, None)}


#: What the first and the second report say -> what is said of them.
REFUSED = {
    "the same capture": ({"content_id": "c"}, {"content_id": "c"}, "same-report"),
    "one after the other": ({}, {"utc_epoch_ns": 10 * SECOND}, "not-one-job"),
    "another command": ({"command": "c"}, {"command": "d"}, "not-one-job"),
    "another GPU": ({}, {"gpu": "A100"}, "not-one-job"),
    "one rank twice": ({"number": 3}, {"number": 3}, "same-rank"),
    "worlds of two sizes": ({"members": in_world(4, "w")}, {"members": in_world(8, "v")}, "not-one-job"),
}
ALLOWED = {
    "nothing is said": ({"content_id": "", "host": None, "utc_epoch_ns": None},) * 2,
    "sessions overlap by a moment": ({}, {"utc_epoch_ns": 10 * SECOND - 1}),
    "clocks of two machines": ({}, {"utc_epoch_ns": 99 * SECOND, "host": "b"}),
    "one communicator, whatever the clocks say": (
        {"members": in_world(2)},
        {"members": in_world(2), "utc_epoch_ns": 99 * SECOND},
    ),
    "one communicator on two kinds of GPU": ({"members": in_world(2)}, {"members": in_world(2), "gpu": "A100"}),
    "one side knows its command": ({"command": "c"}, {}),
    "two ranks": ({"number": 3}, {"number": 4}),
    "one side knows the world": ({"members": in_world(4, "w")}, {"members": in_world(None, "v")}),
    "one side is in a smaller group, too": (
        {"members": in_world(4, "w") | in_world(2, "pair")},
        {"members": in_world(4, "w") | in_world(1, "alone")},
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    first, second, slug = REFUSED[case]
    with pytest.raises(NsysxError, match=re.escape("r0.sqlite and r1.sqlite")) as caught:
        one_job.require([rank(0, **first), rank(1, **second)])
    assert (caught.value.slug, caught.value.exit_code) == (slug, 2)
    assert "nsysx compare" in (caught.value.hint or "")


@pytest.mark.parametrize("case", ALLOWED)
def test_allowed(case: str) -> None:
    first, second = ALLOWED[case]
    one_job.require([rank(0, **first), rank(1, **second)])


def test_what_one_report_holds_is_not_held_against_it() -> None:
    """Two processes of one report say the same capture, and may both be rank 0 of a world of their own."""
    own = rank(0, number=0)
    one_job.require([own, replace(own, process=2)])


def test_two_reports_of_one_rank_are_refused(tmp_path: Path) -> None:
    paths = rank_reports(tmp_path, (1,), 2)
    again = tmp_path / "again.sqlite"
    again.write_bytes(paths[0].read_bytes())
    with contextlib.closing(sqlite3.connect(again)) as base:  # another session, or it would be refused as a copy
        base.execute("UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + 1")
        base.commit()
    with pytest.raises(NsysxError, match="both hold rank 1") as caught:
        summarize([*paths, again])
    assert (caught.value.slug, caught.value.exit_code) == ("same-rank", 2)


def test_the_foreign_reports_among_many_are_named() -> None:
    """Wherever they stand: a pair of names would not say which of the two is the foreign one."""
    for strange in (0, 5):
        ranks = [rank(n, number=n, command="other" if n == strange else "train.py") for n in range(8)]
        with pytest.raises(NsysxError) as caught:
            one_job.require(ranks)
        expected = f"not of one job with the other 7 reports: r{strange}.sqlite (their commands differ)"
        assert (caught.value.message, caught.value.slug) == (expected, "not-one-job")
    ranks = [rank(n, gpu="A100" if n in (2, 3) else "H200") for n in range(8)]
    with pytest.raises(NsysxError, match=re.escape("r2.sqlite (A100 and H200); r3.sqlite (A100 and H200)")):
        one_job.require(ranks)
    halves = [rank(n, command="ab"[n % 2]) for n in range(4)]  # nobody can say which half is the job
    with pytest.raises(NsysxError, match=re.escape("r0.sqlite and r1.sqlite are not one job")):
        one_job.require(halves)


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return rank_reports(tmp_path_factory.mktemp("six"), (0, 1, 2, 4, 5), 6)


def test_a_missing_rank_is_named(six: list[Path]) -> None:
    check = {c.check: c for c in summarize(six, every_table=False).quality}["rank count"]
    assert check.status == "warn" and check.detail.startswith("5 of 6 ranks are here; missing: 3.")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("cut", [(0,), (2,), (0, 3), (1, 2, 4)])
def test_all_truncated_reports_are_named_at_once(
    six: list[Path], tmp_path: Path, cut: tuple[int, ...], workers: int
) -> None:
    paths = [tmp_path / path.name for path in six]
    for n, (path, whole) in enumerate(zip(paths, six, strict=True)):
        content = whole.read_bytes()
        path.write_bytes(content[: len(content) // 2] if n in cut else content)
    with pytest.raises(NsysxError) as caught:
        summarize(paths, workers=workers)
    assert (caught.value.slug, caught.value.exit_code) == ("input-damaged", 3)
    assert "\n" not in caught.value.message
    for n, path in enumerate(paths):
        assert (f"{path.name}: is cut off" in caught.value.message) == (n in cut)
    assert caught.value.message.startswith(f"{len(cut)} of 5 reports cannot be read: ") == (len(cut) > 1)


def test_a_foreign_report_among_built_ones_is_named(six: list[Path], tmp_path: Path) -> None:
    (other,) = rank_reports(tmp_path, (3,), 9)
    with pytest.raises(NsysxError) as caught:
        summarize([other, *six])
    assert caught.value.message == "not of one job with the other 5 reports: part3.sqlite (9 and 6 ranks)"
    assert (caught.value.slug, caught.value.exit_code) == ("not-one-job", 2)


def test_reports_without_gpu_work_are_no_job(tmp_path: Path) -> None:
    """They hold no rank that could be compared: two runs of a program on the CPU are two runs."""
    paths = []
    for name in "ab":
        report = Report()
        thread = report.process(1).thread()
        for i in range(5):
            with thread.range("step"):
                thread.call("cudaGetDevice_v3020", i * 1000, 100)
        paths.append(report.write(tmp_path / f"{name}.sqlite"))
    with pytest.raises(NsysxError, match=r"a\.sqlite and b\.sqlite hold no GPU work") as caught:
        summarize(paths)
    assert (caught.value.slug, caught.value.exit_code) == ("not-one-job", 2)
    assert "nsysx compare" in (caught.value.hint or "")

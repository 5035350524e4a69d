"""NSX127's other processes: kernels that another process interrupts for its slice of time, and such as are longer by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.builder import Report
from tests.findings import findings_alone, said_of

US = 1000
#: Kernels of a step with their times (us).
LENGTHS = {"short": 90, "middle": 200, "long": 560, "longer": 800, "longest": 1_600}


def recorded(
    folder: Path, more: dict[int, dict[str, int]], *, beside: bool = False, late: int = 0, host: int = 0
) -> Path:
    """Return a report of 12 steps of 16 kernels of each kind; ``more``: execution of a kind -> kind -> by how much it is longer (us).

    ``late``: how long the first kernel of each step waits although the device has nothing to do (us). ``host``: how long the host is busy
    before each launch (us).
    """
    report = Report()
    process = report.process(100)
    process.context()
    main = process.thread(100, "python")
    at = free = 0
    for number in range(12):
        begin = at
        for turn in range(16):
            for kind, length in LENGTHS.items():
                takes = length + more.get(16 * number + turn, {}).get(kind, 0)
                at += host
                start = max(free, at + 10 + (late if turn == 0 and kind == "short" else 0))
                main.launch(at * US, 5 * US, kernel=kind, gpu_start=start * US, gpu_dur=takes * US)
                if beside:
                    main.launch((at + 5) * US, 5 * US, kernel="x", gpu_start=start * US, gpu_dur=takes * US, stream=9)
                at, free = at + 10, start + takes
        main.sync(at=at * US, dur=(free - at) * US)
        at = free + 2
        main.add_range(f"step {number}", begin * US, (at - 1) * US, domain="nsysx")
    return report.write(folder / "r.sqlite")


def found(path: Path) -> Any:
    return next((f for f in said_of(path) if "Other processes" in f.title), None)


SLICED = {n: {kind: 2_500 + 40 * (n % 3)} for n in range(0, 192, 4) for kind in [list(LENGTHS)[n // 4 % 5]]}


def test_kernels_short_and_long_that_are_longer_by_one_slice_show_another_process(tmp_path: Path) -> None:
    finding = found(recorded(tmp_path, SLICED))
    assert "nother process has the GPU in turn with this one: 4 kernels a step, short and long ones" in finding.detail
    assert finding.saving_ns_per_step == pytest.approx(4 * 2_540_000, rel=0.03)
    assert finding.saving_ns_per_step - finding.saving.error_ns < 0.75 * finding.saving_ns_per_step
    assert "GPU of its own" in finding.fix


@pytest.mark.parametrize(
    "more",
    [
        {n: {"long": 2_500} for n in range(0, 192, 4)},  # of one kind: its own work
        {
            n: {kind: 5 * LENGTHS[kind]} for n, one in SLICED.items() for kind in one
        },  # by a share: the clock or the memory
        {n: dict.fromkeys(one, 600) for n, one in SLICED.items()},  # less than the shortest slice
        {n: one for n, one in SLICED.items() if n < 60},  # too few
    ],
)
def test_kernels_that_are_longer_by_themselves_show_none(tmp_path: Path, more: dict[int, dict[str, int]]) -> None:
    assert found(recorded(tmp_path, more)) is None


@pytest.mark.parametrize(
    ("late", "counted_us"), [(2_300, 2_295), (600, 0), (9_000, 0)]
)  # a slice, less, several times as much
def test_work_that_begins_a_slice_late_is_counted_with_the_kernels(tmp_path: Path, late: int, counted_us: int) -> None:
    """The host takes longer than the GPU: whether it waited for it is not known, and the slices are the most that can go."""
    finding = found(recorded(tmp_path, SLICED, late=late, host=1_400))
    assert finding.saving.bound
    assert finding.saving_ns_per_step == pytest.approx(4 * 2_540_000 + counted_us * US, rel=0.01)
    assert [row["leads"] for row in finding.evidence] == [True]


def test_work_that_begins_late_alone_shows_no_other_process(tmp_path: Path) -> None:
    assert found(recorded(tmp_path, {}, late=2_300)) is None


def test_kernels_beside_work_of_the_programs_own_show_none(tmp_path: Path) -> None:
    assert found(recorded(tmp_path, SLICED, beside=True)) is None


@pytest.mark.parametrize("more", [SLICED, {}])
def test_how_near_interrupted_kernels_are_to_limits_is_not_known(
    tmp_path: Path, more: dict[int, dict[str, int]]
) -> None:
    findings = findings_alone("NSX128", recorded(tmp_path, more))
    assert any("another process interrupts" in f.detail for f in findings) == bool(more)

"""What a step takes whose GPU has nothing to do: its host code, and only asked where no change is known that saves much."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nsysx.findings._case import Saving
from nsysx.judging import host_pace
from nsysx.model import Finding
from nsysx.pipeline import ReadingOptions, gather
from nsysx.replay.engine import Replay, replay_of
from tests.findings import Program

MS = 1_000_000


def replayed(folder: Path, *, host_us: int, kernel_us: int) -> tuple[object, Replay]:
    """Steps of ten kernels, with so much host code before each."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            for _ in range(10):
                program.host(host_us)
                program.launch(kernel_us)
        program.sync()

    profile = gather(Program().steps(body, 12).report.write(folder / "r.sqlite"), ReadingOptions())
    replay = replay_of(profile)
    assert isinstance(replay, Replay)
    return profile, replay


@pytest.mark.parametrize(("host_us", "kernel_us", "alone_ms"), [(900, 800, 9.0), (100, 800, 1.0)])
def test_what_is_left_without_the_gpu_is_host_code(
    host_us: int, kernel_us: int, alone_ms: float, tmp_path: Path
) -> None:
    profile, replay = replayed(tmp_path, host_us=host_us, kernel_us=kernel_us)
    alone = host_pace.without_gpu_ns(profile, replay, ())  # type: ignore[arg-type]
    assert alone == pytest.approx(alone_ms * MS, rel=0.1, abs=0.2 * MS) and alone <= replay.real_ns


@pytest.mark.parametrize(
    ("share", "bound", "verdict", "asked"),
    [
        (0.04, False, "found", True),
        (0.06, False, "found", False),
        (0.06, True, "found", True),
        (0.06, False, "clear", True),
    ],
)
def test_nobody_asks_where_a_change_is_known(
    share: float, bound: bool, verdict: str, asked: bool, tmp_path: Path
) -> None:
    profile, replay = replayed(tmp_path, host_us=100, kernel_us=800)
    saving = Saving(round(share * replay.real_ns), bound=bound)
    finding = replace(Finding("NSX101", "", "found", "", ""), saving=saving, verdict=verdict)  # type: ignore[arg-type]
    assert (host_pace.without_gpu_ns(profile, replay, (finding,)) is not None) == asked  # type: ignore[arg-type]

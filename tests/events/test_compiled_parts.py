"""Parts of compiled regions, which earlier probes marked, go by the name of the region's module."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from nsysx.events import attribute, compiled_parts, correlate, nvtx_ranges
from nsysx.reading.load import load
from tests.builder import Report
from tests.reports import names

OWN = "nsysx"
#: Two calls of compiled blocks, each in two parts of one graph, as DistributedDataParallel has them made.
BLOCKS = ("encoder.0", "encoder.1")


def modules(folder: Path, *, region: str = " compiled", backward: Sequence[str], eager: bool = False) -> dict[str, str]:
    """Return kernel -> module of a report whose blocks run in parts; ``backward``: the marks, 100 ns apart."""
    report = Report()
    process = report.process(1)
    main, autograd = process.thread(1, "python"), process.thread(2, "pt_autograd_0")
    main.add_range(":Net", 0, 900, domain=OWN)
    for block, begin in zip(BLOCKS, (100, 500), strict=True):
        main.add_range(f"{block}:Block{region}", begin, begin + 300, domain=OWN)
        main.add_range(f"GraphModule:GraphModule{region}", begin + 10, begin + 290, domain=OWN)
        for part, at in (("WrapperModule", begin + 20), ("WrapperModule#1", begin + 120)):
            main.add_range(f"{part}:WrapperModule", at, at + 80, domain=OWN)
            main.launch(at + 10, 5, kernel=f"{block} {part}", gpu_start=at + 20, gpu_dur=5)
    if eager:
        main.add_range("WrapperModule#2:WrapperModule", 820, 880, domain=OWN)
        main.launch(830, 5, kernel="own", gpu_start=840, gpu_dur=5)
    main.add_range("backward", 1000, 3000, domain=OWN)
    for i, text in enumerate(backward):
        autograd.mark(f"bwd {text}", 1100 + 100 * i, domain=OWN)
        autograd.launch(1110 + 100 * i, 5, kernel=f"backward {i}", gpu_start=1120 + 100 * i, gpu_dur=5)
    trace = load(report.write(folder / "r.sqlite"))
    ranges = compiled_parts.by_region(nvtx_ranges.read(trace))
    assert ranges.ranges["range"].to_list() == list(range(ranges.ranges.height))
    ops = attribute.attribute(trace, correlate.correlate(trace), ranges).gpu_ops
    return {str(name): str(module) for name, module in names(ops, "name", "module")}


IN_TURN = [f"WrapperModule{number}:WrapperModule" for number in ("#1", "", "#1", "")]


def test_parts_have_the_name_of_their_region_forward_and_backward(tmp_path: Path) -> None:
    found = modules(tmp_path, backward=["head:Linear", *IN_TURN])
    forward = {f"{block} {part}": block for block in BLOCKS for part in ("WrapperModule", "WrapperModule#1")}
    last_first = ["head", "encoder.1", "encoder.1", "encoder.0", "encoder.0"]
    assert found == forward | {f"backward {i}": module for i, module in enumerate(last_first)}


def test_more_marks_than_calls_are_not_shared_out(tmp_path: Path) -> None:
    found = modules(tmp_path, backward=[*IN_TURN, "WrapperModule:WrapperModule"])
    assert [found[f"backward {i}"] for i in range(5)] == [
        "encoder.1",
        "WrapperModule",
        "encoder.0",
        *["WrapperModule"] * 2,
    ]


@pytest.mark.parametrize(("region", "eager"), [("", False), (" compiled", True)])
def test_modules_of_the_program_that_are_called_so_keep_their_names(tmp_path: Path, region: str, eager: bool) -> None:
    """What runs in no compiled region is the program's."""
    found = modules(tmp_path, region=region, backward=IN_TURN, eager=eager)
    if eager:
        assert found["own"] == "WrapperModule#2"
    else:
        assert found["encoder.0 WrapperModule"] == found["backward 1"] == "WrapperModule"

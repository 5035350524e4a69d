"""NSX125: the layers of a model lie on two GPUs, which work one after the other; or at the same time, which is no fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nsysx.model import Finding, Summary
from nsysx.pipeline import summarize
from tests.builder import Report

US = 1000
STEPS, KERNELS, KERNEL = 8, 50, 40 * US


def two_gpus(path: Path, *, turns: bool, settings: dict[str, object] | None = None) -> Summary:
    """Steps of 50 kernels on each of two GPUs; ``turns``: the second begins when the first is done, and a synchronize ends both."""
    report = Report()
    process = report.process(100)
    for device in (0, 1):
        process.context(device=device)
    main = process.thread(100, "python")
    at = 0
    for number in range(STEPS):
        begin, free = at, at + 10 * US
        for device in (0, 1):
            free = free if turns or not device else begin + 10 * US
            for _ in range(KERNELS):
                main.launch(at, 3 * US, kernel="gemm", gpu_start=free, gpu_dur=KERNEL, device=device, stream=7 + device)
                free, at = free + KERNEL, at + 4 * US
        main.sync(at=at, dur=free + US - at)
        at = free + 2 * US
        main.add_range(f"step {number}", begin, at, domain="nsysx")
    if settings is not None:
        (path / "r.run.json").write_text(json.dumps({"probe": [{"pid": 100, "settings": settings}]}))
    return summarize([report.write(path / "r.sqlite")], every_table=False)


def told(summary: Summary) -> Finding:
    (finding,) = [f for f in summary.findings or () if f.code == "NSX125"]
    return finding


def test_what_one_idles_while_the_other_works_is_the_cost(tmp_path: Path) -> None:
    summary = two_gpus(tmp_path, turns=True)
    finding = told(summary)
    assert (finding.verdict, finding.saving.bound) == ("found", True)
    assert finding.cost_ns_per_step == finding.saving_ns_per_step == pytest.approx(KERNELS * KERNEL, rel=0.01)
    assert "while another GPU works" in summary.verdict.sentence


def test_gpus_that_work_at_the_same_time_are_as_they_should_be(tmp_path: Path) -> None:
    summary = two_gpus(tmp_path, turns=False)
    assert told(summary).verdict == "clear"
    assert "another GPU" not in summary.verdict.sentence


GB = 1 << 30


@pytest.mark.parametrize(
    ("others", "optimizers", "remedy"),
    [
        (30 * GB, [{"class": "AdamW"}], "whole-on-each-gpu"),
        (30 * GB, [], "whole-on-each-gpu"),
        (60 * GB, [{"class": "AdamW"}], "sharded-over-gpus"),
        (60 * GB, [], "tensor-parallel"),
        (None, [{"class": "AdamW"}], "tensor-parallel"),  # not read
    ],
)
@pytest.mark.parametrize("mapped", [2, None])
def test_a_model_that_one_gpu_holds_is_given_to_each(
    others: int | None, optimizers: list[Any], remedy: str, mapped: int | None, tmp_path: Path
) -> None:
    memory = {"total_bytes": 80 * GB, "reserved_peak_bytes": 20 * GB, "other_devices_peak_bytes": others}
    settings = {"memory": memory, "optimizers": optimizers, "networks": [{"mapped_devices": mapped}]}
    finding = told(two_gpus(tmp_path, turns=True, settings=settings))
    assert [way.name for way in finding.remedies] == [remedy]
    if remedy == "whole-on-each-gpu":
        assert "hold 50.0 GiB together, and one has 80.0 GiB" in finding.fix
        assert ("device_map={" in finding.paste) is (mapped is not None)

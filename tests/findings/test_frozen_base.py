"""NSX127: a network that is sharded although little of it is trained (adapters), and what each pass then gathers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.findings.lined import FILE, Lined
from tests.findings.test_micro_step_gathers import SOURCE, about, step

BASE, ADAPTERS = 8 << 30, 7 << 20


def settings(
    *, trained: int = ADAPTERS, free: float = 0.8, kind: str = "fully_shard", ranks: int = 2
) -> dict[str, Any]:
    """What the probe notes of a base in bfloat16 with adapters; of flat parameters each rank has its part."""
    parts = ranks if kind == "FSDP" else 1
    return {
        **about(free=free, kind=kind),
        "networks": [{"class": "FSDPPeftModel", "dtypes": {"bfloat16": BASE // parts, "float32": ADAPTERS // parts}}],
        "optimizers": [{"class": "AdamW", "elements": trained // parts, "dtypes": {"float32": 64}}],
        "groups": [{"ranks": list(range(ranks))}],
        "places": {"FSDP": f"{FILE}:9"},
    }


def told(folder: Path, noted: dict[str, Any], **how: Any) -> set[str]:
    found = Lined(SOURCE, noted).run(lambda p, n: step(p, n, **how)).found(folder, "NSX127")
    return {str(f.evidence[0]["setting"]) for f in found}


@pytest.mark.parametrize("kind", ["fully_shard", "FSDP"])
@pytest.mark.parametrize("micro", [1, 4])
def test_a_base_of_which_adapters_are_trained_stays_whole(kind: str, micro: int, tmp_path: Path) -> None:
    summary = Lined(SOURCE, settings(kind=kind)).run(lambda p, n: step(p, n, micro=micro)).summary(tmp_path)
    found = {(f.evidence or [{}])[0].get("setting"): f for f in summary.findings or () if f.verdict == "found"}
    finding = found["gathers of a frozen base"]
    assert {"gathers in micro-steps", "reshard_after_forward"}.isdisjoint(found)
    assert "0.1 % of the parameters of PeftModel" in finding.detail and "16.0 GiB" in finding.detail
    assert "DistributedDataParallel(model.cuda()" in finding.paste
    assert (finding.where["file"], finding.where["line"]) == (FILE, 9)
    # All gathers go, those that forward waits for and those that run beside backward; with them most of FSDP's hooks.
    assert micro * 4 * 300_000 < (finding.saving.likely_ns or 0) < micro * 8 * 600_000
    assert summary.answer.do[0].text.startswith("Keep the network whole on each GPU")


@pytest.mark.parametrize(
    "noted",
    [
        settings(trained=BASE),  # all of it is trained
        settings(trained=0),  # not known
        settings(free=0.15),  # no room
        settings(kind=""),  # what layers exchange
        {
            **settings(trained=BASE // 20),
            "networks": [
                {"class": "FSDPStudent", "dtypes": {"float32": BASE // 20}},
                {"class": "FSDPTeacher", "dtypes": {"bfloat16": BASE}},
            ],
        },
        {
            **settings(trained=BASE // 20),
            "networks": [
                {"class": "FSDPStudent", "dtypes": {"float32": BASE // 20}},
                {"class": "Teacher", "dtypes": {"bfloat16": BASE}},  # whole on each rank
            ],
        },
    ],
)
def test_what_is_trained_or_has_no_room_is_sharded(noted: dict[str, Any], tmp_path: Path) -> None:
    assert "gathers of a frozen base" not in told(tmp_path, noted)


def test_the_size_of_what_is_kept_for_backward_counts_what_is_frozen(tmp_path: Path) -> None:
    """Of 16 GiB there is no room, of what is trained there would be."""
    assert told(tmp_path, settings(free=0.15), micro=1).isdisjoint(
        {"reshard_after_forward", "gathers of a frozen base"}
    )


@pytest.mark.parametrize(("trained", "found"), [(ADAPTERS, True), (BASE, False)])
def test_a_base_whose_parameters_zero_parts_goes_to_stage_1(trained: int, found: bool, tmp_path: Path) -> None:
    """What is parted is empty when the probe looks: the engine counts it."""
    engine = {
        "kind": "DeepSpeed",
        "count": 1,
        "stage": 3,
        "micro_steps": 4,
        "elements": BASE,
        "trained_elements": trained,
    }
    noted = {**settings(), "wrappers": [engine], "networks": [{"class": "DeepSpeedEngine", "dtypes": {"bfloat16": 0}}]}
    findings = Lined(SOURCE, noted).run(step).found(tmp_path, "NSX127")
    of_base = [f for f in findings if f.evidence[0]["setting"] == "gathers of a frozen base"]
    assert bool(of_base) is found
    assert all('"stage": 1' in f.paste and "stage 1 of ZeRO in place of stage 3" in f.fix for f in of_base)
    assert all("whole on each GPU they take 16.0 GiB" in f.detail for f in of_base)

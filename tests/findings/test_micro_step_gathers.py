"""NSX127: parameters of a sharded model that each micro-step of a step gathers anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsysx.events.gathers_of_micro_steps import gathers_of_micro_steps
from nsysx.model import Finding
from nsysx.pipeline import ReadingOptions, gather
from tests.findings.lined import Lined
from tests.findings.test_untrained_gathers import COPIES_OUT, GATHER, SCATTER, UNITS, settings, unit

SOURCE = {20: "loss = model(x).mean()", 21: "loss.backward()"}
GATHER_US = 400


def step(
    program: Lined, number: int, *, micro: int = 4, again: bool = True, in_backward: bool = True, forwards: int = 1
) -> None:
    """``micro`` forwards and backwards, then the optimizer; ``again``: the forwards behind the first gather, too."""
    for each in range(micro):
        for _ in range(forwards):
            with program.line(20), program.range("forward Net"), program.range("net:Net"):
                for n in range(UNITS):
                    unit(program, n, root="net", kernel_us=100, gathers=again or not each, gather_us=GATHER_US)
        with program.line(21), program.range("backward"):
            for _ in range(UNITS):
                if in_backward:
                    program.launch(GATHER_US, GATHER, stream=19)
                    program.launch(5, COPIES_OUT)
                program.launch(200)
                if each == micro - 1:
                    program.launch(60, SCATTER, stream=20)
    with program.range("optimizer"):
        program.launch(100, "adam")
    program.sync()


def about(free: float = 0.9, kind: str = "fully_shard") -> dict[str, Any]:
    noted = {**settings(free=free, kind=kind), "given_again": [], "backwards": 4}
    for row in noted["wrappers"]:
        row["reshard_after_forward"] = True
    return noted


def told(folder: Path, noted: dict[str, Any], **how: Any) -> list[Finding]:
    program = Lined(SOURCE, noted).run(lambda p, n: step(p, n, **how))
    return [f for f in program.found(folder, "NSX127") if f.evidence[0]["setting"] == "gathers in micro-steps"]


def test_micro_steps_gather_once(tmp_path: Path) -> None:
    summary = Lined(SOURCE, about()).run(step).summary(tmp_path)
    found = {(f.evidence or [{}])[0].get("setting"): f for f in summary.findings or () if f.verdict == "found"}
    finding = found["gathers in micro-steps"]
    assert "reshard_after_forward" not in found
    assert "each of the 4 micro-steps" in finding.detail.lower() and "28 gathers of a step" in finding.detail
    assert summary.answer.do[0].text.startswith("Keep the parameters gathered through all micro-steps")
    assert "set_reshard_after_backward(last)" in finding.paste
    # 12 of the forwards are waited for, those of backward run beside the kernels before them.
    assert 12 * GATHER_US * 1000 < (finding.saving.likely_ns or 0) < 28 * (GATHER_US + 50) * 1000


@pytest.mark.parametrize(
    ("noted", "how"),
    [
        (about(), {"micro": 1}),  # that is reshard_after_forward
        (about(), {"micro": 1, "forwards": 2}),  # two forwards, one backward
        (about(), {"again": False, "in_backward": False}),  # gathered once
        (about(free=0.02), {}),  # no room
        (about(kind=""), {}),  # gathers of split layers
        (about(kind="FSDP"), {}),  # has no such option
    ],
)  # fmt: skip
def test_what_is_gathered_once_or_has_no_room(noted: dict[str, Any], how: dict[str, Any], tmp_path: Path) -> None:
    assert not told(tmp_path, noted, **how)


def test_gathers_of_backward_alone_are_seen_too(tmp_path: Path) -> None:
    Lined(SOURCE, about()).run(lambda p, n: step(p, n, again=False)).write(tmp_path)
    repeated = gathers_of_micro_steps(gather(tmp_path / "r.sqlite", ReadingOptions()))
    assert repeated is not None and (repeated.rounds, repeated.each) == (4, 16)


@pytest.mark.parametrize(
    ("texts", "line", "paste"),
    [
        (
            {20: "with sync(model):", 58: "    model.set_requires_gradient_sync(False)", 62: "    model.set_requires_gradient_sync(True)"},
            58,
            [
                "model.set_requires_gradient_sync(False)  # line 58",
                "model.set_reshard_after_forward(False)",
                "model.set_reshard_after_backward(False)",
                "model.set_requires_gradient_sync(True)  # line 62",
                "model.set_reshard_after_backward(True)",
            ],
        ),
        (
            {19: "self.net.set_requires_gradient_sync(i == len(batches) - 1)  # reduce once", **SOURCE},
            19,
            [
                "self.net.set_requires_gradient_sync(i == len(batches) - 1)  # line 19",
                "self.net.set_reshard_after_forward(False)",
                "self.net.set_reshard_after_backward(i == len(batches) - 1)",
            ],
        ),
        (
            {18: "net.set_is_last_backward(n + 1 == len(parts))", **SOURCE},
            18,
            [
                "net.set_is_last_backward(n + 1 == len(parts))  # line 18",
                "net.set_reshard_after_forward(False)",
                "net.set_reshard_after_backward(n + 1 == len(parts))",
            ],
        ),
        (
            {18: "net.set_requires_gradient_sync(requires_gradient_sync=done)", **SOURCE},
            18,
            [
                "net.set_requires_gradient_sync(done)  # line 18",
                "net.set_reshard_after_forward(False)",
                "net.set_reshard_after_backward(done)",
            ],
        ),
        ({19: "net.set_requires_gradient_sync(last, recurse=False)", **SOURCE}, 21, ["last = micro_step == micro_steps - 1"]),
        (SOURCE, 21, ["last = micro_step == micro_steps - 1"]),
    ],
)  # fmt: skip
def test_the_programs_own_words_about_its_micro_steps(
    texts: dict[int, str], line: int, paste: list[str], tmp_path: Path
) -> None:
    program = Lined(texts, about()).run(step)
    (finding,) = [f for f in program.found(tmp_path, "NSX127") if f.evidence[0]["setting"] == "gathers in micro-steps"]
    lines = finding.paste.splitlines()
    assert (
        finding.where.get("line") == line and [each.partition("  # before")[0] for each in lines][: len(paste)] == paste
    )
    assert line == 21 or len(lines) == len(paste)

"""NSX137: what frozen networks make of the data of each step, and what is made anew for a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.lined import FILE, Lined
from tests.findings.test_needless_work import backward, trained
from tests.findings.test_smaller_operators import operator

ENCODING = 14
SOURCE = {ENCODING: "codes = encoder(images)", 20: "loss = net(codes).mean()"}
ROWS = "[64, 128]"


def step(program: Lined, number: int, *, kind: str) -> None:
    """A batch is picked by drawn numbers, an encoder of two layers (300 us each) codes it, and a network is trained on the codes."""
    at = 1000 * number + 10
    with program.line(12):
        operator(program, "randperm", at, [-1], "[]", 5)
        operator(program, "index", at + 1, [-1, at], "[5000, 128], [64]", 20, "gather")
        images = at + 1
        if kind == "noise added before":
            operator(program, "randn_like", at + 2, [images, -1], f"{ROWS}, []", 5)
            operator(program, "add", at + 3, [images, at + 2], f"{ROWS}, {ROWS}", 5)
            images = at + 3
        if kind == "of what is trained":
            with program.range("net:Net"):
                trained(program, at + 4, images, number * 10 + 7, 50)
            images = at + 4
    with (
        program.line(ENCODING),
        program.range("forward"),
        program.range("encoder:Net" if kind == "a copy" else "encoder:Encoder"),
    ):
        if kind == "trained, too":
            trained(program, at + 10, images, number * 10 + 5, 300)
        else:
            operator(program, "linear", at + 10, [images, -1], f"{ROWS}, [128, 128]", 300)
        out = f"{ROWS}, [{1_000_000 if kind == 'logits' else 128}, 128]"
        operator(program, "linear", at + 11, [at + 10, -1], out, 300)
    codes, width = at + 11, 1_000_000 if kind == "logits" else 128
    if kind == "noise added behind":
        operator(program, "randn_like", at + 12, [codes, -1], f"[64, {width}], []", 5)
        operator(program, "add", at + 13, [codes, at + 12], f"[64, {width}], [64, {width}]", 5)
        codes = at + 13
    with program.line(20), program.range("forward"), program.range("net:Net"):
        operator(program, "view", at + 14, [codes, -1], f"[64, {width}], []")
        trained(program, at + 15, at + 14, number * 10 + 6)
    backward(
        program,
        number * 10 + 6,
        *{"trained, too": [number * 10 + 5], "of what is trained": [number * 10 + 7]}.get(kind, []),
    )
    program.sync()


def frozen(folder: Path, kind: str, source: dict[int, str] | None = None) -> list[Finding]:
    program = Lined({**SOURCE, **(source or {})}).run(lambda program, number: step(program, number, kind=kind))
    return [f for f in program.found(folder, "NSX137") if "encoded-once" in [way.name for way in f.remedies]]


@pytest.mark.parametrize("kind", ["of the data", "noise added behind"])
def test_codes_of_a_frozen_network_can_be_kept(kind: str, tmp_path: Path) -> None:
    (found,) = frozen(tmp_path, kind)
    assert (found.where["file"], found.where["line"]) == (FILE, ENCODING) and "Encoder" in found.detail
    assert found.saving.bound and found.saving_ns_per_step == pytest.approx(600_000, rel=0.05)


@pytest.mark.parametrize("kind", ["noise added before", "of what is trained", "a copy", "trained, too", "logits"])
def test_what_comes_out_anew_is_computed_anew(kind: str, tmp_path: Path) -> None:
    assert not frozen(tmp_path, kind)


def test_augmented_samples_are_other_ones_each_time(tmp_path: Path) -> None:
    assert not frozen(tmp_path, "of the data", {12: "images = RandomResizedCrop(224)(images)"})

"""The sample programs run, on a CPU with tiny sizes, and their variants train to the same loss."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

SAMPLES = Path(__file__).resolve().parent.parent / "sample_reports"
TINY = ("--device", "cpu", "--tiny", "--steps", "3", "--warmup", "1")


def run(script: str, *args: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict:
    monkeypatch.setattr(sys, "argv", [script, *args, *TINY])
    runpy.run_path(str(SAMPLES / f"{script}.py"), run_name="__main__")
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize(
    ("script", "args"),
    [
        ("masked_loss", ("--loader", "slow")),
        ("gpt", ()),
        ("gpt", ("--optimizer", "loop", "--log-every", "2")),
        ("custom_add", ()),
        ("varlen", ()),
        ("varlen", ("--padded",)),
        ("tiny_stack", ("--item",)),
        ("tiny_stack", ("--item-each-layer",)),
        ("tiny_stack", ("--harmless-sync",)),
        ("copies", ()),
    ],
)
def test_prints_its_own_timing(script, args, monkeypatch, capsys) -> None:
    last = run(script, *args, monkeypatch=monkeypatch, capsys=capsys)
    assert last["steps"] >= 3
    assert last["step_ms"] > 0
    assert last["loss"] == last["loss"], "not a NaN"


def test_the_four_masked_losses_are_one_loss(monkeypatch, capsys) -> None:
    kinds = ("nonzero", "where", "sort", "ignore_index")
    losses = {k: run("masked_loss", "--loss", k, monkeypatch=monkeypatch, capsys=capsys)["loss"] for k in kinds}
    assert max(losses.values()) - min(losses.values()) < 1e-3, losses


def test_optimizers_train_alike(monkeypatch, capsys) -> None:
    kinds = ("loop", "foreach", "fused")
    losses = {k: run("gpt", "--optimizer", k, monkeypatch=monkeypatch, capsys=capsys)["loss"] for k in kinds}
    assert max(losses.values()) - min(losses.values()) < 2e-3, losses

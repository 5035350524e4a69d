"""Sampled stacks as places: which line is the user's own, and which framework function runs below it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.events import sampled_stacks
from nsysx.reading.load import load
from tests.builder import Report

SITE = "/opt/venv/lib/python3.12/site-packages"
TORCH = f"{SITE}/torch"


def place(folder: Path, *frames: str) -> tuple[str, str, int, str | None]:
    """Return file, function, line, framework of a stack, innermost frame first."""
    report = Report()
    main = report.process(100).thread(100)
    main.call("cudaMalloc", 1_000, 2_000)
    main.sample(1_000, frames)
    trace = load(report.write(folder / "r.sqlite"))
    row = sampled_stacks.places(trace.stacks).places.row(0, named=True)
    return row["file"], row["function"], row["line"], row["framework"]


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        (["/home/me/a.py:3 f", "/home/me/a.py:9 main"], ("/home/me/a.py", "f", 3, None)),
        (
            [f"{TORCH}/optim/adam.py:877 _fused_adam", f"{TORCH}/optim/optimizer.py:533 wrapper", "/home/me/a.py:3 f"],
            ("/home/me/a.py", "f", 3, "torch/optim/adam.py:_fused_adam"),
        ),
        (  # a wrapper is never what runs
            [f"{TORCH}/nn/modules/module.py:1790 _call_impl", f"{TORCH}/nn/modules/linear.py:134 forward", "/home/me/a.py:3 f"],
            ("/home/me/a.py", "f", 3, "torch/nn/modules/linear.py:forward"),
        ),
        (  # unless there is nothing else
            [f"{TORCH}/nn/modules/module.py:1790 _call_impl", "/home/me/a.py:3 f"],
            ("/home/me/a.py", "f", 3, "torch/nn/modules/module.py:_call_impl"),
        ),
        (  # a comprehension is part of its function
            [f"{SITE}/x/y.py:1 <genexpr>", f"{SITE}/x/y.py:2 g", "/home/me/a.py:3 f"],
            ("/home/me/a.py", "f", 3, "x/y.py:g"),
        ),
        (  # the user's hook inside torch
            ["/home/me/hook.py:5 hook", f"{TORCH}/nn/modules/module.py:9 _call_impl", "/home/me/a.py:3 f"],
            ("/home/me/hook.py", "hook", 5, None),
        ),
        (  # no line of the user's own
            [f"{TORCH}/nn/modules/module.py:9 _call_impl", f"{SITE}/vllm/worker.py:7 run", "<frozen runpy>:3 _run"],
            (f"{SITE}/vllm/worker.py", "run", 7, "vllm/worker.py:run"),
        ),
        (  # the probe's own frames are nobody's
            [f"{SITE}/nsysx/inject/nsysx_probe/probe.py:5 call", "/home/me/a.py:3 f"],
            ("/home/me/a.py", "f", 3, None),
        ),
        (["<ipython-input-3-abc>:2 <module>"], ("<ipython-input-3-abc>", "<module>", 2, None)),
        (
            ["C:\\venv\\Lib\\site-packages\\torch\\x.py:4 g", "C:\\me\\a.py:3 f"],
            ("C:\\me\\a.py", "f", 3, "torch/x.py:g"),
        ),
        (["/home/me/torch/train.py:3 f"], ("/home/me/torch/train.py", "f", 3, None)),
        (
            ["/tmp/torch_geometric.nn.conv.gcn_conv_GCNConv_propagate_lamq2n5w.py:96 collect", "/tmp/train_me.py:3 f"],
            ("/tmp/train_me.py", "f", 3, "/tmp/torch_geometric.nn.conv.gcn_conv_GCNConv_propagate_lamq2n5w.py:collect"),
        ),
        (
            ["/src/pytorch/torch/nn/functional.py:4 g", "/home/me/a.py:3 f"],
            ("/home/me/a.py", "f", 3, "torch/nn/functional.py:g"),
        ),
    ],
)  # fmt: skip
def test_the_own_line_and_what_runs_below_it(
    tmp_path: Path, frames: list[str], expected: tuple[str, str, int, str | None]
) -> None:
    assert place(tmp_path, *frames) == expected


def test_a_stack_that_waits_for_autograd(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    main.call("cudaMalloc", 1_000, 2_000)
    main.sample(1_000, [f"{TORCH}/autograd/graph.py:869 _engine_run_backward", "/home/me/a.py:3 f"])
    main.sample(2_000, ["/home/me/a.py:3 f"])
    trace = load(report.write(tmp_path / "r.sqlite"))
    waits = sampled_stacks.places(trace.stacks).waits
    assert waits[trace.samples["stack"].to_numpy()].tolist() == [True, False]


def test_no_stacks(tmp_path: Path) -> None:
    report = Report()
    report.process(100).thread(100).call("cudaMalloc", 1_000, 2_000)
    assert sampled_stacks.places(load(report.write(tmp_path / "r.sqlite")).stacks).places.height == 0

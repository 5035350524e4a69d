"""What a stranger's ranges mean: by how people commonly name them, and nothing more."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsysx.events import nvtx_ranges
from nsysx.reading.load import load
from tests import reports
from tests.builder import Report


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("step 12", 12), ("step_12", 12), ("step:12", 12), ("Step #12", 12), ("STEP 12", 12), ("step12", 12), ("step=3", 3),
        ("iteration_5", 5), ("iter 5", 5), ("Iteration: 7", 7), ("ProfilerStep#4", 4), ("train_step 9", 9),
        ("training step 9", 9), ("train iteration 2", 2),
    ],
)  # fmt: skip
def test_steps(text: str, number: int) -> None:
    assert nvtx_ranges.meaning(text, False) == ("step", text, "", number, False)


@pytest.mark.parametrize(
    "text",
    ["stepper 12", "step", "step 12 of 20", "steps 1", "misstep 1", "step -", "iterator 3", "12", "optimizer step 3"],
)
def test_no_steps(text: str) -> None:
    assert nvtx_ranges.meaning(text, False)[0] != "step"


@pytest.mark.parametrize(
    ("text", "phase"),
    [
        ("forward", "forward"), ("Forward", "forward"), (":forward", "forward"), ("fwd", "forward"), ("forward pass", "forward"),
        ("forward_pass", "forward"), ("backward", "backward"), (":backward", "backward"), ("BWD", "backward"),
        ("backward.step", "backward"), ("opt", "optimizer"), ("optim", "optimizer"), ("optimizer", "optimizer"),
        ("optimizer.step", "optimizer"), ("optimizer step", "optimizer"), ("Optimizer.step#AdamW.step", "optimizer"),
        ("zero_grad", "zero_grad"), ("optimizer.zero_grad", "zero_grad"), ("data", "data"), ("dataloader", "data"),
        ("data loading", "data"), ("next_batch", "data"), ("load batch", "data"), ("loss", "loss"), ("compute_loss", "loss"),
        ("eval", "evaluation"), ("validation", "evaluation"), ("inference", "evaluation"), ("clip_grad_norm", "clip"),
        ("gradient clipping", "clip"),
    ],
)  # fmt: skip
def test_phases(text: str, phase: str) -> None:
    assert nvtx_ranges.meaning(text, False) == ("phase", phase, "", -1, False)


@pytest.mark.parametrize(
    "text",
    ["forwarder", "feedforward", "database", "lossy", "options", "optimize_graph", "evaluator x", "backwards", "fwdx"],
)
def test_no_phases(text: str) -> None:
    assert nvtx_ranges.meaning(text, False)[0] == "range"


@pytest.mark.parametrize(
    ("text", "path", "cls"),
    [
        ("blocks.0.attn:Attention", "blocks.0.attn", "Attention"),
        ("fc-1:Linear", "fc-1", "Linear"),
        (":GPT", "", "GPT"),
        ("GPT:GPT", "", "GPT"),  # a root that is labeled with its class twice
        ("module.0:_Private", "module.0", "_Private"),
    ],
)
def test_modules(text: str, path: str, cls: str) -> None:
    assert nvtx_ranges.meaning(text, False) == ("module", path, cls, -1, False)


@pytest.mark.parametrize("text", ["a:b:C", "a b:C", "x:", "path:9", "http://x", "a:B c", "torch::nn"])
def test_no_modules(text: str) -> None:
    assert nvtx_ranges.meaning(text, False)[0] == "range"


@pytest.mark.parametrize(
    ("text", "name", "number"),
    [
        ("aten::mul, seq = 7, op_id = 9", "aten::mul", 7),
        ("aten::mul, seq = 7", "aten::mul", 7),
        ("aten::mul, op_id = 9", "aten::mul", -1),
        ("MulBackward0, seq = 7, op_id = 19, sizes = [[3, 4]]", "MulBackward0", 7),
        (
            "autograd::engine::evaluate_function: MulBackward0, seq = 7, op_id = 2",
            "autograd::engine::evaluate_function: MulBackward0",
            7,
        ),
        ("DistributedDataParallel.forward, op_id = 5", "DistributedDataParallel.forward", -1),
        (
            "{'mod': 'torch.nn.functional', 'op': 'linear', 'args': [{'name': '', 'type': 'tensor'}]}",
            "torch.nn.functional.linear",
            -1,
        ),
    ],
)
def test_emit_nvtx(text: str, name: str, number: int) -> None:
    assert nvtx_ranges.meaning(text, False) == ("op", name, "", number, False)


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("Optimizer.step#SGD.step, op_id = 5", "phase", "optimizer"),  # record_function, as emit_nvtx writes it
        ("Optimizer.zero_grad#AdamW.zero_grad, op_id = 6", "phase", "zero_grad"),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__, op_id = 7", "phase", "data"),
        ("ProfilerStep#4, op_id = 8", "step", "ProfilerStep#4"),
        (
            "torch.optim.adamw.AdamW.step",
            "phase",
            "optimizer",
        ),  # nsys --pytorch=functions-trace, --python-functions-trace
        ("torch._tensor.Tensor.backward", "phase", "backward"),
        ("torch.nn.modules.loss.CrossEntropyLoss.forward", "phase", "loss"),
        ("[pl][profile]run_training_batch", "step", "[pl][profile]run_training_batch"),  # Lightning, NeMo
        ("[pl][profile][Strategy]DDPStrategy.training_step", "phase", "forward"),
        ("[pl][profile][Strategy]DDPStrategy.backward, op_id = 3", "phase", "backward"),
        ("[pl][module]torch.nn.modules.linear.Linear: layer.0", "module", "layer.0"),
        ("forward-compute", "phase", "forward"),  # under the names of Megatron's timers
        ("backward-compute", "phase", "backward"),
        ("batch-generator", "phase", "data"),
        ("optimizer-inner-step", "phase", "optimizer"),
        ("DeepSpeedEngine.forward", "phase", "forward"),
        ("DeepSpeedZeroOptimizer_Stage3.step", "phase", "optimizer"),
        ("execute_context_0(0)_generation_8(8)", "step", "execute_context_0(0)_generation_8(8)"),  # vLLM
        ("execute_new_2_cached_30", "step", "execute_new_2_cached_30"),
        ("{'Module': 'model.layers.0.self_attn', 'TrainableParams': {}}", "module", "model.layers.0.self_attn"),
        ("{'Module': 'top.norm', 'Inputs': [[4, 8]], 'x': [[4]]}", "module", "top.norm"),
        (
            "{'Module': 'top.norm', 'TrainableParams': {'weight': [8]}, 'Outputs': [[4, 8]]}",
            "range",
            "top.norm (outputs)",
        ),
    ],
)
def test_what_frameworks_write(text: str, kind: str, name: str) -> None:
    found = nvtx_ranges.meaning(text, False)
    assert found[:2] == (kind, name)
    assert found[2] == ("Linear" if name == "layer.0" else "")


def test_a_capture_of_deepspeed_has_its_steps(tmp_path: Path) -> None:
    """Nobody marked a step: the optimizer of the framework does."""
    report = Report()
    main = report.process(1).thread(1)
    for i in range(6):
        t = i * 1_000_000
        for at, name in enumerate(("DeepSpeedEngine.forward", "DeepSpeedEngine.backward", "DeepSpeedEngine.step")):
            main.add_range(name, t + at * 300_000, t + at * 300_000 + 250_000)
            main.launch(
                t + at * 300_000 + 9_000, 5_000, kernel=f"k{i}{at}", gpu_start=t + at * 300_000 + 20_000, gpu_dur=90_000
            )
    given = reports.gather(report, tmp_path)
    assert given.steps.source == "optimizer"
    assert given.scope.steps >= 3
    phases = given.attributed.gpu_ops["phase"].cast(pl.String).to_list()
    assert {p: phases.count(p) for p in phases} == {"forward": 6, "backward": 6, "optimizer": 6}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("layer 3", "layer #"),
        ("batch#17", "batch##"),
        ("request_0042", "request_#"),
        ("42", "#"),
        ("load, size = 3", "load"),
        ("conv2d", "conv2d"),  # a number inside a word is part of the name
        ("  spaced  ", "spaced"),
        ("x" * 1000, "x" * 200),
    ],
)
def test_other_names_lose_their_counters(text: str, name: str) -> None:
    assert nvtx_ranges.meaning(text, False) == ("range", name, "", -1, False)


def test_the_prefix_makes_a_range_ours_without_a_domain() -> None:
    assert nvtx_ranges.meaning("nsysx:fc:Linear recompute", False) == ("module", "fc", "Linear", -1, True)
    assert nvtx_ranges.meaning("nsysx:bwd fc:Linear", False)[0] == "backward_module"
    assert nvtx_ranges.meaning("fc:Linear compiled", True) == ("module", "fc", "Linear", -1, False)


KINDS = {"step", "phase", "module", "backward_module", "op", "range", "sync", "info", "other"}


@given(st.text(), st.booleans())
def test_any_text_means_something(text: str, own: bool) -> None:
    kind, name, cls, number, recompute = nvtx_ranges.meaning(text, own)
    assert kind in KINDS
    assert isinstance(name, str)
    assert isinstance(cls, str)
    assert number >= -1
    assert isinstance(recompute, bool)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("pattern", ["step {}", "iteration_{}", "aten::x, seq = {}"])
@pytest.mark.parametrize("number", ["9" * 18, "9" * 19, str(1 << 63), "1" + "0" * 5000])
def test_a_number_that_nothing_counts_to_is_no_number(pattern: str, number: str, own: bool) -> None:
    """It would not fit 64 bits; and Python itself refuses to read more than 4,300 digits."""
    _, _, _, found, _ = nvtx_ranges.meaning(pattern.format(number), own)
    assert found in ({-1, int(number)} if len(number) == 18 else {-1})


# --- read ----------------------------------------------------------------------------------------------------------------


def read(report: Report, folder: Path) -> nvtx_ranges.Ranges:
    return nvtx_ranges.read(load(report.write(folder / "r.sqlite")))


def test_libraries_that_annotate_themselves_are_left_out(tmp_path: Path) -> None:
    report = Report()
    main = report.process(1).thread(1)
    for domain in ("NCCL", "cuBLAS", "cuDNN", "CCCL", "TensorRT", "Python Backtrace on CUDA"):
        main.add_range("forward", 0, 10, domain=domain)
    for domain in ("", "my domain", "nvtx-tests"):
        main.add_range("forward", 20, 30, domain=domain)
    assert read(report, tmp_path).ranges.height == 3


def test_the_domain_belongs_to_its_process(tmp_path: Path) -> None:
    """Domain 1 is nsysx in one process, and somebody else's in the other."""
    report = Report()
    for pid, domain in ((1, "nsysx"), (2, "other")):
        report.process(pid).thread(pid).add_range("fc:Linear extra", 0, 10, domain=domain)
    rows = read(report, tmp_path).ranges.sort("thread")
    assert rows["own"].to_list() == [True, False]
    assert rows["kind"].to_list() == ["other", "range"]


def test_unclosed_crossing_nameless_and_backward_in_time(tmp_path: Path) -> None:
    report = Report()
    process = report.process(1)
    main, other = process.thread(1), process.thread(2)
    main.call("cudaFree_v3020", 0, 700)
    main.add_range("open", 10, None)
    main.add_range("late and open", 900, None)
    main.add_range("crossing", 20, 60, ends_on=other)
    main.add_range("own end", 20, 60, ends_on=main)
    main.add_range(None, 30, 40)
    main.add_range("backwards", 50, 45)
    rows = {r["label"]: r for r in read(report, tmp_path).ranges.iter_rows(named=True)}
    assert set(rows) == {"open", "late and open", "crossing", "own end", "<unnamed>"}
    assert (rows["open"]["open"], rows["open"]["end_ns"]) == (True, 700)
    assert (rows["late and open"]["open"], rows["late and open"]["end_ns"]) == (True, 900)
    assert (rows["crossing"]["crossing"], rows["own end"]["crossing"]) == (True, False)
    assert not rows["crossing"]["open"]


def test_marks_are_instants(tmp_path: Path) -> None:
    report = Report()
    main = report.process(1).thread(1)
    main.mark("step 3", 50)
    main.mark("info {}", 60, domain="nsysx")
    main.add_range("step 4", 0, 10, registered=True)
    found = read(report, tmp_path)
    assert found.marks.select("label", "kind", "number", "start_ns", "end_ns").rows() == [("step 3", "step", 3, 50, 50)]
    assert found.ranges["label"].to_list() == ["step 4"]

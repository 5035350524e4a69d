"""NSX102, 112, 113, 114: work that the CPU brings too late, or in too many pieces."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsysx.analyses.helpers import module_names
from nsysx.findings import _compiled_shapes
from nsysx.judging.gpu_work import folded
from nsysx.model import Finding
from tests.findings import US, Program, empty, healthy, said_of, stepless

CODES = ("NSX102", "NSX112", "NSX113", "NSX114")


def tiny(program: Program, number: int) -> None:
    """50 kernels of 2 us, one every 20 us."""
    with program.range("optimizer AdamW"), program.range("layers.0.norm:Norm"):
        for _ in range(50):
            program.launch(2)
            program.host(14)


def test_a_step_of_tiny_kernels_is_launch_bound(tmp_path: Path) -> None:
    finding = Program().steps(tiny).finding(tmp_path, "NSX102")
    assert finding.verdict == "found"
    # 18 of each 20 us the device idles. A graph leaves the kernels, a launch, and a short pause between kernels.
    assert finding.cost_ns_per_step == pytest.approx(50 * 18_000, rel=0.05)
    assert finding.saving_ns_per_step is not None and 600_000 < finding.saving_ns_per_step < 900_000
    assert finding.saving.bound


def test_what_breaks_a_graph_is_listed(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        tiny(program, number)
        program.sync()
        program.call("cudaMalloc_v3020", 30)

    finding = Program().steps(body).finding(tmp_path, "NSX102")
    assert {row["blocks capture"] for row in finding.evidence} == {"cudaStreamSynchronize", "cudaMalloc"}
    assert all(row["calls"] == pytest.approx(1, abs=0.2) for row in finding.evidence)
    assert all(row.keys() >= {"file", "line"} for row in finding.evidence)  # a line without its file names no place


@pytest.mark.parametrize(("unlike", "state"), [(0, "holds"), (1, "holds"), (2, "violated")])
def test_inputs_of_other_shapes_rule_a_graph_out(tmp_path: Path, unlike: int, state: str) -> None:
    """The same launches with other grids in two of three steps: another shape is padded or compiled as dynamic."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            for _ in range(30):
                program.launch(2, blocks=100 + number if number % 3 < unlike else 7)
                program.host(14)

    finding = Program().steps(body, 13).finding(tmp_path, "NSX102")
    assert ("dynamic=True" in finding.paste) == (state == "violated")
    assert ("reduce-overhead" in finding.paste) == (state == "holds")
    states = {c.name: c.state for c in finding.conditions}
    assert states.get("each step has inputs of the same shapes", "violated") == state


def test_what_cannot_be_judged_is_no_condition_that_holds(tmp_path: Path) -> None:
    """Without phases, nothing says whether a wait in each step is inside the model: no graph is pasted."""

    def body(program: Program, number: int) -> None:
        for _ in range(40):
            program.launch(2, "at::native::layer_norm_backward")
            program.host(14)
        program.copy(2, "DtoH", bytes=4)

    finding = Program().steps(body, 12).finding(tmp_path, "NSX102")
    assert finding.verdict == "found"
    assert "reduce-overhead" not in finding.paste and "only if" in finding.fix


def test_the_module_that_launches_too_much_is_named(tmp_path: Path) -> None:
    finding = Program().steps(tiny).finding(tmp_path, "NSX113")
    assert finding.verdict == "found"
    assert finding.where == {"module": "layers.*.norm", "phase": "optimizer"}
    assert "50 tiny launches" in finding.title


@pytest.mark.parametrize(("launches", "verdict"), [(19, "clear"), (20, "found")])
def test_a_part_launches_much_from_twenty_times_a_step_on(tmp_path: Path, launches: int, verdict: str) -> None:
    """In each step: twenty in two steps are few."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            for _ in range(launches):
                program.launch(2)
                program.host(30)

    assert Program().steps(body, 9).finding(tmp_path, "NSX113").verdict == verdict


@pytest.mark.parametrize("waits", [False, True])
def test_a_graph_of_one_part_needs_what_a_graph_of_the_model_needs(tmp_path: Path, waits: bool) -> None:
    """It is offered, with what was tested, where nothing forbids it; elsewhere the other ways remain."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("layers.0.norm:Norm"):
            for i in range(50):
                program.launch(2)
                program.host(14)
                if waits and i == 25:
                    program.sync()
        with program.range("backward"):
            program.launch(2)

    said = said_of(Program().steps(body).write(tmp_path))
    (part,) = [f for f in said if f.code == "NSX113"]
    (whole,) = [f for f in said if f.code == "NSX102"]
    assert "one batched or fused operation" in part.fix
    assert any(c.state == "violated" for c in whole.conditions) == waits
    assert ("CUDA graph of it" in part.fix) == (not waits)
    assert part.conditions == (() if waits else whole.conditions)


def test_a_pause_of_the_host_is_found_where_it_lets_the_device_idle(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            for k in range(20):
                program.launch(30)
                program.host(2_000 if k == 10 else 20)

    finding = Program().steps(body).finding(tmp_path, "NSX114")
    assert finding.verdict == "found"
    assert finding.where == {"module": "net", "phase": "forward"}
    assert finding.cost_ns_per_step == pytest.approx(1_900_000, rel=0.02)
    assert finding.saving_ns_per_step == pytest.approx(1_990_000, rel=0.05)


def test_what_is_compiled_again_is_one_thing_to_do_forward_and_back(tmp_path: Path) -> None:
    """Each step compiles for 3 ms before its forward and for 2 ms before its backward; an allocation stands before each launch."""

    def compiled(program: Program, us: int) -> None:
        program.host(us)
        said = json.dumps({"ns": us * US, "ago_ns": 0, "id": "0/1", "function": "forward"})
        program.main.mark(f"compile {said}", program.t, domain="nsysx")
        program.call("cudaMalloc_v3020", 5)
        program.host(2)

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            program.launch(30)
            compiled(program, 3_000)
            for _ in range(10):
                program.launch(30)
        with program.range("backward"):
            compiled(program, 2_000)
            for _ in range(10):
                program.launch(30)

    program = Program()
    program.main.mark('info {"pid": 100, "pauses": true}', at=0, domain="nsysx")
    finding = program.steps(body).finding(tmp_path, "NSX114")
    assert "recompilation by torch.compile" in finding.title
    assert "Keep the inputs of the compiled function alike" in finding.fix
    assert finding.where == {"module": "net", "phase": "forward"}
    assert finding.saving_ns_per_step == pytest.approx(4_700_000, rel=0.05)


def test_a_pause_after_a_wait_belongs_to_the_wait(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        healthy(program, number)
        program.sync()
        program.host(2_000)

    assert Program().steps(body).finding(tmp_path, "NSX114").verdict == "clear"


@pytest.mark.parametrize(("size", "made"), [(64 << 10, True), ((64 << 10) - 1, False)])
def test_a_pause_before_an_upload_makes_its_data(tmp_path: Path, size: int, made: bool) -> None:
    """From 64 kB on: a smaller copy costs no time to make."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            program.launch(300)
            program.launch(10)
            program.host(2_000)
            program.copy(20, bytes=size)
            program.launch(300)

    finding = Program().steps(body).finding(tmp_path, "NSX114")
    assert finding.verdict == "found"
    assert ("the CPU makes data" in finding.title) == made
    assert finding.fix.startswith("Create this data on the GPU") == made


@pytest.mark.parametrize(("every", "told"), [(4, False), (1, True)])
def test_pauses_around_a_checkpoint_are_told_by_the_slow_steps_alone(tmp_path: Path, every: int, told: bool) -> None:
    """What each step copies to the host is no checkpoint, and the pause before it is one of its own."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            for _ in range(20):
                program.launch(30)
        if number % every == 0:
            for _ in range(3):
                program.host(3_000)
                program.copy(200, "DtoH", pageable=False, bytes=4 << 20)

    found = {f.code: f for f in said_of(Program().steps(body, 17).write(tmp_path)) if f.verdict == "found"}
    assert ("NSX114" in found) == told
    assert ("NSX109" in found) != told


def test_fusion_gives_an_estimate_and_says_so(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("act:Gate"):
            program.launch(500)
            for _ in range(5):
                program.launch(100, "void vectorized_elementwise_kernel<4, Add>(int)")

    finding = Program().steps(body).finding(tmp_path, "NSX112")
    assert finding.verdict == "found"
    assert finding.cost_ns_per_step == 400_000
    assert finding.saving_ns_per_step == 400_000
    assert finding.saving.error_ns == 200_000, "of two compilers one saved half of the estimate"
    assert finding.saving.most_ns == 500_000, "no compiler saves more than the five kernels take"
    assert finding.saving.confidence.startswith("an estimate")
    assert finding.where == {"module": "act", "phase": "forward"}
    (row,) = finding.evidence
    assert (row["chains"], row["kernels"], row["at most_ns"]) == (1, 5, 400_000)


@pytest.mark.parametrize(("kernels", "calls", "where"), [(6, 1, "Gate"), (2, 3, None)])
def test_chains_within_one_class_are_a_place_and_what_is_spread_over_a_network_is_an_option(
    tmp_path: Path, kernels: int, calls: int, where: str | None
) -> None:
    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            program.launch(500)
            for call in range(calls):
                with program.range(f"act{call}:Gate"):
                    for _ in range(kernels):
                        program.launch(100, "void vectorized_elementwise_kernel<4, Add>(int)")

    summary = Program().steps(body).summary(tmp_path)
    (finding,) = (f for f in summary.findings or () if f.code == "NSX112")
    assert finding.verdict == "found" and finding.evidence[0].get("written in") == where
    assert ("of what can go is in Gate" in finding.fix) == (where is not None)
    (action,) = summary.answer.do
    assert action.finding is not None and action.paste
    assert ("as an option for the whole network" in action.text) == (where is None)


ADD, RAND = (
    "void vectorized_elementwise_kernel<4, Add>(int)",
    "void distribution_elementwise_grid_stride_kernel<rand>(int)",
)


@pytest.mark.parametrize(
    ("wrappers", "unsplit"), [({}, False), ({"DDP": [{"buffers": 0}]}, True), ({"FSDP": [{}]}, False)]
)
def test_what_ddp_wraps_is_compiled_for_all_shapes_without_its_splits(
    wrappers: dict[str, Any], unsplit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SimpleNamespace(wrappers=lambda name: tuple(wrappers.get(name, ())))
    monkeypatch.setattr(_compiled_shapes, "settings_of", lambda _: settings)
    case: Any = SimpleNamespace(profile=None)
    fix = _compiled_shapes.for_all_shapes(case, comment="  # your Net")
    assert fix.paste.endswith("torch.compile(model, dynamic=True)  # your Net")
    assert fix.paste.startswith("torch._dynamo.config.optimize_ddp = False") == unsplit
    monkeypatch.setattr(_compiled_shapes, "settings_of", lambda _: None)
    assert "optimize_ddp" not in _compiled_shapes.for_all_shapes(case).paste


@pytest.mark.parametrize(("lengths", "dynamic"), [((64, 64, 80), False), ((64, 80, 96), True)])
def test_inputs_of_ever_new_length_are_not_compiled_for_each(
    tmp_path: Path, lengths: tuple[int, ...], dynamic: bool
) -> None:
    """Where half of the steps have one shape, compiling for it is worth its time."""

    def body(program: Program, number: int) -> None:
        # Shapes come back only where few there are.
        blocks = lengths[number % len(lengths)] + (number if dynamic else 0)
        with program.range("forward"), program.range("act:Gate"):
            program.launch(500, blocks=blocks)
            for _ in range(5):
                program.launch(100, "void vectorized_elementwise_kernel<4, Add>(int)", blocks=blocks)

    finding = Program().steps(body, 12).finding(tmp_path, "NSX112")
    assert ("dynamic=True" in finding.paste) == dynamic
    assert ("compiled once for all shapes" in finding.fix) == dynamic


def fusible(tmp_path: Path, outer: str, inner: str, *kernels: tuple[str, int]) -> Finding:
    """Return what NSX112 says of a product and kernels (name, blocks) of 100 us within two ranges."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("other:Other"):
            program.launch(500)
        with program.range(outer), program.range(inner):
            for name, blocks in kernels:
                program.launch(100, name, blocks=blocks)

    return Program().steps(body).finding(tmp_path, "NSX112")


def test_neighbors_that_cannot_share_data_are_no_chain(tmp_path: Path) -> None:
    """Three kernels of three tensors only stand next to each other."""
    same = fusible(tmp_path, "forward", "act:Gate", (ADD, 900), (ADD, 900), (ADD, 1800))
    assert (same.verdict, same.saving_ns_per_step) == ("found", 200_000)
    assert fusible(tmp_path, "forward", "act:Gate", (ADD, 9), (ADD, 90), (ADD, 900)).verdict == "clear"
    assert fusible(tmp_path, "forward", "act:Gate", (RAND, 900), (RAND, 900), (RAND, 900)).verdict == "clear"
    assert fusible(tmp_path, "forward", "act:Gate", (RAND, 900), (ADD, 900)).verdict == "found"
    joined = "void at::native::CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 4, 64, 64>(Args)"
    assert fusible(tmp_path, "forward", "act:Gate", (joined, 900), (joined, 900)).verdict == "clear"
    assert fusible(tmp_path, "forward", "act:Gate", (ADD, 900), (joined, 900)).verdict == "found"


def test_an_optimizers_kernels_are_not_fused_by_compiling_the_network(tmp_path: Path) -> None:
    assert fusible(tmp_path, "optimizer SGD", "w:W", *[(ADD, 900)] * 5).verdict == "clear"


def test_without_modules_nobody_knows_what_shares_data(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        with program.range("forward"):
            for _ in range(5):
                program.launch(100, ADD)

    finding = Program().steps(body).finding(tmp_path, "NSX112")
    assert (finding.verdict, finding.detail) == (
        "cannot_tell",
        "which kernels share data is unknown: no module is marked",
    )


def test_two_streams_cannot_save_more_than_the_step(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("act:Gate"):
            for _ in range(4):
                for stream in range(7, 15):
                    program.launch(1000, ADD, stream=stream, cost=1)

    summary = Program().steps(body).summary(tmp_path)
    (finding,) = (f for f in summary.findings or () if f.code == "NSX112")
    assert finding.verdict == "found" and summary.unprofiled is not None
    assert finding.saving_ns_per_step is not None and finding.saving_ns_per_step <= summary.unprofiled.step_ns


def test_elementwise_kernels_apart_are_no_chain(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("act:Gate"):
            for _ in range(5):
                program.launch(100)
                program.launch(100, "void vectorized_elementwise_kernel<4, Add>(int)")

    assert Program().steps(body).finding(tmp_path, "NSX112").verdict == "clear"


def test_a_compiled_program_is_not_told_to_compile(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("act:Gate"):
            program.launch(20, "triton_poi_fused_add_0")
            for _ in range(5):
                program.launch(10, "void vectorized_elementwise_kernel<4, Add>(int)")
            program.host(900)
            program.launch(10, "void at::native::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>>(int)")

    program = Program().steps(body)
    assert program.finding(tmp_path, "NSX112").verdict == "clear"
    launches = program.finding(tmp_path, "NSX102")
    assert launches.verdict == "found"
    assert "already compiled into CUDA graphs" in launches.fix
    assert "fused=True" not in launches.fix


def test_advice_without_pytorch_names_no_part_of_it(tmp_path: Path) -> None:
    program = Program()
    program.report.rows["PROCESSES"].clear()
    for number in range(8):
        begin = program.t
        for _ in range(50):
            program.launch(2, "advec_cell")
            program.host(14)
        program.main.add_range(f"step {number}", begin, program.t)
    finding = program.finding(tmp_path, "NSX102")
    assert finding.verdict == "found"
    assert "torch" not in finding.fix
    assert "CUDA graph" in finding.fix


@pytest.mark.parametrize(
    ("kernel_us", "advice"), [(99, "Copy less"), (101, "Copy on a separate stream, while kernels run")]
)
def test_kernels_that_are_far_shorter_than_copies_cannot_hide_them(
    tmp_path: Path, kernel_us: float, advice: str
) -> None:
    program = Program()
    program.report.rows["PROCESSES"].clear()
    for number in range(8):
        begin = program.t
        program.copy(1000, pageable=False)
        program.launch(kernel_us, "advec_cell")
        program.sync()
        program.main.add_range(f"step {number}", begin, program.t)
    assert program.finding(tmp_path, "NSX105").fix.startswith(advice)


@pytest.mark.parametrize("code", CODES)
def test_a_gpu_bound_step_is_clear(code: str, tmp_path: Path) -> None:
    assert Program().steps(healthy).finding(tmp_path, code).verdict == "clear"


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("program", [empty(), stepless(healthy)], ids=["no gpu work", "no steps"])
def test_without_steps_or_work_it_cannot_be_told(code: str, program: Program, tmp_path: Path) -> None:
    assert program.finding(tmp_path, code).verdict == "cannot_tell"


@pytest.mark.parametrize(
    ("launches", "trains", "answers", "batch"),
    [(20, False, 1, True), (20, True, 1, False), (120, False, 1, False), (20, False, 0, False), (20, False, 3, False)],
)
def test_a_short_forward_that_launches_limit_is_batched(
    tmp_path: Path, launches: int, trains: bool, answers: int, batch: bool
) -> None:
    """Up to 5 ms a step: there a graph of the forward pays as much for its call as it saves, and no saving is promised.

    Passes whose results nobody waits for are no requests, and a program of which every third is waited for is no server.
    """

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("0:Block"):
            for _ in range(launches):
                program.launch(5)
                program.host(40)
        if trains:
            with program.range("backward"):
                program.launch(5)
        if answers and number % answers == 0:
            program.copy(2, "DtoH", bytes=64)

    summary = Program().steps(body, 12).summary(tmp_path)
    finding = next(f for f in summary.findings or () if f.code == "NSX102")
    assert finding.fix.startswith("Batch incoming inputs") == batch
    assert (finding.saving_ns_per_step is None) == batch
    assert ("a batch of 8 gives about " in finding.saving.confidence) == batch
    assert (summary.answer.do[0].text.startswith("Batch incoming inputs"), summary.answer.then_ns is None) == (
        batch,
        batch,
    )


def test_a_pause_before_each_of_many_layers_is_one_and_no_work_for_a_batch(tmp_path: Path) -> None:
    """Each step is another layer: a millisecond in which it loads its weights, three launches, and a result that is waited for."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range(f"layers.{number}:Block"):
            program.host(1_000)
            for _ in range(3):
                program.launch(5)
                program.host(10)
        program.copy(2, "DtoH", bytes=64)

    summary = Program().steps(body, 120).summary(tmp_path)
    found = {f.code: f for f in summary.findings or () if f.verdict == "found"}
    stall = found["NSX114"]
    assert stall.where["module"] == "layers.*"
    assert 900_000 < (stall.saving_ns_per_step or 0) < 1_100_000
    assert not found["NSX102"].fix.startswith("Batch incoming inputs")
    assert summary.answer.do[0].code == "NSX114"


@pytest.mark.parametrize(
    ("module", "classes", "said"),
    [
        ("0", ["MoE"], "MoE (0)"),
        ("*", ["MoE"] * 4, "4 x MoE"),
        ("r.*.*", ["MoE"] * 4, "4 x MoE"),
        ("0.1", ["Conv2d"], "Conv2d (0.1)"),
        ("layer*.*.conv*", ["Conv2d", "Identity"], "2 modules (layer*.*.conv*)"),
        ("*.*", ["Conv2d", "ReLU"], "2 modules"),
        ("blocks.*.qkv", ["Linear"] * 4, "blocks.*.qkv"),
        ("(optimizer)", [], "the optimizer"),
        ("(clip)", [], "gradient clipping"),
        ("(step, outside modules)", [], "code outside modules"),
        ("Linear#*", [], "Linear"),
    ],
)
def test_modules_are_called_as_people_write_them(module: str, classes: list[str | None], said: str) -> None:
    assert module_names.spoken(module, lambda pattern: classes) == said


def test_a_digit_within_a_word_is_part_of_it() -> None:
    assert [folded(name) for name in ("Conv1d", "layer1.0.bn2", "token_12", "h.10.mlp")] == [
        "Conv1d",
        "layer*.*.bn*",
        "token_*",
        "h.*.mlp",
    ]


def test_a_module_that_is_only_a_number_is_called_by_its_class(tmp_path: Path) -> None:
    def of(*paths: str) -> str:
        def body(program: Program, number: int) -> None:
            for path in paths:
                with program.range("forward"), program.range(path):
                    for k in range(12):
                        program.launch(30)
                        program.host(2_000 if k == 10 else 20)

        return Program().steps(body).findings(tmp_path, "NSX114")[0].title

    assert "before MoE (0);" in of("0:MoE")
    assert "before blocks.0;" in of("blocks.0:MoE")


@pytest.mark.parametrize(("cls", "larger"), [("LSTM", True), ("GRU", True), ("Net", False)])
def test_a_recurrent_layer_is_given_no_compiler(tmp_path: Path, cls: str, larger: bool) -> None:
    """The launches of the whole sequence are made in one call of cuDNN, in which no compiler looks."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range(f"rnn:{cls}"):
            for _ in range(40):
                program.launch(2)
        program.sync()

    finding = Program().steps(body).finding(tmp_path, "NSX113")
    assert ("larger-batches" in [way.name for way in finding.remedies]) == larger
    assert ("compile" in finding.fix) != larger


@pytest.mark.parametrize(("nvtx", "told"), [(None, "Install nvtx where the program runs"), ("0.2.13", "Find the line")])
def test_a_line_that_no_range_could_name_asks_for_the_package(nvtx: str | None, told: str, tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            for k in range(20):
                program.launch(30)
                program.host(2_000 if k == 10 else 20)

    backend, reason = ("nvtx", None) if nvtx else ("torch", "nvtx: No module named nvtx")
    record = {"pid": 100, "backend": backend, "nvtx": nvtx, "reason": reason, "ranges": {}}
    (tmp_path / "r.run.json").write_text(json.dumps({"probe": [record]}))
    (finding,) = Program().steps(body).findings(tmp_path, "NSX114")
    assert finding.fix.startswith(told)
